"""Any Atari game: the whole screen and all actions."""

from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, TrainingSettings

RECIPE = Recipe(
    env=Atari("breakout"),
    agent=DQN.Settings(
        network="efficient",  # half the time of an update with Nature's
        dueling=True,
        standardize=True,
        precision="auto",
        lr=4e-4,
        target_every=2_000,
        average_decay=0.999,
        replay=TransitionsSettings(batch_size=128, n_step=5),
        exploration=EpsilonGreedy(steps=50_000),
    ),
    training=TrainingSettings(
        steps=10_000_000,
        threads=2,
        checkpoint_every=500_000,  # an episode may take 27,000 steps of each environment
        warmup_steps=20_000,
        update_every=16,
    ),
    evaluation=EvaluationSettings(evaluate_every=500_000),
)
