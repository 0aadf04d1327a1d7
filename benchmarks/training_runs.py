"""Training runs of a benchmark: in processes, resumed where interrupted; when they solved Pong; results that grow."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from runner import say as say

from sharpwave.bench.machine import environment
from sharpwave.configuration import leaves
from sharpwave.training.folder import CONFIG, METRICS, SUMMARY, checkpoints
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe, resumable

BOUND = 17.0
"""Mean reward at which Pong counts as solved."""
Episodes = list[dict[str, Any]]


def train(folder: Path, arguments: Sequence[str]) -> float:
    """Train in ``folder`` or go on with the run there, until it ends; what it prints is in a file beside it.

    Args:
        arguments: arguments of ``sharpwave train``, the recipe first; ignored if there is a checkpoint to resume from.
    Returns:
        minutes of processors; 0: the run had ended before.
    Raises:
        RuntimeError: the process failed.
    """
    if ended(folder):
        return 0.0
    command = ["train", *arguments, "--out", str(folder)]
    if _has_checkpoint(folder):
        command = ["train", "--resume", str(folder)]
    elif (folder / CONFIG).is_file():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sharpwave.cli", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()  # which makes it write a checkpoint
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"sharpwave {' '.join(command)}: ended with {process.returncode}, see {log.name}")
    return (used.ru_utime + used.ru_stime) / 60


def ended(folder: Path) -> bool:
    """Return whether a run reached its reward or its limit of steps."""
    path = folder / SUMMARY
    return path.is_file() and not json.loads(path.read_text())["reason"].startswith("interrupted")


def events(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a kind that a run has written, oldest first; none if there is no run."""
    path = folder / METRICS
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []  # a partial line may follow the last newline
    return (event for event in map(json.loads, lines) if event["event"] == kind)


def episodes(folder: Path) -> Episodes:
    """Read the episodes of a run, oldest first."""
    return list(events(folder, "episode"))


def _has_checkpoint(folder: Path) -> bool:
    try:
        return bool(checkpoints(folder))
    except ValueError:
        return False


MEASURES = {"alpha": "alpha .98", "mean100": "mean of 100"}
"""Measures: the textbook's running mean of episodes' rewards, and the recipes' mean of 100 episodes."""

Finished = dict[str, Any]
"""Results of a run: seed, changes (settings unlike recipe pong-dqn's that affect learning), bytes_per_step, by measure
{"frames", "minutes"} or None where it did not pass the bound, and curve: [frames, mean of 100 episodes]."""

RECIPES = ("pong-dqn", "pong")
"""The recipe, and its name in results of earlier releases."""
CURVE_EVERY = 5_000
"""Frames between two points of a curve."""


def crossings(played: Episodes, bound: float = BOUND) -> dict[str, dict[str, float] | None]:
    """Find the first episode at whose end each measure reaches ``bound``. The mean of 100 needs 100 episodes."""
    found: dict[str, dict[str, float] | None] = dict.fromkeys(MEASURES)
    for event in _scored(played):
        passed = {
            "alpha": event["avg_reward"] >= bound,
            "mean100": event["episodes"] >= 100 and event["mean_reward"] >= bound,
        }
        for measure in MEASURES:
            if passed[measure] and found[measure] is None:
                found[measure] = {"frames": event["steps"], "minutes": event["minutes"]}
    return found


def _scored(played: Episodes) -> Episodes:
    """Return the episodes from the first mean on: with a ladder of epsilons not every episode counts."""
    return [event for event in played if event["mean_reward"] is not None]


def finished_run(folder: Path) -> Finished:
    """Read the results of a run's folder."""
    summary = json.loads((folder / SUMMARY).read_text())
    played = episodes(folder)
    return {
        "seed": summary["seed"],
        "changes": _changes(json.loads((folder / CONFIG).read_text())),
        "bytes_per_step": summary["bytes_per_step"],
        **crossings(played),
        "curve": curve(played),
    }


