"""Observations and actions with rows of any length through appends, evictions, checkpoints, crashes and reopening.

Each has a number beside its rows, a field of one size, from which the rows are made: so rows must agree with their
number wherever both occur, and the numbers with a plain list of the steps.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

import sharpwave as sw
from tests.store.lives import Lives
from tests.support.examples import examples

LENGTHS = (0, 1, 3, 0, 17, 40, 400, 2000)
MOST = 2000
PARTS: dict[str, Any] = {
    "number": sw.Field((), "int64"),
    "text": sw.Field(str, max_length=4 * MOST),
    "tokens": (sw.Field((None,), "int32", max_length=MOST), sw.Field((None, 2), "float32")),
}


def part_of(number: int) -> dict[str, Any]:
    """Make the rows of an observation or action; those of 0 are empty, as padding is."""
    length = 0 if number == 0 else LENGTHS[number % len(LENGTHS)]
    rng = np.random.default_rng(number)
    text = f"{number // 3} " * (length // 8) if number % 2 else "".join(rng.choice([*"abé€"], length))
    tokens = rng.integers(0, 50_000 if number % 3 else 5, length).astype("int32")
    return {"number": number, "text": text, "tokens": (tokens, np.full((length // 2, 2), number % 7, "float32"))}


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several parts as the arguments of ``extend`` and ``add_episode``."""
    return {
        "number": np.array([one["number"] for one in parts], np.int64),
        "text": [one["text"] for one in parts],
        "tokens": tuple([one["tokens"][k] for one in parts] for k in range(2)),
    }


def check(found: dict[str, Any]) -> None:
    """Compare rows with the numbers beside them."""
    numbers = found["number"]
    for place in np.ndindex(*numbers.shape):
        expected = part_of(int(numbers[place]))
        assert found["text"][place] == expected["text"], (place, numbers[place])
        for k in range(2):
            rows = found["tokens"][k][place]
            assert rows.dtype == expected["tokens"][k].dtype
            np.testing.assert_array_equal(rows, expected["tokens"][k])


