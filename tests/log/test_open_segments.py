"""Open segments: what they hold when it isn't sealed yet, and what lanes cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey

SPEC = sw.Spec(obs=sw.Field((2,), "float32", stack=4), action=sw.Field((), "int64"))


def append(store: sw.Store, lane: int, step: int) -> None:
    store.append(lane=lane, obs=[step, lane], action=step, reward=step, terminated=False, truncated=False)


def let_go_unsealed() -> tuple[sw.Store, int]:
    """A store and its lane whose rows had to go unsealed: lanes opened one after another hold all there is."""
    store = sw.Store(SPEC, capacity=400, segment_steps=100)
    for lane in range(200):
        for step in range(max(1, 400 // (4 * (lane + 1)))):
            append(store, lane, step)
        gone = np.flatnonzero(store._log.index.rows[store._log.opened.slots] == 0)
        if len(gone):
            return store, int(gone[0])
    raise AssertionError("no lane's rows were let go")


def stacks(store: sw.Store, lane: int, first: int) -> list[list[float]]:
    """Stacks of the lane's steps from number ``first`` on."""
    view = store.transitions()
    batch = view.fetch(view.sampleable_ids())
    chosen = (batch.obs[:, -1, 1] == lane) & (batch.action >= first)
    return sorted(batch.obs[chosen][:, :, 0].tolist(), key=lambda stack: stack[-1])


def test_frames_of_an_episode_whose_rows_went_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    store, lane = let_go_unsealed()
    store.checkpoint(tmp_path)
    assert check(tmp_path).damages == []
    assert survey(tmp_path).damages == []
    opened = sw.Store.open(tmp_path)
    assert opened.recovery is not None
    assert opened.recovery.damages == []
    n = int(store.lane_steps[lane])
    for one in (store, opened):
        for step in range(n, n + 4):
            append(one, lane, step)
        assert stacks(one, lane, n) == [[n + k - 3, n + k - 2, n + k - 1, n + k] for k in range(3)]


def test_frames_that_are_lost_are_named_and_the_next_step_begins_an_episode(tmp_path: Path) -> None:
    store, lane = let_go_unsealed()
    store.checkpoint(tmp_path)
    part = next(path for path in tmp_path.iterdir() if path.is_dir())
    (region,) = (part / "regions").iterdir()
    content = bytearray(region.read_bytes())
    where = content.index(np.array([[97, lane], [98, lane], [99, lane]], np.float32).tobytes())
    content[where] ^= 1
    region.write_bytes(content)
    opened = sw.Store.open(tmp_path)
    assert opened.recovery is not None
    assert f"lane {lane}: the last frames of its episode are lost; its next step begins an episode" in (
        opened.recovery.damages
    )
    n = int(store.lane_steps[lane])
    for step in range(n, n + 2):
        append(opened, lane, step)
    assert stacks(opened, lane, n) == [[n, n, n, n]]


