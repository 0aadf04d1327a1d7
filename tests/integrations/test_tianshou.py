"""Tianshou's replay buffers and those over a store: the same indices, transitions, returns, losses and weights."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import tianshou.algorithm.algorithm_base
import tianshou.data as theirs
import tianshou.data.buffer.manager
import tianshou.data.utils.segtree
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from tianshou.algorithm import DDPG, DQN, PPO, SAC
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from sharpwave.integrations import tianshou as ours

gym.register_envs(ale_py)
pytestmark = pytest.mark.filterwarnings("ignore:::tianshou")
PRIORITIES: dict[str, Any] = {"alpha": 0.6, "beta": 0.4}


@pytest.fixture(autouse=True, scope="module")
def _interpreted() -> Any:
    """Run Tianshou's kernels as the Python that they are: it compiles them in every process, for 15 s."""
    with pytest.MonkeyPatch.context() as patch:
        modules = tianshou.data.buffer.manager, tianshou.data.utils.segtree, tianshou.algorithm.algorithm_base
        for module in modules:
            for name, function in vars(module).copy().items():
                if hasattr(function, "py_func"):
                    patch.setattr(module, name, function.py_func)
        yield


class Steps:
    """Steps of some environments, as a collector adds them: of some at a time, episodes end in either way."""

    def __init__(self, lanes: int, kind: str = "vector", seed: int = 0) -> None:
        self.rng, self.lanes, self.kind = np.random.default_rng(seed), lanes, kind
        self.obs = self.observed(lanes)

    def observed(self, count: int) -> Any:
        if self.kind == "image":
            return self.rng.integers(0, 256, (count, 3, 5, 4)).astype(np.uint8)
        vector = self.rng.normal(size=(count, 3)).astype(np.float64 if self.kind == "double" else np.float32)
        if self.kind == "dict":
            return {"a": vector, "b": {"c": self.rng.integers(0, 9, count), "d": vector[:, :2].astype(np.float32)}}
        return vector

    def batch(self, lanes: np.ndarray) -> Batch:
        count = len(lanes)
        after, begun, ends = self.observed(count), self.observed(count), self.rng.integers(0, 8, count)
        obs = _at(self.obs, lanes)
        for place, values, start in zip(_leaves(self.obs), _leaves(after), _leaves(begun), strict=True):
            place[lanes] = np.where((ends < 2).reshape(-1, *[1] * (values.ndim - 1)), start, values)
        return Batch(
            obs=obs,
            obs_next=after,
            act=self.rng.integers(0, 3, count),
            rew=self.rng.normal(size=count),
            terminated=ends == 0,
            truncated=ends == 1,
            info=Batch(number=self.rng.integers(0, 99, count)),
            policy=Batch(),
        )


def _leaves(obs: Any) -> list[np.ndarray]:
    return [leaf for one in obs.values() for leaf in _leaves(one)] if isinstance(obs, (dict, Batch)) else [obs]


def _at(obs: Any, lanes: np.ndarray) -> Any:
    return {k: _at(v, lanes) for k, v in obs.items()} if isinstance(obs, dict) else obs[lanes].copy()


def assert_same(one: Any, other: Any, name: str = "") -> None:
    if isinstance(other, Batch):
        assert set(one.get_keys()) == set(other.get_keys()), name
        for key in other.get_keys():
            assert_same(one[key], other[key], f"{name}.{key}")
        return
    assert np.shape(one) == np.shape(other) and np.asarray(one).dtype == np.asarray(other).dtype, name
    np.testing.assert_array_equal(one, other, err_msg=name)


def sampled(buffer: Any, size: int | None, seed: int) -> tuple[Any, np.ndarray]:
    np.random.seed(seed)  # priorities are drawn from numpy's state, all else from the buffers' own
    return buffer.sample(size)


def returns(buffer: Any, indices: np.ndarray, n_step: int) -> np.ndarray:
    """n-step returns by Tianshou's code, with a value that depends on the observation bootstrapped from."""

    def value(buffer: Any, at: np.ndarray) -> torch.Tensor:
        after = _leaves(buffer[at].obs_next)[0]
        return torch.from_numpy(after.reshape(len(at), -1).astype(np.float64).sum(1))

    batch = buffer[indices]
    found = DQN.compute_nstep_return(batch, buffer, indices, value, 0.9, n_step)
    return found.returns.numpy()


