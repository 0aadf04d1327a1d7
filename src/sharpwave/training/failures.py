"""Error of a callback that raised."""

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
