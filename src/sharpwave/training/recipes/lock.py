"""A lock of eight doors: R2D3 opens it with a few demonstrations, and nothing does without."""

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.r2d3 import R2D3
from sharpwave.agents.replay import SequencesSettings
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("sharpwave/Lock-v0", num_envs=8),
    agent=R2D3.Settings(
        network="mlp",
        hidden_units=64,
        core_units=64,
        lr=1e-3,
        adam_eps=1e-5,
        target_every=800,
        demonstration_share=0.25,
        replay=SequencesSettings(batch_size=32, length=8, burn_in=0, stride=8, gamma=0.95),
        exploration=EpsilonGreedy(end=0.02, steps=10_000),
    ),
    replay=ReplaySettings(capacity=50_000, codec="raw"),
    training=TrainingSettings(steps=40_000, threads=1, checkpoint_every=20_000, warmup_steps=1_000, update_every=4),
    evaluation=EvaluationSettings(stop_reward=0.95, evaluate_every=5_000),
)
