"""``Blend.stream``: the batches that ``sample`` would give, drawn ahead; what is drawn of a part is drawn of all."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.views.blends import (
    FIRST,
    append,
    blend_of,
    errors_of,
    falling,
    made,
    prioritized,
    right,
    same,
    transitions,
    windows,
)


@pytest.mark.parametrize("kind", [transitions, prioritized, windows])
@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_batches_are_those_of_sample_with_priorities_as_late_as_it_looks_ahead(
    kind: Callable[..., list[Any]], lookahead: int, on_disk: bool, tmp_path: Path
) -> None:
    """The oracle samples a blend of the same stores ``lookahead`` batches before it gives them out."""
    stores, others = made(disks=tmp_path if on_disk else None), made()
    shares = (falling, 0.5) if lookahead else (0.3, 0.7)
    blend, oracle = blend_of(kind(stores), shares), blend_of(kind(others), shares)
    stream, queue, rng = blend.stream(24, lookahead=lookahead, beta=0.8), deque[Any](), np.random.default_rng(0)
    for _ in range(12):
        while len(queue) <= lookahead:
            queue.append(oracle.sample(24, beta=0.8).copy())
        batch, expected = next(stream), queue.popleft()
        assert same(batch, expected) and blend.samples == oracle.samples
        right(batch)
        errors = errors_of(batch, blend, rng)
        assert blend.update_priorities(batch, errors) == oracle.update_priorities(expected, errors) == 0
    assert len(stream.drawn) == lookahead
    for store in (*stores, *others):
        store.close()


def test_items_evicted_since_the_draw_are_resampled_with_weights_of_their_probabilities() -> None:
    stores = made(capacity=400)
    blend, rng, replaced = blend_of(prioritized(stores), (0.4, 0.6)), np.random.default_rng(0), 0
    stream = blend.stream(32, lookahead=4, beta=0.8)
    for begin in range(400, 2000, 50):
        before = [set(part.ids.tolist()) for part in stream.drawn[0].parts.values()] if stream.drawn else [set(), set()]
        append(stores[0], begin, 50)  # the other store keeps its steps
        batch = next(stream)
        right(batch)
        own = [set(batch.ids[batch.source == k].tolist()) for k in (0, 1)]
        replaced += len(before[0] - own[0])
        assert before[1] <= own[1]
        for k, share in enumerate((0.4, 0.6)):
            probabilities = batch.probabilities[batch.source == k] / share
            np.testing.assert_allclose(
                batch.weights[batch.source == k], (probabilities / probabilities.min()) ** -0.8, rtol=1e-5
            )
        blend.update_priorities(batch, rng.exponential(size=32))
    assert replaced > 20


def test_what_streams_of_a_blend_need_is_read_ahead_and_let_go(tmp_path: Path) -> None:
    stores = made(1500, disks=tmp_path)
    caches: list[Any] = [store._log.segment_cache for store in stores]
    for cache in caches:
        while cache.uncache_chunk():
            pass
    blend = blend_of(transitions(stores), (0.5, 0.5))
    stream, dropped = blend.stream(8, lookahead=4), blend.stream(8)
    next(stream), next(dropped)
    for k, cache in enumerate(caches):
        slots = {slot for one in stream.drawn for slot in one.parts[k].slots.tolist() if k in one.parts}  # type: ignore[union-attr]
        assert len(slots) > 4 and cache._pins.any()
        assert all(stores[k]._log.index.resident[slot] or cache._state[slot] for slot in slots)
    stream.close()
    assert not stream.drawn
    right(next(stream))  # a closed stream draws anew, as a view's
    del stream, dropped
    gc.collect()
    blend.stream(8)
    assert not any(cache._pins.any() or cache.kept_bytes for cache in caches)
    for store in stores:
        store.close()


# how often, and when


def test_items_of_limited_uses_are_given_out_as_often_by_two_streams_of_a_blend() -> None:
    stores = made(100)
    blend = blend_of(transitions(stores, max_times_sampled=2), (0.5, 0.5))
    streams = [blend.stream(8, lookahead=2), blend.stream(6, lookahead=0)]
    used: list[int] = []
    counted = 0
    with pytest.raises(sw.EmptyError, match="nothing was taken"):
        while True:
            for stream in streams:
                batch = next(stream)
                used += batch.action.tolist()
                counted += 1
    ahead = sum(len(one.choice.source) for stream in streams for one in stream.drawn)
    assert blend.samples == len(used) + ahead and max(Counter(used).values()) == 2
    left = sum(int(view.source.items.uses_left) for view in blend.views)
    assert left + len(used) + ahead == 2 * sum(len(store) - (len(store) % 40 > 0) for store in stores)
    assert counted > 20


def test_streams_in_threads_neither_wait_for_each_other_nor_lose_items() -> None:
    """Two blends of the same views in other orders: one store's lock is never held while another's is waited for."""
    stores = made(1200)
    views = transitions(stores, max_times_sampled=1)
    streams = [
        blend_of(order).stream(5, lookahead=lookahead, timeout=5) for order, lookahead in ((views, 3), (views[::-1], 1))
    ]
    used: list[list[int]] = [[], []]

    def draw(k: int) -> None:
        try:
            while True:
                used[k] += next(streams[k]).action.tolist()
        except sw.EmptyError:
            pass

    threads = [threading.Thread(target=draw, args=(k,), daemon=True) for k in (0, 1)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns between the draws of a batch's parts
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)
    numbers = [number for some in used for number in some]
    ahead = sum(len(one.choice.source) for stream in streams for one in stream.drawn)
    left = sum(int(view.source.items.uses_left) for view in views)
    assert len(set(numbers)) == len(numbers) > 1000
    assert len(numbers) + ahead + left == 2 * 1200


@pytest.mark.parametrize("order", [1, -1])
def test_a_part_that_has_to_wait_is_waited_for_by_the_batch_asked_for_alone(order: int) -> None:
    stores = made(40)
    limiter = sw.SamplesPerInsert(ratio=1.0, min_size=1, error_buffer=30)
    views = [stores[0].transitions(), stores[1].transitions(limiter=limiter)][::order]
    blend = blend_of(views, (0.5, 0.5))
    stream = blend.stream(20, lookahead=9, timeout=0)
    given = 0
    with pytest.raises(sw.LimiterTimeoutError, match="the writer has to append"):
        for batch in stream:
            given += 1
            right(batch, first=int(order < 0))
            assert len(stream.drawn) < 9
    samples = [view.source.items.samples for view in views]
    assert sum(samples) == blend.samples == 20 * given and not stream.drawn, "no part of the next is drawn"
    state = blend.state()
    with pytest.raises(sw.LimiterTimeoutError):
        next(stream)
    assert blend.state() == state and [view.source.items.samples for view in views] == samples
    append(stores[1], FIRST[1] + 40, 40)
    right(next(stream), first=int(order < 0))


def test_a_waiting_stream_goes_on_once_steps_arrive_and_others_wait_no_longer_than_they_say() -> None:
    stores = made(0)
    append(stores[0], 0, 40)
    stream = blend_of(transitions(stores, limiter=sw.MinSize(20))).stream(4, timeout=30)
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.append(next(stream)), daemon=True)
    thread.start()
    while not stores[1].stats()["sample_waits"]:
        pass
    stream._timeout = 0.05
    with pytest.raises(sw.LimiterTimeoutError, match="another thread samples from this stream"):
        next(stream)
    append(stores[1], FIRST[1], 40)
    thread.join(30)
    right(batches[0])


@pytest.mark.parametrize("waits", ["sample", "stream"])
def test_batches_drawn_ahead_are_given_out_while_another_thread_waits_for_steps(waits: str) -> None:
    stores = made(61)
    blend = blend_of(transitions(stores, max_times_sampled=1, limiter=sw.MinSize(1)), (0.5, 0.5))
    stream, other = blend.stream(20, lookahead=3, timeout=0.2), blend.stream(100, lookahead=0, timeout=30)
    right(next(stream))
    batches: list[Any] = []
    draw = other.__next__ if waits == "stream" else lambda: blend.sample(100, timeout=30)
    thread = threading.Thread(target=lambda: batches.append(draw()), daemon=True)
    thread.start()
    while not any(store.stats()["sample_waits"] for store in stores):
        pass
    ready = len(stream.drawn)
    assert ready
    for _ in range(ready):
        right(next(stream))
    for store, first in zip(stores, FIRST, strict=True):
        append(store, first + 61, 100)
    thread.join(30)
    right(batches[0])


# checkpoints


# what fails


@pytest.fixture
def broken() -> Iterator[tuple[Any, Any, Any]]:
    """A blend, its stream after a batch, and an oracle that samples the same."""
    stores, others = made(), made()
    blend, oracle = blend_of(prioritized(stores)), blend_of(prioritized(others))
    stream = blend.stream(16, lookahead=2)
    assert same(next(stream), oracle.sample(16))
    yield blend, stream, oracle
    for store in (*stores, *others):
        store.close()


@pytest.mark.parametrize("view", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_batch_that_a_view_cannot_fill_is_dropped_whole(
    broken: Any, view: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    blend, stream, oracle = broken

    def fail(target: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(blend.views[view].source, "fill", fail)
        with pytest.raises(type(error)):
            next(stream)
    oracle.sample(16)  # the one that was dropped
    for _ in range(5):
        assert same(next(stream), oracle.sample(16))


@pytest.mark.parametrize("view", [0, 1])
def test_a_batch_without_memory_is_given_out_when_there_is(
    broken: Any, view: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blend, stream, oracle = broken

    def fail(target: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(blend.views[view].source, "fill", fail)
        for _ in range(2):
            with pytest.raises(MemoryError):
                next(stream)
    for _ in range(5):
        assert same(next(stream), oracle.sample(16))


@pytest.mark.parametrize("view", [0, 1])
def test_a_sampler_that_fails_leaves_all_undrawn(broken: Any, view: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blend, stream, _ = broken
    sampler = blend.views[view].sampler
    before = blend.state(), [one.source.items.samples for one in blend.views], len(stream.drawn)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(sampler, "draw", fail)
        with pytest.raises(RuntimeError, match="broken"):
            next(stream)
    assert (blend.state(), [one.source.items.samples for one in blend.views], len(stream.drawn)) == before
    right(next(stream))


@pytest.mark.parametrize("view", [0, 1])
def test_a_read_that_cannot_begin_leaves_all_undrawn(
    view: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, others = made(1500, disks=tmp_path), made(1500)
    blend, oracle = blend_of(transitions(stores)), blend_of(transitions(others))
    stream, cache = blend.stream(8, lookahead=2), stores[view]._log.segment_cache
    assert cache is not None

    def fail(slots: Any) -> int:
        raise OSError("no reader")

    def held() -> Any:
        caches: list[Any] = [store._log.segment_cache for store in stores]
        samples = [one.source.items.samples for one in blend.views]
        return blend.state(), samples, [(one._pins.tolist(), one.kept_bytes) for one in caches]

    before = held()
    with monkeypatch.context() as patch:
        patch.setattr(cache, "fetch", fail)
        for _ in range(2):
            with pytest.raises(OSError, match="no reader"):
                next(stream)
            assert held() == before
    for _ in range(5):
        right(batch := next(stream))
        assert same(batch, oracle.sample(8))
    for store in (*stores, *others):
        store.close()


def test_a_damaged_segment_of_one_view_is_named_and_its_steps_are_replaced(tmp_path: Path) -> None:
    stores = made(1500, disks=tmp_path)
    cache: Any = stores[1]._log.segment_cache
    while cache.uncache_chunk():
        pass
    (region, *_) = sorted((tmp_path / "1" / "regions").iterdir())
    content = bytearray(region.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 2000] = bytes(2000)
    region.write_bytes(content)
    stream = blend_of(transitions(stores)).stream(64, lookahead=2)
    with pytest.warns(RuntimeWarning, match="steps are sampled no more"):
        for _ in range(20):
            right(next(stream))
    assert stores[1].stats()["disk"]["damaged"] and not stores[0].stats()["disk"]["damaged"]
    for store in stores:
        store.close()


def test_a_closed_store_ends_the_stream_and_the_other_store_goes_on(tmp_path: Path) -> None:
    stores = made(disks=tmp_path)
    blend = blend_of(transitions(stores))
    stream = blend.stream(8)
    next(stream)
    stores[1].close()
    before = blend.state()
    for _ in range(3):
        with pytest.raises(ValueError, match="closed"):
            next(stream)
    assert blend.state() == before
    stream.close()
    cache: Any = stores[0]._log.segment_cache
    assert not cache._pins.any() and cache.kept_bytes == 0
    assert len(blend.views[0].sample(8)) == 8
    stores[0].close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0, expected an integer from 1"),
        ({"batch_size": 8, "lookahead": -1}, "lookahead=-1, expected an integer from 0"),
        ({"batch_size": 8, "beta": 2}, "beta=2, expected a number from 0 to 1"),
    ],
)
def test_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        blend_of(transitions(made(50))).stream(**arguments)


def test_the_same_view_twice_is_refused() -> None:
    store = made(50)[0]
    view, other = store.transitions(name="one", max_times_sampled=1), store.transitions(name="two")
    with pytest.raises(ValueError, match="view 'one' is there twice, expected each view once: give it the sum"):
        sw.Blend([(1, view), (2, other), (3, view)])
    assert len(sw.Blend([(4, view), (2, other)]).sample(40)) == 40
