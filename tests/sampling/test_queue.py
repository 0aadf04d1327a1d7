"""Queues: every step, or window, is given out so many times and in order, or the writer waits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.sampling.test_limiters import try_append
from tests.sampling.test_samplers import append, number_store
from tests.store.test_threads import run_all


def test_a_queue_holds_so_many_and_gives_each_once_in_order() -> None:
    with number_store(capacity=40, segment_steps=2) as store:
        replay = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(10))
        seen: list[int] = []
        for _ in range(20):
            while store.total_steps - len(seen) < 10:
                try_append(store)
            with pytest.raises(sw.LimiterTimeoutError, match=r"room for 0: the learner"):
                try_append(store)
            seen += replay.sample(7, timeout=0).action.tolist()
            with pytest.raises(sw.LimiterTimeoutError, match=r"8 samples find 3 uses.*the writer"):
                replay.sample(8, timeout=0)
        assert seen == list(range(140))


@pytest.mark.parametrize("size", [10, 11])
@pytest.mark.parametrize("max_times_sampled", [1, 2])
def test_a_batch_larger_than_a_queue_lets_it_grow(size: int, max_times_sampled: int) -> None:
    with number_store() as store:
        replay = store.transitions(max_times_sampled=max_times_sampled, limiter=sw.Queue(size))
        larger = size * max_times_sampled + 1
        append(store, size)
        with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample"):
            try_append(store)
        with pytest.raises(sw.LimiterTimeoutError, match="the writer has to append"):
            replay.sample(larger, timeout=0)
        try_append(store)
        assert len(replay.sample(larger, timeout=0)) == larger


def test_a_batch_larger_than_the_memory_opens_no_queue() -> None:
    """No appends would fill it: they evicted steps that nobody had sampled."""
    with number_store(capacity=64) as store:
        replay = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(10))
        with pytest.raises(sw.LimiterTimeoutError, match="the store never holds as many"):
            replay.sample(65, timeout=0)
        append(store, 10)
        with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample"):
            try_append(store)
        assert replay.sample(10).action.tolist() == list(range(10))


@pytest.mark.parametrize("batch_size", [11, 100])
def test_a_queue_evicts_no_window_that_was_not_sampled(batch_size: int) -> None:
    """Ten windows fit into the memory: no batch of more is ever found, however many steps are appended."""
    with number_store(capacity=100, segment_steps=5) as store:
        queue = store.sequences(10, sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(4))

        def fill() -> None:
            for _ in range(200):
                step = store.total_steps
                store.append(obs=step, action=step, reward=0.0, terminated=step % 10 == 9, truncated=False, timeout=0)

        with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample"):
            fill()
        with pytest.raises(sw.LimiterTimeoutError, match="the writer has to append"):
            queue.sample(batch_size, timeout=0)
        with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample"):
            fill()
        assert store.total_steps == 100
        with pytest.raises(sw.LimiterTimeoutError, match=r"the store is full.*use a smaller batch_size"):
            queue.sample(batch_size, timeout=0)
        taken = []
        for _ in range(8):
            taken += queue.sample(5).action[:, 0].tolist()
            with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample"):
                fill()
        assert taken == list(range(0, 400, 10))


def test_a_queue_evicts_no_burn_in_of_a_window_that_was_not_sampled() -> None:
    """Episodes of 40 steps: evicting one segment drops the windows of the next two, whose burn-in reaches into it."""
    with number_store(capacity=100, segment_steps=5) as store:
        queue = store.sequences(10, burn_in=10, sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(4))
        taken: list[int] = []
        for _ in range(60):
            with pytest.raises(sw.LimiterTimeoutError):
                for _ in range(300):
                    step = store.total_steps
                    ends = step % 40 == 39
                    store.append(obs=step, action=step, reward=0.0, terminated=ends, truncated=False, timeout=0)
            with pytest.raises(sw.LimiterTimeoutError):
                queue.sample(50, timeout=0)
            taken += queue.sample(1, timeout=0).action[:, 10].tolist()
        assert taken == list(range(0, 600, 10))


def test_other_samplers_let_a_queue_grow_beyond_the_capacity() -> None:
    """A batch of 60 that 16 windows give 64 times in all: with windows used in any order, old ones have uses left."""
    with number_store(capacity=200, segment_steps=5) as store:
        queue = store.sequences(4, max_times_sampled=4, limiter=sw.Queue(16))
        for step in range(600):
            waits = 0
            rows = {"obs": np.full(8, step), "action": np.full(8, step), "reward": np.zeros(8)}
            try:
                store.extend(**rows, terminated=np.full(8, step % 20 == 19), truncated=np.zeros(8, bool), timeout=0)
            except sw.LimiterTimeoutError:
                waits += 1
            try:
                queue.sample(60, timeout=0)
            except sw.LimiterTimeoutError:
                waits += 1
            assert waits < 2


def test_a_queue_between_several_writers_and_readers_loses_and_repeats_nothing() -> None:
    with number_store(capacity=64, segment_steps=2) as store:
        replay = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(16))
        seen: list[list[int]] = [[], []]
        longest = [0]

        def writer(lane: int) -> Any:
            def work() -> None:
                for k in range(400):
                    number = lane * 1000 + k
                    store.append(lane=lane, obs=number, action=number, reward=0.0, terminated=True, truncated=False)
                    longest[0] = max(longest[0], len(replay))

            return work

        def reader(mine: list[int]) -> Any:
            def work() -> None:
                for _ in range(100):
                    mine.extend(replay.sample(4).copy().action.tolist())

            return work

        run_all(writer(0), writer(1), reader(seen[0]), reader(seen[1]))
        assert Counter(seen[0] + seen[1]) == dict.fromkeys([*range(400), *range(1000, 1400)], 1)
        assert longest[0] <= 16
        for mine in seen:
            for lane in (0, 1):
                numbers = [number for number in mine if number // 1000 == lane]
                assert numbers == sorted(numbers)


def fill_up(store: sw.Store, episode: int = 1) -> None:
    """Append until the writer has to wait: step k is of episode ``k // episode``."""
    with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample"):
        while True:
            k = store.total_steps
            ends = k % episode == episode - 1
            store.append(obs=k, action=k, reward=0.0, terminated=ends, truncated=False, timeout=0)


