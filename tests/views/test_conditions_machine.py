"""Views with conditions beside a list of episodes and predicates in Python, in memory and on disk, through crashes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sharpwave as sw
from tests.support.examples import examples

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
pytestmark = pytest.mark.filterwarnings("ignore:where=:RuntimeWarning")  # of versions that are no numbers

SPEC = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
ALPHA, EPS = 0.5, 0.25
Facts = dict[str, Any]


def of(facts: Facts, name: str, kind: type | tuple[type, ...]) -> Any:
    """An annotation if it has the type, else ``None``, as SQL's null."""
    value = facts["info"].get(name)
    return value if isinstance(value, kind) else None


CONDITIONS: list[tuple[str, Callable[[Facts, Facts], bool]]] = [
    ("task = 'push'", lambda one, step: of(one, "task", str) == "push"),
    ('"return" >= 1 or length > 5', lambda one, step: one["return"] >= 1 or one["length"] > 5),
    ("version > 1 and length % 2 = 0", lambda one, step: (of(one, "version", int) or 0) > 1 and not one["length"] % 2),
    ("success", lambda one, step: of(one, "success", bool) is True),
    ("ended = 'terminated' and first_step > 3", lambda one, step: one["ended"] == "terminated" and one["first"] > 3),
    ("task is null", lambda one, step: "task" not in one["info"]),
    ("reward > 0 and length > 2", lambda one, step: step["reward"] > 0 and one["length"] > 2),
    (
        "task = 'pull' and action % 3 = 0",
        lambda one, step: one["info"].get("task") == "pull" and not step["action"] % 3,
    ),
]
KINDS: dict[str, Callable[[], Any]] = {
    "uniform": sw.Uniform,
    "prioritized": lambda: sw.Prioritized(alpha=ALPHA, eps=EPS),
    "fifo": sw.Fifo,
}


@dataclass
class Episode:
    """Steps of one episode, by their numbers in its lane, and how it ended."""

    info: dict[str, Any]
    steps: dict[int, Facts] = field(default_factory=dict)
    ended: str | None = None
    carried: dict[str, Any] = field(default_factory=dict)
    """``info`` when the last step was appended."""


@dataclass
class Followed:
    """What a view should have: judged steps, matching ones in order, with priorities."""

    matches: Callable[[Facts, Facts], bool]
    judged: set[tuple[int, int]] = field(default_factory=set)
    priorities: dict[tuple[int, int], float] = field(default_factory=dict)
    largest: float = 1.0


