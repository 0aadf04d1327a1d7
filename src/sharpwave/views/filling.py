"""Filling of a batch: read the segments of the drawn items into memory, and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import DamagedError
from sharpwave.views.gather import UndecodableError
from sharpwave.views.layout import Target
from sharpwave.views.view import View

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]


def fill(log: StepLog, view: View[Any], target: Target) -> None:
    """Fill ``target`` for its items, all present; or cut what they need out, with ``target.cutter``.

    Raises:
        DamagedError: a segment is damaged; it is in ``log.sealed.damaged``.
        MemoryError: there is no room to read one.
    """
    if target.cutter is not None:
        target.cutter.clear()
    try:
        if log.segment_cache is None:
            _fill(view, target, 0)
        else:
            begin, slots = 0, view.drawn_segments(target.draw.items, target.draw.uniforms)
            while begin < len(slots):
                end = begin + _resident(log, slots[begin:])
                _fill(view, target if end - begin == len(slots) else target.part(begin, end), begin)
                begin = end
    except UndecodableError as error:
        for one in error.slots:
            log.inventory.changes += 1
            log.sealed.damaged[one] = f"segment {log.index.segment_id(one)}: {error}"
        raise
    if target.cutter is None:
        view.finish(target)


def _fill(view: View[Any], target: Target, begin: int) -> None:
    if target.cutter is None:
        view.fill(target)
    else:
        target.cutter.add(view, target, begin)


def _resident(log: StepLog, slots: Ints) -> int:
    """Read the segments ``slots`` [n, k] of items into memory, for as many of the first items as there is room for.

    Returns the number of those items.

    Raises:
        MemoryError: not even one fits.  DamagedError: a segment read is damaged.
    """
    assert log.segment_cache is not None
    needed = np.ascontiguousarray(slots).reshape(-1)
    ready: int = log.segment_cache.require(needed) // slots.shape[1]
    if log.segment_cache.damaged:
        for one in needed[: slots.shape[1] * ready].tolist():
            if one in log.segment_cache.damaged:
                raise DamagedError(log.segment_cache.damaged[one])
    if ready == 0:
        raise MemoryError(
            f"sample: ram leaves {log.arena.limit_bytes:,} bytes, too few to read a segment from disk; raise ram=, "
            f"or lower segment_steps= (now {log.stride})"
        )
    return ready
