"""Opening gives exactly the steps that were held: evicted ones stay away, and a gap is no end of an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk import disk_budget
from sharpwave.disk.region_notes import Evicted, Evictions, pack_ends, pack_evicted, unpack_evicted
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey
from sharpwave.persistence import settings
from tests.support.faults import killed

SPEC = sw.Spec(obs=sw.Field((6,), "float32"), action=sw.Field((), "int64"))
LANES = 3
RETENTIONS: dict[str, Any] = {"fifo": sw.Fifo, "reservoir": lambda: sw.Reservoir(7), "lowest": sw.LowestPriority}
LIMITS: dict[str, dict[str, Any]] = {
    "capacity": {"capacity": 600},
    "ram": {"capacity": 600, "ram": "4MiB"},
    "disk_limit": {"disk_limit": 1 << 18, "capacity": 100_000},
}


class Player:
    """Appends steps of episodes of some 40 steps, whose observations tell lane and number, and learns from some."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.steps = 0

    def play(self, store: sw.Store, view: Any, steps: int) -> None:
        for _ in range(steps):
            lanes = np.arange(LANES)
            obs = np.repeat((self.steps * LANES + lanes)[:, None], 6, 1).astype(np.float32)
            ends = self.rng.random((2, LANES)) < 0.0125
            store.extend(
                obs=obs,
                action=obs[:, 0].astype(np.int64),
                reward=obs[:, 0] % 7,
                terminated=ends[0],
                truncated=ends[1],
                final_obs=obs + 0.5,
            )
            self.steps += 1
            if self.steps % 16 == 0 and len(view) > 32:
                view.update_priorities(view.sample(32), td_error=5 * self.rng.random(32))

    def end(self, store: sw.Store) -> None:
        """End all episodes, so that nothing is broken off."""
        yes, obs = np.ones(LANES, np.bool_), np.full((LANES, 6), 1e6, np.float32)
        store.extend(obs=obs, action=[0] * LANES, reward=[0] * LANES, terminated=yes, truncated=~yes)


def learner(store: sw.Store) -> Any:
    return store.transitions(sampler=sw.Prioritized(), name="learner")


def contents(store: sw.Store, view: Any) -> dict[str, Any]:
    """Everything that a user can see of what is held, with the priorities of ``view``."""
    found: dict[str, Any] = {}
    for n in (1, 5):
        steps = store.transitions(n_step=n, gamma=0.5)
        batch = steps.fetch(steps.sampleable_ids())
        for name in ("ids", "action", "reward", "discount", "n", "terminated", "truncated", "obs", "next_obs"):
            found[f"{name} of {n}"] = np.asarray(getattr(batch, name)).tolist()
    assert len(view) == len(found["ids of 1"])  # which finds what can be sampled
    values = view.sampler.state()["values"]
    found["priorities"] = [(item, values[item]) for item in np.flatnonzero(values).tolist()]
    found["windows"] = sorted(store.sequences(length=8, burn_in=4, stride=4).sampleable_ids().tolist())
    found["episodes"] = [(one.lane, one.length, one.total_reward, one.ended) for one in store.episodes()]
    stats = store.stats()
    found |= {name: stats[name] for name in ("steps", "total_steps", "evicted_steps", "evicted_segments", "segments")}
    return found


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, value in before.items():
        if name != "segments":  # rows that were open lie in one now
            assert after[name] == value, name


@pytest.mark.parametrize(
    ("retention", "limit"),
    [
        pytest.param(retention, limit, marks=() if i == j else pytest.mark.nightly)
        for i, retention in enumerate(RETENTIONS)
        for j, limit in enumerate(LIMITS)
    ],
)
def test_opening_gives_what_was_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str, limit: str
) -> None:
    for module, name in (
        (disk_budget, "REGION_BYTES"),
        (disk_budget, "MIN_REGION_BYTES"),
        (settings, "MIN_DISK_BYTES"),
    ):
        monkeypatch.setattr(module, name, 1 << 14)
    player = Player(1)
    store = sw.Store(SPEC, disk=tmp_path, retention=RETENTIONS[retention](), segment_steps=16, **LIMITS[limit])
    for life in range(4):
        view = learner(store)
        player.play(store, view, 150 if life else 3_000 if limit == "disk_limit" else 900)
        assert store.stats()["evicted_segments"] > 0
        player.end(store)
        store.flush()
        before = contents(store, view)
        killed(store) if life % 2 else store.close()
        assert check(tmp_path).damages == []
        store = sw.Store.open(tmp_path)
        same(before, contents(store, learner(store)))
        store.close()
        store = sw.Store.open(tmp_path)
    store.close()


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_kill_goes_back_to_what_was_written_last(tmp_path: Path, retention: str) -> None:
    """Without a flush, rows of open segments are lost; of sealed segments those held are there, and no others."""
    player = Player(2)
    store = sw.Store(SPEC, disk=tmp_path, capacity=600, retention=RETENTIONS[retention](), segment_steps=16)
    for _ in range(8):
        player.play(store, learner(store), 301)
        index = store._log.index
        slots = np.flatnonzero((index.sealed > 0) & (index.rows > 0))
        sealed = {index.segment_id(slot) for slot in slots.tolist()}
        gone = set(store._log.disk.evictions.pending) if store._log.disk else set()
        killed(store)
        store = sw.Store.open(tmp_path)
        index = store._log.index
        slots = np.flatnonzero((index.sealed > 0) & (index.rows > 0))
        # Evicted for a step that is lost itself: what is there is as of the last write.
        assert sealed <= {index.segment_id(slot) for slot in slots.tolist()} <= sealed | gone
        assert len(store) <= 600
    store.close()


