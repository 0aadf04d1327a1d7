"""Offset table of a payload: where each entry begins in the bytes after the table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.errors import DamagedError

Bytes = npt.NDArray[np.uint8]


def read_offsets(name: str, payload: bytes | memoryview | Bytes, entries: int) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Return a table of ``entries`` little-endian uint32 as int64, and the bytes after it, to which its offsets refer.

    Raises:
        DamagedError: the offsets do not rise from 0 to the payload's end; begins with the codec's ``name``.
    """
    data = np.frombuffer(payload, np.uint8)
    if data.size < 4 * entries:
        raise DamagedError(f"{name} column: {data.size} bytes cannot hold {entries} offsets")
    offsets = data[: 4 * entries].view("<u4").astype(np.int64)
    packed = data[4 * entries :]
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != packed.size:
        raise DamagedError(f"{name} column: offsets do not rise from 0 to the payload's {packed.size} bytes")
    return offsets, packed
