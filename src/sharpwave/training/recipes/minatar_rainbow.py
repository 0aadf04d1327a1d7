"""Recipe ``minatar`` with Rainbow in place of DQN."""

from dataclasses import replace

from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.minatar import RECIPE as MINATAR

DQN = MINATAR.agent

RECIPE = replace(
    MINATAR,
    agent=Rainbow.Settings(
        network=DQN.network,
        hidden_units=DQN.hidden_units // 2,  # of each of the two streams
        lr=DQN.lr,
        target_every=DQN.target_every,
        average_decay=DQN.average_decay,
        lowest_return=-1.0,
        highest_return=29.0,
        replay=TransitionsSettings(
            batch_size=64, n_step=3, prioritized=True, priority_alpha=0.5, beta_steps=MINATAR.training.steps
        ),
        exploration=DQN.exploration,  # where noise is turned off
    ),
)
