"""Codec ``predict``: images as differences from predictions by their surroundings, or a reference row, in zstd frames.

Payload: uint32 offsets [n + 1], then a zstd frame for each row, which holds a filtered row (``src/core/predict.hpp``).
For camera images, in which no two frames have equal bytes: 40 to 60 % of zstd's bytes on photographs and on noise.
Decoding takes 10 to 40 times as long as copying.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sharpwave.arrays import Bytes, Ints
from sharpwave.codecs.codec_protocol import Codec, Competition, Decoder, Packed, as_bytes
from sharpwave.codecs.zstd import Frames, compressor, decompressor, pack, unpack, unpack_many
from sharpwave.errors import DamagedError
from sharpwave.native import core

MIN_SAVED_BYTES = 512
"""The same as zstd's, since the frames are zstd's."""
MAX_TRAINED_ROWS = 33
"""Rows of which the reference is the median: more take longer, and change little."""


class Predict(Frames):
    """Codec of filtered rows, compressed one by one."""

    name, number = "predict", 3
    competition = Competition(
        max_share=0.7, min_saved_bytes=MIN_SAVED_BYTES, preference=0.9, tried_above=0.15, images=True
    )

    def max_dictionary_bytes(self, size: int) -> int:
        """Return the size of a row: the dictionary is one row."""
        return size

    def train(self, rows: Bytes) -> bytes:
        """Return a reference row: at each byte the median."""
        if len(rows) < 3:
            return b""
        some = np.sort(rows[:: -(-len(rows) // MAX_TRAINED_ROWS)], axis=0)
        median: bytes = some[len(some) // 2].tobytes()
        return median

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        """Filter and compress every row.  Cost: some 8 us a KiB."""
        count, size = rows.shape
        line = _line(size, line_bytes)
        reference = _reference(dictionary, size)
        filtered = np.empty((count, _filtered_bytes(size, line)), np.uint8)
        core.filter_rows(np.ascontiguousarray(rows), reference, line, 0, filtered)
        payload = pack(filtered, compressor())
        return payload if len(payload) < rows.nbytes else None

    def check(self, column: Packed) -> None:
        """Check the offsets and the reference."""
        super().check(column)
        _reference(column.dictionary, column.size)

    def rows(self, column: Packed, wanted: range) -> Iterator[Bytes]:
        """Decompress and restore some rows, each in the memory of the one before."""
        line, out = _line(column.size, column.line_bytes), np.empty(column.size, np.uint8)
        reference, nbytes = _reference(column.dictionary, column.size), _filtered_bytes(column.size, line)
        for i, row in zip(wanted, unpack(self.name, column.payload, column.count, nbytes, b"", wanted), strict=True):
            if not core.restore_row(as_bytes(row), reference, line, out):
                raise DamagedError(f"predict column, row {i}: no filtered row")
            yield out

    def decoder(self, dictionary: bytes, size: int, line_bytes: int) -> Decoder:
        """Return a decoder that keeps its decompressor."""
        return _PredictDecoder(self, dictionary, size, line_bytes)


class _PredictDecoder(Decoder):
    def __init__(self, codec: Codec, dictionary: bytes, size: int, line_bytes: int) -> None:
        super().__init__(codec, dictionary, size, line_bytes)
        self._line = _line(size, line_bytes)
        self._reference = _reference(dictionary, size)
        self._decompressor = decompressor()

    def decode_rows(
        self, memory: Bytes, begins: Ints, ends: Ints, counts: Ints, rows: Ints, out: Bytes, items: Ints
    ) -> None:
        """Decompress rows in one call, and restore them.  Cost: some 1 us a KiB, and 4 where lines have much detail."""
        nbytes = _filtered_bytes(self._size, self._line)
        unpacked = unpack_many(Predict.name, self._decompressor, memory, begins, counts, rows, nbytes)
        length = rows.shape[1]
        targets = (items[:, None] * length + np.arange(length)).reshape(-1).tolist()
        flat = out.reshape(-1, self._size)
        for k, target in enumerate(targets):
            row = np.frombuffer(unpacked[k], np.uint8)
            if not core.restore_row(row, self._reference, self._line, flat[target]):
                raise DamagedError(f"predict column, row {rows.reshape(-1)[k]}: no filtered row")


def _line(size: int, line_bytes: int) -> int:
    """Return the bytes of a line: the whole row if no pixel is below another."""
    return line_bytes if line_bytes and size % line_bytes == 0 else size


def _filtered_bytes(size: int, line: int) -> int:
    return 1 + size // line + size


def _reference(dictionary: bytes, size: int) -> Bytes:
    """Return the reference row.  Raises: DamagedError: a dictionary of another size."""
    if len(dictionary) not in (0, size):
        raise DamagedError(f"predict column: the reference has {len(dictionary)} bytes, expected {size}")
    return np.frombuffer(dictionary, np.uint8) if dictionary else np.zeros(size, np.uint8)
