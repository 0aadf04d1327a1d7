"""Sharpwave's sequences beside other libraries' windows of steps, on real frames of Pong.

    python benchmarks/sequences.py [--quick] [--reverb PYTHON] [--steps 100000] [--r2d2-steps 4000000] [--out FOLDER]

Windows of 120 steps, 40 of them burn-in, and the five observations behind them; a recurrent state of 2 x 512 float32.
Every contender fills a buffer in a process of its own and keeps it; then all are asked in turn, round after round, so
that whatever else the machine does hits all of them. Figures are medians over rounds; a ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import frames
from sequence_contenders import BURN_IN, LENGTH, N_STEP, STRIDE
from sequence_report import figure, goals, table
from sequence_worker import BATCHES, CONTENDERS

from sharpwave.bench.machine import environment
from sharpwave.bench.process import Child
from sharpwave.bench.setups import installed

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
MODULES = {"TorchRL": "torchrl", "Flashbax": "flashbax"}
"""Libraries without which the contenders whose names begin so are left out."""
PACKAGES = ("sharpwave", "numpy", "torch", "torchrl", "tensordict", "jax", "flashbax")
OURS = ("sharpwave auto", "sharpwave raw")
END_S = 60
"""Seconds in which a contender ends by itself: on a busy machine a store of 500,000 steps took more than ten."""
FRAMES = 500_000
"""Steps to play; a store of more repeats them."""


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill all contenders, measure them in turn, and return the results."""
    folder = frames.folder_of("pong", FRAMES if arguments.r2d2_steps else arguments.steps, cache=arguments.frames_cache)
    results: dict[str, Any] = {
        "environment": environment(PACKAGES) | {"load": [], "cores": len(os.sched_getaffinity(0))},
        "settings": {name: getattr(arguments, name) for name in ("steps", "rounds", "seconds", "r2d2_steps")}
        | {"burn_in": BURN_IN, "length": LENGTH, "stride": STRIDE, "n_step": N_STEP},
        "contenders": {},
        "limit": {str(batch): [] for batch in BATCHES},
    }
    if arguments.r2d2_steps:
        say(f"a store of {arguments.r2d2_steps:,} steps")
        results["r2d2"] = memory_of(arguments, folder)
    workers: dict[str, Child] = {}
    try:
        for name in chosen(arguments):
            workers[name] = worker(name, folder, arguments)
            filled = workers[name].ask(fill=arguments.steps)
            results["contenders"][name] = {"fill": filled, "rounds": {}}
            say(f"{name}: {filled['bytes'] / filled['steps']:,.0f} bytes a step, filled in {filled['fill_s']:.0f} s")
        workers["limit"] = worker("limit", folder, arguments)
        workers["limit"].ask(fill=0)
        for turn in range(arguments.rounds):
            say(f"round {turn + 1} of {arguments.rounds}")
            results["environment"]["load"].append(os.getloadavg()[0])
            one_round(turn, workers, results, arguments.seconds)
    finally:
        for one in workers.values():
            end(one)
    return results


def one_round(turn: int, workers: dict[str, Child], results: dict[str, Any], seconds: float) -> None:
    """Ask every contender once for each of its measurements."""
    names = list(results["contenders"])
    order = names[turn % len(names) :] + names[: turn % len(names)]
    for what, batch in [("add", 0), *((what, batch) for what in ("uniform", "prioritized") for batch in BATCHES)]:
        for name in order:
            if what == "prioritized" and name not in OURS:
                continue
            answer = workers[name].ask(measure=what, batch=batch, seconds=seconds)
            rounds = results["contenders"][name]["rounds"]
            rounds.setdefault(f"{what} {batch}" if batch else what, []).append(answer)
    for batch in BATCHES:
        answer = workers["limit"].ask(measure="windows", batch=batch, seconds=seconds)
        results["limit"][str(batch)].append(answer["windows"])


def memory_of(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the memory of one store of ``r2d2_steps``."""
    one = worker("sharpwave auto", folder, arguments, FRAMES)
    try:
        return one.ask(fill=arguments.r2d2_steps)
    finally:
        end(one)


def worker(name: str, folder: Path, arguments: argparse.Namespace, recorded: int = 0) -> Child:
    """Start the process of a contender, over the first ``recorded`` steps played; 0: as many as it stores."""
    python = arguments.reverb if name == "Reverb" else sys.executable
    command = [python, str(HERE / "sequence_worker.py"), name, str(folder), str(recorded or arguments.steps)]
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    return Child(name, command, env={"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "RL_LOGGING_LEVEL": "ERROR"})


def end(one: Child) -> None:
    """Let a contender end by itself, which removes its files."""
    assert one.process.stdin is not None
    try:
        one.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what it measured is here already
            one.process.wait(END_S)
    finally:
        one.close()


def chosen(arguments: argparse.Namespace) -> list[str]:
    """Return the contenders asked for whose libraries are installed."""
    names = []
    for name in CONTENDERS:
        module = next((module for begin, module in MODULES.items() if name.startswith(begin)), None)
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        if (module and not installed(module)) or (name == "Reverb" and not arguments.reverb):
            say(f"{name}: left out, {'give --reverb' if name == 'Reverb' else f'{module} is not installed'}")
            continue
        names.append(name)
    return names


def say(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two minutes: fewer steps and rounds, shorter slices")
    parser.add_argument("--steps", type=int, default=100_000, help="steps in each buffer (default 100000)")
    parser.add_argument(
        "--r2d2-steps", type=int, default=4_000_000,
        help="steps of the store whose memory is measured: 40 for each of R2D2's 100,000 sequences; 0: none",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="contenders whose name contains one of these")
    parser.add_argument(
        "--reverb", metavar="PYTHON", help="interpreter with dm-reverb[tensorflow] and Sharpwave's dependencies"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for sequences.json, sequences.png")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.r2d2_steps = min(arguments.steps, 16_000), min(arguments.r2d2_steps, 250_000)
        arguments.rounds, arguments.seconds = 3, 0.3
    results = run(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "sequences.json").write_text(json.dumps(results, indent=1) + "\n")
    table(results)
    goals(results)
    figure(results, arguments.out / "sequences.png")
    say(f"written: {arguments.out / 'sequences.json'}, {arguments.out / 'sequences.png'}")


if __name__ == "__main__":
    main()
