"""Recorders store what the infos of steps say where the environment declares it, beside a log of what it said."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset, RecordEpisodeStatistics
from stable_baselines3.common.vec_env import DummyVecEnv

import sharpwave as sw
from sharpwave.environment_spec import step_spec

STEPS = 40


class Paid(gym.Env):
    """Two workers whose pay of a step is in its info: its number, and ten times that; episodes of 3 and 5 steps."""

    observation_space = spaces.Box(0, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {  # noqa: RUF012
        "info_fields": {"pay": spaces.Box(-np.inf, np.inf, (2,), np.float32), "day": spaces.Discrete(10**6)}
    }

    def __init__(self, start=0):
        self.count, self.episode = start, 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.left = self.episode + 1, 3 + 2 * (self.episode % 2)
        return self.observed(), {"pay": np.full(2, -1.0, np.float32), "day": -1}  # of no step

    def step(self, action):
        self.count, self.left = self.count + 1, self.left - 1
        info = {"pay": np.array([self.count, 10 * self.count], np.float32), "day": self.count}
        ended = self.left == 0
        return (
            self.observed(),
            11.0 * self.count,
            ended and self.episode % 2 == 0,
            ended and self.episode % 2 == 1,
            info,
        )

    def observed(self):
        return np.array([self.count], np.float32)


def envs(count, kind):
    return [partial(kind, 1_000 * i) for i in range(count)]


def with_statistics(start):
    return RecordEpisodeStatistics(Paid(start))


@pytest.mark.parametrize(
    "make",
    [
        Paid,
        lambda: RecordEpisodeStatistics(Paid()),
        lambda: Autoreset(Paid()),
        lambda: SyncVectorEnv(envs(3, Paid), autoreset_mode=AutoresetMode.SAME_STEP),
        lambda: SyncVectorEnv(envs(3, with_statistics), autoreset_mode=AutoresetMode.SAME_STEP),
        lambda: SyncVectorEnv(envs(3, Paid), autoreset_mode=AutoresetMode.NEXT_STEP),
        lambda: SyncVectorEnv(envs(3, Paid), autoreset_mode=AutoresetMode.DISABLED),
        lambda: AsyncVectorEnv(envs(2, Paid), autoreset_mode=AutoresetMode.SAME_STEP),
        lambda: DummyVecEnv(envs(3, Paid)),
    ],
    ids=["one", "wrapped", "autoreset", "same step", "same step, wrapped", "next step", "disabled", "async", "sb3"],
)
def test_each_step_has_the_value_of_its_own_info(make):
    """Rewards are eleven times the count of the step, so each row shows whether pay is of the same step."""
    env = make()
    spec = step_spec(env)
    assert spec.fields["pay"] == sw.Field((2,), "float32") and spec.fields["day"] == sw.Field((), "int64")
    store = sw.Store(spec, capacity=1_000)
    recorder = sw.Recorder(env, store)
    lanes = getattr(env, "num_envs", None)
    recorder.reset()
    for _ in range(STEPS):
        result = recorder.step(0 if lanes is None else np.zeros(lanes, np.int64))
        if recorder.mode == "Disabled":
            ended = np.atleast_1d(np.logical_or(result[2], result[3]))
            if ended.any():
                recorder.reset(options=None if lanes is None else {"reset_mask": ended})
    env.close()
    view = store.transitions(seed=0)
    batch = view.sample(500)
    assert len(np.unique(batch.ids)) > 0.8 * len(view)
    np.testing.assert_array_equal(batch["pay"][:, 0] * 11, batch.reward)
    np.testing.assert_array_equal(batch["pay"][:, 1], batch["pay"][:, 0] * 10)
    np.testing.assert_array_equal(batch["day"], batch["pay"][:, 0])
    assert batch.terminated.any() and (batch["day"] > 0).all()


def test_a_value_that_is_given_takes_the_place_of_the_info():
    store = sw.Store(step_spec(Paid()), capacity=100)
    recorder = sw.Recorder(Paid(), store)
    recorder.reset()
    recorder.step(0, day=77)
    recorder.step(1)
    batch = store.transitions().sample(20)
    assert {(day, pay[0]) for day, pay in zip(batch["day"], batch["pay"], strict=True)} == {(77, 1.0)}


def test_a_field_that_the_spec_lacks_is_not_stored_and_another_is_asked_for():
    lean = sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((), "int64"))
    recorder = sw.Recorder(Paid(), sw.Store(lean, capacity=100))
    recorder.reset()
    recorder.step(0)
    recorder = sw.Recorder(Paid(), sw.Store(step_spec(Paid(), mood=sw.Field((), "float32")), capacity=100))
    recorder.reset()
    with pytest.raises(KeyError, match="'mood' is missing"):
        recorder.step(0)


@pytest.mark.parametrize(
    ("info", "said"), [({}, "no value"), ({"day": 1, "pay": np.zeros(3)}, r"a value of shape \(3,\)")]
)
def test_infos_that_break_the_declaration_break_the_episode_off(info, said):
    class Silent(Paid):
        def step(self, action):
            return *super().step(action)[:4], info

    store = sw.Store(step_spec(Silent()), capacity=100)
    recorder = sw.Recorder(Silent(), store)
    recorder.reset()
    with pytest.raises(ValueError, match=said) as raised:
        recorder.step(0)
    error: Any = raised.value
    assert error.result[1] == 11.0 and len(store) == 0
