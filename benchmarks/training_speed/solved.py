"""Steps and minutes until a run has solved Pong, by two measures, and their extrapolation to another speed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sharpwave.configuration import leaves
from sharpwave.training.folder import CONFIG, SUMMARY, recipe_of
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import resumable
from training_speed.rungs import BOUND
from training_speed.runs import Episodes, episodes

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


def solved(played: Episodes) -> bool:
    """Return whether both measures have passed the bound."""
    return all(crossings(played).values())


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
    found = {leaf.name: leaf.value for leaf in leaves(recipe_of(config))}
    aside = {*resumable(), "seed", "save_replay"}
    return {name: value for name, value in found.items() if name not in aside and value != usual.get(name)}


def finished_runs(path: Path) -> list[Finished]:
    """Read the results of a folder of run folders, or of a file of summaries by seed that ``benchmarks/pong.py`` wrote.

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