def curve(played: Episodes) -> list[list[float]]:
    """Return [frames, mean of the last 100 episodes] at the first episode's end of every ``CURVE_EVERY`` frames."""
    found: dict[int, list[float]] = {}
    for event in _scored(played):
        found.setdefault(event["steps"] // CURVE_EVERY, [event["steps"], round(event["mean_reward"], 2)])
    return list(found.values())


def _changes(config: dict[str, Any]) -> dict[str, Any]:
    usual = {leaf.name: leaf.value for leaf in leaves(load_recipe(RECIPES[0]))}
    found = {leaf.name: leaf.value for leaf in leaves(Recipe.from_table(config["settings"]))}
    aside = {*resumable(), "seed", "save_replay"}
    return {name: value for name, value in found.items() if name not in aside and value != usual.get(name)}


def finished_runs(path: Path) -> list[Finished]:
    """Read the results of a folder of run folders, or of a file of summaries by seed.

    A summary alone has only the last episode, so that it is unknown when a measure passed the bound earlier, unless it
    contains ``finished``, the result of ``finished_run``.

    Raises:
        ValueError: the path is neither.
    """
    try:
        if path.is_dir():
            summaries = {file.parent: json.loads(file.read_text()) for file in sorted(path.glob(f"*/{SUMMARY}"))}
            found = [finished_run(folder) for folder, summary in summaries.items() if summary["recipe"] in RECIPES]
        else:
            summaries = json.loads(path.read_text())
            found = [_finished_summary(summary) for summary in summaries.values() if summary["recipe"] in RECIPES]
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--finished: {str(path)!r} is neither a folder of runs nor summaries by seed: {error}"
        ) from error
    if not found:
        raise ValueError(
            f"--finished: {str(path)!r} holds no finished run of recipe pong-dqn; give the folder of run folders"
        )
    return found


def _finished_summary(summary: dict[str, Any]) -> Finished:
    reached = summary["reason"].startswith(f"the mean of 100 episodes reached {BOUND:g}")
    last = {"frames": summary["steps"], "minutes": summary["minutes"]}
    return {
        "seed": summary["seed"],
        "changes": {},
        "bytes_per_step": summary["bytes_per_step"],
        "alpha": None,
        "mean100": last if reached else None,
        "curve": [],
        **summary.get("finished", {}),
    }


def spread(values: Iterable[float | None]) -> dict[str, float | None] | None:
    """Return median, low and high. None means never and counts as largest; None is returned if it is the median."""
    known = sorted(math.inf if value is None else value for value in values)
    if not known or math.isinf(statistics.median(known)):
        return None
    return {"median": statistics.median(known), "low": known[0], "high": known[-1] if known[-1] < math.inf else None}


def minutes_for(frames: float, steps_per_second: float) -> float:
    """Return the minutes that ``frames`` agent steps take."""
    return frames / steps_per_second / 60


PACKAGES = ("sharpwave", "torch", "numpy", "gymnasium", "ale-py", "stable-baselines3", "opencv-python-headless")

Results = dict[str, Any]


def begin(path: Path, settings: dict[str, Any], *, fresh: bool) -> Results:
    """Read the results in ``path`` to continue, or make new ones if there are none.

    Args:
        settings: settings that must be equal for slices to be comparable.
    Raises:
        ValueError: results of other settings, or a file without results.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if fresh or not path.exists():
        return {"settings": settings, "environment": environment(PACKAGES)}
    try:
        results: Results = json.loads(path.read_text())
        found = results["settings"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r} holds no results: {error}; remove it or give --fresh") from error
    for name, value in settings.items():
        if found.get(name) != value:
            raise ValueError(
                f"--{name.replace('_', '-')}: got {value}, but {str(path)!r} was measured with {found.get(name)}; "
                "give that to continue, --fresh to start over, or another --out"
            )
    results["environment"] = environment(PACKAGES)
    return results
