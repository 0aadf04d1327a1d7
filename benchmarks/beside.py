"""One tree of Sharpwave beside another: whether a change made the store faster or slower.

    git worktree add /tmp/before COMMIT
    python benchmarks/beside.py /tmp/before . [--quick] [--lives 4] [--rounds 15] [--steps 100000] [--out FILE]

Each tree (a folder with ``src/``) fills its stores in a process of its own; both are asked in turn, each round
beginning with the other one. Where a process's memory happens to lie makes some per cent, so after some rounds both are
started again. A ratio is the median over all rounds of the second tree's time to the first's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import frames
from rich.console import Console
from rich.table import Table

from sharpwave.bench.machine import environment
from sharpwave.bench.process import Child

HERE = Path(__file__).parent
CALLS = {0: 512, 32: 300, 256: 60}
"""Calls of a slice by batch size; 0: ``extend``, four times as many as seal a lane's segment."""
DATA = ("frames", "vectors")
ROWS = [("extend", data, 0) for data in DATA]
ROWS += [(what, data, batch) for data in DATA for what in ("uniform", "prioritized") for batch in (32, 256)]
TIMEOUT_S = 600

Results = dict[str, Any]


def measure(arguments: argparse.Namespace) -> Results:
    """Return every round of both trees, by row."""
    folder = frames.folder_of("pong", 50_000, cache=arguments.frames_cache, say=say)
    trees = {"first": arguments.first, "second": arguments.second}
    rows: Results = {" ".join(map(str, row)): {tree: [] for tree in trees} for row in ROWS}
    found: Results = {
        "environment": environment(("numpy", "zstandard")),
        "trees": {tree: str(path.resolve()) for tree, path in trees.items()},
        "settings": {name: getattr(arguments, name) for name in ("lives", "rounds", "steps")},
        "bytes_per_step": {},
        "rows": rows,
    }
    for life in range(arguments.lives):
        children = {}
        try:
            for tree, path in trees.items():
                command = [sys.executable, str(HERE / "beside_worker.py"), str(folder), str(arguments.steps)]
                children[tree] = Child(tree, command, env={"PYTHONPATH": str(path.resolve() / "src")})
                say(f"life {life + 1} of {arguments.lives}: filling {path}")
                found["bytes_per_step"][tree] = children[tree].receive(TIMEOUT_S)
            for turn in range(arguments.rounds):
                say(f"life {life + 1} of {arguments.lives}: round {turn + 1} of {arguments.rounds}")
                for what, data, batch in ROWS:
                    for tree in list(trees)[:: -1 if turn % 2 else 1]:
                        answer = children[tree].ask(TIMEOUT_S, what=what, data=data, batch=batch, calls=CALLS[batch])
                        rows[f"{what} {data} {batch}"][tree].append(answer)
        finally:
            for child in children.values():
                child.close()
    return found


def summary(found: Results) -> Results:
    """Return, by row and clock, both trees' medians in microseconds, and quartiles of the rounds' ratios."""
    told: Results = {}
    for name, rounds in found["rows"].items():
        told[name] = {}
        for clock in ("wall_us", "cpu_us"):
            first, second = ([one[clock] for one in rounds[tree]] for tree in ("first", "second"))
            ratios = [b / a for a, b in zip(first, second, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            told[name][clock] = {
                "first": statistics.median(first), "second": statistics.median(second), "ratio": middle,
                "quartiles": [low, high],
            }  # fmt: skip
    return told


def table(found: Results) -> None:
    """Print the summary."""
    title = "Time a call, second tree to first: below 1 is faster"
    shown = Table(title=title, title_justify="left", title_style="bold")
    shown.add_column("")
    for header in ("first, us", "second, us", "ratio", "quartiles", "ratio, CPU time"):
        shown.add_column(header, justify="right")
    for name, clocks in found["summary"].items():
        wall, cpu = clocks["wall_us"], clocks["cpu_us"]
        low, high = wall["quartiles"]
        cells = [f"{wall['first']:,.1f}", f"{wall['second']:,.1f}", f"{wall['ratio']:.3f}", f"{low:.3f} - {high:.3f}"]
        shown.add_row(name.removesuffix(" 0"), *cells, f"{cpu['ratio']:.3f}")
    console = Console(width=100)
    console.print(shown)
    for data in DATA:
        first, second = (found["bytes_per_step"][tree][data] for tree in ("first", "second"))
        console.print(f"bytes a step, {data}: {first:.1f}, {second:.1f}", highlight=False)


def say(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=Path, help="reference tree, a folder with src/")
    parser.add_argument("second", type=Path)
    parser.add_argument("--quick", action="store_true", help="half a minute: one life, fewer steps and rounds")
    parser.add_argument("--lives", type=int, default=4, help="times that both processes are started")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each life")
    parser.add_argument("--steps", type=int, default=100_000, help="steps that each store holds")
    parser.add_argument("--out", type=Path, help="write all rounds to this .json file")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    for tree in (arguments.first, arguments.second):
        if not (tree / "src" / "sharpwave").is_dir():
            parser.error(f"{str(tree)!r} has no src/sharpwave; expected a checkout of Sharpwave")
    if arguments.quick:
        arguments.lives, arguments.rounds, arguments.steps = 1, 5, min(arguments.steps, 32_000)
    found = measure(arguments)
    found["summary"] = summary(found)
    table(found)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
