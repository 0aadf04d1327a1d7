"""Error of a callback that raised."""

from __future__ import annotations


class CallbackError(RuntimeError):
    """Error raised once a run has ended with a checkpoint because a callback raised; it names callback and hook."""

    @classmethod
    def of(cls, callback: object, hook: str, error: Exception) -> CallbackError:
        """Make the error for ``error``, raised by a hook of ``callback``."""
        made = cls(f"callback {type(callback).__qualname__} failed in {hook}: {type(error).__name__}: {error}")
        made.__cause__ = error
        return made
