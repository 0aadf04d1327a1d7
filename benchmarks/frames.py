"""Real frames for the benchmarks: games stepped by ale-py under random play, kept as .npy files outside git."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LANES = 8
STACK = 4
STICKY = 0.25
CACHE = Path(__file__).parent / "cache"

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Lanes = slice
ALL = slice(None)


@dataclass(frozen=True)
class Frames:
    """``times`` steps of each of 8 lanes. Large arrays are memory-mapped.

    Attributes:
        obs: uint8 [times, lanes, *shape], the newest frame of what each step's action was taken in.
        action: int64 [times, lanes].  reward: float32 [times, lanes].  terminated, truncated: bool [times, lanes].
        final: uint8 [ends, *shape], the true last frames of the episodes, in the order of their ends.
        final_place: int64 [times, lanes], which of ``final`` belongs to a step; -1 where none does.
        start: int64 [times, lanes], when the step's episode began.
    """

    obs: npt.NDArray[np.uint8]
    action: Ints
    reward: npt.NDArray[np.float32]
    terminated: Bools
    truncated: Bools
    final: npt.NDArray[np.uint8]
    final_place: Ints
    start: Ints

    @property
    def steps(self) -> int:
        """Steps of all lanes."""
        return self.action.size

    def next_frames(self, begin: int, end: int, lanes: Lanes = ALL) -> npt.NDArray[np.uint8]:
        """The frame after each step of ``begin <= t < end``: [n, lanes, *shape], the final one at an end."""
        after = np.array(self.obs[begin + 1 : end + 1, lanes])
        place = self.final_place[begin:end, lanes]
        after[place >= 0] = self.final[place[place >= 0]]
        return after

    def stacks(self, begin: int, end: int, lanes: Lanes = ALL) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Observation and successor as [n, lanes, 4, *shape]; an episode's first frame is repeated before it."""
        times = np.arange(begin, end)[:, None, None] + np.arange(1 - STACK, 1)
        times = np.maximum(times, self.start[begin:end, lanes, None])
        obs = self.obs[times, np.arange(LANES)[lanes][None, :, None]]
        successor = np.concatenate([obs[:, :, 1:], self.next_frames(begin, end, lanes)[:, :, None]], axis=2)
        return obs, successor


def load(game: str, steps: int, *, cache: Path = CACHE, say: Callable[[str], None] = print, **env: Any) -> Frames:
    """Frames of ``game``, at least ``steps``; played first where no cached run is long enough.

    Args:
        env: settings of ale-py's ``AtariVectorEnv`` beyond 84x84 grey, part of the cache's name.
    """
    return read(folder_of(game, steps, cache=cache, say=say, **env), steps)


def folder_of(game: str, steps: int, *, cache: Path = CACHE, say: Callable[[str], None] = print, **env: Any) -> Path:
    """The folder that holds the frames, played first where it is not there."""
    kind = "-".join([game, *(f"{key}={value}" for key, value in sorted(env.items()))])
    whole = [path for path in cache.glob(f"{kind}@*") if path.name.rpartition("@")[2].isdecimal()]  # none broken off
    for folder in sorted(whole, key=lambda path: int(path.name.rpartition("@")[2])):
        if int(folder.name.rpartition("@")[2]) >= steps:
            return folder
    folder = cache / f"{kind}@{steps}"
    unfinished = cache / f"{kind}@{steps}.{os.getpid()}"
    unfinished.mkdir(parents=True)
    try:
        _play(game, -(-steps // LANES) + 1, unfinished, say, env)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def read(folder: Path, steps: int) -> Frames:
    """The first ``steps`` of a cached run. One time more of frames is there, as the last step's successor."""
    times = min(-(-steps // LANES), json.loads((folder / "info.json").read_text())["times"] - 1)
    names = ("action", "reward", "terminated", "truncated")
    small: dict[str, Any] = {name: np.load(folder / f"{name}.npy")[:times] for name in names}
    ended: Bools = small["terminated"] | small["truncated"]
    place = np.where(ended, np.cumsum(ended.reshape(-1)).reshape(ended.shape) - 1, np.int64(-1))
    begins = np.zeros(ended.shape, np.int64)
    begins[1:] = np.where(ended[:-1], np.arange(1, times)[:, None], np.int64(0))
    return Frames(
        obs=np.load(folder / "obs.npy", mmap_mode="r")[: times + 1],
        final=np.load(folder / "final.npy", mmap_mode="r"),
        final_place=place,
        start=np.maximum.accumulate(begins, axis=0),
        **small,
    )


def _play(game: str, times: int, folder: Path, say: Callable[[str], None], settings: dict[str, Any]) -> None:
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    env: Any = AtariVectorEnv(
        game,
        LANES,
        stack_num=1,
        repeat_action_probability=STICKY,
        autoreset_mode=AutoresetMode.SAME_STEP,
        **settings,
    )
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    shape = obs.shape[2:]
    frames = np.lib.format.open_memmap(folder / "obs.npy", "w+", np.uint8, (times, LANES, *shape))
    action = rng.integers(0, env.single_action_space.n, (times, LANES))
    reward = np.zeros((times, LANES), np.float32)
    terminated, truncated = np.zeros((times, LANES), np.bool_), np.zeros((times, LANES), np.bool_)
    final = []
    begin = time.monotonic()
    for t in range(times):
        frames[t] = obs[:, 0]
        obs, reward[t], terminated[t], truncated[t], infos = env.step(action[t])
        final += [infos["final_obs"][lane, 0].copy() for lane in np.flatnonzero(terminated[t] | truncated[t])]
        if t % 4096 == 4095:
            rate = (t + 1) * LANES / (time.monotonic() - begin)
            say(f"playing {game}: {(t + 1) * LANES:,} of {times * LANES:,} steps, {rate:,.0f} a second")
    frames.flush()
    names: dict[str, npt.NDArray[Any]] = {
        "action": action,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
    }
    for name, array in (names | {"final": np.array(final, np.uint8).reshape(-1, *shape)}).items():
        np.save(folder / f"{name}.npy", array)
    (folder / "info.json").write_text(json.dumps({"game": game, "times": times, "sticky": STICKY, **settings}))
