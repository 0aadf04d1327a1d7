"""Runs of several agents on several tasks from several seeds: each in a process of its own, each a line of a file."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharpwave.training.recipes.recipe import Recipe

EPSILON = 0.001
"""Probability of a random action in a measurement."""
HELD_OUT = 7 << 28
"""First seed of measurements; those of training and of its evaluations are below."""

Key = tuple[str, str, int]
"""Task, agent and seed of a run."""
Line = dict[str, Any]
"""Outcome of a run: ``task``, ``agent``, ``seed``, ``score`` and further figures."""


def learned(name: str, recipe: Recipe, folder: Path, episodes: int, epsilon: float = EPSILON) -> Line:
    """Train one run to its end, or go on with it, and measure its policy on ``episodes`` held-out episodes.

    Args:
        epsilon: probability of a random action in these.
    Raises:
        RuntimeError: the run was interrupted; the next call goes on with it.
    """
    from rich.console import Console

    from sharpwave.training.evaluation import evaluate
    from sharpwave.training.run import resume, run

    console = Console()
    if any((folder / "checkpoints").glob("[0-9]*")):
        _, summary = resume(folder, {}, console, trust=True)
    else:
        _, summary = run(name, recipe, folder, console)
    if "final" not in summary:
        raise RuntimeError(f"the run in {str(folder)!r} has not ended: {summary['reason']}")
    seed = HELD_OUT + recipe.training.seed
    figures, scores = evaluate(folder, episodes, epsilon, seed, recipe.training.device, trust=True)
    return {
        "score": statistics.fmean(scores), "scores": scores, "steps": figures["steps"], "minutes": summary["minutes"],
        "reason": summary["reason"],
    }  # fmt: skip


def lines_of(out: Path) -> dict[Key, Line]:
    """Return the lines of a file of runs by key; a file that is missing has none."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return {(line["task"], line["agent"], line["seed"]): line for line in lines}


def all_runs(
    wanted: Sequence[Key],
    command: Callable[[Key, Path], list[str]],
    runs: Path,
    out: Path,
    at_a_time: int,
    say: Callable[[str], None] = print,
) -> list[Line]:
    """Return a line for each run. Those that ``out`` lacks are made, each in a process of its own, and appended.

    Args:
        command: run and its folder -> command of a process that makes it and prints its line last.
        runs: folder of the runs' folders and of what their processes print.
    Raises:
        RuntimeError: a run failed.
    """
    done, lock = lines_of(out), threading.Lock()
    stopping = threading.Event()

    def make(key: Key) -> None:
        if stopping.is_set():
            return
        task, agent, seed = key
        folder = runs / f"{task.replace('/', '-')}-{agent.replace(' ', '-')}-{seed}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".log").open("a") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            ran = subprocess.run(
                command(key, folder), stdout=subprocess.PIPE, stderr=log, text=True, env=environment, check=False
            )
            log.write(ran.stdout)
        if ran.returncode:
            stopping.set()
            raise RuntimeError(f"{task} {agent} seed {seed}: ended with {ran.returncode}, see {log.name}")
        line = ran.stdout.splitlines()[-1]
        with lock, out.open("a") as file:
            file.write(line + "\n")
            done[key] = json.loads(line)
            say(f"{task} {agent} seed {seed}: {done[key]['score']:.3f}")

    missing = [key for key in wanted if key not in done]
    with ThreadPoolExecutor(at_a_time) as pool:
        made = [pool.submit(make, key) for key in missing]
        try:
            for future in made:
                future.result()
        except BaseException:
            stopping.set()
            raise
    return [done[key] for key in wanted]


def by_agent(lines: Sequence[Line]) -> dict[str, dict[str, list[float]]]:
    """Return the scores of the seeds by agent and task."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        found.setdefault(line["agent"], {}).setdefault(line["task"], []).append(line["score"])
    return found


def normalized(scores: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    """Divide scores, by agent and task, by the best mean that any agent has on the task, so that tasks weigh alike.

    Raises:
        ValueError: no agent has a mean above 0 on a task.
    """
    tasks = {task for tasks in scores.values() for task in tasks}
    best = {task: max(statistics.fmean(one[task]) for one in scores.values() if task in one) for task in tasks}
    for task, mean in best.items():
        if mean <= 0:
            raise ValueError(f"{task}: the best mean is {mean:g}, expected one above 0 to divide by; look at it alone")
    return {
        agent: {task: [score / best[task] for score in seeds] for task, seeds in tasks.items()}
        for agent, tasks in scores.items()
    }
