"""Whether all that a store says of itself agrees: slots, chains, bytes, dictionaries, and what its views sample."""

from __future__ import annotations

from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.codecs.dictionaries import PLACES
from sharpwave.format.region import space


def audit(store: sw.Store, views: list[Any]) -> None:
    """Assert that a store and its views, none of which streams, are whole. Nothing changes."""
    log, index = store._log, store._log.index
    opened = log.opened.slots.tolist()
    free = set(index.free.slots())
    assert len(free) == len(index.free), "a slot is free twice"
    sealed = [slot for slot in range(index.highest) if slot not in free and slot not in opened]
    assert index.sealed[sealed].all(), "a slot is neither free, nor open, nor sealed"
    kept = set(log.retention.order()["slots"].tolist())
    leaving = log.admission._interrupted
    assert kept - {leaving} == set(sealed) - {leaving}, "the retention knows others than are there"
    held = int(index.rows[sealed].sum() + index.rows[opened].sum())
    assert held == log.inventory.held_steps == len(store)
    assert log.inventory.total_steps == held + log.inventory.evicted_steps
    assert len(log.inventory.oldest) == log.lanes == len(log.opened.steps) == len(log.opened.shares)
    for lane in range(log.lanes):
        chain = [int(log.inventory.oldest[lane])]
        while (following := int(index.next[chain[-1]])) >= 0:
            assert index.previous[following] == chain[-1]
            chain.append(following)
        assert chain[-1] == opened[lane] and index.previous[chain[0]] < 0
        assert set(chain) == {slot for slot in [*sealed, opened[lane]] if index.lane[slot] == lane}
    for c, table in enumerate(log.tables):
        used = np.bincount(index.dictionary[c, sealed], minlength=PLACES)
        counts = np.array([table.uses.count(place) for place in range(PLACES)])
        assert (counts >= used)[1:].all(), "a dictionary that segments need is free"
        encoder = log.encoder.columns.get(c)
        if encoder is not None:
            states = [encoder.lanes.find(lane) for lane in range(log.lanes)]
            by_encoder = [state.place for state in states if state is not None] + list(encoder._newest.values())
            used += np.bincount(by_encoder, minlength=len(used))
            assert (counts == used)[1:].all(), "a dictionary that nothing needs is kept"
    _audit_bytes(store, sealed)
    for view in views:
        _audit_view(view)


def _audit_bytes(store: sw.Store, sealed: list[int]) -> None:
    log, index, arena = store._log, store._log.index, store._log.arena
    leaving = log.admission._interrupted
    assert (
        log.inventory.sealed_bytes
        == index.nbytes[[slot for slot in sealed if slot != leaving or index.nbytes[slot]]].sum()
    )
    cache = log.segment_cache
    if cache is not None:
        cache.arrive(cache._under_way())
        assert cache._coming == 0 and not cache._pins.any()
    resident = sealed if cache is None else [slot for slot in sealed if index.resident[slot]]
    live = sum(-(-int(index.nbytes[slot]) // 8) * 8 for slot in resident) + log.space.staged * log.layout.open_bytes
    staged = log.opened.staging >= 0
    spare = 0 if log.sealing.behind is None else len(log.sealing.behind._spare)
    assert log.space.staged - spare == staged.sum() == log.lanes - log.opened.bare
    assert not index.frames[log.opened.slots[~staged]].any() and not index.rows[log.opened.slots[~staged]].any()
    assert arena.used_bytes == int(arena.live.sum()) == live, "bytes of the arena that nothing holds"
    if log.disk is not None:
        tails = sum(space(tail.nbytes) for tail in log.disk._tails.values())
        assert log.disk.held.total == sum(space(int(index.nbytes[slot])) for slot in sealed) + tails


def _audit_view(view: Any) -> None:
    items = view._items
    count = len(view)
    ids = np.asarray(view.sampleable_ids()) & 0xFFFFFFFF
    if items.losing:  # by an eviction that was interrupted: still there, until it is repeated
        losing = np.unique(np.concatenate(items.losing))
        ids = np.concatenate([ids, losing if items.uses is None else losing[items.uses.remaining(losing)]])
    assert count == len(ids)
    if items.uses is not None:
        assert items.uses.left == (items.uses.max_uses - items.uses._given[ids]).sum()
    _audit_sampler(view.sampler, count)


def _audit_sampler(sampler: Any, count: int) -> None:
    if isinstance(sampler, sw.Mixture):
        for part in sampler._samplers:
            _audit_sampler(part, count)
    elif isinstance(sampler, sw.Uniform):
        assert sampler._tree is not None and sampler._tree.sums.total == count
    elif isinstance(sampler, sw.Prioritized):
        assert sampler._tree is not None and np.count_nonzero(sampler._tree.leaves) == count
    elif isinstance(sampler, sw.RankPrioritized):
        assert sampler._heap is not None and sampler._count == count
        assert (sampler._place[sampler._heap[:count]] == np.arange(1, count + 1)).all()
    else:
        assert sampler._count == count == len(sampler.state()["order"])
