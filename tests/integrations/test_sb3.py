"""Stable-Baselines3 with its own replay buffer and with a store behind it: the same transitions, losses and weights."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common import buffers
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from sharpwave.integrations.sb3 import NStepReplayBuffer, ReplayBuffer

gym.register_envs(ale_py)

NOTHING = 10**9
"""Learning starts after so many steps: never."""


class AtTheSamePlaces(ReplayBuffer):
    """Draws the places that SB3's buffer draws, from numpy's global state."""

    def sample(self, batch_size: int, env: Any = None) -> Any:
        return buffers.BaseBuffer.sample(self, batch_size, env)


class Told(gym.Env[Any, Any]):
    """Observations that tell the episode and the step, of any kind; episodes end in turn by termination and by time."""

    KINDS: dict[str, spaces.Space[Any]] = {  # noqa: RUF012
        "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "doubles": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        "image": spaces.Box(0, 255, (36, 37, 3), np.uint8),
        "discrete": spaces.Discrete(1000),
        "multidiscrete": spaces.MultiDiscrete([500, 500]),
        "multibinary": spaces.MultiBinary(10),
        "observation.state": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    }
    ACTIONS: dict[str, spaces.Space[Any]] = {  # noqa: RUF012
        "discrete": spaces.Discrete(3),
        "box": spaces.Box(-1, 1, (2,), np.float32),
        "multidiscrete": spaces.MultiDiscrete([3, 4]),
        "multibinary": spaces.MultiBinary(3),
    }

    def __init__(self, obs: str = "vector", action: str = "discrete", lane: int = 0) -> None:
        self.action_space, self.count, self.episode, self.lane = self.ACTIONS[action], 0, 0, lane
        names = obs.split("+")
        parts = {name: self.KINDS[name] for name in names}
        self.observation_space = parts[obs] if len(names) == 1 else spaces.Dict(parts)

    def _observed(self) -> Any:
        def of(space: spaces.Space[Any]) -> Any:
            if isinstance(space, spaces.Discrete):
                return np.int64(self.count % 1000)
            if isinstance(space, spaces.MultiBinary):
                return (self.count >> np.arange(10) & 1).astype(np.int8)
            values: Any = np.full(space.shape or (), self.count % 251, np.dtype(space.dtype))
            values.reshape(-1)[0] = self.lane
            return values

        if isinstance(self.observation_space, spaces.Dict):
            return {name: of(space) for name, space in self.observation_space.items()}
        return of(self.observation_space)

    def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
        self.count, self.left, self.episode = self.count + 1, 5 + self.episode % 3, self.episode + 1
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count, self.left = self.count + 1, self.left - 1
        over = self.left == 0
        return (
            self._observed(),
            float(self.count % 7),
            over and self.episode % 2 == 0,
            over and self.episode % 2 == 1,
            {},
        )


def both(
    kind: type[ReplayBuffer], theirs: type[Any], envs: Any, rows: int, size: int = 2000, **more: Any
) -> tuple[Any, Any]:
    """The two buffers, filled by the same steps with random actions, as SB3's collect_rollouts fills them."""
    arguments = (size, envs.observation_space, envs.action_space, "cpu", envs.num_envs)
    mine, other = kind(*arguments, **more), theirs(*arguments, **more)
    obs = envs.reset()
    envs.action_space.seed(0)
    for _ in range(rows):
        actions = np.array([envs.action_space.sample() for _ in range(envs.num_envs)])
        new_obs, rewards, dones, infos = envs.step(actions)
        after = {k: v.copy() for k, v in new_obs.items()} if isinstance(new_obs, dict) else new_obs.copy()
        for i in np.flatnonzero(dones):
            final = infos[i]["terminal_observation"]
            for name in final if isinstance(after, dict) else ():
                after[name][i] = final[name]
            if not isinstance(after, dict):
                after[i] = final
        for one in (mine, other):
            one.add(obs, after, actions, rewards, dones, infos)
        obs = new_obs
    return mine, other


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for name, a, b in zip(one._fields, one, other, strict=True):
        if isinstance(b, dict):
            assert a.keys() == b.keys()
        parts = [(a[k], b[k]) for k in b] if isinstance(b, dict) else [(a, b)]
        for x, y in parts:
            assert (x is None) == (y is None), name
            if y is not None:
                assert x.dtype == y.dtype and x.shape == y.shape, name
                torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6, msg=name)


