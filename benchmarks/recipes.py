"""Recipes trained from several seeds: until they are solved, learning curves, and offline training.

    python benchmarks/recipes.py solve [--recipe pong] [--seeds 701 702 ...] [--at-a-time 1] [--name NAME]
        [--runs FOLDER] [--out FOLDER] [-- any options of `sharpwave train`]
    python benchmarks/recipes.py curves [NAMES ...] [--seeds 0 1 2] [--runs runs/curves] [--draw]
    python benchmarks/recipes.py offline [--tasks TASK ...] [--seeds 100 101 ...] [--runs FOLDER] [--out FILE]

Runs that have ended are not made again, interrupted ones are resumed.

``solve``: recipe `pong`, or `cartpole`; a table, JSON, and one figure of all curves. Each run of Pong has one torch
thread, and its environments' two threads the core that is left. As critics ask: `--name pong-fair -- --sticky 0.25
--actions "" --crop 0:210`. Solved: the policy of a run, its weights held fixed, plays 30 held-out episodes with the
mean that the recipe asks, and then 30 fresh ones that confirm it. Of a run that is not solved, the best policy plays 30
fresh ones. Beside these stand 30 episodes that the same weights play after the run, by which nothing was decided, and
the mean of the last 100 training episodes.

``curves``: held-out means of fixed weights while each recipe trains, for the algorithms' pages. The pictures are
docs/algorithms/NAME.png: a thin line for each seed, a thick one for their median. ``--draw`` draws from the runs that
are there and trains none. A run stops at its number of steps only, not when it has solved its recipe. A seed
takes some five minutes of one core.

``offline``: offline learners from the project's own runs. ``cartpole``: recipe `cartpole` learns for 10,000 steps, so
that its replay memory holds everything from random play to a policy that is half good. ``hopper``: recipe `sac` learns
MuJoCo's Hopper for 50,000 steps. ``pendulum``: it learns Pendulum for 10,000. From that memory alone `sharpwave train
offline` learns by each algorithm, without evaluations along the way; the last policy plays fresh episodes. Prints a
table a task; each seed is a line of results/offline.jsonl.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import runner
from rich.console import Console
from training_runs import episodes, events, train

from sharpwave.offline.recorded import RecordedEpisodes
from sharpwave.training.evaluation import evaluate
from sharpwave.training.interquartile import interquartile_mean
from sharpwave.training.interquartile import interval as iqm_interval
from sharpwave.training.offline_data import store_path
from sharpwave.training.policies import Policy
from sharpwave.training.recipes import default_recipe, load_recipe
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.run import run as train_here
from sharpwave.training.scores import EPISODES, EPSILON

# until they are solved

RESAMPLES = 10_000


def solved(recipe: str, folder: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """Train or resume a run, or only read a finished one; return its figures."""
    spent = folder.with_suffix(".cpu")
    folder.parent.mkdir(parents=True, exist_ok=True)
    options_file(folder).write_text(shlex.join(options))
    if minutes := train(folder, [recipe, "--seed", str(seed), *options]):
        minutes += float(spent.read_text()) if spent.exists() else 0.0
        spent.write_text(f"{minutes:.3f}\n")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    settings = Recipe.from_table(json.loads((folder / "config.json").read_text())["settings"])
    keys = ("steps", "minutes", "reward", "mean_reward")
    return {
        "seed": seed,
        "solved": summary["reason"].startswith("a held-out mean"),
        "goal": settings.evaluation.stop_reward,
        "cpu_minutes": float(spent.read_text()) if spent.exists() else None,
        **{key: summary[key] for key in ("reason", "steps", "minutes", "mean_reward", "evaluations", "held_out")},
        "evaluation_share": summary["evaluation_minutes"] / summary["minutes"],
        "final": summary.get("final"),
        "final_interval": None if summary.get("final") is None else interval(summary["final"]["scores"]),
        "later": evaluate(folder, episodes=EPISODES).scores,
        "decisions": [
            {key: line[key] for key in ("steps", "minutes", "mean", "min", "fresh")}
            for line in events(folder, "evaluation")
        ],
        "episodes": [[event[key] for key in keys] for event in episodes(folder)],
    }


def options_file(folder: Path) -> Path:
    """Return the path of the file that holds the options of a run."""
    return folder.with_suffix(".options")


def check_options(folder: Path, options: list[str]) -> None:
    """Refuse a run that was made with other options.  Raises: SystemExit."""
    given, made_with = shlex.join(options), options_file(folder)
    if folder.exists() and made_with.exists() and made_with.read_text() != given:
        raise SystemExit(
            f"{folder} was made with the options {made_with.read_text()!r}, not {given!r}: give these runs a --name"
        )


def interval(scores: list[float]) -> list[float]:
    """Compute the 95 % bootstrap interval of the mean."""
    drawn = np.random.default_rng(0).choice(scores, (RESAMPLES, len(scores)))
    return [float(value) for value in np.percentile(drawn.mean(axis=1), [2.5, 97.5])]


def solve_table(title: str, runs: list[dict[str, Any]]) -> None:
    """Print a row for each seed; below them the median and the slowest."""
    columns = ("seed", "solved", "steps", "minutes", "CPU minutes", "evaluating", "not confirmed", "fresh mean", "95 %")
    table = runner.table(title, *columns, "lowest", "lost", "later mean", "lowest", "training mean")
    for run in runs:
        final, later = run["final"], run["later"]
        low, high = run["final_interval"] or (None, None)
        table.add_row(
            str(run["seed"]),
            "yes" if run["solved"] else "no",
            f"{run['steps']:,}",
            f"{run['minutes']:.1f}",
            "-" if run["cpu_minutes"] is None else f"{run['cpu_minutes']:.1f}",
            f"{run['evaluation_share']:.0%}",
            str(sum(bool(one["fresh"]) for one in run["decisions"]) - run["solved"]),
            *(
                ["-"] * 4
                if final is None
                else [f"{final['mean']:.2f}", f"{low:.2f} to {high:.2f}", f"{final['min']:g}", str(final["lost"])]
            ),
            f"{fmean(later):.2f}",
            f"{min(later):g}",
            f"{run['mean_reward']:.2f}",
        )
    runner.console(190).print(table)
    done = [run for run in runs if run["solved"]]
    print(f"solved: {len(done)} of {len(runs)} seeds")
    for key, unit in (("steps", "steps"), ("minutes", "minutes"), ("cpu_minutes", "CPU minutes")):
        values = [run[key] for run in done if run[key] is not None]
        if values:
            print(f"{unit}: median {statistics.median(values):,.1f}, {middle(values, 1)}, slowest {max(values):,.1f}")
    final = [run["final"]["mean"] for run in runs if run["final"] is not None]
    if final:
        print(f"fresh means: median {statistics.median(final):.2f}, {middle(final, 2)}, lowest {min(final):.2f}")
    later = [fmean(run["later"]) for run in runs]
    print(f"later means: median {statistics.median(later):.2f}, {middle(later, 2)}, lowest {min(later):.2f}")


def middle(values: list[float], digits: int) -> str:
    """Write the interquartile mean over seeds and its 95 % bootstrap interval."""
    low, high = iqm_interval([values])
    return f"IQM {interquartile_mean([values]):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def solve_figure(title: str, runs: list[dict[str, Any]], path: Path) -> None:
    """Draw means of 20 training episodes as lines and held-out evaluations as diamonds, a colour for each seed."""
    with runner.picture(path, title, 1, 2, figsize=(10, 4), sharey=True) as axes:
        for axis, index, label in zip(axes, (0, 1), ("environment steps, thousands", "minutes"), strict=True):
            scale, key = (1000, "steps") if index == 0 else (1, "minutes")
            for one in runs:
                across = [event[index] / scale for event in one["episodes"]]
                scores = [event[2] for event in one["episodes"]]
                means = [fmean(scores[max(0, end - 20) : end]) for end in range(1, len(scores) + 1)]
                (line,) = axis.plot(across, means, linewidth=1.5, alpha=0.7)
                label_of = {"label": f"seed {one['seed']}"} if index == 0 else {}
                decided = one["decisions"]
                at, held_out = [each[key] / scale for each in decided], [each["mean"] for each in decided]
                axis.plot(at, held_out, "D", markersize=4, color=line.get_color(), **label_of)
            axis.axhline(runs[0]["goal"], linestyle="--", linewidth=1, color="gray")
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("score")
        told = "lines: mean of 20 in training\ndiamonds: held-out mean"
        axes[0].figure.legend(loc="outside right center", fontsize=8, title=told)


RECIPES = {
    "pong": ("Pong from pixels: sharpwave train pong", ["--threads", "1"]),
    "cartpole": ("CartPole-v1: sharpwave train cartpole", []),
}
"""Title and options of each recipe."""


def solve(arguments: argparse.Namespace, options: list[str]) -> None:
    """Train each seed until it is solved; options are passed to ``sharpwave train``, after the recipe's."""
    recipe, name = arguments.recipe, arguments.name or arguments.recipe
    title, usual = RECIPES[recipe]
    options = [*usual, *(option for option in options if option != "--")]
    folder = arguments.runs or Path("runs") / f"{name}-seeds"
    for seed in arguments.seeds:
        check_options(folder / f"seed{seed}", options)
    with ThreadPoolExecutor(arguments.at_a_time) as pool:
        futures = [pool.submit(solved, recipe, folder / f"seed{seed}", seed, options) for seed in arguments.seeds]
        runs = [future.result() for future in futures]
    runner.write(arguments.out / f"{name}.json", {"runs": runs})
    solve_table(title, runs)
    solve_figure(title, runs, arguments.out / f"{name}.png")


