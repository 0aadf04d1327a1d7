"""Errors that callers may want to catch by name."""

from .codecs import DamagedError

__all__ = ["DamagedError", "EmptyError", "StoreInUseError"]


class EmptyError(LookupError):
    """Nothing can be sampled yet."""


class StoreInUseError(OSError):
    """Another process has the store's folder."""
