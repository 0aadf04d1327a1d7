"""Errors that callers may want to catch by name."""


class DamagedError(ValueError):
    """Stored bytes are not what their format says."""


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


def not_to_be_copied(what: object) -> TypeError:
    """What pickling or copying ``what`` raises, whose locks, memory and files are this process's own."""
    return TypeError(
        f"{type(what).__name__}: cannot be pickled or copied, so it is no argument for a spawned process. There, open "
        "a checkpoint with sharpwave.Store.open, or write for this store with sharpwave.SegmentWriter; batches can be "
        "sent"
    )
