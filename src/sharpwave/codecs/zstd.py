"""Codec ``zstd``: one zstd frame a row, with a dictionary of strings common to the rows.

Payload: uint32 offsets [n + 1], then one frame a row. Compresses almost anything; decoding a row takes some 2 us,
however small, and 3 more for each KiB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import zstandard

from sharpwave.codecs.offsets import read_offsets
from sharpwave.codecs.protocol import Codec, Competition, Decoder, Encoder, Packed, as_bytes
from sharpwave.codecs.zstd_frames import LEVEL, compressor, decompressor, pack, unpack, unpack_many

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

MAX_DICTIONARY_BYTES = 16 * 1024
MIN_SAVED_BYTES = 512
"""Savings a row below which zstd is not taken. A row takes 2 us to decompress, however small, and about 3 more for each
KiB; copying a raw one takes a tenth of that (``counts`` in benchmarks/codec_sizes.py)."""


class Zstd(Codec):
    """Codec that compresses rows one by one, at level 1."""

    name, number = "zstd", 1
    competition = Competition(max_share=0.7, min_saved_bytes=MIN_SAVED_BYTES)
    decoder_bytes = 56 << 10
    slow = True

    def max_dictionary_bytes(self, size: int) -> int:
        """Return 16 KiB."""
        return MAX_DICTIONARY_BYTES

    def train(self, rows: Bytes) -> bytes:
        """Return strings common to the rows; ``b""`` where rows are too few or too small to tell."""
        # zstd's trainer divides by zero or reads out of bounds on samples that are too few or too small.
        if len(rows) < 8 or rows.shape[1] < 16 or rows.nbytes < 4096:
            return b""
        size = min(MAX_DICTIONARY_BYTES, rows.nbytes // 8)
        # The trainer's own search for settings takes long, and memory beyond ram=, and finds worse ones.
        settings = {"k": max(16, size // 4), "d": 8, "f": 16, "accel": 1}
        try:
            return zstandard.train_dictionary(size, [row.tobytes() for row in rows], level=LEVEL, **settings).as_bytes()
        except zstandard.ZstdError:  # no common strings
            return b""

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        """Compress every row. Cost: 3 to 5 us a row of 7 KB."""
        return _encode(rows, compressor(dictionary))

    def check(self, column: Packed) -> None:
        """Check the offsets. Frames that hold anything but a row are found when they are decoded."""
        read_offsets(self.name, column.payload, column.count + 1)

    def verify(self, column: Packed) -> None:
        """Decompress every row."""
        for _ in _rows(column, range(column.count)):
            pass

    def decode_row(self, column: Packed, row: int) -> bytes:
        """Decompress one row."""
        return next(_rows(column, range(row, row + 1)))

    def decode(self, column: Packed) -> Bytes:
        """Decompress all rows with one decompressor."""
        self.check(column)
        rows = np.empty((column.count, column.size), np.uint8)
        for i, row in enumerate(_rows(column, range(column.count))):
            rows[i] = as_bytes(row)
        return rows

    def memorized_bytes(self, payload: bytes, count: int) -> int:
        """Return by how much the odd rows' frames exceed the even ones', which the dictionary was trained on."""
        sizes = np.diff(np.frombuffer(payload, np.uint32, count + 1).astype(np.int64))
        return max(0, int(sizes[1::2].sum()) - int(sizes[::2].sum()))

    def encoder(self, size: int, line_bytes: int, max_rows: int) -> Encoder:
        """Return an encoder that keeps a compressor for each dictionary."""
        return _Encoder(self, line_bytes)

    def decoder(self, dictionary: bytes, size: int, line_bytes: int) -> Decoder:
        """Return a decoder that keeps its decompressor."""
        return _Decoder(self, dictionary, size, line_bytes)


class _Encoder(Encoder):
    def __init__(self, codec: Codec, line_bytes: int) -> None:
        super().__init__(codec, line_bytes)
        self._compressors: dict[bytes, zstandard.ZstdCompressor] = {}

    @property
    def nbytes(self) -> int:
        return sum(one.memory_size() for one in self._compressors.values())

    def encode(self, rows: Bytes, dictionary: bytes) -> bytes | None:
        if dictionary not in self._compressors:
            self._compressors[dictionary] = compressor(dictionary)
        return _encode(rows, self._compressors[dictionary])

    def keep_only(self, dictionaries: Collection[bytes]) -> None:
        for dictionary in self._compressors.keys() - set(dictionaries):
            del self._compressors[dictionary]


class _Decoder(Decoder):
    def __init__(self, codec: Codec, dictionary: bytes, size: int, line_bytes: int) -> None:
        super().__init__(codec, dictionary, size, line_bytes)
        self._decompressor = decompressor(dictionary)

    def decode_rows(
        self, memory: Bytes, begins: Ints, ends: Ints, counts: Ints, rows: Ints, out: Bytes, items: Ints
    ) -> None:
        """Decompress rows in one call. Cost: 2.5 us a row of 7 KB, and 1 us of Python."""
        unpacked = unpack_many(Zstd.name, self._decompressor, memory, begins, counts, rows, self._size)
        length = rows.shape[1]
        targets = (items[:, None] * length + np.arange(length)).reshape(-1).tolist()
        flat, frombuffer, uint8 = out.reshape(-1, self._size), np.frombuffer, np.uint8
        for k, target in enumerate(targets):
            flat[target] = frombuffer(unpacked[k], uint8)


def _encode(rows: Bytes, by: zstandard.ZstdCompressor) -> bytes | None:
    payload = pack(rows, by)
    return payload if len(payload) < rows.nbytes else None


def _rows(column: Packed, wanted: range) -> Iterator[bytes]:
    return unpack(Zstd.name, column.payload, column.count, column.size, column.dictionary, wanted)
