"""Recipe ``minatar`` with Rainbow in place of DQN."""

from dataclasses import replace

from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.minatar import RECIPE as MINATAR

RECIPE = replace(
    MINATAR,
    agent=Rainbow.Settings(
        network="tiny",
        hidden_units=128,
        lr=5e-4,
        target_every=4_000,
        lowest_return=-1.0,
        highest_return=29.0,
        replay=TransitionsSettings(
            batch_size=64, n_step=3, prioritized=True, priority_alpha=0.5, beta_steps=MINATAR.training.steps
        ),
    ),
)