@pytest.mark.parametrize("kind", ["vector", "double", "dict", "image"])
@pytest.mark.parametrize("priorities", [{}, PRIORITIES])
def test_the_same_indices_transitions_and_returns(kind: str, priorities: dict[str, float]) -> None:
    steps, name = Steps(3, kind), "PrioritizedVectorReplayBuffer" if priorities else "VectorReplayBuffer"
    mine, other = (getattr(module, name)(60, 3, **priorities) for module in (ours, theirs))
    for step in range(120):  # twice around
        lanes = np.sort(steps.rng.permutation(3)[: steps.rng.integers(1, 4)])
        batch = steps.batch(lanes)
        for a, b in zip(mine.add(batch, lanes), other.add(batch, lanes), strict=True):
            np.testing.assert_array_equal(a, b)
        if step % 10 != 5:
            continue
        (a, indices), (b, same) = (sampled(one, 16, step) for one in (mine, other))
        np.testing.assert_array_equal(indices, same)
        assert_same(a, b)
        for n_step in (1, 3):
            np.testing.assert_array_equal(returns(mine, indices, n_step), returns(other, indices, n_step))
        assert_same(mine[:], other[:])
        assert_same(mine[2:5], other[2:5])
        assert_same(mine[4], other[4])
        assert mine.hasnull() == other.hasnull()
        np.testing.assert_array_equal(mine.unfinished_index(), other.unfinished_index())
        if priorities:
            td_error = steps.rng.normal(size=16)
            for one, at in ((mine, indices), (other, same)):
                one.update_weight(at, td_error)
    assert len(mine) == len(other) == 60 and mine.transitions.store.total_steps > 60


@pytest.mark.parametrize("priorities", [{}, PRIORITIES])
def test_one_environment(priorities: dict[str, float]) -> None:
    steps, name = Steps(1), "PrioritizedReplayBuffer" if priorities else "ReplayBuffer"
    mine, other = (getattr(module, name)(30, **priorities) for module in (ours, theirs))
    for step in range(70):
        batch = steps.batch(np.array([0]))
        for one in (mine, other):
            one.add(batch, [0]) if step % 2 else one.add(batch[0])
    (a, indices), (b, _) = (sampled(one, 16, 1) for one in (mine, other))
    assert_same(a, b)
    np.testing.assert_array_equal(returns(mine, indices, 3), returns(other, indices, 3))


def atari(stack: int) -> Callable[[], gym.Env[Any, Any]]:
    return lambda: FrameStackObservation(
        AtariPreprocessing(gym.make("ALE/Pong-v5", frameskip=1), screen_size=36, noop_max=10), stack
    )


@pytest.mark.parametrize("told", [True, False])
def test_a_frame_of_atari_is_stored_once(told: bool) -> None:
    more: dict[str, Any] = dict(stack_num=4, save_only_last_obs=True) if told else {}
    mine = ours.VectorReplayBuffer(400, 2, ignore_obs_next=told, **more)
    other = theirs.VectorReplayBuffer(400, 2)  # which keeps both stacks
    envs = DummyVectorEnv([atari(4), atari(4)])
    envs.seed([1, 2])
    obs, _ = envs.reset()
    rng = np.random.default_rng(0)
    for _ in range(150):
        act = rng.integers(0, 6, 2)
        after, rew, terminated, truncated, _ = envs.step(act)
        ends = dict(terminated=terminated, truncated=truncated | (rng.random(2) < 0.02))
        batch = Batch(obs=obs, obs_next=after, act=act, rew=rew, info=Batch(), policy=Batch(), **ends)
        for one in (mine, other):
            one.add(batch)
        ended = np.flatnonzero(ends["terminated"] | ends["truncated"])
        obs = after.copy()
        if len(ended):
            obs[ended] = envs.reset(ended)[0]
    assert mine.transitions.store.spec.fields["obs"].stack == 4
    (a, indices), (b, _) = (sampled(one, 64, 1) for one in (mine, other))
    assert_same(a, b)
    np.testing.assert_array_equal(returns(mine, indices, 3), returns(other, indices, 3))
    np.testing.assert_array_equal(mine.get(indices, "obs", stack_num=1) if told else a.obs[:, -1], b.obs[:, -1])


