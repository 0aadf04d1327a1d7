"""Leaves that were drawn -> a batch: where their frames lie, what of that must be read, and the decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import DamagedError
from ..segment import FLAGS, REWARD
from .batch import Batch
from .buffers import Buffers
from .gather import UndecodableError, gather
from .kernels import locate

if TYPE_CHECKING:
    from ..tiers.log import StepLog

Ints = npt.NDArray[np.int64]


def fill(log: StepLog, buffers: Buffers, n_step: int, gamma: float) -> Batch:
    """The transitions of ``buffers.draw.leaves``, which are there, in the memory of ``buffers``.

    Raises:
        DamagedError: a segment is not as it was written; it is in ``log.sealed.damaged``.
        MemoryError: there is no room to read one.
    """
    index = log.index
    memory = log.arena.memory
    leaves = buffers.draw.leaves
    slot, row, frame, first, next_slot, next_frame, next_first = buffers.places
    locate(
        memory,
        log.arena.floats,
        index.offset[FLAGS],
        index.offset[REWARD],
        index.rows,
        index.next,
        index.context,
        index.generation,
        leaves,
        index.stride,
        n_step,
        gamma,
        buffers.reward,
        buffers.discount,
        slot,
        row,
        frame,
        first,
        next_slot,
        next_frame,
        next_first,
        buffers.batch.ids,
    )
    begin = 0
    while begin < len(leaves):
        end = len(leaves)
        if log.residency is not None:
            end = begin + _resident(log, slot[begin:], next_slot[begin:])
        try:
            _decode(log, buffers, n_step, slice(begin, end))
        except UndecodableError as error:
            for one in error.slots:
                log.sealed.damaged[one] = f"segment {log.index.segment_id(one)}: {error}"
            raise
        begin = end
    return buffers.batch


def _resident(log: StepLog, slot: Ints, next_slot: Ints) -> int:
    """Bring the segments of items into memory, as many of the first items as there is room for: that many.

    Raises:
        MemoryError: not even one fits.  DamagedError: what was read is not what was written.
    """
    assert log.residency is not None
    pairs = np.stack([slot, next_slot], axis=1).reshape(-1)
    ready = log.residency.require(pairs) // 2
    if log.residency.damaged:
        for one in pairs[: 2 * ready].tolist():
            if one in log.residency.damaged:
                raise DamagedError(log.residency.damaged[one])
    if ready == 0:
        raise MemoryError(
            f"sample: ram leaves {log.arena.limit_bytes:,} bytes, too few to read a segment from disk; raise ram=, "
            f"or lower segment_steps= (now {log.stride})"
        )
    return ready


def _decode(log: StepLog, buffers: Buffers, n_step: int, items: slice) -> None:
    """Decode every field of some of the items, whose segments are in memory."""
    index, spec = log.index, log.spec
    slot, row, frame, first, next_slot, next_frame, next_first = (place[items] for place in buffers.places)
    for c, name in enumerate(log.layout.names):
        if name not in spec.fields:
            continue
        field = spec.fields[name]
        windows = buffers.windows[name]
        column = (index.offset[c], index.codec[c], index.dictionary[c])
        table, zeros = log.tables[c], field.pad == "zeros"
        if name not in spec.obs_names:
            places = [(slot, row, row)]
            counts = index.rows
        else:
            counts = index.frames
            places = [(next_slot, next_frame, next_first)]
            if n_step > 1:
                places.insert(0, (slot, frame, first))
        for (where, newest, lowest), window in zip(places, windows, strict=True):
            gather(
                log.arena.memory, log.arena.words, column, counts, table, field.line_bytes, zeros,
                where, newest, lowest, window[items],
            )  # fmt: skip
