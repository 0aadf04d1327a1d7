"""Rows as zstd frames of one payload: uint32 offsets [n + 1], then a frame for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sharpwave.codecs.offsets import read_offsets
from sharpwave.errors import DamagedError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

LEVEL = 1


def compressor(dictionary: bytes = b"") -> zstandard.ZstdCompressor:
    """Return a compressor of rows without size, checksum or dictionary number, which the segment records already."""
    shared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )
    return zstandard.ZstdCompressor(dict_data=shared, compression_params=parameters)


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
