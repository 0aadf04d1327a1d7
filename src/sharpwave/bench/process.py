"""Measured child process that communicates by lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class ChildError(RuntimeError):
    """Error raised when a child process has ended or did not answer in time."""


class Child:
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
        """Kill the process."""
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
