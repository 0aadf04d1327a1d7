"""Offline learning from the project's own runs: behaviour cloning, conservative and implicit Q-learning.

Recipe `cartpole` learns for a few thousand steps, so that its replay memory holds everything from random play to a
policy that is half good. From that memory alone `sharpwave train offline` learns by each algorithm, without evaluations
along the way; the last policy plays fresh episodes. Prints a table; each seed is a line of results/offline.jsonl, and
what a line has already is not measured again while its data are the same.

python benchmarks/offline.py [--seeds 100 101 102 103 104] [--steps 10000] [--out benchmarks/results/offline.jsonl]
"""

import argparse
import io
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from sharpwave.offline.recorded import RecordedEpisodes
from sharpwave.training.evaluation import evaluate
from sharpwave.training.measuring import EPSILON
from sharpwave.training.offline_data import store_path
from sharpwave.training.recipes import OFFLINE, load_recipe
from sharpwave.training.recipes.recipe import default_recipe
from sharpwave.training.run import run

UPDATES = {"bc": 5_000, "cql": 10_000, "iql": 5_000}
EPISODES = 100
ENOUGH = 0.9
"""Share of the best behaviour in the data that is to be reached."""
Line = dict[str, Any]


def main() -> None:
    """Learn with every seed, and print all lines of the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[100, 101, 102, 103, 104])
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps of the runs that are learned from")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "offline.jsonl")
    arguments = parser.parse_args()
    known = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    lines = {(line["seed"], line["steps"]): line for line in known}
    for seed in arguments.seeds:
        key = seed, arguments.steps
        lines[key] = measured(seed, arguments.steps, lines.get(key, {}))
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
    table([line for line in lines.values() if line.keys() >= {"own", *OFFLINE}])


def measured(seed: int, steps: int, before: Line) -> Line:
    """Return scores: of the data's episodes and their best tenth, of the policy that made the last ones, and of each
    algorithm's last policy; those that ``before`` has from the same data are taken from there."""
    if before.keys() >= {"own", *OFFLINE}:
        return before
    quiet = Console(file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        online = Path(folder) / "online"
        recipe = load_recipe("cartpole").override(steps=steps, seed=seed, stop_reward=None, evaluate_every=0)
        run("cartpole", recipe, online, quiet)
        data = store_path(str(online))
        assert data is not None
        scores = sorted((float(one.reward.sum()) for one in RecordedEpisodes(data)), reverse=True)
        found: Line = {"seed": seed, "steps": steps, "episodes": len(scores), "mean": fmean(scores)}
        found["best_tenth"] = fmean(scores[: max(1, len(scores) // 10)])
        if found.items() <= before.items():
            found = before
        if "own" not in found:
            found["own"] = played(online, seed)
        for kind in OFFLINE:
            if kind not in found:
                offline = default_recipe(kind).override(
                    data=str(online), steps=UPDATES[kind], seed=seed, evaluate_every=0, report_every=UPDATES[kind]
                )
                run("offline", offline, Path(folder) / kind, quiet)
                found[kind] = played(Path(folder) / kind, seed)
        return found


def played(folder: Path, seed: int) -> float:
    """Return the mean score of fresh episodes of a run's last policy."""
    return fmean(evaluate(folder, EPISODES, EPSILON, 1_000_000 + seed, checkpoint="last")[1])


def table(lines: list[Line]) -> None:
    """Print a row a seed, and what share of the best tenth each algorithm has."""
    columns = {
        "seed": "seed",
        "steps": "steps",
        "mean": "data: mean",
        "best_tenth": "best tenth",
        "own": "last policy",
        **{kind: kind for kind in OFFLINE},
    }
    print("| " + " | ".join(columns.values()) + " |\n|" + " ---: |" * len(columns))
    for line in lines:
        print("| " + " | ".join(f"{line[key]:,.0f}" for key in columns) + " |")
    for kind in OFFLINE:
        shares = [line[kind] / line["best_tenth"] for line in lines]
        enough = f"{sum(share >= ENOUGH for share in shares)} of {len(lines)} at least {ENOUGH:.0%}"
        print(f"{kind}: {min(shares):.0%} to {max(shares):.0%} of the best tenth; {enough}")


if __name__ == "__main__":
    main()
