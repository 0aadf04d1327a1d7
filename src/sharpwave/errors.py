"""Errors that callers may want to catch by name."""

from .codecs import DamagedError

__all__ = ["DamagedError", "EmptyError", "LimiterTimeoutError", "NewerVersionError", "StoreInUseError"]


class EmptyError(LookupError):
    """Nothing can be sampled yet."""


class StoreInUseError(OSError):
    """Another process has the store's folder."""


class NewerVersionError(RuntimeError):
    """A later release wrote this, in a format that this one cannot read. It is no damage, and nothing was changed."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what}: written by a newer sharpwave; upgrade this one. Nothing was changed")


class LimiterTimeoutError(TimeoutError):
    """A limiter held an append or a sample back for longer than its ``timeout``; nothing was written or given out."""
