"""The processes that a benchmark has started, by kind, and what they took of processors and memory. On Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

KINDS = {  # by their command lines
    "sharpwave.serve.process": "shard",
    "ray::RayShard": "shard",
    "multiprocessing.spawn": "actor",
    "sharpwave.cli train": "learner",
    "--on-ray": "learner",
}


def descendants(process: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that they have."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:  # it has ended
            continue
        for child in children:
            yield child
            yield from descendants(child)


def of_kinds() -> Iterator[tuple[int, str]]:
    """Yield the learners, actors and shards that this process has started, each with its kind."""
    for process in descendants(os.getpid()):
        try:
            line = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        kind = next((kind for part, kind in KINDS.items() if part in line), None)
        if kind is not None:
            yield process, kind


def processor_s(process: int) -> float:
    """Return the seconds of processors that a process took so far; 0: it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(process: int) -> int:
    """Return the largest resident memory of a process so far; 0: it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(row.split()[1]) * 1024 for row in status.splitlines() if row.startswith("VmHWM:")), 0)
