"""Comparison of an offline run with its data: with the mean return of their episodes, and with cloning of them.

A method that learns from data should not end below what imitation of them reaches. Whether it does is known only by
playing, and depends on the data. So a run that was evaluated plays its last policy at the end, and is compared.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import sharpwave as sw
from sharpwave.showing import number_text
from sharpwave.training import folder as files
from sharpwave.training.recipes.recipe import Atari, Recipe

KEY = "behavior"
"""Annotation of an offline run's store: mean return and number of the data's episodes; the summary's comparison."""
CLONING = "bc"


def note_behavior(store: sw.Store, recipe: Recipe, returns: list[float]) -> None:
    """Annotate the store with the mean of the data's episode returns, unless these are other sums than scores are.

    Args:
        returns: of the episodes that were not broken off.
    """
    if returns and not (isinstance(recipe.env, Atari) and recipe.env.clip_rewards):
        store.annotate(None, {KEY: {"mean": fmean(returns), "episodes": len(returns)}})


def behavior_of(store: sw.Store | sw.Cluster) -> dict[str, Any] | None:
    """Return the annotation of ``note_behavior``; None: there is none."""
    said = store.annotations().get(KEY) if isinstance(store, sw.Store) else None
    return said if isinstance(said, dict) else None


class Reached(NamedTuple):
    """Mean of a policy's scores, and its standard error. ``run``: folder of the run that it is of."""

    mean: float
    error: float
    episodes: int
    run: str

    @classmethod
    def of(cls, scores: list[float], run: str) -> Reached:
        error = stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
        return cls(fmean(scores), error, len(scores), run)


def cloning_beside(folder: Path, config: files.Config) -> Reached | None:
    """Return what cloning of the same data reached, by the runs beside ``folder``; of several, the best; None: no run.

    Runs are of the same data if the hashes of its content, and their shares of its episodes, are equal. They are
    compared if they were played in the same environment.
    """
    found = []
    try:
        beside = sorted(folder.absolute().parent.iterdir())
    except OSError:  # others may enter this folder, but not list those beside it
        return None
    for other in beside:
        try:
            if other == folder.absolute() or not (other / files.SUMMARY).is_file():
                continue
            theirs = files.read_config(other)
            compared: Any = (files.read_summary(other) or {}).get(KEY)
            if theirs.recipe.agent.kind == CLONING and _same_data(config, theirs):
                last = compared["last"]
                found.append(Reached(float(last["mean"]), float(last["error"]), int(last["episodes"]), str(other)))
        except (ValueError, TypeError, LookupError, OSError):  # damaged, another's, or without evaluations
            continue
    return max(found, default=None)


def _same_data(one: files.Config, other: files.Config) -> bool:
    mine, theirs = (
        (config.recipe.env.name, config.recipe.agent.best_share, (config.learned_from or {}).get("sha256"))
        for config in (one, other)
    )
    return mine == theirs and mine[2] is not None


def compared(folder: Path, config: files.Config, behavior: dict[str, Any] | None, last: list[float]) -> dict[str, Any]:
    """Return the comparison that a summary has as ``behavior``.

    Args:
        behavior: of ``behavior_of``.
        last: scores of the last policy.
    Returns:
        ``last``, ``data`` and ``cloning``, each with its mean; None where it is not known; ``below``: the names of the
        others that the last policy is below.
    """
    policy = Reached.of(last, str(folder))
    cloning = None if config.recipe.agent.kind == CLONING else cloning_beside(folder, config)
    others = {"data": behavior, "cloning": None if cloning is None else cloning._asdict()}
    below = [name for name, one in others.items() if one is not None and policy.mean < one["mean"]]
    return {"last": policy._asdict(), **others, "below": below}


def warnings_of(comparison: dict[str, Any]) -> list[str]:
    """Return a sentence for each that the last policy is below."""
    last, said = comparison["last"], []
    for name in comparison["below"]:
        other = comparison[name]
        apart = other["mean"] - last["mean"]
        noise = math.hypot(last["error"], other.get("error", 0.0))
        whose = "the data's episodes" if name == "data" else f"cloning of the same data ({other['run']})"
        far = f", by {apart / noise:.1f} standard errors" if noise else ""
        said.append(
            f"Warning: the last policy's mean of {last['episodes']} held-out episodes, {number_text(last['mean'])}, is "
            f"below {number_text(other['mean'])} of {whose}{far}"
        )
    return said


def comparison_text(comparison: dict[str, Any]) -> str:
    """Format a comparison for the table of a run's figures."""
    last, data, cloning = (comparison[name] for name in ("last", "data", "cloning"))
    said = f"{number_text(last['mean'])} (standard error {number_text(last['error'])})"
    said += "; data not comparable" if data is None else f"; data {number_text(data['mean'])}"
    if cloning is not None:
        said += f"; cloning {number_text(cloning['mean'])}"
    return said + "".join(f"; BELOW {name}" for name in comparison["below"])
