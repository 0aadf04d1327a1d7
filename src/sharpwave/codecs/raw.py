"""Codec ``raw``: rows as they are, for open segments and for columns that do not compress.

The only codec that kernels know by its number: they copy its rows themselves.
"""

from __future__ import annotations

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.codecs.codec_protocol import Codec, Packed
from sharpwave.errors import DamagedError

RAW = 0


class Raw(Codec):
    """Codec that concatenates rows."""

    name, number = "raw", RAW

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes:
        return rows.tobytes()

    def check(self, column: Packed) -> None:
        nbytes = len(column.payload)
        if nbytes != column.count * column.size:
            raise DamagedError(f"raw column: {nbytes} bytes, expected {column.count} rows of {column.size}")

    verify = check  # any bytes are rows

    def decode_row(self, column: Packed, row: int) -> Bytes:
        return np.frombuffer(column.payload, np.uint8, column.size, row * column.size)

    def decode(self, column: Packed) -> Bytes:
        self.check(column)
        return np.frombuffer(column.payload, np.uint8).reshape(column.count, column.size).copy()