# learning curves

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "algorithms"
POINTS = 20  # evaluations a run

PENDULUM = "--env InvertedPendulum-v5 --random-steps 1000 --warmup-steps 1000"
# Name of a page: the arguments of `sharpwave train`, the number of steps, the environment's name.
CURVES: dict[str, tuple[str, int, str]] = {
    "dqn": ("cartpole", 40_000, "CartPole-v1"),
    "rainbow": ("minatar-rainbow", 100_000, "MinAtar/Breakout-v1"),
    "iqn": ("minatar-iqn", 100_000, "MinAtar/Breakout-v1"),
    "pqn": ("minatar-pqn", 200_000, "MinAtar/Breakout-v1"),
    "ppo": ("cartpole-ppo", 100_000, "CartPole-v1"),
    "a2c": ("cartpole-a2c", 200_000, "CartPole-v1"),
    "impala": ("cartpole-impala", 200_000, "CartPole-v1"),
    "r2d2": ("tmaze", 40_000, "sharpwave/TMaze-v0"),
    "r2d3": ("lock --demonstrations {demonstrations}", 20_000, "sharpwave/Lock-v0"),
    "sac": (f"sac {PENDULUM}", 15_000, "InvertedPendulum-v5"),
    "td3": (f"td3 {PENDULUM}", 50_000, "InvertedPendulum-v5"),
    "crossq": (f"crossq {PENDULUM}", 15_000, "InvertedPendulum-v5"),
    "td3bc": ("offline --algorithm td3bc --data {pendulum}", 5_000, "InvertedPendulum-v5"),
    "rebrac": ("offline --algorithm rebrac --data {pendulum} --batch-size 256", 5_000, "InvertedPendulum-v5"),
    "calql": ("offline --algorithm calql --data {pendulum} --sampled-actions 4", 5_000, "InvertedPendulum-v5"),
    "cql": ("offline --algorithm cql --data {data}", 10_000, "CartPole-v1"),
    "iql": ("offline --algorithm iql --data {data}", 5_000, "CartPole-v1"),
    "bc": ("offline --algorithm bc --data {data}", 5_000, "CartPole-v1"),
    "vdn": ("vdn", 50_000, "mpe2/simple_spread_v3"),
    "qmix": ("qmix", 50_000, "mpe2/simple_spread_v3"),
    "masac": ("masac", 50_000, "mpe2/simple_spread_v3"),
}

