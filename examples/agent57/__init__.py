"""Agent57 and NGU as agents of one's own: importing this registers both by their names, "agent57" and "ngu"."""

from agent57.agent57 import Agent57
from agent57.ngu import NGU
from sharpwave.agents import registry

__all__ = ["NGU", "Agent57"]

for agent in (NGU, Agent57):
    registry.register(agent)
