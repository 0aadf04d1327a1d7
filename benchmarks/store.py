"""Sharpwave's store beside other libraries' replay buffers, on real frames of Pong or another game.

    python benchmarks/store.py [--quick] [--game pong] [--steps 500000] [--out FOLDER] [--frames-cache FOLDER]

Every contender fills a buffer in a process of its own and keeps it; then all are asked in turn, round after round, so
that whatever else the machine does hits all of them. Figures are medians over rounds; a ratio is the median of the
rounds' ratios. README.md beside this file says how each contender is configured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import frames
from contenders import CONTENDERS, ENCODED
from report import figure, goals, table

from sharpwave.bench import machine
from sharpwave.bench.process import Child

HERE = Path(__file__).parent
BATCHES = (32, 256, 1024)
TREES = ("sharpwave tree", "sharpwave sampler", "cpprb", "Tianshou")
LEAVES = 1 << 20
PACKAGES = ("sharpwave", "numpy", "zstandard", "torch", "stable-baselines3", "cpprb", "tianshou", "ale-py")


class Worker(Child):
    """Process of a contender. ``more``: further arguments of ``script``."""

    def __init__(
        self, name: str, folder: Path, threads: int, script: str = "worker.py", more: tuple[str, ...] = ()
    ) -> None:
        limits = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        super().__init__(
            name,
            [sys.executable, str(HERE / script), name, str(folder), *more],
            env=dict.fromkeys(limits, str(threads)) if threads else None,
            begin=(lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])) if threads else None,
        )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill all contenders, measure them in turn, and return the results."""
    say(f"frames: {arguments.steps:,} steps of {arguments.game}")
    folder = frames.folder_of(arguments.game, arguments.steps, cache=arguments.frames_cache, say=say)
    names = [name for name in CONTENDERS if not arguments.only or any(part in name for part in arguments.only)]
    workers: dict[str, Worker] = {}
    results: dict[str, Any] = {"environment": environment(arguments), "contenders": {}, "trees": {}, "limit": []}
    try:
        for name in names:
            workers[name] = Worker(name, folder, arguments.threads)
            filled = workers[name].ask(fill=arguments.steps if name in ENCODED else arguments.peer_steps)
            results["contenders"][name] = {"fill": filled, "rounds": {}}
            say(f"{name}: {filled['steps']:,} steps, {filled['bytes'] / filled['steps']:,.0f} bytes each")
        workers["trees"] = Worker("trees", folder, arguments.threads)
        workers["trees"].ask(fill=LEAVES)
        workers["limit"] = Worker("limit", folder, arguments.threads)
        workers["limit"].ask(fill=0)
        kinds: list[tuple[str, int]] = [("add", 0)]
        kinds += [(what, batch) for what in ("uniform", "prioritized") for batch in BATCHES]
        for turn in range(arguments.rounds):
            say(f"round {turn + 1} of {arguments.rounds}")
            for what, batch in kinds:
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    entry = results["contenders"][name]
                    if what == "prioritized" and not entry["fill"]["prioritized"]:
                        continue
                    answer = workers[name].ask(measure=what, batch=batch, seconds=arguments.seconds)
                    entry["rounds"].setdefault(f"{what} {batch}" if batch else what, []).append(answer)
            answer = workers["limit"].ask(measure="windows", batch=256, seconds=arguments.seconds)
            results["limit"].append(answer["windows"])
            for name in TREES:
                answer = workers["trees"].ask(measure=name, batch=256, seconds=arguments.seconds / 2)
                results["trees"].setdefault(name, []).append(answer["us"])
    finally:
        for worker in workers.values():
            worker.close()
    return results


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """Describe the machine, the software and the settings."""
    return machine.environment(PACKAGES) | {
        "game": arguments.game,
        "steps": arguments.steps,
        "peer_steps": arguments.peer_steps,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "threads": arguments.threads,
    }


def say(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute: fewer steps and rounds, shorter slices")
    parser.add_argument("--game", default="pong", help="game of the frames, as ale-py names it (default pong)")
    parser.add_argument("--steps", type=int, default=500_000, help="steps in encoded stores (default 500000)")
    parser.add_argument("--peer-steps", type=int, default=24_000, help="steps in all other buffers (default 24000)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    parser.add_argument("--threads", type=int, default=0, help="threads of a contender (default: its own)")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="contenders whose name contains one of these")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for store.json and store.png")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.peer_steps = min(arguments.steps, 48_000), min(arguments.peer_steps, 8_000)
        arguments.rounds, arguments.seconds = 3, 0.2
    results = run(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "store.json").write_text(json.dumps(results, indent=1) + "\n")
    table(results)
    goals(results)
    figure(results, arguments.out / "store.png")
    say(f"written: {arguments.out / 'store.json'}, {arguments.out / 'store.png'}")


if __name__ == "__main__":
    main()
