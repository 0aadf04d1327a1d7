"""Accounting: a store's contents and the memory that they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpwave.codecs.codec_registry import name_of
from sharpwave.format.segment import FIRST_FIELD
from sharpwave.log.step_log import StepLog
from sharpwave.sampling.limiters import Gate


def account(log: StepLog, gate: Gate) -> dict[str, Any]:
    """Return the figures of ``sharpwave.Store.stats``, with the lock held. Cost: O(segments)."""
    index = log.index
    sealed = np.flatnonzero(index.sealed[: index.highest] & (index.rows[: index.highest] > 0))
    pool, inventory = log.batches.pool, log.inventory
    pool.collect()
    taken = _taken(log) | {"batches": log.ledger.batch_bytes}
    total = sum(taken.values())
    growing = ("arena_used", "index", "samplers", "shared_values")
    sealed_steps = int(index.rows[sealed].sum())
    shared = log.shared.counts() if log.shared else {}
    shared_bytes = sum(one["bytes"] for one in shared.values()) if sealed_steps else 0
    found = {
        "steps": log.steps,
        "deleted_steps": log.deleted_steps,
        "total_steps": inventory.total_steps,
        "evicted_steps": inventory.evicted_steps,
        "evicted_segments": inventory.evicted_segments,
        "segments": len(sealed) + log.lanes,
        "lanes": log.lanes,
        **log.boundaries.counted,
        "bytes": taken,
        "total_bytes": total,
        "held_batch_bytes": pool.held_bytes,
        "bytes_per_step": total / max(1, log.steps),
        "fixed_bytes": total - sum(taken.get(name, 0) for name in growing),
        "encoded_bytes_per_step": inventory.sealed_bytes / max(1, sealed_steps)
        + shared_bytes / max(1, inventory.held_steps),
        "raw_bytes_per_step": log.spec.step_bytes,
        "append_waits": gate.waits["append"],
        "append_wait_s": gate.seconds["append"],
        "sample_waits": gate.waits["sample"],
        "sample_wait_s": gate.seconds["sample"],
        "damaged": list(log.sealed.damaged.values()),
        "codecs": {
            name: {
                name_of(codec): int((index.codec[FIRST_FIELD + i, sealed] == codec).sum())
                for codec in np.unique(index.codec[FIRST_FIELD + i, sealed]).tolist()
            }
            for i, name in enumerate(log.spec.fields)
        },
    }
    if log.shared:
        found["shared"] = shared
    if log.disk is not None and log.segment_cache is not None:
        found["disk"] = {
            "bytes": log.disk.nbytes,
            "resident_segments": int(index.resident[sealed].sum()),
            "hits": log.segment_cache.hits,
            "misses": log.segment_cache.misses,
            "bytes_read": log.segment_cache.bytes_read + log.shared.bytes_read,
            "joined": log.segment_cache.joined,
            "stalls": log.segment_cache.stalls,
            "waited_s": log.segment_cache.waited_s,
            "bytes_written": log.disk.bytes_written,
            "failures": log.disk.failures,
            "dropped_steps": inventory.dropped_steps,
            "damaged": list(log.sealed.damaged.values()),
        }
    return found


def _taken(log: StepLog) -> dict[str, int]:
    """Return the bytes of memory that the log takes, by use."""
    staging = log.space.staged * log.layout.open_bytes
    used = log.inventory.sealed_bytes if log.segment_cache is None else log.arena.used_bytes - staging
    return {
        "arena_used": used,
        "arena_free": log.arena.committed_bytes + log.arena.uncounted_bytes - staging - used,
        "open_segments": staging,
        **log.ledger.parts(),
        "checkpoint": _copied(log),
    }


def _copied(log: StepLog) -> int:
    """Return the bytes of copies for pending writes: a checkpoint, or views' states."""
    kept = 0 if log.keeping is None else log.keeping.kept_bytes
    return kept + (0 if log.copying is None else log.copying.nbytes)
