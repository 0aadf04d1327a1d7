"""mpe2's simple_spread by multi-agent soft actor-critic, which explores by its own policies."""

from dataclasses import replace

from sharpwave.agents.masac import MASAC
from sharpwave.training.recipes import vdn

RECIPE = replace(vdn.RECIPE, agent=MASAC.Settings(hidden_units=128, lr=1e-3, replay=vdn.RECIPE.agent.replay))
