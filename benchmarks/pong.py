"""Recipe `pong` trained with several seeds, one after the other: a table, and one figure of all curves.

    python benchmarks/pong.py [--seeds 0 1 2] [--runs FOLDER] [--out FOLDER] [-- any options of `sharpwave train pong`]

Each seed takes some 15 minutes on two cores. A run that has a summary.json is not trained again; of one that went on
after it was solved, table and figure show what came before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sharpwave.bench.runs import episodes
from sharpwave.bench.solved import finished_run

HERE = Path(__file__).parent
GOAL = 17.0


def trained(folder: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """The run's summary, when it was solved, and its episodes until then."""
    if not (folder / "summary.json").exists():
        command = ["train", "pong", "--seed", str(seed), "--out", str(folder), *options]
        subprocess.run([str(Path(sys.executable).with_name("sharpwave")), *command], check=True)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    finished = finished_run(folder)
    end = (finished["mean100"] or {"frames": summary["steps"]})["frames"]
    keys = ("steps", "minutes", "reward", "mean_reward")
    return {
        "summary": {**summary, "finished": finished},
        "episodes": [{key: event[key] for key in keys} for event in episodes(folder) if event["steps"] <= end],
    }


def table(runs: dict[int, dict[str, Any]]) -> None:
    """One row a seed, and the medians."""
    shown = Table(title=f"Pong to a mean of {GOAL:g}", title_style="bold", title_justify="left")
    for column in ("seed", "first win", "mean of 100", "steps", "minutes", "steps/s"):
        shown.add_column(column, justify="right")
    rows = []
    for run in runs.values():
        last = (run["episodes"] or [run["summary"]])[-1]
        won = next((event["steps"] for event in run["episodes"] if event["reward"] > 0), None)
        speed = last["steps"] / last["minutes"] / 60
        rows.append([won, last["mean_reward"], last["steps"], last["minutes"], speed])
    names = [str(seed) for seed in runs]
    if len(runs) > 2:
        columns = [[value for value in column if value is not None] for column in zip(*rows, strict=True)]
        rows.append([statistics.median(values) if values else None for values in columns])
        names.append("median")
    for name, (won, mean, steps, minutes, speed) in zip(names, rows, strict=True):
        told = [f"{won:,.0f}" if won else "-", f"{mean:.2f}", f"{steps:,.0f}", f"{minutes:.1f}"]
        shown.add_row(name, *told, f"{speed:.0f}")
    Console(width=120).print(shown)


def figure(runs: dict[int, dict[str, Any]], path: Path) -> None:
    """Episodes as dots and the mean of 100 as lines, a colour a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, key, label in zip(axes, ("steps", "minutes"), ("environment steps, thousands", "minutes"), strict=True):
        for seed, run in runs.items():
            across = [event[key] / (1000 if key == "steps" else 1) for event in run["episodes"]]
            (line,) = axis.plot(
                across,
                [event["mean_reward"] for event in run["episodes"]],
                linewidth=2,
                label=f"mean of 100, seed {seed}",
            )
            rewards = [event["reward"] for event in run["episodes"]]
            axis.plot(across, rewards, ".", markersize=3, alpha=0.3, color=line.get_color())
        axis.axhline(GOAL, linestyle="--", linewidth=1, color="gray", label=f"goal {GOAL:g}")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("reward of an episode")
    axes[0].legend(loc="best", fontsize=8)
    shown.suptitle("Pong from pixels: sharpwave train pong")
    shown.savefig(path, dpi=120)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/pong-seeds"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for pong.json and pong.png")
    arguments, options = parser.parse_known_args()
    options = [option for option in options if option != "--"]
    runs = {seed: trained(arguments.runs / f"seed{seed}", seed, options) for seed in arguments.seeds}
    arguments.out.mkdir(parents=True, exist_ok=True)
    summaries = {seed: run["summary"] for seed, run in runs.items()}
    (arguments.out / "pong.json").write_text(json.dumps(summaries, indent=1) + "\n")
    table(runs)
    figure(runs, arguments.out / "pong.png")


if __name__ == "__main__":
    main()