@pytest.mark.parametrize("last_only", [True, False])
def test_stacks_of_vectors_are_made_of_steps(last_only: bool) -> None:
    """As for recurrent networks: as Tianshou's buffer without ``obs_next``, but for the true last observation."""
    steps, more = Steps(2), dict(stack_num=3, save_only_last_obs=last_only)
    mine = ours.VectorReplayBuffer(60, 2, **more)
    other = theirs.VectorReplayBuffer(60, 2, ignore_obs_next=True, **more)
    for _ in range(80):
        batch = steps.batch(np.arange(2))
        if last_only:
            batch.obs, batch.obs_next = (np.repeat(one[:, None], 5, axis=1) for one in (batch.obs, batch.obs_next))
        for one in (mine, other):
            one.add(batch)
    a, b = mine[:], other[:]
    assert_same(a.obs, b.obs)
    newest = np.isin(mine.sample_indices(0), mine.last_index)
    assert_same(a.obs_next[~a.done & ~newest], b.obs_next[~a.done & ~newest])
    singles = mine.get(mine.sample_indices(0), "obs_next", stack_num=1)
    np.testing.assert_array_equal(a.obs_next[:, -1], singles)
    np.testing.assert_array_equal(a.obs_next[:, :-1], a.obs[:, 1:])


def _net(shape: int, out: int = 0) -> Any:
    return Net(state_shape=shape, action_shape=out, hidden_sizes=[16])


def _critic() -> Any:
    return ContinuousCritic(preprocess_net=Net(state_shape=3, action_shape=1, hidden_sizes=[16], concat=True))


def dqn(env: Any) -> Any:
    policy = DiscreteQLearningPolicy(model=_net(4, 2), action_space=env.action_space, eps_training=0.2)
    return DQN(policy=policy, optim=AdamOptimizerFactory(1e-3), n_step_return_horizon=3, target_update_freq=20)


def ddpg(env: Any) -> Any:
    actor = ContinuousActorDeterministic(preprocess_net=_net(3), action_shape=1, max_action=2.0)
    policy = ContinuousDeterministicPolicy(actor=actor, action_space=env.action_space)
    optim = AdamOptimizerFactory(1e-3)
    return DDPG(policy=policy, policy_optim=optim, critic=_critic(), critic_optim=optim, n_step_return_horizon=2)


def sac(env: Any) -> Any:
    actor = ContinuousActorProbabilistic(preprocess_net=_net(3), action_shape=1, unbounded=True, conditioned_sigma=True)
    optim = AdamOptimizerFactory(1e-3)
    policy = SACPolicy(actor=actor, action_space=env.action_space)
    return SAC(policy=policy, policy_optim=optim, critic=_critic(), critic_optim=optim)


def ppo(env: Any) -> Any:
    actor, critic = DiscreteActor(preprocess_net=_net(4), action_shape=2), DiscreteCritic(preprocess_net=_net(4))
    policy = DiscreteActorPolicy(actor=actor, action_space=env.action_space)
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(1e-3))


RUNS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "DQN": (dqn, "CartPole-v1", "VectorReplayBuffer"),
    "DQN, priorities": (dqn, "CartPole-v1", "PrioritizedVectorReplayBuffer"),
    "DDPG": (ddpg, "Pendulum-v1", "VectorReplayBuffer"),
    "SAC, priorities": (sac, "Pendulum-v1", "PrioritizedVectorReplayBuffer"),
    "PPO": (ppo, "CartPole-v1", "VectorReplayBuffer"),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_same_seed_makes_the_same_weights(run: str) -> None:
    make, env, kind = RUNS[run]
    trained = []
    for module in (theirs, ours):
        torch.manual_seed(1)
        np.random.seed(1)
        envs = DummyVectorEnv([lambda: gym.wrappers.TimeLimit(gym.make(env), 30) for _ in range(3)])
        envs.seed(1)
        one = gym.make(env)
        one.action_space.seed(1)
        algorithm = make(one)
        buffer = getattr(module, kind)(150, 3, **PRIORITIES if kind.startswith("Prio") else {})
        collector = Collector(algorithm, envs, buffer, exploration_noise=True)
        shared: dict[str, Any] = dict(
            training_collector=collector, max_epochs=1, test_in_training=False, verbose=False, show_progress=False
        )
        if run == "PPO":
            algorithm.run_training(
                OnPolicyTrainerParams(epoch_num_steps=240, collection_step_num_env_steps=90, batch_size=32, **shared)
            )
        else:
            collector.reset()
            for space in envs.action_space:
                space.seed(2)
            collector.collect(n_step=60, random=True)
            algorithm.run_training(
                OffPolicyTrainerParams(
                    epoch_num_steps=240,
                    collection_step_num_env_steps=6,
                    update_step_num_gradient_steps_per_sample=0.34,
                    batch_size=16,
                    **shared,
                )
            )
        trained.append([parameter.detach().clone() for parameter in algorithm.parameters()])
    for mine, other in zip(trained[1], trained[0], strict=True):
        assert torch.equal(mine, other)


