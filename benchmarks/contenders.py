"""What is compared: Sharpwave's store and other libraries' buffers, filled with the same steps.

Every contender stores as its action the step's number in the recording, so that what it samples can be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from frames import LANES, STACK, Frames

CHUNK = 64
ALPHA, BETA = 0.6, 0.4

Array = npt.NDArray[Any]


@dataclass
class Sampled:
    """A batch as a check sees it: [B, 4, H, W] frames and the steps' numbers."""

    obs: Array
    next_obs: Array
    number: Array


class Contender(Protocol):
    """One library in one configuration. The methods that are timed do what a user's code would do, and no more."""

    rows: int
    """Steps in one :meth:`add`."""

    def items(self, frames: Frames, begin: int, end: int) -> Iterator[Any]:
        """What :meth:`add` takes, for all lanes' steps of ``begin <= t < end``."""

    def build(self, steps: int) -> None:
        """An empty buffer for ``steps``."""

    def add(self, item: Any) -> None:
        """Add ``rows`` steps."""

    def sample(self, batch: int) -> Any:
        """A uniform batch."""

    def prioritize(self, fill: Callable[[], None]) -> bool:
        """Make prioritized sampling ready (``fill`` adds the steps again); False where there is none."""

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        """A prioritized batch, and its priorities updated."""

    def seen(self, sampled: Any) -> Sampled:
        """What :meth:`sample` gave, for checking."""


def numbers(begin: int, end: int) -> npt.NDArray[np.int64]:
    """Numbers of all lanes' steps: [n, lanes]."""
    return np.arange(begin * LANES, end * LANES).reshape(-1, LANES)


class Sharpwave:
    """``sharpwave.Store``, one frame a step, stack and successor made when sampling."""

    rows = LANES

    def __init__(self, codec: str) -> None:
        self.codec = codec

    def items(self, frames: Frames, begin: int, end: int) -> Iterator[Any]:
        for start in range(begin, end, CHUNK):
            stop = min(end, start + CHUNK)
            obs, number = np.array(frames.obs[start:stop]), numbers(start, stop)
            for i, t in enumerate(range(start, stop)):
                ended = frames.final_place[t].max() >= 0
                yield {
                    "obs": obs[i],
                    "action": number[i],
                    "reward": frames.reward[t],
                    "terminated": frames.terminated[t],
                    "truncated": frames.truncated[t],
                    "final_obs": frames.next_frames(t, t + 1)[0] if ended else None,
                }

    def build(self, steps: int) -> None:
        import sharpwave as sw

        spec = sw.Spec(obs=sw.Field((84, 84), "uint8", stack=STACK), action=sw.Field((), "int64"))
        self.store = sw.Store(spec, capacity=steps, codec={"obs": self.codec})
        self.prioritized = self.store.transitions(sampler=sw.Prioritized(alpha=ALPHA, beta=BETA))
        self.uniform = self.store.transitions()

    def add(self, item: Any) -> None:
        self.store.extend(**item)

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        return True

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        sampled = self.prioritized.sample(batch)
        self.prioritized.update_priorities(sampled.ids, td_error)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        return Sampled(sampled.obs, sampled.next_obs, sampled.action)


