"""Signals that end a command after what it is doing, with everything saved, instead of ending the process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def caught_signals() -> Iterator[Callable[[], str | None]]:
    """Catch SIGINT, SIGTERM and SIGHUP instead of ending the process; a second SIGINT raises KeyboardInterrupt.

    A SIGHUP that is already ignored, as under nohup, stays ignored.

    Yields:
        a function that returns which signal interrupted the run; None: none did.
    """
    came: list[str] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(signal.Signals(number).name)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    caught = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        caught.append(signal.SIGHUP)
    before: dict[int, Any] = {number: signal.signal(number, note) for number in caught}
    try:
        yield lambda: f"interrupted by {came[0]}" if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_by_signal(reason: str | None) -> None:
    """Exit as shells expect of an interrupted command, 130 after SIGINT, if ``reason`` is from ``caught_signals``."""
    interrupted, _, name = (reason or "").partition("interrupted by ")
    if not interrupted and name in signal.Signals.__members__:
        sys.exit(128 + signal.Signals[name])
