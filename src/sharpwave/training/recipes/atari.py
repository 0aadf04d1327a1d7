"""Any Atari game: the whole screen and all actions. Why these settings: docs/training/atari.md."""

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, TrainingSettings

RECIPE = Recipe(
    env=Atari("breakout", frame="42x42", life_loss_ends=True),
    agent=Rainbow.Settings(
        network="small",  # with "efficient" on 84x84 Breakout stayed at a score of 4
        hidden_units=512,
        standardize=True,
        precision="auto",
        lr=4e-4,
        target_every=2_000,
        average_decay=0.999,
        head="qr",
        quantiles=16,
        munchausen=0.9,  # in place of double Q-learning
        munchausen_temperature=0.003,
        noisy=False,
        dueling=False,
        replay=TransitionsSettings(batch_size=128, n_step=3),
        exploration=EpsilonGreedy(steps=50_000),
    ),
    training=TrainingSettings(
        steps=10_000_000,
        threads=2,
        checkpoint_every=500_000,  # an episode may take 27,000 steps of each environment
        warmup_steps=20_000,
        update_every=8,
    ),
    evaluation=EvaluationSettings(evaluate_every=250_000),
)
