"""What episodes end and begin with: resets taken for steps, final observations that are the next episode's, steps that
never lead on. Real vectors, where there are some; and worlds that only look like that, of which nothing is said."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import sharpwave as sw
from tests.support.examples import every_two

NEXT_STEP, SAME_STEP = gym.vector.AutoresetMode.NEXT_STEP, gym.vector.AutoresetMode.SAME_STEP
WAYS = ["staged", "checked", "rollout"]


def cartpole(limit: int = 500) -> Callable[[], Any]:
    return lambda: gym.make("CartPole-v1", max_episode_steps=limit)


def vector(make: Callable[[], Any], mode: Any, lanes: int = 3) -> Any:
    return gym.vector.SyncVectorEnv([make] * lanes, autoreset_mode=mode)


def store_for(envs: Any, **settings: Any) -> sw.Store:
    store = sw.Store(sw.step_spec(envs), capacity=50_000, **settings)
    return store


def play(store: sw.Store, envs: Any, steps: int, way: str = "staged", *, finals: bool = False, seed: int = 0) -> Any:
    """The loop of a program of 0.29; returns which rows were resets: bool [steps, lanes].

    Args:
        finals: give what episodes led to where the vector says so, as it is to be.
    """
    envs.action_space.seed(seed)
    obs, _ = envs.reset(seed=seed)
    rows: list[dict[str, Any]] = []
    resets, ended = np.zeros((steps, envs.num_envs), bool), np.zeros(envs.num_envs, bool)
    for step in range(steps):
        actions = envs.action_space.sample()
        after, rewards, terminated, truncated, infos = envs.step(actions)
        resets[step] = ended
        ended = terminated | truncated
        true = after.copy()
        for lane in np.flatnonzero(ended) if finals else []:
            true[lane] = infos["final_obs"][lane]
        rows.append(
            dict(obs=obs, next_obs=true, action=actions, reward=rewards, terminated=terminated, truncated=truncated)
        )
        obs = after
        if way != "rollout":
            store.extend(**rows.pop(), timeout=None if way == "staged" else 5.0)
        elif len(rows) == 32:
            block: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            store.extend(**block)
            rows.clear()
    return resets


def said(record: Any) -> list[str]:
    return [str(one.message) for one in record]


@pytest.mark.parametrize("way", WAYS)
def test_resets_taken_for_steps_are_noticed(way: str) -> None:
    envs = vector(cartpole(), NEXT_STEP)
    store = store_for(envs)
    with pytest.warns(RuntimeWarning, match="they are resets and no steps") as record:
        resets = play(store, envs, 640, way)
    messages = said(record)
    assert len(messages) == 3 and all(sum(f"lane {lane}:" in one for one in messages) == 1 for lane in range(3))
    assert record[0].filename == __file__
    numbers = [int(one) for one in messages[0].split("are steps ")[1].split(")")[0].split(", ")]
    lane = int(messages[0].split("lane ")[1].split(":")[0])
    assert len(numbers) == 4 and resets[numbers, lane].all()
    counted = store.stats()["repeated_finals"]
    assert 0.6 * resets.sum() < counted <= resets.sum()  # those that do not jump farther than a step are not counted


def test_resets_that_jump_no_farther_than_steps_are_not_taken_for_reused_arrays() -> None:
    """Cut after two steps, CartPole moves farther in a step than a reset takes it."""
    envs = vector(cartpole(2), NEXT_STEP)
    store = store_for(envs)
    with pytest.warns(RuntimeWarning, match="they are resets and no steps") as record:
        resets = play(store, envs, 640)
    assert all("they are resets and no steps" in one for one in said(record))
    assert 0.6 * resets.sum() < store.stats()["repeated_finals"] <= resets.sum()


@pytest.mark.parametrize("way", WAYS)
def test_resets_taken_for_steps_are_refused(way: str) -> None:
    envs = vector(cartpole(), NEXT_STEP)
    store = store_for(envs, strict=True)
    with pytest.raises(ValueError, match=r"extend: lane \d: 6 steps observe what .* resets and no steps"):
        play(store, envs, 640, way)
    assert store.stats()["repeated_finals"] >= 6


def test_few_worlds_that_go_on_after_an_episode_look_like_resets() -> None:
    """A walk whose tasks end every tenth step, and which is never reset: half of the first steps are longer."""
    warned = 0
    for seed in range(20):
        walk = np.cumsum(np.random.default_rng(seed).normal(size=(1001, 3)), axis=0)
        store = store_of("float64")
        ended = np.arange(1000) % 10 == 9
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            store.extend(
                obs=walk[:-1, None], next_obs=walk[1:, None], action=np.zeros((1000, 1), int),
                reward=ended[:, None].astype(float), terminated=ended[:, None], truncated=np.zeros((1000, 1), bool),
            )  # fmt: skip
        warned += bool(said)
    assert warned <= 3  # 12 when a walk of the counts decided


def test_time_limits_alone_tell_of_resets_too() -> None:
    envs = vector(lambda: gym.make("Pendulum-v1", max_episode_steps=20), NEXT_STEP)
    store = store_for(envs)
    with pytest.warns(RuntimeWarning, match="they are resets and no steps"):
        play(store, envs, 640)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [
        cartpole(12),
        lambda: gym.make("Pendulum-v1", max_episode_steps=9),
        lambda: gym.make("FrozenLake-v1", max_episode_steps=4),
        lambda: gym.make("Taxi-v4", max_episode_steps=5),
        lambda: gym.make("CliffWalking-v1", max_episode_steps=3),
        lambda: gym.make("MountainCar-v0", max_episode_steps=2),
    ],
    ids=["CartPole", "Pendulum", "FrozenLake", "Taxi", "CliffWalking", "MountainCar"],
)
def test_nothing_is_said_of_a_loop_that_is_right(make: Callable[[], Any], way: str) -> None:
    envs = vector(make, SAME_STEP)
    store = store_for(envs, strict=True)
    play(store, envs, 640, way, finals=True)
    assert len(store) == 3 * 640


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_said_of_a_loop_that_gives_anything_after_terminations(way: str) -> None:
    """As CleanRL's do: the next episode's first observation, from which nothing is learned."""
    envs = vector(cartpole(), SAME_STEP)
    store = store_for(envs, strict=True)
    play(store, envs, 640, way)


class World(gym.Env[Any, Any]):
    """World whose observations are given, episode by episode, over and over."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, episodes: list[list[float]], rewards: float = 0.0, terminates: bool = True) -> None:
        self.episodes, self.rewards, self.terminates, self.episode = episodes, rewards, terminates, -1

    def _obs(self) -> Any:
        at = self.episodes[self.episode % len(self.episodes)][self.at]
        return np.full(2, at, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.at = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        over = self.at == len(self.episodes[self.episode % len(self.episodes)]) - 1
        return self._obs(), self.rewards, over and self.terminates, over and not self.terminates, {}


WORLDS = {
    "constant": [[1.0, 1.0, 1.0, 1.0]],
    "constant, of one step": [[1.0, 1.0]],
    "of one step": [[1.0, 2.0], [2.0, 3.0], [3.0, 1.0]],
    "comes home": [[0.0, 1.0, 2.0, 1.0, 0.0]],
    "comes home, or not": [[0.0, 1.0, 2.0, 3.0], [0.0, 4.0, 0.0]],
    "small": [[0.0, 1.0], [1.0, 2.0, 0.0], [3.0, 2.0], [2.0, 0.0, 1.0], [0.0, 2.0, 3.0]],
    "goes on": [[float(k), k + 1.0, k + 2.0] for k in range(0, 2000, 2)],
}


@pytest.mark.parametrize(("way", "rewards", "world"), every_two(WAYS, [0.0, 1.0], WORLDS))
@pytest.mark.parametrize("terminates", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_nothing_is_said_of_worlds_that_end_where_they_begin(
    world: str, terminates: bool, rewards: float, way: str
) -> None:
    make = lambda: World(WORLDS[world], rewards, terminates)  # noqa: E731
    envs = vector(make, SAME_STEP, 2)
    store = store_for(envs, strict=True)
    play(store, envs, 640, way, finals=True)
    recorded = store_for(envs, strict=True)
    recorder = sw.Recorder(vector(make, SAME_STEP, 2), recorded)
    recorder.reset()
    for _ in range(640):
        recorder.step(np.zeros(2, np.int64))
    assert len(recorded) == len(store) == 2 * 640


class Reusing(gym.Wrapper[Any, Any, Any, Any]):
    """Environment that writes its observations into one array."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.array = np.zeros(env.observation_space.shape, env.observation_space.dtype)

    def _same(self, obs: Any) -> Any:
        self.array[...] = obs
        return self.array

    def reset(self, **settings: Any) -> Any:
        obs, info = self.env.reset(**settings)
        return self._same(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return self._same(obs), *rest


@pytest.mark.parametrize("limit", [40, 500])
def test_an_environment_that_reuses_its_array_is_noticed(limit: int) -> None:
    envs = vector(lambda: Reusing(cartpole(limit)()), SAME_STEP)
    store = store_for(envs)
    recorder = sw.Recorder(envs, store)
    with pytest.warns(RuntimeWarning, match=r"the true final observation is lost.*TransformObservation") as record:
        recorder.reset(seed=0)
        recorder.action_space.seed(0)
        for _ in range(400):
            recorder.step(recorder.action_space.sample())
    assert len(said(record)) == 3 and store.stats()["repeated_finals"] >= 12


def test_an_environment_that_reuses_its_array_is_refused() -> None:
    envs = vector(lambda: Reusing(cartpole(40)()), SAME_STEP)
    store = store_for(envs, strict=True)
    recorder = sw.Recorder(envs, store)
    recorder.reset(seed=0)
    recorder.action_space.seed(0)
    with pytest.raises(ValueError, match="the true final observation is lost"):
        for _ in range(400):
            recorder.step(recorder.action_space.sample())


@pytest.mark.parametrize("limit", [12, 500])
def test_nothing_is_said_once_it_copies(limit: int) -> None:
    def make() -> Any:
        env = Reusing(cartpole(limit)())
        return gym.wrappers.TransformObservation(env, np.copy, env.observation_space)

    envs = vector(make, SAME_STEP)
    store = store_for(envs, strict=True)
    recorder = sw.Recorder(envs, store)
    recorder.reset(seed=0)
    for _ in range(400):
        recorder.step(recorder.action_space.sample())
    assert len(store) == 1200


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_next_observations_that_never_lead_on_are_noticed(way: str, strict: bool) -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=5000, strict=strict)
    numbers = np.arange(64 * 2 * 2, dtype=np.float32).reshape(64, 2, 2)
    no, zeros = np.zeros((64, 2), bool), np.zeros((64, 2))
    rows: dict[str, Any] = dict(
        obs=numbers, next_obs=numbers + 4.5, action=zeros.astype(int), reward=zeros, terminated=no, truncated=no
    )

    def extend() -> None:
        if way == "rollout":
            store.extend(**rows)
            return
        for k in range(64):
            one = {name: values[k] for name, values in rows.items()}
            store.extend(**one, timeout=None if way == "staged" else 5.0)

    if strict:
        with pytest.raises(ValueError, match=r"extend: lane 0: none of the last 16 steps before step 1[67]"):
            extend()
        return
    with pytest.warns(RuntimeWarning, match="none of the last 16 steps") as record:
        extend()
    assert len(said(record)) == 2
    assert store.stats()["broken_episodes"] == 2 * 63 and store.stats()["unchained_steps"] >= 2 * 62


def test_nothing_is_said_of_chains_that_break_now_and_then() -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=5000, strict=True)
    for k in range(600):
        at = 2.0 * k
        for begin in (at, at + 1) if k % 10 else (at,):
            store.append(
                obs=[begin] * 2, next_obs=[begin + 1] * 2, action=0, reward=0.0, terminated=False, truncated=False
            )
        if k % 10 == 0:
            store.append(obs=[-1, k], next_obs=[-2, k], action=0, reward=0, terminated=False, truncated=False)
    assert store.stats()["broken_episodes"] > 100


def test_strict_is_checked_and_holds_for_stores_opened_again(tmp_path: Any) -> None:
    envs = vector(cartpole(), NEXT_STEP)
    with pytest.raises(TypeError, match="strict='yes', expected True or False"):
        store_for(envs, strict="yes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = store_for(envs, disk=tmp_path / "store")
        play(store, envs, 200)
    store.close()
    again = sw.Store.open(tmp_path / "store", strict=True)
    with pytest.raises(ValueError, match="resets and no steps"):
        play(again, envs, 640)
    again.close()


def chain(store: sw.Store, obs: Any, after: Any, way: str) -> None:
    """Append steps [T, 2 lanes, 3] that none ends, in one of the ways that there are."""
    no, zeros = np.zeros(obs.shape[:2], bool), np.zeros(obs.shape[:2])
    rows: dict[str, Any] = dict(
        obs=obs, next_obs=after, action=zeros.astype(int), reward=zeros, terminated=no, truncated=no
    )
    if way == "rollout":
        store.extend(**rows)
        return
    for k in range(len(obs)):
        one = {name: values[k] for name, values in rows.items()}
        store.extend(**one, timeout=None if way == "staged" else 5.0)


def store_of(dtype: str, **settings: Any) -> sw.Store:
    spec = sw.Spec(obs=sw.Field((3,), dtype), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=5000, segment_steps=16, **settings)
    return store


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("way", WAYS)
def test_a_negative_zero_and_a_nan_end_no_episode(way: str, dtype: str) -> None:
    """The observation of the next step is stored, with its own bits."""
    obs = np.arange(65 * 2 * 3).reshape(65, 2, 3).astype(dtype)
    obs[4:60:3, 0, 1], obs[5:60:4, 1, 2], obs[6:60:5, 0, 2] = 0.0, -0.0, np.nan
    after = obs[1:].copy()
    after[after == 0] *= -1
    after[np.isnan(after)] *= -1
    obs = obs[:-1]
    store = store_of(dtype, strict=True)
    chain(store, obs, after, way)
    assert store.stats()["broken_episodes"] == 0 == store.stats()["rounded_breaks"]
    for episode in store.episodes():
        assert episode.length == 64 and not episode.ended
        assert episode.obs[:64].tobytes() == obs[:, episode.lane].tobytes()
    after[20, 1, 0] += 1
    store = store_of(dtype, strict=True)
    chain(store, obs, after, way)
    assert store.stats()["broken_episodes"] == 1
    assert sorted((one.lane, one.length) for one in store.episodes()) == [(0, 64), (1, 21), (1, 43)]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_next_observations_that_are_rounded_are_noticed(way: str, strict: bool) -> None:
    """Every eighth step of lane 1 is broken off, as its next observation went through float32."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(65, 2, 3))
    after = obs[1:].copy()
    after[7::8, 1] = after[7::8, 1].astype(np.float32)
    store = store_of("float64", strict=strict)
    if strict:
        with pytest.raises(ValueError, match=r"lane 1: 4 steps observe what .* but for rounding .*steps 8, 16, 24, 32"):
            chain(store, obs[:-1], after, way)
        return
    with pytest.warns(RuntimeWarning, match="lane 1: 4 steps observe what the step before them led to but for round"):
        chain(store, obs[:-1], after, way)
    assert store.stats()["rounded_breaks"] == 7 == store.stats()["broken_episodes"]


@pytest.mark.parametrize("way", WAYS)
def test_rounded_breaks_are_told_from_others_of_the_same_block(way: str) -> None:
    obs = np.random.default_rng(0).normal(size=(65, 2, 3))
    after = obs[1:].copy()
    after[7::16, 1] = after[7::16, 1].astype(np.float32)
    after[15::16, 1] += 1  # of which nothing follows the last
    store = store_of("float64")
    with pytest.warns(RuntimeWarning, match="lane 1: 4 steps observe what the step before them led to but for round"):
        chain(store, obs[:-1], after, way)
    assert (store.stats()["rounded_breaks"], store.stats()["broken_episodes"]) == (4, 7)


def test_three_lanes_are_warned_of_and_the_others_counted() -> None:
    envs = vector(cartpole(), NEXT_STEP, lanes=12)
    store = store_for(envs)
    with pytest.warns(RuntimeWarning, match="they are resets and no steps") as record:
        resets = play(store, envs, 300)
    texts = said(record)
    assert len(texts) == 3 and "3 lanes do: further ones are only counted" in texts[-1]
    assert not any("further ones" in text for text in texts[:-1])
    assert store.stats()["repeated_finals"] == int(resets.sum())
