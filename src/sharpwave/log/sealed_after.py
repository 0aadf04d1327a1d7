"""Sealed segments that another log lacks: the bytes with which it can be brought up to this one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]


class Copy(NamedTuple):
    """Segment as ``take_in`` takes it: its bytes, and its dictionaries by key."""

    packed: bytes
    dictionaries: dict[int, bytes]


def sealed_after(log: StepLog, lane_steps: Ints, max_bytes: int) -> list[Copy]:
    """Return the oldest segments that begin at or after ``lane_steps``, in the order in which they were appended.

    One that cannot be read any more is left out. The store's lock is held.

    Args:
        log: with ``Fifo`` retention.
        lane_steps: int64 [lanes], how many steps the other log has had of each lane; of lanes beyond, none.
        max_bytes: of the segments returned, exceeded by the last one.

    Cost: O(segments held), and a copy of what is returned.
    """
    index = log.index
    slots = log.admission.retention.order()["slots"]
    had = np.zeros(max(log.lanes, len(lane_steps)), np.int64)
    had[: len(lane_steps)] = lane_steps
    found: list[Copy] = []
    total = 0
    for slot in slots[index.first_step[slots] >= had[index.lane[slots]]].tolist():
        packed = _content(log, slot)
        if packed is not None:
            places = index.dictionary[:, slot].tolist()
            held = [(table, place) for table, place in zip(log.tables, places, strict=True) if place]
            shared = {table.uses.key(place): table.data(place) for table, place in held}
            found.append(Copy(packed, shared))
            total += len(packed)
        if total >= max_bytes:
            break
    return found


def _content(log: StepLog, slot: int) -> bytes | None:
    """Return a segment's bytes, from memory or from the disk; ``None``: they are damaged, or cannot be read."""
    index = log.index
    if log.disk is None:
        return log.sealed.packed(slot)[1]
    content = bytearray(int(index.nbytes[slot]))
    wrong = log.disk.reads.read(int(index.region[slot]), int(index.region_offset[slot]), memoryview(content))
    return None if wrong else bytes(content)
