"""Contenders: replay memories of this package and of other libraries, which are imported when one is built.

Every contender stores as its action the step's number in the recording, so that its samples can be checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.arrays import Array
from sharpwave.bench.played import LANES, PlayedSteps

CHUNK = 64
"""Time steps of a recording that are read at once."""
ALPHA, BETA = 0.6, 0.4

Sampled = tuple[Array, Array, Array]
"""Batch to be checked: [B, *obs_shape] observations and successors, and the numbers of the steps."""


class Contender(ABC):
    """Replay memory of a library in one configuration. Timed methods do only what a user's code would do.

    Attributes:
        buffer: that steps are added to.  uniform, prioritized: those that are sampled.
    """

    buffer: Any
    uniform: Any
    prioritized: Any

    @abstractmethod
    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        """Yield arguments of ``add`` for all lanes' steps of ``begin <= t < end``."""

    @abstractmethod
    def seen(self, sampled: Any) -> Any:
        """Convert what ``sample`` returned, for checking."""

    def empty(self, prioritized: bool) -> Any:
        """Return an empty buffer; ``None``: the library has no such one."""
        return None

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        """Return a prioritized batch, its priorities updated."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027
        """Release what would outlive the process."""

    def build(self, recording: PlayedSteps, steps: int) -> None:
        """Make an empty buffer for ``steps`` steps like those of ``recording``."""
        self.recording, self.steps = recording, steps
        self.buffer = self.uniform = self.empty(False)

    def add(self, item: Any) -> None:
        self.buffer.add(item)

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        """Make prioritized sampling ready (``fill`` adds the steps again); ``False``: the library has none."""
        self.prioritized = self.empty(True)
        if self.prioritized is None:
            return False
        self.buffer = self.prioritized
        fill()
        self.buffer = self.uniform
        return True


def times(recording: PlayedSteps, begin: int, end: int) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
    """Yield (start, stop, numbers of all lanes' steps [stop - start, lanes]) for chunks of ``begin <= t < end``."""
    for start in range(begin, end, CHUNK):
        stop = min(end, start + CHUNK)
        yield start, stop, np.arange(start * recording.lanes, stop * recording.lanes).reshape(-1, recording.lanes)


class Sharpwave(Contender):
    """Contender ``sharpwave.Store``: one frame a step; stack and successor are built when sampling."""

    def __init__(self, codec: str) -> None:
        self.codec = codec

    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        for start, stop, number in times(recording, begin, end):
            obs = np.array(recording.obs[start:stop])
            for i, t in enumerate(range(start, stop)):
                ended = recording.final_place[t].max() >= 0
                yield {
                    "obs": obs[i],
                    "action": number[i],
                    "reward": recording.reward[t],
                    "terminated": recording.terminated[t],
                    "truncated": recording.truncated[t],
                    "final_obs": recording.next_frames(t, t + 1)[0] if ended else None,
                }

    def empty(self, prioritized: bool) -> Any:
        recording = self.recording
        obs = sw.Field(recording.frame_shape, str(recording.obs.dtype), stack=recording.stack)
        spec = sw.Spec(obs=obs, action=sw.Field((), "int64"))
        self.store = sw.Store(spec, capacity=self.steps, codec={"obs": self.codec})
        self.prioritized = self.store.transitions(sampler=sw.Prioritized(alpha=ALPHA, beta=BETA))
        return self.store.transitions()

    def add(self, item: Any) -> None:
        self.store.extend(**item)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        return True

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        sampled = self.prioritized.sample(batch)
        self.prioritized.update_priorities(sampled.ids, td_error)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        return sampled.obs, sampled.next_obs, sampled.action


class SB3(Contender):
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

    def empty(self, prioritized: bool) -> Any:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        if prioritized:
            return None
        recording, dtype = self.recording, self.recording.obs.dtype
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-np.inf, np.inf)
        buffer: Any = ReplayBuffer(
            self.steps,
            Box(low, high, recording.obs_shape, dtype.type),
            Discrete(2),
            device="cpu",
            n_envs=recording.lanes,
            optimize_memory_usage=self.optimized,
            handle_timeout_termination=not self.optimized,
        )
        if not self.to_torch:
            buffer.to_torch = lambda array, copy=True: array
        return buffer

    def add(self, item: Any) -> None:
        self.buffer.add(*item)

    def seen(self, sampled: Any) -> Sampled:
        arrays = (sampled.observations, sampled.next_observations, sampled.actions[:, 0])
        obs, successor, number = (np.asarray(array) for array in arrays)
        return obs, successor, number


class Cpprb(Contender):
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

    def empty(self, prioritized: bool) -> Any:
        from cpprb import PrioritizedReplayBuffer, ReplayBuffer

        shape = self.recording.obs_shape
        if self.stack_compress:
            shape = (*shape[1:], shape[0])
        fields = {
            "obs": {"shape": shape, "dtype": self.recording.obs.dtype}, "act": {"dtype": np.int64}, "rew": {},
            "done": {},
        }  # fmt: skip
        settings: dict[str, Any] = {"env_dict": fields, "next_of": "obs"}
        if self.stack_compress:
            settings["stack_compress"] = "obs"
        if prioritized:
            return PrioritizedReplayBuffer(self.steps, alpha=ALPHA, **settings)
        return ReplayBuffer(self.steps, **settings)

    def add(self, item: Any) -> None:
        arrays, broken_off = item
        self.buffer.add(**arrays)
        if broken_off:
            self.buffer.on_episode_end()

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        sampled = self.prioritized.sample(batch, beta=BETA)
        self.prioritized.update_priorities(sampled["indexes"], td_error)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        obs, successor = sampled["obs"], sampled["next_obs"]
        if self.stack_compress:
            obs, successor = np.moveaxis(obs, -1, 1), np.moveaxis(successor, -1, 1)
        return obs, successor, sampled["act"][:, 0]


class Tianshou(Contender):
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

    def empty(self, prioritized: bool) -> Any:
        from tianshou.data import PrioritizedVectorReplayBuffer, VectorReplayBuffer

        options: dict[str, Any] = {"ignore_obs_next": True}
        if self.last_frame:
            options |= {"save_only_last_obs": True, "stack_num": self.recording.stack}
        if prioritized:
            return PrioritizedVectorReplayBuffer(self.steps, self.recording.lanes, alpha=ALPHA, beta=BETA, **options)
        return VectorReplayBuffer(self.steps, self.recording.lanes, **options)

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)[0]

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        sampled, index = self.prioritized.sample(batch)
        self.prioritized.update_weight(index, td_error)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        return sampled.obs, sampled.obs_next, sampled.act


class TorchRL(Contender):
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

    def empty(self, prioritized: bool) -> Any:
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

        storage = LazyTensorStorage(self.steps)
        if not prioritized:
            return TensorDictReplayBuffer(storage=storage, batch_size=256)
        try:
            return TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage, batch_size=256)
        except RuntimeError:  # its C++ sum tree needs certain versions of torch
            return None

    def add(self, item: Any) -> None:
        self.buffer.extend(item)

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        import torch

        sampled = self.prioritized.sample(batch)
        sampled["td_error"] = torch.from_numpy(td_error)
        self.prioritized.update_tensordict_priority(sampled)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        arrays = (sampled["observation"], sampled["next", "observation"], sampled["action"])
        obs, successor, number = (array.numpy() for array in arrays)
        return obs, successor, number


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
