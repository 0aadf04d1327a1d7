"""Tasks learned by several agents from several seeds: held-out scores of fixed weights, their IQM and its interval.

python benchmarks/learning.py [--tasks tmaze lock] [--seeds 101 102 ...] [--at-a-time 2] [--runs FOLDER] [--out FILE]

Each run that has ended is a line of FILE (results/learning.jsonl); started again, only missing runs are made. A run
ends as its recipe says; then the policy that it kept (the best by its own evaluations, else the last) plays 100
episodes on seeds that neither training nor its evaluations used, at epsilon .001. IQM and 95 % interval: see
scoring.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from scoring import interquartile_mean, interval

HERE = Path(__file__).parent
EPISODES, EPSILON = 100, 0.001
HELD_OUT = 7 << 28
"""First seed of the measurement; those of training and of its evaluations are below."""
DEMONSTRATIONS = 8


@dataclass(frozen=True)
class Arm:
    """An agent on a task: a recipe and what is changed in it.

    Attributes:
        demonstrated: it learns from recorded episodes of the task's expert.
    """

    recipe: str
    changes: dict[str, Any] = field(default_factory=dict)
    demonstrated: bool = False


FOUR_FRAMES = {
    "num_envs": 8, "steps": 40_000, "network": "mlp", "hidden_units": 64, "learning_rate": 1e-3, "target_tau": 0.0,
    "target_every": 800, "average_decay": 0.0, "n_step": 5, "batch_size": 128, "update_every": 8, "gamma": 0.99,
    "epsilon_end": 0.05, "epsilon_steps": 10_000, "evaluate_every": 0, "codec": "raw",
}  # fmt: skip
"""A DQN over stacks of four observations, otherwise with what the recurrent recipes have."""

TASKS = {
    "tmaze": {"r2d2": Arm("tmaze"), "dqn-4-frames": Arm("gymnasium", FOUR_FRAMES | {"env": "frames4:TMaze4-v0"})},
    "lock": {
        "r2d3": Arm("lock", demonstrated=True),
        "r2d2": Arm("tmaze", {"env": "sharpwave/Lock-v0", "length": 8, "burn_in": 0, "stride": 8}),
        "dqn-4-frames-demonstrated": Arm(
            "demonstrated-dqn", FOUR_FRAMES | {"env": "frames4:Lock4-v0", "demonstration_share": 0.25}, True
        ),
    },
}


def trained(task: str, agent: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one run in this process, or go on with it, and measure it."""
    import frames4

    from sharpwave.training.evaluation import evaluate
    from sharpwave.training.recipes import load_recipe
    from sharpwave.training.resume import resume
    from sharpwave.training.run import run

    arm, console = TASKS[task][agent], Console()
    if any((folder / "checkpoints").glob("[0-9]*")):
        _, summary = resume(folder, {}, console, trust=True)
    else:
        recipe = frames4.DEMONSTRATED if arm.recipe == "demonstrated-dqn" else load_recipe(arm.recipe)
        changes = dict(arm.changes)
        if arm.demonstrated:
            changes["demonstrations"] = str(frames4.demonstrations(recipe.override(**changes), folder, DEMONSTRATIONS))
        _, summary = run(arm.recipe, recipe.override(seed=seed, device="cpu", **changes), folder, console)
    figures, scores = evaluate(folder, EPISODES, EPSILON, HELD_OUT + seed, "cpu", trust=True)
    return {
        "task": task, "agent": agent, "seed": seed, "score": statistics.fmean(scores), "scores": scores,
        "steps": figures["steps"], "minutes": summary["minutes"], "reason": summary["reason"],
    }  # fmt: skip


def all_runs(wanted: list[tuple[str, str, int]], runs: Path, out: Path, at_a_time: int) -> list[dict[str, Any]]:
    """Return a line for each run; those that ``out`` lacks are made, each in a process of its own, and appended."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(line["task"], line["agent"], line["seed"]): line for line in lines}
    lock = threading.Lock()

    def make(task: str, agent: str, seed: int) -> None:
        folder = runs / f"{task}-{agent}-{seed}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "--one", task, agent, str(seed), str(folder)]
        with folder.with_suffix(".log").open("a") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, check=False)
            log.write(ran.stdout)
        if ran.returncode:
            raise RuntimeError(f"{' '.join(command)}: ended with {ran.returncode}, see {folder.with_suffix('.log')}")
        line = ran.stdout.splitlines()[-1]
        with lock, out.open("a") as file:
            file.write(line + "\n")
            done[task, agent, seed] = json.loads(line)
            print(f"{task} {agent} seed {seed}: {done[task, agent, seed]['score']:.3f}", flush=True)

    with ThreadPoolExecutor(at_a_time) as pool:
        for future in [pool.submit(make, *one) for one in wanted if one not in done]:
            future.result()
    return [done[one] for one in wanted]


def print_table(lines: list[dict[str, Any]]) -> None:
    """Print a row for each agent on each task."""
    table = Table(title=f"Mean of {EPISODES} held-out episodes, fixed weights", title_justify="left")
    for name in ("task", "agent"):
        table.add_column(name)
    columns: dict[str, Callable[[list[dict[str, Any]]], str]] = {
        "seeds": lambda runs: str(len(runs)),
        "IQM": lambda runs: f"{interquartile_mean([run['score'] for run in runs]):.3f}",
        "95 %": lambda runs: "{:.3f} to {:.3f}".format(*interval([[run["score"] for run in runs]])),
        "median": lambda runs: f"{statistics.median(run['score'] for run in runs):.3f}",
        "lowest": lambda runs: f"{min(run['score'] for run in runs):.3f}",
        "steps, median": lambda runs: f"{statistics.median(run['steps'] for run in runs):,.0f}",
        "minutes, median": lambda runs: f"{statistics.median(run['minutes'] for run in runs):.1f}",
    }
    for name in columns:
        table.add_column(name, justify="right")
    for task, agent in dict.fromkeys((line["task"], line["agent"]) for line in lines):
        runs = [line for line in lines if (line["task"], line["agent"]) == (task, agent)]
        table.add_row(task, agent, *(text(runs) for text in columns.values()))
    Console(width=130).print(table)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--agents", nargs="+", help="only these")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103, 104, 105])
    parser.add_argument("--at-a-time", type=int, default=2, help="runs that train side by side")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "learning", help="folder of the runs")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "learning.jsonl", help="file of the lines")
    parser.add_argument("--one", nargs=4, metavar=("TASK", "AGENT", "SEED", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        task, agent, seed, folder = arguments.one
        print(json.dumps(trained(task, agent, int(seed), Path(folder))))
        return
    agents = [(task, agent) for task in arguments.tasks for agent in TASKS[task]]
    wanted = [
        (task, agent, seed)
        for seed in arguments.seeds
        for task, agent in agents
        if not arguments.agents or agent in arguments.agents
    ]
    print_table(all_runs(wanted, arguments.runs, arguments.out, arguments.at_a_time))


if __name__ == "__main__":
    main()