EXPERT = """
def expert(rng):
    digits = None

    def policy(obs):
        nonlocal digits
        if obs[:8].any():  # two digits, one-hot, are shown at the first step only
            digits = obs[:8].reshape(2, 4).argmax(axis=1)
        door = int(obs[8:].argmax())
        return int(digits[door % 2] + door) % 4

    return policy
"""


def prepared(runs: Path, seed: int, arguments: str) -> str:
    """Return ``arguments`` with their folders; make the recording or the data that they name."""
    demonstrations, data = runs / f"recording-{seed}", runs / f"data-{seed}"
    if "{demonstrations}" in arguments and not demonstrations.exists():
        script = f"{runs / 'expert.py'}:expert"
        (runs / "expert.py").write_text(EXPERT)
        words = ["record", "lock", "--script", script, "--episodes", "8", "--out", str(demonstrations)]
        subprocess.run([sys.executable, "-m", "sharpwave.cli", *words], check=True)
    if "{data}" in arguments:
        train(data, ["cartpole", "--steps", "10000", "--seed", str(100 + seed)])
    pendulum = runs / f"pendulum-{seed}"
    if "{pendulum}" in arguments:
        train(pendulum, ["sac", *PENDULUM.split(), "--steps", "10000", "--seed", str(100 + seed)])
    return arguments.format(demonstrations=demonstrations, data=data, pendulum=pendulum)


