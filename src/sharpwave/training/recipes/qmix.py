"""mpe2's simple_spread by QMIX, with smaller steps than VDN's and returns of five rewards."""

from dataclasses import replace

from sharpwave.agents.qmix import QMIX
from sharpwave.training.recipes import vdn

RECIPE = replace(
    vdn.RECIPE,
    agent=QMIX.Settings(
        hidden_units=128,
        lr=5e-4,
        target_tau=0.005,
        replay=replace(vdn.RECIPE.agent.replay, n_step=5),
        exploration=vdn.RECIPE.agent.exploration,
    ),
)
