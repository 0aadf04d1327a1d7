"""Any Atari game by Rainbow with the settings of Hessel et al. (2018)."""

from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, TrainingSettings

RECIPE = Recipe(
    env=Atari("breakout"),
    agent=Rainbow.Settings(
        network="nature",
        precision="auto",
        replay=TransitionsSettings(n_step=3, prioritized=True, priority_alpha=0.5, beta_steps=50_000_000),
    ),
    training=TrainingSettings(steps=50_000_000, checkpoint_every=500_000, warmup_steps=20_000, update_every=4),
    evaluation=EvaluationSettings(evaluate_every=500_000),
)
