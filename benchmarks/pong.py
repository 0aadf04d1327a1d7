"""Recipe `pong`, or `cartpole`, trained until it is solved, seed by seed: a table, JSON, and one figure of all curves.

    python benchmarks/pong.py [--recipe pong] [--seeds 701 702 ...] [--at-a-time 1] [--name NAME] [--runs FOLDER]
        [--out FOLDER] [-- any options of `sharpwave train`]

Each run of Pong has one torch thread, and its environments' two threads the core that is left. Finished runs are not
trained again, interrupted ones are resumed. As critics ask: `--name pong-fair -- --sticky 0.25 --actions "" --crop
0:210`. Solved: the policy of a run, its weights held fixed, plays 30 held-out episodes with the mean that the recipe
asks, and then 30 fresh ones that confirm it. Of a run that is not solved, the best policy plays 30 fresh ones. Beside
these stand 30 episodes that the same weights play after the run, by which nothing was decided, and the mean of the last
100 training episodes.
"""

from __future__ import annotations

import json
import shlex
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import runner
from training_runs import episodes, train

from sharpwave.bench.learning_runs import interquartile_mean
from sharpwave.bench.learning_runs import interval as iqm_interval
from sharpwave.training.evaluation import evaluate
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EPISODES, EPSILON, EVAL_SEED

RESAMPLES = 10_000


def trained(recipe: str, folder: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """Train or resume a run, or only read a finished one; return its figures."""
    spent = folder.with_suffix(".cpu")
    folder.parent.mkdir(parents=True, exist_ok=True)
    options_file(folder).write_text(shlex.join(options))
    if minutes := train(folder, [recipe, "--seed", str(seed), *options]):
        minutes += float(spent.read_text()) if spent.exists() else 0.0
        spent.write_text(f"{minutes:.3f}\n")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    settings = Recipe.from_table(json.loads((folder / "config.json").read_text())["settings"])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
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
        "later": evaluate(folder, EPISODES, EPSILON, EVAL_SEED)[1],
        "decisions": [
            {key: line[key] for key in ("steps", "minutes", "mean", "min", "fresh")}
            for line in lines
            if line["event"] == "evaluation"
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


def print_table(title: str, runs: list[dict[str, Any]]) -> None:
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
            f"{statistics.fmean(later):.2f}",
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
    later = [statistics.fmean(run["later"]) for run in runs]
    print(f"later means: median {statistics.median(later):.2f}, {middle(later, 2)}, lowest {min(later):.2f}")


def middle(values: list[float], digits: int) -> str:
    """Write the interquartile mean over seeds and its 95 % bootstrap interval."""
    low, high = iqm_interval([values])
    return f"IQM {interquartile_mean([values]):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def draw(title: str, runs: list[dict[str, Any]], path: Path) -> None:
    """Draw means of 20 training episodes as lines and held-out evaluations as diamonds, a colour for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, index, label in zip(axes, (0, 1), ("environment steps, thousands", "minutes"), strict=True):
        scale, key = (1000, "steps") if index == 0 else (1, "minutes")
        for run in runs:
            across = [event[index] / scale for event in run["episodes"]]
            scores = [event[2] for event in run["episodes"]]
            means = [statistics.fmean(scores[max(0, end - 20) : end]) for end in range(1, len(scores) + 1)]
            (line,) = axis.plot(across, means, linewidth=1.5, alpha=0.7)
            axis.plot(
                [one[key] / scale for one in run["decisions"]],
                [one["mean"] for one in run["decisions"]],
                "D",
                markersize=4,
                color=line.get_color(),
                label=f"seed {run['seed']}" if index == 0 else None,
            )
        axis.axhline(runs[0]["goal"], linestyle="--", linewidth=1, color="gray")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("score")
    shown.legend(loc="outside right center", fontsize=8, title="lines: mean of 20 in training\ndiamonds: held-out mean")
    shown.suptitle(title)
    shown.savefig(path, dpi=120)
    pyplot.close(shown)


RECIPES = {
    "pong": ("Pong from pixels: sharpwave train pong", ["--threads", "1"]),
    "cartpole": ("CartPole-v1: sharpwave train cartpole", []),
}
"""Title and options of each recipe."""


def main() -> None:
    """Run the command line; unknown options are passed to ``sharpwave train``, after the recipe's."""
    parser = runner.parser(__doc__)
    parser.add_argument("--recipe", choices=RECIPES, default="pong")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(701, 711)])
    parser.add_argument("--at-a-time", type=int, default=1, help="runs that train in parallel")
    parser.add_argument("--name", help="of the runs' folder and of the results' files (default: the recipe's)")
    parser.add_argument("--runs", type=Path, help="folder of the runs (default: runs/NAME-seeds)")
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for the JSON and the figure")
    arguments, options = parser.parse_known_args()
    recipe, name = arguments.recipe, arguments.name or arguments.recipe
    title, usual = RECIPES[recipe]
    options = [*usual, *(option for option in options if option != "--")]
    folder = arguments.runs or Path("runs") / f"{name}-seeds"
    for seed in arguments.seeds:
        check_options(folder / f"seed{seed}", options)
    with ThreadPoolExecutor(arguments.at_a_time) as pool:
        futures = [pool.submit(trained, recipe, folder / f"seed{seed}", seed, options) for seed in arguments.seeds]
        runs = [future.result() for future in futures]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{name}.json").write_text(json.dumps({"runs": runs}) + "\n")
    print_table(title, runs)
    draw(title, runs, arguments.out / f"{name}.png")


if __name__ == "__main__":
    main()