def made(runs: Path, name: str, seed: int) -> None:
    """Make, or end, the run of ``seed``."""
    arguments, steps, _ = CURVES[name]
    options = ["--steps", str(steps), "--seed", str(seed), "--evaluate-every", str(steps // POINTS), "--threads", "1"]
    options += ["--set", "evaluation.stop_reward=null", "--set", "evaluation.evaluate_from=null"]
    train(runs / f"{name}-{seed}", [*prepared(runs, seed, arguments).split(), *options])


def curve_figure(runs: Path, name: str, seeds: list[int]) -> None:
    """Draw the runs of ``name`` and the median of their evaluations."""
    from matplotlib.ticker import EngFormatter

    arguments, steps, env = CURVES[name]
    means: list[list[float]] = []
    PICTURES.mkdir(exist_ok=True)
    title = f"{env}, seeds {', '.join(map(str, seeds))} and their median"
    with runner.picture(PICTURES / f"{name}.png", title, figsize=(6, 3)) as axes:
        for seed in seeds:
            found = list(events(runs / f"{name}-{seed}", "evaluation"))
            means.append([one["mean"] for one in found])
            axes.plot([one["steps"] for one in found], means[-1], color="tab:blue", linewidth=0.8, alpha=0.5)
        medians = [statistics.median(of_seeds) for of_seeds in zip(*means, strict=True)]
        at = [(k + 1) * steps / POINTS for k in range(len(medians))]
        axes.plot(at, medians, color="tab:blue", linewidth=2)
        axes.set_xlabel("updates" if arguments.startswith("offline") else "environment steps")
        axes.set_ylabel("held-out mean")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)


def curves(arguments: argparse.Namespace) -> None:
    """Make the runs that are missing, and draw each recipe's."""
    arguments.runs.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or CURVES:
        for seed in () if arguments.draw else arguments.seeds:
            print(name, seed, flush=True)
            made(arguments.runs, name, seed)
        curve_figure(arguments.runs, name, arguments.seeds)


# offline training

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
            "iql": ("iql", IN_MUJOCO | {"n_step": 20}),
        },
        seeds=(100, 101, 102),
        episodes=30,
        epsilon=0.0,
    ),
    "pendulum": Task(
        "sac",
        {"env": "Pendulum-v1", "steps": 10_000, "random_steps": 1_000, "warmup_steps": 1_000},
        {
            "bc": ("bc", {"steps": 5_000}),
            "iql": ("iql", {"steps": 5_000}),
            "td3bc": ("td3bc", {"steps": 5_000}),
            "rebrac": ("rebrac", {"steps": 5_000, "batch_size": 256}),
            "calql": ("calql", {"steps": 5_000, "sampled_actions": 4}),
        },
        seeds=(100, 101, 102),
        episodes=30,
        epsilon=0.0,
    ),
}