def assert_same_everywhere(mine: Any, other: Any, env: Any = None) -> None:
    places = np.arange(other.size())
    for seed in range(3):
        found = []
        for one in (mine, other):
            np.random.seed(seed)
            found.append(one._get_samples(places, env=env))
        assert_same(*found)


OBSERVATIONS = [*list(Told.KINDS)[:6], "vector+image", "image+discrete+multibinary", "vector+observation.state"]


@pytest.mark.parametrize("obs", OBSERVATIONS)
@pytest.mark.parametrize("action", Told.ACTIONS)
def test_transitions_are_those_of_sb3s_buffer(obs: str, action: str) -> None:
    envs = DummyVecEnv([lambda lane=lane: gym.wrappers.TimeLimit(Told(obs, action, lane), 6) for lane in range(3)])
    theirs = buffers.DictReplayBuffer if "+" in obs else buffers.ReplayBuffer
    mine, other = both(ReplayBuffer, theirs, envs, 60)
    assert (mine.size(), mine.pos, mine.full) == (other.size(), other.pos, other.full)
    assert_same_everywhere(mine, other)
    assert {type(x) for x in mine.sample(16)} == {type(x) for x in other.sample(16)}


def test_places_that_nothing_was_added_at_are_refused() -> None:
    envs = DummyVecEnv([lambda: gym.wrappers.TimeLimit(Told(), 4)])
    mine, _ = both(ReplayBuffer, buffers.ReplayBuffer, envs, 20, size=36)
    for place in (20, 36, 50, -1, -37):
        with pytest.raises(IndexError, match=rf"place {place} of 36, of which 20 have transitions; expected 0 to 19"):
            mine._get_samples(np.array([3, place]))
    mine, other = both(ReplayBuffer, buffers.ReplayBuffer, envs, 40, size=36)
    for place in (-1, -36, 35, 0):
        found = [one._get_samples(np.array([place])) for one in (mine, other)]
        assert_same(*found)
    with pytest.raises(IndexError, match="place 50 of 36, of which 36 have"):
        mine._get_samples(np.array([50]))


def test_time_limits_that_count_as_ends() -> None:
    envs = DummyVecEnv([lambda: gym.wrappers.TimeLimit(Told(), 4)])
    mine, other = both(ReplayBuffer, buffers.ReplayBuffer, envs, 40, handle_timeout_termination=False)
    assert_same_everywhere(mine, other)
    assert mine.sample(64).dones.any()


@pytest.mark.parametrize("n_steps", [2, 5])
def test_n_step_returns(n_steps: int) -> None:
    envs = DummyVecEnv([lambda lane=lane: gym.wrappers.TimeLimit(Told(lane=lane), 6) for lane in range(2)])
    mine, other = both(ReplayBuffer, buffers.NStepReplayBuffer, envs, 60, n_steps=n_steps, gamma=0.9)
    places = np.arange(
        60 - n_steps
    )  # SB3 makes shorter returns of the steps before the newest, which are still to come
    for seed in range(3):
        found = []
        for one in (mine, other):
            np.random.seed(seed)
            found.append(one._get_samples(places))
        assert_same(*found)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_normalized_observations_and_rewards(n_steps: int) -> None:
    envs = VecNormalize(DummyVecEnv([lambda: Told()]), clip_reward=1e9)
    envs.reset()
    for k in range(50):
        envs.step(np.array([k % 3]))
    kinds = (ReplayBuffer, buffers.NStepReplayBuffer)
    more: dict[str, Any] = dict(n_steps=n_steps, gamma=0.9)
    mine, other = both(*kinds, envs.venv, 40, **more)
    for seed in range(2):
        found = []
        for one in (mine, other):
            np.random.seed(seed)
            found.append(one._get_samples(np.arange(36), env=envs))
        for name in ("observations", "next_observations", "rewards"):
            torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name), rtol=1e-5, atol=1e-5)


