"""Recipe ``sac`` by CrossQ, with critics that a processor core can train."""

from dataclasses import replace

from sharpwave.agents.crossq import CrossQ
from sharpwave.training.recipes.sac import RECIPE as SAC

RECIPE = replace(SAC, agent=CrossQ.Settings(random_steps=SAC.agent.random_steps, critic_units=256))