def test_a_known_successor_without_context_comes_back(tmp_path: Path) -> None:
    """No frames reach back, but what the next step has to observe is known: a tail of no steps and one frame."""
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=400, segment_steps=100)
    step: dict[str, Any] = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    lane = 0
    while not (store._log.index.rows[store._log.opened.slots] == 0).any():
        for k in range(max(1, 400 // (4 * (lane + 1)))):
            store.append(lane=lane, obs=[k, lane], next_obs=[k + 1, lane], **step)
        lane += 1
    (gone,) = np.flatnonzero(store._log.index.rows[store._log.opened.slots] == 0)
    store.checkpoint(tmp_path)
    assert check(tmp_path).damages == []
    opened = sw.Store.open(tmp_path)
    assert opened.recovery is not None
    assert opened.recovery.damages == []
    for one in (store, opened):
        one.append(lane=int(gone), obs=[-1, gone], **step)  # not what was to come
        assert one.stats()["broken_episodes"] == 1


def zeros(lanes: int) -> dict[str, Any]:
    flags = np.zeros(lanes, np.bool_)
    obs = np.zeros((lanes, 12), np.float32)
    return {"obs": obs, "action": flags.astype(np.int64), "reward": obs[:, 0], "terminated": flags, "truncated": flags}


LEAN = sw.Spec(obs=sw.Field((12,), "float32"), action=sw.Field((), "int64"))


def test_open_segments_take_what_their_rows_need() -> None:
    lanes = 4096
    store = sw.Store(LEAN, capacity=1_000_000)
    for _ in range(3):
        store.extend(**zeros(lanes))
    assert len(store) == 3 * lanes
    rows = 128 + 16  # frames of final observations have room too
    assert store.stats()["bytes"]["open_segments"] <= lanes * (rows * LEAN.step_bytes + 5 * 64)


def test_the_capacity_is_used_whatever_the_number_of_lanes() -> None:
    """Open segments hold a quarter of the capacity at most, so that of many lanes is kept in many small segments."""
    lanes, capacity = 1024, 60_000
    store = sw.Store(LEAN, capacity=capacity, codec="raw")
    view = store.transitions(sampler=sw.Prioritized())
    for _ in range(capacity // lanes + 20):
        store.extend(**zeros(lanes))
    assert capacity - 2 * lanes <= len(store) <= capacity
    assert len(view) > capacity - 4 * lanes
    view.update_priorities(view.sample(64).ids, np.ones(64))


def test_lanes_that_come_one_by_one_keep_what_is_there() -> None:
    store = sw.Store(LEAN, capacity=100_000, segment_steps=8)
    view = store.transitions()
    for lane in range(3000):
        for step in range(2):
            store.append(lane=lane, obs=np.full(12, lane), action=step, reward=lane, terminated=False, truncated=False)
    batch = view.fetch(view.sampleable_ids())
    np.testing.assert_array_equal(np.sort(batch.obs[:, 3]), np.arange(3000))
    np.testing.assert_array_equal(batch.obs[:, 3], batch.reward)
    assert store.lane_steps.tolist() == [2] * 3000


def test_too_many_lanes_for_ram_are_refused_by_its_name_and_cost_nothing() -> None:
    store = sw.Store(LEAN, ram="8MiB")
    before = store.stats()["total_bytes"]
    for _ in range(3):
        with pytest.raises(MemoryError, match=r"4096 lanes need .* ram leaves"):
            store.extend(**zeros(4096))
    assert store.lanes == 0
    assert store.stats()["total_bytes"] == before
    store.extend(**zeros(256))
    assert store.stats()["total_bytes"] <= 8 << 20


def sealed_by_call(store: sw.Store, lanes: int, calls: int) -> list[int]:
    """How many segments each of some calls of ``extend`` seals."""
    counts = [store.stats()["segments"]]
    for _ in range(calls):
        store.extend(**zeros(lanes))
        counts.append(store.stats()["segments"])
    return np.diff(counts).tolist()


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_lanes_in_step_are_not_sealed_in_the_same_call(tmp_path: Path, disk: bool) -> None:
    lanes, stride = 64, 32
    store = sw.Store(
        LEAN, capacity=1_000_000, segment_steps=stride, codec="raw", disk=tmp_path / "store" if disk else None
    )
    sealed = sealed_by_call(store, lanes, 4 * stride + 1)
    assert sum(sealed[1 + 3 * stride :]) == lanes, "each lane once in as many steps as a segment has"
    assert max(sealed[1:]) <= 5, "64 lanes, spread over seven eighths of 32 steps"
    store.checkpoint(tmp_path / "early")
    later = sealed_by_call(store, lanes, 2 * stride)
    opened = sw.Store.open(tmp_path / "early", disk=tmp_path / "other" if disk else None)
    assert sealed_by_call(opened, lanes, 2 * stride) == later
    if disk:
        opened.close()
        store.close()
        again = sw.Store.open(tmp_path / "store")
        assert max(sealed_by_call(again, lanes, 2 * stride)[1:]) <= 5
        again.close()


def test_first_segments_in_mid_stagger_come_back_as_they_were(tmp_path: Path) -> None:
    lanes, stride = 16, 32
    store = sw.Store(LEAN, capacity=10_000, segment_steps=stride)
    sealed_by_call(store, lanes, 10)
    store.checkpoint(tmp_path)
    opened = sw.Store.open(tmp_path)
    assert sealed_by_call(opened, lanes, 3 * stride) == sealed_by_call(store, lanes, 3 * stride)


def test_room_on_disk_grows_with_the_lanes_while_a_learner_goes_on(tmp_path: Path) -> None:
    store = sw.Store(LEAN, capacity=20_000, ram="32MiB", disk=tmp_path, codec="raw")
    view = store.transitions(sampler=sw.Prioritized())
    slots = []
    for step in range(200):
        lanes = 4 if step < 150 else 512
        rows = zeros(lanes)
        rows["obs"][:, 0], rows["obs"][:, 1], rows["action"][:] = np.arange(lanes), step, step
        store.extend(**rows)
        if step % 10 == 9:
            batch = view.sample(64)
            np.testing.assert_array_equal(batch.obs[:, 1], batch.action)
            np.testing.assert_array_equal(batch.next_obs[:, 1], batch.action + 1)
            np.testing.assert_array_equal(batch.next_obs[:, 0], batch.obs[:, 0])
            view.update_priorities(batch.ids, np.ones(64))
        slots.append(store._log.index.slots)
    assert slots[-1] > slots[0]
    assert len(store) > 20_000 - 2 * 512
    store.close()
