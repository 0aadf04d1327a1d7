"""A witness of recorded environments: it steps a twin of each, and says what must have been stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.support.oracle import Oracle, Stacking

gym: Any = pytest.importorskip("gymnasium")
AutoresetMode = gym.vector.AutoresetMode
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]

Array = np.ndarray[Any, Any]


class CountingEnv(gym.Env):
    """Every observation is new: (which environment, episodes so far, steps in this one, observations so far).

    Episodes have the given lengths in turn. They end by truncation, termination and both flags in turn.
    With ``one_buffer`` it hands out the same array each time, overwritten.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's own type)

    def __init__(self, index: int = 0, lengths: Sequence[int] = (3, 1, 7, 2), one_buffer: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-1, 1_000_000, (4,), np.int32)
        self.action_space = gym.spaces.Discrete(1_000_000)
        self.index, self.lengths, self.one_buffer = index, lengths, one_buffer
        self.buffer = np.zeros(4, np.int32)
        self.episode, self.time, self.count = 0, 0, 0

    def observe(self) -> Array:
        self.count += 1
        values = [self.index, self.episode, self.time, self.count]
        if not self.one_buffer:
            return np.array(values, np.int32)
        self.buffer[:] = values
        return self.buffer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time >= self.lengths[self.episode % len(self.lengths)]
        terminated = over and self.episode % 3 != 1
        truncated = over and self.episode % 3 != 2
        return self.observe(), float(self.count % 16), terminated, truncated, {}


def newest(observation: Array, field: sw.Field) -> Array:
    return observation[-1] if observation.ndim > len(field.shape) else observation


def assert_same_answer(got: Any, expected: Any) -> None:
    """Two answers of step() or reset(): arrays equal in every element, the same infos."""
    assert type(got) is type(expected)
    if isinstance(expected, tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same_answer(one, other)
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            assert_same_answer(got[key], expected[key])
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        for one, other in zip(got, expected, strict=True):
            assert_same_answer(one, other)
    else:
        np.testing.assert_array_equal(got, expected)


class Witness:
    """Steps a recorded vector environment and its twin, and writes down what really happened."""

    def __init__(self, env: Any, twin: Any, store: sw.Store, mode: Any, seed: int) -> None:
        self.field = store.spec.fields["obs"]
        self.recorder, self.twin, self.mode = sw.Recorder(env, store), twin, mode
        self.oracle = Oracle(Stacking(self.field.stack, self.field.pad))
        self.observed: dict[int, Array] = {}  # serial -> what the environment handed out, stack and all
        answer = self.recorder.reset(seed=seed)
        assert_same_answer(answer, twin.reset(seed=seed))
        self.obs = np.array(answer[0])
        self.waiting = np.zeros(len(self.obs), bool)

    def step(self, action: Array) -> None:
        answer = self.recorder.step(action)
        assert_same_answer(answer, self.twin.step(action))
        obs, reward, terminated, truncated, infos = answer
        over = terminated | truncated
        for lane in range(len(obs)):
            if self.mode == AutoresetMode.NEXT_STEP and self.waiting[lane]:
                continue  # this call only reset the lane; its action was ignored
            final = None
            if over[lane]:
                same_step = self.mode == AutoresetMode.SAME_STEP
                final = newest(infos["final_obs"][lane] if same_step else obs[lane], self.field)
            step = self.oracle.append(
                lane,
                newest(self.obs[lane], self.field),
                action[lane],
                reward[lane],
                terminated[lane],
                truncated[lane],
                final,
            )
            self.observed[step.serial] = self.obs[lane]
        self.obs, self.waiting = np.array(obs), over.copy()
        if self.mode == AutoresetMode.DISABLED and over.any():
            self.reset(over)

    def reset(self, mask: Array | None = None) -> None:
        """A reset of some lanes, or of all; those in mid-episode end it there."""
        lanes = np.ones(len(self.obs), bool) if mask is None else mask
        for lane in np.flatnonzero(lanes).tolist():
            if self.oracle.can_end_episode(lane):
                self.oracle.end_episode(lane, newest(self.obs[lane], self.field))
        # gymnasium takes the mask out of the dict that it gets, so each gets its own
        options = [{} if mask is None else {"options": {"reset_mask": mask.copy()}} for _ in range(2)]
        answer = self.recorder.reset(**options[0])
        assert_same_answer(answer, self.twin.reset(**options[1]))
        self.obs = np.array(answer[0])
        self.waiting[lanes] = False

    def check(self, store: sw.Store, n_step: int = 1, gamma: float = 0.5) -> None:
        assert store.total_steps == self.oracle.total_steps
        assert_recorded(store, self.oracle, n_step, gamma)


def assert_recorded(store: sw.Store, oracle: Oracle, n_step: int = 1, gamma: float = 0.5) -> None:
    """The store's transitions are the oracle's, as a multiset of their bytes (a recorder knows no serial numbers)."""
    replay = store.transitions(n_step=n_step, gamma=gamma)
    ids = replay.sampleable_ids()
    batch = replay.fetch(ids)
    got = Counter(
        (
            batch.obs[i].tobytes(),
            batch.action[i].tobytes(),
            float(batch.reward[i]),
            batch.next_obs[i].tobytes(),
            float(batch.discount[i]),
        )
        for i in range(len(ids))
    )
    action = store.spec.fields["action"].dtype
    expected: Counter[Any] = Counter()
    for serial in oracle.sampleable(n_step):
        t = oracle.transition(serial, n_step, gamma)
        row = t.action.astype(action).tobytes(), float(np.float32(t.reward)), t.next_obs.tobytes(), t.discount
        expected[(t.obs.tobytes(), *row)] += 1
    missing, invented = expected - got, got - expected
    assert not missing and not invented, f"{missing.total()} steps not stored as they were, {invented.total()} invented"


def vector_of(makers: Sequence[Callable[[], Any]], mode: Any, copy: bool = True) -> Any:
    return gym.vector.SyncVectorEnv(makers, copy=copy, autoreset_mode=mode)


def counting_spec() -> sw.Spec:
    return sw.Spec(obs=sw.Field((4,), "int32", stack=3), action=sw.Field((), "int64"))
