"""Errors that end a run: a callback that raised, a loss that is not finite."""

from __future__ import annotations

RAISED = (Exception, SystemExit)
"""What a callback may raise for the run to end with a checkpoint. KeyboardInterrupt ends it at once."""


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
