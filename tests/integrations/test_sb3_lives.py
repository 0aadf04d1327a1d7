"""Lives of Stable-Baselines3's models with a store behind them: saved, loaded, on disk, with what looks like stacks."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common import buffers
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

import sharpwave as sw
from sharpwave.integrations.sb3 import PrioritizedDQN, PrioritizedReplayBuffer, ReplayBuffer
from tests.integrations.test_sb3 import NOTHING, Told, assert_same, assert_same_everywhere, both


def test_a_saved_buffer_goes_on_where_it_was(tmp_path: Path) -> None:
    envs = VecFrameStack(make_atari_env("PongNoFrameskip-v4", 2, 1), 4)
    model = DQN("CnnPolicy", envs, buffer_size=1000, learning_starts=NOTHING, seed=1, replay_buffer_class=ReplayBuffer)
    model.learn(200)
    model.save_replay_buffer(tmp_path / "buffer")
    before = [model.replay_buffer.sample(32) for _ in range(2)]
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.size() == 100
    for one in before:
        assert_same(model.replay_buffer.sample(32), one)
    model.learn(96, reset_num_timesteps=False)
    assert model.replay_buffer.size() == 148
    lengths = [len(e) for e in _episodes(model.replay_buffer)]
    assert lengths == [148, 148]  # the episodes under way went on


def zeros_before(frames: list[Any]) -> Any:
    """A stack of the newest four frames as VecFrameStack makes it."""
    newest = frames[-4:]
    return np.stack([np.zeros_like(frames[0])] * (4 - len(newest)) + newest)[None]


def repeated_before(frames: list[Any]) -> Any:
    """The same as Gymnasium's FrameStackObservation makes it."""
    newest = frames[-4:]
    return np.stack([frames[0]] * (4 - len(newest)) + newest)[None]


STACK = spaces.Box(0, 255, (4, 8, 8), np.uint8)


class Beside:
    """Our buffer and SB3's, given the same."""

    def __init__(self, space: spaces.Space[Any] = STACK, **more: Any) -> None:
        self.mine = ReplayBuffer(1000, space, spaces.Discrete(2), "cpu", **more)
        self.theirs = buffers.ReplayBuffer(1000, space, spaces.Discrete(2), "cpu")
        self.rng = np.random.default_rng(0)

    def frame(self) -> Any:
        return self.rng.integers(1, 255, (8, 8)).astype(np.uint8)

    def add(self, obs: Any, next_obs: Any, done: bool = False) -> None:
        for one in (self.mine, self.theirs):
            one.add(obs, next_obs, np.array([1]), np.array([1.0]), np.array([done]), [{}])

    def episode(self, stacked: Any, steps: int, first: Any = None) -> None:
        frames = [self.frame() if first is None else first]
        for k in range(steps):
            obs = stacked(frames)
            frames.append(self.frame())
            self.add(obs, stacked(frames), k == steps - 1)


@pytest.mark.parametrize("stacked", [zeros_before, repeated_before])
def test_a_first_frame_that_is_black_says_nothing_of_the_padding(stacked: Any) -> None:
    both = Beside()
    for _ in range(2):
        both.episode(stacked, 20, first=np.zeros((8, 8), np.uint8))
    for _ in range(3):
        both.episode(stacked, 15)
    field = both.mine.transitions.store.spec.fields["obs"]
    assert field.stack == 4 and field.pad == ("zeros" if stacked is zeros_before else "repeat")
    assert_same_everywhere(both.mine, both.theirs)


def test_what_looked_like_stacks_and_is_none_is_stored_whole_from_there_on() -> None:
    """Episodes that begin in mid-stack, as where a life is lost below the stacking; nothing is lost."""
    both = Beside()
    both.episode(zeros_before, 20)
    assert both.mine.transitions.store.spec.fields["obs"].stack == 4
    frames = [both.frame() for _ in range(30)]
    with pytest.warns(RuntimeWarning, match="looked like stacks of 4 frames, but is none"):
        both.add(np.stack(frames[:4])[None], np.stack(frames[1:5])[None])
    for k in range(1, 20):
        both.add(np.stack(frames[k : k + 4])[None], np.stack(frames[k + 1 : k + 5])[None], done=k % 7 == 0)
    assert both.mine.transitions.store.spec.fields["obs"].stack is None
    assert_same_everywhere(both.mine, both.theirs)
    assert both.mine.sample(8).observations.shape == (8, 4, 8, 8)


