"""``sharpwave torture``: random programs on stores that are killed, and whose disks fail."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from sharpwave.cli.output import table

COUNTED = ("programs", "steps", "openings", "kills", "faults", "items", "episodes", "failed")
"""Columns of the table."""


def torture(
    seconds: Annotated[float, typer.Option(help="seconds after which no program begins")] = 60.0,
    seed: Annotated[int, typer.Option(help="seed of the first program; each further program has the next number")] = 0,
    programs: Annotated[
        int | None, typer.Option(help="largest number of programs; 1 repeats the program of the seed")
    ] = None,
    retention: Annotated[list[str] | None, typer.Option(help="Fifo, Reservoir or LowestPriority; default all")] = None,
    on_full: Annotated[
        list[str] | None, typer.Option(help="raise, block, drop_oldest or drop_newest; default all")
    ] = None,
    limits: Annotated[list[str] | None, typer.Option(help="capacity, disk_limit or both; default all")] = None,
    jobs: Annotated[int, typer.Option(help="processes; default one for each processor")] = 0,
    shrink: Annotated[float, typer.Option(help="seconds for shrinking a failing program; 0: do not shrink it")] = 30.0,
    max_failures: Annotated[int, typer.Option(help="failures to print")] = 10,
    out: Annotated[Path | None, typer.Option(help="file for the counts and failures, as JSON")] = None,
) -> None:
    """Torture stores on disk with random programs, and compare them with a plain log.

    A program appends, samples, flushes, checkpoints, resizes, clears, closes and opens one small store, with one to
    five lanes and several views. Its process is killed with SIGKILL, between operations or at a file operation; file
    operations fail with EIO or ENOSPC, or write half; the disk is full for a while. After each opening everything is
    compared with lists of all acknowledged calls: the steps held, every item of every view,
    priorities and uses, episodes and counts.

    A failing program is shrunk and printed as a script. The exit status is 1 if a program failed.

    With a C compiler (cc) on Linux, file operations fail in the whole process; otherwise only those of the store's own
    class of file operations.
    """
    from rich.console import Console

    from sharpwave.testing.torture import Found
    from sharpwave.testing.torture import torture as run
    from sharpwave.testing.torture.program import LIMITS, ON_FULL, RETENTIONS

    chosen = {}
    for name, given, known in (
        ("retention", retention, RETENTIONS), ("on-full", on_full, ON_FULL), ("limits", limits, LIMITS),
    ):  # fmt: skip
        chosen[name] = given or list(known)
        if wrong := set(chosen[name]) - set(known):
            raise ValueError(f"--{name}: got {min(wrong)!r}, expected one of {', '.join(known)}")
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=True, width=160)
    console.print(f"programs from seed {seed} on, for {seconds:g} s")

    def told(report: dict[str, Any], found: Found) -> None:
        counts = found.counts
        if "what" in report and counts["failed"] <= max_failures:
            console.print(f"seed {report['seed']} ({report['kind']}): {report['message']}", markup=False)
            if report.get("again") is False:
                console.print("It did not fail again: it depends on the time. As it was:", markup=False)
            console.print(f"```\n{report['script']}```", markup=False)
        elif counts["programs"] % 50 == 0:
            console.print(
                f"{counts['programs']:,} programs, {counts['openings']:,} openings, {counts['items']:,} items, "
                f"{counts['failed']} failed"
            )

    found = run(
        seconds=seconds, seed=seed, programs=programs, retentions=chosen["retention"], on_full=chosen["on-full"],
        limits=chosen["limits"], jobs=jobs or os.cpu_count() or 1, shrink_s=shrink, told=told,
    )  # fmt: skip
    if out is not None:
        out.write_text(json.dumps(found.to_json(), indent=1) + "\n")
    rows = table("store", *COUNTED)
    for kind, counts in [*sorted(found.kinds.items()), ("all", found.counts)]:
        rows.add_row(kind, *(f"{_count(counts, name):,}" for name in COUNTED))
    console.print(rows)
    if not found.preloaded:
        console.print("No C compiler: faults were those of the store's own class of file operations.")
    if found.failures:
        raise typer.Exit(1)
    console.print(f"Held, in {found.seconds:.0f} s.", style="bold green")


def _count(counts: Any, name: str) -> int:
    """Return a count; kills and faults are sums over their kinds."""
    if name in ("kills", "faults"):
        return sum(value for key, value in counts.items() if key.startswith(name))
    return int(counts[name])
