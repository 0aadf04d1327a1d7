"""Streams: the same batches as without, drawn ahead, and read before they are asked for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.native.file_operations import Files
from tests.support.faults import on


def filled(side: int = 20, **settings: Any) -> sw.Store:
    spec = sw.Spec(obs=sw.Field((side, side), "uint8", stack=2), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=5000, segment_steps=16, codec="raw", seed=3, **settings)
    for k in range(4000):
        append(store, k)
    return store


def append(store: sw.Store, k: int) -> None:
    picture = np.full(store.spec.fields["obs"].shape, k % 256, np.uint8)
    picture[0, :2] = k // 256 % 256, k % 256
    store.append(lane=0, obs=picture, action=k, reward=0.0, terminated=False, truncated=False)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in ("obs", "next_obs", "action", "ids", "weights"))


@pytest.mark.parametrize("disk", [False, True])
def test_the_batches_are_those_that_sample_would_give(tmp_path: Path, disk: bool) -> None:
    sampled = filled().transitions(seed=1)
    limits: dict[str, Any] = {"disk": tmp_path, "ram": "4MiB"} if disk else {}
    stream = filled(**limits).transitions(seed=1).stream(32, lookahead=3)
    for _ in range(20):
        assert same(next(stream), sampled.sample(32))


def test_what_a_stream_needs_is_read_ahead(tmp_path: Path) -> None:
    store = filled(disk=tmp_path, ram="4MiB")
    segment_cache = store._log.segment_cache
    assert segment_cache is not None
    while segment_cache.uncache_chunk():
        pass
    stream = store.transitions(seed=1).stream(8, lookahead=4)
    next(stream)
    before = store.stats()["disk"]["misses"]
    parts = [part for batch in stream.drawn for part in batch.parts.values() if part.slots is not None]
    drawn = {slot for part in parts if part.slots is not None for slot in part.slots.tolist()}
    assert len(drawn) > 8
    assert all(store._log.index.resident[slot] or segment_cache._state[slot] for slot in drawn)
    next(stream)
    assert store.stats()["disk"]["misses"] - before <= 8, "one batch is read for each that is handed out"
    stream.close()
    assert not segment_cache._pins.any()


def test_waiting_for_a_slow_disk_is_counted(tmp_path: Path) -> None:
    filling = True

    class Slow(Files):
        def pread(self, descriptor: int, out: memoryview, offset: int) -> int:
            time.sleep(0.0 if filling else 0.02)
            return super().pread(descriptor, out, offset)

    with on(Slow()):
        store = filled(disk=tmp_path, ram="4MiB")
        filling = False
        assert store._log.segment_cache is not None
        while store._log.segment_cache.uncache_chunk():
            pass
        store.transitions().sample(64)
    disk = store.stats()["disk"]
    assert disk["stalls"] == 1 and disk["waited_s"] > 0.01
    store.close()


def check(batch: Any) -> None:
    """Every transition is of the steps that :func:`append` wrote."""
    k = batch.action
    for obs, at in ((batch.obs, k), (batch.next_obs, k + 1)):
        assert np.array_equal(obs[:, 1, 0, :2], np.stack([at // 256 % 256, at % 256], axis=1))
        assert np.array_equal(obs[:, 1, -1, -1], at % 256)


@pytest.fixture
def quick_turns() -> Iterator[None]:
    """Threads take turns ten times as often as ever: more of what may go wrong, and a writer that waits for less."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 10)
    yield
    sys.setswitchinterval(before)


