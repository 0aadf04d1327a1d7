"""Errors that callers may want to catch by name."""

from .codecs import DamagedError

__all__ = ["DamagedError", "EmptyError"]


class EmptyError(LookupError):
    """Nothing can be sampled yet."""
