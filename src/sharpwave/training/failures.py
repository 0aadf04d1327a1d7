"""Errors and signals that end a run with a checkpoint: a callback that raised, a loss that is not finite, Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

RAISED = (Exception, SystemExit)
"""Errors of a callback that end the run with a checkpoint. KeyboardInterrupt ends it at once."""


class CallbackError(RuntimeError):
    """Error raised once a run has ended with a checkpoint because a callback raised; it names callback and hook."""

    @classmethod
    def of(cls, callback: object, hook: str, error: BaseException) -> CallbackError:
        """Make the error for ``error``, raised by a hook of ``callback``."""
        name = callback.__qualname__ if isinstance(callback, type) else type(callback).__qualname__
        made = cls(f"callback {name} failed in {hook}: {type(error).__name__}: {error}")
        made.__cause__ = error
        return made


class DivergedError(ValueError):
    """Error raised when a loss or a weight is not finite; the run ends without saving it.

    Args:
        what: what is not finite.
        step: environment steps so far.
    """

    def __init__(self, what: str, step: int) -> None:
        super().__init__(
            f"{what} at step {step:,}: training has diverged. Look for NaN or huge numbers in observations and "
            "rewards, or lower --learning-rate; checkpoints from before are kept"
        )


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
