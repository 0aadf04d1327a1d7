"""Episodes of data sets, the form that every format is read into and written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.data.totals import Totals
from sharpwave.spec import RESERVED, Field, Spec

PARTIAL = ".partial"
"""Suffix of an incomplete export's name."""

LastStep = Literal["auto", "step", "final"]
"""Meaning of RLDS's step with ``is_last``: an ordinary step, or the final observation only; "auto": decided by data."""


@dataclass(frozen=True)
class Episode:
    """Episode of T steps.

    Attributes:
        obs: [T + 1, *shape], or dicts and tuples of such arrays; the last row is the final observation.
        action: [T, *shape], or dicts and tuples of such arrays. ``fields``: further ones by name, [T, *shape].
        reward: [T].
        terminated, truncated: the episode's end. If neither, the data end here: it counts as truncated.
        info: the data set's description of the episode: strings, numbers, and lists and dicts of those.
        doubts: evidence against it, in words that are the same for all such episodes, since they are counted.
        texts: by name, the text of all its rows, which becomes an annotation; ``None``: the rows differ.
    """

    obs: Any
    action: Any
    reward: npt.NDArray[Any]
    terminated: bool
    truncated: bool
    fields: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str | None] = field(default_factory=dict)
    doubts: Sequence[str] = ()


class Source(Protocol):
    """Data set that is read episode by episode, in any order; some formats are fastest in their own order.

    Attributes:
        name: format and absolute path, which identify the data set.
        spec: schema of its steps. ``steps``: number of steps of all episodes.
        left_out: the parts that are not read, and why, in words.
        left: totals of the steps, and of episodes without steps, that ``left_out`` lists.
        notes: the chosen reading where several are possible, and why, in words.
    """

    name: str
    spec: Spec
    steps: int
    left_out: list[str]
    notes: list[str]
    left: Totals

    def __len__(self) -> int:
        """Return the number of episodes."""

    def read(self, number: int) -> Episode:
        """Read an episode.  Raises: ValueError: the data set is damaged."""

    def length(self, number: int) -> int:
        """Return an episode's number of steps; of a damaged one, as far as it is known."""

    def place(self, number: int) -> str:
        """Describe an episode's place: the data set's name, and where in it the episode lies."""

    def close(self) -> None:
        """Close the files."""


def existing(path: str, what: str) -> Path:
    """Return an absolute path that exists.  Raises: FileNotFoundError, ValueError."""
    if not path:
        raise ValueError(f"{what}: expected a path after it, as {what}:FILE")
    found = Path(path).expanduser().absolute()
    if not found.exists():
        raise FileNotFoundError(f"{what}: {str(found)!r} does not exist")
    return found


def nameless(what: str, name: str) -> ValueError:
    """Return the error for an episode's name in a format without names."""
    return ValueError(
        f"{what}: episodes={name!r}, but its format has no names for episodes; give numbers, as '0:10,15'"
    )


def field_of(
    what: str, shape: tuple[int, ...], dtype: np.dtype[Any], metadata: Mapping[str, Any] = MappingProxyType({})
) -> Field:
    """Return the field for values of ``shape`` and ``dtype``.  Raises: ValueError: they cannot be stored."""
    if dtype.kind not in "buif" or any(n < 1 for n in shape):
        raise ValueError(
            f"{what}: shape {shape} {dtype} cannot be stored; expected booleans, integers or floats, of sizes above 0"
        )
    try:
        return Field(tuple(shape), dtype.newbyteorder("=").name, metadata=metadata)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what}: {error}") from error


def nested(what: str, values: Mapping[str, Any], separator: str) -> Any:
    """Return values by their paths, such as ``arm/joints``, as nested dicts; for the path "", the value itself.

    Raises: ValueError: a path lies within another one's value.
    """
    if list(values) == [""]:
        return values[""]
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parents, last = path.split(separator)
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or last in place or not path:
            raise ValueError(
                f"{what}: {path!r} lies within, or around, another array of {sorted(values)[:8]}; rename one"
            )
        place[last] = value
    return tree


def usable_name(name: str) -> str:
    """Return a field's name as a spec accepts it: reserved names, such as weights, get a prefix."""
    return f"info.{name}" if name in RESERVED or name.split(".")[0] in ("obs", "action") else name
