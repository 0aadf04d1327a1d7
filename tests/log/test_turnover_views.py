"""Evictions by the core leave every view as those by Python do: its items, what they weigh, and what it draws."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

from ..support.audit import audit
from ..support.examples import examples
from .test_turnover import Pair

View = Any
BY_CORE: dict[str, Callable[[sw.Store, str], View]] = {
    "uniform": lambda store, name: store.transitions(name=name),
    "3 steps": lambda store, name: store.transitions(name=name, n_step=3),
    "prioritized": lambda store, name: store.transitions(name=name, n_step=2, sampler=sw.Prioritized()),
    "windows": lambda store, name: store.sequences(name=name, length=4, stride=2, n_step=3),
    "burn-in": lambda store, name: store.sequences(name=name, length=3, burn_in=6),
    "prioritized burn-in": lambda store, name: store.sequences(
        name=name, length=3, burn_in=9, stride=1, n_step=2, sampler=sw.Prioritized()
    ),
}
BY_PYTHON: dict[str, Callable[[sw.Store, str], View]] = {
    "uses": lambda store, name: store.sequences(name=name, length=3, burn_in=2, max_times_sampled=3),
    "mixture": lambda store, name: store.transitions(
        name=name, n_step=2, sampler=sw.Mixture([(0.5, sw.Uniform()), (0.5, sw.Prioritized())])
    ),
    "in order": lambda store, name: store.transitions(name=name, sampler=sw.Lifo()),
}
KINDS = BY_CORE | BY_PYTHON


def plain(value: Any) -> Any:
    """Return a state with lists for its arrays."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else getattr(value, "tolist", lambda: value)()


def state(view: View) -> list[Any]:
    """All that a view says of its items, once it has followed the log."""
    items, count = view.source.items, len(view)
    saved = repr(plain(view.sampler.state()))
    ids = np.sort(np.asarray(view.sampleable_ids())).tolist()
    left = None if items.uses is None else items.uses.left
    return [count, items.samples, items.spans.tolist(), ids, saved, left, len(items.losing)]


def sampled(views: list[View]) -> None:
    """Draw a batch of both views, which is the same, and set its priorities."""
    if len(views[0]) == 0 or not views[0].source.items.enough(8):
        return
    batches = [view.sample(8) for view in views]
    for part in ("ids", "weights", "probabilities", "reward", "action"):
        np.testing.assert_array_equal(batches[0][part], batches[1][part], err_msg=part)
    shape = batches[0].ids.shape + views[0].view.error_shape
    errors = np.abs(np.sin(np.arange(np.prod(shape)))).reshape(shape)
    assert len({view.update_priorities(batch, errors) for view, batch in zip(views, batches, strict=True)}) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_views_are_the_same_as_without_the_core(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    spec = str(rng.choice(["floats", "frames", "both"]))
    limit = int(rng.choice([60, 200]))
    pair = Pair(spec, rng, capacity=limit, codec="raw", segment_steps=int(rng.integers(4, 20)))
    views = [pair.each(lambda store: KINDS[kind](store, "first"))]
    by_core, by_python, turns = 0, 0, examples(700, most=700)
    for turn in range(turns):
        before, evicted = pair.rolled, pair.stores[0].stats()["evicted_segments"]
        pair.extend()
        if pair.stores[0].stats()["evicted_segments"] > evicted:
            by_core, by_python = by_core + (pair.rolled == before), by_python + (pair.rolled > before)
        what = rng.integers(0, 300)
        if what < 3 and len(views) < 3:
            other = str(rng.choice(list(KINDS if kind in BY_PYTHON else BY_CORE)))
            views.append(pair.each(lambda store, k=other, n=f"view {turn}": KINDS[k](store, n)))
        elif what < 6 and len(views) > 1:
            views.pop(int(rng.integers(1, len(views))))
        elif what < 8:
            now = limit + int(rng.integers(0, 150))
            pair.each(lambda store, steps=now: store.resize(capacity=steps))
        elif what == 8:
            pair.lanes = min(8, pair.lanes + 1)  # an id of a lane that is new
            pair.at = np.append(pair.at, 0)[: pair.lanes]
        elif what == 9:
            pair.each(lambda store: store.clear())
        elif what < 80:
            sampled(views[int(rng.integers(len(views)))])
        if turn % 50 == 49:
            pair.check()
            for both in views:
                assert state(both[0]) == state(both[1])
            for k, store in enumerate(pair.stores):
                audit(store, [both[k] for both in views])
    if kind in BY_CORE:
        assert by_core > turns / 35 and by_core > by_python, "evictions are part of the call that appends"


def test_a_view_that_is_dropped_is_gone_and_one_that_is_made_is_told() -> None:
    pair = Pair("floats", np.random.default_rng(0), capacity=200, codec="raw", segment_steps=8)
    store = pair.stores[0]
    sampler = sw.Prioritized()
    first = store.transitions(sampler=sampler)
    for _ in range(300):
        pair.extend()
    items, drawn_by = (weakref.ref(one) for one in (first.source.items, sampler))
    assert len(first)
    del first, sampler
    gc.collect()
    assert items() is None and drawn_by() is None, "the appender keeps no view"
    for _ in range(50):
        pair.extend()
    second, evicted = store.sequences(length=2), store.stats()["evicted_segments"]
    pair.rolled = 0
    for _ in range(200):
        pair.extend()
    assert store.stats()["evicted_segments"] > evicted + 20 and pair.rolled < 30
    audit(store, [second])
    held = {int(step) for step in np.asarray(store.transitions(name="all").sampleable_ids())}
    assert len(second) and {int(one) >> 32 for one in second.sampleable_ids()} <= {one >> 32 for one in held}


class Forgetful(sw.Uniform):
    """Uniform sampler that counts what leaves it."""

    removed = 0

    def remove(self, group: int) -> None:
        self.removed += 1
        super().remove(group)


def test_a_sampler_of_one_s_own_is_told_of_evictions() -> None:
    pair = Pair("floats", np.random.default_rng(1), capacity=100, codec="raw", segment_steps=5)
    store, sampler = pair.stores[0], Forgetful()
    view = store.transitions(sampler=sampler)
    for _ in range(300):
        pair.extend()
    assert sampler.removed == store.stats()["evicted_segments"] > 20
    audit(store, [view])


def test_priorities_that_await_their_items_go_with_their_segment() -> None:
    """TD errors of steps that were given with them, of a view that has not followed the log since."""
    pair = Pair("floats", np.random.default_rng(2), capacity=100, codec="raw", segment_steps=5)
    store = pair.stores[0]
    view = store.transitions(n_step=2, sampler=sw.Prioritized())
    for _ in range(60):
        pair.extend()
    expected = view.view.expected
    for slot in np.flatnonzero(store._log.index.sealed[: store._log.index.highest]).tolist():
        view.view.expect(slot, np.ones(store._log.index.rows[slot], np.float32))
    assert expected
    for _ in range(300):
        pair.extend()
    assert not expected
    audit(store, [view])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_evicts_for_itself() -> None:
    pair = Pair("floats", np.random.default_rng(3), capacity=150, codec="raw", segment_steps=6)
    views = pair.each(lambda store: store.sequences(length=2, burn_in=4, sampler=sw.Prioritized()))
    for _ in range(200):
        pair.extend()
    child = os.fork()
    if not child:
        try:
            for _ in range(200):
                pair.extend()
            for store, view in zip(pair.stores, views, strict=True):
                audit(store, [view])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(200):
        pair.extend()
        sampled(views)
    assert state(views[0]) == state(views[1])
