"""A process that serves strangers: its log, of few lines of a kind, none of which waits for its reader; and its end."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TextIO

from sharpwave.escaping import escaped

LOG = logging.getLogger("sharpwave.serve")
BURST = 5
"""Lines of one kind that are written at once."""
EVERY_S = 10.0
"""Seconds between further lines of one kind, after the first ones."""
MAX_CHARACTERS = 300
"""Limit of an error's text in a line: it may be a peer's."""
MAX_UNREAD_CHARACTERS = 1 << 20
"""Limit of text that waits until standard error is read; more is dropped and counted."""
DRAIN_S = 1.0
"""Seconds that an ending process waits for the reader."""
LOOK_S = 1.0
"""Seconds between checks whether a process should end."""


def failure(error: BaseException) -> str:
    """Return one line: an error's type, its text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    where = f" ({os.path.basename(frames[0].filename)}:{frames[0].lineno})" if frames else ""
    text = escaped(str(error))
    cut = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
    return f"{type(error).__name__}: {cut}{where}"


class FewOfAKind(logging.Filter):
    """Filter that bounds the rate of lines of one kind, which peers may cause at will, and tells how many it dropped.

    Lines are of one kind if their format is the same, so there are as many kinds as calls that log.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, float, int]] = {}  # lines left, time of that count, lines dropped since
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line; a written line reports how many of its kind were dropped."""
        kind, now = str(record.msg), time.monotonic()
        with self._lock:
            left, then, dropped = self._kinds.get(kind, (float(BURST), now, 0))
            left = min(BURST, left + (now - then) / EVERY_S)
            written = left >= 1
            self._kinds[kind] = (left - 1, now, 0) if written else (left, now, dropped + 1)
        if written and dropped and isinstance(record.args, tuple):
            record.msg, record.args = f"{kind} (%d more such lines were suppressed)", (*record.args, dropped)
        return written

    def tell(self) -> None:
        """Write how many lines were dropped since the last one of their kind that was written."""
        with self._lock:
            dropped = sum(count for _, _, count in self._kinds.values())
            self._kinds.clear()
        if dropped:
            LOG.warning("%d more lines were suppressed", dropped)


FEW = FewOfAKind()
LOG.addFilter(FEW)


class Unhurried(io.TextIOBase):
    """Text stream whose ``write`` never waits: a thread writes to a descriptor, perhaps a pipe that nobody reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._queue: SimpleQueue[str] = SimpleQueue()  # a signal handler may put, too
        self._unread = self._dropped = 0
        threading.Thread(target=self._write_all, name="sharpwave-log", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the text."""
        return "utf-8"

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether a terminal is written to."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Have a text written, or count it where too much is not read yet."""
        if self._unread + len(text) > MAX_UNREAD_CHARACTERS:
            self._dropped += 1
        else:
            self._unread += len(text)
            self._queue.put(text)
        return len(text)

    def _write_all(self) -> None:
        while True:
            text = self._queue.get()
            with contextlib.suppress(OSError):  # nobody will read it
                self._write(text)
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    self._write(f"sharpwave: {dropped} more lines were not read in time, and dropped\n")
            self._unread -= len(text)

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode(errors="backslashreplace"))
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def drain(self, seconds: float = DRAIN_S) -> None:
        """Wait until all is written, but no longer than that."""
        end = time.monotonic() + seconds
        while self._unread and time.monotonic() < end:
            time.sleep(0.01)


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """Let no thread wait for the reader of standard error, and let a failing thread log one line."""
    before: TextIO = sys.stderr
    hook = threading.excepthook
    try:
        stream = Unhurried(before.fileno())
    except (AttributeError, OSError, ValueError):  # it is closed, or no file
        yield
        return
    sys.stderr, threading.excepthook = stream, _thread_failed
    try:
        yield
    finally:
        FEW.tell()
        sys.stderr, threading.excepthook = before, hook
        stream.drain()


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = "a thread" if args.thread is None else args.thread.name
        LOG.error("%s failed: %s", name, failure(args.exc_value))


class Ending:
    """Request to end, which the main thread waits for.

    A handler may run while the main thread holds a lock of an ``Event``, and so must not ``set`` it; to put something
    into a ``SimpleQueue`` is safe then. And the system may give the signal to another thread, which does not wake the
    main thread, where handlers run, from waiting for a lock: so it looks up every second.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[None] = SimpleQueue()

    def ask(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Ask for the end. May be the handler of a signal."""
        self._asked.put(None)

    def wait(self) -> None:
        """Wait until somebody has asked."""
        while True:
            try:
                return self._asked.get(timeout=LOOK_S)
            except Empty:
                continue


def tell_on_request() -> None:
    """Write every thread's stack to standard error at each SIGUSR1, where there is such a signal."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
