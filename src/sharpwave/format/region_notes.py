"""Notes in region files: what a later opening must know, and cannot tell from the segments that are there by then.

One kind holds a reservoir's threshold; its id says how high the generations of ids have come. The other holds, lane by
lane, how far the numbers of steps have come; it is written before the last record that shows it goes.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.spec import TERMINATED, TRUNCATED, Spec
from sharpwave.validation import MAX_LANES

Ints = npt.NDArray[np.int64]

THRESHOLD = struct.Struct("<d")
THRESHOLD_BYTES = THRESHOLD.size + 4
ENDS = b"ENDS"
MAX_ENDS_BYTES = len(ENDS) + 8 * MAX_LANES + 4
_WHERE = struct.Struct("<QQI")  # lane, first_step, steps: in a segment's header
_WHERE_AT = 16
WHERE_BYTES = _WHERE_AT + _WHERE.size
"""Of a segment's beginning, in every version: up to where it says whose steps it holds."""


class Note(NamedTuple):
    """What was noted last of ids and of a reservoir, and the region where it is written (-1: nowhere)."""

    region: int = -1
    threshold: float = 1.0
    generation: int = -1


def pack_threshold(threshold: float) -> bytes:
    """Return the payload that :func:`unpack_threshold` reads."""
    return _checked(THRESHOLD.pack(threshold))


def unpack_threshold(payload: bytes | bytearray) -> float:
    """Return a note's threshold; 1, which says nothing, of another kind of note or an impossible number."""
    if len(payload) != THRESHOLD_BYTES:
        return 1.0
    (threshold,) = THRESHOLD.unpack_from(payload)
    return float(threshold) if 0 <= threshold <= 1 else 1.0


def unpack_ends(payload: bytes | bytearray) -> Ints:
    """Return int64 [lanes] of a note of that kind; an empty array of the other."""
    body = payload[len(ENDS) : -4]
    if payload[: len(ENDS)] != ENDS or len(body) % 8:
        return np.zeros(0, np.int64)
    ends = np.frombuffer(bytes(body), "<i8")[:MAX_LANES].astype(np.int64)
    return np.where((ends >= 0) & (ends < segment.MAX_NUMBER), ends, 0)


def pack_ends(ends: Ints) -> bytes:
    """Return the payload that :func:`unpack_ends` reads."""
    return _checked(ENDS + ends[: int(ends.nonzero()[0].max(initial=-1)) + 1].astype("<i8").tobytes())


def _checked(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


class LaneEnds:
    """How far each lane's step numbers go, as region files show, and which file shows it.

    Args:
        max_lanes: that the store could have; records of others are none of its own.

    Attributes:
        ends: int64 [lanes], the number behind the lane's last step of which there was ever a record.
    """

    def __init__(self, max_lanes: int = MAX_LANES) -> None:
        self._most = max_lanes
        self.ends: Ints = np.zeros(0, np.int64)
        self._regions = np.zeros(0, np.int64)

    def reach(self, lane: int, end: int, region: int) -> None:
        """Note that a record in ``region`` shows that the lane has come to ``end``.  Cost: O(1)."""
        if lane >= self._most:
            return
        if lane >= len(self.ends):
            more = max(16, 2 * len(self.ends), lane + 1) - len(self.ends)
            self.ends = np.concatenate([self.ends, np.zeros(more, np.int64)])
            self._regions = np.concatenate([self._regions, np.full(more, -1)])
        if end and end >= self.ends[lane]:
            self.ends[lane], self._regions[lane] = end, region

    def reach_by(self, packed: bytes | memoryview, region: int) -> None:
        """Note what a sealed segment in ``region`` shows, which begins with these bytes."""
        lane, first, steps = _WHERE.unpack_from(packed, _WHERE_AT)
        if first < segment.MAX_NUMBER and steps <= segment.MAX_STEPS:
            self.reach(lane, first + steps, region)

    def reach_all(self, ends: Ints, region: int) -> None:
        """Note what a note in ``region`` says of all lanes."""
        for lane in np.flatnonzero(ends).tolist():
            self.reach(lane, int(ends[lane]), region)

    def rest_on(self, regions: list[int]) -> bool:
        """Return whether without those files it would not be known of some lane."""
        return bool(np.isin(self._regions, regions).any())

    def behind(self, ends: Ints) -> bool:
        """Return whether some lane has come further: int64 [lanes]."""
        known = self.ends[: len(ends)]
        return bool((ends[: len(known)] > known).any() or ends[len(known) :].any())

    def joined(self, ends: Ints) -> Ints:
        """Return the further of what is known and of ``ends`` [lanes], by lane."""
        merged = np.zeros(max(len(self.ends), len(ends)), np.int64)
        merged[: len(self.ends)] = self.ends
        merged[: len(ends)] = np.maximum(merged[: len(ends)], ends)
        return merged


def _none(key: int) -> bytes:
    raise KeyError(key)  # open segments refer to no dictionaries


def tail_end(payload: bytes | bytearray, spec: Spec) -> tuple[int, int]:
    """Return the lane of an open segment's rows, and the number behind the last that an opening keeps."""
    try:
        header, arrays = segment.unpack(memoryview(payload), spec, _none, only=("flags",))
        flags = arrays["flags"]
    except DamagedError:
        return 0, 0
    if not header.steps:
        return 0, 0
    ended = flags & (TERMINATED | TRUNCATED) != 0
    whole = bool(ended[-1]) or header.frames > header.context + header.steps + int(ended.sum())
    return header.lane, header.first_step + header.steps - (not whole)
