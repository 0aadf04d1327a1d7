"""Recordings: steps of several lanes, from which every replay memory is filled with the same transitions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LANES = 8

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
ALL = slice(None)


@dataclass(frozen=True)
class Recording:
    """Recording of ``times`` steps of each lane, with observations memory-mapped.

    Attributes:
        obs: [times + 1, lanes, *shape], the newest frame of each step's observation.
        reward: float32 [times, lanes].
        terminated, truncated: bool [times, lanes].
        final: [ends, *shape], the true last frames of the episodes, in the order of their ends.
        final_place: int64 [times, lanes], index of a step's final frame in ``final``; -1: it has none.
        start: int64 [times, lanes], the time at which the step's episode began.
        stack: frames of an observation; ``None``: an observation is one frame, without an axis for the stack.
    """

    obs: Array
    reward: npt.NDArray[np.float32]
    terminated: Bools
    truncated: Bools
    final: Array
    final_place: Ints
    start: Ints
    stack: int | None

    @property
    def times(self) -> int:
        """Steps of each lane."""
        return len(self.reward)

    @property
    def lanes(self) -> int:
        """Number of recorded environments."""
        return int(self.reward.shape[1])

    @property
    def steps(self) -> int:
        """Steps of all lanes."""
        return self.reward.size

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        return tuple(self.obs.shape[2:])

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of an observation, with its stack."""
        return self.frame_shape if self.stack is None else (self.stack, *self.frame_shape)

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return int(self.obs[0, 0].nbytes)

    def described(self) -> dict[str, Any]:
        """Return the recording's shape as JSON."""
        return {
            "frame": list(self.frame_shape), "dtype": str(self.obs.dtype), "stack": self.stack, "lanes": self.lanes,
            "steps": self.steps, "episodes": len(self.final),
        }  # fmt: skip

    def next_frames(self, begin: int, end: int, lanes: slice = ALL) -> Array:
        """Return the frame after each step of ``begin <= t < end``, [n, lanes, *shape]: the final one at an end."""
        after = np.array(self.obs[begin + 1 : end + 1, lanes])
        place = self.final_place[begin:end, lanes]
        after[place >= 0] = self.final[place[place >= 0]]
        return after

    def transitions(self, begin: int, end: int, lanes: slice = ALL) -> tuple[Array, Array]:
        """Return observations and their successors, [n, lanes, *obs_shape]; stacks repeat an episode's first frame."""
        after = self.next_frames(begin, end, lanes)
        if self.stack is None:
            return np.array(self.obs[begin:end, lanes]), after
        times = np.arange(begin, end)[:, None, None] + np.arange(1 - self.stack, 1)
        times = np.maximum(times, self.start[begin:end, lanes, None])
        obs = self.obs[times, np.arange(self.lanes)[lanes][None, :, None]]
        return obs, np.concatenate([obs[:, :, 1:], after[:, :, None]], axis=2)


def write(folder: Path, reward: Array, terminated: Array, truncated: Array, final: Array) -> None:
    """Write a recording except ``obs.npy``, which may be too large for memory and which the caller writes.

    Args:
        reward, terminated, truncated: [times, lanes].
        final: [ends, *shape], a frame for every end, ordered by time and then by lane.
    """
    np.save(folder / "reward.npy", reward.astype(np.float32))
    np.save(folder / "terminated.npy", terminated)
    np.save(folder / "truncated.npy", truncated)
    np.save(folder / "final.npy", final)


def read(folder: Path, stack: int | None, times: int | None = None) -> Recording:
    """Open a recording, or its first ``times`` steps of each lane; ``obs.npy`` holds at least one time more."""
    reward, terminated, truncated = (
        np.load(folder / f"{name}.npy")[:times] for name in ("reward", "terminated", "truncated")
    )
    times = len(reward)
    ended: Bools = terminated | truncated
    place = np.where(ended, np.cumsum(ended.reshape(-1)).reshape(ended.shape) - 1, np.int64(-1))
    begins = np.zeros(ended.shape, np.int64)
    begins[1:] = np.where(ended[:-1], np.arange(1, times)[:, None], np.int64(0))
    return Recording(
        obs=np.load(folder / "obs.npy", mmap_mode="r")[: times + 1],
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        final=np.load(folder / "final.npy", mmap_mode="r"),
        final_place=place,
        start=np.maximum.accumulate(begins, axis=0),
        stack=stack,
    )