@pytest.mark.parametrize("steps", [1, 3])
def test_pictures_whose_last_one_differs_are_no_stacks(steps: int) -> None:
    """Grey pictures in three channels: only with the last observation of an episode does anything move."""
    both = Beside(spaces.Box(0, 255, (8, 8, 3), np.uint8))
    for k in range(40):
        grey = [np.full((1, 8, 8, 3), 100, np.uint8)] * steps + [np.full((1, 8, 8, 3), 200 + k, np.uint8)]
        for t in range(steps):
            both.add(grey[t], grey[t + 1], t == steps - 1)
    assert_same_everywhere(both.mine, both.theirs)
    both.add(grey[0], np.full((1, 8, 8, 3), 7, np.uint8))
    assert_same_everywhere(both.mine, both.theirs)


def test_a_stack_that_was_told_is_one_from_the_first_sample_on() -> None:
    both = Beside(frame_stack=4)
    frames = [both.frame()]
    for k in range(10):
        obs = zeros_before(frames)
        frames.append(both.frame())
        both.add(obs, zeros_before(frames))
        if k == 1:
            both.mine.sample(2)
    assert both.mine.transitions.store.spec.fields["obs"].stack == 4
    assert_same_everywhere(both.mine, both.theirs)
    with pytest.raises(ValueError, match="frame_stack=None"):
        ReplayBuffer(100, STACK, spaces.Discrete(2), frame_stack=4).add(
            np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8), np.zeros((1, 4, 8, 8), np.uint8), np.array([1]),
            np.array([1.0]), np.array([False]), [{}],
        )  # fmt: skip


def test_a_buffer_loaded_into_another_episode_waits_for_the_next(tmp_path: Path) -> None:
    envs = VecFrameStack(make_atari_env("PongNoFrameskip-v4", 1, 1), 4)
    model: Any = DQN("CnnPolicy", envs, buffer_size=2000, learning_starts=NOTHING, replay_buffer_class=ReplayBuffer)
    model.learn(100)
    model.save_replay_buffer(tmp_path / "buffer")
    model.learn(50, reset_num_timesteps=False)
    model.load_replay_buffer(tmp_path / "buffer")
    with pytest.warns(RuntimeWarning, match="skipped"):
        model.learn(50, reset_num_timesteps=False)
    assert model.replay_buffer.size() == 100
    model.learn(100)  # which resets the environment
    assert model.replay_buffer.size() == 200
    batch = model.replay_buffer.view.fetch(model.replay_buffer.view.sampleable_ids())
    assert sorted(batch.step[batch.truncated].tolist()) == [99]


def test_a_disk_goes_through_all_that_models_do(tmp_path: Path) -> None:
    """Nothing locks the folder before it is used, and what uses it no more lets go of it."""
    more: dict[str, Any] = dict(
        buffer_size=1000,
        learning_starts=50,
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs=dict(disk=tmp_path / "replay"),
    )
    model: Any = DQN("MlpPolicy", "CartPole-v1", **more)
    model.learn(100)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    assert DQN.load(tmp_path / "model").predict(np.zeros(4, np.float32))  # while the other has the folder
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.size() == 100
    model.learn(100)
    model.replay_buffer.close()
    other: Any = DQN.load(tmp_path / "model", env=gym.make("CartPole-v1"))
    other.load_replay_buffer(tmp_path / "buffer")
    assert other.replay_buffer.size() == 200
    other.learn(60)
    other.replay_buffer.close()
    model = DQN("MlpPolicy", "CartPole-v1", **more)
    assert model.replay_buffer.size() == 260


