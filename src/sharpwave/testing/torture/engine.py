"""Workers that run programs side by side, and their results."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sharpwave.testing.torture.faults import environment
from sharpwave.testing.torture.program import LIMITS, ON_FULL, RETENTIONS

SHRINK_S = 30.0
"""Time for shrinking a program that fails."""


@dataclass
class Found:
    """Attributes: counts over all programs, and by kind of store; reports of failing programs; whether file operations
    failed in a preloaded library; seconds taken."""

    counts: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    preloaded: bool = False
    seconds: float = 0.0

    def add(self, report: dict[str, Any]) -> None:
        failed = {"failed": 1} if "what" in report else {}
        for counts in (self.counts, self.kinds.setdefault(report["kind"], Counter())):
            counts.update(report["counts"] | failed)
        if failed:
            self.failures.append(report)

    def to_json(self) -> dict[str, Any]:
        return {
            "counts": dict(sorted(self.counts.items())),
            "kinds": {kind: dict(sorted(counts.items())) for kind, counts in sorted(self.kinds.items())},
            "failures": self.failures,
            "preloaded": self.preloaded,
            "seconds": round(self.seconds, 1),
        }


def torture(
    *,
    seconds: float = 60.0,
    seed: int = 0,
    programs: int | None = None,
    retentions: Iterable[str] = RETENTIONS,
    on_full: Iterable[str] = ON_FULL,
    limits: Iterable[str] = LIMITS,
    jobs: int = 1,
    shrink_s: float = SHRINK_S,
    told: Callable[[dict[str, Any], Found], None] = lambda report, found: None,
) -> Found:
    """Run random programs side by side.

    Args:
        seconds: time after which no program begins.
        seed: seed of the first program; each later one has the next number.
        programs: largest number of programs.
        jobs: number of processes.
        told: called with each program's report.
    """
    kinds = {"retentions": list(retentions), "on_full": list(on_full), "limits": list(limits)}
    found, begun = Found(), time.monotonic()
    total = 1 << 40 if programs is None else programs
    asked = [
        {"seed": seed + job, "jobs": jobs, "seconds": seconds, "programs": (total - job + jobs - 1) // jobs,
         "kinds": kinds, "shrink_s": shrink_s}
        for job in range(jobs)
    ]  # fmt: skip
    for report in _reports(asked):
        if "ready" in report:
            found.preloaded = report["preloaded"]
        else:
            found.add(report)
            told(report, found)
    found.seconds = time.monotonic() - begun
    return found


def reproduce(program: str, shrink_s: float = 0.0) -> NoReturn:
    """Run one program, as ``Program.to_json`` wrote it; print its failure and exit with 1, or exit with 0."""
    (report,) = [one for one in _reports([{"program": program, "shrink_s": shrink_s}]) if "ready" not in one]
    if "what" not in report:
        print(f"all right: {report['counts']}")
        sys.exit(0)
    print(f"operation {report['at']}: {report['message']}")
    if shrink_s:
        print(report["script"])
    sys.exit(1)


def _reports(asked: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Start a worker for each request, and yield their reports.  Raises: RuntimeError: a worker itself failed."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    with environment() as variables, contextlib.ExitStack() as stack:
        workers = []
        for one in asked:
            worker = subprocess.Popen(
                [sys.executable, "-m", "sharpwave.testing.torture"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
            )  # fmt: skip
            stack.callback(_end, worker)
            workers.append(worker)
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(one) + "\n")
            worker.stdin.flush()
            threading.Thread(target=_read, args=(worker, lines), daemon=True).start()
        left = len(workers)
        while left:
            line = lines.get()
            if line is None:
                left -= 1
            else:
                yield json.loads(line)
        failed = [worker.returncode for worker in workers if worker.wait()]
        if failed:
            raise RuntimeError(f"a worker ended with {failed[0]}; see above")


def _read(worker: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        lines.put(line)
    lines.put(None)


def _end(worker: subprocess.Popen[str]) -> None:
    if worker.poll() is None:
        worker.terminate()
    worker.wait()
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.close()
    worker.stdout.close()