def offline(arguments: argparse.Namespace) -> None:
    """Learn with every seed, and print all lines of the results; what a line has of the same data stays."""
    lines = {(line["task"], line["seed"]): line for line in runner.read_lines(arguments.out)}
    for task in arguments.tasks:
        for seed in arguments.seeds or TASKS[task].seeds:
            lines[task, seed] = measured(task, seed, arguments.runs, lines.get((task, seed), {}))
            arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
    for task in arguments.tasks:
        offline_table(task, [line for (of, _), line in lines.items() if of == task and whole(task, line)])


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
        train_here(one.recipe, recipe, online, quiet)
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
                train_here("offline", recipe, Path(folder) / kind, quiet)
                found[name] = played(one, Path(folder) / kind, seed)
    return found


def played(task: Task, folder: Path, seed: int) -> float:
    """Return the mean score of fresh episodes of a run's last policy."""
    policy = Policy.load(folder, "last")
    return evaluate(policy, episodes=task.episodes, seed=1_000_000 + seed, epsilon=task.epsilon).mean


def offline_table(task: str, lines: list[Line]) -> None:
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
    if any(line["best_tenth"] <= 0 for line in lines):
        return  # no share of a cost
    for kind in kinds:
        shares = [line[kind] / line["best_tenth"] for line in lines]
        enough = f"{sum(share >= ENOUGH for share in shares)} of {len(lines)} at least {ENOUGH:.0%}"
        print(f"{kind}: {min(shares):.0%} to {max(shares):.0%} of the best tenth; {enough}")


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    one = programs.add_parser("solve", help="train until solved")
    one.add_argument("--recipe", choices=RECIPES, default="pong")
    one.add_argument("--seeds", type=int, nargs="+", default=[*range(701, 711)])
    one.add_argument("--at-a-time", type=int, default=1, help="runs that train in parallel")
    one.add_argument("--name", help="of the runs' folder and of the results' files (default: the recipe's)")
    one.add_argument("--runs", type=Path, help="folder of the runs (default: runs/NAME-seeds)")
    one.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for the JSON and the figure")
    one = programs.add_parser("curves", help="learning curves of the algorithms' pages")
    one.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CURVES)}")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--runs", type=Path, default=Path("runs/curves"))
    one.add_argument("--draw", action="store_true", help="draw the runs that are there")
    one = programs.add_parser("offline", help="offline training from runs of recipes")
    one.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    one.add_argument("--seeds", type=int, nargs="*", help="others than each task's own")
    one.add_argument(
        "--runs", type=Path, default=Path("runs") / "offline", help="folder of the runs whose data are learned from"
    )
    one.add_argument("--out", type=Path, default=runner.RESULTS / "offline.jsonl")
    arguments, options = parser.parse_known_args()
    if arguments.program == "solve":
        solve(arguments, options)
    elif options:
        parser.error(f"unrecognized arguments: {shlex.join(options)}")
    else:
        {"curves": curves, "offline": offline}[arguments.program](arguments)


if __name__ == "__main__":
    main()
