"""Real frames for the benchmarks: games stepped by ale-py under random play, kept as .npy files outside git.

The game ``noise`` has frames that no codec compresses.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.bench import played
from sharpwave.bench.played import LANES, PlayedSteps

STACK = 4
STICKY = 0.25
CACHE = Path(__file__).parent / "cache"


def load(game: str, steps: int, *, cache: Path = CACHE, say: Callable[[str], None] = print, **env: Any) -> PlayedSteps:
    """Load at least ``steps`` frames of ``game``; play it first if no cached run is long enough.

    Args:
        env: settings of ale-py's ``AtariVectorEnv`` beyond 84x84 grey; part of the cache's name.
    """
    return read(folder_of(game, steps, cache=cache, say=say, **env), steps)


def folder_of(game: str, steps: int, *, cache: Path = CACHE, say: Callable[[str], None] = print, **env: Any) -> Path:
    """Return the folder of the frames; play the game first if there is none."""
    kind = "-".join([game, *(f"{key}={value}" for key, value in sorted(env.items()))])
    whole = [path for path in cache.glob(f"{kind}@*") if path.name.rpartition("@")[2].isdecimal()]  # complete runs only
    for folder in sorted(whole, key=lambda path: int(path.name.rpartition("@")[2])):
        if int(folder.name.rpartition("@")[2]) >= steps:
            return folder
    folder = cache / f"{kind}@{steps}"
    unfinished = cache / f"{kind}@{steps}.{os.getpid()}"
    unfinished.mkdir(parents=True)
    try:
        times = -(-steps // LANES) + 1
        _draw_noise(times, unfinished) if game == "noise" else _play(game, times, unfinished, say, env)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def read(folder: Path, steps: int | None = None) -> PlayedSteps:
    """Open a cached run, or its first ``steps``."""
    there = json.loads((folder / "info.json").read_text())["times"] - 1  # its last frame is the last step's successor
    return played.read(folder, STACK, there if steps is None else min(-(-steps // LANES), there))


def _draw_noise(times: int, folder: Path) -> None:
    frames = np.lib.format.open_memmap(folder / "obs.npy", "w+", np.uint8, (times, LANES, 84, 84))
    frames[:] = np.frombuffer(np.random.default_rng(0).bytes(frames.nbytes), np.uint8).reshape(frames.shape)
    no = np.zeros((times, LANES), np.bool_)
    played.write(folder, no, no, no, np.zeros((0, 84, 84), np.uint8))
    (folder / "info.json").write_text(json.dumps({"game": "noise", "times": times}))


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
    final: list[npt.NDArray[np.uint8]] = []
    begin = time.monotonic()
    for t in range(times):
        frames[t] = obs[:, 0]
        obs, reward[t], terminated[t], truncated[t], infos = env.step(action[t])
        final += [infos["final_obs"][lane, 0].copy() for lane in np.flatnonzero(terminated[t] | truncated[t])]
        if t % 4096 == 4095:
            rate = (t + 1) * LANES / (time.monotonic() - begin)
            say(f"playing {game}: {(t + 1) * LANES:,} of {times * LANES:,} steps, {rate:,.0f} a second")
    frames.flush()
    played.write(folder, reward, terminated, truncated, np.array(final, np.uint8).reshape(-1, *shape))
    (folder / "info.json").write_text(json.dumps({"game": game, "times": times, "sticky": STICKY, **settings}))
