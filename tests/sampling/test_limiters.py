"""Limiters: neither side runs away, neither hangs, and whoever waits in vain is told for what."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.sampling import limiters
from sharpwave.views.batch_source import BatchSource
from tests.sampling.test_samplers import append, number_store
from tests.store.test_threads import run_all

SOON = 0.03


def try_append(store: sw.Store, timeout: float = 0.0, count: int = 1, ends: bool = True) -> None:
    k = store.total_steps
    store.extend(
        obs=np.arange(k, k + count, dtype=np.int32),
        action=np.arange(k, k + count),
        reward=np.zeros(count, np.float32),
        terminated=np.full(count, ends),
        truncated=np.zeros(count, bool),
        timeout=timeout,
    )


# one thread: what is allowed


def test_min_size() -> None:
    with number_store() as store:
        replay = store.transitions(limiter=sw.MinSize(5))
        append(store, 4)
        with pytest.raises(sw.LimiterTimeoutError, match=r"5 steps.*MinSize\(size=5\).*4 inserts, 0 samples, 4 steps"):
            replay.sample(1, timeout=SOON)
        append(store, 1)
        assert len(replay.sample(64, timeout=0)) == 64
        append(store, 100)  # writing never waits


@pytest.mark.parametrize(
    ("ratio", "min_size", "error_buffer"), [(1.0, 1, 1), (4.0, 10, 8), (0.25, 6, 2), (0.3, 4, 1.7)]
)
def test_samples_per_insert_is_held_by_whoever_runs_ahead(ratio: float, min_size: int, error_buffer: float) -> None:
    """Both sides as far as they may go: the bounds are reached within one step, and never passed."""
    with number_store(capacity=5000) as store:
        replay = store.transitions(limiter=sw.SamplesPerInsert(ratio, min_size, error_buffer))
        with pytest.raises(sw.LimiterTimeoutError):
            replay.sample(1, timeout=0)
        inserts = samples = 0
        for _ in range(5):
            while True:
                try:
                    try_append(store)
                except sw.LimiterTimeoutError:
                    break
                inserts += 1
            ahead = ratio * (inserts - min_size) - samples
            assert ahead <= error_buffer < ahead + ratio
            while True:
                try:
                    replay.sample(1, timeout=0)
                except sw.LimiterTimeoutError:
                    break
                samples += 1
            ahead = ratio * (inserts - min_size) - samples
            assert ahead - 1 < -error_buffer <= ahead
            assert store.total_steps == inserts


def test_the_messages_say_where_both_stand_and_who_has_to_move() -> None:
    with number_store() as store:
        replay = store.transitions(limiter=sw.SamplesPerInsert(ratio=2.0, min_size=4, error_buffer=6))
        append(store, 7)  # 2 * (7 - 4) = 6 ahead
        with pytest.raises(TimeoutError) as caught:
            try_append(store, SOON)
        for what in ["append: timed out after 0.03 s", "2 more samples", "the learner has to sample",
                     "may be 0 to 12 now",
                     "7 inserts, 0 samples", "ratio=2.0, min_size=4, error_buffer=6"]:  # fmt: skip
            assert what in str(caught.value), what
        replay.sample(12)
        with pytest.raises(TimeoutError) as caught:
            replay.sample(3, timeout=SOON)
        for what in [
            "sample: timed out after 0.03 s",
            "2 more steps",
            "the writer has to append",
            "7 inserts, 12 samples",
        ]:
            assert what in str(caught.value), what
        stats = store.stats()
        assert (stats["append_waits"], stats["sample_waits"]) == (1, 1)
        assert SOON <= stats["append_wait_s"] < 5 and SOON <= stats["sample_wait_s"] < 5


def test_what_can_never_be_allowed_is_refused_at_once() -> None:
    with number_store() as store:
        replay = store.transitions(limiter=sw.SamplesPerInsert(ratio=2.0, min_size=4, error_buffer=6))
        append(store, 5)
        with pytest.raises(ValueError, match=r"batch_size=13.*12 samples.*error_buffer"):
            replay.sample(13)
        with pytest.raises(ValueError, match=r"7 steps at once.*12 samples.*error_buffer"):
            try_append(store, count=7)
        assert store.total_steps == 5 and store.lanes == 1
        replay = store.transitions(max_times_sampled=1, limiter=sw.Queue(3))  # the first view is gone
        with pytest.raises(ValueError, match=r"4 steps at once.*Queue\(size=3\)"):
            try_append(store, count=4)


def test_a_limiter_waits_where_there_is_nothing_else_to_raise() -> None:
    """With a limiter, too few uses are a reason to wait; without one they are an error at once."""
    with number_store() as store:
        replay = store.transitions(max_times_sampled=2, limiter=sw.MinSize(1))
        append(store, 2)
        replay.sample(3)
        with pytest.raises(sw.LimiterTimeoutError, match="2 samples find 1 uses"):
            replay.sample(2, timeout=SOON)
        with pytest.raises(sw.EmptyError):
            store.transitions(max_times_sampled=2).sample(5, timeout=SOON)


@pytest.mark.parametrize(
    ("limiter", "batch", "rows"),
    [
        (sw.SamplesPerInsert(1.0, 8, 40), 16, 1),
        (sw.SamplesPerInsert(0.5, 1, 9), 17, 2),  # as many as it admits
        (sw.Queue(10), 10, 4),
    ],
)
def test_the_writer_does_not_wait_for_uses_that_are_gone(limiter: Any, batch: int, rows: int) -> None:
    """Of every two steps one is lost, at the latest, when its episode is broken off: it is an insert all the same."""
    with number_store(capacity=5000) as store:
        replay = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=limiter)
        seen: list[int] = []
        for _ in range(600):  # if the learner is refused, the writer is admitted
            try:
                seen += replay.sample(batch, timeout=0).action.tolist()
            except sw.LimiterTimeoutError:
                try_append(store, count=rows, ends=False)
                if store.total_steps % 2 == 0:
                    store.break_episode(0)
        assert len(set(seen)) == len(seen) > store.total_steps // 2 - 2 * batch
        assert isinstance(limiter, sw.Queue) or len(seen) <= limiter.ratio * (store.total_steps) + limiter.error_buffer
        assert len(replay) <= batch + rows


def test_a_view_made_late_counts_what_is_held_and_a_view_that_is_dropped_limits_nothing() -> None:
    with number_store(capacity=20, segment_steps=2) as store:
        append(store, 30)
        replay = store.transitions(limiter=sw.SamplesPerInsert(1.0, 10, 15))
        with pytest.raises(sw.LimiterTimeoutError, match=f"{len(store) + 15 - (len(store) - 10)} inserts"):
            for _ in range(100):
                try_append(store)
        del replay
        for _ in range(50):
            try_append(store)


def test_several_limited_views_hold_the_writer_by_the_slowest() -> None:
    with number_store() as store:
        fast = store.transitions(limiter=sw.SamplesPerInsert(1.0, 1, 5))
        slow = store.transitions(limiter=sw.SamplesPerInsert(1.0, 1, 2))
        append(store, 3)
        fast.sample(4)
        with pytest.raises(sw.LimiterTimeoutError, match="error_buffer=2"):
            try_append(store)
        slow.sample(1)
        try_append(store)


# counters stay exact


def test_what_fails_or_is_interrupted_moves_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    with number_store() as store:
        replay = store.transitions(limiter=sw.SamplesPerInsert(1.0, 2, 4))

        def fail(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        append(store, 4)
        for _ in range(10):
            with pytest.raises(ValueError):
                store.append(obs=1, action=1, reward=float("nan"), terminated=True, truncated=False)
            for owner, name, work in (
                (BatchSource, "fill", lambda: replay.sample(2)),
                (store._log, "write", lambda: try_append(store)),
                (store._gate._changed, "wait", lambda: replay.sample(7)),
            ):
                with monkeypatch.context() as patched:
                    patched.setattr(owner, name, fail)
                    with pytest.raises(KeyboardInterrupt):
                        work()
        with pytest.raises(sw.LimiterTimeoutError, match="4 inserts, 0 samples"):
            replay.sample(7, timeout=0)
        assert len(replay.sample(6, timeout=0)) == 6
        assert store.stats()["sample_waits"] == 11


# threads


@pytest.mark.parametrize(("ratio", "rows", "batch"), [(4.0, 2, 16), (1.0, 4, 8), (0.25, 8, 3)])
def test_two_threads_keep_the_ratio_all_the_way(ratio: float, rows: int, batch: int) -> None:
    error_buffer = (batch + ratio * rows) / 2  # the least with which neither waits for the other
    with number_store(capacity=100) as store:
        limiter = sw.SamplesPerInsert(ratio, 20, error_buffer)
        replay = store.transitions(limiter=limiter)
        steps = 20 + rows * 150
        seen: list[float] = []
        samples = [0]

        def write() -> None:
            while store.total_steps < steps:
                try_append(store, timeout=30.0, count=rows)

        def learn() -> None:
            while samples[0] < ratio * (steps - 20) - error_buffer:  # else the writer waits
                replay.sample(batch, timeout=30.0)
                with store._lock:
                    samples[0] += batch
                    seen.append(ratio * (store.total_steps - 20) - samples[0])

        run_all(write, learn)
        assert min(seen) >= -error_buffer - 1e-9
        assert max(seen) <= error_buffer + 1e-9
        assert store.stats()["append_waits"] + store.stats()["sample_waits"] > 0


def test_a_reader_is_woken_by_the_step_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiters, "LOOK_S", 60.0)  # it does not look by itself
    with number_store() as store:
        replay = store.transitions(limiter=sw.MinSize(3))
        append(store, 2)
        woken = []

        def read() -> None:
            replay.sample(2, timeout=30.0)
            woken.append(time.monotonic())

        def write() -> None:
            while not store.stats()["sample_waits"]:
                time.sleep(0.001)
            append(store, 1)
            woken.append(time.monotonic())

        run_all(read, write)
        assert abs(woken[0] - woken[1]) < 15.0  # not when its time was over


def test_windows_that_begin_every_few_steps_starve_nobody() -> None:
    """20 steps long, one in 10 steps begins one: a sample for each step, as the limiter asks, is not to be had."""
    with number_store(capacity=5000) as store:
        replay = store.sequences(20, stride=10, max_times_sampled=1, limiter=sw.SamplesPerInsert(1.0, 1, 100))
        windows = [0]

        def write() -> None:
            for _ in range(501):
                try_append(store, timeout=30.0, ends=False)

        def learn() -> None:
            for _ in range(12):
                windows[0] += len(replay.sample(4, timeout=30.0))

        run_all(write, learn)
        assert windows[0] == 48 and len(replay) == 1  # of 49, the last begins at step 480


def test_a_writer_is_woken_by_the_batch_that_needs_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiters, "LOOK_S", 60.0)  # it does not look by itself
    with number_store() as store:
        replay = store.transitions(max_times_sampled=1, limiter=sw.SamplesPerInsert(1.0, 1, 4))
        append(store, 5)

        def write() -> None:
            try_append(store, timeout=30.0)

        def read() -> None:
            while not store.stats()["append_waits"]:
                time.sleep(0.001)
            assert len(replay.sample(6, timeout=30.0)) == 6

        run_all(read, write)


def test_closing_ends_the_waits() -> None:
    others = set(threading.enumerate())
    store = number_store()
    replay = store.transitions(limiter=sw.SamplesPerInsert(1.0, 2, 2))
    append(store, 4)

    def write() -> None:
        with pytest.raises(ValueError, match="closed"):
            append(store, 1)

    def close() -> None:
        while not store.stats()["append_waits"]:
            time.sleep(0.001)
        store.close()

    run_all(write, close)
    assert store.total_steps == 4 and len(replay) == 4
    assert set(threading.enumerate()) <= others


# arguments


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sw.MinSize(0), "MinSize: size=0"),
        (lambda: sw.MinSize(1.5), "size=1.5"),  # type: ignore[arg-type]
        (lambda: sw.Queue(-1), "Queue: size=-1"),
        (lambda: sw.SamplesPerInsert(0.0, 1, 1), "ratio=0.0"),
        (lambda: sw.SamplesPerInsert(float("nan"), 1, 1), "ratio=nan"),
        (lambda: sw.SamplesPerInsert(1.0, 0, 1), "min_size=0"),
        (lambda: sw.SamplesPerInsert(1.0, 1, 0.5), r"error_buffer=0.5.*at least 1"),
        (lambda: sw.SamplesPerInsert(8.0, 1, 4), r"error_buffer=4.*at least 8"),
    ],
)
def test_limiters_that_make_no_sense(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"limiter": "queue"}, "limiter='queue'"),
        ({"limiter": sw.MinSize}, "limiter="),
        ({"limiter": sw.MinSize(201)}, "size=201.*capacity is 200"),
        ({"limiter": sw.SamplesPerInsert(1.0, 201, 9)}, "min_size=201.*capacity is 200"),
        ({"limiter": sw.Queue(5)}, "max_times_sampled"),
        ({"limiter": sw.Queue(201), "max_times_sampled": 1}, "size=201.*capacity is 200"),
        ({"limiter": sw.SamplesPerInsert(3.0, 1, 9), "max_times_sampled": 2}, "max_times_sampled=2"),
    ],
)
def test_limiters_that_do_not_fit_the_store(arguments: dict[str, Any], says: str) -> None:
    with number_store() as store, pytest.raises((ValueError, TypeError)) as caught:
        store.transitions(**arguments)
    assert re.search(says, str(caught.value))


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf"), "soon", True])
def test_a_timeout_that_makes_no_sense(timeout: Any) -> None:
    with number_store() as store:
        append(store, 1)
        replay = store.transitions()
        with pytest.raises(ValueError, match="timeout="):
            replay.sample(1, timeout=timeout)
        with pytest.raises(ValueError, match="timeout="):
            try_append(store, timeout)
        assert store.total_steps == 1
