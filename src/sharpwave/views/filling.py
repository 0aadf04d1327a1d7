"""Memory of batches of given items, and its filling, a part at a time where ``ram`` holds only some of its segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sharpwave.arrays import Bools, Ints
from sharpwave.errors import DamagedError
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.views.gather import UndecodableError
from sharpwave.views.layout import BatchTarget
from sharpwave.views.view_protocol import View


def lend_held(
    ids: Ints, resolve: Callable[[Ints], tuple[Ints, Bools]], lend: Callable[[int], BatchTarget]
) -> tuple[BatchTarget, Bools]:
    """Lend memory for a batch of the items among ``ids`` [n] that are held; return it, and which these are, bool [n].

    Args:
        resolve: returns the items of ids, and which of them are held. ``lend``: lends memory for so many items.

    Raises: MemoryError.
    """
    _, before = resolve(ids)
    while True:
        target = lend(int(np.count_nonzero(before)))
        items, there = resolve(ids)  # memory for the batch may have evicted some
        if np.array_equal(there, before):
            target.draw.items[:], target.ids[:] = items[there], ids[there]
            return target, there
        before = there


def fill_target(log: StepLog, view: View[Any], target: BatchTarget, filler: core.Filler | None = None) -> None:
    """Fill a batch for its items, all present; or cut their rows out, with ``target.cutter``.

    Args:
        filler: the view's; ``None``: the core has none for it.

    Raises:
        DamagedError: a segment is damaged; it is in ``log.sealed.damaged``.
        MemoryError: there is no room to read one.
    """
    try:
        if log.segment_cache is None:
            target.fill(view, filler, 0)
        else:
            begin, slots = 0, view.drawn_segments(target.draw.items, target.draw.uniforms)
            if not slots.shape[1]:
                target.fill(view, filler, 0)
                begin = len(slots)
            while begin < len(slots):
                end = begin + resident(log, slots[begin:], view.read_columns)
                part = target if end - begin == len(slots) else target.part(begin, end)
                part.fill(view, filler, begin)
                begin = end
    except UndecodableError as error:
        error.set_aside(log)
        raise
    if target.cutter is None:
        view.finish(target)


def resident(log: StepLog, slots: Ints, columns: int) -> int:
    """Read the segments ``slots`` [n, k] of items into memory, for as many of the first items as fit.

    Returns their number.

    Raises:
        MemoryError: not even one fits.  DamagedError: a segment that was read is damaged.
    """
    cache = log.segment_cache
    assert cache is not None
    needed = np.ascontiguousarray(slots).reshape(-1)
    ready: int = cache.require(needed, columns) // slots.shape[1]
    if cache.damaged:
        for one in needed[: slots.shape[1] * ready].tolist():
            if one in cache.damaged:
                raise DamagedError(cache.damaged[one])
    if ready == 0:
        raise MemoryError(
            f"sample: ram leaves {log.arena.limit_bytes:,} bytes, too few to read a segment from disk; raise "
            f"ram=, or {log.space.layout.remedy}"
        )
    return ready
