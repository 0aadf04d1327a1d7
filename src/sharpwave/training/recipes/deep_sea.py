"""Deep sea of 20 rows, by Agent57: a treasure that random play finds once in a million episodes."""

from sharpwave.agents.agent57 import Agent57
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.replay import SequencesSettings
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("sharpwave/DeepSea-v0", num_envs=16),
    agent=Agent57.Settings(
        network="mlp",
        hidden_units=64,
        core_units=64,
        lr=1e-3,
        adam_eps=1e-5,
        target_every=2_000,
        core="gru",
        dueling=False,
        rescale=False,
        policies=4,
        min_gamma=0.97,
        max_modulator=100.0,
        max_beta=3.0,
        embedding_size=16,
        episodic_memory=32,
        intrinsic_scale=0.003,
        novelty_lr=1e-5,
        replay=SequencesSettings(batch_size=32, length=20, burn_in=0, stride=20, gamma=0.997),
        exploration=EpsilonGreedy(start=0.2, end=0.2, steps=0),
    ),
    replay=ReplaySettings(capacity=200_000, codec="raw"),
    training=TrainingSettings(steps=200_000, threads=1, checkpoint_every=100_000, warmup_steps=2_000, update_every=4),
    evaluation=EvaluationSettings(stop_reward=0.9, evaluate_every=10_000),
)
