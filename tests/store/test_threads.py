"""Trap 18: real threads write, sample and update at once; whatever they see is one consistent store."""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

TIMEOUT_S = 60.0
EPISODE = 17
LANE = 1_000_000  # serial = lane * LANE + number in the lane


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_all(*works: Callable[[], None]) -> None:
    """Run each in its own thread; fail with every thread's stack if one does not come back, or with the first error."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            gate.wait(TIMEOUT_S)
            work()
        except BaseException as error:  # told to the test below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        with tempfile.TemporaryFile("w+") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
            stacks.seek(0)
            pytest.fail(f"threads are stuck after {TIMEOUT_S:g} s:\n{stacks.read()}")
    if errors:
        raise errors[0]


def make_store(capacity: int, codec: str = "auto") -> sw.Store:
    spec = sw.Spec(
        obs=sw.Field((40,), "int32", stack=3),
        action=sw.Field((), "int64"),
        serial=sw.Field((), "int64"),
    )
    return sw.Store(spec, capacity=capacity, segment_steps=8, codec=codec, seed=1)


def observation(lane: int, mark: int) -> Any:
    obs = np.zeros(40, np.int32)
    obs[:3] = lane, mark, lane * 7 + mark
    return obs


def append(store: sw.Store, lane: int, k: int) -> None:
    """Step k of a lane shows 2 k; an episode is cut off after 17, its final observation shows an odd number."""
    last = k % EPISODE == EPISODE - 1
    store.append(
        lane=lane,
        obs=observation(lane, 2 * k),
        action=k,
        reward=1.0,
        terminated=False,
        truncated=last,
        final_obs=observation(lane, 2 * k + 1) if last else None,
        serial=lane * LANE + k,
    )


def check(batch: Any) -> None:
    lane, k = np.divmod(batch["serial"], LANE)
    np.testing.assert_array_equal(batch.action, k)
    into = k % EPISODE
    for back in range(3):  # the stack: this step's frame, and those before it in the episode
        before = np.minimum(back, into)
        assert (batch.obs[:, 2 - back, 0] == lane).all()
        np.testing.assert_array_equal(batch.obs[:, 2 - back, 1], 2 * (k - before))
        np.testing.assert_array_equal(batch.obs[:, 2 - back, 2], lane * 7 + 2 * (k - before))
    np.testing.assert_array_equal(batch.next_obs[:, 2, 1], np.where(into == EPISODE - 1, 2 * k + 1, 2 * k + 2))
    np.testing.assert_array_equal(batch.next_obs[:, 1], batch.obs[:, 2])
    assert (batch.discount == 0.5).all() and (batch.reward == 1).all()
    # what was fetched by its id was not drawn, and says so
    assert np.isfinite(batch.weights).all() and not (batch.probabilities <= 0).any()


@pytest.mark.parametrize("codec", ["raw", "zstd", "delta"])
def test_trap_18_writers_samplers_and_updaters_at_once(codec: str) -> None:
    with make_store(capacity=200, codec=codec) as store:
        for lane in range(3):
            for k in range(20):
                append(store, lane, k)
        done = threading.Event()
        left = [3]
        count = threading.Lock()

        def write(lane: int) -> Callable[[], None]:
            def work() -> None:
                try:
                    for k in range(20, 500):
                        append(store, lane, k)
                finally:
                    with count:
                        left[0] -= 1
                        if left[0] == 0:
                            done.set()

            return work

        def learn(sampler: Any, n: int) -> Callable[[], None]:
            replay = store.transitions(gamma=0.5, sampler=sampler, seed=n)

            def work() -> None:
                rng = np.random.default_rng(n)
                rounds = 0
                while rounds < 40 or not done.is_set():
                    batch = replay.sample(int(rng.integers(1, 40)))
                    check(batch)
                    if isinstance(sampler, sw.Prioritized):
                        stale = replay.update_priorities(batch.ids, rng.random(len(batch.ids)))
                        assert 0 <= stale <= len(batch.ids)
                    rounds += 1

            return work

        def look() -> None:
            while not done.is_set():
                assert 0 < len(store) <= 200
                stats = store.stats()
                assert stats["steps"] <= 200
                time.sleep(0.001)

        learners = [learn(sw.Uniform(), 1), learn(sw.Prioritized(), 2), learn(sw.Prioritized(), 3)]
        run_all(write(0), write(1), write(2), *learners, look)
        assert store.total_steps == 1500
        replay = store.transitions(gamma=0.5)
        check(replay.fetch(replay.sampleable_ids()))


def test_trap_18_priorities_that_come_late_from_another_thread_go_to_their_own_steps() -> None:
    """One samples, another updates what it was handed, a third writes so much that many ids are stale by then."""
    with make_store(capacity=100) as store:
        for k in range(60):
            append(store, 0, k)
        replay = store.transitions(gamma=0.5, sampler=sw.Prioritized(alpha=1.0, beta=0.0, eps=1e-12), seed=2)
        handed: list[tuple[Any, Any]] = []
        finished = threading.Event()
        stale = [0]

        def write() -> None:
            for k in range(60, 900):
                append(store, 0, k)

        def sample() -> None:
            for _ in range(150):
                batch = replay.sample(16)
                check(batch)
                # odd steps are worth nothing, so that once updated they must not come again
                handed.append((batch.ids.copy(), np.where(batch["serial"] % 2 == 1, 0.0, 1.0)))
            finished.set()

        def update() -> None:
            while not finished.is_set() or handed:
                if not handed:
                    time.sleep(0.0002)
                    continue
                ids, errors = handed.pop(0)
                stale[0] += replay.update_priorities(ids, errors)

        run_all(write, sample, update)
        ids = replay.sampleable_ids()
        serials = replay.fetch(ids)["serial"]
        replay.update_priorities(ids, np.where(serials % 2 == 1, 0.0, 1.0))
        for _ in range(10):
            assert (replay.sample(64)["serial"] % 2 == 0).all()


def test_trap_18_views_are_made_and_dropped_while_others_write() -> None:
    with make_store(capacity=100) as store:
        for k in range(40):
            append(store, 0, k)

        def write() -> None:
            for k in range(40, 700):
                append(store, 0, k)

        def come_and_go() -> None:
            for n in range(25):
                replay = store.transitions(gamma=0.5, sampler=sw.Prioritized() if n % 2 else sw.Uniform())
                for _ in range(3):
                    check(replay.sample(8))

        run_all(write, come_and_go, come_and_go)
        replay = store.transitions(gamma=0.5)
        assert len(replay) == len(store) - 1 or len(replay) == len(store)
        check(replay.fetch(replay.sampleable_ids()))


def test_trap_18_closing_while_others_work_refuses_their_writes_and_breaks_nothing() -> None:
    store = make_store(capacity=100)
    for k in range(40):
        append(store, 0, k)
    replay = store.transitions(gamma=0.5)
    closed = threading.Event()

    def write() -> None:
        with pytest.raises((ValueError, RuntimeError), match="closed"):
            for k in range(40, 1_000_000):
                append(store, 0, k)

    def sample() -> None:
        while not closed.is_set():
            try:
                check(replay.sample(8))
            except (ValueError, RuntimeError) as error:
                assert "closed" in str(error)  # either way is fine

    def close() -> None:
        time.sleep(0.05)
        store.close()
        closed.set()

    run_all(write, sample, close)
