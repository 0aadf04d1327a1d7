"""Runs of earlier releases, translated to what this one reads."""

from __future__ import annotations

from typing import Any

from sharpwave.agents.protocol import Agent


def agent_figures(state: dict[str, Any], agent: Agent) -> dict[str, Any]:
    """Return the plain values of an agent's state, from a checkpoint's figures that have none: DQN was the only one.

    Raises:
        KeyError, TypeError: not the figures of such a checkpoint.
    """
    return {
        "exploration": state["training"]["exploration"],
        "targets_copied": state["steps"] // agent.settings.target_every,
    }
