"""Data sets by name: the format before the colon, the place after it, and the choice of episodes."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from sharpwave.data.episode import LastStep, Source, SourceEpisode, nameless
from sharpwave.data.opened_files import ReadBudget
from sharpwave.escaping import escaped

SOURCES = {
    "minari": ("minari", "MinariSource"),
    "hdf5": ("hdf5_layouts", "open_hdf5"),
    "npz": ("npz", "open_npz"),
    "parquet": ("parquet", "ParquetSource"),
    "lerobot": ("lerobot", "LeRobotSource"),
    "rlds": ("rlds", "RldsSource"),
    "zarr": ("zarr_arrays", "open_zarr"),
}
TARGETS = ("minari", "hdf5", "npz", "parquet")
ENDINGS = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5", ".parquet": "parquet"} | {
    ".zarr": "zarr",
    ".zarr.zip": "zarr",
}

Episodes = int | str | slice | Iterable[int]
"""Episodes by number, below 0 from the end; as a text such as "0:10,15"; or by name, such as robomimic's "train"."""
NUMBERS = re.compile(r"[-\d:,\s]+")
MAX_CHARACTERS = 256
"""Limit of the text of a selection; longer ones are cut, and told apart by a hash."""


def split(text: str, known: tuple[str, ...], what: str) -> tuple[str, str]:
    """Return the format and the place of ``"FORMAT:PLACE"``, or of a file with a known ending.

    Raises: ValueError: an unknown format.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what}: got {type(text).__name__}, expected a string such as 'npz:FILE'")
    kind, colon, place = text.partition(":")
    if colon and kind in known:
        return kind, place
    for ending, one in ENDINGS.items():
        if text.lower().endswith(ending) and one in known:
            return one, text
    raise ValueError(f"{what}: got {text!r}, expected one of {', '.join(f'{one}:...' for one in known)}")


class HeldSource:
    """Data set within the bounds of its files: each error in reading it is a ValueError that names it."""

    def __init__(self, source: Source, budget: ReadBudget) -> None:
        self._source, self._budget = source, budget
        self.name, self.spec, self.steps = source.name, source.spec, source.steps
        self.left_out = [escaped(one) for one in source.left_out]  # names of unknown origin
        self.notes, self.left = [escaped(one) for one in source.notes], source.left
        self.about = dict(getattr(source, "about", {}))
        budget.check_steps(self.name, self.steps)
        budget.check_count(self.name, len(source), "episodes")
        budget.check_total(self.name, self.steps, self.spec.fields)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, number: int) -> SourceEpisode:
        """Read an episode.  Raises: ValueError: the data set is damaged."""
        with self._budget.held(self._source.place(number), self.name):
            return self._source.read(number)

    def named(self, name: str) -> list[int]:
        """Return the numbers of the episodes with a name.  Raises: ValueError."""
        named = getattr(self._source, "named", None)
        if named is None:
            raise nameless(self.name, name)
        with self._budget.held(self.name):
            found: list[int] = named(name)
            return found

    def length(self, number: int) -> int:
        """Return an episode's number of steps, also of a damaged one."""
        return self._source.length(number)

    def place(self, number: int) -> str:
        """Describe an episode's place: the data set's name, and where in it the episode lies."""
        return escaped(self._source.place(number))

    def close(self) -> None:
        """Close the files."""
        self._budget.closing.close()


def open_source(
    text: str,
    *,
    trust: bool = False,
    progress: bool | None = False,
    last: LastStep = "auto",
    skip_damaged: bool = False,
) -> HeldSource:
    """Open a data set.

    Args:
        skip_damaged: report an episode's damage only when it is read.
        last: meaning of the last steps of RLDS, as for ``load``.
        trust: lift the bounds for files of unknown origin, and follow links.
        progress: show a bar while its episodes are found; ``None``: in a terminal.

    Raises: ValueError, FileNotFoundError, ModuleNotFoundError; OSError: its files cannot be read.
    """
    kind, place = split(text, tuple(SOURCES), "load")
    module, name = SOURCES[kind]
    if last != "auto" and kind != "rlds":
        raise ValueError(f"load: got last={last!r} for {kind}, which declares it; last is for rlds only, leave it out")
    given = {"last": last} if kind == "rlds" else {}
    opener: Callable[..., Source] = getattr(import_module(f"sharpwave.data.{module}"), name)
    budget = ReadBudget(trust, progress, skip_damaged)
    with budget.held(f"{kind}:{place}", f"{kind}:"):
        try:
            source = opener(place, budget, **given)
            if not len(source):
                raise ValueError(f"{source.name}: no episodes with steps to import")
            return HeldSource(source, budget)
        except BaseException:
            budget.closing.close()
            raise


@dataclass(frozen=True)
class Selection:
    """Selected episodes of a data set.

    Attributes:
        numbers: the episodes' numbers, in order.
        text: the same in words, by which a resumed import recognizes them; "": all.
    """

    numbers: Sequence[int]
    text: str = ""


def select(source: HeldSource, episodes: Episodes | None) -> Selection:
    """Return the selected episodes of a data set, each once and in the data set's order; ``None``: all.

    Raises: ValueError, TypeError: no such episodes, or an empty selection.
    """
    count = len(source)
    if episodes is None:
        return Selection(range(count))
    if isinstance(episodes, str) and not NUMBERS.fullmatch(episodes):
        found = set(source.named(episodes))
    elif isinstance(episodes, str):
        found = {one for part in episodes.split(",") for one in _numbers(source.name, _parsed(part), count)}
    else:
        found = set(_numbers(source.name, episodes, count))
    if not found:
        raise ValueError(f"{source.name}: episodes={episodes!r} selects none of {count:,}; leave it out for all")
    numbers = sorted(found)
    return Selection(numbers, _text(numbers) if len(numbers) < count else "")


def _parsed(part: str) -> int | slice:
    try:
        if ":" not in part:
            return int(part)
        return slice(*(int(one) if one.strip() else None for one in part.split(":")))
    except (ValueError, TypeError):
        raise ValueError(
            f"episodes: got {part!r}, expected a number, or a slice as 0:10; or both, as 0:10,15"
        ) from None


def _numbers(what: str, episodes: Any, count: int) -> list[int]:
    """Return episodes' numbers, counted from 0.  Raises: ValueError, TypeError."""
    if isinstance(episodes, slice):
        if episodes.step == 0:
            raise ValueError("episodes: got a slice of step 0, expected another step, as 0:10:2")
        return list(range(*episodes.indices(count)))
    found = []
    several = isinstance(episodes, Iterable) and getattr(episodes, "shape", None) != ()  # an array of one is a number
    for one in episodes if several else [episodes]:
        try:
            number = operator.index(one)
        except TypeError:
            number = None
        if number is None or isinstance(one, bool):
            raise TypeError(f"episodes: got {one!r}, expected numbers, as range(10) or [0, 3], a slice, or a text")
        if not -count <= number < count:
            raise ValueError(f"{what}: has {count:,} episodes, so there is no {number}; expected 0 to {count - 1}")
        found.append(number % count)
    return found


def _text(numbers: list[int]) -> str:
    """Return numbers as runs, such as "0:10,15".

    >>> _text([0, 1, 2, 5, 7, 8])
    '0:3,5,7:9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    text = ",".join(f"{begin}" if end == begin + 1 else f"{begin}:{end}" for begin, end in runs)
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}... ({len(numbers)}, {hashlib.sha256(text.encode()).hexdigest()[:16]})"
