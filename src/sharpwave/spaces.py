"""Parts of Gymnasium's spaces that are text, or of varying length: fields of rows of any length hold most of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from sharpwave.spec import Field

VARIABLE = ("Text", "Sequence", "Graph")
"""Gymnasium's spaces of text, and of values of varying length."""


def parts_of(space: Any) -> dict[Any, Any]:
    """Return the parts of a dict by key, or of a tuple by index; none of another space."""
    inner = getattr(space, "spaces", None)
    if inner is None or type(space).__name__ == "OneOf":
        return {}
    return dict(inner) if isinstance(inner, Mapping) else dict(enumerate(inner))


def row_field(space: Any) -> Field | None:
    """Return the field for a text, or a sequence of arrays of one shape; ``None``: the space is another."""
    if type(space).__name__ == "Text":
        return Field(str)
    if type(space).__name__ != "Sequence":
        return None
    shape, dtype = getattr(space.feature_space, "shape", None), getattr(space.feature_space, "dtype", None)
    if shape is None or dtype is None or np.dtype(dtype).kind not in "buif":
        return None
    return Field((None, *shape), dtype)


def graph_fields(space: Any) -> dict[str, Field] | None:
    """Return the fields for a graph of arrays; ``None``: the space is another."""
    if type(space).__name__ != "Graph":
        return None
    parts = {"nodes": space.node_space} | ({} if space.edge_space is None else {"edges": space.edge_space})
    fields = {name: Field((None, *one.shape), str(one.dtype)) for name, one in parts.items()}
    return fields if space.edge_space is None else fields | {"edge_links": Field((None, 2), "int64")}


def graph_values(space: Any, graphs: Any) -> dict[str, Any]:
    """Return the arrays of a graph, or lists of those of several, by the name of ``graph_fields``."""
    fields = graph_fields(space) or {}

    def of(graph: Any, name: str) -> Any:
        found = getattr(graph, name)
        return np.zeros((0, *fields[name].inner), fields[name].np_dtype) if found is None else found

    if hasattr(graphs, "nodes"):
        return {name: of(graphs, name) for name in fields}
    return {name: [of(one, name) for one in graphs] for name in fields}


def stored_parts_of(space: Any, rows: bool = False) -> dict[Any, Any]:
    """Return the ``parts_of`` a space that fields can hold, at least in part.

    Args:
        rows: count fields with rows of any length.
    """
    return {key: one for key, one in parts_of(space).items() if _is_stored(one, rows)}


def _is_stored(space: Any, rows: bool) -> bool:
    if type(space).__name__ in VARIABLE:
        return rows and (row_field(space) is not None or graph_fields(space) is not None)
    parts = parts_of(space)
    return not parts or any(_is_stored(one, rows) for one in parts.values())


def variable_parts(space: Any, name: str = "obs", rows: bool = False) -> list[str]:
    """Return the parts of a space that are text, or of varying length: their names and kinds.

    Args:
        rows: leave out the parts that fields with rows of any length hold.
    """
    if type(space).__name__ in VARIABLE:
        return [] if _is_stored(space, rows) else [f"{name} ({type(space).__name__})"]
    return [found for key, one in parts_of(space).items() for found in variable_parts(one, f"{name}[{key!r}]", rows)]


def refuse_variable(what: str, **space: Any) -> None:
    """Refuse spaces with texts, or values of varying length, for batches of arrays.

    Args:
        space: spaces by the name of their values.

    Raises: ValueError: naming the first such part.
    """
    for part in [part for name, one in space.items() for part in variable_parts(one, name)]:
        raise ValueError(
            f"{what}: {part} has values of any length, expected arrays of one shape, of which its batches are; use "
            "sharpwave.Recorder with a store, whose batches have such values as a sharpwave.Ragged"
        )


def stored_space(space: Any, rows: bool = False) -> Any:
    """Return a space without its ``variable_parts``, and without dicts and tuples of such parts only.

    In a tuple the remaining parts move up. A space of variable parts only is returned as it is; a graph, with ``rows``,
    as a dict.
    """
    if not variable_parts(space) or not _is_stored(space, rows):
        return space
    if type(space).__name__ in VARIABLE:
        fields = graph_fields(space)
        return space if fields is None else SimpleNamespace(spaces=fields)
    kept = {key: stored_space(one, rows) for key, one in stored_parts_of(space, rows).items()}
    return SimpleNamespace(spaces=kept if isinstance(space.spaces, Mapping) else tuple(kept.values()))


def stored_values(space: Any, obs: Any, rows: bool = False) -> Any:
    """Return an observation without its ``variable_parts``; parts that the space lacks stay, to be refused."""
    if rows and graph_fields(space) is not None:
        return graph_values(space, obs)
    parts, kept = parts_of(space), stored_parts_of(space, rows)
    if parts and isinstance(obs, Mapping):
        given = {key: one for key, one in obs.items() if key in kept or key not in parts}
        return {key: stored_values(parts.get(key), one, rows) for key, one in given.items()}
    if parts and isinstance(obs, tuple):
        chosen = [(key, one) for key, one in enumerate(obs) if key in kept or key not in parts]
        return tuple(stored_values(parts.get(key), one, rows) for key, one in chosen)
    return obs