class RaggedSteps(Lives):
    """A store beside lists: each lane's steps by number, with the numbers of their observations and actions.

    Attributes:
        steps: numbers of a step's observation, its action and the observation after it (-1: unknown yet).
        after: number of the observation that a lane's next step must have, -1 if it may have any; ``None``: the next
            step begins an episode.
    """

    spec = sw.Spec(obs=PARTS["number"], action=PARTS)
    retention: type[Any] = sw.Fifo

    @initialize(
        on_disk=st.booleans(),
        lanes=st.integers(1, 3),
        stride=st.sampled_from([None, 4, 5, 16]),
        ram=st.sampled_from([None, "32MiB"]),
        seed=st.integers(0, 99),
    )
    def begin(self, on_disk: bool, lanes: int, stride: int | None, ram: str | None, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.on_disk, self.lanes, self.made, self.number = on_disk, lanes, 0, 1000 * seed
        where: dict[str, Any] = {"disk": self.folder / "store"} if on_disk else {}
        self.store = sw.Store(
            self.spec, capacity=120, ram=ram, segment_steps=stride, retention=self.retention(), seed=seed, **where
        )
        self.steps: dict[tuple[int, int], list[int]] = {}
        self.after: dict[int, int | None] = dict.fromkeys(range(3))
        self.begin_views()

    def begin_views(self) -> None:
        self.views = [self.store.transitions(sampler=sw.Uniform()), self.store.transitions(n_step=3, name="far")]
        self.windows = self.store.sequences(4, burn_in=2, stride=2, n_step=2)

    def new(self) -> int:
        self.number += 1
        return self.number

    def obs_of(self, number: int) -> Any:
        return number if self.spec.array_obs else part_of(number)

    def all_obs(self, numbers: list[int]) -> Any:
        return np.array(numbers) if self.spec.array_obs else joined([part_of(one) for one in numbers])

    def next_step(self, lane: int) -> int:
        return int(self.store.lane_steps[lane]) if lane < self.store.lanes else 0

    def note(self, lane: int, step: int, obs: int, action: int, after: int, ends: bool) -> None:
        """Note a step, and what it tells of the one before. ``after``: -1 if it is not known yet."""
        known = self.after[lane]
        if known is not None:
            self.steps[lane, step - 1][2] = obs if known == -1 else known
        self.steps[lane, step] = [obs, action, after]
        self.after[lane] = None if ends else after

    @rule(lane=st.integers(0, 2), ends=st.booleans(), knows=st.booleans(), goes_on=st.booleans(), repeats=st.booleans())
    def append(self, lane: int, ends: bool, knows: bool, goes_on: bool, repeats: bool) -> None:
        lane %= self.lanes
        known, step = self.after[lane], self.next_step(lane)
        obs = known if known not in (None, -1) and goes_on else self.new()
        assert obs is not None
        action, after = self.new(), self.new()
        if repeats and (lane, step - 1) in self.steps:
            action = self.steps[lane, step - 1][1]
        given: dict[str, Any] = {}
        if knows:
            given["next_obs"] = self.obs_of(after)
        elif ends:
            given["final_obs"] = self.obs_of(after)
        self.store.append(
            lane=lane, obs=self.obs_of(obs), action=part_of(action), reward=0.5, terminated=ends, truncated=False,
            **given,
        )  # fmt: skip
        self.note(lane, step, obs, action, after if knows or ends else -1, ends)

    @rule(times=st.integers(1, 12), block=st.booleans(), ends=st.lists(st.booleans(), min_size=36, max_size=36))
    def extend(self, times: int, block: bool, ends: list[bool]) -> None:
        lanes = self.lanes
        before = [self.next_step(lane) for lane in range(lanes)]
        ended = np.array(ends[: times * lanes]).reshape(times, lanes)
        numbers = np.array([self.new() for _ in range(3 * times * lanes)]).reshape(3, times, lanes)
        for lane in range(lanes):
            if self.after[lane] not in (None, -1):
                numbers[0, 0, lane] = self.after[lane]
        obs, action, final = numbers
        no = np.zeros((times, lanes), np.bool_)
        for t in range(times):
            rows = {
                "obs": self.all_obs(obs[t].tolist()),
                "action": joined([part_of(one) for one in action[t].tolist()]),
                "final_obs": self.all_obs(final[t].tolist()),
            }
            if not block:
                self.store.extend(**rows, reward=no[t] + 0.0, terminated=ended[t], truncated=no[t])
        if block:
            self.store.extend(
                obs=self.blocks(obs), action=in_blocks(action), final_obs=self.blocks(final), reward=no + 0.0,
                terminated=ended, truncated=no,
            )  # fmt: skip
        for t in range(times):
            for lane in range(lanes):
                over = bool(ended[t, lane])
                after = int(final[t, lane]) if over else -1
                self.note(lane, before[lane] + t, int(obs[t, lane]), int(action[t, lane]), after, over)

    def blocks(self, numbers: npt.NDArray[np.int64]) -> Any:
        return numbers if self.spec.array_obs else in_blocks(numbers)

    @rule(lane=st.integers(0, 2), count=st.integers(1, 40), whole=st.booleans())
    def add_episode(self, lane: int, count: int, whole: bool) -> None:
        lane %= self.lanes
        self.store.break_episode(lane)
        self.note_break(lane)
        obs, actions = [self.new() for _ in range(count + 1)], [self.new() for _ in range(count)]
        step = self.next_step(lane)
        self.store.add_episode(
            lane=lane, obs=self.all_obs(obs), action=joined([part_of(one) for one in actions]),
            reward=np.zeros(count), terminated=True, whole=whole,
        )  # fmt: skip
        for t in range(count):
            self.note(lane, step + t, obs[t], actions[t], obs[t + 1], t == count - 1)

    @rule(lane=st.integers(0, 2))
    def break_episode(self, lane: int) -> None:
        lane %= self.lanes
        self.store.break_episode(lane)
        self.note_break(lane)

    @rule(lane=st.integers(0, 2))
    def end_episode(self, lane: int) -> None:
        lane %= self.lanes
        if self.after[lane] is not None:
            final = self.new()
            self.store.end_episode(lane, self.obs_of(final))
            self.steps[lane, self.next_step(lane) - 1][2] = final
            self.after[lane] = None

    def note_break(self, lane: int) -> None:
        """Note that an episode was broken off: a last step whose successor is unknown was dropped."""
        known, self.after[lane] = self.after[lane], None
        if known is not None:
            self.steps.pop((lane, self.next_step(lane)), None)
            if known != -1:
                self.steps[lane, self.next_step(lane) - 1][2] = known

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.after = dict.fromkeys(range(3))

    def reopened(self) -> None:
        for lane in range(self.lanes):
            self.note_break(lane)

    def check_obs(self, found: Any) -> npt.NDArray[np.int64]:
        """Return the numbers of observations, whose rows are compared with them."""
        if self.spec.array_obs:
            return np.asarray(found)
        check(found)
        return np.asarray(found["number"])

    @invariant()
    def batches_have_the_rows(self) -> None:
        for view in self.views:
            if not len(view):
                continue
            batch = view.sample(12)
            check(batch.action)
            obs, after = self.check_obs(batch.obs), self.check_obs(batch.next_obs)
            for i, (lane, step) in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
                assert [obs[i], batch.action["number"][i]] == self.steps[lane, step][:2]
                assert after[i] == self.steps[lane, step + int(batch.n[i]) - 1][2]
            again = view.fetch(batch.ids)
            assert again.action["text"].strings() == batch.action["text"].strings()
            assert (self.check_obs(again.next_obs) == after).all()

    @invariant()
    def windows_have_the_rows(self) -> None:
        if not len(self.windows):
            return
        batch = self.windows.sample(4)
        check(batch.action)
        obs = self.check_obs(batch.obs)
        for b, t in np.argwhere(batch.mask).tolist():
            at = int(batch.lane[b]), int(batch.step[b]) + t - batch.burn_in
            assert [obs[b, t], batch.action["number"][b, t]] == self.steps[at][:2]
            if t >= batch.burn_in:
                after = obs[b, int(batch.bootstrap[b, t])]
                assert after == self.steps[at[0], at[1] + int(batch.n[b, t]) - 1][2]
        assert not batch.action["number"][~batch.mask].any()

    @rule()
    def episodes_have_the_rows(self) -> None:
        for episode in self.store.episodes():
            check(episode.action)
            obs, actions = self.check_obs(episode.obs), episode.action["number"]
            for t in range(episode.length):
                at = episode.lane, episode.first_step + t
                assert [obs[t], actions[t]] == self.steps[at][:2]
            if episode.ended:
                assert obs[episode.length] == self.steps[episode.lane, episode.first_step + episode.length - 1][2]

    @rule(size=st.integers(1, 8))
    def streams_have_the_rows(self, size: int) -> None:
        for view in self.views:
            if len(view):
                batch = next(view.stream(size, lookahead=2))
                check(batch.action)
                self.check_obs(batch.next_obs)

    @invariant()
    def memory_is_counted(self) -> None:
        values = self.store._log.opened.columns.values
        assert values.nbytes == sum(map(len, values._buffers.values()))
        opened = set(self.store._log.opened.slots.tolist())
        behind = self.store._log.sealing.behind
        opened |= {one.slot for one in behind.pending} if behind is not None else set()
        assert {slot for _, slot in values._buffers} <= opened


def in_blocks(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return the parts of numbers [T, N] as the arguments of ``extend``."""
    rows = [joined([part_of(one) for one in of]) for of in numbers.tolist()]
    return {
        "number": numbers,
        "text": [one["text"] for one in rows],
        "tokens": tuple([one["tokens"][k] for one in rows] for k in range(2)),
    }


class ReservoirSteps(RaggedSteps):
    retention = sw.Reservoir


class RaggedObservations(RaggedSteps):
    spec = sw.Spec(obs=PARTS, action=PARTS)


class ReservoirObservations(RaggedObservations):
    retention = sw.Reservoir


SETTINGS = settings(max_examples=examples(15), stateful_step_count=25, deadline=None)
TestActions, TestActionsInAReservoir = RaggedSteps.TestCase, ReservoirSteps.TestCase
TestObservations, TestObservationsInAReservoir = RaggedObservations.TestCase, ReservoirObservations.TestCase
TestActions.settings = TestActionsInAReservoir.settings = SETTINGS
TestObservations.settings = TestObservationsInAReservoir.settings = SETTINGS
