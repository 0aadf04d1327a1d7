"""How often each step was given out, where that is limited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.sampling.samplers import Draw, Sampler, extended

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

    def grow(self, leaves: int) -> None:
        """Make room for so many."""
        self._given = extended(self._given, leaves)

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

    def given(self, leaves: int) -> npt.NDArray[np.int32]:
        """How often each of so many leaves was given out: int32 [leaves], a copy."""
        return self._given[:leaves].copy()

    def recall(self, given: npt.NDArray[np.int32], known: npt.NDArray[np.int32], stride: int) -> Ints:
        """Take counts of another time for the steps that are there; those that have no use left.

        Args:
            known: int32 [slots], how many steps of each slot can be sampled.

        Raises:
            ValueError: counts out of range.
        """
        if ((given < 0) | (given > self.most)).any() or len(given) > len(self._given):
            raise ValueError(f"uses: expected counts from 0 to {self.most} of at most {len(self._given)} steps")
        slots = np.flatnonzero(known[: -(-len(given) // stride)])
        leaves = np.concatenate(
            [np.arange(s * stride, s * stride + known[s]) for s in slots] or [np.empty(0, np.int64)]
        )
        leaves = leaves[leaves < len(given)]
        self._given[leaves] = given[leaves]
        self.left -= int(given[leaves].sum())
        full: Ints = leaves[given[leaves] == self.most]
        return full

    def nbytes(self, leaves: int) -> int:
        """Bytes of memory in use, where leaves below that many are."""
        return leaves * self._given.itemsize
