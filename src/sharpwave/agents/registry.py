"""Algorithms by name. A new one is a module, and a line here, in its package's metadata, or a call of
``register``."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from sharpwave.errors import NotRegisteredError

if TYPE_CHECKING:
    from sharpwave.agents.protocol import Agent

AGENTS: dict[str, str | type[Agent]] = {
    "a2c": "sharpwave.agents.a2c:A2C",
    "a3c": "sharpwave.agents.a2c:A3C",
    "bc": "sharpwave.agents.bc:BC",
    "calql": "sharpwave.agents.calql:CalQL",
    "cql": "sharpwave.agents.cql:CQL",
    "crossq": "sharpwave.agents.crossq:CrossQ",
    "dqn": "sharpwave.agents.dqn:DQN",
    "impala": "sharpwave.agents.impala:IMPALA",
    "iql": "sharpwave.agents.iql:IQL",
    "masac": "sharpwave.agents.masac:MASAC",
    "ppo": "sharpwave.agents.ppo:PPO",
    "pqn": "sharpwave.agents.pqn:PQN",
    "qmix": "sharpwave.agents.vdn:QMIX",
    "r2d2": "sharpwave.agents.r2d2:R2D2",
    "r2d3": "sharpwave.agents.r2d3:R2D3",
    "rainbow": "sharpwave.agents.rainbow:Rainbow",
    "rebrac": "sharpwave.agents.rebrac:ReBRAC",
    "rlpd": "sharpwave.agents.rlpd:RLPD",
    "sac": "sharpwave.agents.sac:SAC",
    "td3": "sharpwave.agents.td3:TD3",
    "td3bc": "sharpwave.agents.td3bc:TD3BC",
    "vdn": "sharpwave.agents.vdn:VDN",
}
"""Class of each algorithm, or its import path, which is imported on demand."""

GROUP = "sharpwave.agents"
"""Entry points by which other packages provide algorithms: ``mine = "my_package.agents:Mine"``."""


def kinds() -> list[str]:
    return [*({**_provided(), **AGENTS})]


def class_names() -> dict[str, str]:
    """Return the kind of each algorithm by its class's name: {"SAC": "sac", ...}."""
    found = {**_provided(), **AGENTS}
    return {path.rpartition(":")[2] if isinstance(path, str) else path.__name__: kind for kind, path in found.items()}


def is_known(kind: str) -> bool:
    """Return whether there is an algorithm of this name."""
    return kind in AGENTS or kind in _provided()


def register(agent: type[Agent]) -> None:
    """Register an algorithm by the ``kind`` of its settings.

    Raises:
        ValueError: another algorithm has the name.
    """
    kind = agent.Settings.kind
    if is_known(kind) and agent_class(kind) is not agent:
        raise ValueError(f"agent {kind!r}: the name is taken by {agent_class(kind)}; choose another name")
    AGENTS[kind] = agent


def agent_class(kind: str) -> type[Agent]:
    """Return the class of an algorithm.  Raises: NotRegisteredError: an unknown name."""
    found = AGENTS.get(kind) or _provided().get(kind)
    if found is None:
        raise NotRegisteredError(f"agent: got kind {kind!r}, expected one of {', '.join(kinds())}")
    if isinstance(found, str):
        module, _, name = found.partition(":")
        loaded: type[Agent] = getattr(importlib.import_module(module), name)
        return loaded
    return found


def agent_settings(kind: str) -> Any:
    """Return the class of an algorithm's settings.  Raises: NotRegisteredError: an unknown name."""
    return agent_class(kind).Settings


@cache
def _provided() -> dict[str, str]:
    """Return the import paths of other packages' algorithms, from the metadata of all packages there are."""
    return {point.name: point.value for point in entry_points(group=GROUP)}
