"""Recipe pong-dqn with memories of several sizes: does a larger one learn better, and is it slower?

python benchmarks/memory_size.py --help
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import runner
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from training_speed import runs as solved
from training_speed.ladder import NEVER_STOP, spread_text
from training_speed.rungs import BOUND
from training_speed.runs import Results, begin, episodes, numbers, run_command, say, train

from sharpwave.showing import byte_text
from sharpwave.training.recipes import load_recipe

RESULTS = runner.RESULTS


def memory_size(
    sizes: Annotated[str, typer.Option(help="memory sizes in steps, with commas")] = "10000,30000,100000,300000",
    seeds: Annotated[str, typer.Option("--seeds", help="seeds separated by commas, as 0,1,2")] = "0",
    steps: Annotated[int, typer.Option(min=1, help="environment steps of every run")] = 400_000,
    out: Annotated[Path, typer.Option(help="folder for memory-size.json, memory-size.png and the runs")] = RESULTS,
    fresh: Annotated[bool, typer.Option("--fresh", help="start over instead of continuing earlier results")] = False,
) -> None:
    """Train recipe pong-dqn with memories of several sizes: score and speed against the size."""
    results = measure(out, numbers(sizes, "--sizes", minimum=1), numbers(seeds, "--seeds"), steps, fresh=fresh)
    found = results["rows"] = rows(results)
    runner.write(out / FILE, results)
    console = Console()
    table(results, found, Console(width=max(console.width, 120)))
    figure(results, found, out / "memory-size.png")
    say(f"written: {out / FILE}, {out / 'memory-size.png'}")


FILE = "memory-size.json"
RECIPE = load_recipe("pong-dqn")


def measure(out: Path, sizes: Sequence[int], seeds: Sequence[int], steps: int, *, fresh: bool = False) -> Results:
    """Train the missing runs of every size and seed; the file is written after each run.

    Every run has the same number of steps, solved or not, so that scores can be compared.

    Args:
        out: folder of the results, and of the runs.
    Raises:
        ValueError: the folder has results of other settings.
        RuntimeError: a run failed.
    """
    path = out / FILE
    results = begin(path, {"steps": steps}, fresh=fresh)
    runs: list[dict[str, Any]] = results.setdefault("runs", [])
    # Seeds outside, sizes inside: an interrupt leaves whole rows, and disturbances affect all sizes alike.
    for seed in seeds:
        for size in sizes:
            if any(run["size"] == size and run["seed"] == seed for run in runs):
                continue
            folder = out / f"size{size}-seed{seed}"
            say(f"{size:,} steps of memory, seed {seed}: training in {folder}")
            summary = train(folder, _arguments(size, seed, steps), fresh=fresh)
            runs.append(
                {
                    "size": size,
                    "seed": seed,
                    "score": summary["mean_reward"],
                    "steps": summary["steps"],
                    "minutes": summary["minutes"],
                    "steps_per_second": summary["steps"] / summary["minutes"] / 60,
                    "replay_bytes": summary["replay_bytes"],
                    **solved.crossings(episodes(folder)),
                }
            )
            runner.write(path, results)
    return results


def _arguments(size: int, seed: int, steps: int) -> list[str]:
    options = {
        "--capacity": size, "--warmup-steps": min(RECIPE.training.warmup_steps, size), "--seed": seed, "--steps": steps,
        "--device": "cpu", "--stop-reward": NEVER_STOP, "--evaluate-from": NEVER_STOP,
    }  # fmt: skip
    return ["pong-dqn", *(str(part) for option in options.items() for part in option)]


def rows(results: Results) -> list[dict[str, Any]]:
    """Summarize the runs by size, smallest first.

    Returns:
        size, runs, and {median, low, high} of score, steps_per_second, replay_bytes, and of the frames at which the
        mean of 100 episodes passed the bound (None: not within the run's steps).
    """
    found = []
    for size in sorted({run["size"] for run in results["runs"]}):
        runs = [run for run in results["runs"] if run["size"] == size]
        values = {key: solved.spread(run[key] for run in runs) for key in ("score", "steps_per_second", "replay_bytes")}
        frames = solved.spread(run["mean100"] and run["mean100"]["frames"] for run in runs)
        found.append({"size": size, "runs": len(runs), **values, "frames": frames})
    return found


def table(results: Results, rows: list[dict[str, Any]], console: Console) -> None:
    """Print a row for each size."""
    shown = Table(
        title=f"Recipe pong-dqn after {results['settings']['steps']:,} steps, by size of the memory",
        title_style="bold", title_justify="left", box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for column in ("memory, steps", "bytes", "score, mean of 100", f"frames to {BOUND:g}", "steps/s", "runs"):
        shown.add_column(column, justify="right")
    for row in rows:
        size = byte_text(row["replay_bytes"]["median"])
        texts = [
            spread_text(row[key], digits) for key, digits in (("score", 2), ("frames", 0), ("steps_per_second", 0))
        ]
        shown.add_row(f"{row['size']:,}", size, *texts, str(row["runs"]))
    console.print(shown)
    where = results["environment"]
    console.print(
        f"Medians (lowest-highest) over seeds. Score: of the last 100 episodes of training. {where['machine']}, "
        f"{where['date']}", style="dim", highlight=False,
    )  # fmt: skip


def figure(results: Results, rows: list[dict[str, Any]], path: Path) -> None:
    """Draw score and speed against the size: dots are runs, the line connects medians."""
    panels = (("score", "mean reward of the last 100 episodes"), ("steps_per_second", "environment steps a second"))
    title = f"Recipe pong-dqn after {results['settings']['steps']:,} steps"
    with runner.picture(path, title, 1, 2, figsize=(10, 4)) as axes:
        for axis, (key, head) in zip(axes, panels, strict=True):
            known = [run for run in results["runs"] if run[key] is not None]
            sizes, values = [run["size"] for run in known], [run[key] for run in known]
            axis.plot(sizes, values, ".", color="#0b7285", alpha=0.5, label="run")
            middle = [(row["size"], row[key]["median"]) for row in rows if row[key]]
            if middle:
                axis.plot(*zip(*middle, strict=True), color="#0b7285", linewidth=2, label="median")
            axis.set_xscale("log")
            axis.set_xticks([row["size"] for row in rows], [f"{row['size'] / 1000:g}K" for row in rows])
            axis.minorticks_off()
            axis.set_xlabel("steps that the memory holds")
            axis.set_title(head, loc="left", fontsize=10)
            axis.grid(alpha=0.3)
        axes[0].axhline(BOUND, linestyle="--", linewidth=1, color="gray", label=f"solved, {BOUND:g}")
        axes[1].set_ylim(0, 1.1 * max((run["steps_per_second"] for run in results["runs"]), default=1))
        axes[0].legend(loc="best", fontsize=8)


if __name__ == "__main__":
    run_command(memory_size)
