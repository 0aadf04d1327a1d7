"""Steps of a log as plain arrays, for views without kernels of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes, Ints
from sharpwave.format.segment import FLAGS, REWARD
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.ragged import Ragged
from sharpwave.views.gather import LogArrays


class Steps:
    """Reader of a log's steps, each named by the slot of its segment and its row there. The store's lock is held.

    Flags and rewards are always in memory; other fields where their segments are (``View.segments``).
    """

    def __init__(self, log: StepLog) -> None:
        self._log, self._arrays = log, LogArrays(log)

    def slots(self) -> list[int]:
        """Return the slots of all segments with steps. Cost: O(slots)."""
        slots: list[int] = np.flatnonzero(self._log.index.rows[: self._log.index.highest]).tolist()
        return slots

    def flags(self, slot: int) -> Bytes:
        """Return the flags (``sharpwave.spec.START``, ``TERMINATED``, ``TRUNCATED``) of a segment's steps."""
        index = self._log.index
        begin = int(index.offset[FLAGS, slot])
        return self._log.arena.memory[begin : begin + int(index.rows[slot])]

    def rewards(self, slot: int) -> npt.NDArray[np.float32]:
        """Return the rewards of a segment's steps."""
        index = self._log.index
        begin = int(index.offset[REWARD, slot]) >> 2
        return self._log.arena.floats[begin : begin + int(index.rows[slot])]

    def following(self, slot: int) -> int:
        """Return the slot of the lane's following segment; -1 if there is none, or a gap before it."""
        index = self._log.index
        return -1 if index.gap[slot] else int(index.next[slot])

    def preceding(self, slot: int) -> int:
        """Return the slot of the lane's preceding segment; -1 if it was evicted."""
        index = self._log.index
        before = int(index.previous[slot])
        return -1 if before < 0 or index.gap[before] else before

    def read_rows(self, name: str, slots: Ints, rows: Ints, *, final: bool = False) -> Ragged:
        """Decode a field with rows of any length of the steps ``rows`` [n] of ``slots`` [n].

        With ``final`` the observation after the last step follows.
        """
        reader: Any = self._arrays.readers()[list(self._log.spec.fields).index(name)]
        if name in self._log.spec.obs_names:
            slots, rows, _ = self._frames(slots, rows, final)
        values, lengths = reader.take(slots, rows)
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]), text=self._log.spec.fields[name].text)

    def read(self, name: str, slots: Ints, rows: Ints, out: npt.NDArray[Any], *, final: bool = False) -> None:
        """Decode a field of the steps ``rows`` [n] of ``slots`` [n] into ``out`` uint8 [n, frames, row bytes].

        A stack has as many frames as ``out`` has room for, padded as the field says. With ``final`` the observation
        after the last step follows, in one more item.
        """
        reader = self._arrays.readers()[list(self._log.late.spec.fields).index(name)]
        if name in self._log.spec.ragged_names:
            raise ValueError(f"read: field {name!r} has rows of any length, expected read_rows() for it")
        if name not in self._log.spec.obs_names:
            reader.read_steps(slots, rows, out)
        else:
            reader.read(*self._frames(slots, rows, final), out)

    def _frames(self, slots: Ints, rows: Ints, final: bool) -> tuple[Ints, Ints, Ints]:
        """Return the slots of the observations of steps, their rows there, and the rows with which episodes begin."""
        newest, first = np.empty((2, len(rows)), np.int64)
        core.frames_of(self._arrays.current(), slots, rows, newest, first)
        if final:
            slots, first = np.append(slots, slots[-1]), np.append(first, first[-1])
            newest = np.append(newest, newest[-1] + 1)
        return slots, newest, first
