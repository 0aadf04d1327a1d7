"""A plain account of episodes with goals, beside the store that they are appended to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.views.batch import Draws
from sharpwave.views.hindsight import Goals

Array = np.ndarray[Any, Any]
STRATEGIES: list[type[Goals]] = [sw.Future, sw.Final, sw.Episode]
SPEC = sw.Spec(
    obs={
        "observation": sw.Field((2,), "float32", stack=3),
        "achieved_goal": sw.Field((2,), "int64"),
        "desired_goal": sw.Field((2,), "int64"),
    },
    action=sw.Field((), "int64"),
    weight=sw.Field((), "float32"),
)


def reward_fn(achieved: Array, desired: Array, info: Any) -> Array:
    """Tells all of its arguments."""
    return (achieved[:, 1] * 1000 + desired[:, 1] + info["weight"]).astype(np.float32)


@dataclass
class Told:
    """A step as it happened. Goals are (lane, serial), the one achieved after it (lane, serial + 1/2), doubled."""

    lane: int
    serial: int
    ended: bool = False
    terminated: bool = False
    held: bool = True
    deleted: bool = False

    @property
    def goal(self) -> int:
        return 2 * self.serial + 1


@dataclass
class Account:
    """A store, and the steps appended to it, by lane. Each episode's observations are new: none is another's."""

    store: sw.Store
    lanes: list[list[Told]] = field(default_factory=lambda: [[], [], []])
    serial: int = 0

    def observed(self, lane: int, achieved: int) -> dict[str, Array]:
        values = np.array([lane, achieved])
        return {"observation": values.astype(np.float32), "achieved_goal": values, "desired_goal": -1 - values * 0}

    def append(self, lane: int, end: str = "") -> None:
        steps, one = self.lanes[lane], Told(lane, self.serial, end != "", end == "terminated")
        begins = not steps or steps[-1].ended
        before = 2 * one.serial if begins else steps[-1].goal
        self.store.append(
            lane=lane, obs=self.observed(lane, before), next_obs=self.observed(lane, one.goal), action=one.serial,
            reward=0.5, terminated=one.terminated, truncated=end == "truncated", weight=one.serial % 7,
        )  # fmt: skip
        steps.append(one)
        self.serial += 1

    def break_episode(self, lane: int) -> None:
        if self.store.break_episode(lane):
            self.lanes[lane][-1].ended = True

    def clear(self) -> None:
        self.store.clear()
        for steps in self.lanes:
            for one in steps[-1:]:
                one.ended = True

    def delete(self, number: int) -> None:
        """Delete an episode that has ended, if there is any."""
        ended = [one for one in self.store.episodes() if one.ended]
        if ended:
            chosen = ended[number % len(ended)]
            for one in self.lanes[chosen.lane][chosen.first_step : chosen.first_step + chosen.length]:
                one.deleted = True
            assert self.store.delete(episodes=chosen) == chosen.length

    def note_held(self) -> None:
        for lane, steps in enumerate(self.lanes):
            found = self.store.ids(np.full(len(steps), lane), np.arange(len(steps)), missing="mask")
            for one, id_ in zip(steps, found.tolist(), strict=True):
                one.held = id_ >= 0
                assert not (one.held and one.deleted)

    def goals(self, strategy: type[Goals]) -> dict[int, list[int]]:
        """The goals that each step may be given, in order, by serial; only of steps whose episode has ended."""
        self.note_held()
        found = {}
        for steps in self.lanes:
            for i, one in enumerate(steps):
                if not one.held:
                    continue
                last = i
                while not steps[last].ended and last + 1 < len(steps) and steps[last + 1].held:
                    last += 1
                if not steps[last].ended and last + 1 == len(steps):
                    continue  # it goes on
                first = i
                while first > 0 and steps[first - 1].held and not steps[first - 1].ended:
                    first -= 1
                of = {sw.Future: range(i, last + 1), sw.Final: [last], sw.Episode: range(first, last + 1)}
                found[one.serial] = [steps[k].goal for k in of[strategy]]
        return found

    def check(self, replay: sw.Transitions, strategy: type[Goals], k: float) -> None:
        """Every goal of every step, chosen by its random number; and items as they were stored."""
        allowed = self.goals(strategy)
        ids = replay.sampleable_ids()
        assert len(ids) == len(allowed)
        if not len(ids):
            return
        plain = replay.fetch(ids)
        assert not plain.relabelled.any() and (plain.reward == 0.5).all()
        assert (plain.obs["desired_goal"] == -1).all() and sorted(plain.action.tolist()) == sorted(allowed)
        goals = [allowed[serial] for serial in plain.action.tolist()]
        rows = [(row, j) for row, several in enumerate(goals) for j in range(len(several))]
        of = np.array([row for row, _ in rows])
        share = k / (k + 1)
        uniforms = np.array([share * (j + 0.5) / len(goals[row]) for row, j in rows])
        ones = np.ones(len(rows))
        batch = replay.fetch(Draws(ids[of], ones, ones.astype(np.float32), uniforms))
        assert batch.relabelled.all()
        expected = np.array([goals[row][j] for row, j in rows])
        for obs in (batch.obs, batch.next_obs):
            assert obs["desired_goal"][:, 1].tolist() == expected.tolist()
            assert (obs["desired_goal"][:, 0] == plain.lane[of]).all()
        for part in ("achieved_goal", "observation"):
            assert (batch.obs[part] == plain.obs[part][of]).all()
            assert (batch.next_obs[part] == plain.next_obs[part][of]).all()
        assert (batch.next_obs["achieved_goal"][:, 1] == 2 * batch.action + 1).all()
        told = (2 * batch.action + 1) * 1000 + expected + batch.action % 7
        np.testing.assert_array_equal(batch.reward, told.astype(np.float32))
        for name in ("discount", "terminated", "truncated", "action", "weight"):
            assert (batch[name] == plain[name][of]).all()
