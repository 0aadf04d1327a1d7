"""Offline learning from the project's own runs: behaviour cloning and conservative Q-learning from a run's memory.

Recipe `cartpole` learns for a few thousand steps, so that its replay memory holds everything from random play to a
policy that is half good. From that memory alone `sharpwave train offline` learns by each algorithm, without evaluations
along the way; the last policy plays fresh episodes. Prints a table; each seed adds a line to results/offline.jsonl.

python benchmarks/offline.py [--seeds 100 101 102 103 104] [--steps 10000] [--out benchmarks/results/offline.jsonl]
"""

import argparse
import io
import json
import tempfile
from pathlib import Path
from statistics import fmean

from rich.console import Console

from sharpwave.offline.recorded import RecordedEpisodes
from sharpwave.training.evaluation import evaluate
from sharpwave.training.measuring import EPSILON
from sharpwave.training.offline_data import store_path
from sharpwave.training.recipes import OFFLINE, load_recipe
from sharpwave.training.recipes.recipe import default_recipe
from sharpwave.training.run import run

UPDATES = {"bc": 5_000, "cql": 10_000}
EPISODES = 100


def main() -> None:
    """Learn with every seed, and print all lines of the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[100, 101, 102, 103, 104])
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps of the runs that are learned from")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "offline.jsonl")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        line = json.dumps(measured(seed, arguments.steps))
        with arguments.out.open("a") as file:
            file.write(line + "\n")
    table([json.loads(line) for line in arguments.out.read_text().splitlines()])


def measured(seed: int, steps: int) -> dict[str, object]:
    """Return scores: of the data's episodes and of their best tenth, and of each algorithm's last policy."""
    quiet = Console(file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        online = Path(folder) / "online"
        recipe = load_recipe("cartpole").override(steps=steps, seed=seed, stop_reward=None, evaluate_every=0)
        run("cartpole", recipe, online, quiet)
        data = store_path(str(online))
        assert data is not None
        scores = sorted((float(one.reward.sum()) for one in RecordedEpisodes(data)), reverse=True)
        found: dict[str, object] = {"seed": seed, "steps": steps, "episodes": len(scores), "mean": fmean(scores)}
        found["best_tenth"] = fmean(scores[: max(1, len(scores) // 10)])
        for kind in OFFLINE:
            offline = default_recipe(kind).override(
                data=str(online), steps=UPDATES[kind], seed=seed, evaluate_every=0, report_every=UPDATES[kind]
            )
            run("offline", offline, Path(folder) / kind, quiet)
            found[kind] = fmean(
                evaluate(Path(folder) / kind, EPISODES, EPSILON, 1_000_000 + seed, checkpoint="last")[1]
            )
        return found


def table(lines: list[dict[str, float]]) -> None:
    """Print a row a seed."""
    columns = {
        "seed": "seed",
        "steps": "steps",
        "mean": "data: mean",
        "best_tenth": "best tenth",
        "bc": "bc",
        "cql": "cql",
    }
    print("| " + " | ".join(columns.values()) + " |\n|" + " ---: |" * len(columns))
    for line in lines:
        print("| " + " | ".join(f"{line[key]:,.0f}" for key in columns) + " |")


if __name__ == "__main__":
    main()