def test_streams_samples_and_a_writer_at_once(tmp_path: Path, quick_turns: None) -> None:
    """Memory holds a fifth of the steps, and segments leave the store while streams wait for them."""
    store = filled(side=48, disk=tmp_path, ram="4MiB")
    errors: list[BaseException] = []
    finished = threading.Event()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # told to the test below
            errors.append(error)

    def write() -> None:
        for k in range(4000, 12_000):
            append(store, k)
        finished.set()

    def stream(seed: int) -> None:
        batches = store.transitions(seed=seed).stream(16, lookahead=seed)
        while not finished.is_set():
            check(next(batches))
        batches.close()

    def sample() -> None:
        replay = store.transitions(seed=9)
        while not finished.is_set():
            check(replay.sample(16))

    works = [write, sample, *(partial(stream, seed) for seed in (1, 4))]
    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors, errors
    assert store.stats()["disk"]["misses"] > 0 and store.stats()["disk"]["damaged"] == []
    assert not store._log.segment_cache._pins.any()  # type: ignore[union-attr]
    store.close()


def test_a_stream_that_looks_further_ahead_than_memory_reaches_still_goes_on(tmp_path: Path) -> None:
    store = filled(side=48, disk=tmp_path, ram="6MiB")
    stream = store.transitions(seed=1).stream(32, lookahead=200)
    sampled = filled(side=48).transitions(seed=1)
    for _ in range(20):
        assert same(next(stream), sampled.sample(32))
    for k in range(4000, 4200):  # what is pinned makes room for what comes in
        append(store, k)
        check(next(stream))
    assert store.stats()["disk"]["damaged"] == []
    assert 0 < store._log.segment_cache.kept_bytes <= 0.75 * store._log.segment_bytes  # type: ignore[union-attr]


def test_a_stream_that_is_dropped_keeps_nothing(tmp_path: Path) -> None:
    store = filled(disk=tmp_path, ram="4MiB")
    replay, segment_cache = store.transitions(seed=1), store._log.segment_cache
    assert segment_cache is not None
    stream = replay.stream(8)
    next(stream)
    assert segment_cache.kept_bytes > 0
    del stream
    replay.stream(8)
    assert segment_cache.kept_bytes == 0 and not segment_cache._pins.any()


def test_a_prioritized_stream_has_the_weights_of_the_draw() -> None:
    replay = filled().transitions(sampler=sw.Prioritized(alpha=1.0, beta=1.0), seed=1)
    stream = replay.stream(16, lookahead=2)
    first = next(stream).copy()
    replay.update_priorities(first.ids, np.full(16, 1e6))  # would make these 16 nearly certain
    second, third, fourth = next(stream).copy(), next(stream).copy(), next(stream).copy()
    for late in (second, third):
        np.testing.assert_allclose(late.probabilities, first.probabilities)
        np.testing.assert_array_equal(late.weights, 1)
    assert set(fourth.ids) <= set(first.ids)


def test_a_batch_of_which_steps_left_has_the_weights_of_its_probabilities() -> None:
    store = filled()
    replay = store.transitions(sampler=sw.Prioritized(alpha=1.0), seed=1)
    stream, rng, replaced = replay.stream(16, lookahead=4, beta=0.8), np.random.default_rng(0), 0
    for begin in range(4000, 16_000, 400):
        ids = replay.sampleable_ids()
        replay.update_priorities(ids, rng.exponential(size=len(ids)))
        drawn = set(stream.drawn[0].parts[0].ids.tolist()) if stream.drawn else set()
        for k in range(begin, begin + 400):
            append(store, k)
        batch = next(stream)
        replaced += len(drawn - set(batch.ids.tolist()))
        expected = np.asarray(batch.probabilities) ** -0.8
        np.testing.assert_allclose(batch.weights, expected / expected.max(), rtol=1e-6)
    assert replaced > 20, "steps were drawn, and left before they were given out"


def test_bad_arguments_are_named() -> None:
    replay = filled().transitions()
    with pytest.raises(ValueError, match="lookahead=-1"):
        replay.stream(8, lookahead=-1)
    with pytest.raises(ValueError, match="batch_size=0"):
        replay.stream(0)
    with pytest.raises(ValueError, match="beta=2"):
        replay.stream(8, beta=2)
