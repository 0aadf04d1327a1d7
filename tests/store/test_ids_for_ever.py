"""An id that was handed out once names that step or none: whatever is dropped, evicted, refused, or opened again."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((), "int64"), action=sw.Field((), "int64"), serial=sw.Field((), "int64"))
LANES = 3


class Patience:
    """Limiter that lets so many appends pass, and then none."""

    def __init__(self) -> None:
        self.left: int | None = None

    def check(self, capacity: int | None, max_times_sampled: int | None) -> None:
        pass

    def sample_waits(self, batch_size: int, cursor: Any) -> str | None:
        return None

    def append_waits(self, steps: int, cursor: Any) -> str | None:
        if self.left is None:
            return None
        self.left -= 1
        return None if self.left >= 0 else "the test is out of patience"


class IdMachine(RuleBasedStateMachine):
    """A store, and a plain dict of the serial number of every step by every id that it ever gave."""

    folder: Path | None = None

    @initialize(
        capacity=st.integers(12, 60),
        segment_steps=st.integers(1, 8),
        retention=st.sampled_from([sw.Fifo, sw.Reservoir, sw.LowestPriority]),
        on_disk=st.booleans(),
        limited=st.booleans(),
    )
    def build(self, capacity: int, segment_steps: int, retention: Any, on_disk: bool, limited: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.disks = 0
        self.disk = self.folder / "disk" if on_disk else None
        self.store = sw.Store(
            SPEC, capacity=capacity, segment_steps=segment_steps, retention=retention(), disk=self.disk
        )
        self.patience = Patience() if limited else None
        self.serials: dict[int, int] = {}
        self.serial = 0
        self.look_from_now_on()
        if on_disk:
            self.append(0, "terminated", False)
            self.store.flush()

    def teardown(self) -> None:
        if self.folder is not None:
            self.store.close()
            shutil.rmtree(self.folder)

    def look_from_now_on(self) -> None:
        self.view = self.store.transitions(sampler=sw.Prioritized(), limiter=self.patience)

    # writing

    def fields(self, *shape: int) -> dict[str, Any]:
        count = int(np.prod(shape))
        serial = np.arange(self.serial, self.serial + count).reshape(shape)
        return dict(obs=serial, action=serial, serial=serial, reward=np.zeros(shape, np.float32))

    def give(self, ids: Any, serials: Any) -> None:
        """Note ids of new steps, none of which was ever given."""
        for one, serial in zip(np.ravel(ids).tolist(), np.ravel(serials).tolist(), strict=True):
            assert one not in self.serials, f"the id of step {self.serials[one]} is given to step {serial}"
            self.serials[one] = serial

    ends = st.sampled_from(["", "", "", "terminated", "truncated"])

    @rule(lane=st.integers(0, LANES - 1), end=ends, told=st.booleans())
    def append(self, lane: int, end: str, told: bool) -> None:
        given: dict[str, Any] = {name: int(value[0]) for name, value in self.fields(1).items()}
        after = -1 if end else self.serial if told else None
        ends: dict[str, Any] = {"terminated": end == "terminated", "truncated": end == "truncated"}
        self.give(self.store.append(lane=lane, final_obs=after, next_obs=after, **given | ends), given["serial"])
        self.serial += 1
        self.check()

    @rule(times=st.integers(0, 12), ends=st.booleans(), patience=st.integers(0, 4))
    def extend(self, times: int, ends: bool, patience: int) -> None:
        """One step of every lane, or a rollout, of which an error leaves the beginning."""
        given = self.fields(times, LANES) if times else self.fields(LANES)
        over = np.zeros(given["serial"].shape, np.bool_)
        over[-1] = ends
        self.write_in_parts(
            lambda: self.store.extend(**given, terminated=over, truncated=over & False, timeout=0), given, patience
        )

    @rule(lane=st.integers(0, LANES - 1), steps=st.integers(1, 20), whole=st.booleans(), patience=st.integers(0, 4))
    def add_episode(self, lane: int, steps: int, whole: bool, patience: int) -> None:
        self.break_episode(lane)
        given = self.fields(steps)
        obs = np.append(given.pop("obs"), -1)
        self.write_in_parts(
            lambda: self.store.add_episode(lane=lane, obs=obs, terminated=True, whole=whole, timeout=0, **given),
            given,
            patience,
        )

    def write_in_parts(self, write: Any, given: dict[str, Any], patience: int) -> None:
        before = np.zeros(LANES, np.int64)
        before[: self.store.lanes] = self.store.lane_steps
        if self.patience is not None:
            self.patience.left = patience
        try:
            self.give(write(), given["serial"])
        except sw.LimiterTimeoutError:
            self.give_remaining(before, given["serial"])
        finally:
            if self.patience is not None:
                self.patience.left = None
        self.serial += given["serial"].size
        self.check()

    def give_remaining(self, before: Any, serials: Any) -> None:
        """Note ids of those steps of a call that an error left."""
        lanes = serials.shape[-1] if serials.ndim == 2 else 1
        for lane, end in enumerate(self.store.lane_steps.tolist()):
            numbers = np.arange(before[lane], end)
            found = self.store.ids(lane, numbers, missing="mask")
            column = serials.reshape(-1, lanes)[: len(numbers), lane if lanes > 1 else 0]
            self.give(found[found >= 0], column[found >= 0])

    # what takes steps away

    @rule(lane=st.integers(0, LANES - 1))
    def break_episode(self, lane: int) -> None:
        self.store.break_episode(lane)
        self.check()

    @rule(lane=st.integers(0, LANES - 1))
    def end_episode(self, lane: int) -> None:
        if lane < self.store.lanes:
            try:
                self.store.end_episode(lane, -1)
            except ValueError:
                return  # no episode is under way
            self.check()

    @rule(sure=st.integers(0, 3))
    def clear(self, sure: int) -> None:
        if not sure:
            self.store.clear()
            self.check()

    @rule(capacity=st.integers(12, 60))
    def resize(self, capacity: int) -> None:
        self.store.resize(capacity=capacity)
        self.check()

    # other lives

    @precondition(lambda self: self.disk is not None)
    @rule(flushed=st.booleans())
    def killed(self, flushed: bool) -> None:
        """Opened from the files as they are in the midst of everything."""
        assert self.folder is not None and self.disk is not None
        if flushed:
            self.store.flush()
        self.disks += 1
        left = shutil.copytree(self.disk, self.folder / f"disk{self.disks}")
        self.store.close()
        self.disk = left
        self.store = sw.Store.open(left)
        self.look_from_now_on()
        self.check()

    @rule(sure=st.integers(0, 2))
    def opened_again(self, sure: int) -> None:
        assert self.folder is not None
        if sure:
            return
        path = self.disk
        if path is None:
            self.disks += 1
            path = self.folder / f"checkpoint{self.disks}"
            self.store.checkpoint(path)
        self.store.close()
        self.store = sw.Store.open(path)
        self.look_from_now_on()
        self.check()

    # reading

    def check(self) -> None:
        """Every id ever given names its step, or is stale, for all that takes ids."""
        ids = np.array(list(self.serials), np.int64)
        if not len(ids):
            return
        batch = self.view.fetch(ids, missing="mask")
        there = batch.ids >= 0
        assert batch["serial"][there].tolist() == [self.serials[one] for one in ids[there].tolist()]
        assert self.view.update_priorities(ids, np.ones(len(ids))) == np.count_nonzero(~there)
        for lane, end in enumerate(self.store.lane_steps.tolist()):
            found = self.store.ids(lane, np.arange(max(0, end - 80), end), missing="mask")
            for one in found[found >= 0].tolist():
                assert one in self.serials
                self.store.annotations_of([one])
        for one in ids[~there].tolist():
            if one not in held(self.store):
                with pytest.raises(KeyError):
                    self.store.annotations_of([one])


def held(store: sw.Store) -> set[int]:
    """Ids of all steps that are held."""
    found: set[int] = set()
    for lane, end in enumerate(store.lane_steps.tolist()):
        ids = store.ids(lane, np.arange(end), missing="mask")
        found.update(ids[ids >= 0].tolist())
    return found


TestIds = IdMachine.TestCase
TestIds.settings = settings(max_examples=min(settings().max_examples, 8), stateful_step_count=25)


def append(store: sw.Store, serial: int, **ends: Any) -> int:
    given: dict[str, Any] = {"terminated": False, "truncated": False} | ends
    return store.append(obs=serial, action=serial, serial=serial, reward=0.0, **given)


@pytest.mark.parametrize("segment_steps", [4, 64])
@pytest.mark.parametrize("before", range(6))
def test_the_id_of_a_step_dropped_with_its_episode_is_stale(before: int, segment_steps: int) -> None:
    """The dropped one is the only step, or lies anywhere in a segment, or begins one in the midst of its episode."""
    store = sw.Store(SPEC, capacity=100, segment_steps=segment_steps)
    view = store.transitions(sampler=sw.Prioritized())
    kept = [append(store, k) for k in range(before)]
    gone = append(store, before)
    store.break_episode(0)
    coming = [append(store, k) for k in range(10, 13)]
    assert len({*kept, gone, *coming}) == before + 4
    batch = view.fetch(np.array([*kept, gone, *coming]), missing="mask")
    assert batch["serial"].tolist() == [*range(before), 0, 10, 11, 0]
    assert batch.truncated.tolist()[: before + 1] == [False] * (before - 1) + [True] * min(before, 1) + [False]
    assert view.update_priorities(np.array([gone, *coming]), np.ones(4)) == 2
    with pytest.raises(KeyError, match="evicted"):
        store.annotations_of([gone])


@pytest.mark.parametrize("dropped", [1, 2])
def test_nor_does_it_name_a_step_of_a_segment_from_elsewhere(dropped: int) -> None:
    store = sw.Store(SPEC, capacity=100)
    gone = []
    for k in range(dropped):
        gone.append(append(store, k))
        store.break_episode(0)
    sent: list[sw.SealedSegment] = []
    writer = sw.SegmentWriter(SPEC, 1, sent.append)
    for k in range(2):
        serial = np.array([7 + k])
        step: dict[str, Any] = {"obs": serial, "action": serial, "serial": serial, "reward": [0.0]}
        writer.extend(terminated=[k == 1], truncated=[False], **step)
    writer.seal()
    for sealed in sent:
        store.add_segment(sealed.packed, sealed.dictionaries)
    batch = store.transitions().fetch(np.array(gone), missing="mask")
    assert (batch.ids == -1).all() and len(store) == 2


def test_a_checkpoint_remembers_that_a_step_was_dropped(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=100)
    kept, gone = append(store, 0, terminated=True), append(store, 1)
    store.break_episode(0)
    store.checkpoint(tmp_path / "checkpoint")
    opened = sw.Store.open(tmp_path / "checkpoint")
    assert append(opened, 2, terminated=True) not in (kept, gone)
    batch = opened.transitions().fetch(np.array([kept, gone]), missing="mask")
    assert batch.ids.tolist() == [kept, -1]


def test_nor_do_ids_come_back_that_a_killed_process_gave_to_steps_it_dropped(tmp_path: Path) -> None:
    """Nothing of them was ever written: more segments were begun than a note on disk reserves ids for."""
    store = sw.Store(SPEC, capacity=100, segment_steps=4, disk=tmp_path / "store")
    append(store, 0, terminated=True)
    store.flush()
    patience = Patience()
    view = store.transitions(limiter=patience)
    given: dict[str, Any] = {
        "action": np.arange(11),
        "serial": np.arange(11),
        "reward": np.zeros(11),
        "obs": np.arange(12),
    }
    for _ in range(150):
        patience.left = 2
        with pytest.raises(sw.LimiterTimeoutError):
            store.add_episode(terminated=True, whole=True, timeout=0, **given)
    patience.left = None
    last = append(store, 1, terminated=True)
    assert view.fetch(np.array([last]))["serial"].tolist() == [1]
    opened = sw.Store.open(shutil.copytree(tmp_path / "store", tmp_path / "killed"))
    assert append(opened, 2) > last
