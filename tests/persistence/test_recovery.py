"""Opening a store that another process left: everything acknowledged is there, and nothing else is made of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave import store as store_module
from sharpwave import writing
from sharpwave.native.file_operations import Files
from tests.support.examples import examples
from tests.support.faults import killed
from tests.support.oracle import Oracle, Stacking, assert_same_view

STACKING = Stacking(3, "zeros")


def spec() -> sw.Spec:
    return sw.Spec(
        obs=sw.Field((6, 7), "uint8", stack=3, pad="zeros"), action=sw.Field((), "int64"), serial=sw.Field((), "int64")
    )


def frame(serial: int) -> Any:
    picture = np.zeros((6, 7), np.uint8)
    picture[serial % 6, serial % 7] = serial % 251 + 1
    picture[0, 0] = serial // 251
    return picture


class Writer:
    """Appends steps to a store, and remembers them lane by lane."""

    def __init__(self, store: sw.Store) -> None:
        self.store = store
        self.history: dict[int, list[dict[str, Any]]] = {}
        self.serial = 0

    def append(self, lane: int, end: str) -> None:
        step = {
            "obs": frame(self.serial),
            "action": self.serial % 5,
            "reward": float(self.serial % 4),
            "terminated": end == "terminated",
            "truncated": end == "truncated",
            "final_obs": frame(self.serial + 40_000) if end else None,
            "serial": self.serial,
        }
        self.store.append(lane=lane, **step)
        self.history.setdefault(lane, []).append(step)
        self.serial += 1

    def sealed(self) -> dict[int, int]:
        """Steps of each lane that lie in sealed segments."""
        index = self.store._log.index
        slots = np.flatnonzero((index.sealed == 1) & (index.rows > 0))
        return {lane: int(index.rows[slots[index.lane[slots] == lane]].sum()) for lane in self.history}

    def expected(self, flushed: dict[int, int]) -> Oracle:
        """What a crash leaves: sealed and flushed steps, with episodes that went on truncated."""
        oracle, sealed = Oracle(STACKING), self.sealed()
        for lane, steps in self.history.items():
            kept = max(sealed[lane], flushed.get(lane, 0))
            final = None
            if kept and not (steps[kept - 1]["terminated"] or steps[kept - 1]["truncated"]):
                if kept == sealed[lane]:
                    final = steps[kept]["obs"]
                else:
                    kept -= 1
                    final = steps[kept]["obs"]
            for step in steps[:kept]:
                oracle.append(lane, **step)
            if final is not None and oracle.can_end_episode(lane):
                oracle.end_episode(lane, final)
        return oracle


events = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["", "", "", "", "", "terminated", "truncated"])), max_size=60
)


def test_each_flush_of_an_open_segment_counts(tmp_path: Path) -> None:
    """A flush that writes the rows of a segment anew, and one that has nothing new to write."""
    writer = Writer(sw.Store(spec(), capacity=1000, disk=tmp_path, segment_steps=64))
    for count in (3, 4, 0, 5):
        for _ in range(count):
            writer.append(0, "")
        writer.store.flush()
    expected = writer.expected({0: 12})
    killed(writer.store)
    with sw.Store.open(tmp_path) as store:
        assert_same_view(store.transitions(), expected, 1, 0.99)


@settings(max_examples=examples(60), deadline=None)
@given(
    before=events,
    between=events,
    after=events,
    again=events,
    flush=st.booleans(),
    segment_steps=st.integers(1, 9),
    codec=st.sampled_from(["auto", "delta", "zstd", "raw"]),
)
def test_what_was_sealed_or_flushed_comes_back_and_more_can_be_written(
    before: Any,
    between: Any,
    after: Any,
    again: Any,
    flush: bool,
    segment_steps: int,
    codec: str,
    tmp_path_factory: Any,
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = sw.Store(spec(), capacity=1000, disk=folder, segment_steps=segment_steps, codec=codec)
    writer = Writer(store)
    for lane, end in before:
        writer.append(lane, end)
    flushed = {}
    if flush:
        store.flush()
        for lane, end in between:
            writer.append(lane, end)
        store.flush()
        flushed = {lane: len(steps) for lane, steps in writer.history.items()}
    for lane, end in after:
        writer.append(lane, end)
    oracle = writer.expected(flushed)
    ids = {}
    replay = store.transitions()
    if len(replay):
        batch = replay.fetch(replay.sampleable_ids())
        ids = dict(zip(batch["serial"].tolist(), batch.ids.tolist(), strict=True))
    killed(store)

    with sw.Store.open(folder) as store:
        assert store.recovery is not None and store.recovery.damages == []
        assert store.recovery.steps == len(store) == oracle.total_steps
        for n_step in (1, 3):
            assert_same_view(store.transitions(n_step=n_step, gamma=0.5), oracle, n_step, 0.5)
        replay = store.transitions()
        if len(replay):
            batch = replay.fetch(replay.sampleable_ids())
            for serial, one in zip(batch["serial"].tolist(), batch.ids.tolist(), strict=True):
                assert ids.get(serial, one) == one
        old = set(ids.values())
        serial = writer.serial
        writer = Writer(store)
        writer.serial = serial
        for lane, end in again:
            writer.append(lane, end)
            oracle.append(lane, **writer.history[lane][-1])
        assert_same_view(store.transitions(n_step=2, gamma=0.5), oracle, 2, 0.5)
        batch_ids = store.transitions().sampleable_ids()
        new = set(batch_ids.tolist()) - old
        assert len(new) + len(old & set(batch_ids.tolist())) == len(batch_ids)


class Full(Files):
    """A disk that takes no more after some writes, for some writes."""

    def __init__(self, after: int, failures: int) -> None:
        self.after, self.failures = after, failures

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        self.after -= 1
        if self.after < 0 and self.failures > 0:
            self.failures -= 1
            super().pwrite(descriptor, data[: len(data) // 3], offset)
            raise OSError(28, "No space left on device")
        super().pwrite(descriptor, data, offset)


def full_store(folder: Path, monkeypatch: pytest.MonkeyPatch, on_full: str, after: int, failures: int) -> sw.Store:
    monkeypatch.setattr(store_module, "Files", lambda: Full(after, failures))
    return sw.Store(spec(), capacity=1000, disk=folder, segment_steps=8, codec="raw", on_full=on_full)


@pytest.mark.parametrize("after", [2, 3, 7, 12])
def test_an_append_that_the_disk_refuses_is_not_made_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    writer, refused = Writer(full_store(tmp_path, monkeypatch, "raise", after, 3)), 0
    while writer.serial < 200:
        before = len(writer.store)
        try:
            writer.append(writer.serial % 2, "terminated" if writer.serial % 37 == 36 else "")
        except OSError as error:
            refused += 1
            assert "No space left" in str(error) and "(now 'raise')" in str(error)
            assert len(writer.store) == before
    assert refused == 3 == writer.store.stats()["disk"]["failures"]
    oracle = Oracle(STACKING)
    for lane, steps in writer.history.items():
        for step in steps:
            oracle.append(lane, **step)
    assert_same_view(writer.store.transitions(n_step=3, gamma=0.5), oracle, 3, 0.5)
    expected = writer.expected({})
    killed(writer.store)
    monkeypatch.undo()
    with sw.Store.open(tmp_path) as store:
        assert_same_view(store.transitions(n_step=3, gamma=0.5), expected, 3, 0.5)


def test_block_waits_until_the_disk_takes_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(full_store(tmp_path, monkeypatch, "block", 5, 4))
    for _ in range(100):
        writer.append(0, "")
    assert len(writer.store) == 100 and writer.store.stats()["disk"]["failures"] == 4
    writer.store.close()
    store = full_store(tmp_path / "b", monkeypatch, "block", 5, 10**9)
    monkeypatch.setattr(writing, "MAX_BLOCK_S", 0.2)
    with pytest.raises(OSError, match=r"could not be written to .* another on_full= .* after 0.2 s of retries"):
        writer = Writer(store)
        for _ in range(100):
            writer.append(0, "")
    with pytest.raises(OSError, match=r"close: .*No space left"):
        store.close()


def test_drop_newest_leaves_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(full_store(tmp_path / "b", monkeypatch, "drop_newest", 4, 2))
    for _ in range(100):
        writer.append(0, "")
    stats = writer.store.stats()
    assert stats["disk"]["dropped_steps"] == 16 and len(writer.store) == 84
    oracle, gap = Oracle(STACKING), range(16, 32)
    for step in writer.history[0]:
        oracle.append(0, **step)
    replay = writer.store.transitions(n_step=3, gamma=0.5)
    batch = replay.fetch(replay.sampleable_ids())
    assert set(batch["serial"].tolist()) == oracle.sampleable(3, held=set(range(100)) - set(gap))
    for row, serial in enumerate(batch["serial"].tolist()):
        expected = oracle.transition(serial, 3, 0.5)
        assert batch.reward[row] == expected.reward and batch.discount[row] == expected.discount
        assert np.array_equal(batch.next_obs[row, -1], expected.next_obs[-1])
    writer.store.close()


def test_a_store_in_use_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    store = sw.Store(spec(), capacity=100, disk=tmp_path / "a")
    script = (
        "import sys, sharpwave as sw\ntry:\n sw.Store.open(sys.argv[1])\nexcept sw.StoreInUseError as e:\n print(e)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "a"], capture_output=True, text=True, timeout=60)
    import os

    assert f"in use by process {os.getpid()}" in done.stdout, done.stderr
    store.close()
    with pytest.raises(FileExistsError, match=r"holds a store already; open it with sharpwave.Store.open"):
        sw.Store(spec(), capacity=100, disk=tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="no store there"):
        sw.Store.open(tmp_path / "b")
    sw.Store.open(tmp_path / "a").close()


def test_a_damaged_segment_is_named_and_the_rest_comes_back(tmp_path: Path) -> None:
    store = sw.Store(spec(), capacity=1000, disk=tmp_path, segment_steps=8, codec="raw")
    writer = Writer(store)
    for _ in range(100):
        writer.append(0, "")
    place, nbytes = int(store._log.index.region_offset[3]), int(store._log.index.nbytes[3])
    killed(store)
    (path,) = (tmp_path / "regions").glob("*.region")
    data = bytearray(path.read_bytes())
    data[place + nbytes // 2] ^= 4
    path.write_bytes(data)
    with sw.Store.open(tmp_path) as store:
        assert store.recovery is not None
        (damage,) = store.recovery.damages
        assert str(path) in damage and "checksum" in damage
        replay = store.transitions(n_step=3)
        held = set(replay.fetch(replay.sampleable_ids())["serial"].tolist())
        # The rest of the 100 lay in the open segment; returns of 22 and 23 would need the damaged one's rewards.
        assert held == set(range(96)) - set(range(22, 32))
        batch = replay.fetch(replay.sampleable_ids())
        for row, serial in enumerate(batch["serial"].tolist()):
            last = min(serial + 3, 24 if serial < 24 else 96)  # the gap and the end cut the return short
            np.testing.assert_array_equal(batch.next_obs[row, -1], frame(last))


CHILD = """
import sys, numpy as np, sharpwave as sw
number = sw.Field((), "int64")
spec = sw.Spec(obs=sw.Field((6, 7), "uint8", stack=3, pad="zeros"), action=number, serial=number)
store = sw.Store(spec, capacity=100_000, disk=sys.argv[1], segment_steps=16)
k = 0
while True:
    for _ in range(37):
        picture = np.zeros((6, 7), np.uint8)
        picture[k % 6, k % 7] = k % 251 + 1
        picture[0, 0] = k // 251 % 256
        store.append(lane=k % 2, obs=picture, action=k % 5, reward=k % 4, terminated=False, truncated=False, serial=k)
        k += 1
    store.flush()
    if k % 3 == 2:
        store.checkpoint(sys.argv[2])
    print(k, k % 3 == 2, flush=True)
