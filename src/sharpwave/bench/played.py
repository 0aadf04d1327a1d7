"""Played steps of several lanes, with which every replay memory is filled, and their sources.

A source is an environment, a store's folder, an array on disk, or drawn pictures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Array, Bools, Ints
from sharpwave.spec import Spec

LANES = 8

ALL = slice(None)


@dataclass(frozen=True)
class PlayedSteps:
    """PlayedSteps of ``times`` steps of each lane, with observations memory-mapped.

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
        return int(self.reward.shape[1])

    @property
    def steps(self) -> int:
        """Steps of all lanes."""
        return self.reward.size

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return tuple(self.obs.shape[2:])

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of an observation, with its stack."""
        return self.frame_shape if self.stack is None else (self.stack, *self.frame_shape)

    @property
    def frame_bytes(self) -> int:
        return int(self.obs[0, 0].nbytes)

    def described(self) -> dict[str, Any]:
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


def read(folder: Path, stack: int | None, times: int | None = None) -> PlayedSteps:
    """Open a recording, or its first ``times`` steps of each lane; ``obs.npy`` holds at least one time more."""
    reward, terminated, truncated = (
        np.load(folder / f"{name}.npy")[:times] for name in ("reward", "terminated", "truncated")
    )
    times = len(reward)
    ended: Bools = terminated | truncated
    place = np.where(ended, np.cumsum(ended.reshape(-1)).reshape(ended.shape) - 1, np.int64(-1))
    begins = np.zeros(ended.shape, np.int64)
    begins[1:] = np.where(ended[:-1], np.arange(1, times)[:, None], np.int64(0))
    return PlayedSteps(
        obs=np.load(folder / "obs.npy", mmap_mode="r")[: times + 1],
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        final=np.load(folder / "final.npy", mmap_mode="r"),
        final_place=place,
        start=np.maximum.accumulate(begins, axis=0),
        stack=stack,
    )


MAX_STEPS, MIN_TIMES = 1 << 14, 32
MAX_BYTES = 256 << 20
"""Size limit of a recording's frames."""
STACK = 4
"""Stack assumed for two-dimensional uint8 frames whose source declares none."""

Say = Callable[[str], None]
Finals = dict[tuple[int, int], Array]
"""Final frames of episodes, by time and lane of their last steps."""