STACKED: dict[str, Any] = {
    "SB3's, channels first": lambda: VecFrameStack(make_atari_env("PongNoFrameskip-v4", 2, 1), 4, "last"),
    "Gymnasium's": lambda: make_vec_env(
        "ALE/Pong-v5",
        2,
        1,
        env_kwargs=dict(frameskip=1),
        wrapper_class=lambda e: gym.wrappers.FrameStackObservation(gym.wrappers.AtariPreprocessing(e), 4),
    ),
    "colours": lambda: VecFrameStack(make_vec_env("ALE/Breakout-v5", 2, 1), 3),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "Gymnasium's" else pytest.mark.nightly) for kind in STACKED]
)
def test_a_frame_of_a_stack_is_stored_once(kind: str) -> None:
    envs = STACKED[kind]()
    mine, other = both(ReplayBuffer, buffers.ReplayBuffer, envs, 40 if kind == "colours" else 250)
    field = mine.transitions.store.spec.fields["obs"]
    frames = 3 if kind == "colours" else 4
    assert field.stack == frames and field.row_bytes * frames == int(np.prod(envs.observation_space.shape))
    assert field.pad == ("repeat" if kind == "Gymnasium's" else "zeros")
    assert_same_everywhere(mine, other)


def test_pictures_that_are_no_stacks_are_stored_whole() -> None:
    envs = DummyVecEnv([lambda: Told("image")])
    mine, other = both(ReplayBuffer, buffers.ReplayBuffer, envs, 40)
    assert mine.transitions.store.spec.fields["obs"].stack is None
    assert_same_everywhere(mine, other)


def test_a_stack_that_breaks_is_refused_by_name() -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(1, 255, (40, 8, 8)).astype(np.uint8)
    space = spaces.Box(0, 255, (4, 8, 8), np.uint8)
    buffer = ReplayBuffer(100, space, spaces.Discrete(2), frame_stack=4)

    def add(a: int, b: int, done: bool = False) -> None:
        before, after = (np.stack([frames[max(0, k)] for k in range(at - 3, at + 1)])[None] for at in (a, b))
        buffer.add(before, after, np.array([1]), np.array([1.0]), np.array([done]), [{}])

    for k in range(20):
        add(k, k + 1)
    before = buffer.size()
    with pytest.raises(ValueError, match="frame_stack=None"):
        add(20, 22)
    with pytest.raises(ValueError, match="whose first stack in an episode repeats the first frame"):
        add(30, 31)  # an episode that begins with four frames
    assert buffer.size() == before
    add(20, 21)
    assert buffer.size() == before + 1


ALGORITHMS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "DQN": (DQN, "CartPole-v1", dict(learning_starts=64, train_freq=1)),
    "DQN, four environments": (DQN, "CartPole-v1", dict(learning_starts=64, train_freq=1, n_envs=4)),
    "SAC": (SAC, "Pendulum-v1", dict(learning_starts=64, policy_kwargs=dict(net_arch=[16, 16]))),
    "TD3": (TD3, "Pendulum-v1", dict(learning_starts=64, policy_kwargs=dict(net_arch=[16, 16]))),
    "DDPG": (DDPG, "Pendulum-v1", dict(learning_starts=64, policy_kwargs=dict(net_arch=[16, 16]))),
}

NIGHTLY = ("TD3", "DDPG", "DQN, four environments")


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [pytest.param(one, marks=pytest.mark.nightly if one in NIGHTLY else ()) for one in ALGORITHMS]
)
def test_the_same_draws_make_the_same_losses_and_weights(algorithm: str) -> None:
    kind, name, more = ALGORITHMS[algorithm]
    envs = more.pop("n_envs", 1) if "n_envs" in more else 1
    models, losses = [], []
    for buffer in (None, AtTheSamePlaces):
        model = kind("MlpPolicy", make_vec_env(name, envs, seed=5), seed=5, device="cpu", buffer_size=5000, **more)
        if buffer is not None:
            model = kind(
                "MlpPolicy",
                make_vec_env(name, envs, seed=5),
                seed=5,
                device="cpu",
                buffer_size=5000,
                replay_buffer_class=buffer,
                **more,
            )
        seen: list[float] = []
        plain = model.train
        model.train = lambda *a, m=model, p=plain, s=seen, **k: (p(*a, **k), s.append(_loss(m)))
        model.learn(300)
        models.append(model)
        losses.append(seen)
    if envs > 1:
        more["n_envs"] = envs
    assert len(losses[0]) >= 50 and losses[0] == losses[1]
    for one, other in zip(models[0].policy.parameters(), models[1].policy.parameters(), strict=True):
        assert torch.equal(one, other)


def _loss(model: Any) -> float:
    values = model.logger.name_to_value
    return float(values.get("train/loss", values.get("train/critic_loss")))