@pytest.mark.parametrize("ends", ["close", "del"])
def test_what_is_not_decided_yet_is_not_lost(tmp_path: Path, ends: str) -> None:
    buffer: Any = ReplayBuffer(3000, STACK, spaces.Discrete(2), disk=tmp_path / "replay")
    still = np.zeros((1, 4, 8, 8), np.uint8)
    for _ in range(40):
        buffer.add(still, still, np.array([1]), np.array([1.0]), np.array([False]), [{}])
    if ends == "close":
        buffer.close()
    del buffer
    assert ReplayBuffer(3000, STACK, spaces.Discrete(2), disk=tmp_path / "replay").size() == 40


def test_learning_from_the_first_step_on() -> None:
    for n_steps in (1, 3):
        more = dict(n_steps=n_steps, gamma=0.99)
        model = SAC(
            "MlpPolicy", "Pendulum-v1", learning_starts=0, replay_buffer_class=ReplayBuffer, replay_buffer_kwargs=more
        )
        model.learn(20)


@pytest.mark.parametrize(("size", "lanes"), [(1, 1), (2, 1), (10, 8), (3, 8)])
def test_small_buffers(size: int, lanes: int) -> None:
    space = spaces.Box(-1e9, 1e9, (1,), np.float32)
    buffer = ReplayBuffer(size, space, spaces.Discrete(2), "cpu", n_envs=lanes)
    for k in range(30):
        obs = np.full((lanes, 1), k, np.float32)
        buffer.add(obs, obs + 1, np.zeros(lanes), np.zeros(lanes), np.zeros(lanes, bool), [{}] * lanes)
        assert 1 <= buffer.size() <= max(2, size // lanes)
    assert buffer.sample(5).observations.min() >= 25


def _episodes(buffer: ReplayBuffer) -> list[list[int]]:
    """Steps of each lane's newest episode: those whose transitions none that ended an episode follows."""
    batch = buffer.view.fetch(buffer.view.sampleable_ids())
    found = []
    for lane in range(buffer.n_envs):
        steps = np.sort(batch.step[(batch.lane == lane) & ~batch.terminated & ~batch.truncated])
        found.append(steps.tolist())
    return found


def test_a_buffer_on_disk_is_opened_again(tmp_path: Path) -> None:
    space, actions = spaces.Box(0, 255, (4, 8, 8), np.uint8), spaces.Discrete(2)
    frames = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)

    def stack(at: int, first: int) -> Any:
        return np.stack([frames[k] if k >= first else np.zeros((8, 8), np.uint8) for k in range(at - 3, at + 1)])[None]

    def play(buffer: ReplayBuffer, steps: range, first: int, over: int = -1) -> None:
        for k in steps:
            done = np.array([k == over])
            buffer.add(stack(k, first), stack(k + 1, first), np.array([k % 2]), np.array([1.0]), done, [{}])

    first = ReplayBuffer(100, space, actions, disk=tmp_path / "replay")
    play(first, range(20), 0)
    first.transitions.close()
    again = ReplayBuffer(100, space, actions, disk=tmp_path / "replay")
    assert again.size() == 20 and again.transitions.store.spec.fields["obs"].stack == 4
    with pytest.warns(RuntimeWarning, match="skipped"):
        play(again, range(20, 25), 0, over=24)
    assert again.size() == 20
    play(again, range(30, 40), 30)
    assert again.size() == 30
    batch = again.sample(200)
    assert batch.observations.shape == (200, 4, 8, 8)
    again.transitions.close()
    with pytest.raises(ValueError, match="expected observations and actions"):
        ReplayBuffer(100, spaces.Box(0, 255, (4, 9, 8), np.uint8), actions, disk=tmp_path / "replay").size()
    saved = ReplayBuffer(100, space, actions, disk=tmp_path / "replay")
    content = pickle.dumps(saved)
    assert len(content) < 10_000
    saved.transitions.close()
    assert pickle.loads(content).size() == 30


