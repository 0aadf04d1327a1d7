"""How often each step was given out, where that is limited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ..sampling.samplers import Draw, Sampler

Ints = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def _accept(
    leaves: Ints, probabilities: npt.NDArray[np.float64], given: npt.NDArray[np.int32], most: int, full: Ints
) -> tuple[int, int]:
    """Count a use of each leaf that has one left, and move those to the front, in order.

    Returns how many there are, and how many distinct ones ``full`` received: their last use was this.
    """
    kept = found = 0
    for i in range(leaves.size):
        leaf = leaves[i]
        if given[leaf] < most:
            given[leaf] += 1
            if given[leaf] == most:
                full[found] = leaf
                found += 1
            leaves[kept] = leaf
            probabilities[kept] = probabilities[i]
            kept += 1
    return kept, found


class Uses:
    """Draws that give out each step at most ``most`` times.

    Attributes:
        left: uses left of all steps that can be sampled.

    Raises:
        ValueError: ``most`` is out of range.
    """

    def __init__(self, most: Any, leaves: int) -> None:
        if isinstance(most, bool) or not isinstance(most, (int, np.integer)) or not 1 <= most < 2**31:
            raise ValueError(f"transitions: max_times_sampled={most!r}, expected an integer of at least 1, or None")
        self.most = int(most)
        self.left = 0
        self._given = np.zeros(leaves, np.int32)

    def add(self, count: int) -> None:
        """``count`` steps came that can be sampled."""
        self.left += count * self.most

    def remaining(self, leaves: Ints) -> npt.NDArray[np.bool_]:
        """Which of the steps can be given out once more: bool [n]."""
        remaining: npt.NDArray[np.bool_] = self._given[leaves] < self.most
        return remaining

    def drop(self, leaves: Ints) -> Ints:
        """Those of ``leaves`` (distinct) that had uses left, none of which counts any more."""
        leaves = leaves[self.remaining(leaves)]
        self.left -= int((self.most - self._given[leaves]).sum())
        return leaves

    def clear(self, begin: int, end: int) -> None:
        """Other steps will take the leaves ``begin <= i < end``."""
        self._given[begin:end] = 0

    def draw(self, sampler: Sampler, draw: Draw, rng: np.random.Generator) -> tuple[int, Callable[[], None]]:
        """Fill ``draw``; no more items than there are uses left. Steps whose last use this was leave the sampler.

        What was drawn too often is drawn anew from the steps that are left, with the probabilities of that draw.

        Returns how many steps have no use left now, and what takes all of it back.
        """
        count, taken, ended = len(draw.leaves), 0, 0
        full = np.empty(count, np.int64)
        undos: list[Callable[[], None]] = []

        def undo() -> None:
            for one in reversed(undos):
                one()
            np.subtract.at(self._given, draw.leaves[:taken], 1)
            self.left += taken

        try:
            while taken < count:
                part = draw.part(taken, count)
                sampler.draw(part, rng)
                kept, found = _accept(part.leaves, part.probabilities, self._given, self.most, full)
                taken += kept
                self.left -= kept
                if found:
                    undos.append(sampler.exclude(np.sort(full[:found])))
                    ended += found
        except BaseException:  # an interrupt by the user among them
            undo()
            raise
        return ended, undo

    def nbytes(self, leaves: int) -> int:
        """Bytes of memory in use, where leaves below that many are."""
        return leaves * self._given.itemsize
