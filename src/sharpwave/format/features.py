"""Feature flags: requirements for readers beyond the format's version, and features that readers may ignore.

A segment's header has a word of 64 bits: a reader refuses a segment with an unknown bit among the lower 32, and ignores
the upper 32. ``store.json`` names the required features under ``requires``, so that the refusal can name them.
"""

from __future__ import annotations

from collections.abc import Iterable

from sharpwave.errors import NewerVersionError
from sharpwave.spec import Spec

REQUIRED = (1 << 32) - 1
"""Bits of features without which a segment would be misread."""
SPARSE_FIELDS = 1 << 0
"""Some columns have fewer rows than steps."""
NESTED = 1 << 1
"""Names of columns are paths through nested dicts and tuples."""
NAMES = {SPARSE_FIELDS: "sparse fields", NESTED: "nested observations"}
"""Names in ``store.json``."""


def features_of(spec: Spec) -> int:
    """Return the feature word of every segment of a store with this schema."""
    return (SPARSE_FIELDS if spec.sparse_names else 0) | (NESTED if spec.nested else 0)


def required_names(spec: Spec) -> list[str]:
    """Return the names of the features that a reader of such a store must support."""
    word = features_of(spec)
    return [name for bit, name in NAMES.items() if bit & REQUIRED and word & bit]


def check_required(word: int, what: str) -> None:
    """Refuse a word with a required feature unknown to this release.  Raises: NewerVersionError."""
    unknown = word & REQUIRED & ~sum(NAMES)
    if unknown:
        bits = ", ".join(str(bit) for bit in range(32) if unknown >> bit & 1)
        raise NewerVersionError(
            f"{what}: requires the feature of bit {bits}, which this release does not know; read it with a newer one"
        )


def check_names(names: Iterable[str], what: str) -> None:
    """Refuse a name unknown to this release.  Raises: NewerVersionError."""
    unknown = [name for name in names if name not in NAMES.values()]
    if unknown:
        raise NewerVersionError(
            f"{what}: requires {unknown[0]!r}, which this release does not know; read it with a newer one"
        )
