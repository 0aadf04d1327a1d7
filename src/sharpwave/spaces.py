"""Parts of Gymnasium's spaces that no field holds: texts, and values of varying length."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

VARIABLE = ("Text", "Sequence", "Graph")
"""Gymnasium's spaces of text, and of values of varying length: no field holds them."""


def parts_of(space: Any) -> dict[Any, Any]:
    """Return the parts of a dict by key, or of a tuple by index; none of another space."""
    inner = getattr(space, "spaces", None)
    if inner is None or type(space).__name__ == "OneOf":
        return {}
    return dict(inner) if isinstance(inner, Mapping) else dict(enumerate(inner))


def stored_parts_of(space: Any) -> dict[Any, Any]:
    """Return the ``parts_of`` a space that fields can hold, at least in part."""
    return {key: one for key, one in parts_of(space).items() if _is_stored(one)}


def _is_stored(space: Any) -> bool:
    parts = parts_of(space)
    return type(space).__name__ not in VARIABLE and (not parts or any(map(_is_stored, parts.values())))


def variable_parts(space: Any, name: str = "obs") -> list[str]:
    """Return the parts of a space that are text, or of varying length: their names and kinds."""
    if type(space).__name__ in VARIABLE:
        return [f"{name} ({type(space).__name__})"]
    return [found for key, one in parts_of(space).items() for found in variable_parts(one, f"{name}[{key!r}]")]


def stored_space(space: Any) -> Any:
    """Return a space without its ``variable_parts``, and without dicts and tuples of such parts only.

    In a tuple the remaining parts move up. A space of variable parts only is returned as it is.
    """
    if not variable_parts(space) or not _is_stored(space):
        return space
    kept = {key: stored_space(one) for key, one in stored_parts_of(space).items()}
    return SimpleNamespace(spaces=kept if isinstance(space.spaces, Mapping) else tuple(kept.values()))


def stored_values(space: Any, obs: Any) -> Any:
    """Return an observation without its ``variable_parts``; parts that the space lacks stay, to be refused."""
    parts, kept = parts_of(space), stored_parts_of(space)
    if parts and isinstance(obs, Mapping):
        return {key: stored_values(parts.get(key), one) for key, one in obs.items() if key in kept or key not in parts}
    if parts and isinstance(obs, tuple):
        return tuple(
            stored_values(parts.get(key), one) for key, one in enumerate(obs) if key in kept or key not in parts
        )
    return obs
