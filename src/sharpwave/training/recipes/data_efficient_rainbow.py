"""Any Atari game by Rainbow with the settings of van Hasselt, Hessel and Aslanides (2019), for 100,000 steps."""

from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Atari("breakout", num_envs=1),
    agent=Rainbow.Settings(
        network="efficient",
        hidden_units=256,
        precision="auto",
        lr=1e-4,
        target_every=2_000,
        noisy_sigma=0.1,
        replay=TransitionsSettings(n_step=20, prioritized=True, priority_alpha=0.5, beta_steps=100_000),
    ),
    replay=ReplaySettings(capacity=100_000),
    training=TrainingSettings(steps=100_000, checkpoint_every=50_000, warmup_steps=1_600, update_every=1),
    evaluation=EvaluationSettings(evaluate_every=50_000),
)
