"""Codec ``packed``: rows of numbers, each number in as few bits as its column needs.

Payload: a head, the numbers of a row (base, slope or table, bits), the rows' bits, and the tables; see
``src/core/packed.hpp``. Any row is read on its own, in the time of a few instructions a number.
"""

from __future__ import annotations

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.codecs.codec_protocol import Codec, Encoder, Packed, as_bytes
from sharpwave.errors import DamagedError
from sharpwave.native import core


class PackedNumbers(Codec):
    """Codec of columns whose numbers vary little: frame of reference, line, or table, with packed bits.

    ``auto`` takes it for rows below 32 bytes, and by no trial; see ``registry.candidates``. Reading a larger row takes
    some 2 ns a number, several times a copy.

    Rows are taken as integers of 1, 2, 4 or 8 bytes, whichever leaves the fewest bits; so floats come back bit by bit.
    """

    name, number = "packed", 5

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        """Pack the rows. Cost: 2 to 6 ns a number."""
        return core.PackedEncoder().encode(np.ascontiguousarray(rows), as_bytes(b""), line_bytes)

    def check(self, column: Packed) -> None:
        """Check the head, and that every table has the entries that rows refer to."""
        payload = as_bytes(column.payload)
        if column.dictionary or not core.check_packed(payload, column.count, column.size):
            raise DamagedError(
                f"packed column: {len(payload)} bytes do not hold {column.count} rows of {column.size} bytes"
            )

    verify = check  # any bits are rows

    def decode_row(self, column: Packed, row: int) -> Bytes:
        return self._decode(column, row, 1).reshape(-1)

    def decode(self, column: Packed) -> Bytes:
        self.check(column)
        return self._decode(column, 0, column.count)

    def encoder(self, size: int, line_bytes: int, max_rows: int) -> Encoder:
        """Return an encoder that keeps its working memory."""
        encoder = Encoder(self, line_bytes)
        encoder.core = core.PackedEncoder()
        return encoder

    def _decode(self, column: Packed, first: int, count: int) -> Bytes:
        rows = np.empty((count, column.size), np.uint8)
        core.decode_packed(as_bytes(column.payload), first, rows)
        return rows
