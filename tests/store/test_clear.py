"""``clear``: nothing is left, in memory, in the views or on disk, and nothing is used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((3,), "int64"), action=sw.Field((), "int64"))


def append(store: sw.Store, first: int, count: int, lane: int = 0, ends: int = 7) -> list[int]:
    return [
        store.append(
            lane=lane, obs=[k, lane, 0], action=k, reward=1.0, terminated=k % ends == ends - 1, truncated=False
        )
        for k in range(first, first + count)
    ]


def held(view: Any) -> list[int]:
    return sorted(view.fetch(view.sampleable_ids()).action.tolist()) if len(view) else []


@pytest.mark.parametrize("retention", [sw.Fifo, sw.Reservoir, sw.LowestPriority])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_cleared_store_is_empty_and_goes_on(tmp_path: Path, retention: Any, on_disk: bool) -> None:
    disk = tmp_path / "store" if on_disk else None
    store = sw.Store(SPEC, capacity=100, segment_steps=8, disk=disk, retention=retention())
    views: list[Any] = [
        store.transitions(n_step=2, sampler=sw.Prioritized(), name="p"),
        store.transitions(name="u"),
        store.sequences(4),
        store.transitions(sampler=sw.Fifo(), max_times_sampled=2, name="f"),
    ]
    ids: set[int] = set()
    for life in range(3):
        for lane in range(2):
            new = append(store, 1000 * life, 150, lane)
            assert not ids & set(new)
            ids |= set(new)
        assert store.lane_steps.tolist() == [150 * (life + 1)] * 2
        for view in views:
            view.sample(16)
        store.clear()
        assert len(store) == 0 and [len(view) for view in views] == [0] * 4
        assert store.stats()["bytes"]["arena_used"] == 0 and store.total_steps == 300 * (life + 1)
        for view in views:
            with pytest.raises(sw.EmptyError):
                view.sample(1)
    append(store, 5000, 30)
    assert held(views[1]) == list(range(5000, 5029 + (5029 % 7 == 6)))  # the newest step's successor is unknown
    if retention is sw.Reservoir:  # admits as much as a new one does
        other = sw.Store(SPEC, capacity=100, segment_steps=8, retention=retention())
        append(other, 5000, 30)
        assert len(other) == len(store)
    store.close()
    if on_disk:
        with sw.Store.open(tmp_path / "store") as again:
            assert again.lane_steps[1] == 450 and again.recovery is not None and not again.recovery.damages
            found = held(again.transitions())
            assert found == list(range(5000, 5000 + len(found))) and len(found) >= 28
            assert not ids & set(append(again, 9000, 20))


def test_nothing_of_it_comes_back_from_disk(tmp_path: Path) -> None:
    """Cleared after a flush, with open segments on disk, and not closed."""
    store = sw.Store(SPEC, capacity=1000, segment_steps=8, disk=tmp_path / "store")
    new = append(store, 0, 500) + append(store, 0, 3, lane=1)
    store.flush()
    before = store.stats()["disk"]["bytes"]
    store.clear()
    store.flush()
    store.close()
    assert sum(path.stat().st_blocks for path in (tmp_path / "store" / "regions").iterdir()) * 512 < max(
        before, 1 << 19
    )
    for _ in range(3):
        with sw.Store.open(tmp_path / "store") as again:
            assert len(again) == 0 and again.lane_steps.tolist() == [500, 3]
            assert not again.recovery.damages  # type: ignore[union-attr]
    with sw.Store.open(tmp_path / "store") as again:
        assert not set(new) & set(append(again, 0, 100))


def test_a_checkpoint_made_before_keeps_its_steps(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=1000, segment_steps=8, disk=tmp_path / "store") as store:
        append(store, 0, 300)
        store.checkpoint(tmp_path / "checkpoint")
        store.clear()
    with sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "again") as again:
        assert held(again.transitions()) == list(range(299))


def test_episodes_do_not_go_on_across_it() -> None:
    store = sw.Store(SPEC, capacity=1000, segment_steps=8)
    view = store.transitions(n_step=3, gamma=1.0)
    append(store, 0, 20, ends=10**9)
    store.clear()
    append(store, 20, 20, ends=10**9)
    batch = view.fetch(view.sampleable_ids())
    assert batch.obs[:, 0].min() == 20 and (batch.next_obs[:, 0] - batch.obs[:, 0] == 3).all()
    windows = store.sequences(4)
    first = windows.fetch(windows.sampleable_ids())
    assert first.obs[first.first[:, 0], 0, 0].tolist() == [20]


def test_lanes_fed_by_segments_go_on() -> None:
    store, sealed = sw.Store(SPEC, capacity=1000, segment_steps=8), list[sw.SealedSegment]()
    view = store.transitions()
    writer = sw.SegmentWriter(SPEC, 1, sealed.append, segment_steps=8)
    for life in range(3):
        for k in range(100 * life, 100 * life + 41):
            obs, done = np.full((1, 3), k), np.array([k % 13 == 12])
            writer.extend(obs=obs, action=obs[:, 0], reward=[0.0], terminated=done, truncated=[False])
        for one in sealed:
            store.add_segment(one.packed, one.dictionaries)
        sealed.clear()
        found = view.fetch(view.sampleable_ids())
        assert found.action.min() > 100 * (life - 1) + 40 - 8 and len(found) > 30  # what the writer still had
        gaps = (found.next_obs - found.obs)[~found.terminated, 0]
        assert set(gaps.tolist()) <= {1, 60}  # the writer knows of no break
        store.clear()
        assert not len(view) and not len(store)


def test_a_closed_store_is_not_cleared() -> None:
    store = sw.Store(SPEC, capacity=100)
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.clear()


def test_batches_in_hand_stay_and_stale_updates_are_counted() -> None:
    store = sw.Store(SPEC, capacity=100)
    view = store.transitions(sampler=sw.Prioritized())
    append(store, 0, 50)
    batch = view.sample(8)
    obs = batch.obs.copy()
    store.clear()
    append(store, 100, 50)
    np.testing.assert_array_equal(batch.obs, obs)
    assert view.update_priorities(batch.ids, np.ones(8)) == 8