def numbered(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (1, 60, 60)).astype(np.uint8)


@pytest.mark.parametrize("priorities", [{}, PRIORITIES])
def test_what_is_evicted_is_not_drawn(priorities: dict[str, float]) -> None:
    name = "PrioritizedVectorReplayBuffer" if priorities else "VectorReplayBuffer"
    buffer = getattr(ours, name)(4_000, 2, ram="4MiB", frame_stack=None, **priorities)
    for number in range(1_500):
        obs, after = (np.repeat(numbered(k), 2, axis=0) for k in (number, number + 1))
        no = np.zeros(2, np.bool_)
        batch = dict(obs=obs, obs_next=after, act=np.full(2, number), rew=no.astype(float), terminated=no, truncated=no)
        buffer.add(Batch(**batch, info=Batch(), policy=Batch()))
    buffer.sample(64)  # whose memory counts, too
    store = buffer.transitions.store
    ids = store.ids(np.repeat([0, 1], 1_500), np.tile(np.arange(1_500), 2), missing="mask")
    held = np.flatnonzero(ids >= 0)
    assert len(held) == len(store) < 2_500 < len(buffer)
    drawn: list[int] = []
    for _ in range(100):
        batch, indices = buffer.sample(64)
        np.testing.assert_array_equal(batch.obs[0], numbered(int(batch.act[0]))[0])
        drawn += (indices // 2_000 * 1_500 + batch.act).tolist()
        if priorities:
            buffer.update_weight(indices, np.ones(64))
    assert np.isin(drawn, held).all()
    counts = np.bincount(np.searchsorted(held, drawn) * 8 // len(held), minlength=8)
    assert ((counts - 800) ** 2 / 800).sum() < 30  # chi-square of 7 degrees: 1e-4
    everything, places = buffer.sample(0)
    assert len(everything) == len(places) == len(held)
    with pytest.raises(ours.EvictedError, match="ram="):
        buffer[0]


def test_priorities_of_what_was_overwritten_are_counted_and_not_set() -> None:
    steps, buffer = Steps(2), ours.PrioritizedVectorReplayBuffer(8, 2, **PRIORITIES)
    for _ in range(4):
        buffer.add(steps.batch(np.arange(2)))
    _, indices = buffer.sample(64)
    new = buffer.add(steps.batch(np.arange(2)))[0]
    before = buffer.weight[new].copy()
    buffer.update_weight(indices, np.full(64, 9.0))
    assert buffer.stale_updates == np.isin(indices, new).sum() > 0
    np.testing.assert_array_equal(buffer.weight[new], before)
    kept = np.setdiff1d(indices, new)
    np.testing.assert_allclose(buffer.weight[kept], 9.0**0.6, rtol=1e-6)


def test_reset_forgets() -> None:
    steps, buffer = Steps(2), ours.PrioritizedVectorReplayBuffer(40, 2, **PRIORITIES)
    for _ in range(30):
        buffer.add(steps.batch(np.arange(2)))
    buffer.reset()
    assert len(buffer) == 0 and len(buffer.sample_indices(0)) == 0 and not buffer.hasnull()
    batch = steps.batch(np.arange(2))
    places = buffer.add(batch)[0]
    _, indices = buffer.sample(20)
    assert set(indices) <= set(places)
    np.testing.assert_array_equal(buffer[places].obs, batch.obs)


def test_nulls_are_found() -> None:
    steps, buffer = Steps(2), ours.VectorReplayBuffer(8, 2)
    buffer.add(steps.batch(np.arange(2)))
    assert not buffer.hasnull()
    batch = steps.batch(np.arange(2))
    batch.obs_next[1, 0] = np.nan
    buffer.add(batch)
    assert buffer.hasnull() and buffer.isnull().obs_next.any()
    for _ in range(4):
        assert buffer.hasnull() or _ > 2
        buffer.add(steps.batch(np.arange(2)))
    assert not buffer.hasnull()
    buffer.set_array_at_key(np.array([np.nan]), "extra", index=np.array([1]), default_value=0.0)
    assert buffer.hasnull()


@pytest.mark.parametrize("way", ["pickle", "hdf5", "pickle, disk"])
def test_saved_and_loaded(way: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"disk": tmp_path / "store"} if "disk" in way else {}
    steps, kind = Steps(2, "image"), ours.PrioritizedVectorReplayBuffer
    buffer, other = kind(40, 2, **PRIORITIES, **more), theirs.PrioritizedVectorReplayBuffer(40, 2, **PRIORITIES)
    for _ in range(50):
        batch = steps.batch(np.arange(2))
        for one in (buffer, other):
            one.add(batch)
    if way == "hdf5":
        buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))
        again = kind.load_hdf5(str(tmp_path / "buffer.hdf5"))
    else:
        content = pickle.dumps(buffer)
        buffer.close()
        again = pickle.loads(content)
    for _ in range(2):
        np.testing.assert_array_equal(again.unfinished_index(), other.unfinished_index())
        assert_same(sampled(again, 16, 1)[0], sampled(other, 16, 1)[0])
        for _ in range(30):
            batch = steps.batch(np.arange(2))
            for one in (again, other):
                one.add(batch)
    if more:
        with pytest.raises(ValueError, match="holds a store already"):
            kind(40, 2, **PRIORITIES, **more)
    again.close()


