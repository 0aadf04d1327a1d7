"""Tianshou's replay buffers and those over a store: the same indices, transitions, returns, losses and weights."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
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
from tests.support.examples import every_two

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
        if self.kind in ("text", "bytes"):
            texts = ["\u00e9\0" * n + "." for n in self.rng.integers(0, 9, count)]
            return rows([one.encode() if self.kind == "bytes" else one for one in texts])
        if self.kind == "rows":
            return rows([self.rng.normal(size=(n, 2)).astype(np.float32) for n in self.rng.integers(0, 4, count)])
        if self.kind == "parts":
            numbers = rows([self.rng.integers(0, 9, n) for n in self.rng.integers(0, 4, count)])
            return {"a": self.rng.normal(size=(count, 3)), "b": {"c": numbers, "d": rows(["go"] * count)}}
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


def rows(values: list[Any]) -> np.ndarray:
    found = np.empty(len(values), object)
    for row, one in enumerate(values):
        found[row] = one
    return found


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
    if isinstance(other, np.ndarray) and other.dtype == object:
        assert one.dtype == object and one.shape == other.shape, name
        for a, b in zip(one.flat, other.flat, strict=True):
            assert type(a) is type(b), name
            assert_same(a, b, name)
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
        if after.dtype == object:
            return torch.tensor([float(len(one)) for one in after])
        return torch.from_numpy(after.reshape(len(at), -1).astype(np.float64).sum(1))

    batch = buffer[indices]
    found = DQN.compute_nstep_return(batch, buffer, indices, value, 0.9, n_step)
    return found.returns.numpy()


KINDS, OF_ANY_LENGTH = ["vector", "double", "dict", "image"], ["text", "bytes", "rows", "parts"]


@pytest.mark.parametrize(("kind", "priorities"), every_two(KINDS + OF_ANY_LENGTH, [{}, PRIORITIES]))
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
@pytest.mark.parametrize("kind", ["vector", "text"])
def test_one_environment(priorities: dict[str, float], kind: str) -> None:
    steps, name = Steps(1, kind), "PrioritizedReplayBuffer" if priorities else "ReplayBuffer"
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
    mine = ours.VectorReplayBuffer(400, 2, **more)
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


WAYS: dict[str, dict[str, Any]] = {
    "stacks": dict(stack_num=3),
    "last of several": dict(stack_num=3, save_only_last_obs=True),
    "ignored": dict(ignore_obs_next=True),
    "stacks, ignored": dict(stack_num=3, ignore_obs_next=True),
    "last of several, ignored": dict(stack_num=3, ignore_obs_next=True, save_only_last_obs=True),
    "available": dict(stack_num=3, sample_avail=True),
}


@pytest.mark.parametrize(("way", "kind", "given"), every_two(WAYS, ["vector", "image", "parts"], [True, False]))
def test_every_way_that_tianshou_keeps_observations(way: str, kind: str, given: bool) -> None:
    more = WAYS[way]
    mine, other = (module.VectorReplayBuffer(40, 2, **more) for module in (ours, theirs))
    last_only, given = more.get("save_only_last_obs", False), given or more.get("save_only_last_obs", False)
    steps = Steps(2, "vector" if last_only and kind == "parts" else kind)  # objects have no axis of time
    for step in range(70):
        lanes = np.sort(steps.rng.permutation(2)[: steps.rng.integers(1, 3)])
        batch = steps.batch(lanes)
        if last_only:  # an axis of time, of which Tianshou keeps the last
            both = batch.obs, batch.obs_next
            batch.obs, batch.obs_next = (steps.rng.permutation(np.stack([one] * 3, 1), axis=1) for one in both)
        if not given:
            batch.pop("obs_next")
        for one in (mine, other):
            one.add(batch, lanes)
        if step % 10 == 9:
            assert_same(mine[:], other[:])
            (a, indices), (b, same) = (sampled(one, 16, step) for one in (mine, other))
            np.testing.assert_array_equal(indices, same)
            assert_same(a, b)
            assert_same(mine.get(indices, "obs", stack_num=2), other.get(indices, "obs", stack_num=2))
            assert_same(mine.obs, other.obs)
            assert_same(mine.buffers[1].obs, other.buffers[1].obs)
            assert_same(mine.buffers[0][:], other.buffers[0][:])
            if given and "ignore_obs_next" not in more:
                assert_same(mine.obs_next, other.obs_next)
    if not given or "ignore_obs_next" in more:
        with pytest.raises(AttributeError, match="ignore_obs_next"):
            mine.obs_next  # noqa: B018
        with pytest.raises(KeyError, match="ignore_obs_next"):
            mine.get(0, "obs_next")


def test_transitions_without_obs_next_are_kept_in_episodes() -> None:
    steps, buffer = Steps(2), ours.VectorReplayBuffer(40, 2, ignore_obs_next=True)
    other = theirs.VectorReplayBuffer(40, 2, ignore_obs_next=True)
    for turn in range(6):
        batch = steps.batch(np.arange(2))
        batch.terminated[:], batch.truncated[:] = turn == 1, turn == 3
        batch.pop("obs_next")
        for one in (buffer, other):
            one.add(batch)
    assert [one.length for one in buffer.transitions.store.episodes()] == [2] * 6
    again = pickle.loads(pickle.dumps(buffer))
    assert_same(again[:], other[:])
    for one in (again, buffer, other):
        one.reset(keep_statistics=True)
        one.add(batch)
    assert_same(again[:], other[:])
    assert_same(buffer[:], other[:])


def test_obs_next_comes_always_or_never(tmp_path: Path) -> None:
    steps, buffer = Steps(2), ours.VectorReplayBuffer(40, 2)
    buffer.add(steps.batch(np.arange(2)))
    batch = steps.batch(np.arange(2))
    batch.pop("obs_next")
    with pytest.raises(ValueError, match="obs_next"):
        buffer.add(batch)
    assert len(buffer) == 2 == len(buffer.transitions.store)
    with pytest.raises(ValueError, match=r"obs_next.*disk"):
        ours.VectorReplayBuffer(40, 2, disk=tmp_path / "store").add(batch)


@pytest.mark.parametrize(
    ("moved", "kind"), [("ours", "dict"), ("theirs", "dict"), ("ours", "parts"), ("theirs", "text")]
)
def test_update_takes_another_buffers_transitions(moved: str, kind: str) -> None:
    for given in (True, False):
        steps, both = Steps(2, kind), []
        sources = [(theirs if moved == "theirs" else ours).VectorReplayBuffer(12, 2), theirs.VectorReplayBuffer(12, 2)]
        buffers = [module.PrioritizedReplayBuffer(20, **PRIORITIES) for module in (ours, theirs)]
        for _ in range(9):
            both = [steps.batch(np.arange(2)), steps.batch(np.arange(1))[0]]
            for batch in both if not given else []:
                batch.pop("obs_next")
            for source, buffer in zip(sources, buffers, strict=True):
                source.add(both[0])
                if kind != "parts":  # rows of any length come in batches of one axis
                    buffer.add(both[1])
        for _ in range(2):
            found = [buffer.update(source) for source, buffer in zip(sources, buffers, strict=True)]
            np.testing.assert_array_equal(*found)
            assert_same(buffers[0][:], buffers[1][:])
            assert_same(buffers[0].obs, buffers[1].obs)
        assert not len(buffers[0].update(ours.ReplayBuffer(4)))
    with pytest.raises(NotImplementedError, match="several environments"):
        ours.VectorReplayBuffer(12, 2).update(buffers[0])


def test_from_data_set_batch_and_dropnull() -> None:
    rng, n = np.random.default_rng(0), 10
    columns = dict(
        obs=rng.normal(size=(n, 3)),
        act=np.arange(n),
        rew=rng.normal(size=n),
        terminated=np.arange(n) % 4 == 3,
        truncated=np.zeros(n, np.bool_),
        done=np.arange(n) % 4 == 3,
        obs_next=rng.normal(size=(n, 3)),
    )
    mine, other = (module.ReplayBuffer.from_data(**columns) for module in (ours, theirs))
    for name in columns:
        np.testing.assert_array_equal(mine[:][name], other[:][name])
    mine._meta.info = Batch(extra=np.arange(n))
    mine.set_batch(mine._meta)
    np.testing.assert_array_equal(mine.info.extra, np.arange(n))
    with pytest.raises(NotImplementedError, match="from_data"):
        mine.set_batch(Batch(columns))
    mine.set_array_at_key(np.array([1.0, 2.0, 3.0]), "extra", index=[1, 5, 7])
    mine.dropnull()
    np.testing.assert_array_equal(mine[:].obs, columns["obs"][[1, 5, 7]])
    np.testing.assert_array_equal(mine[:].act, [1, 5, 7])
    assert not mine.hasnull() and len(mine) == 3
    with pytest.raises(NotImplementedError, match="one environment"):
        ours.VectorReplayBuffer(12, 2).dropnull()


def test_rewards_of_several_agents_and_actions_of_several_parts() -> None:
    steps, buffers = Steps(2), [module.VectorReplayBuffer(80, 2) for module in (ours, theirs)]
    for _ in range(30):
        batch = steps.batch(np.arange(2))
        batch.rew = steps.rng.integers(0, 9, (2, 4)).astype(float)
        batch.act = Batch(move=batch.act, turn=steps.rng.normal(size=(2, 2)))
        for a, b in zip(*(buffer.add(batch) for buffer in buffers), strict=True):
            np.testing.assert_array_equal(a, b)
    assert_same(buffers[0][:], buffers[1][:])
    rewards = [episode.reward for episode in buffers[0].transitions.store.episodes()]
    assert sum(one.sum() for one in rewards) == buffers[0].rew.sum()


@pytest.mark.parametrize("more", [{}, dict(stack_num=2, ignore_obs_next=True), dict(stack_num=2, sample_avail=True)])
def test_cached_buffers(more: dict[str, Any]) -> None:
    steps, mains = Steps(3), [module.ReplayBuffer(20, **more) for module in (ours, theirs)]
    mine, other = (m.CachedReplayBuffer(main, 3, 40) for m, main in zip((ours, theirs), mains, strict=True))
    for step in range(120):
        lanes = np.sort(steps.rng.permutation(3)[: steps.rng.integers(1, 4)])
        batch = steps.batch(lanes)
        if more:
            batch.pop("obs_next")
        for a, b in zip(mine.add(batch, lanes), other.add(batch, lanes), strict=True):
            np.testing.assert_array_equal(a, b)
        if step % 10 == 9:
            assert_same(mine[:], other[:])
            assert_same(mains[0][:], mains[1][:])
            (a, indices), (b, same) = (sampled(one, 16, step) for one in (mine, other))
            np.testing.assert_array_equal(indices, same)
            assert_same(a, b)
    again = pickle.loads(pickle.dumps(mine))
    assert_same(again[:], other[:])
    with pytest.raises(TypeError, match="main_buffer"):
        ours.CachedReplayBuffer(theirs.ReplayBuffer(20), 3, 40)


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


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=() if run in ("DQN, priorities", "DDPG") else pytest.mark.nightly) for run in RUNS]
)
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
@pytest.mark.parametrize("observed", ["image", "parts"])
def test_saved_and_loaded(way: str, observed: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"disk": tmp_path / "store"} if "disk" in way else {}
    steps, kind = Steps(2, observed), ours.PrioritizedVectorReplayBuffer
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
        with pytest.raises(ValueError, match="already holds a store"):
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


def test_texts_as_actions_stay_in_tianshous_arrays() -> None:
    steps, both = Steps(2, "text"), [module.VectorReplayBuffer(40, 2) for module in (ours, theirs)]
    for step in range(30):
        batch = steps.batch(np.arange(2))
        batch.act = rows([f"go {step}", "stay"])
        for buffer in both:
            buffer.add(batch)
    assert_same(both[0][:], both[1][:])
    with pytest.raises(ValueError, match="expected object as in the first transitions"):
        both[0].add(steps.batch(np.arange(2)))


def test_rows_of_any_length_are_copied_and_may_happen_to_have_one_length() -> None:
    buffer = ours.VectorReplayBuffer(20, 2)
    given = [rows([np.arange(2), np.arange(3)]), np.array([[7, 8], [9, 9]]), rows([np.arange(0), np.arange(1)])]
    kept = [[row.copy() for row in one] for one in given]
    for obs, after in pairwise(given):
        ends = dict(terminated=np.zeros(2, np.bool_), truncated=np.zeros(2, np.bool_))
        buffer.add(Batch(obs=obs, obs_next=after, act=np.zeros(2), rew=np.zeros(2), **ends))
        for row in obs:
            row[:] = -1  # as an environment that fills its arrays anew
    stored = buffer[[0, 10, 1, 11]]
    assert_same(stored.obs, rows(kept[0] + kept[1]))
    assert_same(stored.obs_next, rows(kept[1] + kept[2]))
    assert [one.length for one in buffer.transitions.store.episodes()] == [2, 2]


def test_bad_input_changes_nothing() -> None:
    steps, buffer = Steps(2), ours.VectorReplayBuffer(40, 2)
    buffer.add(steps.batch(np.arange(2)))
    for name, value, message in [
        ("rew", np.array([1.0, np.nan]), "finite reward"),
        ("rew", np.zeros((2, 2)), "finite reward"),
        ("rew", np.zeros(3), "finite reward"),
        ("terminated", np.zeros(3), "two flags"),
        ("obs", np.array([None, None]), "add: obs: row 0 is None, expected a text, or an array of numbers"),
        ("obs_next", np.array(["a", "b"]), r"got 'a', expected float32 of shape \(3,\) as in the first"),
        ("obs", rows([np.zeros(3), "a"]), "add: obs: rows of several kinds"),
        ("obs", rows([np.zeros(2), np.zeros((2, 2))]), "add: obs: rows of several kinds"),
        ("obs", np.zeros((2, 4), np.float32), "shape"),
        ("act", np.array(["left", "right"]), "got act 'left', expected int64"),
    ]:
        batch = steps.batch(np.arange(2))
        batch[name] = value
        with pytest.raises((ValueError, TypeError), match=message):
            buffer.add(batch)
    assert len(buffer) == 2 and len(buffer.transitions.store) == 2
    for arguments in ({"retention": None}, {"ram": "much"}, {"frame_stack": "some"}):
        with pytest.raises((ValueError, TypeError)):
            ours.VectorReplayBuffer(40, 2, **arguments).add(steps.batch(np.arange(2)))
    with pytest.raises(AttributeError, match="nothing was added"):
        ours.VectorReplayBuffer(40, 2).obs  # noqa: B018


def alone(obs: Any, after: Any, **more: Any) -> Batch:
    """Return a transition of one environment, to be added by ``add(batch, [0])``."""
    flag = np.zeros(1, np.bool_)
    return Batch(obs=obs, obs_next=after, act=np.zeros(1), rew=np.zeros(1), terminated=flag, truncated=flag, **more)


@pytest.mark.parametrize("text", [b"ab\0\0", "ab\0\0"], ids=["bytes", "str"])
def test_texts_of_one_index_keep_trailing_zeros(text: Any) -> None:
    both, obs = [module.ReplayBuffer(9) for module in (ours, theirs)], Batch()
    obs.deep = Batch(raw=rows([text]), x=np.zeros((1, 1)), number=np.zeros(1))
    found = []
    for buffer in both:
        buffer.add(alone(obs, obs), [0])
        found.append([buffer[0].obs, buffer.get(0, "obs"), buffer.get(0, "obs_next"), buffer[[0]].obs])
    for mine, other in zip(*found, strict=True):
        assert_same(mine, other)
        assert type(mine.deep.raw) is type(other.deep.raw)
    assert found[0][0].deep.raw == text


@pytest.mark.parametrize("disk", [False, True])
def test_a_refused_first_transition_changes_nothing(disk: bool, tmp_path: Path) -> None:
    more: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
    buffer = ours.ReplayBuffer(9, **more)
    text, raw = rows(["a"]), rows([b"a"])
    for obs, after, error in [
        (text, raw, TypeError),
        (text, rows([np.zeros(2)]), TypeError),
        (rows([np.zeros(2)]), rows([np.zeros((2, 2))]), TypeError),
        (rows([np.zeros(2)]), rows([np.zeros(2, np.int64)]), TypeError),
    ]:
        with pytest.raises(error, match=r"add: obs_next: got rows of .*, expected .* as in the first"):
            buffer.add(alone(obs, after), [0])
    with pytest.raises(ValueError, match="no UTF-8"):
        buffer.add(alone(rows(["\ud800"]), text), [0])
    with pytest.raises(ValueError, match="shape"):
        buffer.add(alone(np.zeros((1, 2)), np.zeros((1, 3))), [0])
    assert len(buffer) == 0
    buffer.add(alone(raw, rows([b"b"])), [0])
    assert buffer[0].obs == b"a" and buffer[0].obs_next == b"b" and len(buffer.transitions.store) == 1
    buffer.close()


def test_a_refused_text_does_not_stay_among_transitions_that_wait_for_their_stack() -> None:
    buffer, texts = ours.ReplayBuffer(9), [rows(["a"]), rows(["\ud800"]), rows(["b"])]
    for text in texts:
        obs = Batch()
        obs.image, obs.text = np.zeros((1, 4, 20, 20), np.uint8), text  # nothing moves, so its frames are unknown
        if text is texts[1]:
            with pytest.raises(ValueError, match=r"obs\.text: .* no UTF-8"):
                buffer.add(alone(obs, obs), [0])
        else:
            buffer.add(alone(obs, obs), [0])
    assert len(buffer) == 2 and buffer[[0, 1]].obs.text.tolist() == ["a", "b"]


def test_rows_of_another_dtype_are_refused_and_empty_ones_are_not() -> None:
    nothing, tokens = np.array([]), np.arange(3)
    pairs: list[tuple[Any, Any]] = [(nothing, tokens), (tokens, np.zeros(2)), (np.zeros(2), np.zeros(2, np.float16))]
    for first, wrong in pairs:
        buffer = ours.ReplayBuffer(9)
        buffer.add(alone(rows([first]), rows([first])), [0])
        with pytest.raises(TypeError, match=f"add: obs: got rows of {wrong.dtype} .*expected {first.dtype} "):
            buffer.add(alone(rows([wrong]), rows([first])), [0])
        buffer.add(alone(rows([first]), rows([nothing])), [0])
        assert buffer[0].obs.dtype == buffer[1].obs_next.dtype == first.dtype and len(buffer) == 2
    buffer = ours.VectorReplayBuffer(9, 2)
    with pytest.raises(TypeError, match="add: obs: rows of float32 and int64, expected one dtype"):
        flags = dict(terminated=np.zeros(2, np.bool_), truncated=np.zeros(2, np.bool_))
        mixed = rows([tokens, np.zeros(2, np.float32)])
        buffer.add(Batch(obs=mixed, obs_next=mixed, act=np.zeros(2), rew=np.zeros(2), **flags))
    both = rows([np.zeros(0, np.int64), nothing])  # the dtype of [] says nothing
    buffer.add(Batch(obs=both, obs_next=rows([tokens, tokens]), act=np.zeros(2), rew=np.zeros(2), **flags))
    assert buffer[0].obs_next.dtype == np.int64


@pytest.mark.parametrize("disk", [False, True])
def test_a_greater_limit_of_rows(disk: bool, tmp_path: Path) -> None:
    long, text, obs, after = np.arange(131_073), "x" * (1 << 20) + "\0", Batch(), Batch()
    obs.tokens, obs.text, after.tokens, after.text = rows([long]), rows([text]), rows([long[:2]]), rows([""])
    batch = alone(obs, after)
    with pytest.raises(ValueError, match=r"expected at most .*; give the field, or the buffer that declares it"):
        ours.ReplayBuffer(9).add(batch, [0])
    more: dict[str, Any] = {"disk": tmp_path / "store", "ram": "512MiB"} if disk else {}
    buffer, other = ours.ReplayBuffer(9, max_length=1 << 21, **more), theirs.ReplayBuffer(9)
    for turn in range(2):
        for one in (buffer, other):
            one.add(batch, [0])
        assert_same(buffer[[0, turn]], other[[0, turn]])
        content = pickle.dumps(buffer)
        buffer.close()
        buffer = pickle.loads(content)
    buffer.close()
    with pytest.raises(ValueError, match="max_length"):
        ours.ReplayBuffer(9, max_length=0)
