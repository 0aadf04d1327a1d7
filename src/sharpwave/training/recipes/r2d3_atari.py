"""Recipe ``r2d2-atari`` with demonstrations: R2D3.

Source: Paine et al. (2019), Making efficient use of demonstrations to solve hard exploration problems.
"""

from dataclasses import replace

from sharpwave.agents.r2d3 import R2D3
from sharpwave.training.recipes.r2d2_atari import RECIPE as R2D2_ATARI

R2D2 = R2D2_ATARI.agent

RECIPE = replace(
    R2D2_ATARI,
    agent=R2D3.Settings(network=R2D2.network, target_every=R2D2.target_every, exploration=R2D2.exploration),
)
