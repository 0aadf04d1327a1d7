"""Leaves that were drawn -> a batch: where their frames lie, what of that must be read, and the decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sharpwave.errors import DamagedError
from sharpwave.format.segment import FLAGS, REWARD
from sharpwave.views.batch import Batch
from sharpwave.views.buffers import Buffers
from sharpwave.views.gather import Readers, UndecodableError
from sharpwave.views.kernels import locate

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def fill(log: StepLog, readers: Readers, buffers: Buffers, n_step: int, gamma: float) -> Batch:
    """The transitions of ``buffers.draw.leaves``, which are there, in the memory of ``buffers``.

    Raises:
        DamagedError: a segment is not as it was written; it is in ``log.sealed.damaged``.
        MemoryError: there is no room to read one.
    """
    index = log.index
    memory = log.arena.memory
    leaves = buffers.draw.leaves
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
        buffers.located,
        buffers.ids,
    )
    try:
        if log.segment_cache is None:
            _decode(log, readers, n_step, buffers.places, buffers.windows)
            return buffers.batch
        begin, (slot, next_slot) = 0, buffers.located[[0, 4]]
        while begin < len(leaves):
            some = slice(begin, begin + _resident(log, slot[begin:], next_slot[begin:]))
            places = [place[some] for place in buffers.places]
            _decode(log, readers, n_step, places, [[window[some] for window in windows] for windows in buffers.windows])
            begin = some.stop
    except UndecodableError as error:
        for one in error.slots:
            log.sealed.damaged[one] = f"segment {log.index.segment_id(one)}: {error}"
        raise
    return buffers.batch


def _resident(log: StepLog, slot: Ints, next_slot: Ints) -> int:
    """Bring the segments of items into memory, as many of the first items as there is room for: that many.

    Raises:
        MemoryError: not even one fits.  DamagedError: what was read is not what was written.
    """
    assert log.segment_cache is not None
    pairs = np.stack([slot, next_slot], axis=1).reshape(-1)
    ready = log.segment_cache.require(pairs) // 2
    if log.segment_cache.damaged:
        for one in pairs[: 2 * ready].tolist():
            if one in log.segment_cache.damaged:
                raise DamagedError(log.segment_cache.damaged[one])
    if ready == 0:
        raise MemoryError(
            f"sample: ram leaves {log.arena.limit_bytes:,} bytes, too few to read a segment from disk; raise ram=, "
            f"or lower segment_steps= (now {log.stride})"
        )
    return ready


def _decode(
    log: StepLog, readers: Readers, n_step: int, places: Sequence[Ints], windows: Sequence[Sequence[Bytes]]
) -> None:
    """Decode every field of items whose segments are in memory."""
    slot, row, frame, first, next_slot, next_frame, next_first = places
    for name, reader, into in zip(log.spec.fields, readers.current(), windows, strict=True):
        wheres: tuple[tuple[Ints, Ints, Ints], ...]
        if name not in log.spec.obs_names:
            wheres = ((slot, row, row),)
        elif n_step == 1:
            wheres = ((next_slot, next_frame, next_first),)
        else:
            wheres = ((slot, frame, first), (next_slot, next_frame, next_first))
        for where, window in zip(wheres, into, strict=True):
            reader.read(*where, window)