@pytest.mark.parametrize(("lookahead", "batch_size"), [(0, 16), (1, 5), (8, 16), (4, 30)])
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_a_stream_drew_ahead_is_not_evicted(lookahead: int, batch_size: int, on_disk: bool, tmp_path: Any) -> None:
    """It counts as sampled, and would otherwise leave before it is given out, and others take its place."""
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    disk = tmp_path / "store" if on_disk else None
    with sw.Store(spec, capacity=90, segment_steps=8, disk=disk) as store:
        queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(64))
        stream, taken = queue.stream(batch_size, lookahead=lookahead, timeout=0), []
        for _ in range(40):
            fill_up_or_wait(store)
            taken += next(stream).action.tolist()
        assert taken == list(range(40 * batch_size))


def test_a_stream_that_is_dropped_holds_nothing_back() -> None:
    with number_store(capacity=90, segment_steps=8) as store:
        queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(64))
        fill_up(store)
        stream = queue.stream(8, lookahead=5)
        assert next(stream).action[0] == 0
        del stream
        fill_up(store)
        assert queue.sample(8).action[0] == 8  # the five batches drawn ahead can be drawn again


def test_the_capacity_holds_the_writer_where_the_queue_is_not_full() -> None:
    """Room for six windows, or for 64 steps of which the last isn't known yet."""
    with number_store(capacity=60, segment_steps=5) as store:
        queue = store.sequences(10, sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(8))
        taken: list[int] = []
        for _ in range(30):
            fill_up(store, episode=10)
            taken += queue.sample(3, timeout=0).action[:, 0].tolist()
        assert taken == list(range(0, 900, 10))
    with number_store(capacity=64, segment_steps=4) as store:
        steps = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(64))
        fill_up(store, episode=1000)
        assert store.total_steps == 64 and steps.sample(63, timeout=0).action.tolist() == list(range(63))


@pytest.mark.parametrize("size", [8, 31])
def test_a_queue_of_windows_counts_windows_whatever_the_lanes(size: int) -> None:
    """Sixteen lanes append sixteen steps at a time, and make sixteen windows every twenty."""
    with number_store(capacity=10_000) as store:
        queue = store.sequences(20, sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(size))
        taken: list[int] = []
        for _ in range(30):
            with pytest.raises(sw.LimiterTimeoutError, match=r"windows wait.*windows to sample"):
                while True:
                    try_append(store, count=16, ends=False)
            assert size <= len(queue) < size + 16
            taken += queue.sample(4, timeout=0).action.ravel().tolist()
        assert len(set(taken)) == len(taken) == 30 * 4 * 20


@pytest.mark.parametrize("lookahead", [0, 1, 4, 8])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_batch_that_is_being_made_is_not_evicted(
    lookahead: int, on_disk: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is free while its segments are read: a writer may append then. This one appends all it can."""
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    disk = tmp_path / "store" if on_disk else None
    with sw.Store(spec, capacity=90, segment_steps=8, disk=disk) as store:
        queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(64))
        stream: Any = queue.stream(16, lookahead=lookahead, timeout=0)
        wait_for, taken = stream._ahead[0].wait_for, []

        def wait_and_fill(one: Any) -> None:
            wait_for(one)
            fill_up_or_wait(store)

        monkeypatch.setattr(stream._ahead[0], "wait_for", wait_and_fill)
        fill_up_or_wait(store)
        for _ in range(40):
            taken += next(stream).action.tolist()
            fill_up_or_wait(store)
        assert taken == list(range(40 * 16))


def fill_up_or_wait(store: sw.Store) -> None:
    """Append until the writer has to wait, for whatever."""
    with pytest.raises(sw.LimiterTimeoutError):
        while True:
            k = store.total_steps
            store.append(obs=k, action=k, reward=0.0, terminated=True, truncated=False, timeout=0)


def test_threads_that_write_and_stream_lose_nothing() -> None:
    with number_store(capacity=90, segment_steps=8) as store:
        queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(64))
        taken: list[int] = []

        def write() -> None:
            for k in range(2000):
                store.append(obs=k, action=k, reward=0.0, terminated=True, truncated=False)

        def learn() -> None:
            stream = queue.stream(16, lookahead=4)
            while len(taken) < 2000:
                taken.extend(next(stream).action.tolist())

        run_all(write, learn)
        assert taken == list(range(2000))


def test_a_stream_that_is_not_used_says_so_and_lets_go_when_closed() -> None:
    with number_store(capacity=200, segment_steps=8) as store:
        queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(64))
        fill_up_or_wait(store)
        stream = queue.stream(8, lookahead=4)
        next(stream)
        with pytest.raises(sw.LimiterTimeoutError, match=r"a stream has drawn ahead: go on with it, or close\(\) it"):
            for _ in range(100):
                fill_up_or_wait(store)
                queue.sample(8, timeout=0)
        with pytest.raises(sw.LimiterTimeoutError, match=r"a stream has drawn ahead: go on with it, or close\(\) it"):
            store.append(obs=0, action=0, reward=0.0, terminated=True, truncated=False, timeout=0)
        stream.close()
        for _ in range(20):
            fill_up_or_wait(store)
            queue.sample(8, timeout=0)
