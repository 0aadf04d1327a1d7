"""Recipe pong-dqn with memories of several sizes: score and speed against the size.

python benchmarks/memory_size.py --help
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from training_speed import memory_size as measured
from training_speed.progress import numbers, run_command, say

from sharpwave.training.files import write_json

RESULTS = Path(__file__).parent / "results"


def memory_size(
    sizes: Annotated[str, typer.Option(help="memory sizes in steps, with commas")] = "10000,30000,100000,300000",
    seeds: Annotated[str, typer.Option("--seeds", help="seeds separated by commas, as 0,1,2")] = "0",
    steps: Annotated[int, typer.Option(min=1, help="environment steps of every run")] = 400_000,
    out: Annotated[Path, typer.Option(help="folder for memory-size.json, memory-size.png and the runs")] = RESULTS,
    fresh: Annotated[bool, typer.Option("--fresh", help="start over instead of continuing earlier results")] = False,
) -> None:
    """Train recipe pong-dqn with memories of several sizes: score and speed against the size."""
    results = measured.measure(out, numbers(sizes, "--sizes", minimum=1), numbers(seeds, "--seeds"), steps, fresh=fresh)
    rows = results["rows"] = measured.rows(results)
    write_json(out / measured.FILE, results)
    console = Console()
    measured.table(results, rows, Console(width=max(console.width, 120)))
    measured.figure(results, rows, out / "memory-size.png")
    say(f"written: {out / measured.FILE}, {out / 'memory-size.png'}")


if __name__ == "__main__":
    run_command(memory_size)
