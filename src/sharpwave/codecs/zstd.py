"""Codec ``zstd``: one zstd frame a row, with a dictionary of strings common to the rows.

Payload: uint32 offsets [n + 1], then one frame a row. Compresses almost anything; decoding a row takes some 2 us,
however small, and 3 more for each KiB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import zstandard

from sharpwave.arrays import Bytes, Ints
from sharpwave.codecs.codec_protocol import Codec, Competition, Decoder, Encoder, Packed, as_bytes, read_offsets
from sharpwave.errors import DamagedError

LEVEL = 1
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(
    LEVEL, write_content_size=False, write_checksum=False, write_dict_id=False
)
MAX_DICTIONARY_BYTES = 16 * 1024
MIN_SAVED_BYTES = 512
"""Savings a row below which zstd is not taken. A row takes 2 us to decompress, however small, and about 3 more for each
KiB; copying a raw one takes a tenth of that (``counts`` in benchmarks/codec_sizes.py)."""


class Frames(Codec):
    """Codec whose payload is a zstd frame for each row."""

    decoder_bytes = 56 << 10
    slow = True

    def rows(self, column: Packed, wanted: range) -> Iterator[Bytes]:
        """Decode some rows with one decompressor.  Raises: DamagedError: the column is damaged, or a row is."""
        raise NotImplementedError

    def check(self, column: Packed) -> None:
        """Check the offsets. Frames that hold anything but a row are found when they are decoded."""
        read_offsets(self.name, column.payload, column.count + 1)

    def verify(self, column: Packed) -> None:
        """Decode every row."""
        self.check(column)
        for _ in self.rows(column, range(column.count)):
            pass

    def decode_row(self, column: Packed, row: int) -> Bytes:
        """Decode one row."""
        return next(self.rows(column, range(row, row + 1)))

    def decode(self, column: Packed) -> Bytes:
        """Decode all rows with one decompressor."""
        self.check(column)
        rows = np.empty((column.count, column.size), np.uint8)
        for i, row in enumerate(self.rows(column, range(column.count))):
            rows[i] = row
        return rows


class Zstd(Frames):
    """Codec that compresses rows one by one, at level 1."""

    name, number = "zstd", 1
    competition = Competition(max_share=0.7, min_saved_bytes=MIN_SAVED_BYTES)

    def max_dictionary_bytes(self, size: int) -> int:
        """Return 16 KiB."""
        return MAX_DICTIONARY_BYTES

    def train(self, rows: Bytes) -> bytes:
        """Return strings common to the rows; ``b""`` where rows are too few or too small to tell."""
        # zstd's trainer divides by zero or reads out of bounds on samples that are too few or too small.
        if len(rows) < 8 or rows.shape[1] < 16 or rows.nbytes < 4096:
            return b""
        size = min(MAX_DICTIONARY_BYTES, rows.nbytes // 8)
        # The trainer's own search for settings is slow, takes memory beyond ram=, and finds worse settings.
        settings = {"k": max(16, size // 4), "d": 8, "f": 16, "accel": 1}
        try:
            return zstandard.train_dictionary(size, [row.tobytes() for row in rows], level=LEVEL, **settings).as_bytes()
        except zstandard.ZstdError:  # no common strings
            return b""

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        """Compress every row. Cost: 3 to 5 us a row of 7 KB."""
        return _encode(rows, compressor(dictionary))

    def rows(self, column: Packed, wanted: range) -> Iterator[Bytes]:
        """Decompress some rows."""
        return map(as_bytes, unpack(self.name, column.payload, column.count, column.size, column.dictionary, wanted))

    def memorized_bytes(self, payload: bytes, count: int) -> int:
        """Return the excess of the odd rows' frames over the even rows', on which the dictionary was trained."""
        sizes = np.diff(np.frombuffer(payload, np.uint32, count + 1).astype(np.int64))
        return max(0, int(sizes[1::2].sum()) - int(sizes[::2].sum()))

    def encoder(self, size: int, line_bytes: int, max_rows: int) -> Encoder:
        """Return an encoder that keeps a compressor for each dictionary."""
        return _ZstdEncoder(self, line_bytes)

    def decoder(self, dictionary: bytes, size: int, line_bytes: int) -> Decoder:
        """Return a decoder that keeps its decompressor."""
        return _ZstdDecoder(self, dictionary, size, line_bytes)


class _ZstdEncoder(Encoder):
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


class _ZstdDecoder(Decoder):
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


# Rows as zstd frames of one payload, of this codec and of ``predict``.


def compressor(dictionary: bytes = b"") -> zstandard.ZstdCompressor:
    """Return a compressor of rows without size, checksum or dictionary number, which the segment records already."""
    shared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdCompressor(dict_data=shared, compression_params=_PARAMETERS)


def decompressor(dictionary: bytes = b"") -> zstandard.ZstdDecompressor:
    """Return a decompressor.  Raises: DamagedError: not a dictionary of zstd."""
    try:
        shared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        return zstandard.ZstdDecompressor(dict_data=shared)
    except zstandard.ZstdError as error:
        raise DamagedError(f"dictionary of {len(dictionary):,} bytes, expected one of zstd: {error}") from error


def pack(rows: Bytes, by: zstandard.ZstdCompressor) -> bytes:
    """Compress ``rows`` uint8 [n, size] one by one into a payload, in one call without the interpreter's lock."""
    offsets = np.zeros(len(rows) + 1, np.uint32)
    if not rows.size:
        frames = [by.compress(b"")] * len(rows)
    else:
        ranges = np.empty((len(rows), 2), np.uint64)
        ranges[:, 0], ranges[:, 1] = np.arange(len(rows)) * rows.shape[1], rows.shape[1]
        source = zstandard.BufferWithSegments(np.ascontiguousarray(rows).data, ranges.tobytes())
        packed = by.multi_compress_to_buffer(source)
        frames = [packed[i].tobytes() for i in range(len(rows))]
    np.cumsum([len(frame) for frame in frames], out=offsets[1:])
    return offsets.tobytes() + b"".join(frames)


