"""Supervisor of processes: starts a process, watches it, restarts it after a pause, up to a limit, and ends it.

Shards, actors, the inference process and the evaluator are each a ``Supervised``. It starts a ``Program`` (a shard,
whose parent may be a script without a main guard), or a function in a process of its own (``spawned``).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from textwrap import shorten
from typing import IO, Any, Protocol

CONTEXT = multiprocessing.get_context("spawn")
"""Start method of functions in processes of their own: torch's threads do not survive a fork."""
PAUSES_S = (0.0, 0.2, 1.0, 5.0, 30.0)
"""Pauses before a restart of a process that died repeatedly, soon after it began."""
LIVED_S = 5.0
"""Lifetime after which a process that dies is restarted at once."""
TERMINATED_S = 1.0
KILLED_S = 5.0
"""Times that a process may take to end after SIGTERM and after SIGKILL."""
LOOK_S = 0.01
HEADLINE = 500
"""Characters of an error in a message about its process."""
PARENT_GONE = 3
"""Exit status of a function's process whose parent has ended."""
TERMINAL_SIGNALS = ("SIGINT", "SIGHUP")
"""Signals that a terminal sends to all of its processes. Functions' processes ignore them: the parent decides."""
PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl(2): the signal that this process receives when the thread that started it ends."""


class ProcessDiedError(RuntimeError):
    """Error raised when a process has died more often than it may be restarted."""


class Child(Protocol):
    """Process that was started: a ``Program`` or a process of ``multiprocessing``."""

    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...


class Program(subprocess.Popen[str]):
    """Python program in a process of its own, with pipes to its standard input and from its standard output.

    It has the methods of a process of ``multiprocessing``, too.
    """

    stdin: IO[str]
    stdout: IO[str]

    def __init__(self, code: str) -> None:
        super().__init__([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def exitcode(self) -> int | None:
        """Exit status, a signal as its negative number; None: it runs."""
        return self.poll()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout)

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


class Supervised:
    """A process and its successors.

    Args:
        name: begins messages about it, as in "actor 3".
        begin: starts a process and returns it.
        limit: number of restarts; None: any. ``hint``: ends the message that the limit was exceeded.
        say: called with a message at each restart.

    Attributes:
        process: None: it is not started, or ``bury`` has noted its death. ``pid``: its number, or its predecessor's.
        restarts: number of restarts so far.
        failure: the error that the process reported, or the cause of its death; "": unknown.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], Child],
        limit: int | None = None,
        hint: str = "",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name, self.limit, self._begin, self._hint, self._say = name, limit, begin, hint, say
        self.process: Any = None
        self.pid = 0
        self.restarts = 0
        self.failure = ""
        self._begun = self._due = 0.0
        self._deaths = 0

    def start(self) -> None:
        """Start the process.  Raises: OSError: the system has no room for one; it may be tried again once ``due``."""
        self.failure, self._begun = "", time.monotonic()
        try:
            self.process = self._begin()
            self.pid = self.process.pid
        except BaseException:
            self._pause()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.exitcode is None

    @property
    def due(self) -> bool:
        """Whether to call ``restart``: the process has died and the pause after its death is over."""
        return self.process is None and time.monotonic() >= self._due

    def bury(self, grace_s: float = 0.0) -> None:
        """Kill the process if it has not ended after ``grace_s``; note the cause of its death."""
        if grace_s:
            self.process.join(grace_s)
        self.process.kill()
        self.process.join(KILLED_S)
        self.failure = self.failure.strip() or _cause_of_death(self.process.exitcode)
        self.release()
        self._pause()

    def _pause(self) -> None:
        now = time.monotonic()
        self._deaths = 1 if now - self._begun > LIVED_S else self._deaths + 1
        self._due = now + PAUSES_S[min(self._deaths, len(PAUSES_S)) - 1]

    def restart(self, also: str = "") -> None:
        """Start a successor of a process that was buried.

        Args:
            also: said about the restart.

        Raises:
            ProcessDiedError: ``limit`` is reached.  OSError: as ``start``.
        """
        failure = self.failure.strip()
        reason = _headline(failure)
        if self.limit is not None and self.restarts >= self.limit:
            trace = f"\n{failure}" if "\n" in failure else ""
            raise ProcessDiedError(
                f"{self.name} died of: {reason}; restarts so far: {self.restarts}{self._hint}{trace}"
            )
        self.restarts += 1
        left = "" if self.limit is None else f"; restarts left: {self.limit - self.restarts}"
        self.say(f"died of: {reason}; it is restarted{also}{left}")
        self.start()

    def say(self, text: str) -> None:
        """Log a message about the process."""
        self._say(f"{self.name[0].upper()}{self.name[1:]} {text}")

    def release(self) -> None:
        """Free a process that has ended; one that even SIGKILL has not ended yet stays."""
        if self.process is not None and self.process.exitcode is not None:
            self.process.close()
            self.process = None


