"""Recorders of every kind of environment, among other wrappers, beside a log of what really happened."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    Autoreset,
    ClipReward,
    FrameStackObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TimeAwareObservation,
    TimeLimit,
)
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor, VecNormalize

import sharpwave as sw
from sharpwave.offline.surveys import EpisodeSpan, survey

Transition = tuple[Any, Any, bool, bool]
"""Observations before and after a step, and how it ended the episode."""


class Counting(gym.Env[Any, Any]):
    """Nested observations that count up, so that no two are alike; episodes of 3 to 5 steps, every other truncated.

    ``log`` has a list of what happened for each environment made with it.
    """

    observation_space = spaces.Dict(
        {
            "at": spaces.Tuple([spaces.Box(0, 1e6, (2,), np.float32), spaces.MultiBinary(3)]),
            "images.top": spaces.Dict({"x": spaces.Box(0, 255, (2, 2), np.uint8)}),
            "n": spaces.Discrete(10**6),
        }
    )
    action_space = spaces.Dict(
        {"move": spaces.Box(-1, 1, (2,), np.float32), "keys": spaces.Tuple([spaces.MultiDiscrete([3, 4])])}
    )

    def __init__(self, log: list[list[Transition]], start: int = 0) -> None:
        self.mine: list[Transition] = []
        log.append(self.mine)
        self.count, self.episode = start, 0

    def observe(self) -> Any:
        n = self.count
        return {
            "at": (np.full(2, n, np.float32), np.array([n & 1, n >> 1 & 1, n >> 2 & 1], np.int8)),
            "images.top": {"x": np.full((2, 2), n % 256, np.uint8)},
            "n": np.int64(n),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.steps, self.episode = self.count + 1, 0, self.episode + 1
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        before = self.observe()
        self.count, self.steps = self.count + 1, self.steps + 1
        ended = self.steps == 3 + self.episode % 3
        te, tr = ended and self.episode % 2 == 0, ended and self.episode % 2 == 1
        self.mine.append((before | {"action": copy.deepcopy(action)}, self.observe(), te, tr))
        return self.observe(), float(self.count), te, tr, {}


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [one for key in sorted(tree) for one in flat(tree[key])]
    if isinstance(tree, tuple):
        return [one for part in tree for one in flat(part)]
    return [np.asarray(tree).tolist()]


def check(store: sw.Store, log: list[list[Transition]]) -> int:
    """Check that the store holds what happened, in order, and nothing else; return the number of transitions."""
    for lane in range(store.lanes):
        store.break_episode(lane)
    view, held = store.transitions(n_step=1), set(store.transitions(n_step=1).sampleable_ids().tolist())
    count = 0
    for lane, happened in enumerate(log):
        ids = store.ids(lane, np.arange(store.lane_steps[lane]))
        assert len(ids) == len(happened) and set(ids.tolist()) <= held
        batch = view.fetch(ids)
        for row, (before, after, te, tr) in enumerate(happened):
            if isinstance(before, dict):
                before = dict(before)
                assert flat(before.pop("action")) == flat(at(batch.action, row))
            assert flat(before) == flat(at(batch.obs, row)) and flat(after) == flat(at(batch.next_obs, row))
            assert te == batch.terminated[row] and (not tr or batch.truncated[row])
            count += 1
    return count


def at(tree: Any, row: int) -> Any:
    if isinstance(tree, dict):
        return {key: at(one, row) for key, one in tree.items()}
    return tuple(at(one, row) for one in tree) if isinstance(tree, tuple) else tree[row]


@pytest.mark.parametrize("reset_every", [0, 7])
@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TimeLimit(env, 4), Autoreset])
def test_nested_observations_and_actions_of_one_environment(wrap: Any, reset_every: int) -> None:
    log: list[list[Transition]] = []
    env = wrap(Counting(log))
    store = sw.Store(sw.step_spec(env), capacity=1000)
    recorder = sw.Recorder(env, store)
    env.action_space.seed(0)
    recorder.reset(seed=0)
    for step in range(1, 60):
        _, _, te, tr, _ = recorder.step(env.action_space.sample())
        if ((te or tr) and recorder.mode == "Disabled") or (reset_every and step % reset_every == 0):
            recorder.reset()
    if isinstance(env, TimeLimit):  # whose truncations the environment knows nothing of
        store.break_episode(0)
        assert store.lane_steps.tolist() == [len(log[0])]
        return
    assert check(store, log) >= 40


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_nested_observations_and_actions_of_a_vector(mode: Any) -> None:
    log: list[list[Transition]] = []
    envs = SyncVectorEnv([partial(Counting, log, start) for start in (0, 1000, 2000)], autoreset_mode=mode)
    log[:] = log[-3:]  # the first is of an environment that was asked for its spaces
    spec = sw.step_spec(envs)
    assert list(spec.fields)[:4] == [r"obs.at.0", "obs.at.1", r"obs.images\.top.x", "obs.n"]
    assert {"action.keys.0", "action.move"} < set(spec.fields)
    store = sw.Store(spec, capacity=1000)
    made: Any = sw.Recorder(envs, store)
    recorder = gym.wrappers.vector.RecordEpisodeStatistics(made)
    recorder.action_space.seed(0)
    recorder.reset(seed=0)
    for _ in range(50):
        recorder.step(recorder.action_space.sample())
    assert check(store, log) >= 120


class OfBefore:
    """Vector as of Gymnasium 0.29, written plainly: reset in the step that ends an episode, and it says so nowhere.

    Args:
        final: name in the infos of the true final observation; "": none.
    """

    num_envs = 3
    single_observation_space = spaces.Box(0, 1e6, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, log: list[list[Transition]], final: str = "final_observation") -> None:
        self.log, self.final = log, final
        self.count: Any = np.array([0, 1000, 2000])
        log[:] = [[], [], []]

    def observe(self) -> Any:
        return np.repeat(self.count[:, None], 2, axis=1).astype(np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count += 10
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        before = self.observe()
        self.count += 1
        after = self.observe()
        te, tr = self.count % 7 == 0, self.count % 5 == 0
        for lane in range(3):
            self.log[lane].append((before[lane], after[lane], bool(te[lane]), bool(tr[lane])))
        ended: Any = te | tr
        info: dict[str, Any] = {}
        if ended.any() and self.final:
            finals = np.full(3, None, object)
            for lane in np.flatnonzero(ended).tolist():
                finals[lane] = after[lane]
            said = np.full(3, None, object)
            said[ended] = {"episode": {"r": np.array([7.0]), "l": np.array([3]), "t": 0.5}}
            info = {
                self.final: finals, f"_{self.final}": ended, "final_info": said, "_final_info": ended
            }  # fmt: skip
        self.count[ended] += 1
        return self.observe(), np.ones(3), te, tr, info


VECTOR_SPEC = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))


def test_a_vector_without_an_autoreset_mode(tmp_path: Path) -> None:
    log: list[list[Transition]] = []
    with sw.Store(VECTOR_SPEC, capacity=1000, disk=tmp_path / "store") as store:
        recorder = sw.Recorder(OfBefore(log), store)
        assert recorder.mode == "SameStep"
        recorder.reset()
        for _ in range(40):
            recorder.step(np.zeros(3, np.int64))
        assert check(store, log) == 120
    said = [one.annotations.get("statistics") for one in ended(tmp_path / "store")]
    assert said.count(None) == 3 and len(said) > 20  # those that were broken off last
    assert all(one in (None, {"r": 7.0, "l": 3, "t": 0.5}) for one in said)


def test_a_vector_without_a_mode_that_gives_no_final_observations() -> None:
    log: list[list[Transition]] = []
    store = sw.Store(VECTOR_SPEC, capacity=1000)
    recorder = sw.Recorder(OfBefore(log, final=""), store)
    recorder.reset()
    with pytest.raises(ValueError, match=r"does not say how it resets.*metadata\['autoreset_mode'\] to 'NextStep'"):
        for _ in range(10):
            recorder.step(np.zeros(3, np.int64))
    happened = {tuple(before.tolist()): tuple(after.tolist()) for one in log for before, after, _, _ in one}
    view = store.transitions(n_step=1)
    batch = view.fetch(view.sampleable_ids())
    assert all(happened[tuple(o)] == tuple(n) for o, n in zip(batch.obs.tolist(), batch.next_obs.tolist(), strict=True))


def cartpole(wrap: Callable[[Any], Any] = lambda env: env, **settings: Any) -> Any:
    return wrap(gym.make("CartPole-v1", **settings))


SPEC = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))


def ended(folder: Path) -> list[EpisodeSpan]:
    return [one for one in survey(folder).episodes if one.end != "unfinished"]


def statistics_agree(folder: Path) -> int:
    found = ended(folder)
    for one in found:
        said = one.annotations["statistics"]
        assert said["l"] == one.steps and said["r"] == one.total and said["t"] >= 0
    return len(found)


@pytest.mark.parametrize(
    "outside",
    [
        lambda env: env,
        lambda env: TimeLimit(env, 9),
        lambda env: FrameStackObservation(env, 3),
        NormalizeReward,
        Autoreset,
        TimeAwareObservation,
        lambda env: ClipReward(env, -0.5, 0.5),
    ],
)
def test_wrappers_of_one_environment_in_every_order(outside: Any, tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=1000, disk=tmp_path / "store") as store:
        recorder = sw.Recorder(cartpole(RecordEpisodeStatistics), store)
        assert isinstance(recorder, gym.Env) and isinstance(recorder, sw.Recorder)
        env = outside(recorder)
        env.action_space.seed(1)
        env.reset(seed=1)
        for _ in range(100):
            _, _, te, tr, _ = env.step(env.action_space.sample())
            if (te or tr) and not isinstance(env, Autoreset):
                env.reset()
        assert env.get_wrapper_attr("store") is store
    if not isinstance(env, TimeLimit):  # else the recorder sees nothing of the end
        assert statistics_agree(tmp_path / "store") >= 3


def test_a_recorder_is_the_environment() -> None:
    env = cartpole(render_mode="rgb_array")
    recorder = sw.Recorder(env, sw.Store(SPEC, capacity=100))
    assert recorder.unwrapped is env.unwrapped and recorder.spec is env.spec and recorder.np_random is env.np_random
    assert recorder.metadata == env.metadata and recorder.render_mode == "rgb_array"
    recorder.reset(seed=0)
    assert recorder.render().shape == (400, 600, 3) and recorder.np_random_seed == 0
    assert recorder.has_wrapper_attr("gravity") and recorder.get_wrapper_attr("gravity") == env.unwrapped.gravity
    assert not recorder.has_wrapper_attr("nothing") and recorder.action_space is env.action_space
    recorder.set_wrapper_attr("gravity", 5.0)
    assert env.unwrapped.gravity == 5.0 and str(recorder).startswith("<Recorder<TimeLimit")
    for refused in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="Recorder: cannot be pickled or copied"):
            refused(recorder)


def test_a_subclass_of_a_recorder_is_one_too() -> None:
    class Mine(sw.Recorder):
        def step(self, action: Any, **fields: Any) -> Any:
            return super().step(1 - action, **fields)

    recorder = Mine(cartpole(), store := sw.Store(SPEC, capacity=100))
    assert isinstance(recorder, Mine) and isinstance(recorder, gym.Wrapper) and type(recorder).__name__ == "Mine"
    recorder.reset(seed=0)
    recorder.step(0)
    assert store.lane_steps.tolist() == [1]


@pytest.mark.parametrize("inside", ["environment", "vector"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_statistics_of_vectors(mode: Any, inside: str, tmp_path: Path) -> None:
    one = partial(cartpole, RecordEpisodeStatistics) if inside == "environment" else cartpole
    envs: Any = SyncVectorEnv([one] * 3, autoreset_mode=mode)
    if inside == "vector":
        envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    with sw.Store(SPEC, capacity=1000, disk=tmp_path / "store") as store:
        recorder = sw.Recorder(envs, store)
        assert isinstance(recorder, gym.vector.VectorEnv)
        env = gym.wrappers.vector.NormalizeReward(recorder)
        env.action_space.seed(1)
        env.reset(seed=1)
        for _ in range(80):
            env.step(env.action_space.sample())
        env.close()
        assert recorder.closed
    assert statistics_agree(tmp_path / "store") >= 6


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_list_of_infos(mode: Any, tmp_path: Path) -> None:
    envs = SyncVectorEnv([partial(cartpole, RecordEpisodeStatistics)] * 2, autoreset_mode=mode)
    with sw.Store(SPEC, capacity=1000, disk=tmp_path / "store") as store:
        recorder = sw.Recorder(gym.wrappers.vector.DictInfoToList(envs), store)
        recorder.action_space.seed(1)
        recorder.reset(seed=1)
        for _ in range(60):
            recorder.step(recorder.action_space.sample())
    assert statistics_agree(tmp_path / "store") >= 2


ODD = {"r": 1.5, "l": np.array([1]), "t": np.nan, 5: 1, "why": "fell", "x": [1, 2], "ok": np.bool_(True)}


class Said(gym.Wrapper[Any, Any, Any, Any]):
    """Episodes of one step, with odd infos; the first reward is not finite."""

    said: Any = ODD
    reward: float = np.nan

    def step(self, action: Any) -> Any:
        obs, _, _, _, _ = self.env.step(action)
        return obs, self.reward, True, False, {"episode": self.said}


def test_statistics_of_a_step_that_was_refused_are_of_no_other_episode(tmp_path: Path) -> None:
    env = Said(cartpole())
    with sw.Store(SPEC, capacity=100, disk=tmp_path / "store") as store:
        recorder = sw.Recorder(env, store)
        recorder.reset()
        with pytest.raises(ValueError, match="reward"):
            recorder.step(0)
        env.reward = 1.0
        for said in (None, 5, {"r": [1, 2]}, ODD):
            env.said = said
            recorder.reset()
            recorder.step(0)
    expected = {"r": 1.5, "l": 1, "why": "fell", "ok": True}
    assert [one.annotations for one in ended(tmp_path / "store")] == [{}, {}, {}, {"statistics": expected}]


def test_a_reset_in_halves_is_a_reset() -> None:
    envs = gym.vector.AsyncVectorEnv([cartpole] * 2)
    store = sw.Store(SPEC, capacity=100)
    recorder = sw.Recorder(envs, store)
    recorder.reset(seed=3)
    recorder.step(np.zeros(2, np.int64))
    recorder.reset_async(seed=3)
    obs, _ = recorder.reset_wait()
    recorder.step(np.zeros(2, np.int64))
    recorder.close()
    view = store.transitions(n_step=1)
    batch = view.fetch(store.ids([0, 1], [0, 0]))
    assert batch.truncated.all() and np.array_equal(batch.obs, obs)


def threads(vec_env: Any) -> Any:
    return DummyVecEnv([vec_env] * 2)


def processes(vec_env: Any) -> Any:
    return SubprocVecEnv([vec_env] * 2, start_method="fork")


@pytest.mark.parametrize(
    ("make", "outside"),
    [
        (lambda: threads(partial(cartpole, Monitor, max_episode_steps=12)), lambda env: env),
        (lambda: processes(partial(cartpole, Monitor, max_episode_steps=12)), VecNormalize),
        (lambda: VecMonitor(threads(partial(cartpole, max_episode_steps=12))), VecNormalize),
    ],
)
def test_vectors_of_sb3(make: Any, outside: Any, tmp_path: Path) -> None:
    envs = make()
    spec = sw.step_spec(envs)
    assert spec == SPEC
    with sw.Store(spec, capacity=1000, disk=tmp_path / "store") as store:
        recorder = sw.Recorder(envs, store)
        assert isinstance(recorder, VecEnv)
        env = outside(recorder)
        env.seed(5)
        env.reset()
        log: list[list[Transition]] = [[], []]
        twin, rng = make(), np.random.default_rng(0)
        twin.seed(5)
        before = twin.reset()
        for _ in range(70):
            action = rng.integers(0, 2, 2)
            env.step(action)
            after, _, done, infos = twin.step(action)
            for lane, info in enumerate(infos):
                true = info["terminal_observation"] if done[lane] else after[lane]
                cut = bool(info["TimeLimit.truncated"]) if done[lane] else False
                log[lane].append((before[lane].copy(), true, bool(done[lane]) and not cut, cut))
            before = after.copy()
        assert check(store, log) == 140 and any(cut for one in log for *_, cut in one)
        assert store.annotations(1)["seed"] == 6 and env.get_attr("spec")[0].id == "CartPole-v1"
        for one in (env, twin):
            one.close()
    found = ended(tmp_path / "store")
    assert len(found) >= 8
    whole = [one for one in found if one.annotations]  # the last of each lane was broken off here
    assert len(whole) >= len(found) - 2 and all(one.annotations["statistics"]["l"] == one.steps for one in whole)


def test_an_algorithm_of_sb3_learns_through_a_recorder() -> None:
    store = sw.Store(SPEC, capacity=1000)
    envs = threads(partial(cartpole, Monitor))
    model = DQN("MlpPolicy", sw.Recorder(envs, store), learning_starts=20, buffer_size=100, seed=1)
    model.learn(40)
    assert len(store) == model.num_timesteps and store.stats()["broken_episodes"] == 0
