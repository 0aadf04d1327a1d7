"""Programs as forks of a server that has imported the package: a start of Python takes half a second of a processor."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, wait
from typing import Any

from sharpwave.serve.supervisor import Program

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["sharpwave.serve.shard_process"])
STANDARD = (0, 1, 2)


class ForkedProgram(Program):
    """A ``Program`` that is forked instead of started."""

    def __init__(self, code: str) -> None:
        stdin, its_stdin = os.pipe()[::-1]
        stdout, its_stdout = os.pipe()
        ends = [Connection(its_stdin, writable=False), Connection(its_stdout, readable=False), Connection(os.dup(2))]
        process: Any = CONTEXT.Process(target=_run, args=(code, os.getcwd(), dict(os.environ), *ends))
        process.start()
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]  # else other threads reap it
        for end in ends:
            end.close()
        self._process, self._lock = process, threading.Lock()
        self.stdin, self.stdout, self.pid = os.fdopen(stdin, "w"), os.fdopen(stdout), process.pid

    def poll(self) -> int | None:
        with self._lock:  # the status can be read once
            status: int | None = self._process.exitcode
            return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("shard", timeout or 0.0)
        return status


def _run(code: str, folder: str, environment: dict[str, str], *ends: Connection) -> None:
    for end, number in zip(ends, STANDARD, strict=True):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    exec(code, {"__name__": "__main__"})
