"""Recipe `atari` on several games for a quarter of an hour each: scores in a table and a figure.

    python benchmarks/games.py [--games breakout seaquest qbert] [--minutes 15] [--runs FOLDER] [-- options of a run]

A game whose run has lasted its minutes is not trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from training_speed.progress import PACKAGES
from training_speed.runs import episodes, train

from sharpwave.bench.machine import environment
from sharpwave.training.config import recipe_of

HERE = Path(__file__).parent
EPISODES = 50
"""Episodes whose scores are averaged at the end of a run."""


def measured(folder: Path, minutes: float) -> dict[str, Any]:
    """Return a run's settings, its scores of the warm-up and at the end, and its costs."""
    played = episodes(folder)
    played = [one for one in played if one["minutes"] <= minutes + 0.5]
    recipe = recipe_of(json.loads((folder / "config.json").read_text()))
    warmup = recipe.training.warmup_steps
    random = [one["reward"] for one in played if one["steps"] <= warmup]
    if not random:
        raise SystemExit(f"{folder}: no episode ended in the {warmup:,} steps of warm-up; give more --minutes")
    last = [one["reward"] for one in played[-EPISODES:]]
    return {
        "settings": recipe.to_table(),
        "random": statistics.mean(random),
        "random_episodes": len(random),
        "score": statistics.mean(last),
        "steps": played[-1]["steps"],
        "minutes": played[-1]["minutes"],
        "episodes": [[one["minutes"], one["steps"], one["reward"], round(one["mean_reward"], 2)] for one in played],
    }


def table(results: dict[str, dict[str, Any]]) -> None:
    """Print one row for each game."""
    shown = Table(title="Recipe atari", title_style="bold", title_justify="left")
    shown.add_column("")
    for column in ("warm-up", f"last {EPISODES} episodes", "times", "steps", "minutes", "steps/s"):
        shown.add_column(column, justify="right")
    for game, one in results.items():
        speed = one["steps"] / one["minutes"] / 60
        times = f"{one['score'] / one['random']:.1f}" if one["random"] > 0 else "-"
        told = [f"{one['random']:.1f}", f"{one['score']:.1f}", times, f"{one['steps']:,}", f"{one['minutes']:.1f}"]
        shown.add_row(game, *told, f"{speed:.0f}")
    console = Console(width=100)
    console.print(shown)
    console.print("Scores of training, exploration included; warm-up: episodes that ended in it, by random actions.")


def figure(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw a panel for each game: episodes as dots, the mean of 100 as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown, axes = pyplot.subplots(1, len(results), figsize=(4 * len(results), 3.6), squeeze=False, layout="constrained")
    for axis, (game, one) in zip(axes[0], results.items(), strict=True):
        minutes, _, rewards, means = zip(*one["episodes"], strict=True)
        axis.plot(minutes, rewards, ".", markersize=3, alpha=0.3, color="#0b7285", label="episode")
        axis.plot(minutes, means, linewidth=2, color="#0b7285", label="mean of 100")
        axis.axhline(one["random"], linestyle="--", linewidth=1, color="gray", label="warm-up")
        axis.set_ylim(0, 1.05 * max(rewards))
        axis.set_title(f"{game}, {one['steps'] / 1000:.0f}K steps", loc="left", fontsize=10)
        axis.set_xlabel("minutes")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("score")
    axes[0][0].legend(fontsize=8)
    shown.suptitle("sharpwave train atari: the first minutes", fontsize=11)
    shown.savefig(path, dpi=120)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--games", nargs="+", default=["breakout", "seaquest", "qbert"])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/games"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for games.json and games.png")
    arguments, options = parser.parse_known_args()
    options = [option for option in options if option != "--"]
    results = {}
    for game in arguments.games:
        told = ["atari", "--env", game, "--seed", str(arguments.seed), *options]
        train(
            arguments.runs / game,
            told,
            enough=lambda played: bool(played) and played[-1]["minutes"] >= arguments.minutes,
        )
        results[game] = measured(arguments.runs / game, arguments.minutes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    told_json = {"environment": environment(PACKAGES), "games": results}
    (arguments.out / "games.json").write_text(json.dumps(told_json) + "\n")
    table(results)
    figure(results, arguments.out / "games.png")


if __name__ == "__main__":
    main()