class ConditionsMachine(RuleBasedStateMachine):
    """A store, views of three samplers, and the account of its episodes."""

    on_disk = False

    @initialize(capacity=st.integers(12, 60), segment=st.integers(1, 6), chosen=st.permutations(range(len(CONDITIONS))))
    def build(self, capacity: int, segment: int, chosen: list[int]) -> None:
        self.folders: list[str] = []
        self.conditions = dict(zip(KINDS, (CONDITIONS[k] for k in chosen), strict=False))
        self.followed = {name: Followed(matches) for name, (_, matches) in self.conditions.items()}
        self.lanes: list[list[Episode]] = [[], []]
        self.next_info: list[dict[str, Any]] = [{}, {}]
        self.next_step = [0, 0]
        disk = self.folder() if self.on_disk else None
        self.store = sw.Store(SPEC, capacity=capacity, segment_steps=segment, disk=disk, seed=1)
        self.views = self.made()

    def folder(self) -> Path:
        self.folders.append(tempfile.mkdtemp(prefix="conditions-"))
        return Path(self.folders[-1]) / "store"

    def made(self) -> dict[str, Any]:
        return {
            name: self.store.transitions(name=name, sampler=kind(), where=self.conditions[name][0])
            for name, kind in KINDS.items()
        }

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        for folder in self.folders if hasattr(self, "folders") else ():
            shutil.rmtree(folder)

    # the account

    def follow(self) -> None:
        """Account for evictions, then judge the episodes that have ended."""
        for lane, episodes in enumerate(self.lanes):
            for one in episodes:
                numbers = list(one.steps)
                if not numbers:
                    continue
                gone = self.store.ids(lane, numbers, missing="mask") < 0
                for step in np.array(numbers)[gone].tolist():
                    del one.steps[step]
        for followed in self.followed.values():
            for lane, episodes in enumerate(self.lanes):
                for one in episodes:
                    self.judge(followed, lane, one)
            there = {(lane, step) for lane, episodes in enumerate(self.lanes) for one in episodes for step in one.steps}
            followed.judged &= there
            followed.priorities = {key: value for key, value in followed.priorities.items() if key in there}

    def judge(self, followed: Followed, lane: int, one: Episode) -> None:
        new = [step for step in one.steps if (lane, step) not in followed.judged]
        if one.ended is None or not new:
            return
        facts = {
            "info": one.info,
            "ended": one.ended,
            "first": min(one.steps),
            "length": len(one.steps),
            "return": sum(step["reward"] for step in one.steps.values()),
        }
        for step in new:
            followed.judged.add((lane, step))
            if followed.matches(facts, one.steps[step]):
                followed.priorities[lane, step] = followed.largest

    def running(self, lane: int) -> Episode | None:
        episodes = self.lanes[lane]
        return episodes[-1] if episodes and episodes[-1].ended is None else None

    # operations

    @rule(
        lane=st.integers(0, 1),
        rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=9),
        ends=st.sampled_from([None, "terminated", "truncated"]),
        action=st.integers(0, 8),
    )
    def append(self, lane: int, rewards: list[float], ends: str | None, action: int) -> None:
        """Append steps one by one; the last may end the episode."""
        for k, reward in enumerate(rewards):
            one = self.running(lane)
            if one is None:
                one = Episode(self.next_info[lane])
                self.next_info[lane] = {}
                self.lanes[lane].append(one)
            ending = ends if k == len(rewards) - 1 else None
            step = self.next_step[lane]
            self.store.append(
                lane=lane,
                obs=np.full(2, step),
                action=action + k,
                reward=reward,
                terminated=ending == "terminated",
                truncated=ending == "truncated",
                final_obs=np.full(2, step + 1),
            )
            one.carried = one.info
            one.steps[step] = {"reward": reward, "action": action + k}
            one.ended = ending
            self.next_step[lane] += 1
            self.follow()
            for view in self.views.values():
                len(view)

    @rule(
        lane=st.integers(0, 1),
        info=st.fixed_dictionaries(
            {},
            optional={
                "task": st.sampled_from(["push", "pull"]),
                "version": st.integers(0, 4) | st.just("new"),
                "success": st.booleans() | st.just(None),
                "first_step": st.integers(0, 9),
            },
        ),
    )
    def annotate(self, lane: int, info: dict[str, Any]) -> None:
        """Annotate an episode before its first step, or later; a key is not removed."""
        info = {name: value for name, value in info.items() if value is not None}
        self.store.annotate(lane, info, episode=True)
        one = self.running(lane)
        if one is None:
            self.next_info[lane].update(info)
        else:
            one.info = {**one.info, **info}

    @rule(count=st.integers(1, 20), errors=st.randoms(use_true_random=False))
    def learn(self, count: int, errors: Any) -> None:
        """Draw from every view, and set the priorities of the drawn items."""
        for name, view in self.views.items():
            expected = self.followed[name].priorities
            if not expected:
                with pytest.raises(sw.EmptyError, match="matches"):
                    view.sample(count)
                continue
            batch = view.sample(count)
            drawn = list(zip(batch.lane.tolist(), batch.step.tolist(), strict=True))
            assert set(drawn) <= expected.keys()
            np.testing.assert_array_equal(batch.obs[:, 0], batch.step)
            np.testing.assert_array_equal(batch.next_obs[:, 0], batch.step + 1)
            if name == "fifo":
                assert drawn[: len(expected)] == list(expected)[:count]
            td_error = np.array([errors.random() for _ in range(count)])
            assert view.update_priorities(batch.ids, td_error) == 0
            if name == "prioritized":
                for key, error in zip(drawn, td_error.tolist(), strict=True):
                    expected[key] = error + EPS
                self.followed[name].largest = max(self.followed[name].largest, (td_error + EPS).max())

    @rule()
    def update_all(self) -> None:
        """Ids of steps that do not match are stale, also as ids of a view without a condition."""
        ids = [one.ids for one in self.store.episodes()]
        for name, view in self.views.items():
            expected = self.followed[name].priorities
            for some in ids:
                episode = view.fetch(some, missing="mask")
                there = episode.ids >= 0
                keys = list(zip(episode.lane[there].tolist(), episode.step[there].tolist(), strict=True))
                assert set(keys) <= expected.keys()
                assert view.update_priorities(some, np.full(len(some), 0.5)) == len(some) - len(keys)
                if name == "prioritized" and keys:
                    expected.update(dict.fromkeys(keys, 0.5 + EPS))

    @rule()
    def clear(self) -> None:
        """Evict every step."""
        self.store.clear()
        for episodes in self.lanes:
            if episodes and episodes[-1].ended is None:
                episodes[-1].ended = "truncated"

    @rule()
    def checkpoint(self) -> None:
        """Go on in a checkpoint, in which the views draw the same batches."""
        folder = self.folder()
        self.store.checkpoint(folder)
        before, views = self.store, self.views
        self.store = sw.Store.open(folder, disk=self.folder() if self.on_disk else None)
        self.views = self.made()
        for name, view in views.items():
            if len(view):
                np.testing.assert_array_equal(view.sample(8).step, self.views[name].sample(8).step)
        before.close()

    @precondition(lambda self: self.on_disk)
    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        """Close the store, or kill it after a flush; running episodes end, without their last steps."""
        folder = self.folder()
        if clean:
            self.store.close()
        else:
            self.store.flush()
        disk = self.store._log.disk
        assert disk is not None
        shutil.copytree(disk.folder, folder, ignore=shutil.ignore_patterns("lock"))
        self.store.close()
        self.store = sw.Store.open(folder)
        for lane, episodes in enumerate(self.lanes):
            one = self.running(lane)
            if one is not None:
                one.steps.pop(self.next_step[lane] - 1, None)
                one.ended = "truncated"
                if one.steps:  # no segment may have been sealed after the last annotation
                    (kept,) = self.store.annotations_of(self.store.ids(lane, [max(one.steps)]))
                    assert kept in (one.info, one.carried)
                    one.info = kept
            self.next_info[lane] = {}
            opened = lane < self.store.lanes  # a lane that lost its only step is not
            self.next_step[lane] = int(self.store.lane_steps[lane]) if opened else 0
            assert [one for one in episodes if one.steps] or not (opened and len(self.store.episodes(lanes=lane)))
        self.views = self.made()

    # what holds

    @invariant()
    def views_have_what_matches(self) -> None:
        if not hasattr(self, "views"):
            return
        self.follow()
        for name, view in self.views.items():
            expected = self.followed[name].priorities
            ids = view.sampleable_ids()
            assert len(view) == len(ids) == len(expected), name
            batch = view.fetch(ids) if len(ids) else None
            found = [] if batch is None else list(zip(batch.lane.tolist(), batch.step.tolist(), strict=True))
            assert set(found) == expected.keys(), name
            if name == "prioritized" and found:
                masses = view.sampler.probabilities(ids & 0xFFFFFFFF) * view.sampler.mass
                np.testing.assert_allclose(masses, [expected[key] ** ALPHA for key in found], rtol=1e-9)
            if name == "fifo" and found:
                order = view.fetch(view.sampler.state()["order"] | (ids[0] & ~0xFFFFFFFF), missing="mask")
                assert len(order) == len(expected)


class DiskMachine(ConditionsMachine):
    on_disk = True


TestInMemory, TestOnDisk = ConditionsMachine.TestCase, DiskMachine.TestCase
TestInMemory.settings = TestOnDisk.settings = settings(max_examples=examples(15), stateful_step_count=30, deadline=None)
