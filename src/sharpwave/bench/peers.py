"""Contenders of other libraries, each imported when it is built; and the configurations of all that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from sharpwave.bench.contenders import ALPHA, BETA, Array, Contender, Sampled, Sharpwave, times
from sharpwave.bench.played import LANES, PlayedSteps


class SB3:
    """Contender stable-baselines3: ``ReplayBuffer`` of a vector env; whole stacks, returned as torch tensors.

    Args:
        optimized: ``optimize_memory_usage``: the successor is the next row.
        to_torch: ``False`` returns numpy arrays, which saves a copy.
    """

    def __init__(self, optimized: bool, to_torch: bool = True) -> None:
        self.optimized, self.to_torch = optimized, to_torch

    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        infos: list[dict[str, Any]] = [{} for _ in range(recording.lanes)]
        for start, stop, number in times(recording, begin, end):
            obs, successor = recording.transitions(start, stop)
            for i, t in enumerate(range(start, stop)):
                done = recording.terminated[t] | recording.truncated[t]
                yield obs[i], successor[i], number[i], recording.reward[t], done, infos

    def build(self, recording: PlayedSteps, steps: int) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        dtype = recording.obs.dtype
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-np.inf, np.inf)
        made: Any = ReplayBuffer
        self.buffer = made(
            steps,
            Box(low, high, recording.obs_shape, dtype.type),
            Discrete(2),
            device="cpu",
            n_envs=recording.lanes,
            optimize_memory_usage=self.optimized,
            handle_timeout_termination=not self.optimized,
        )
        if not self.to_torch:
            self.buffer.to_torch = lambda array, copy=True: array

    def add(self, item: Any) -> None:
        self.buffer.add(*item)

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        return False

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        raise NotImplementedError

    def seen(self, sampled: Any) -> Sampled:
        arrays = (sampled.observations, sampled.next_observations, sampled.actions[:, 0])
        return Sampled(*(np.asarray(array) for array in arrays))


class Cpprb:
    """Contender cpprb: ``ReplayBuffer``. Its memory options need an env's steps in order, so lanes are added in turn.

    Args:
        stack_compress: store one frame a step, with the stack on the last axis; else whole observations.
    """

    def __init__(self, stack_compress: bool) -> None:
        self.stack_compress = stack_compress

    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        for lane in range(recording.lanes):
            for start, stop, numbers in times(recording, begin, end):
                obs, successor = (array[:, 0] for array in recording.transitions(start, stop, slice(lane, lane + 1)))
                if self.stack_compress:
                    obs, successor = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (obs, successor))
                number = numbers[:, lane]
                reward = recording.reward[start:stop, lane]
                done = recording.terminated[start:stop, lane] | recording.truncated[start:stop, lane]
                row = 0
                while row < stop - start:
                    after = min(row + LANES, stop - start)
                    if done[row:after].any():
                        after = row + int(np.argmax(done[row:after])) + 1
                    part = slice(row, after)
                    broken_off = bool(done[after - 1]) or (after == stop - start and stop == end)
                    arrays = (obs[part], successor[part], number[part], reward[part], done[part])
                    yield dict(zip(("obs", "next_obs", "act", "rew", "done"), arrays, strict=True)), broken_off
                    row = after

    def build(self, recording: PlayedSteps, steps: int) -> None:
        from cpprb import ReplayBuffer

        shape = recording.obs_shape
        if self.stack_compress:
            shape = (*shape[1:], shape[0])
        fields = {
            "obs": {"shape": shape, "dtype": recording.obs.dtype}, "act": {"dtype": np.int64}, "rew": {}, "done": {},
        }  # fmt: skip
        compress = {"stack_compress": "obs"} if self.stack_compress else {}
        self.settings: dict[str, Any] = {"env_dict": fields, "next_of": "obs", **compress}
        self.buffer = self.uniform = ReplayBuffer(steps, **self.settings)

    def add(self, item: Any) -> None:
        arrays, broken_off = item
        self.buffer.add(**arrays)
        if broken_off:
            self.buffer.on_episode_end()

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        from cpprb import PrioritizedReplayBuffer

        self.buffer = PrioritizedReplayBuffer(self.uniform.get_buffer_size(), alpha=ALPHA, **self.settings)
        fill()
        self.prioritized, self.buffer = self.buffer, self.uniform
        return True

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        sampled = self.prioritized.sample(batch, beta=BETA)
        self.prioritized.update_priorities(sampled["indexes"], td_error)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        obs, successor = sampled["obs"], sampled["next_obs"]
        if self.stack_compress:
            obs, successor = np.moveaxis(obs, -1, 1), np.moveaxis(successor, -1, 1)
        return Sampled(obs, successor, sampled["act"][:, 0])


class Tianshou:
    """Contender Tianshou: ``VectorReplayBuffer`` with ``ignore_obs_next``.

    Args:
        last_frame: its Atari settings, ``save_only_last_obs`` and ``stack_num``; else whole observations are stored.
    """

    def __init__(self, last_frame: bool) -> None:
        self.last_frame = last_frame

    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        from tianshou.data import Batch

        for start, stop, number in times(recording, begin, end):
            obs, _ = recording.transitions(start, stop)
            for i, t in enumerate(range(start, stop)):
                ends = {"terminated": recording.terminated[t], "truncated": recording.truncated[t]}
                yield Batch(obs=obs[i], act=number[i], rew=recording.reward[t], **ends)

    def build(self, recording: PlayedSteps, steps: int) -> None:
        from tianshou.data import VectorReplayBuffer

        self.steps, self.lanes = steps, recording.lanes
        self.options: dict[str, Any] = {"ignore_obs_next": True}
        if self.last_frame:
            self.options |= {"save_only_last_obs": True, "stack_num": recording.stack}
        self.buffer: Any = VectorReplayBuffer(steps, self.lanes, **self.options)
        self.uniform = self.buffer

    def add(self, item: Any) -> None:
        self.buffer.add(item)

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)[0]

    def prioritize(self, fill: Callable[[], None]) -> bool:
        from tianshou.data import PrioritizedVectorReplayBuffer

        self.buffer = PrioritizedVectorReplayBuffer(self.steps, self.lanes, alpha=ALPHA, beta=BETA, **self.options)
        fill()
        self.prioritized, self.buffer = self.buffer, self.uniform
        return True

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        sampled, index = self.prioritized.sample(batch)
        self.prioritized.update_weight(index, td_error)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        return Sampled(sampled.obs, sampled.obs_next, sampled.act)


class TorchRL:
    """Contender TorchRL: ``TensorDictReplayBuffer`` over ``LazyTensorStorage``; whole observations and successors."""

    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        import torch
        from tensordict import TensorDict

        size = [recording.lanes]
        for start, stop, number in times(recording, begin, end):
            obs, successor = recording.transitions(start, stop)
            for i, t in enumerate(range(start, stop)):
                after = {
                    "observation": torch.from_numpy(successor[i]),
                    "reward": torch.from_numpy(recording.reward[t][:, None]),
                    "done": torch.from_numpy((recording.terminated[t] | recording.truncated[t])[:, None]),
                    "terminated": torch.from_numpy(recording.terminated[t][:, None]),
                }
                row = {
                    "observation": torch.from_numpy(obs[i]),
                    "action": torch.from_numpy(number[i]),
                    "next": TensorDict(after, batch_size=size),
                }
                yield TensorDict(row, batch_size=size)

    def build(self, recording: PlayedSteps, steps: int) -> None:
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        self.steps = steps
        self.buffer: Any = TensorDictReplayBuffer(storage=LazyTensorStorage(steps), batch_size=256)
        self.uniform = self.buffer

    def add(self, item: Any) -> None:
        self.buffer.extend(item)

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        storage = LazyTensorStorage(self.steps)
        try:
            self.buffer = TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage, batch_size=256)
        except RuntimeError:  # its C++ sum tree needs certain versions of torch
            return False
        fill()
        self.prioritized, self.buffer = self.buffer, self.uniform
        return True

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        import torch

        sampled = self.prioritized.sample(batch)
        sampled["td_error"] = torch.from_numpy(td_error)
        self.prioritized.update_tensordict_priority(sampled)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        arrays = (sampled["observation"], sampled["next", "observation"], sampled["action"])
        return Sampled(*(array.numpy() for array in arrays))


@dataclass(frozen=True)
class Setup:
    """Library in one configuration.

    Attributes:
        package: name for pip.
        module: name for ``import``.
        make: function from the observations' stack, or ``None``, to a contender.
        stacks_only: whether it differs from the library's other setup only for stacked observations.
    """

    package: str
    module: str
    make: Callable[[int | None], Contender]
    stacks_only: bool = False


def installed(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return find_spec(module) is not None
    except ValueError:  # sys.modules has None for it: importing it is blocked
        return False


SETUPS = {
    "Sharpwave": Setup("sharpwave", "sharpwave", lambda stack: Sharpwave("auto")),
    "Sharpwave raw": Setup("sharpwave", "sharpwave", lambda stack: Sharpwave("raw")),
    "SB3": Setup("stable-baselines3", "stable_baselines3", lambda stack: SB3(optimized=False)),
    "SB3 optimized": Setup("stable-baselines3", "stable_baselines3", lambda stack: SB3(optimized=True)),
    "cpprb": Setup("cpprb", "cpprb", lambda stack: Cpprb(stack_compress=stack is not None)),
    "cpprb stacks": Setup("cpprb", "cpprb", lambda stack: Cpprb(stack_compress=False), stacks_only=True),
    "Tianshou": Setup("tianshou", "tianshou", lambda stack: Tianshou(last_frame=stack is not None)),
    "Tianshou stacks": Setup("tianshou", "tianshou", lambda stack: Tianshou(last_frame=False), stacks_only=True),
    "TorchRL": Setup("torchrl", "torchrl", lambda stack: TorchRL()),
}
"""Setups by the name in the tables. The others are compared with the first."""