"""


@pytest.mark.parametrize("after", [1, 3, 10])
def test_a_killed_process_loses_nothing_that_was_flushed_or_saved(tmp_path: Path, after: int) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "s"), str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        acknowledged = saved = 0
        for _ in range(after):
            steps, checkpoint = child.stdout.readline().split()
            acknowledged = int(steps)
            saved = acknowledged if checkpoint == "True" else saved
        time.sleep(0.01 * after)
        child.send_signal(signal.SIGKILL)
    if saved:
        with sw.Store.open(tmp_path / "c", disk=tmp_path / "o") as store:
            assert store.total_steps >= saved and store.recovery is not None and not store.recovery.damages
            replay = store.transitions()
            assert set(range(saved - 2)) <= set(replay.fetch(replay.sampleable_ids())["serial"].tolist())
    with sw.Store.open(tmp_path / "s") as store:
        replay = store.transitions()
        batch = replay.fetch(replay.sampleable_ids())
        serials = sorted(batch["serial"].tolist())
        # Each lane's last has no successor.
        assert set(range(acknowledged - 2)) <= set(serials), "flushed steps are gone"
        for lane in (0, 1):
            mine = [serial for serial in serials if serial % 2 == lane]
            assert mine == list(range(lane, lane + 2 * len(mine), 2)), "no step is skipped"
        for row, serial in enumerate(batch["serial"].tolist()):
            assert batch.action[row] == serial % 5 and batch.reward[row] == serial % 4
            assert batch.obs[row, -1, serial % 6, serial % 7] == (
                serial % 251 + 1 if (serial % 6 or serial % 7) else serial // 251 % 256
            )


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_were_evicted_come_back_without_holes_or_not_at_all(tmp_path: Path, seed: int) -> None:
    """Their segments stay in files where newer ones are; some of their slots have been used again since."""
    rng, steps = np.random.default_rng(seed), [0] * 4
    numbers = sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((), "int64"))

    def fill(store: sw.Store, count: int) -> None:
        for _ in range(count):
            lane = int(rng.integers(4))
            k = steps[lane]
            store.append(lane=lane, obs=np.full(1, k), action=k, reward=0.0, terminated=False, truncated=False)
            steps[lane] += 1

    def held(store: sw.Store) -> list[list[int]]:
        view = store.transitions()
        batch = view.fetch(view.sampleable_ids())
        return [sorted(batch.step[batch.lane == lane].tolist()) for lane in range(4)]

    with sw.Store(numbers, capacity=1000, disk=tmp_path / "d", segment_steps=8) as store:
        fill(store, 3000)
        store.resize(capacity=400)
        fill(store, 100)
        store.resize(capacity=1000)
        fill(store, int(rng.integers(10, 200)))
        before = held(store)
    with sw.Store.open(tmp_path / "d") as store:
        for known, found in zip(before, held(store), strict=True):
            assert set(found) >= set(known) and found == list(range(found[0], found[-1] + 1))
        assert store.recovery is not None and store.recovery.steps == len(store)
        assert not store.recovery.damages
