"""Loops of one's own over vectors that reset with the next step: no buffer keeps the rows in which they reset."""

import warnings
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

import sharpwave as sw
from sharpwave.integrations.resets import Resets
from sharpwave.integrations.sb3 import ReplayBuffer as Sb3Buffer
from sharpwave.integrations.torchrl import ReplayBuffer, SharpwaveStorage
from tests.support.examples import examples

from .test_cleanrl import Walk, atari

COUNT, STEPS = 3, 300
Row = tuple[bytes, bytes, bool]


def make(name: str) -> gym.Env[Any, Any]:
    if name == "Breakout":
        return atari(300)
    return Walk() if name == "Walk" else gym.make(name)


@cache
def rows(name: str, mode: AutoresetMode, count: int = COUNT) -> tuple[dict[str, np.ndarray[Any, Any]], Any]:
    """Return what a loop sees, each [time, environments, ...]; ``real``: rows that are steps."""
    envs = SyncVectorEnv([lambda: make(name)] * count, autoreset_mode=mode)
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=1)
    obs, over, seen = obs.copy(), np.zeros(count, bool), list[tuple[Any, ...]]()
    for _ in range(STEPS):
        action = envs.action_space.sample()
        after, reward, terminated, truncated, _ = envs.step(action)
        real, over = ~over, terminated | truncated
        seen.append((obs, after.copy(), action, reward.astype(np.float32), terminated, truncated, real))
        if mode == AutoresetMode.DISABLED and over.any():
            after, _ = envs.reset(options={"reset_mask": over})
            over = np.zeros(count, bool)
        obs = after.copy()
    names = "obs", "next_obs", "action", "reward", "terminated", "truncated", "real"
    return {key: np.stack(column) for key, column in zip(names, zip(*seen, strict=True), strict=True)}, envs


def expected(seen: dict[str, Any]) -> list[Row]:
    obs, after, ended = (seen[name][seen["real"]] for name in ("obs", "next_obs", "terminated"))
    return sorted((a.tobytes(), b.tobytes(), bool(c)) for a, b, c in zip(obs, after, ended, strict=True))


def tensordict(seen: dict[str, Any]) -> TensorDict:
    values = {name: torch.as_tensor(value) for name, value in seen.items()}
    ends = {name: values[name][..., None] for name in ("terminated", "truncated")}
    ends["done"] = ends["terminated"] | ends["truncated"]
    after = {"observation": values["next_obs"], "reward": values["reward"][..., None], **ends}
    root = {"observation": values["obs"], "action": values["action"], "next": after}
    return TensorDict(root, seen["real"].shape)


@pytest.mark.parametrize("layout", ["steps", "rollouts", "over time"])
@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Breakout"])
def test_torchrls_buffer_passes_over_resets(name: str, layout: str) -> None:
    count = 1 if name == "FrozenLake-v1" else COUNT  # whose lanes are told apart by their observations
    seen, _ = rows(name, AutoresetMode.NEXT_STEP, count)
    data, ids = tensordict(seen), []
    buffer = ReplayBuffer(10_000, strict=True)
    if layout == "rollouts":
        ids = [buffer.extend(data[t : t + 50].transpose(0, 1).contiguous()).T for t in range(0, STEPS, 50)]
    else:
        each = 1 if layout == "steps" else 20
        ids = [buffer.extend(data[t : t + each].reshape(-1)).reshape(each, count) for t in range(0, STEPS, each)]
    stored, resets = torch.cat(ids).numpy() >= 0, buffer.transitions.resets.dropped
    found = buffer.transitions.read(buffer.view.fetch(buffer.view.sampleable_ids()))
    obs, after, ended = found["observation"], found["next", "observation"], found["next", "terminated"][:, 0]
    got = [(a.tobytes(), b.tobytes(), bool(c)) for a, b, c in zip(obs.numpy(), after.numpy(), ended, strict=True)]
    assert (stored == seen["real"]).all() and sorted(got) == expected(seen)
    assert resets == buffer.transitions.store.stats()["dropped_resets"] == (~stored).sum() > 3 or name == "Breakout"


@pytest.mark.parametrize("name", ["Walk", "FrozenLake-v1", "CartPole-v1"])
def test_torchrls_buffer_keeps_every_step_of_loops_that_reset(name: str) -> None:
    seen, _ = rows(name, AutoresetMode.DISABLED)
    data = tensordict(seen)
    buffer = ReplayBuffer(10_000, strict=True)
    for t in range(STEPS):
        assert (buffer.extend(data[t]) >= 0).all()
    assert buffer.transitions.store.stats()["dropped_resets"] == 0 and len(buffer) == STEPS * COUNT


