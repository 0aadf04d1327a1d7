"""Any Atari game by implicit quantile networks with the settings of Dabney et al. (2018)."""

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, TrainingSettings

RECIPE = Recipe(
    env=Atari("breakout"),
    agent=Rainbow.Settings(
        network="nature",
        head="iqn",
        noisy=False,
        dueling=False,
        double=False,
        precision="auto",
        lr=5e-5,
        adam_eps=3.125e-4,  # .01 / 32
        target_every=40_000,  # 10,000 updates
        replay=TransitionsSettings(),
        exploration=EpsilonGreedy(steps=1_000_000, hold=50_000),
    ),
    training=TrainingSettings(steps=50_000_000, checkpoint_every=500_000, warmup_steps=50_000, update_every=4),
    evaluation=EvaluationSettings(evaluate_every=500_000),
)
