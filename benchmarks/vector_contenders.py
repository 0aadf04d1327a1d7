"""Contenders of ``vectors.py``: memories of small steps, filled as their users fill them, in as few calls as may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import sharpwave as sw

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Steps:
    """One step of each of n lanes: arrays [n, ...]; ``infos`` as stable-baselines3 wants them."""

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Array
    infos: list[dict[str, Any]]


class Contender(Protocol):
    """Replay memory under test."""

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        """Make it, for vectors of so many floats."""

    def item(self, steps: Steps) -> Any:
        """Return what ``add`` takes, untimed."""

    def add(self, item: Any) -> None:
        """Add a step of each lane."""

    def sample(self, batch: int) -> Any:
        """Return transitions: observations, actions, rewards, ends, next observations."""


class Sharpwave:
    """``Store.append`` for one lane, ``Store.extend`` for several."""

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        spec = sw.Spec(obs=sw.Field((obs,), "float32"), action=sw.Field((action,), "float32"))
        self.store, self.single = sw.Store(spec, capacity=capacity), lanes == 1
        self.view = self.store.transitions()

    def item(self, steps: Steps) -> Any:
        ends = steps.truncated.any()
        if not self.single:
            arrays = {"obs": steps.obs, "action": steps.action, "reward": steps.reward}
            arrays |= {"terminated": steps.terminated, "truncated": steps.truncated}
            return arrays | ({"final_obs": steps.next_obs} if ends or steps.terminated.any() else {})
        one: dict[str, Any] = {"obs": steps.obs[0], "action": steps.action[0], "reward": float(steps.reward[0])}
        one |= {"terminated": bool(steps.terminated[0]), "truncated": bool(steps.truncated[0])}
        return one | ({"final_obs": steps.next_obs[0]} if ends or one["terminated"] else {})

    def add(self, item: Any) -> None:
        if self.single:
            self.store.append(**item)
        else:
            self.store.extend(**item)

    def sample(self, batch: int) -> Any:
        return self.view.sample(batch)


class Ring:
    """Arrays of numpy with a position, as single-file implementations have them."""

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        self.capacity, self.at, self.size = capacity, 0, 0
        self.rng = np.random.default_rng(0)
        self.obs, self.next_obs = np.zeros((2, capacity, obs), np.float32)
        self.action, self.reward = np.zeros((capacity, action), np.float32), np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.bool_)
        self.single = lanes == 1

    def item(self, steps: Steps) -> Any:
        arrays = steps.obs, steps.action, steps.reward, steps.terminated, steps.next_obs
        return tuple(array[0] for array in arrays) if self.single else arrays

    def add(self, item: Any) -> None:
        obs, action, reward, terminated, next_obs = item
        count = 1 if self.single else len(reward)
        there: Any = self.at if self.single else (self.at + np.arange(count)) % self.capacity
        self.obs[there], self.action[there], self.reward[there] = obs, action, reward
        self.terminated[there], self.next_obs[there] = terminated, next_obs
        self.at, self.size = (self.at + count) % self.capacity, min(self.capacity, self.size + count)

    def sample(self, batch: int) -> Any:
        chosen = self.rng.integers(0, self.size, batch)
        return (
            self.obs[chosen], self.action[chosen], self.reward[chosen], self.terminated[chosen], self.next_obs[chosen]
        )  # fmt: skip


class SB3:
    """``ReplayBuffer`` with as many environments; batches are tensors.

    Args:
        optimized: with ``optimize_memory_usage``.
    """

    def __init__(self, optimized: bool = False) -> None:
        self.optimized = optimized

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        from gymnasium.spaces import Box
        from stable_baselines3.common.buffers import ReplayBuffer

        self.buffer = ReplayBuffer(
            capacity,
            Box(-np.inf, np.inf, (obs,), np.float32),
            Box(-1, 1, (action,), np.float32),
            device="cpu",
            n_envs=lanes,
            optimize_memory_usage=self.optimized,
            handle_timeout_termination=not self.optimized,
        )

    def item(self, steps: Steps) -> Any:
        return steps.obs, steps.next_obs, steps.action, steps.reward, steps.terminated, steps.infos

    def add(self, item: Any) -> None:
        self.buffer.add(*item)

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch)


class Cpprb:
    """``ReplayBuffer``.

    Args:
        next_of: the next observation is the next row: only for one lane, whose episodes' ends must be told.
    """

    def __init__(self, next_of: bool = False) -> None:
        self.next_of = next_of

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        from cpprb import ReplayBuffer

        fields: dict[str, Any] = {"obs": {"shape": obs}, "act": {"shape": action}, "rew": {}, "done": {}}
        self.next_of &= lanes == 1
        if self.next_of:
            self.buffer = ReplayBuffer(capacity, fields, next_of="obs")
        else:
            self.buffer = ReplayBuffer(capacity, fields | {"next_obs": {"shape": obs}})

    def item(self, steps: Steps) -> Any:
        arrays = {"obs": steps.obs, "act": steps.action, "rew": steps.reward, "next_obs": steps.next_obs}
        return arrays | {"done": steps.terminated}, bool(steps.terminated.any() or steps.truncated.any())

    def add(self, item: Any) -> None:
        arrays, ended = item
        self.buffer.add(**arrays)
        if ended:
            self.buffer.on_episode_end()

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch)


class TorchRL:
    """``TensorDictReplayBuffer`` over a ``LazyTensorStorage``; steps come as tensordicts, made untimed."""

    def build(self, capacity: int, lanes: int, obs: int, action: int) -> None:
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=256)

    def item(self, steps: Steps) -> Any:
        import torch
        from tensordict import TensorDict

        end = torch.from_numpy(steps.terminated)[:, None]
        after = {
            "observation": torch.from_numpy(steps.next_obs), "reward": torch.from_numpy(steps.reward)[:, None],
            "done": end, "terminated": end,
        }  # fmt: skip
        arrays = {"observation": torch.from_numpy(steps.obs), "action": torch.from_numpy(steps.action), "next": after}
        return TensorDict(arrays, [len(steps.reward)])

    def add(self, item: Any) -> None:
        self.buffer.extend(item)

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch)


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "sharpwave": Sharpwave,
    "numpy ring": Ring,
    "SB3": SB3,
    "SB3, optimize_memory_usage": lambda: SB3(optimized=True),
    "cpprb": Cpprb,
    "cpprb, next_of": lambda: Cpprb(next_of=True),
    "TorchRL": TorchRL,
}
