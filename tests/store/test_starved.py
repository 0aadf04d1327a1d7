"""Processes that get no more memory, no more threads or no more descriptors: an error or less speed, and no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.log.admission import Admission
from sharpwave.sampling.sampler_protocol import Sampler
from sharpwave.views import gather

PLAY = """
import os, resource, sys, threading
import numpy as np
import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((64,), "uint8"), action=sw.Field((), "int64"))

def made(folder, **settings):
    disk = {"disk": folder, "ram": "64MiB"} if folder else {}
    store = sw.Store(SPEC, segment_steps=16, codec="raw", seed=1, **disk, **settings)
    return store, store.transitions(sampler=sw.Prioritized())

def pixels(steps):
    return (np.asarray(steps)[:, None] * np.arange(1, 65) >> 3).astype(np.uint8)

def append(store, count):
    for k in range(store.total_steps, store.total_steps + count):
        store.append(obs=pixels([k])[0], action=k, reward=k % 7, terminated=False, truncated=False)

def look(store, view):
    if store._log.segment_cache is not None:
        while store._log.segment_cache.uncache_chunk():
            pass
    batch = view.fetch(view.sampleable_ids())
    assert np.array_equal(batch.obs, pixels(batch.action)) and np.array_equal(batch.reward, batch.action % 7)
    assert np.array_equal(batch.next_obs, pixels(batch.action + 1))
    newest = store.total_steps - 1
    assert sorted(batch.action.tolist()) == list(range(newest - len(batch.action), newest))
    assert store.capacity - 16 <= len(store) <= store.capacity and len(batch.action) == len(store) - 1
"""

SIZE = """
def size():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
"""

ENDS = """
LANES, NBYTES = 1000, 4096
SPEC = sw.Spec(obs=sw.Field((NBYTES,), "uint8"), action=sw.Field((), "int64"))

