"""Machine that is measured: its description; and the processes of measurements on it, which talk by lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

PACKAGES = (
    "sharpwave", "numpy", "zstandard", "torch", "gymnasium", "ale-py", "stable-baselines3", "cpprb",
    "tianshou", "torchrl",
)  # fmt: skip
T = TypeVar("T")
ASSUMED_BYTES = 4 << 30
"""Assumed available memory on systems that do not report it."""


def environment(packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """Return the date, the machine, its load, and the versions of ``packages``."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def available_bytes() -> int:
    """Return the memory that is free or used only as file cache."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) << 10
    except (OSError, StopIteration):
        pages = getattr(os, "sysconf_names", {}).get("SC_PHYS_PAGES")
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if pages is not None else ASSUMED_BYTES


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_turn(items: Sequence[T], turn: int) -> list[T]:
    """Return all items, each turn beginning with another one."""
    at = turn % max(1, len(items))
    return [*items[at:], *items[:at]]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


class ChildError(RuntimeError):
    """Error raised when a child process has ended or did not answer in time."""


class AnsweringChild:
    """Child process that answers requests on its standard output.

    Args:
        errors: file for its standard error; ``None``: this process's.
        env: environment variables in addition to this process's.
        begin: called in the child before the program starts (POSIX only).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        errors: Path | None = None,
        env: Mapping[str, str] | None = None,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.errors = name, errors
        with contextlib.ExitStack() as stack:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if errors is None else stack.enter_context(errors.open("wb")),
                env=os.environ | dict(env or {}),
                preexec_fn=begin,
            )
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, timeout_s: float | None = None, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.  Raises: ChildError."""
        self.send(**request)
        return self.receive(timeout_s)

    def send(self, **request: Any) -> None:
        """Send a request; an ended process is noticed by ``receive``."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the next line.

        Raises:
            ChildError: the process ended, with the last line that it printed, or timed out.
        """
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise ChildError(f"{self.name}: timed out after {timeout_s:g} s") from None
        if not line:
            raise ChildError(f"{self.name}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._answers.put(line)
        self._answers.put(b"")

    def _last_words(self) -> str:
        ended = f"the process ended with {self.process.wait()}"
        if self.errors is None:
            return f"{ended}; see above"
        lines = self.errors.read_text(errors="replace").strip().splitlines()
        return f"{ended}: {lines[-1].strip()}" if lines else ended


def answer(make: Callable[[], object], begins_with: Callable[[Any], Any] | None = None) -> None:
    """Answer requests until standard input ends: the method that ``do`` names, with the others as its arguments.

    What libraries print goes to stderr.

    Args:
        begins_with: its result for the subject is the first answer, which no request asks for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends this one
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    subject = make()
    if begins_with is not None:
        answers.write(json.dumps(begins_with(subject)) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(getattr(subject, request.pop("do"))(**request)) + "\n")