@pytest.mark.parametrize("retention", RETENTIONS)
def test_what_a_lower_limit_evicted_stays_away_under_a_higher_one(tmp_path: Path, retention: str) -> None:
    player = Player(3)
    store = sw.Store(SPEC, disk=tmp_path, capacity=3_000, retention=RETENTIONS[retention](), segment_steps=16)
    view = learner(store)
    player.play(store, view, 900)
    player.end(store)
    store.resize(capacity=500)
    before = contents(store, view)
    store.close()
    with sw.Store.open(tmp_path, capacity=5_000) as store:
        same(before, contents(store, learner(store)))


def test_a_gap_is_no_end_of_an_episode(tmp_path: Path) -> None:
    """Steps whose successors were evicted cannot be sampled; no reader takes the gap for a truncation."""
    store = sw.Store(SPEC, disk=tmp_path, capacity=400, retention=sw.Reservoir(1), segment_steps=16)
    n = 1_500
    for _ in range(2):
        obs = np.repeat(np.arange(n + 1, dtype=np.float32)[:, None], 6, 1)
        store.add_episode(lane=0, obs=obs, action=np.arange(n), reward=np.ones(n), terminated=True)
    for _ in range(3):
        view = store.transitions(n_step=5, gamma=1.0)
        batch = view.fetch(view.sampleable_ids())
        assert not batch.truncated.any() and ((batch.n == 5) | batch.terminated).all()
        assert {one.ended for one in store.episodes()} <= {None, "terminated"}
        gaps = [one for one in store.episodes() if one.ended is None]
        store.close()
        assert sum(one.end == "unfinished" for one in survey(tmp_path).episodes) == len(gaps) > 5
        assert all(one.end != "truncated" for one in survey(tmp_path).episodes)
        store = sw.Store.open(tmp_path)
    store.close()


def test_records_of_evicted_segments_outlive_the_notes_of_their_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region of which a part is held keeps records of evicted segments, longer than the files that tell of these."""
    monkeypatch.setattr(disk_budget, "REGION_BYTES", 8_192)
    monkeypatch.setattr(disk_budget, "MIN_REGION_BYTES", 8_192)
    store = sw.Store(SPEC, disk=tmp_path, capacity=64_000, retention=sw.LowestPriority(), segment_steps=16)
    disk = store._log.disk
    assert disk is not None
    player = Player(5)
    view, renewed = learner(store), 0
    player.play(store, view, 200)
    store.resize(capacity=400)
    for _ in range(40):  # the first steps' segments are the dearest, and stay
        ids = view.sampleable_ids()
        view.update_priorities(ids, np.where(view.fetch(ids).action < 200, 1_000.0, 1.0))
        player.play(store, view, 20)
        renewed += int(disk.evictions.told_by([disk.regions.next_number - 1]).size > 0)
    player.end(store)
    store.flush()
    before = contents(store, view)
    assert renewed and min(disk.regions.regions) < 8 < disk.regions.next_number
    killed(store)
    with sw.Store.open(tmp_path) as store:
        same(before, contents(store, learner(store)))


def test_counts_outlive_an_opening_that_writes_ends_of_episodes(tmp_path: Path) -> None:
    """A lane's open segment has one step, which is dropped: the segment before it is written again, with a note."""
    store = sw.Store(SPEC, disk=tmp_path, capacity=182, segment_steps=8)
    for lanes, times in (([0, 2], 3), ([0, 1, 2], 21), ([1, 2], 5), ([0, 1, 2], 3)):
        no = np.zeros(len(lanes), np.bool_)
        obs = np.zeros((len(lanes), 6), np.float32)
        for _ in range(times):
            store.extend(lanes=lanes, obs=obs, action=no * 1, reward=no * 1.0, terminated=no, truncated=no)
    store.resize(capacity=87)
    counts = [store.stats()["evicted_segments"]]
    for _ in range(3):
        store.close()
        store = sw.Store.open(tmp_path)
        counts.append(store.stats()["evicted_segments"])
    store.close()
    assert counts == [1, 1, 1, 1]


def test_a_note_of_evictions_is_read_as_it_was_written() -> None:
    note = Evicted(0.25, 7, 9, np.array([1 << 32 | 64, 3 << 32 | 16]))
    assert len(pack_evicted(note)) == note.nbytes == 52
    read = unpack_evicted(pack_evicted(note))
    assert read is not None and read.counts == (0.25, 7, 9) and read.ids.tolist() == note.ids.tolist()
    assert unpack_evicted(pack_ends(np.arange(9))) is None and unpack_evicted(b"GONE") is None
    for impossible in (note._replace(threshold=1.5), note._replace(threshold=float("nan"))):
        assert unpack_evicted(pack_evicted(impossible)) is None


def test_evictions_cover_a_slots_earlier_generations() -> None:
    """By hand: slots of 16 steps; slot 4's segments of generations 0 to 2 are gone, slot 1's of 0 to 5."""
    evictions = Evictions(16)
    evictions.take(Evicted(ids=np.array([2 << 32 | 64])), sequence=5, region=3)
    evictions.take(Evicted(0.5, 3, 0, np.array([5 << 32 | 16])), sequence=9, region=4)
    evictions.take(Evicted(1.0, 1, 0, np.array([0 << 32 | 64])), sequence=2, region=1)
    covered = [generation for generation in range(8) if evictions.covers(generation << 32 | 64)]
    assert covered == [0, 1, 2] and not evictions.covers(0 << 32 | 32)
    assert evictions.covers(5 << 32 | 16) and not evictions.covers(6 << 32 | 16)
    assert evictions.latest.counts == (0.5, 3, 0)
    assert evictions.told_by([3]).tolist() == [4] and evictions.told_by([1, 4]).tolist() == [1]
    assert evictions.ids(np.array([1, 4])).tolist() == [5 << 32 | 16, 2 << 32 | 64]
