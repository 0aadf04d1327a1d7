"""Names and values that a newcomer gets wrong: the error names the argument, and nothing was done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import sharpwave as sw
from sharpwave.envs import step_spec

SPEC = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))


def store(**settings: Any) -> sw.Store:
    return sw.Store(SPEC, capacity=100, **settings)


def of_texts() -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1")
    env.observation_space = gym.spaces.Tuple([gym.spaces.Sequence(gym.spaces.Tuple([gym.spaces.Text(8)]))])
    return env


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: store(disk=""), ValueError, "disk: got an empty path"),
        (lambda: store(disk=5), TypeError, "disk: got 5"),
        (lambda: store().checkpoint(""), ValueError, "checkpoint: got an empty path"),
        (lambda: store().checkpoint(None), TypeError, "checkpoint: got None"),  # type: ignore[arg-type]
        (lambda: sw.Store.open(""), ValueError, "open: got an empty path"),
        (lambda: sw.Store.open(b"x"), TypeError, "open: got b'x'"),  # type: ignore[arg-type]
        (lambda: store().break_episode("a"), ValueError, "break_episode: lane 'a'"),  # type: ignore[arg-type]
        (lambda: store().break_episode(1.0), ValueError, "break_episode: lane 1.0"),  # type: ignore[arg-type]
        (lambda: store().transitions(seed=-1), ValueError, "transitions: seed=-1"),
        (lambda: store().transitions(seed="a"), ValueError, "transitions: seed='a'"),  # type: ignore[arg-type]
        (lambda: store().transitions().update_priorities([1], ["a"]), ValueError, "update_priorities: td_error"),
        (lambda: sw.Field((), "int64", codec="lz4"), ValueError, "Field: codec 'lz4'"),
        (lambda: sw.Recorder("CartPole-v1", store()), TypeError, "Recorder: env is 'CartPole-v1'"),
        (lambda: sw.Recorder(gym.make("CartPole-v1"), None), TypeError, "Recorder: store is None"),  # type: ignore[arg-type]
        (lambda: sw.Recorder(gym.make("CartPole-v1"), store(), first_lane=-1), ValueError, "Recorder: first_lane=-1"),
        (lambda: step_spec("CartPole-v1"), ValueError, "step_spec: env has observations None"),
        (lambda: step_spec(of_texts()), ValueError, "step_spec: env observes obs[0] (Sequence) only"),
    ],
)
def test_the_argument_is_named(
    call: Callable[[], object], kind: type[Exception], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as error:
        call()
    assert says in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_recorder_steps_nothing_whose_fields_are_wrong() -> None:
    kept = store()
    recorder = sw.Recorder(gym.make("CartPole-v1"), kept)
    recorder.reset(seed=0)
    recorder.step(0)
    for wrong in ({"log_prob": 0.5}, {"timeout": -1}):
        with pytest.raises((KeyError, ValueError), match=r"log_prob|timeout"):
            recorder.step(1, **wrong)
    recorder.step(1)
    assert kept.stats()["broken_episodes"] == 0 and len(kept) == 2
    twin = gym.make("CartPole-v1")
    twin.reset(seed=0)
    first = twin.step(0)[0]
    batch = kept.transitions().sample(8)
    assert {tuple(row) for row in batch.next_obs} <= {tuple(first), tuple(twin.step(1)[0])}


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_step_spec_of_a_single_environment(name: str) -> None:
    env = gym.make(name)
    spec = step_spec(env)
    assert spec == step_spec(gym.make_vec(name, num_envs=2))
    kept = sw.Store(spec, capacity=100)
    recorder = sw.Recorder(env, kept)
    recorder.reset(seed=0)
    action = env.action_space.sample()
    recorder.step(action)
    assert len(kept) == 1
    assert spec.fields["action"].shape == np.shape(action)
