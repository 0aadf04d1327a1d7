"""Episodes of data sets, the form that every format is read into and written from, and arrays that hold them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.extras import install
from sharpwave.spec import RESERVED, Field, Spec

PARTIAL = ".partial"
"""Suffix of an incomplete export's name."""

LastStep = Literal["auto", "step", "final"]
"""Meaning of RLDS's step with ``is_last``: an ordinary step, or the final observation only; "auto": decided by data."""


def finite_sum(rewards: npt.NDArray[Any]) -> float:
    """Sum the finite rewards of steps that are left out and so were not checked."""
    values = np.asarray(rewards, np.float64)
    return float(values[np.isfinite(values)].sum())


@dataclass
class Totals:
    """Sums over episodes.

    Attributes:
        reward: sum of the rewards, in float64.
        terminated, truncated, unmarked: numbers of episodes by their end; an episode with both ends counts in both,
            one without any in ``unmarked``.
    """

    episodes: int = 0
    steps: int = 0
    reward: float = 0.0
    terminated: int = 0
    truncated: int = 0
    unmarked: int = 0

    def add(self, reward: npt.NDArray[Any], terminated: bool, truncated: bool) -> None:
        """Add an episode with rewards [T]."""
        self.episodes += 1
        self.steps += len(reward)
        self.reward += float(np.sum(reward, dtype=np.float64))
        self.terminated += terminated
        self.truncated += truncated
        self.unmarked += not (terminated or truncated)

    def plus(self, other: Totals) -> Totals:
        """Return the sum of both."""
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def said(self, which: str = "that did not terminate") -> list[str]:
        """Describe steps that are left out since their successor is unknown, and episodes of one such step."""
        found: list[str] = []
        if self.steps:
            found.append(
                f"{self.steps:,} steps at the ends of episodes {which}, with rewards of {self.reward:g}: the "
                "observation after them is not in the data"
            )
        return found + ([f"{self.episodes:,} episodes of one such step"] if self.episodes else [])


@dataclass(frozen=True)
class SourceEpisode:
    """Episode of T steps.

    Attributes:
        obs: [T + 1, *shape], or dicts and tuples of such arrays; the last row is the final observation.
        action: [T, *shape], or dicts and tuples of such arrays. ``fields``: further ones by name, [T, *shape].
            Of rows of any length these are lists, or arrays of objects [T]: of arrays, strings or bytes.
        reward: [T].
        terminated, truncated: the episode's end. If neither, the data end here: it counts as truncated.
        info: the data set's description of the episode: strings, numbers, and lists and dicts of those.
        doubts: evidence against it, in words that are the same for all such episodes, since they are counted.
        texts: by the name of a field, the text that all of its rows have: it becomes an annotation as well.
    """

    obs: Any
    action: Any
    reward: npt.NDArray[Any]
    terminated: bool
    truncated: bool
    fields: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
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

    def read(self, number: int) -> SourceEpisode:
        """Read an episode.  Raises: ValueError: the data set is damaged."""

    def length(self, number: int) -> int:
        """Return an episode's number of steps; of a damaged one, as far as it is known."""

    def place(self, number: int) -> str:
        """Describe an episode's place: the data set's name, and where in it the episode lies."""


class Array(Protocol):
    """Array in a file, read by rows."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Read rows [end - begin, ...].  Raises: ValueError."""


Arrays = Mapping[str, Array]
"""Arrays by their paths, as ``arm/joints``; a single array has the path ""."""
Found = TypeVar("Found")
TextType = type[str] | type[bytes]


def below(arrays: Mapping[str, Found], name: str) -> dict[str, Found]:
    """Return the array ``name``, or the arrays of group ``name``, by their paths in it."""
    return {one[len(name) + 1 :]: arrays[one] for one in arrays if one == name or one.startswith(f"{name}/")}


def len_of(array: Array) -> int:
    """Return an array's number of rows; -1 for a single value."""
    return array.shape[0] if array.shape else -1


def needed(package: str, extra: str) -> Any:
    """Import a package.  Raises: ModuleNotFoundError: names the extra that installs it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package.split(".")[0]:
            raise
        raise ModuleNotFoundError(f"this data set needs {package}: {install(extra)}", name=error.name) from error


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
    what: str,
    shape: tuple[int | None, ...],
    dtype: np.dtype[Any] | TextType,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    beside: bool = False,
) -> Field:
    """Return the field for values of ``shape``, whose first axis may be ``None``, and ``dtype``.

    Args:
        beside: the field lies beside obs and action, where texts share equal values.

    Raises: ValueError: they cannot be stored.
    """
    if isinstance(dtype, type) and not shape:
        return Field(dtype, metadata=metadata, shared=beside)
    if isinstance(dtype, type) or dtype.kind not in "buif" or any(n is not None and n < 1 for n in shape):
        said = f"{dtype.__name__}, expected one text a step" if isinstance(dtype, type) else _described(dtype)
        raise ValueError(
            f"{what}: shape {shape} {said} cannot be stored; expected booleans, integers or floats, of sizes above 0"
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


def with_tuples(tree: Any) -> Any:
    """Return dicts whose keys are ``_index_0``, ``_index_1`` ... as tuples."""
    if not isinstance(tree, dict):
        return tree
    inner = {key: with_tuples(value) for key, value in tree.items()}
    if inner and inner.keys() == {f"_index_{n}" for n in range(len(inner))}:
        return tuple(inner[f"_index_{n}"] for n in range(len(inner)))
    return inner


def _described(dtype: np.dtype[Any]) -> str:
    metadata: Mapping[str, Any] = dtype.metadata or {}
    of_any_length = metadata.get("vlen")
    return f"{of_any_length} of any length" if isinstance(of_any_length, np.dtype) else str(dtype)


def further_names(paths: Mapping[str, bool], left_out: list[str], separator: str = "/") -> dict[str, str]:
    """Return the paths of further fields by their names in the spec; of two with the same name numbers go first.

    Args:
        paths: whether each holds texts. left_out: is told of those without a name.
    """
    names: dict[str, str] = {}
    for path in sorted(paths, key=lambda one: paths[one]):
        if (first := names.setdefault(usable_name(path.replace(separator, ".")), path)) != path:
            left_out.append(f"{path}: would have the name of {first}")
    found = {path: name for name, path in names.items()}
    return {found[path]: path for path in paths if path in found}


def usable_name(name: str) -> str:
    """Return a field's name as a spec accepts it: reserved names, such as weights, get a prefix."""
    return f"info.{name}" if name in RESERVED or name.split(".")[0] in ("obs", "action") else name
