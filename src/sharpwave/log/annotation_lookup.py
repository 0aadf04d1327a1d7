"""Annotations by id: of the episodes that steps belong to, from open segments and from sealed ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.format.metadata import read_metadata
from sharpwave.format.segment import FLAGS
from sharpwave.log.episode_annotations import Values
from sharpwave.log.step_log import StepLog
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.spec import START


def annotations_of(log: StepLog, ids: Iterable[int]) -> list[Values]:
    """Return the annotations of the episode of each step of ``ids``, encoded, as far as the step's segment has them.

    Raises:
        KeyError: an evicted id.  DamagedError: a segment on disk that cannot be read.
    """
    index, opened = log.index, log.opened
    known: dict[int, dict[int, Values]] = {}  # by slot: by the row of the episode's first step there
    found = []
    for id_ in ids:
        slot, row = divmod(id_ & LEAF_MASK, log.stride)
        if not (
            id_ >= 0 and slot < index.slots and row < index.rows[slot] and index.generation[slot] == id_ >> LEAF_BITS
        ):
            raise KeyError(f"annotations: id {id_} was evicted from the store")
        if slot not in known:
            lane = int(index.lane[slot])
            if index.sealed[slot]:
                header = segment.parse(_content(log, slot), log.spec)
                packed = header.metadata
            else:
                packed = opened.annotations.pack(lane, int(index.first_step[slot]), int(index.rows[slot]))
            known[slot] = dict(read_metadata(packed, int(index.rows[slot])).episodes)
        begin = int(index.offset[FLAGS, slot])
        starts = np.flatnonzero(log.arena.memory[begin : begin + row + 1] & START)
        found.append(known[slot].get(int(starts[-1]) if starts.size else 0, {}))
    return found


def _content(log: StepLog, slot: int) -> npt.NDArray[np.uint8]:
    """Return a sealed segment's bytes, from memory or else from disk.  Raises: DamagedError."""
    index, nbytes = log.index, int(log.index.nbytes[slot])
    if log.disk is None or index.resident[slot]:
        return log.arena.memory[index.base[slot] : index.base[slot] + nbytes]
    content = np.empty(nbytes, np.uint8)
    problem = log.disk.reads.read(int(index.region[slot]), int(index.region_offset[slot]), content.data)
    if problem is not None:
        raise DamagedError(f"annotations: segment {index.segment_id(slot)}: {problem}")
    return content