def unpack(
    name: str, payload: bytes | memoryview | Bytes, count: int, size: int, dictionary: bytes, wanted: range
) -> Iterator[bytes]:
    """Decompress and yield the ``wanted`` of a payload's ``count`` rows.

    Raises: DamagedError: they are not of ``size`` bytes; begins with the codec's ``name``.
    """
    offsets, packed = read_offsets(name, payload, count + 1)
    by = None
    for i in wanted:
        try:
            by = by or decompressor(dictionary)
            frame = packed[offsets[i] : offsets[i + 1]].tobytes()
            if zstandard.frame_content_size(frame) not in (-1, size):  # the library would trust it and allocate so much
                raise DamagedError(f"{name} column, row {i}: a frame of another size, expected {size} bytes")
            row = by.decompress(frame, max_output_size=size)
        except (zstandard.ZstdError, MemoryError) as error:
            raise DamagedError(f"{name} column, row {i}: {error}") from error
        if len(row) != size:
            raise DamagedError(f"{name} column, row {i}: {len(row)} bytes, expected {size}")
        yield row


def unpack_many(
    name: str, by: zstandard.ZstdDecompressor, memory: Bytes, begins: Ints, counts: Ints, rows: Ints, size: int
) -> Any:
    """Decompress ``rows`` [n, W] of the payloads that begin at ``begins`` [n] of ``memory``, in one call.

    Returns a sequence of n * W buffers.  Raises: DamagedError: a frame does not hold ``size`` bytes.
    """
    words = memory.view(np.uint32)
    entries = (begins >> 2)[:, None] + rows
    packed = begins + 4 * (counts + 1)
    ranges = np.empty((entries.size, 2), np.uint64)
    ranges[:, 0] = (packed[:, None] + words[entries]).reshape(-1)
    ranges[:, 1] = (words[entries + 1] - words[entries]).reshape(-1)
    sizes = np.full(len(ranges), size, np.uint64)
    source = zstandard.BufferWithSegments(memory.data, ranges.tobytes())
    try:
        return by.multi_decompress_to_buffer(source, decompressed_sizes=sizes.tobytes(), threads=-1)
    except zstandard.ZstdError as error:
        raise DamagedError(f"{name} column: frames do not hold rows: {error}") from error
