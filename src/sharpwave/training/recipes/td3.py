"""Recipe ``sac`` by TD3."""

from dataclasses import replace

from sharpwave.agents.td3 import TD3
from sharpwave.training.recipes.sac import RECIPE as SAC

RECIPE = replace(SAC, agent=TD3.Settings(random_steps=SAC.agent.random_steps))