def end(
    children: Sequence[Supervised],
    grace_s: float,
    meanwhile: Callable[[], None] = lambda: None,
    stuck: Callable[[Supervised], None] = lambda child: None,
) -> None:
    """Wait for processes that were asked to end; end the others by SIGTERM, then by SIGKILL.

    Args:
        grace_s: seconds that they may take.
        meanwhile: called while waiting, and once after all have ended.
        stuck: called with each process that has not ended by then.
    """
    for seconds, then in ((grace_s, "terminate"), (TERMINATED_S, "kill"), (KILLED_S, "kill")):
        deadline = time.monotonic() + seconds
        while (alive := [one for one in children if one.alive]) and time.monotonic() < deadline:
            meanwhile()
            time.sleep(LOOK_S)
        for one in alive:
            if then == "terminate":
                stuck(one)
            with contextlib.suppress(OSError):
                getattr(one.process, then)()
    meanwhile()
    for one in children:
        one.release()


def _headline(failure: str) -> str:
    """Return the part of a failure that names the error, as one line: of a traceback, the lines after its frames."""
    lines = failure.splitlines() or ["?"]
    if (frames := failure.rpartition("Traceback")[2].splitlines()[1:]) and len(frames) < len(lines):
        named = [*itertools.dropwhile(lambda line: not line[:1].strip(), frames)]
        return shorten(" ".join(named), HEADLINE) if named else lines[-1]
    return lines[-1]


def _cause_of_death(code: int | None) -> str:
    if code is None:
        return "SIGKILL, which has not ended it yet"
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):  # of a real-time signal
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


# functions in processes of their own


def spawned(target: Callable[..., None], name: str, *args: Any) -> tuple[Any, socket.socket]:
    """Start a function in a process of its own; return the process, and this end of a pair of sockets.

    Args:
        target: called with the other end and ``args``, which are pickled; it calls ``follow_parent`` first.
    """
    ours, theirs = socket.socketpair()
    process: SpawnProcess = CONTEXT.Process(target=target, args=(theirs, *args), name=name, daemon=True)
    try:
        with _no_interrupts():
            process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()  # so that the socket reads as closed once the process has ended
    return process, ours


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Let processes that are started inside block the terminal's signals: Ctrl-C is meant for the parent.

    Without it a signal would end a process before it has called ``follow_parent``.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {getattr(signal, name) for name in TERMINAL_SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent() -> None:
    """Let this process ignore the terminal's signals, and end whenever its parent ends."""
    for name in TERMINAL_SIGNALS:
        if hasattr(signal, name):  # not on Windows
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux":  # kills this process even while it is stopped and runs no thread
        with contextlib.suppress(AttributeError, OSError):  # another C library: the waiting thread must do
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if hasattr(os, "getppid") and os.getppid() != parent.pid:  # the parent ended before the call
        os._exit(PARENT_GONE)
    threading.Thread(target=_end_with, args=(parent.sentinel,), name="sharpwave-parent", daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(PARENT_GONE)
