"""Parts of Gymnasium's spaces that no field holds: texts, and what has another length each time."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

VARIABLE = ("Text", "Sequence", "Graph")
"""Gymnasium's spaces of text, and of what has another length each time: no field holds them."""


def variable_parts(space: Any, name: str = "obs") -> list[str]:
    """Return the parts of dicts in a space that are text, or of another length each time: their names and kinds."""
    inner = getattr(space, "spaces", None)
    if not isinstance(inner, Mapping):
        return []
    found: list[str] = []
    for key, one in inner.items():
        part = f"{name}[{key!r}]"
        found += [f"{part} ({type(one).__name__})"] if type(one).__name__ in VARIABLE else variable_parts(one, part)
    return found


def stored_space(space: Any) -> Any:
    """Return a space without its ``variable_parts``, and without dicts of nothing else."""
    if not variable_parts(space):
        return space
    parts = {key: stored_space(one) for key, one in space.spaces.items() if type(one).__name__ not in VARIABLE}
    return SimpleNamespace(spaces={key: one for key, one in parts.items() if getattr(one, "spaces", None) != {}})


def stored_parts(space: Any, obs: Any) -> Any:
    """Return an observation without its ``variable_parts``; what the space doesn't have stays, to be refused."""
    inner = getattr(space, "spaces", None)
    if not isinstance(inner, Mapping) or not isinstance(obs, Mapping):
        return obs
    kept = stored_space(space).spaces
    variable = {key for key in inner if key not in kept}
    return {key: stored_parts(inner.get(key), one) for key, one in obs.items() if key not in variable}
