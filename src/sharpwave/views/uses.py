"""Uses: how often each step was sampled, where that is limited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.native import core
from sharpwave.native.untouched import zeros
from sharpwave.sampling.protocol import Draw, Sampler, extended

Ints = npt.NDArray[np.int64]


class Uses:
    """Counts of uses, for draws that sample each step at most ``max_uses`` times.

    Attributes:
        left: uses left of all steps that can be sampled.

    Raises:
        ValueError: ``max_uses`` is out of range.
    """

    def __init__(self, max_uses: Any, items: int) -> None:
        if not is_integer(max_uses) or not 1 <= max_uses < 2**31:
            raise ValueError(f"max_times_sampled={max_uses!r}, expected an integer of at least 1, or None")
        self.max_uses = int(max_uses)
        self.left = 0
        self._given = zeros(items, np.int32)

    def grow(self, items: int) -> None:
        """Enlarge for ``items`` items."""
        self._given = extended(self._given, items)

    def add(self, count: int) -> None:
        """Add the uses of ``count`` new steps that can be sampled."""
        self.left += count * self.max_uses

    def remaining(self, items: Ints) -> npt.NDArray[np.bool_]:
        """Return which of the steps can be sampled again: bool [n]."""
        remaining: npt.NDArray[np.bool_] = self._given[items] < self.max_uses
        return remaining

    def left_of(self, items: Ints) -> int:
        """Return how often ``items`` (distinct) can still be sampled in total."""
        return int((self.max_uses - self._given[items]).sum())

    def clear(self, begin: int, end: int) -> None:
        """Reset the counts of the items ``begin <= i < end``, for other steps."""
        self._given[begin:end] = 0

    def draw(self, sampler: Sampler, draw: Draw, rng: np.random.Generator) -> tuple[int, Callable[[], None]]:
        """Fill ``draw`` with at most as many items as there are uses left; exclude steps at their last use.

        Items drawn too often are resampled from the remaining steps, with the probabilities of that draw.

        Returns how many steps have no use left now, and a function that undoes all of it.
        """
        count, taken, ended = len(draw.items), 0, 0
        full = np.empty(count, np.int64)
        undos: list[Callable[[], None]] = []

        def undo() -> None:
            for one in reversed(undos):
                one()
            np.subtract.at(self._given, draw.items[:taken], 1)
            self.left += taken

        try:
            while taken < count:
                part = draw.part(taken, count)
                sampler.draw(part, rng)
                kept, found = core.count_uses(part.items, part.probabilities, self._given, self.max_uses, full)
                if not kept:  # the first item of a part has a use left, otherwise the sampler should not know it
                    raise RuntimeError(
                        f"{type(sampler).__name__}: drew items that were excluded, which have no use left"
                    )
                taken += kept
                self.left -= kept
                if found:
                    undos.append(sampler.exclude(np.sort(full[:found])))
                    ended += found
        except BaseException:  # an interrupt by the user among them
            undo()
            raise
        return ended, undo

    def take_back(self, items: Ints) -> None:
        """Uncount a use of each of ``items``, which may repeat."""
        np.subtract.at(self._given, items, 1)
        self.left += len(items)

    def given(self, items: int) -> npt.NDArray[np.int32]:
        """Return how often each of the first ``items`` items was sampled: int32 [items], a copy."""
        return self._given[:items].copy()

    def restore(self, given: npt.NDArray[np.int32], items: Ints) -> Ints:
        """Restore a checkpoint's counts for ``items``, present both then and now; return the used-up ones.

        Raises:
            ValueError: counts out of range.
        """
        if ((given < 0) | (given > self.max_uses)).any() or len(given) > len(self._given):
            raise ValueError(f"uses: expected counts from 0 to {self.max_uses} of at most {len(self._given)} items")
        items = items[items < len(given)]
        self._given[items] = given[items]
        self.left -= int(given[items].sum())
        full: Ints = items[given[items] == self.max_uses]
        return full

    def nbytes(self, items: int) -> int:
        """Return the bytes of memory in use for the items below that number."""
        return items * self._given.itemsize
