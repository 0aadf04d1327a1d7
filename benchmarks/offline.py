"""Offline learning from the project's own runs: behaviour cloning, conservative and implicit Q-learning.

``cartpole``: recipe `cartpole` learns for 10,000 steps, so that its replay memory holds everything from random play to
a policy that is half good. ``hopper``: recipe `sac` learns MuJoCo's Hopper for 50,000 steps. From that memory alone
`sharpwave train offline` learns by each algorithm, without evaluations along the way; the last policy plays fresh
episodes. Prints a table a task; each seed is a line of results/offline.jsonl, and what a line has already is not
measured again while its data are the same. Runs that are learned from stay in --runs.

python benchmarks/offline.py [--tasks cartpole hopper] [--seeds 100 101 ...] [--runs runs/offline] [--out FILE]
"""

import io
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import runner
from rich.console import Console

from sharpwave.offline.recorded import RecordedEpisodes
from sharpwave.training.evaluation import evaluate
from sharpwave.training.offline_data import store_path
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import default_recipe
from sharpwave.training.run import run
from sharpwave.training.scores import EPSILON

ENOUGH = 0.9
"""Share of the best behaviour in the data that is to be reached."""
Line = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Where data come from, and what learns from them.

    Attributes:
        recipe, changes: of the run whose replay memory is learned from.
        learners: by name: which algorithm, and its settings that differ from the defaults.
        seeds: those that are run unless ``--seeds`` names others.
        episodes: that a policy is measured on.
        epsilon: probability of a random action in these.
    """

    recipe: str
    changes: dict[str, Any]
    learners: dict[str, tuple[str, dict[str, Any]]]
    seeds: tuple[int, ...]
    episodes: int
    epsilon: float


IN_MUJOCO = {"steps": 8_000, "batch_size": 256, "standardize": True, "average_decay": 0.998}
TASKS = {
    "cartpole": Task(
        "cartpole",
        {"steps": 10_000, "stop_reward": None},
        {"bc": ("bc", {"steps": 5_000}), "cql": ("cql", {"steps": 10_000}), "iql": ("iql", {"steps": 5_000})},
        seeds=(100, 101, 102, 103, 104),
        episodes=100,
        epsilon=EPSILON,
    ),
    "hopper": Task(
        "sac",
        {"env": "Hopper-v5", "steps": 50_000},
        {
            "bc": ("bc", IN_MUJOCO),
            "bc of the best": ("bc", IN_MUJOCO | {"best_share": 0.03}),
            "iql": ("iql", IN_MUJOCO | {"n_step": 20, "expectile": 0.7, "temperature": 1.0, "target_tau": 0.005}),
        },
        seeds=(100, 101, 102),
        episodes=30,
        epsilon=0.0,
    ),
}


def main() -> None:
    """Learn with every seed, and print all lines of the results."""
    parser = runner.parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", type=int, nargs="*", help="others than each task's own")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "offline", help="folder of what is learned from")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "offline.jsonl")
    arguments = parser.parse_args()
    known = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    lines = {(line["task"], line["seed"]): line for line in known}
    for task in arguments.tasks:
        for seed in arguments.seeds or TASKS[task].seeds:
            lines[task, seed] = measured(task, seed, arguments.runs, lines.get((task, seed), {}))
            arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
    for task in arguments.tasks:
        table(task, [line for (of, _), line in lines.items() if of == task and whole(task, line)])


def whole(task: str, line: Line) -> bool:
    """Return whether a line has all scores of its task."""
    return line.keys() >= {"own", *TASKS[task].learners}


def measured(task: str, seed: int, runs: Path, before: Line) -> Line:
    """Return scores: of the data's episodes and their best tenth, of the policy that made the last ones, and of each
    algorithm's last policy; those that ``before`` has from the same data are taken from there."""
    one = TASKS[task]
    if whole(task, before):
        return before
    quiet = Console(file=io.StringIO())
    online = runs / f"{task}-{seed}"
    if not (online / "summary.json").exists():
        recipe = load_recipe(one.recipe).override(**one.changes, seed=seed, evaluate_every=0, device="cpu")
        run(one.recipe, recipe, online, quiet)
    data = store_path(str(online))
    assert data is not None
    scores = sorted((float(episode.reward.sum()) for episode in RecordedEpisodes(data)), reverse=True)
    found: Line = {"task": task, "seed": seed, "episodes": len(scores), "mean": fmean(scores)}
    found["best_tenth"] = fmean(scores[: max(1, len(scores) // 10)])
    if found.items() <= before.items():
        found = before
    if "own" not in found:
        found["own"] = played(one, online, seed)
    for name, (kind, changes) in one.learners.items():
        if name not in found:
            recipe = default_recipe(kind).override(
                **changes, data=str(online), seed=seed, evaluate_every=0, report_every=changes["steps"], device="cpu"
            )
            with tempfile.TemporaryDirectory() as folder:
                run("offline", recipe, Path(folder) / kind, quiet)
                found[name] = played(one, Path(folder) / kind, seed)
    return found


def played(task: Task, folder: Path, seed: int) -> float:
    """Return the mean score of fresh episodes of a run's last policy."""
    return fmean(evaluate(folder, task.episodes, task.epsilon, 1_000_000 + seed, checkpoint="last")[1])


def table(task: str, lines: list[Line]) -> None:
    """Print a row a seed, and what share of the best tenth each algorithm has."""
    kinds = TASKS[task].learners
    columns = {
        "seed": "seed",
        "mean": "data: mean",
        "best_tenth": "best tenth",
        "own": "last policy",
        **{kind: kind for kind in kinds},
    }
    print(f"{task}\n\n| " + " | ".join(columns.values()) + " |\n|" + " ---: |" * len(columns))
    for line in lines:
        print("| " + " | ".join(f"{line[key]:,.0f}" for key in columns) + " |")
    print("| mean | " + " | ".join(f"{fmean(line[key] for line in lines):,.0f}" for key in [*columns][1:]) + " |\n")
    for kind in kinds:
        shares = [line[kind] / line["best_tenth"] for line in lines]
        enough = f"{sum(share >= ENOUGH for share in shares)} of {len(lines)} at least {ENOUGH:.0%}"
        print(f"{kind}: {min(shares):.0%} to {max(shares):.0%} of the best tenth; {enough}")


if __name__ == "__main__":
    main()
