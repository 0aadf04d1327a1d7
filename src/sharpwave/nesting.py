"""Nested observations and actions: dicts and tuples of arrays, as columns with flat names and back.

A column's name is the path to it: ``obs.images.top`` is ``obs["images"]["top"]``, ``action.0`` is ``action[0]``. In a
path, a dot in a key is written ``\\.`` and a backslash ``\\\\``; a single key without a dot is written as it is. The
names of tuples are kept beside, as ``0`` may also be a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_LEVELS = 16
"""Levels of nested dicts and tuples."""

_SEGMENT = re.compile(r"(?:[^.\\]|\\[.\\])+")


def path_name(root: str, path: Sequence[str | int]) -> str:
    """Return the flat name of the part at ``path``, keys and indices, of ``root``."""
    if len(path) == 1 and "." not in str(path[0]):
        return f"{root}.{path[0]}"
    escaped = (str(key).replace("\\", r"\\").replace(".", r"\.") for key in path)
    return ".".join((root, *escaped))


def name_path(root: str, name: str) -> tuple[str, ...]:
    """Return the path of a flat name: inverse of ``path_name``, but for indices, which are digits.

    Raises:
        ValueError: no name of a part of ``root``.
    """
    if name == root:
        return ()
    tail = name[len(root) + 1 :]
    segments = _SEGMENT.findall(tail) if "." in tail else [tail]
    path = tuple(re.sub(r"\\(.)", r"\1", one) for one in segments) if "." in tail else (tail,)
    if len(path) > MAX_LEVELS or not all(path) or path_name(root, path) != name:
        raise ValueError(f"field {name[:200]!r}: no name of a part of {root!r}")
    return path


@dataclass(frozen=True)
class _Inner:
    """Dict or tuple within a structure.

    Attributes:
        where: path from the root in its name: ".images".
        keys: of a dict, or indices. ``parts``: for each, flat name of its column or part.
    """

    where: str
    is_tuple: bool
    keys: tuple[Any, ...]
    parts: tuple[str | _Inner, ...]


class Structure:
    """Structure of an observation or action: one array, or dicts and tuples of arrays, nested.

    Args:
        root: name of the whole: "obs" or "action". ``tree``: its fields, in dicts and tuples.

    Attributes:
        ends: the fields by flat name, in order. ``names``: their names.
        tuples: flat names of the parts that are tuples, in order.
        is_array: whether it is one array.
        nested: whether it is more than one array or a dict of arrays without dots in their keys.

    Raises:
        ValueError: an empty dict or tuple, a key that is no non-empty string, or more than ``MAX_LEVELS`` levels.
    """

    def __init__(self, root: str, tree: Any) -> None:
        self.root = root
        self._top, self.ends, self.tuples = _structure(root, tree)
        self.names = tuple(self.ends)
        self.is_array = isinstance(self._top, str)
        self.nested = bool(self.tuples) or any("." in name[len(root) + 1 :] for name in self.names)
        self._flat: dict[str, str] | None = None  # the usual dict, split and joined without recursion
        if isinstance(self._top, _Inner) and not self._top.is_tuple:
            names = [one for one in self._top.parts if isinstance(one, str)]
            self._flat = dict(zip(self._top.keys, names, strict=True)) if len(names) == len(self.names) else None

    def split(self, value: Any, what: str, opened: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """Split a value into its arrays by flat name, without checking the arrays.

        Args:
            what: name of the value, in errors.
            opened: returns the dict or tuple of a part that is neither, such as a space of Gymnasium.

        Raises:
            ValueError: a part is missing, unknown, or no dict or tuple; the message names it.
        """
        if self.is_array:
            return {self.root: value}
        if self._flat is not None and isinstance(value, Mapping) and value.keys() == self._flat.keys():
            return {name: value[key] for key, name in self._flat.items()}
        found: dict[str, Any] = {}
        assert isinstance(self._top, _Inner)
        _split(self._top, value, what, found, opened)
        return found

    def join(self, arrays: Mapping[str, Any]) -> Any:
        """Join arrays by flat name: inverse of ``split``."""
        if self.is_array:
            return arrays[self.root]
        if self._flat is not None:
            return {key: arrays[name] for key, name in self._flat.items()}
        return _join(self._top, arrays)


def _split(
    part: _Inner, value: Any, what: str, found: dict[str, Any], opened: Callable[[Any], Any] | None = None
) -> None:
    value = value if opened is None else opened(value)
    if part.is_tuple:
        if not isinstance(value, (tuple, list)) or len(value) != len(part.keys):
            came = f"{len(value)} parts" if isinstance(value, (tuple, list)) else type(value).__name__
            raise ValueError(f"{what}{part.where}: got {came}, expected a tuple of {len(part.keys)} parts")
    elif not isinstance(value, Mapping) or value.keys() != set(part.keys):
        came = f"keys {sorted(value, key=str)}" if isinstance(value, Mapping) else type(value).__name__
        raise ValueError(f"{what}{part.where}: got {came}, expected a dict with the keys {sorted(part.keys)}")
    for key, inner in zip(part.keys, part.parts, strict=True):
        if isinstance(inner, str):
            found[inner] = value[key]
        else:
            _split(inner, value[key], what, found, opened)


def _join(part: str | _Inner, arrays: Mapping[str, Any]) -> Any:
    if isinstance(part, str):
        return arrays[part]
    if part.is_tuple:
        return tuple(_join(inner, arrays) for inner in part.parts)
    return {key: _join(inner, arrays) for key, inner in zip(part.keys, part.parts, strict=True)}


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return nested dicts and tuples with ``function`` applied to their leaves."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, one) for key, one in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, one) for one in tree)
    return function(tree)


def _structure(root: str, tree: Any) -> tuple[str | _Inner, dict[str, Any], tuple[str, ...]]:
    """Return the outermost part, the leaves by flat name, and the names of tuples."""
    ends: dict[str, Any] = {}
    tuples: list[str] = []

    def visit(node: Any, path: tuple[str | int, ...]) -> str | _Inner:
        name = path_name(root, path) if path else root
        if not isinstance(node, (Mapping, tuple, list)):
            ends[name] = node
            return name
        if len(path) >= MAX_LEVELS:
            raise ValueError(f"Spec: {root} is nested deeper than {MAX_LEVELS} levels")
        is_tuple = not isinstance(node, Mapping)
        if not node:
            raise ValueError(f"Spec: {name} is an empty {'tuple' if is_tuple else 'dict'}; give at least one field")
        if is_tuple:
            tuples.append(name)
        items: list[tuple[Any, Any]] = list(node.items() if isinstance(node, Mapping) else enumerate(node))
        for key, _ in items:
            if not is_tuple and (not isinstance(key, str) or not key):
                kind = {"obs": "observation"}.get(root, root)
                raise ValueError(f"Spec: {kind} key {key!r} in {name} must be a non-empty string")
        parts = tuple(visit(inner, (*path, key)) for key, inner in items)
        return _Inner(name[len(root) :], is_tuple, tuple(key for key, _ in items), parts)

    return visit(tree, ()), ends, tuple(tuples)


def tree_of(root: str, ends: Mapping[str, Any], tuples: Iterable[str]) -> Any:
    """Return nested dicts and tuples of leaves by flat name; ``tuples`` are the names of the tuples.

    Raises:
        ValueError: these are not the names of one structure.
    """
    if root in ends:
        if len(ends) > 1:
            raise ValueError(f"fields {list(ends)[:8]}, expected {root!r}, or its parts")
        return ends[root]
    top: dict[str, Any] = {}
    for name, end in ends.items():
        *before, last = name_path(root, name)
        inner: Any = top
        for key in before:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ValueError(f"field {name[:200]!r} lies in another field")
        if last in inner:
            raise ValueError(f"field {name[:200]!r} contains other fields")
        inner[last] = end
    chosen = set(tuples)

    def closed(node: Any, path: tuple[str, ...]) -> Any:
        if not isinstance(node, dict):
            return node
        inner = {key: closed(one, (*path, key)) for key, one in node.items()}
        if (path_name(root, path) if path else root) not in chosen:
            return inner
        if list(inner) != [str(i) for i in range(len(inner))]:
            raise ValueError(f"fields {list(ends)[:8]}, expected parts of a tuple, numbered from 0")
        return tuple(inner.values())

    return closed(top, ())
