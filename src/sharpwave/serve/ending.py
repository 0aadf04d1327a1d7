"""Requests to end that the main thread waits for: by a signal, or by another thread."""

from __future__ import annotations

import faulthandler
import signal
from queue import Empty, SimpleQueue
from types import FrameType

LOOK_S = 1.0


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
    """Write to standard error what every thread is doing whenever SIGUSR1 comes, where there is such a signal."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
