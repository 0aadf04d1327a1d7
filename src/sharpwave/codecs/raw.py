"""Codec ``raw``: rows as they are, for open segments and for columns that do not compress.

The only codec that kernels know by its number: they copy its rows themselves.
"""

from __future__ import annotations

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.codecs.protocol import Codec, Packed
from sharpwave.errors import DamagedError

RAW = 0


class Raw(Codec):
    """Codec that concatenates rows."""

    name, number = "raw", RAW

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes:
        """Concatenate the rows' bytes."""
        return rows.tobytes()

    def check(self, column: Packed) -> None:
        """Check the payload's length."""
        nbytes = len(column.payload)
        if nbytes != column.count * column.size:
            raise DamagedError(f"raw column: {nbytes} bytes, expected {column.count} rows of {column.size}")

    def verify(self, column: Packed) -> None:
        """Check the payload's length: any bytes are rows."""
        self.check(column)

    def decode_row(self, column: Packed, row: int) -> Bytes:
        """Return a view of the row."""
        return np.frombuffer(column.payload, np.uint8, column.size, row * column.size)

    def decode(self, column: Packed) -> Bytes:
        """Copy all rows."""
        self.check(column)
        return np.frombuffer(column.payload, np.uint8).reshape(column.count, column.size).copy()
