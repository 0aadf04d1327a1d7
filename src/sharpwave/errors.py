"""Errors that callers may want to catch by name."""

from __future__ import annotations

import sys
from typing import Any


class DamagedError(ValueError):
    """Error raised where stored bytes do not follow their format."""


class DuplicateError(DamagedError):
    """Error raised for a segment whose steps the lane holds already. Nothing was changed."""


class EmptyError(LookupError):
    """Error raised where nothing can be sampled yet."""


class StoreInUseError(OSError):
    """Error raised where another process has locked the store's folder."""


class NewerVersionError(RuntimeError):
    """Error raised for data of a later release's format. Nothing is damaged or was changed."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what}: written by a newer sharpwave; upgrade this one. Nothing was changed")


class UnknownCodecError(NewerVersionError):
    """Error raised for columns of a codec that is not registered in this process. Nothing was changed."""

    def __init__(self, what: str) -> None:
        self.what = what
        RuntimeError.__init__(
            self,
            f"{what}; install the package that brings the codec, or register it first "
            "(sharpwave.codecs.codec_registry.register), or upgrade sharpwave if a later release wrote this. Nothing "
            "was changed",
        )


class NotRegisteredError(ValueError):
    """Error raised for the name of an algorithm or an image model that is not registered in this process."""


class LimiterTimeoutError(TimeoutError):
    """Error raised where a rate limiter delayed a call beyond its ``timeout``. Nothing was written or sampled."""


class ShardFailedError(RuntimeError):
    """Error raised where a shard's process does not begin."""


NO_STATE = (LookupError, TypeError, ValueError, OverflowError, AttributeError, RecursionError)
"""Errors of reading a state, from a file or a message, that is none."""

OF_A_STORE = "open a checkpoint with sharpwave.Store.open, or write for this store with sharpwave.SegmentWriter"


def not_to_be_copied(what: object, instead: str = OF_A_STORE) -> TypeError:
    """Make the error for pickling or copying ``what``, whose locks, memory and files belong to this process.

    Args:
        instead: remedy in another process.
    """
    return TypeError(
        f"{type(what).__name__}: cannot be pickled or copied, so it cannot be passed to a spawned process. There, "
        f"{instead}; batches can be sent"
    )


def level_of_caller() -> int:
    """Return the ``stacklevel`` of a warning of the calling function, for the first caller outside this package."""
    frame: Any = sys._getframe(1)
    depth = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("sharpwave."):
        frame, depth = frame.f_back, depth + 1
    return depth
