"""Sequences under the transitions' state machine: every window bit for bit, beside transitions, on the same store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

import sharpwave as sw
from tests.persistence.test_checkpoint_machine import CheckpointMachine, DiskCheckpointMachine
from tests.support.sequence_oracle import (
    SequenceOracle,
    Settings,
    assert_same_sequences,
    assert_same_windows,
    window_priority,
)
from tests.views.test_transitions_machine import GAMMAS


@dataclass
class SequencesUnderTest:
    """A view, what it was asked for, and what the contract says of its priorities and uses.

    Attributes:
        alpha: None: uniform.
        most: times that a window is given out.
        asked_often: whether it is looked at after every operation; or else it may lag behind.
        known: raw priorities of the windows that can be sampled, by serial; of a new one the highest so far.
        used: how often each was given out.
        id_of: by serial, for ever.
    """

    replay: Any
    oracle: SequenceOracle
    eta: float
    alpha: float | None
    eps: float
    most: int | None
    asked_often: bool
    highest: float = 1.0
    known: dict[int, float] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    id_of: dict[int, int] = field(default_factory=dict)
    stream: Any = None

    def make(self, store: sw.Store, name: str) -> Any:
        sampler = sw.Uniform() if self.alpha is None else sw.Prioritized(alpha=self.alpha, beta=0.5, eps=self.eps)
        return store.sequences(
            **self.oracle.settings.asked(), eta=self.eta, sampler=sampler, name=name, max_times_sampled=self.most
        )


class SequencesMachine(CheckpointMachine):
    """In memory, with checkpoints and other capacities; episodes are broken off too."""

    def make_store(self, spec: sw.Spec, **settings: Any) -> sw.Store:
        self.sequences: list[SequencesUnderTest] = []
        self.promised: dict[int, Any] = {}  # by lane, what its last step led to, where the store was told
        return super().make_store(spec, **settings)

    @precondition(lambda self: hasattr(self, "store") and len(self.sequences) < 4)
    @rule(
        data=st.data(),
        length=st.integers(1, 7),
        burn_in=st.sampled_from([0, 0, 1, 2, 3, 5, 9]),
        n_step=st.sampled_from([1, 1, 2, 3, 5]),
        gamma=st.sampled_from(GAMMAS),
        eta=st.sampled_from([0.0, 0.5, 0.75, 1.0]),
        alpha=st.sampled_from([None, 0.5, 1.0]),
        eps=st.sampled_from([1e-6, 0.5]),
        most=st.sampled_from([None, None, None, 1, 2]),
        asked_often=st.booleans(),
    )
    def sequences_too(
        self,
        data: st.DataObject,
        length: int,
        burn_in: int,
        n_step: int,
        gamma: float,
        eta: float,
        alpha: float | None,
        eps: float,
        most: int | None,
        asked_often: bool,
    ) -> None:
        stride = data.draw(st.one_of(st.none(), st.integers(1, length)), "stride")
        oracle = SequenceOracle(self.oracle, Settings(length, burn_in, stride, n_step, gamma))
        view = SequencesUnderTest(None, oracle, eta, alpha, eps, most, asked_often)
        view.replay = view.make(self.store, f"sequences {len(self.sequences)}")
        self.sequences.append(view)

    # episodes that are broken off

    @rule(data=st.data(), kind=st.integers(0, 2), reward=st.integers(-8, 8), forgotten=st.booleans())
    def append_with_its_successor(self, data: st.DataObject, kind: int, reward: int, forgotten: bool) -> None:
        """Then a reset that the store is not told of breaks the episode off: it sees that another one has begun."""
        lane = data.draw(st.integers(0, self.lanes - 1), "lane")
        (row,) = self.rows([lane], [""], [kind], [reward / 4])["table"]
        if lane in self.promised and not forgotten:
            row["obs"] = self.promised[lane]
        after = self.observation(3_000_000 + self.oracle.total_steps, kind)
        names = ("obs", "action", "reward", "terminated", "truncated", "serial", "features", "core")
        one = self.store.append(lane=lane, next_obs=after, **{name: row[name] for name in names})
        self.remember([lane], [row], False)
        self.note_ids([row], [one])
        self.promised[lane] = after

    def note_break(self, lane: int, obs: Any) -> None:
        """What comes may not be what the lane's last step led to."""
        promised = self.promised.pop(lane, None)
        if promised is not None and not same_obs(promised, obs) and self.oracle.can_end_episode(lane):
            self.oracle.end_episode(lane, promised)

    def remember(self, lanes: list[int], table: list[dict[str, Any]], finals_given: bool) -> None:
        for lane, row in zip(lanes, table, strict=True):
            self.note_break(lane, row["obs"])
        super().remember(lanes, table, finals_given)

    @rule(data=st.data())
    def break_episode(self, data: st.DataObject) -> None:
        lane = data.draw(st.integers(0, self.lanes - 1), "lane")
        going_on, before = self.oracle.can_end_episode(lane), len(self.store)
        assert self.store.break_episode(lane) == going_on
        promised = self.promised.pop(lane, None)
        if not going_on:
            return
        if promised is not None:
            self.oracle.end_episode(lane, promised)
        elif len(self.store) < before:
            del self.id_of[self.oracle.lanes[lane][-1].serial]  # which the lane's next step gets
            self.oracle.drop_last(lane)
            self.let_go += 1
            self.dropped = self.lanes
        else:  # it had been evicted before: whatever it led to
            self.oracle.end_episode(lane, self.oracle.lanes[lane][-1].obs)

    # sampling and priorities

    def left(self, view: SequencesUnderTest) -> dict[int, Any]:
        """Windows that can be sampled; their priorities are known from now on."""
        there = view.oracle.sampleable(self.held)
        view.used = {serial: view.used.get(serial, 0) for serial in there}
        left = {s: e for s, e in there.items() if view.most is None or view.used[s] < view.most}
        view.known = {serial: view.known.get(serial, view.highest) for serial in left}
        return left

    def checked(self, view: SequencesUnderTest, batch: Any) -> list[int]:
        serials = assert_same_windows(batch, view.oracle, self.held)
        for serial, id_ in zip(serials, batch.ids.tolist(), strict=True):
            assert view.id_of.setdefault(serial, id_) == id_, f"the window of step {serial} changed its id"
        assert len(set(view.id_of.values())) == len(view.id_of), "an id was used for two windows"
        return serials

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), size=st.integers(1, 12))
    def sample_sequences(self, data: st.DataObject, size: int) -> None:
        view = data.draw(st.sampled_from(self.sequences), "view")
        left = self.left(view)
        room = size if view.most is None else sum(view.most - view.used[serial] for serial in left)
        if not left or room < size:
            with pytest.raises(sw.EmptyError):
                view.replay.sample(size)
            return
        batch = view.replay.sample(size)
        serials = self.checked(view, batch)
        assert len(serials) == size and set(serials) <= set(left)
        if view.most is not None:
            for serial in serials:
                view.used[serial] += 1
                assert view.used[serial] <= view.most
            return
        if view.alpha is None:
            np.testing.assert_allclose(batch.probabilities, 1 / len(left), rtol=1e-12)
            np.testing.assert_array_equal(batch.weights, np.ones(size, np.float32))
            return
        alpha = view.alpha
        total = sum(priority**alpha for priority in view.known.values())
        expected = [view.known[serial] ** alpha / total for serial in serials]
        np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-5)
        mass = len(left) * batch.probabilities
        np.testing.assert_allclose(batch.weights, mass**-0.5 / (mass**-0.5).max(), rtol=1e-5)

    @precondition(lambda self: any(view.most is None for view in self.sequences))
    @rule(data=st.data(), size=st.integers(1, 7), lookahead=st.integers(0, 3), count=st.integers(1, 3))
    def stream_sequences(self, data: st.DataObject, size: int, lookahead: int, count: int) -> None:
        """Batches that were drawn before steps came and went."""
        view = data.draw(st.sampled_from([view for view in self.sequences if view.most is None]), "view")
        if not self.left(view):
            return
        if view.stream is None:
            view.stream = view.replay.stream(size, lookahead=lookahead)
        for _ in range(count):
            self.checked(view, next(view.stream))

    @precondition(lambda self: any(view.id_of and view.alpha is not None for view in self.sequences))
    @rule(data=st.data(), size=st.integers(0, 6))
    def update_sequence_priorities(self, data: st.DataObject, size: int) -> None:
        """Windows that are there mostly; also evicted and used-up ones, and the same one several times."""
        view = data.draw(st.sampled_from([v for v in self.sequences if v.id_of and v.alpha is not None]), "view")
        left = self.left(view)
        pool = sorted(view.id_of) if data.draw(st.booleans(), "any window") else sorted(left.keys() & view.id_of.keys())
        if not pool:
            return
        serials = data.draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size), "serials")
        steps = view.oracle.settings.length
        errors = np.array(
            [[data.draw(st.integers(-4, 4), "td error") / 2 for _ in range(steps)] for _ in serials], np.float32
        ).reshape(size, steps)
        given = []
        for k, serial in enumerate(serials):
            if serial in left:
                real = view.oracle.window(serial, left[serial]).real
                errors[k, ~real] = 1e6  # counts for nothing
                given.append((serial, window_priority(errors[k], real, view.eta) + view.eps))
        stale = view.replay.update_priorities(np.array([view.id_of[serial] for serial in serials], np.int64), errors)
        assert stale == len(serials) - len(given)
        view.known.update(given)  # of a repeated window the last wins
        view.highest = max([view.highest, *(priority for _, priority in given)])

    # what must always hold

    @invariant()
    def everything_is_as_the_oracle_says(self) -> None:
        super().everything_is_as_the_oracle_says()  # which learns what is held
        for view in self.sequences:
            if view.asked_often:
                self.check(view)

    def check(self, view: SequencesUnderTest) -> None:
        left = self.left(view)
        ids = view.replay.sampleable_ids()
        assert len(ids) == len(set(ids.tolist())) == len(view.replay) == len(left)
        if len(ids):
            assert set(self.checked(view, view.replay.fetch(ids))) == set(left)

    def others_go_on(self, new: sw.Store, size: int) -> None:
        for view in self.sequences:
            old, before = view.replay, set(view.replay.sampleable_ids().tolist())
            view.replay = view.make(new, old.name)
            assert set(view.replay.sampleable_ids().tolist()) == before
            if len(before) and view.most is None:
                assert_same_draws(old.sample(size), view.replay.sample(size))
            if view.stream is not None:
                stream = view.replay.stream(view.stream._size, lookahead=view.stream._lookahead)
                if len(before):
                    assert_same_draws(next(view.stream), next(stream))
                view.stream = stream

    def teardown(self) -> None:
        try:
            for number, view in enumerate(self.sequences if hasattr(self, "store") else []):
                self.check(view)
                late = SequencesUnderTest(None, view.oracle, view.eta, None, 0.0, None, True)
                late.replay = late.make(self.store, f"late {number}")
                ids = assert_same_sequences(late.replay, view.oracle, self.held)
                assert all(ids.get(serial, id_) == id_ for serial, id_ in view.id_of.items()), "ids are the steps' own"
                gone = [id_ for serial, id_ in view.id_of.items() if serial not in ids]
                if gone:
                    with pytest.raises(KeyError, match=str(gone[0])):
                        view.replay.fetch(np.array(gone[:1], np.int64))
        finally:
            super().teardown()


class DiskSequencesMachine(SequencesMachine, DiskCheckpointMachine):
    """On disk, where segments leave memory and regions are copied."""


def same_obs(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(same_obs(value, other[name]) for name, value in one.items())
    return bool(one.tobytes() == other.tobytes())


def assert_same_draws(one: Any, other: Any) -> None:
    for name in ("reward", "discount", "bootstrap", "mask", "first", "weights", "probabilities", "ids", "serial"):
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


TestSequences = SequencesMachine.TestCase
TestSequences.pytestmark = [pytest.mark.timeout(900)]  # type: ignore[attr-defined]  # a failure is shrunk for minutes
TestSequencesOnDisk = DiskSequencesMachine.TestCase
TestSequencesOnDisk.pytestmark = [pytest.mark.timeout(900)]  # type: ignore[attr-defined]
