"""mpe2's simple_spread by VDN, which adds the agents' values up; beyond the mixture it is recipe qmix."""

from dataclasses import replace

from sharpwave.agents.vdn import VDN
from sharpwave.training.recipes import qmix

SETTINGS = qmix.RECIPE.agent

RECIPE = replace(
    qmix.RECIPE,
    agent=VDN.Settings(
        hidden_units=SETTINGS.hidden_units, lr=SETTINGS.lr, replay=SETTINGS.replay, exploration=SETTINGS.exploration
    ),
)
