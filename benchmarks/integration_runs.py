"""Runs of a framework's buffers, each in a process of its own and in turn, as benchmarks/integrations*.py make them."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from sharpwave.store import Store

HEADS = {"bytes": "bytes each", "adds": "adds/s", "sample 32": "sampled/s, 32", "sample 256": "256"}
"""Columns of every table, by what ``measure`` calls them; then what else it found, by its own name, and updates/s."""

COUNTED = "counted"
"""What the store counts of ``bytes``: without Python's objects, and without other memory of the process."""

Found = dict[str, float]


def rate(call: Callable[[], object], seconds: float) -> float:
    """Return how often ``call`` is done a second of processor time: the median over batches of ten calls."""
    call()
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not rates:
        began = time.process_time()
        for _ in range(10):
            call()
        rates.append(10 / (time.process_time() - began))
    return statistics.median(rates)


def held_bytes() -> int:
    """Return the process's resident memory, without what was freed and the allocator keeps (on Linux)."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def counted(store: Store, steps: int) -> Found:
    """Return the bytes a transition that a store counts."""
    return {COUNTED: store.stats()["total_bytes"] / steps}


def main(
    program: str, doc: str | None, names: Iterable[str], measure: Callable[[str, str, int], Found], *, steps: int
) -> dict[str, Found]:
    """Run the command line of a benchmark: measure each buffer in turn, print a table, and write all runs.

    Args:
        program: path of the benchmark, which is started again for each buffer.
        measure: fills the buffer of a name with steps of an environment, and returns what it found.
        steps: default of ``--steps``.

    Returns the medians by buffer; none in the process of one buffer, which prints what it found.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    results = Path(program).parent / "results"
    parser.add_argument("--out", type=Path, default=results / Path(program).with_suffix(".json").name)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one, asked.env, asked.steps)))
        return {}
    runs: dict[str, list[Found]] = {name: [] for name in names}
    for _ in range(asked.rounds):
        for name, found in runs.items():
            command = [sys.executable, program, "--one", name, "--steps", str(asked.steps), "--env", asked.env]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                print(f"{name}: {(ran.stderr.strip() or 'no message').splitlines()[-1]}", file=sys.stderr)
                continue
            found.append(json.loads(ran.stdout.splitlines()[-1]))
        asked.out.write_text(json.dumps({"env": asked.env, "steps": asked.steps, "runs": runs}, indent=1) + "\n")
    there = {name: found for name, found in runs.items() if found}
    title = f"{asked.env}, {asked.steps:,} transitions: median of {asked.rounds} (lowest - highest)"
    Console(width=150).print(_table(title, there))
    return {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]} for name, found in there.items()
    }


def _table(title: str, runs: dict[str, list[Found]]) -> Table:
    table = Table(title=title)
    keys = dict.fromkeys(key for found in runs.values() for key in found[0])
    own = [key for key in keys if key not in HEADS and key != "updates"]
    for head in ("buffer", *HEADS.values(), *own, "updates/s"):
        table.add_column(head, justify="left" if head == "buffer" else "right")
    for name, found in runs.items():
        columns = {key: [run[key] for run in found if key in run] for key in (*HEADS, *own, "updates")}
        cells = [_cell(values, 0 if key in HEADS or key == COUNTED else 1) for key, values in columns.items()]
        table.add_row(name, *cells)
    return table


def _cell(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    low, middle, high = (f"{one:,.{digits}f}" for one in (min(values), statistics.median(values), max(values)))
    return f"{middle}\n({low} - {high})"
