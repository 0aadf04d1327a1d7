"""T-maze with a corridor of 20: a task of memory that R2D2 solves in a minute, and no stack of frames does."""

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.r2d2 import R2D2
from sharpwave.agents.replay import SequencesSettings
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("sharpwave/TMaze-v0", num_envs=8),
    agent=R2D2.Settings(
        network="mlp",
        hidden_units=64,
        core_units=64,
        lr=1e-3,
        adam_eps=1e-5,
        target_every=800,
        rescale=False,  # rewards are 1 and -1; and rescaled values of turning now and a step later are too close
        replay=SequencesSettings(batch_size=32, length=40, burn_in=10, stride=20, gamma=0.95),
        exploration=EpsilonGreedy(end=0.4, steps=5_000, ladder=5.0),  # some lanes try turns for ever
    ),
    replay=ReplaySettings(capacity=50_000, codec="raw"),
    training=TrainingSettings(steps=40_000, threads=1, checkpoint_every=20_000, warmup_steps=1_000, update_every=4),
    evaluation=EvaluationSettings(stop_reward=0.95, evaluate_every=5_000),
)