def test_torchrls_storage_notices_resets_that_it_cannot_leave_out() -> None:
    data = tensordict(rows("CartPole-v1", AutoresetMode.NEXT_STEP)[0])
    for strict in (False, True):
        storage = SharpwaveStorage(10_000, strict=strict)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                for t in range(STEPS):
                    storage.set(range(t * COUNT, (t + 1) * COUNT), data[t])
            except ValueError as error:
                assert strict and "they are resets and no steps" in str(error)
            else:
                assert not strict and any("they are resets and no steps" in str(one.message) for one in said)
                assert storage.transitions.store.stats()["repeated_finals"] > 20


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1"])
def test_sb3s_buffer_passes_over_resets_of_gymnasiums_vectors(name: str) -> None:
    seen, envs = rows(name, AutoresetMode.NEXT_STEP)
    spaces = envs.single_observation_space, envs.single_action_space
    buffer = Sb3Buffer(10_000, *spaces, n_envs=COUNT, handle_timeout_termination=False, strict=True)
    for t in range(STEPS):
        step = {name: value[t] for name, value in seen.items()}
        buffer.add(step["obs"], step["next_obs"], step["action"], step["reward"], step["terminated"], {})  # type: ignore[arg-type]
    batch = buffer.view.fetch(buffer.view.sampleable_ids())
    got = zip(batch.obs, batch.next_obs, batch.terminated, strict=True)
    assert sorted((a.tobytes(), b.tobytes(), bool(c)) for a, b, c in got) == expected(seen)
    real = seen["real"]
    assert buffer.transitions.store.stats()["dropped_resets"] == (~real).sum() > 3
    for named, array in (
        ("obs", buffer.observations),
        ("next_obs", buffer.next_observations),
        ("action", buffer.actions),
    ):
        placed = np.reshape(seen[named], array[:STEPS].shape)
        assert np.array_equal(array[:STEPS][real], placed[real]) and not array[:STEPS][~real].any()
    assert np.array_equal(buffer.dones[:STEPS], seen["terminated"] & real) and not buffer.dones[STEPS:].any()
    places, lanes = np.nonzero(real)
    again = buffer.view.fetch(buffer.ids_at(places, lanes))
    assert np.array_equal(again.obs.reshape(-1), np.reshape(seen["obs"][real], -1))
    with pytest.raises(KeyError):
        buffer.ids_at(*np.argwhere(~real)[0])


@pytest.mark.parametrize(
    ("name", "prioritized"),
    [
        pytest.param("CartPole-v1", False, marks=pytest.mark.nightly),
        ("FrozenLake-v1", True),
        ("Breakout", False),
        pytest.param("CartPole-v1", True, marks=pytest.mark.nightly),
        pytest.param("FrozenLake-v1", False, marks=pytest.mark.nightly),
        pytest.param("Breakout", True, marks=pytest.mark.nightly),
    ],
)
def test_tianshous_buffer_samples_no_resets(name: str, prioritized: bool) -> None:
    theirs = pytest.importorskip("tianshou.data")
    from sharpwave.integrations.tianshou import PrioritizedVectorReplayBuffer, VectorReplayBuffer

    seen, _ = rows(name, AutoresetMode.NEXT_STEP)
    buffer: Any = VectorReplayBuffer(10_000, COUNT, strict=True)
    if prioritized:
        buffer = PrioritizedVectorReplayBuffer(10_000, COUNT, alpha=0.5, beta=0.5, strict=True)
    for t in range(STEPS):
        step = {name: value[t] for name, value in seen.items()}
        named = {"obs_next": step["next_obs"], "act": step["action"], "rew": step["reward"]}
        rest = {name: step[name] for name in ("obs", "terminated", "truncated")}
        buffer.add(theirs.Batch(**named, **rest, done=step["terminated"] | step["truncated"]))
    dropped = buffer.transitions.store.stats()["dropped_resets"]
    assert dropped == (~seen["real"]).sum() > 3 or name == "Breakout"
    batch, indices = buffer.sample(0)
    got = zip(batch.obs, batch.obs_next, batch.terminated, strict=True)
    assert sorted((a.tobytes(), b.tobytes(), bool(c)) for a, b, c in got) == expected(seen)
    assert len(indices) == seen["real"].sum()


def test_a_recorder_counts_the_rows_in_which_its_vector_resets() -> None:
    envs = SyncVectorEnv([lambda: make("CartPole-v1")] * COUNT)
    store = sw.Store(sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64")), capacity=10_000)
    recorder = sw.Recorder(envs, store)
    recorder.action_space.seed(0)
    recorder.reset(seed=1)
    for _ in range(STEPS):
        recorder.step(recorder.action_space.sample())
    assert store.stats()["dropped_resets"] == STEPS * COUNT - len(store) > 3


def test_lanes_are_added_to_what_is_known_of_resets() -> None:
    resets = Resets(0)
    resets.widen(2)
    before, after, one = {"": np.zeros((1, 1))}, {"": np.ones((1, 1))}, np.ones(1, bool)
    jumped = {"": np.full((1, 1), 9.0)}
    resets.remember(before, after, one, ~one, np.array([1]), ~one)
    copy = resets.copy()
    resets.widen(1)
    assert resets.find(after, jumped, np.zeros(1), ~one, np.array([1])).all() and resets.dropped == 1
    copy.forget()
    assert not copy.find(after, jumped, np.zeros(1), ~one, np.array([1])).any() and copy.dropped == 0


@pytest.mark.parametrize("seed", range(examples(8, most=40)))
def test_a_world_that_goes_on_after_an_episode_keeps_nearly_all_its_steps(seed: int) -> None:
    """A walk whose tasks end every tenth step: half of the first steps go farther than the last ones did."""
    from sharpwave.integrations.cleanrl import ReplayBuffer as CleanRlBuffer

    walk = np.cumsum(np.random.default_rng(seed).normal(size=(1501, 2)), axis=0).astype(np.float32)
    spaces = gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Discrete(2)
    buffers = [CleanRlBuffer(10_000, *spaces, handle_timeout_termination=False) for _ in range(2)]
    told: tuple[Any, Any] = {}, [{}]
    for i in range(1500):
        done = np.array([i % 10 == 9])
        for buffer, infos in zip(buffers, told, strict=True):
            buffer.add(walk[i][None], walk[i + 1][None], np.array([0]), done.astype(float), done, infos)
    assert len(buffers[1]) == 1500
    assert len(buffers[0]) + buffers[0].transitions.store.stats()["dropped_resets"] == 1500
    assert len(buffers[0]) >= 1480  # 1,350 of half of the seeds when a walk of the counts decided
