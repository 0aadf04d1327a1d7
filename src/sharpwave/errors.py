"""Errors that callers may want to catch by name."""

from .codecs import DamagedError

__all__ = ["DamagedError", "EmptyError", "LimiterTimeoutError", "StoreInUseError"]


class EmptyError(LookupError):
    """Nothing can be sampled yet."""


class StoreInUseError(OSError):
    """Another process has the store's folder."""


class LimiterTimeoutError(TimeoutError):
    """A limiter held an append or a sample back for longer than its ``timeout``; nothing was written or given out."""
