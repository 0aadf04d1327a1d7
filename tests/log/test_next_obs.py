"""`next_obs`: where a lane goes on with something else than its last step led to, its episode was broken off there.

The oracle keeps whole transitions; it is told of every break, the store only sees observations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.segment_writer import SealedSegment, SegmentWriter
from tests.support.examples import examples
from tests.support.oracle import Oracle, Stacking, assert_same_view

STACK = 3


def spec_of(stack: int | None = STACK) -> sw.Spec:
    obs = {"picture": sw.Field((3, 5), "uint8", stack=stack), "vector": sw.Field((2,), "float32")}
    return sw.Spec(obs=obs, action=sw.Field((), "int64"), serial=sw.Field((), "int64"))


def observation(count: int) -> dict[str, Any]:
    """No two are equal, but for one of their two fields now and then."""
    return {
        "picture": np.full((3, 5), count // 2 % 256, np.uint8),
        "vector": np.array([count, -count], np.float32),
    }


class Player:
    """Plays lanes of a store and tells an oracle what really happened."""

    def __init__(self, store: Any, lanes: int = 3, seed: int = 0) -> None:
        self.store, self.lanes = store, lanes
        self.oracle = Oracle({"picture": Stacking(STACK), "vector": Stacking()})
        self.rng = np.random.default_rng(seed)
        self.count = self.serial = self.breaks = 0
        self.now = [self.observe() for _ in range(lanes)]
        self.told = [False] * lanes  # the store knows what the lane's last step led to
        self.unseen = [False] * lanes  # the store cannot know yet that the episode was broken off

    def observe(self) -> dict[str, Any]:
        self.count += 1
        return observation(self.count)

    def step(self, lanes: list[int], *, tell: bool = True, final: bool = False) -> None:
        """One step of each lane; some of them end."""
        rows, after, ends = [], [], self.rng.integers(0, 12, len(lanes))
        for lane, end in zip(lanes, ends.tolist(), strict=True):
            rows.append(self.now[lane])
            after.append(self.observe())
            te, tr = end in (0, 1), end in (1, 2)
            shown = after[-1] if tell or final or (ends <= 2).any() else None
            self.oracle.append(lane, rows[-1], np.int64(lane), 1.0, te, tr, shown, serial=self.serial)
            self.oracle.step(self.serial).extra = {"serial": np.array(self.serial)}
            self.serial += 1
            self.now[lane] = self.observe() if te or tr else after[-1]
            self.told[lane], self.unseen[lane] = tell and not (te or tr), False
        extra: dict[str, Any] = {"next_obs": joined(after)} if tell else {}
        if final or (not tell and (ends <= 2).any()):
            extra["final_obs"] = joined(after)
        self.store.extend(
            obs=joined(rows),
            action=np.array(lanes),
            reward=np.ones(len(lanes), np.float32),
            terminated=ends <= 1,
            truncated=(ends == 1) | (ends == 2),
            lanes=lanes,
            serial=np.arange(self.serial - len(lanes), self.serial),
            **extra,
        )

    def forget(self, lane: int) -> None:
        """A reset that nobody tells the store of."""
        if self.told[lane] and self.oracle.can_end_episode(lane):
            self.oracle.end_episode(lane, self.now[lane])
            self.breaks += 1
            self.now[lane] = self.observe()
            self.told[lane], self.unseen[lane] = False, True

    def break_off(self, lane: int) -> None:
        """The store is asked to end the episode with what it knows."""
        under_way = self.oracle.can_end_episode(lane)
        assert self.store.break_episode(lane) == (under_way or self.unseen[lane])
        self.unseen[lane] = False
        if not under_way:
            return
        if self.told[lane]:
            self.oracle.end_episode(lane, self.now[lane])
        else:
            self.oracle.drop_last(lane)
        self.told[lane] = False
        self.now[lane] = self.observe()

    def play(self, turns: int) -> None:
        for _ in range(turns):
            lane, chosen = int(self.rng.integers(self.lanes)), self.rng.random(self.lanes) < 0.7
            match int(self.rng.integers(12)):
                case 0:
                    self.forget(lane)
                case 1:
                    self.break_off(lane)
                case 2 if self.oracle.can_end_episode(lane):
                    self.store.end_episode(lane, self.now[lane])
                    self.oracle.end_episode(lane, self.now[lane])
                    self.now[lane], self.told[lane] = self.observe(), False
                case 3 if chosen.any():
                    self.step(np.flatnonzero(chosen).tolist(), tell=False)
                case 4 if chosen.any():
                    self.step(np.flatnonzero(chosen).tolist(), final=True)
                case _ if chosen.any():
                    self.step(np.flatnonzero(chosen).tolist())

    def check(self, store: Any = None) -> None:
        for n_step in (1, 3):
            assert_same_view((store or self.store).transitions(n_step=n_step, gamma=0.5), self.oracle, n_step, 0.5)


def joined(observations: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.stack([one[name] for one in observations]) for name in observations[0]}


@pytest.mark.parametrize("at", [1, 3, 4, 5, 7, 8, 9])
def test_a_forgotten_reset_makes_no_transition(at: int) -> None:
    """Segments have 4 steps: the break lies within one, and between two."""
    spec = sw.Spec(obs=sw.Field((1,), "int64", stack=2), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=1000, segment_steps=4)
    for k in [*range(at), *range(100, 105)]:
        store.append(obs=[k], action=0, reward=1.0, terminated=False, truncated=False, next_obs=[k + 1])
    replay = store.transitions(n_step=2, gamma=1.0)
    batch = replay.fetch(replay.sampleable_ids())
    rows = zip(batch.obs[:, :, 0].tolist(), batch.next_obs[:, :, 0].tolist(), batch.reward.tolist(), strict=True)
    found = {(*obs, *after, reward) for obs, after, reward in rows}
    expected = set()
    for first, past, over in ((0, at, True), (100, 105, False)):
        for k in range(first, past if over else past - 2):
            after = min(k + 2, past)
            expected.add((max(first, k - 1), k, max(first, after - 1), after, float(after - k)))
    assert found == expected
    assert store.stats()["broken_episodes"] == 1


@pytest.mark.parametrize("seed", range(examples(6, most=6)))
@pytest.mark.parametrize("segment_steps", [2, 5, 16])
def test_random_lives_of_a_store_in_memory(seed: int, segment_steps: int) -> None:
    store = sw.Store(spec_of(), capacity=5000, segment_steps=segment_steps)
    player = Player(store, seed=seed)
    for _ in range(4):
        player.play(40)
        player.step([0, 1, 2])
        player.check()
    assert 3 < store.stats()["broken_episodes"] <= player.breaks
    assert len(store) == len(player.oracle.where)


@pytest.mark.parametrize("seed", range(3))
def test_a_checkpoint_keeps_what_the_last_steps_led_to(tmp_path: Path, seed: int) -> None:
    player = Player(sw.Store(spec_of(), capacity=5000, segment_steps=5), seed=seed)
    for k in range(4):
        player.play(25)
        player.step([0, 1, 2])
        player.store.checkpoint(tmp_path / str(k))
        player.store = sw.Store.open(tmp_path / str(k))
        assert not player.store.recovery.damages
        for lane in range(3):
            player.forget(lane)
        player.step([0, 1, 2])
        player.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_flushed_step_whose_successor_is_known_is_not_cut(tmp_path: Path, seed: int) -> None:
    player = Player(sw.Store(spec_of(), capacity=5000, disk=tmp_path / "disk", segment_steps=5), seed=seed)
    player.play(40)
    player.step([0, 1, 2])
    player.store.flush()
    player.store.close()
    store = sw.Store.open(tmp_path / "disk")
    assert store.recovery is not None and store.recovery.cut_steps == 0 and not store.recovery.damages
    for lane in range(3):
        if player.oracle.can_end_episode(lane):
            player.oracle.end_episode(lane, player.now[lane])
    player.check(store)
    store.close()


def test_successors_are_compared_by_value() -> None:
    spec = sw.Spec(obs=sw.Field((9,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=100)
    nan = np.full(9, np.nan, np.float32)
    other = nan.copy()
    other.view(np.uint32)[8] ^= 1  # another NaN, in the last element
    common: dict[str, Any] = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    store.append(obs=nan, next_obs=nan, **common)
    store.append(obs=nan.astype(np.float64), next_obs=nan, **common)
    assert store.stats()["broken_episodes"] == 0
    store.append(obs=other, next_obs=np.zeros(9, np.float32), **common)
    assert store.stats()["broken_episodes"] == 0
    store.append(obs=-np.zeros(9, np.float32), next_obs=other, **common)
    assert store.stats()["broken_episodes"] == 0
    store.append(obs=np.where(np.arange(9) < 8, nan, 0), **common)
    assert store.stats()["broken_episodes"] == 1
    store.append(obs=nan, **common)  # nobody said what was to come
    assert store.stats()["broken_episodes"] == 1


def test_it_stands_in_for_the_final_observation_and_is_checked_as_any() -> None:
    spec = sw.Spec(obs=sw.Field((1,), "uint8"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=100)
    ends: dict[str, Any] = {"action": 0, "reward": 0.0, "terminated": False, "truncated": True}
    with pytest.raises(ValueError, match="final_obs"):
        store.append(obs=[1], **ends)
    with pytest.raises(ValueError, match="next_obs: value 256 does not fit"):
        store.append(obs=[1], next_obs=[256], **ends)
    with pytest.raises(ValueError, match=r"next_obs: got shape \(2,\)"):
        store.append(obs=[1], next_obs=[1, 2], **ends)
    assert store.total_steps == 0
    store.append(obs=[1], next_obs=[2], **ends)
    store.append(obs=[1], next_obs=[2], final_obs=[3], **ends)
    replay = store.transitions()
    assert replay.fetch(replay.sampleable_ids()).next_obs.ravel().tolist() == [2, 3]


def test_an_episode_can_be_ended_right_after_its_segment_was_sealed() -> None:
    """A segment is sealed when the next step comes; where that step is then refused, the open segment is empty."""
    sent: list[SealedSegment] = []
    fail = [False]

    def hand_over(one: SealedSegment) -> None:
        if fail[0] and one.lane == 1:
            raise OSError("nobody there")
        sent.append(one)

    spec = sw.Spec(obs=sw.Field((1,), "int64", stack=2), action=sw.Field((), "int64"))
    for ended_by in ("break_episode", "end_episode", "next_obs"):
        sent.clear()
        writer = SegmentWriter(spec, 2, hand_over, segment_steps=4)

        def extend(k: int, writer: SegmentWriter = writer) -> None:
            obs, no = np.array([[k], [k + 1000]]), np.zeros(2, bool)
            writer.extend(obs=obs, action=[0, 0], reward=np.ones(2), terminated=no, truncated=no, next_obs=obs + 1)

        for k in range(4):
            extend(k)
        fail[0] = True
        with pytest.raises(OSError, match="nobody there"):
            extend(4)
        fail[0] = False
        assert [one.lane for one in sent] == [0]
        for lane in range(2):
            if ended_by == "break_episode":
                assert writer.break_episode(lane) and not writer.break_episode(lane)
            elif ended_by == "end_episode":
                writer.end_episode(lane, [4 + 1000 * lane])
        for k in range(100, 110):
            extend(k)
        store = sw.Store(spec, capacity=1000, segment_steps=4)
        for one in sent:
            store.add_segment(one.packed, one.dictionaries)
        replay = store.transitions(n_step=2, gamma=1.0)
        batch = replay.fetch(replay.sampleable_ids())
        pairs = set(zip(batch.obs[:, 1, 0].tolist(), batch.next_obs[:, 1, 0].tolist(), strict=True))
        for begin in (0, 1000):
            assert {(begin, begin + 2), (begin + 2, begin + 4), (begin + 3, begin + 4)} <= pairs, ended_by
        assert all(after - before in (1, 2) for before, after in pairs), ended_by
        assert all(abs(stack[1] - stack[0]) <= 1 for stack in batch.obs[:, :, 0].tolist()), ended_by


def test_unsealed_rows_that_left_can_be_followed_by_another_episode() -> None:
    """Lanes opened one after another let unsealed rows of others go; their episodes go on all the same."""
    spec = sw.Spec(obs=sw.Field((1,), "int64", stack=2), action=sw.Field((), "int64"))
    for ending in ("break_episode", "end_episode", "next_obs"):
        store = sw.Store(spec, capacity=8, segment_steps=4)
        common: dict[str, Any] = {"action": 0, "reward": 1.0, "terminated": False, "truncated": False}
        for lane in range(4):
            for k in range(3):
                store.append(lane=lane, obs=[100 * lane + k], next_obs=[100 * lane + k + 1], **common)
        for lane in range(4):
            if ending == "break_episode":
                assert store.break_episode(lane) and not store.break_episode(lane)
            elif ending == "end_episode":
                store.end_episode(lane, [100 * lane + 3])
                with pytest.raises(ValueError, match="has ended already"):
                    store.end_episode(lane, [100 * lane + 3])
        for k in (50, 51):
            for lane in range(4):
                store.append(lane=lane, obs=[100 * lane + k], next_obs=[100 * lane + k + 1], **common)
        replay = store.transitions()
        batch = replay.fetch(replay.sampleable_ids())
        assert len(batch.ids) >= 4
        now, after = batch.obs[:, :, 0], batch.next_obs[:, :, 0]
        np.testing.assert_array_equal(after[:, 1], now[:, 1] + 1)
        np.testing.assert_array_equal(after[:, 0], now[:, 1])
        assert ((now[:, 1] - now[:, 0] == 1) | (now[:, 1] == now[:, 0])).all()


@pytest.mark.parametrize("ending", ["break_episode", "end_episode"])
def test_the_episode_of_a_lane_that_segments_came_for_can_be_ended(ending: str) -> None:
    spec = sw.Spec(obs=sw.Field((1,), "int64"), action=sw.Field((), "int64"))
    sent: list[SealedSegment] = []
    writer = SegmentWriter(spec, 1, sent.append, segment_steps=4)
    for k in range(9):
        no = np.zeros(1, bool)
        writer.extend(obs=[[k]], action=[0], reward=np.ones(1), terminated=no, truncated=no)
    store = sw.Store(spec, capacity=1000, segment_steps=4)
    for one in sent:
        store.add_segment(one.packed, one.dictionaries)
    replay = store.transitions()
    assert len(replay) == 7
    if ending == "break_episode":
        assert store.break_episode(0) and not store.break_episode(0)
    else:
        store.end_episode(0, [8])
        with pytest.raises(ValueError, match="has ended already"):
            store.end_episode(0, [8])
    assert len(replay) == 8
    store.append(obs=[100], action=0, reward=0.0, terminated=False, truncated=True, final_obs=[101])
    batch = replay.fetch(replay.sampleable_ids())
    assert batch.next_obs.ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 101]
