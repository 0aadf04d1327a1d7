"""Algorithms by name. A new one is a module, and a line here, in its package's metadata, or a call of
:func:`register`."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharpwave.agents.protocol import Agent

AGENTS: dict[str, str | type[Agent]] = {
    "dqn": "sharpwave.agents.dqn:DQN",
}
"""The class of each algorithm, or where it is found: imported when it is asked for."""

GROUP = "sharpwave.agents"
"""Entry points of other packages that are algorithms: ``mine = "my_package.agents:Mine"``."""


def kinds() -> list[str]:
    """Names of all algorithms."""
    return [*_found()]


def register(agent: type[Agent]) -> None:
    """Make an algorithm known by the ``kind`` of its settings.

    Raises:
        ValueError: another one has the name.
    """
    kind = agent.Settings.kind
    if kind in _found() and agent_class(kind) is not agent:
        raise ValueError(f"agent {kind!r}: the name is taken by {agent_class(kind)}; choose another one")
    AGENTS[kind] = agent


def agent_class(kind: str) -> type[Agent]:
    """Return the class of an algorithm.  Raises: ValueError."""
    found = _found().get(kind)
    if found is None:
        raise ValueError(f"agent: got kind {kind!r}, expected one of {', '.join(kinds())}")
    if isinstance(found, str):
        module, _, name = found.partition(":")
        loaded: type[Agent] = getattr(importlib.import_module(module), name)
        return loaded
    return found


def agent_settings(kind: str) -> Any:
    """Return the class of an algorithm's settings.  Raises: ValueError."""
    return agent_class(kind).Settings


def _found() -> dict[str, str | type[Agent]]:
    return {point.name: point.value for point in entry_points(group=GROUP)} | AGENTS
