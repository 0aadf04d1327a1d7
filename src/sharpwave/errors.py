"""Errors that callers may want to catch by name."""


class DamagedError(ValueError):
    """Stored bytes are not what their format says."""


class EmptyError(LookupError):
    """Nothing can be sampled yet."""


class StoreInUseError(OSError):
    """The store's folder is locked by another process."""


class NewerVersionError(RuntimeError):
    """A later release wrote this, in a format that this one cannot read. Nothing is damaged or was changed."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what}: written by a newer sharpwave; upgrade this one. Nothing was changed")


class UnknownCodecError(NewerVersionError):
    """Columns are packed with a codec that is not registered in this process. Nothing was changed."""

    def __init__(self, what: str) -> None:
        self.what = what
        RuntimeError.__init__(
            self,
            f"{what}; register the codec first (sharpwave.codecs.registry.register), or upgrade sharpwave if a later "
            "release wrote this. Nothing was changed",
        )


class LimiterTimeoutError(TimeoutError):
    """A rate limiter delayed an append or a sample for longer than its ``timeout``; nothing was written or sampled."""


def not_to_be_copied(what: object) -> TypeError:
    """Return the error for pickling or copying ``what``, whose locks, memory and files are this process's own."""
    return TypeError(
        f"{type(what).__name__}: cannot be pickled or copied, so it is no argument for a spawned process. There, open "
        "a checkpoint with sharpwave.Store.open, or write for this store with sharpwave.SegmentWriter; batches can be "
        "sent"
    )
