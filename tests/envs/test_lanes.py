"""Environments whose outcomes do not fit: the error names environment, call and what is expected."""

import gc
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from sharpwave.envs import make_env
from sharpwave.envs.given import Given
from sharpwave.envs.lanes import LaneEnvs

OBS = np.zeros(3, np.float32)
DICT = Dict(there=Box(-1, 1, (2,)), here=Discrete(3))


class Odd(gymnasium.Env[Any, Any]):
    """Environment that returns what it was made with."""

    action_space = Discrete(2)

    def __init__(self, reset: Any = (OBS, {}), step: Any = (OBS, 1.0, False, False, {}), space: Any = None) -> None:
        self.observation_space = space or Box(-1, 1, (3,))
        self.outcomes = reset, step

    def reset(self, **_: Any) -> Any:
        return self.outcomes[0]

    def step(self, _: Any) -> Any:
        if isinstance(self.outcomes[1], Exception):
            raise self.outcomes[1]
        return self.outcomes[1]


def stepped(obs: Any) -> Any:
    return obs, 1.0, False, False, {}


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (Odd(step=stepped(np.zeros(4))), "environment 1, observes shape (4,), expected shape (3,) of its obs"),
        (Odd(step=stepped(OBS[None])), "environment 1, observes shape (1, 3), expected shape (3,) of its obs"),
        (Odd(step=stepped(None)), "environment 1, observes None, expected shape (3,) of its obs"),
        (Odd(reset=(None, {})), "environment 1, observes None, expected shape (3,) of its obs"),
        (Odd(reset=OBS), "from reset() something else than (observation, info), the latter a dict: too many"),
        (Odd(reset=(OBS, None)), "from reset() something else than (observation, info), the latter a dict: 'NoneType'"),
        (Odd(reset=None), "from reset() something else than (observation, info), the latter a dict: "),
        (Odd(step=(OBS, 1.0, False, {})), "from step() something else than (observation, a number, two booleans, a di"),
        (Odd(step=(OBS, np.ones(1), False, False, {})), "step() something else than (observation, a number, two bool"),
        (Odd(step=(OBS, 1.0, False, False, None)), "step() something else than (observation, a number, two booleans"),
    ],
)
def test_errors_name_what_does_not_fit(odd: Odd, said: str) -> None:
    for env in (LaneEnvs([Odd, lambda: odd]), Given(iter([Odd(), odd]).__next__).make(2, 2, 1, True)):
        with pytest.raises(ValueError, match=re.escape(said)) as raised:
            env.reset(seed=0)
            env.step(np.array([0, 1]))
        assert "Odd" in str(raised.value)


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        ({"here": 1, "there": np.zeros(3)}, "observes 'there': shape (3,), expected shape (2,)"),
        ({"here": 1}, "observes ['here'], expected ['here', 'there']"),
        (OBS, "observes ndarray, expected ['here', 'there']"),
    ],
)
def test_parts_that_do_not_fit_are_named(obs: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        LaneEnvs([lambda: Odd(reset=(obs, {}), space=DICT)]).reset()


@pytest.mark.parametrize("error", [ValueError("mine"), TypeError("mine"), KeyError("mine")])
def test_an_environment_s_own_error_is_raised_as_it_is(error: Exception) -> None:
    env = LaneEnvs([lambda: Odd(step=error)])
    env.reset()
    with pytest.raises(type(error)) as raised:
        env.step(np.array([0]))
    assert raised.value is error


def test_environments_by_name_are_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.close", lambda self: closed.append(self))
    env = make_env("CartPole-v1", 2)
    assert isinstance(env, LaneEnvs) and env.spec is not None and env.spec.id == "CartPole-v1"
    gc.collect()
    games = [one.unwrapped for one in env.envs]
    assert not any(one is game for one in closed for game in games)  # but another one, which was looked at
    env.close()
    assert closed[-2:] == games
