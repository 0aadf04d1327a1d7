"""Errors that callers may want to catch by name."""

from .codecs import DamagedError

__all__ = ["DamagedError", "EmptyError", "LimiterTimeoutError"]


class EmptyError(LookupError):
    """Nothing can be sampled yet."""


class LimiterTimeoutError(TimeoutError):
    """A limiter held an append or a sample back for longer than its ``timeout``; nothing was written or given out."""