def test_the_same_seed_makes_the_same_run() -> None:
    scores = []
    for _ in range(2):
        model = DQN("MlpPolicy", "CartPole-v1", seed=3, learning_starts=50, replay_buffer_class=ReplayBuffer)
        model.learn(200)
        scores.append([p.detach().clone() for p in model.policy.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*scores, strict=True))


@pytest.mark.parametrize("copies", [False, True])
def test_an_environment_that_reuses_its_array_is_noticed(copies: bool) -> None:
    class Reusing(gym.ObservationWrapper[Any, Any, Any]):
        array = np.zeros(4, np.float32)

        def observation(self, obs: Any) -> Any:
            self.array[...] = obs
            return self.array.copy() if copies else self.array

    class Own(Reusing):
        array = np.zeros(4, np.float32)

    env = DummyVecEnv([lambda: Reusing(gym.make("CartPole-v1")), lambda: Own(gym.make("CartPole-v1"))])
    model = DQN(
        "MlpPolicy", env, learning_starts=10_000, seed=1, replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs=dict(strict=True),
    )  # fmt: skip
    if copies:
        model.learn(1000)
        return
    with pytest.raises(ValueError, match="the true final observation is lost"):
        model.learn(1000)


@pytest.mark.parametrize("obs", ["vector", "image+observation.state"])
@pytest.mark.parametrize("steps", [7, 40])
def test_arrays_are_those_of_sb3(obs: str, steps: int) -> None:
    env = DummyVecEnv([lambda lane=lane: Told(obs, "box", lane) for lane in range(2)])
    dicts = isinstance(env.observation_space, spaces.Dict)
    mine = ReplayBuffer(40, env.observation_space, env.action_space, "cpu", n_envs=2)
    kind = buffers.DictReplayBuffer if dicts else buffers.ReplayBuffer
    other = kind(40, env.observation_space, env.action_space, "cpu", n_envs=2)
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    for name in names:  # of an empty one: what frames are is not decided by that
        assert_equal(getattr(mine, name), getattr(other, name))
    before = env.reset()
    for _ in range(steps):
        action = np.random.default_rng(0).normal(size=(2, 2)).astype(np.float32)
        after, reward, done, infos = env.step(action)
        true = {name: one.copy() for name, one in after.items()} if dicts else after.copy()
        for lane in np.flatnonzero(done):
            for to, one in zip(_parts(true), _parts(infos[lane]["terminal_observation"]), strict=True):
                to[lane] = one
        for one in (mine, other):
            one.add(before, true, action, reward, done, infos)
        before = after
    for name in names:
        assert_equal(getattr(mine, name), getattr(other, name))
    with pytest.raises(ValueError, match="read-only"):
        mine.dones[0] = 1


def _parts(obs: Any) -> list[np.ndarray]:
    return list(obs.values()) if isinstance(obs, dict) else [obs]


def assert_equal(one: Any, other: Any) -> None:
    for mine, theirs in zip(_parts(one), _parts(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def test_n_step_buffer_by_sb3s_name_and_a_time_limit_told_by_the_info_alone() -> None:
    space, action = spaces.Box(0, 1, (4,), np.float32), spaces.Box(0, 1, (2,), np.float32)
    both = [
        kind(10, space, action, "cpu", n_steps=5, gamma=0.98) for kind in (NStepReplayBuffer, buffers.NStepReplayBuffer)
    ]
    for step in range(10):
        for one in both:
            row = np.full((1, 4), step, np.float32)
            one.add(row, row + 1, np.zeros((1, 2)), np.ones(1), np.zeros(1), [{"TimeLimit.truncated": step == 2}])
    for place in range(3):
        mine, other = (one._get_samples(np.array([place])) for one in both)
        for name in ("observations", "next_observations", "rewards", "dones", "discounts"):
            np.testing.assert_allclose(getattr(mine, name), getattr(other, name), rtol=1e-6)
    assert isinstance(both[0], buffers.NStepReplayBuffer)


def test_declared_full_it_has_zeros_and_says_so() -> None:
    space, action = spaces.Box(0, 100, (2,), np.uint16), spaces.Box(-1, 1, (1,), np.float64)
    buffer = ReplayBuffer(4, space, action, "cpu")
    with pytest.warns(UserWarning, match="adds 4 transitions of zeros"):
        buffer.full = True
    sample = buffer.sample(8)
    assert buffer.full and sample.observations.numpy().dtype == np.uint16 and not sample.observations.any()
