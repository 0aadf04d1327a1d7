"""Codecs ``delta`` and ``patches``: frames as patches over a background common to the column's frames.

Payload of delta: uint32 offsets [n + 2], then patches (``src/core/patches.hpp``): first patches that turn the reference
row, which is the dictionary, into the column's background, then patches that turn the background into each row.

Payload of patches: uint32 offsets [n + 3], then a table of recurring patches, then the same entries with codes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.codecs.codec_protocol import Codec, Competition, Encoder, Packed, as_bytes, read_offsets
from sharpwave.errors import DamagedError
from sharpwave.native import core


class _Painted(Codec):
    """Codec of patches over a background.

    Attributes:
        coded: whether a table of shapes and literals is before the patches.
    """

    coded: ClassVar[bool]

    def max_dictionary_bytes(self, size: int) -> int:
        """Return the size of a row: the dictionary is one row."""
        return size

    def train(self, rows: Bytes) -> bytes:
        """Return a reference row: at each byte, the value of most rows."""
        return core.majority(np.ascontiguousarray(rows))

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        """Encode the background and each row as patches. Without a dictionary the reference is zeros.

        Cost: 0.5 to 1.5 us for 7 KB (benchmarks/codec_sizes.py).
        """
        return self.encoder(rows.shape[1], line_bytes, len(rows)).encode(rows, dictionary)

    def check(self, column: Packed) -> None:
        """Check the offsets, and that patches stay within rows. Cost: 1 us a column, and 20 ns a row of a game."""
        self._check_reference(column)
        payload = as_bytes(column.payload)
        self._refuse(
            core.check_patches(payload, column.count, column.size, column.line_bytes, self.coded), column, payload
        )

    verify = check  # patches that stay within the row can be painted

    def decode_row(self, column: Packed, row: int) -> Bytes:
        """Paint the background, and the row over it."""
        return self._decode(column, row, 1).reshape(-1)

    def decode(self, column: Packed) -> Bytes:
        """Paint the background once, and the rows over it."""
        return self._decode(column, 0, column.count)

    def encoder(self, size: int, line_bytes: int, max_rows: int) -> Encoder:
        """Make an encoder that keeps its working memory."""
        return _PatchEncoder(self, size, line_bytes, max_rows)

    def _decode(self, column: Packed, first: int, count: int) -> Bytes:
        """Decode rows from ``first`` on.  Raises: DamagedError."""
        self._check_reference(column)
        payload, reference = as_bytes(column.payload), as_bytes(column.dictionary)
        rows = np.empty((count, column.size), np.uint8)
        damaged = core.decode_patches(payload, column.count, reference, column.line_bytes, self.coded, first, rows)
        self._refuse(damaged, column, payload)
        return rows

    def _check_reference(self, column: Packed) -> None:
        """Check the reference's size.  Raises: DamagedError."""
        nbytes = len(column.dictionary)
        if nbytes not in (0, column.size):
            raise DamagedError(f"{self.name} column: the reference has {nbytes} bytes, expected {column.size}")

    def _refuse(self, damaged: int, column: Packed, payload: Bytes) -> None:
        """Raise the core's finding, unless a column is sound.  Raises: DamagedError."""
        if damaged == core.SOUND:
            return
        offsets, _ = read_offsets(self.name, payload, column.count + 2 + self.coded)
        if damaged == core.DAMAGED_TABLE:
            raise DamagedError(f"{self.name} column: its table of {offsets[1]:,} bytes is none")
        raise DamagedError(f"{self.name} column, row {damaged - 1}: a patch reaches outside the row")


class Delta(_Painted):
    """Codec of patches over a background. ``auto`` takes ``patches`` instead, which is smaller."""

    name, number, coded = "delta", 2, False


class Patches(_Painted):
    """Codec of patches over a background, with recurring patches coded by a table.

    ``auto`` takes it if it leaves at most 35 % of a row: a patch has some two bytes and takes 5 ns to paint, so larger
    payloads slow batches down several times for little gain (``counts`` in benchmarks/codec_sizes.py). It decodes
    several times faster than zstd, so it may take three times the bytes.
    """

    name, number, coded = "patches", 4, True
    competition = Competition(max_share=0.35, preference=3.0)


class _PatchEncoder(Encoder):
    def __init__(self, codec: _Painted, size: int, line_bytes: int, max_rows: int) -> None:
        super().__init__(codec, line_bytes)
        self.core: core.RowEncoder = core.PatchEncoder(max_rows, size, codec.coded)
