"""``sharpwave bench ladder | memory-size``: what makes training Pong fast, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Measure on this machine what makes training Pong fast. Interrupted, the same command goes on.",
    no_args_is_help=True,
)

SEEDS = typer.Option("--seeds", help="with commas, as 0,1,2")
FRESH = typer.Option("--fresh", help="start over; without it what is there is gone on with")


@app.command("ladder")
def ladder(
    rungs: Annotated[
        str, typer.Option("--rungs", help="with commas, as baseline,n-envs,full; empty: all of them")
    ] = "",
    seeds: Annotated[str, SEEDS] = "0",
    rounds: Annotated[int, typer.Option(min=1, help="slices of a rung and seed")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="environment steps of a slice")] = 1_000,
    warmup: Annotated[int, typer.Option(min=64, help="random steps that fill the memory before a slice")] = 5_000,
    threads: Annotated[int, typer.Option(min=1, help="of torch and OpenMP; two processes divide them")] = 2,
    solve: Annotated[
        bool,
        typer.Option("--solve", help="also train full and full-float32 until solved, once a seed; half an hour each"),
    ] = False,
    finished: Annotated[
        Path | None,
        typer.Option(help="a folder of finished runs of recipe pong, or benchmarks/pong.py's JSON: frames to solve"),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for ladder.json and ladder.png")] = Path("runs/ladder"),
    fresh: Annotated[bool, FRESH] = False,
) -> None:
    """Steps of engineering from a textbook's DQN to recipe pong: speed, where the time goes, memory, time to solve."""
    from rich.console import Console

    from sharpwave.bench import ladder as measured
    from sharpwave.bench import ladder_report as report
    from sharpwave.bench.progress import numbers, say
    from sharpwave.bench.rungs import chosen
    from sharpwave.bench.solved import finished_runs
    from sharpwave.training.files import write_json

    names, seed_list = chosen(rungs), numbers(seeds, "--seeds")
    known = None if finished is None else finished_runs(finished)
    results = measured.measure(out, names, seed_list, rounds, steps, warmup, threads, fresh=fresh)
    if solve:
        results["finished"], results["finished_from"] = measured.solve(out, names, seed_list, fresh=fresh), str(out)
    elif known is not None:
        results["finished"], results["finished_from"] = known, str(finished)
    rows = results["rows"] = measured.rows(results)
    write_json(out / measured.FILE, results)
    console = Console()
    report.tables(results, rows, Console(width=max(console.width, 170)))  # narrower cuts figures off
    if rows:
        report.figure(results, rows, out / "ladder.png")
        say(f"written: {out / measured.FILE}, {out / 'ladder.png'}")


@app.command("memory-size")
def memory_size(
    sizes: Annotated[str, typer.Option(help="steps that the memory holds, with commas")] = "10000,30000,100000,300000",
    seeds: Annotated[str, SEEDS] = "0",
    steps: Annotated[int, typer.Option(min=1, help="environment steps of every run")] = 400_000,
    out: Annotated[Path, typer.Option(help="folder for memory-size.json, memory-size.png and the runs")] = Path(
        "runs/memory-size"
    ),
    fresh: Annotated[bool, FRESH] = False,
) -> None:
    """Train recipe pong with memories of several sizes: score and speed against the size."""
    from rich.console import Console

    from sharpwave.bench import memory_size as measured
    from sharpwave.bench.progress import numbers, say
    from sharpwave.training.files import write_json

    results = measured.measure(out, numbers(sizes, "--sizes", least=1), numbers(seeds, "--seeds"), steps, fresh=fresh)
    rows = results["rows"] = measured.rows(results)
    write_json(out / measured.FILE, results)
    console = Console()
    measured.table(results, rows, Console(width=max(console.width, 120)))
    measured.figure(results, rows, out / "memory-size.png")
    say(f"written: {out / measured.FILE}, {out / 'memory-size.png'}")
