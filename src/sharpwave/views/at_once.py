"""Whole batches by one call of the core: what it needs for that, of a view and its sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharpwave.native import core
from sharpwave.sampling.protocol import draws_by_tree
from sharpwave.views.items import Items

if TYPE_CHECKING:
    import numpy as np

    from sharpwave.log.step_log import StepLog


def sampling(log: StepLog, items: Items, view: Any, rng: np.random.Generator) -> core.Sampling | None:
    """Return draws of batches by ``rng``, over the arrays as they are now; ``None`` for views that take more."""
    sampler: Any = items.sampler
    if (
        getattr(view, "filled_at_once", None) is None
        or items.uses is not None
        or sampler.keeps_order
        or not draws_by_tree(sampler)
    ):
        return None
    filler, runs, same = view.filler(items.spans)
    index = log.index
    objects = {
        "sampler": sampler,
        "leaves": sampler.tree(),
        "generator": rng.bit_generator,
        "pool": log.batches.pool,
        "filler": filler,
        "runs": runs,
        "cache": log.segment_cache,
        "same": [
            (log, "closed", False),
            (log.inventory, "oldest", log.inventory.oldest),
            (log.arena, "memory", log.arena.memory),
            (index, "offset", index.offset),
            *((owner, name, getattr(owner, name)) for owner, name in same),
        ],
        "expected": view.expected,
    }
    resident = None if log.segment_cache is None else index.resident
    return core.Sampling(objects, log.inventory.counts, index.generation, resident, log.stride)
