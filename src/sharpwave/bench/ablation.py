"""Ablation of Rainbow: the recipe, without each of its parts, without any, and with each part that it lacks; which part
is worth its cost?

Source: Hessel et al. (2018), Rainbow, figure 3; on MinAtar: Obando-Ceron and Castro (2021), Revisiting Rainbow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharpwave.bench.learning_runs import Key, Line, all_runs, by_agent, learned, normalized
from sharpwave.bench.scoring import interquartile_mean, interval

if TYPE_CHECKING:
    from sharpwave.training.recipes.recipe import Recipe

RECIPE = "minatar-rainbow"
EPISODES = 30
WHOLE, NONE = "rainbow", "none of them"
PARTS: Mapping[str, Mapping[str, Any]] = {"Munchausen": {"munchausen": 0.0}, "quantiles": {"head": "expected"}}
"""What turns each part of the recipe off, by options. Without Munchausen rewards it is double Q-learning."""
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "priorities": {"prioritized": True, "priority_alpha": 0.5},
    "n-step": {"n_step": 3},
    "dueling": {"dueling": True},
    "noise": {"noisy": True, "noisy_epsilon": True},
    "more Munchausen": {"munchausen": 0.9},
    "c51": {"head": "c51"},
    "iqn": {"head": "iqn", "quantiles": 8, "late_fractions": True},
}
"""Parts that the recipe lacks, by options: three-step returns, noise beside random actions, the weight of Munchausen
rewards in their paper, other heads."""
ARMS: Mapping[str, Mapping[str, Any]] = {
    WHOLE: {},
    **{f"without {part}": changes for part, changes in PARTS.items()},
    **{f"with {other}": changes for other, changes in OTHERS.items()},
    NONE: {"double": False, **{name: value for changes in PARTS.values() for name, value in changes.items()}},
}


def recipe_of(env: str, arm: str, seed: int, steps: int) -> Recipe:
    """Return the recipe of an arm: two streams are as wide as one together, importance weights become whole by the
    run's end, and only the last policy is measured."""
    from sharpwave.training.recipes import load_recipe

    recipe = load_recipe(RECIPE)
    changes = dict(ARMS[arm])
    if changes.get("dueling"):
        changes["hidden_units"] = recipe.agent.hidden_units // 2
    if changes.get("prioritized"):
        changes["beta_steps"] = steps
    return recipe.override(env=env, seed=seed, steps=steps, evaluate_every=0, device="cpu", **changes)


def ablate(
    envs: Sequence[str], seeds: Sequence[int], steps: int, at_a_time: int, out: Path, say: Any = print
) -> list[Line]:
    """Return a line for each environment, arm and seed; only runs that ``out`` lacks are made.

    Raises:
        RuntimeError: a run failed.
        ValueError: ``out`` holds runs of another length.
    """

    def command(key: Key, folder: Path) -> list[str]:
        env, arm, seed = key
        return [sys.executable, "-m", __name__, env, arm, str(seed), str(steps), str(folder)]

    wanted = [(env, arm, seed) for seed in seeds for env in envs for arm in ARMS]
    lines = all_runs(wanted, command, out.with_suffix(".runs"), out, at_a_time, say)
    others = {line["limit"] for line in lines} - {steps}
    if others:
        raise ValueError(f"--out: {str(out)!r} holds runs of {others.pop():,} steps, expected {steps:,}; use another")
    return lines


def rows(lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """Return IQM, its 95 % interval and its ratio to the whole's by arm; of several environments, normalized scores."""
    scores = by_agent(lines)
    if len({line["task"] for line in lines}) > 1:
        scores = normalized(scores)
    found = {}
    for arm, tasks in scores.items():
        of_tasks = list(tasks.values())
        low, high = interval(of_tasks)
        found[arm] = {"runs": sum(map(len, of_tasks)), "iqm": interquartile_mean(of_tasks), "low": low, "high": high}
    whole = found[WHOLE]["iqm"]
    return {arm: {**row, "ratio": row["iqm"] / whole if whole else None} for arm, row in found.items()}


def table(found: Mapping[str, Mapping[str, Any]], title: str) -> Any:
    """Return a table of ``rows`` for a rich console."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    made.add_column("")
    for name in ("runs", "IQM", "95 %", "of the whole"):
        made.add_column(name, justify="right")
    for arm, row in found.items():
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.0%}"
        made.add_row(arm, str(row["runs"]), f"{row['iqm']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}", ratio)
    return made


def draw(found: Mapping[str, Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw ``rows`` as bars from the top, with the interval of each, and a line at the whole."""
    from matplotlib.figure import Figure

    from sharpwave.training.files import replacing

    arms, iqms = list(found), [row["iqm"] for row in found.values()]
    figure = Figure(figsize=(7, 0.45 * len(arms) + 1.2), layout="constrained")
    axes = figure.subplots()
    colors = ["#1f5fa8" if arm == WHOLE else "#9a9a9a" if arm == NONE else "#7fb0de" for arm in arms]
    whiskers = [
        [row["iqm"] - row["low"] for row in found.values()],
        [row["high"] - row["iqm"] for row in found.values()],
    ]
    axes.barh(arms, iqms, color=colors, xerr=whiskers, error_kw={"lw": 1, "capsize": 3})
    axes.axvline(found[WHOLE]["iqm"], color="#1f5fa8", lw=1, ls=":")
    axes.invert_yaxis()
    axes.set_xlabel(title)
    axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def main() -> None:
    """Make one run; its line is the last that is printed."""
    env, arm, seed, steps, folder = sys.argv[1:]
    recipe = recipe_of(env, arm, int(seed), int(steps))
    names = {"task": env, "agent": arm, "seed": int(seed), "limit": int(steps)}
    print(json.dumps({**names, **learned(RECIPE, recipe, Path(folder), EPISODES)}))


if __name__ == "__main__":
    main()
