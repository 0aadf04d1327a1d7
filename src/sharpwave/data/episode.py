"""Episodes of data sets: what every format is read as, and written from."""

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
"""End of the name that an export has before it is complete."""

LastStep = Literal["auto", "step", "final"]
"""What RLDS's step with ``is_last`` is: a step as any other, or the final observation only; "auto": as the data say."""


@dataclass(frozen=True)
class Episode:
    """Episode of T steps.

    Attributes:
        obs: [T + 1, *shape], or dicts and tuples of those; the final observation is the last.
        action: [T, *shape], or dicts and tuples of those. ``fields``: further ones by name, [T, *shape].
        reward: [T].
        terminated, truncated: how it ended. If neither, the data ends here: it is truncated.
        info: what the data set says about it: strings, numbers, and lists and dicts of those.
        doubts: what speaks against it, in words that do not tell episodes apart, as they are counted.
        texts: by name, the text that every one of its rows has, which becomes an annotation; ``None``: it varies.
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
    """Data set that is read episode by episode, in any order, though some formats are fastest in theirs.

    Attributes:
        name: format and absolute path, which tell one data set from another.
        spec: schema of its steps. ``steps``: of all episodes.
        left_out: what of the data set is not read, and why, in words.
        left: sums over what ``left_out`` says of steps and of episodes without any.
        notes: how it is read where that could be done in several ways, and why, in words.
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
        """Return how many of ``steps`` are an episode's, also of a damaged one, as far as that is known."""

    def place(self, number: int) -> str:
        """Return the data set's name, and where in it an episode lies, in words."""

    def close(self) -> None:
        """Close the files."""


def existing(path: str, what: str) -> Path:
    """Return an absolute path that exists.  Raises: FileNotFoundError, ValueError."""
    if not path:
        raise ValueError(f"{what}: expected a path behind it, as {what}:FILE")
    found = Path(path).expanduser().absolute()
    if not found.exists():
        raise FileNotFoundError(f"{what}: {str(found)!r} does not exist")
    return found


def nameless(what: str, name: str) -> ValueError:
    """Return the error of a name for episodes in a format that has none."""
    return ValueError(
        f"{what}: episodes={name!r}, but its format has no names for episodes; give numbers, as '0:10,15'"
    )


def field_of(
    what: str, shape: tuple[int, ...], dtype: np.dtype[Any], metadata: Mapping[str, Any] = MappingProxyType({})
) -> Field:
    """Return the field of values of ``shape`` and ``dtype``.  Raises: ValueError: they cannot be stored."""
    if dtype.kind not in "buif" or any(n < 1 for n in shape):
        raise ValueError(
            f"{what}: shape {shape} {dtype} cannot be stored; expected booleans, integers or floats, of sizes above 0"
        )
    try:
        return Field(tuple(shape), dtype.newbyteorder("=").name, metadata=metadata)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what}: {error}") from error


def nested(what: str, values: Mapping[str, Any], separator: str) -> Any:
    """Return values by their paths, such as ``arm/joints``, as dicts in dicts; the value itself where its path is "".

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
    """Return the name of a further field that a spec can have: ``reserved`` ones, as weights, get a prefix."""
    return f"info.{name}" if name in RESERVED or name.split(".")[0] in ("obs", "action") else name
