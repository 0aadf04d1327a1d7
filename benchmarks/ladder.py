"""Speed of training Pong, from a textbook's DQN to recipe pong-dqn, one step of engineering at a time.

python benchmarks/ladder.py --help
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from runner import RESULTS, write
from training_speed import ladder as measured
from training_speed.rungs import chosen
from training_speed.runs import finished_runs, numbers, run_command, say


def ladder(
    rungs: Annotated[
        str, typer.Option("--rungs", help="rungs separated by commas, as baseline,n-envs,full; empty: all")
    ] = "",
    seeds: Annotated[str, typer.Option("--seeds", help="seeds separated by commas, as 0,1,2")] = "0",
    rounds: Annotated[int, typer.Option(min=1, help="slices of each rung and seed")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="environment steps of a slice")] = 1_000,
    warmup: Annotated[int, typer.Option(min=64, help="random steps that fill the memory before a slice")] = 5_000,
    threads: Annotated[int, typer.Option(min=1, help="threads of torch and OpenMP; two processes divide them")] = 2,
    solve: Annotated[
        bool,
        typer.Option("--solve", help="also train full and full-float32 until solved, once a seed; half an hour each"),
    ] = False,
    finished: Annotated[
        Path | None,
        typer.Option(help="a folder of finished runs of recipe pong-dqn, or a JSON of summaries: frames to solve"),
    ] = RESULTS / "ladder-pong.json",
    out: Annotated[Path, typer.Option(help="folder for ladder.json and ladder.png")] = RESULTS,
    fresh: Annotated[bool, typer.Option("--fresh", help="start over instead of continuing earlier results")] = False,
) -> None:
    """Measure each step from a textbook's DQN to recipe pong-dqn: speed, where the time goes, memory, time to solve."""
    names, seed_list = chosen(rungs), numbers(seeds, "--seeds")
    known = None if finished is None else finished_runs(finished)
    results = measured.measure(out, names, seed_list, rounds, steps, warmup, threads, fresh=fresh)
    if solve:
        results["finished"], results["finished_from"] = measured.solve(out, names, seed_list, fresh=fresh), str(out)
    elif known is not None:
        results["finished"], results["finished_from"] = known, str(finished)
    rows = results["rows"] = measured.rows(results)
    write(out / measured.FILE, results)
    console = Console()
    measured.tables(results, rows, Console(width=max(console.width, 170)))  # a narrower one would cut figures off
    if rows:
        measured.figure(results, rows, out / "ladder.png")
        say(f"written: {out / measured.FILE}, {out / 'ladder.png'}")


if __name__ == "__main__":
    run_command(ladder)