def test_prioritized_dqn_learns_and_draws_by_its_errors() -> None:
    model = PrioritizedDQN(
        "MlpPolicy",
        "CartPole-v1",
        seed=1,
        learning_starts=100,
        n_steps=3,
        gamma=0.9,
        replay_buffer_kwargs=dict(alpha=1.0),
    )
    model.learn(600)
    found = model.replay_buffer.sample(200).discounts.numpy().ravel()
    assert set(np.round(-np.log(found) / -np.log(0.9), 4).tolist()) <= {1.0, 2.0, 3.0}
    buffer = model.replay_buffer
    assert isinstance(buffer, PrioritizedReplayBuffer)
    ids = buffer.view.sampleable_ids()
    buffer.update_priorities(ids, torch.zeros(len(ids)))
    buffer.update_priorities(ids[:2], torch.tensor([[3.0], [1.0]]))
    batch = buffer.sample(4000)
    counts = [(batch.ids == one).mean() for one in ids[:2]]
    np.testing.assert_allclose(counts, [0.75, 0.25], atol=0.03)
    weights = [batch.weights.numpy().ravel()[batch.ids == one][0] for one in ids[:2]]
    np.testing.assert_allclose(weights[0] / weights[1], 3**-0.4, rtol=1e-4)
    data = pickle.loads(pickle.dumps(buffer)).sample(50)
    assert np.isin(data.ids, ids[:2]).mean() > 0.9  # priorities are kept


def test_it_needs_a_fraction_of_the_memory() -> None:
    envs = VecFrameStack(make_atari_env("PongNoFrameskip-v4", 1, 1), 4)
    mine, other = both(ReplayBuffer, buffers.ReplayBuffer, envs, 1500)
    theirs = (other.observations.nbytes + other.next_observations.nbytes) / other.buffer_size
    assert mine.transitions.store.stats()["encoded_bytes_per_step"] < theirs / 50


def test_reset_forgets_everything() -> None:
    envs = DummyVecEnv([lambda: Told()])
    mine, _ = both(ReplayBuffer, buffers.ReplayBuffer, envs, 20)
    mine.reset()
    assert mine.size() == mine.pos == 0
    with pytest.raises(sw.EmptyError):
        mine.sample(2)


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        (dict(optimize_memory_usage=True), ValueError, "observations are stored once"),
        (dict(frame_stack="four"), ValueError, "frame_stack='four'"),
        (dict(frame_stack=5), ValueError, "are not made of 5 images"),
        (dict(ram="lots"), ValueError, "ram"),
        (dict(rom="1GiB"), TypeError, "rom"),
        (dict(seed=-1), ValueError, "seed"),
        (dict(n_steps=3), ValueError, "n_steps=3 without gamma"),
        (dict(n_steps=0, gamma=0.9), ValueError, "n_step=0"),
        (dict(codec="nonsense"), ValueError, "nonsense"),
    ],
)
def test_arguments_that_make_no_sense(more: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says), warnings.catch_warnings():
        warnings.simplefilter("error")
        ReplayBuffer(100, spaces.Box(0, 255, (4, 8, 8), np.uint8), spaces.Discrete(2), **more)


def test_a_class_without_priorities_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a PrioritizedReplayBuffer"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer)


def test_a_disk_of_keys_with_dots_is_opened_again(tmp_path: Path) -> None:
    space = spaces.Dict({"a.b": spaces.Box(0, 1, (2,), np.float32), "a\\.b": spaces.Box(0, 1, (2,), np.float32)})
    first: Any = ReplayBuffer(100, space, spaces.Discrete(2), disk=tmp_path / "replay")
    obs = {"a.b": np.zeros((1, 2), np.float32), "a\\.b": np.ones((1, 2), np.float32)}
    for _ in range(10):
        first.add(obs, obs, np.zeros((1, 1), np.int64), np.zeros(1), np.zeros(1, np.bool_), [{}])
    first.close()
    again: Any = ReplayBuffer(100, space, spaces.Discrete(2), disk=tmp_path / "replay")
    assert again.size() == 10
    seen = again.sample(4).observations
    assert set(seen) == set(obs) and all((seen[key].numpy() == obs[key]).all() for key in obs)
    again.close()