@pytest.mark.parametrize("way", ["pickle", "hdf5", "pickle, disk"])
def test_what_is_added_first_to_a_loaded_buffer_comes_back(way: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"disk": tmp_path / "store"} if "disk" in way else {}
    steps, buffer, other = Steps(2, "image"), ours.VectorReplayBuffer(40, 2, **more), theirs.VectorReplayBuffer(40, 2)
    for turn in range(12):
        if turn == 6:  # as training that is resumed: collected before anything is sampled
            if way == "hdf5":
                buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))
                buffer = ours.VectorReplayBuffer.load_hdf5(str(tmp_path / "buffer.hdf5"))
            else:
                content = pickle.dumps(buffer)
                buffer.close()
                buffer = pickle.loads(content)
        batch = steps.batch(np.arange(2))
        for one in (buffer, other):
            one.add(batch)
    indices = other.sample_indices(0)
    assert_same(buffer[indices], other[indices])
    buffer.close()


def test_bad_input_changes_nothing() -> None:
    steps, buffer = Steps(2), ours.VectorReplayBuffer(40, 2)
    buffer.add(steps.batch(np.arange(2)))
    for name, value, message in [
        ("rew", np.array([1.0, np.nan]), "finite reward"),
        ("rew", np.zeros((2, 2)), "finite reward"),
        ("obs", np.zeros((2, 4), np.float32), "shape"),
        ("act", np.array(["left", "right"]), "action"),
    ]:
        batch = steps.batch(np.arange(2))
        batch[name] = value
        with pytest.raises((ValueError, TypeError), match=message):
            buffer.add(batch)
    batch = steps.batch(np.arange(2))
    batch.pop("obs_next")
    with pytest.raises(ValueError, match="obs_next"):
        buffer.add(batch)
    assert len(buffer) == 2 and len(buffer.transitions.store) == 2
    for arguments in ({"retention": None}, {"ram": "much"}, {"frame_stack": "some"}):
        with pytest.raises((ValueError, TypeError)):
            ours.VectorReplayBuffer(40, 2, **arguments).add(steps.batch(np.arange(2)))
    with pytest.raises(AttributeError, match="get"):
        buffer.obs  # noqa: B018
    with pytest.raises(NotImplementedError, match="add"):
        buffer.dropnull()
