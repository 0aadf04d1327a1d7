"""Data sets of ``learners.py``'s offline tasks, made as D4RL's: by random actions and by policies of our own SAC.

``random``: uniform actions. ``medium``: a policy after ``MEDIUM`` steps. ``medium-replay``: its replay memory.
``expert``: the same agent after ``EXPERT`` steps. Policies sample their actions, as D4RL's do.

Source: Fu et al. (2020), D4RL, section 5 and appendix A (its sets have a million steps, its experts were trained for
as many).
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.offline.recorded import RecordedEpisodes
from sharpwave.training.offline_data import store_path
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recording import ScriptPlayer, record

ENVS = ("Hopper", "HalfCheetah", "Walker2d")
QUALITIES = ("random", "medium", "medium-replay", "expert")
SIZE = 50_000
"""Steps of a set, to the end of the last episode."""
MEDIUM, EXPERT = 40_000, 160_000
SEED = 900


def data_set(task: str, folder: Path) -> Path:
    """Return the folder of a task's data, ``Hopper-medium`` for one; a set that lacks is made in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several runs begin at once
        return _data_set(task, folder)


def _data_set(task: str, folder: Path) -> Path:
    env, _, quality = task.partition("-")
    if quality == "medium-replay":
        found = store_path(str(trained(env, MEDIUM, folder)))
        assert found is not None
        return found
    made = folder / task
    if not made.exists():
        lanes = load_recipe("sac").override(env=f"{env}-v5").env.make(1)
        space = lanes.single_action_space
        space.seed(SEED)
        act: Callable[[Any], Any] = lambda obs: space.sample()  # noqa: E731
        if quality != "random":
            run = trained(env, MEDIUM if quality == "medium" else EXPERT, folder)
            act = partial(sw.Policy.load(run, "last").act, explore=True)
        steps: list[int] = []
        record(
            lanes, ScriptPlayer(lambda rng: act, space, SEED, task), made, episodes=SIZE, seed=SEED,
            tell=lambda episode: steps.append(episode.steps),
            interrupted=lambda: "its size" if sum(steps) >= SIZE else None,
        )  # fmt: skip
        lanes.close()
    return made


def trained(env: str, steps: int, folder: Path) -> Path:
    """Return the run of SAC with ``steps`` steps; the longer one goes on from a copy of the shorter."""
    run = folder / f"sac-{env}-{steps}"
    if steps == MEDIUM:
        if not (run / "summary.json").exists():
            shutil.rmtree(run, ignore_errors=True)
            sw.train(
                f"{env}-v5", recipe="sac", steps=steps, seed=SEED, evaluate_every=0, device="cpu", threads=1, out=run
            )
    elif not run.exists() or sw.TrainingRun.open(run).summary.get("steps", 0) < steps:
        if not run.exists():
            shutil.copytree(trained(env, MEDIUM, folder), run)
        sw.TrainingRun.open(run).resume(steps=steps)
    return run


def returns(data: Path) -> list[float]:
    """Return the sum of rewards of each whole episode."""
    return [float(episode.reward.sum()) for episode in RecordedEpisodes(data)]


def as_arrays(data: Path, file: Path) -> Path:
    """Write episodes one after the other, as D4RL's files have them, for other libraries; return the file."""
    if not file.exists():
        episodes = list(RecordedEpisodes(data))
        ends = np.cumsum([len(one.reward) for one in episodes]) - 1
        terminated = np.array([one.episode.end == "terminated" for one in episodes])
        marks = {name: np.zeros(ends[-1] + 1, bool) for name in ("terminals", "timeouts")}
        marks["terminals"][ends], marks["timeouts"][ends] = terminated, ~terminated
        np.savez(
            file,
            observations=np.concatenate([one.obs["obs"][:-1] for one in episodes]),
            actions=np.concatenate([one.fields["action"] for one in episodes]),
            rewards=np.concatenate([one.reward for one in episodes]),
            terminals=marks["terminals"],
            timeouts=marks["timeouts"],
        )
    return file
