"""Choice of a data set's episodes: by numbers, or by a name that the data set gives to some of them."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sharpwave.data.formats import HeldSource

Episodes = int | str | slice | Iterable[int]
"""Episodes by number, below 0 from the end; as a text such as "0:10,15"; or by name, such as robomimic's "train"."""
NUMBERS = re.compile(r"[-\d:,\s]+")
MAX_CHARACTERS = 256
"""Limit of the text of a selection; longer ones are cut, and told apart by a hash."""


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
    """Return the number or the slice of a text.  Raises: ValueError."""
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