class SB3:
    """stable-baselines3's ``ReplayBuffer`` behind a stacked vector env: whole stacks, handed out as torch tensors.

    Args:
        optimized: ``optimize_memory_usage``: the successor is the next row.
        to_torch: ``False`` hands out numpy arrays, which spares it a copy.
    """

    rows = LANES

    def __init__(self, optimized: bool, to_torch: bool) -> None:
        self.optimized, self.to_torch = optimized, to_torch

    def items(self, frames: Frames, begin: int, end: int) -> Iterator[Any]:
        infos: list[dict[str, Any]] = [{} for _ in range(LANES)]
        for start in range(begin, end, CHUNK):
            stop = min(end, start + CHUNK)
            (obs, successor), number = frames.stacks(start, stop), numbers(start, stop)
            for i, t in enumerate(range(start, stop)):
                done = frames.terminated[t] | frames.truncated[t]
                yield obs[i], successor[i], number[i], frames.reward[t], done, infos

    def build(self, steps: int) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        made: Any = ReplayBuffer
        self.buffer = made(
            steps,
            Box(0, 255, (STACK, 84, 84), np.uint8),
            Discrete(6),
            device="cpu",
            n_envs=LANES,
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
    """cpprb's ``ReplayBuffer``; its memory options need one env's steps in order, so lanes come one after another.

    Args:
        stack_compress: one frame a step (stack on the last axis, as it wants it), else whole stacks.
    """

    rows = LANES

    def __init__(self, stack_compress: bool) -> None:
        self.stack_compress = stack_compress

    def items(self, frames: Frames, begin: int, end: int) -> Iterator[Any]:
        for lane in range(LANES):
            one = slice(lane, lane + 1)
            for start in range(begin, end, CHUNK):
                stop = min(end, start + CHUNK)
                obs, successor = (array[:, 0] for array in frames.stacks(start, stop, one))
                if self.stack_compress:
                    obs, successor = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (obs, successor))
                number = numbers(start, stop)[:, lane]
                reward = frames.reward[start:stop, lane]
                done = frames.terminated[start:stop, lane] | frames.truncated[start:stop, lane]
                row = 0
                while row < stop - start:
                    after = min(row + self.rows, stop - start)
                    if done[row:after].any():
                        after = row + int(np.argmax(done[row:after])) + 1
                    part = slice(row, after)
                    broken_off = bool(done[after - 1]) or (after == stop - start and stop == end)
                    arrays = (obs[part], successor[part], number[part], reward[part], done[part])
                    yield dict(zip(("obs", "next_obs", "act", "rew", "done"), arrays, strict=True)), broken_off
                    row = after

    def build(self, steps: int) -> None:
        from cpprb import ReplayBuffer

        self.buffer = self.uniform = ReplayBuffer(steps, **self._settings())

    def _settings(self) -> dict[str, Any]:
        shape = (84, 84, STACK) if self.stack_compress else (STACK, 84, 84)
        fields = {"obs": {"shape": shape, "dtype": np.uint8}, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        compress = {"stack_compress": "obs"} if self.stack_compress else {}
        return {"env_dict": fields, "next_of": "obs", **compress}

    def add(self, item: Any) -> None:
        arrays, broken_off = item
        self.buffer.add(**arrays)
        if broken_off:
            self.buffer.on_episode_end()

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        from cpprb import PrioritizedReplayBuffer

        self.buffer = PrioritizedReplayBuffer(self.uniform.get_buffer_size(), alpha=ALPHA, **self._settings())
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
    """Tianshou's ``VectorReplayBuffer`` with ``ignore_obs_next``.

    Args:
        last_frame: its Atari settings, ``save_only_last_obs`` and ``stack_num=4``; else whole stacks are stored.
    """

    rows = LANES

    def __init__(self, last_frame: bool) -> None:
        self.options: dict[str, Any] = {"ignore_obs_next": True}
        if last_frame:
            self.options |= {"save_only_last_obs": True, "stack_num": STACK}

    def items(self, frames: Frames, begin: int, end: int) -> Iterator[Any]:
        from tianshou.data import Batch

        for start in range(begin, end, CHUNK):
            stop = min(end, start + CHUNK)
            (obs, _), number = frames.stacks(start, stop), numbers(start, stop)
            for i, t in enumerate(range(start, stop)):
                ends = {"terminated": frames.terminated[t], "truncated": frames.truncated[t]}
                yield Batch(obs=obs[i], act=number[i], rew=frames.reward[t], **ends)

    def build(self, steps: int) -> None:
        from tianshou.data import VectorReplayBuffer

        self.steps = steps
        self.buffer: Any = VectorReplayBuffer(steps, LANES, **self.options)
        self.uniform = self.buffer

    def add(self, item: Any) -> None:
        self.buffer.add(item)

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)[0]

    def prioritize(self, fill: Callable[[], None]) -> bool:
        from tianshou.data import PrioritizedVectorReplayBuffer

        self.buffer = PrioritizedVectorReplayBuffer(self.steps, LANES, alpha=ALPHA, beta=BETA, **self.options)
        fill()
        self.prioritized, self.buffer = self.buffer, self.uniform
        return True

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        sampled, index = self.prioritized.sample(batch)
        self.prioritized.update_weight(index, td_error)
        return sampled

    def seen(self, sampled: Any) -> Sampled:
        return Sampled(sampled.obs, sampled.obs_next, sampled.act)


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "sharpwave auto": lambda: Sharpwave("auto"),
    "sharpwave delta": lambda: Sharpwave("delta"),
    "sharpwave zstd": lambda: Sharpwave("zstd"),
    "sharpwave raw": lambda: Sharpwave("raw"),
    "SB3": lambda: SB3(optimized=False, to_torch=True),
    "SB3 optimized": lambda: SB3(optimized=True, to_torch=True),
    "SB3 numpy": lambda: SB3(optimized=False, to_torch=False),
    "cpprb compressed": lambda: Cpprb(stack_compress=True),
    "cpprb stacks": lambda: Cpprb(stack_compress=False),
    "Tianshou last frame": lambda: Tianshou(last_frame=True),
    "Tianshou stacks": lambda: Tianshou(last_frame=False),
}
ENCODED = ("sharpwave auto", "sharpwave delta", "sharpwave zstd")