def max_times(frame_bytes: int) -> int:
    """Return the maximum number of recorded steps of each lane."""
    return max(MIN_TIMES, min(MAX_STEPS, MAX_BYTES // frame_bytes) // LANES)


def record(env: str | None, data: Path | None, folder: Path, seconds: float, say: Say) -> tuple[PlayedSteps, str]:
    """Record transitions to ``folder``; return the recording and a description of its source.

    Args:
        env: name of an environment to play at random.
        data: a store's folder or a ``.npy`` file. With neither, pictures are drawn.
        seconds: time for which an environment is played.

    Raises:
        ValueError: an invalid argument.
        OSError: a file cannot be read.
    """
    from sharpwave.escaping import printable

    if data is None:
        stack = drawn(folder) if env is None else from_env(env, folder, seconds, say)
        source = "drawn pictures" if env is None else f"random play of {env}"
    elif data.is_dir():
        stack, name = from_store(data, folder, say)
        source = f"{name} of {printable(str(data))}"
    elif data.exists():
        stack, source = from_array(data, folder), printable(str(data))
    else:
        raise ValueError(f"--data: {str(data)!r} does not exist; expected a store's folder or a .npy file")
    recording = read(folder, stack)
    shape = "x".join(map(str, recording.obs_shape)) or "scalar"
    return recording, f"{source}, {shape} {recording.obs.dtype}"


def from_env(name: str, folder: Path, seconds: float, say: Say) -> int | None:
    """Record random play for ``seconds``; return the stack of the observations.

    Raises:
        ValueError: an unknown environment.
    """
    from sharpwave.envs import make_env, step_spec
    from sharpwave.observations import Observations

    env = make_env(name, LANES)
    spec = step_spec(env)
    seen, field_name = Observations(env, spec), _largest(spec)
    field = spec.fields[field_name]
    count = max_times(field.row_bytes)
    frames = np.lib.format.open_memmap(folder / "obs.npy", "w+", field.dtype, (count + 1, LANES, *field.shape))
    reward = np.zeros((count, LANES), np.float32)
    terminated, truncated = np.zeros((count, LANES), np.bool_), np.zeros((count, LANES), np.bool_)
    final: Finals = {}
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    begin = told = time.monotonic()
    for t in range(count):
        frames[t] = seen.frames(obs)[field_name]
        obs, reward[t], terminated[t], truncated[t], infos = env.step(env.action_space.sample())
        for lane in np.flatnonzero(terminated[t] | truncated[t]).tolist():
            final[t, lane] = seen.frames(infos["final_obs"][lane], of_one=True)[field_name][0].copy()
        now = time.monotonic()
        if now - begin > seconds and t + 1 >= MIN_TIMES:
            break
        if now - told > 0.25:
            told = now
            say(f"playing {name} at random: {(t + 1) * LANES:,} steps")
    env.close()
    frames[t + 1] = after = seen.frames(obs)[field_name]
    frames.flush()
    kept = slice(0, t + 1)
    _write(folder, reward[kept], terminated[kept], truncated[kept], final, after)
    return field.stack


def from_store(path: Path, folder: Path, say: Say) -> tuple[int | None, str]:
    """Record the newest episodes of a store's folder, which is only read; return the stack and the field's name.

    Of a dict observation the largest field is taken.

    Raises:
        ValueError: the store holds too few steps.
        OSError: the folder holds no store, or cannot be read.
    """
    from sharpwave.offline.surveys import survey

    say(f"reading {path}")
    found = survey(path)
    spec = found.described.spec
    name = _largest(spec)
    field = spec.fields[name]
    wanted = max_times(field.row_bytes) * LANES
    rows: list[tuple[Array, float, bool, bool]] = []  # frame, reward, terminated, truncated
    finals: dict[int, Array] = {}  # by the row of the episode's last step
    for episode in reversed(found.episodes):
        frames: list[Array] = []
        rewards: list[float] = []
        for part in found.read(episode, (name,), 0, wanted + 1):
            at = part.frames[part.rows]
            frames += list(part.arrays[name][at[0] : at[-1] + 1 + part.ends])  # with the final observation
            rewards += part.arrays["reward"][part.rows].tolist()
        frames = frames[: wanted + 1]
        if len(frames) < 2:
            continue
        rows += [(frame, reward, False, False) for frame, reward in zip(frames[:-1], rewards, strict=False)]
        whole = len(frames) > episode.steps and episode.end == "terminated"
        rows[-1] = (*rows[-1][:2], whole, not whole)
        finals[len(rows) - 1] = frames[-1]
        say(f"reading {path}: {len(rows):,} steps")
        if len(rows) >= wanted:
            break
    if len(rows) < MIN_TIMES * LANES:
        raise ValueError(f"--data: {path} has {len(rows):,} steps, expected at least {MIN_TIMES * LANES}")
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    # The row of steps is cut into the lanes, one after another.
    count = len(rows) // LANES
    obs, reward, terminated, truncated = (
        np.ascontiguousarray(column[: count * LANES].reshape(LANES, count, *column.shape[1:]).swapaxes(0, 1))
        for column in columns
    )
    final = {(row % count, row // count): frame for row, frame in finals.items() if row < count * LANES}
    successors = np.append(np.arange(1, LANES) * count, min(count * LANES, len(rows) - 1))
    after = columns[0][successors]
    np.save(folder / "obs.npy", np.concatenate([obs, after[None]]))
    _write(folder, reward, terminated, truncated, final, after)
    return field.stack, name


def from_array(path: Path, folder: Path) -> int | None:
    """Record frames [count, *shape] of a ``.npy`` file in order; return the stack.

    Raises:
        ValueError: not an array of frames, or too few of them.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"--data: {path} cannot be read as a .npy file: {error}") from error
    if array.ndim < 2 or array.dtype.kind not in "buif" or not array.size:
        raise ValueError(
            f"--data: {path} has shape {array.shape} {array.dtype}, expected numbers [frames, ...], one frame a step"
        )
    if len(array) <= MIN_TIMES * LANES:
        raise ValueError(f"--data: {path} has {len(array):,} frames, expected more than {MIN_TIMES * LANES}")
    frame = array[0]
    count = min(max_times(frame.nbytes), (len(array) - 1) // LANES)
    # A run of frames for each lane, evenly spaced over the file.
    begins = np.arange(LANES) * ((len(array) - 1) // LANES)
    obs = np.stack([array[begin : begin + count + 1] for begin in begins], axis=1)
    _write_endless(folder, obs)
    return STACK if obs.dtype == np.uint8 and frame.ndim == 2 else None


def drawn(folder: Path) -> int:
    """Record drawn pictures, a few bars that move over a fixed background; return the stack."""
    count = max_times(84 * 84)
    background = np.random.default_rng(0).integers(0, 40, (84, 84)).astype(np.uint8)
    obs = np.empty((count + 1, LANES, 84, 84), np.uint8)
    obs[:] = background
    for t in range(count + 1):
        for lane in range(LANES):
            y, x = t * (lane + 1) % 72, (3 * t + 7 * lane) % 80
            obs[t, lane, y : y + 12, 10:13] = 200
            obs[t, lane, 40 + t % 30 : 43 + t % 30, x : x + 4] = 250
            obs[t, lane, t // 3 % 70 : t // 3 % 70 + 10, 70:73] = 120
    _write_endless(folder, obs)
    return STACK


def _largest(spec: Spec) -> str:
    """Return the name of the observation's field that takes most bytes."""
    return max(spec.obs_names, key=lambda name: spec.fields[name].row_bytes)


def _write_endless(folder: Path, obs: Array) -> None:
    """Write a recording of [times + 1, LANES, *shape] in which no episode ends before the recording does."""
    np.save(folder / "obs.npy", obs)
    zeros = np.zeros((len(obs) - 1, LANES), np.bool_)
    _write(folder, zeros, zeros, zeros.copy(), {}, obs[-1])


def _write(folder: Path, reward: Array, terminated: Array, truncated: Array, final: Finals, after: Array) -> None:
    """Write a recording whose last step truncates every lane, so that it can be played again from its beginning.

    Args:
        after: [LANES, *shape], the frames after the last step.
    """
    last = len(reward) - 1
    for lane in np.flatnonzero(~(terminated[last] | truncated[last])).tolist():
        truncated[last, lane] = True
        final[last, lane] = after[lane]
    write(folder, reward, terminated, truncated, np.array([final[place] for place in sorted(final)]))
