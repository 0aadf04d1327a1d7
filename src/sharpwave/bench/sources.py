"""Sources of recordings: an environment, a store's folder, an array on disk, or drawn pictures."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sharpwave.bench import recording
from sharpwave.bench.recording import LANES, Array, Recording, read
from sharpwave.spec import Spec
from sharpwave.training.text import printable

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


def record(env: str | None, data: Path | None, folder: Path, seconds: float, say: Say) -> tuple[Recording, str]:
    """Record transitions to ``folder``; return the recording and a description of its source.

    Args:
        env: name of an environment to play at random.
        data: a store's folder or a ``.npy`` file. With neither, pictures are drawn.
        seconds: time for which an environment is played.

    Raises:
        ValueError: an invalid argument.
        OSError: a file cannot be read.
    """
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
            final[t, lane] = seen.of_one(infos["final_obs"][lane])[field_name][0].copy()
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
    from sharpwave.offline.episodes import frames, survey

    say(f"reading {path}")
    found = survey(path)
    spec = found.described.spec
    name = _largest(spec)
    field = spec.fields[name]
    wanted = max_times(field.row_bytes) * LANES
    rows: list[tuple[Array, float, bool, bool]] = []  # frame, reward, terminated, truncated
    finals: dict[int, Array] = {}  # by the row of the episode's last step
    for episode in reversed(found.episodes):
        shown = list(frames(found, episode, name, np.arange(min(episode.steps, wanted) + 1)))
        if len(shown) < 2:
            continue
        rows += [(one.frame, one.reward or 0.0, False, False) for one in shown[:-1]]
        whole = shown[-1].reward is None and episode.end == "terminated"
        rows[-1] = (*rows[-1][:2], whole, not whole)
        finals[len(rows) - 1] = shown[-1].frame
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
    recording.write(folder, reward, terminated, truncated, np.array([final[place] for place in sorted(final)]))
