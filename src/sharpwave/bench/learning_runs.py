"""Runs of several agents on several tasks from several seeds, their scores, and the ablation of Rainbow.

Each run has a process of its own and is a line of a file. Scores are compared by their interquartile mean. The ablation
asks which part of Rainbow is worth its cost.

Sources: Hessel et al. (2018), Rainbow, figure 3; on MinAtar: Obando-Ceron and Castro (2021), Revisiting Rainbow.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharpwave.training.interquartile import interquartile_mean, interval

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
    Returns:
        the figures of a line; of a run that this process made alone, its processor's minutes as well.
    Raises:
        RuntimeError: the run was interrupted; the next call goes on with it.
    """
    from rich.console import Console

    from sharpwave.training.evaluation import evaluate
    from sharpwave.training.policies import Policy
    from sharpwave.training.run import resume, run

    console, before = Console(), time.process_time()
    resumed = any((folder / "checkpoints").glob("[0-9]*"))
    if resumed:
        _, summary = resume(folder, {}, console, trust=True)
    else:
        _, summary = run(name, recipe, folder, console)
    took = (time.process_time() - before) / 60
    if "final" not in summary:
        raise RuntimeError(f"the run in {str(folder)!r} has not ended: {summary['reason']}")
    seed = HELD_OUT + recipe.training.seed
    policy = Policy.load(folder, device=recipe.training.device, trust=True)
    played = evaluate(policy, episodes=episodes, seed=seed, epsilon=epsilon)
    return {
        "score": played.mean, "scores": played.scores, "steps": policy.steps, "minutes": summary["minutes"],
        "reason": summary["reason"], **({} if resumed else {"processor_minutes": took}),
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
    minutes: float | None = None,
) -> list[Line]:
    """Return a line for each run. Those that ``out`` lacks are made, each in a process of its own, and appended.

    Args:
        command: run and its folder -> command of a process that makes it and prints its line last.
        runs: folder of the runs' folders and of what their processes print.
        minutes: no run is begun after so many; the lines of those are missing. None: all are made.
    Raises:
        RuntimeError: a run failed.
    """
    done, lock = lines_of(out), threading.Lock()
    stopping, begun = threading.Event(), time.monotonic()

    def make(key: Key) -> None:
        if stopping.is_set() or (minutes is not None and time.monotonic() - begun > minutes * 60):
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
    return [done[key] for key in wanted if key in done]


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


RECIPE = "minatar-rainbow"
EPISODES = 30
WHOLE, NONE = "rainbow", "none of them"
PARTS: Mapping[str, Mapping[str, Any]] = {"Munchausen": {"munchausen": 0.0}, "quantiles": {"head": "expected"}}
"""Options that turn each part of the recipe off. Without Munchausen rewards it is double Q-learning."""
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

    from sharpwave.training.atomic_files import replacing

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