def frames(steps):
    return np.repeat(np.asarray(steps, np.int64)[:, None], NBYTES // 8, axis=1).view(np.uint8)

def rows(turn):
    steps = turn * LANES + np.arange(LANES)
    return dict(
        obs=frames(steps), action=steps, reward=np.zeros(LANES), terminated=np.zeros(LANES, bool),
        truncated=np.full(LANES, turn % 4 == 3), final_obs=frames(steps + 7),
    )

warm, _ = made("", capacity=100)
for turn in range(40):  # a kernel that is loaded under a limit would end the process
    few = {name: values[:2] for name, values in rows(turn).items()}
    warm.extend(**few, next_obs=few["final_obs"] if turn > 20 else None)
store, view = made(sys.argv[1] and sys.argv[1] + "/store", capacity=12 * LANES)
for turn in range(5):
    store.extend(**rows(turn))
before = resource.getrlimit(resource.RLIMIT_AS)
for turn in range(5, 9):
    step = rows(turn)
    resource.setrlimit(resource.RLIMIT_AS, (size() + (1 << 20), before[1]))  # final observations are 4 MB
    try:
        store.extend(**step, timeout=60)  # the way of the steps that need more than the core's Appender does
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
assert store.total_steps == 9 * LANES
ids = view.sampleable_ids()
assert len(ids) == 8 * LANES
for part in np.array_split(ids, 8):
    batch = view.fetch(part)
    assert np.array_equal(batch.obs, frames(batch.action))
    ended = batch.action // LANES % 4 == 3
    assert np.array_equal(batch.next_obs, frames(batch.action + np.where(ended, 7, LANES)))
store.close()
"""

GROWS = """
def grow(folder, limits):
    store, view = made(folder, capacity=1000)
    append(store, 1100)
    look(store, view)
    before = resource.getrlimit(resource.RLIMIT_AS)
    refused = 0
    for more in limits:
        resource.setrlimit(resource.RLIMIT_AS, (size() + more, before[1]))
        try:
            store.resize(capacity=5_000_000)
            break
        except MemoryError:
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        assert store.capacity == 1000
        append(store, 70)
        look(store, view)
    else:
        raise AssertionError("the largest limit is too small for this test")
    store.resize(capacity=1200)
    append(store, 1300)
    look(store, view)
    store.close()
    return refused

folder = sys.argv[1]
grow(folder and folder + "/warm", [1 << 34])  # a kernel that is loaded under a limit would end the process
assert grow(folder and folder + "/store", [int(1.15**k) << 20 for k in range(8, 60)]) > 20
"""

NO_THREADS = """
store, view = made(sys.argv[1] and sys.argv[1] + "/store", capacity=1000)
append(store, 1100)
descriptors = len(os.listdir("/proc/self/fd"))
threading.stack_size(1 << 46)  # there is no room for the stack of a thread
for _ in range(3):
    look(store, view)
    view.sample(1 << 16)
assert threading.active_count() == 1 and len(os.listdir("/proc/self/fd")) == descriptors
threading.stack_size(0)
look(store, view)
store.close()
"""


def run(script: str, folder: Path | None) -> None:
    """In a process of its own, which asks the system for whatever is large, and gives it back."""
    command = [sys.executable, "-W", "error", "-c", PLAY + SIZE + script, str(folder or "")]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited there")
@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_a_store_that_gets_no_memory_to_grow_stays_as_it_was(tmp_path: Path, disk: bool) -> None:
    run(GROWS, tmp_path if disk else None)


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited there")
def test_steps_that_end_episodes_take_no_memory_for_final_observations() -> None:
    run(ENDS, None)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted there")
@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_batches_are_drawn_where_no_thread_can_be_started(tmp_path: Path, disk: bool) -> None:
    run(NO_THREADS, tmp_path if disk else None)


def test_a_uniform_view_takes_what_its_steps_need_and_not_what_the_capacity_would() -> None:
    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=100_000_000)
    view = store.transitions(max_times_sampled=1)
    for k in range(200):
        store.append(obs=np.full(4, k), action=k, reward=0.0, terminated=False, truncated=False)
    view.sample(100)
    assert store.stats()["bytes"]["samplers"] < 100_000


class Refusing(sw.Uniform):
    """Has no memory every third time that a segment leaves."""

    calls = 0

    def remove(self, slot: int) -> None:
        self.calls += 1
        if self.calls % 3 == 1:
            raise MemoryError
        super().remove(slot)


@pytest.mark.parametrize("first", [False, True], ids=["last view", "first view"])
@pytest.mark.parametrize("retention", [sw.Fifo(), sw.Reservoir(3)], ids=["fifo", "reservoir"])
def test_a_segment_that_a_view_had_no_memory_to_forget_leaves_all_the_same(retention: Any, first: bool) -> None:
    spec = sw.Spec(obs=sw.Field((4,), "int64", stack=2), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=200, segment_steps=8, codec="raw", retention=retention)
    samplers: list[Sampler] = [Refusing(), sw.Prioritized()]
    views = [store.transitions(sampler=one) for one in (samplers if first else samplers[::-1])]
    refused = 0
    for k in range(0, 900, 3):
        steps = k + np.arange(3)
        row: dict[str, Any] = {"obs": np.repeat(steps[:, None], 4, axis=1), "action": steps, "reward": steps}
        for _ in range(9):
            try:
                store.extend(**row, terminated=steps % 23 == 22, truncated=np.zeros(3, bool))
                break
            except MemoryError:
                refused += 1
    assert refused > 10 and store.total_steps == 900 and 170 < len(store) <= 200
    for view in (*views, store.transitions()):
        batch = view.fetch(view.sampleable_ids())
        steps = np.asarray(batch.action)
        assert len(view) == len(set(steps.tolist())) == len(steps) > 160
        assert np.array_equal(batch.obs[:, 1, 0], steps) and np.array_equal(batch.reward, steps)
        goes_on = steps % 23 != 22
        assert np.array_equal(batch.next_obs[goes_on, 1, 0], steps[goes_on] + 3)
        if isinstance(retention, sw.Fifo):
            assert steps.min() > 690, "the newest are held, and no others"


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_a_segment_is_sealed_once_where_there_is_no_memory_to_open_the_next(
    disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sw.Spec(obs=sw.Field((4,), "int64"), action=sw.Field((), "int64"))
    on_disk: dict[str, Any] = {"disk": tmp_path, "ram": "16MiB"} if disk else {}
    store = sw.Store(spec, capacity=200, segment_steps=8, codec="raw", **on_disk)
    view, calls = store.transitions(n_step=2), 0

    def refuse(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def refusing(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 3 == 1:
                raise MemoryError
            return method(*args)

        monkeypatch.setattr(owner, name, refusing)

    refuse(Admission, "take_slot")
    store._log.sealing.turnover = store._log.admission.release = (
        None  # which take slots in the core (test_no_memory.py)
    )
    for k in range(500):
        for _ in range(3):
            try:
                store.append(obs=np.full(4, k), action=k, reward=k, terminated=k % 23 == 22, truncated=False)
                break
            except MemoryError:
                assert store.total_steps == k
    assert store.total_steps == 500 and len(store) > 190 and calls > 60
    batch = view.fetch(view.sampleable_ids())
    steps = np.sort(batch.action)
    assert np.array_equal(steps, np.arange(steps[0], steps[-1] + 1)) and len(steps) > 185
    assert np.array_equal(batch.obs[:, 0], batch.action)


class RefusingToExclude(sw.Uniform):
    """Has no memory every third time that steps leave before their segment."""

    calls = 0

    def exclude(self, items: Any) -> Any:
        self.calls += 1
        if self.calls % 3 == 1:
            raise MemoryError
        return super().exclude(items)


@pytest.mark.parametrize("most", [None, 50], ids=["any number of times", "50 times"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mixture"])
def test_steps_that_reach_into_an_evicted_segment_go_though_there_was_no_memory_for_it(
    mixed: bool, most: int | None
) -> None:
    spec = sw.Spec(obs=sw.Field((4,), "int64"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=400, segment_steps=8, codec="raw", retention=sw.Reservoir(3))
    refusing = RefusingToExclude()
    sampler = sw.Mixture([(0.5, sw.Prioritized()), (0.5, refusing)]) if mixed else refusing
    view = store.transitions(sampler=sampler, n_step=3, max_times_sampled=most)
    refused = 0
    for k in range(1200):
        for _ in range(9):
            try:
                store.append(obs=np.full(4, k), action=k, reward=k, terminated=k % 23 == 22, truncated=False)
                break
            except MemoryError:
                refused += 1
        len(view)
    assert refused > 5 and refusing.calls > 2 * refused
    ids = view.sampleable_ids()
    sampled = view.fetch(ids).action
    assert refusing._tree is not None
    assert len(ids) == len(view) == refusing._tree.sums.total > 300
    for _ in range(20):
        batch = view.sample(64)
        assert np.isin(batch.action, sampled).all()
        steps = np.asarray(batch.action)
        summed = np.minimum(3, 23 - steps % 23)  # as far as the episode goes
        expected = [sum(0.99**i * (step + i) for i in range(n)) for step, n in zip(steps, summed, strict=True)]
        assert np.allclose(batch.reward, expected)


def test_a_store_that_grew_is_read_where_it_lies_now_though_there_was_no_memory_to_say_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = sw.Spec(obs=sw.Field((64,), "int64"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=400, segment_steps=8)
    view = store.transitions()

    def append(count: int) -> None:
        for k in range(store.total_steps, store.total_steps + count):
            store.append(obs=np.arange(k, k + 64), action=k, reward=k, terminated=False, truncated=False)

    append(400)
    view.sample(8)
    calls, made = 0, gather.make_arrays

    def refusing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 4 < 2:
            raise MemoryError
        return made(*arguments)

    monkeypatch.setattr(gather, "make_arrays", refusing)
    for capacity in (40_000, 400_000):
        store.resize(capacity=capacity)
        append(50)
        for _ in range(4):
            try:
                batch = view.sample(64)
            except MemoryError:
                continue
            assert np.array_equal(batch.obs, batch.action[:, None] + np.arange(64))
    assert calls > 4
    monkeypatch.undo()
    batch = view.sample(64)
    assert np.array_equal(batch.obs, batch.action[:, None] + np.arange(64))


def refusing_to_insert(kind: type[Any]) -> Any:
    """A sampler of that kind that has no memory two times of three that steps come."""

    class RefusingToInsert(kind):
        calls, refuses = 0, True

        def insert(self, *runs: Any) -> None:
            self.calls += 1
            if self.refuses and self.calls % 3:
                raise MemoryError
            super().insert(*runs)

    return RefusingToInsert()


@pytest.mark.parametrize(
    "kind", [sw.Uniform, sw.Prioritized, sw.RankPrioritized, sw.Fifo], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mixture"])
@pytest.mark.parametrize("most", [None, 50], ids=["any number of times", "50 times"])
def test_steps_come_to_a_view_though_there_was_no_memory_for_them(kind: Any, mixed: bool, most: int | None) -> None:
    spec = sw.Spec(obs=sw.Field((4,), "int64"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=200, segment_steps=8, codec="raw")
    refusing = refusing_to_insert(kind)
    sampler = sw.Mixture([(0.5, sw.Lifo()), (0.5, refusing), (1, sw.Uniform())]) if mixed else refusing
    view, refused = store.transitions(sampler=sampler, max_times_sampled=most), 0
    for k in range(900):
        for _ in range(9):
            before = store.total_steps
            try:
                store.append(obs=np.full(4, k), action=k, reward=k, terminated=k % 23 == 22, truncated=False)
                break
            except MemoryError:
                assert store.total_steps == before
                refused += 1
        if k % 7 == 6:
            for _ in range(9):
                try:
                    view.sample(4)
                    break
                except MemoryError:
                    refused += 1
    assert store.total_steps == 900 and refused > 20
    refusing.refuses = False
    ids = view.sampleable_ids()
    steps = set(view.fetch(ids).action.tolist())
    assert len(view) == len(ids) == len(steps) > (180 if most is None else 100)
    if kind is not sw.Fifo:
        assert set(np.concatenate([view.sample(64).action for _ in range(60)]).tolist()) <= steps
    if kind is not sw.Fifo and most is None:
        assert len(set(np.concatenate([view.sample(64).action for _ in range(60)]).tolist())) > 0.9 * len(steps)
