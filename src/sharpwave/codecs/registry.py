"""What packs a column: rows of bytes in, one payload out, every row decodable on its own.

A codec is a pair of pure functions over ``rows`` uint8 [n, size] and a dictionary, bytes that many payloads share:

===== ============================== ============================================================
codec dictionary                     payload
===== ============================== ============================================================
raw   none                           the rows
zstd  up to 16 KiB of common strings uint32 offsets [n + 1], then one zstd frame a row
delta one reference row              uint32 offsets [n + 2], then patches: the column's background
                                     against the reference, and each row against the background
===== ============================== ============================================================

Offsets are little-endian and count from the end of the offset table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sharpwave.codecs import delta_kernels as delta
from sharpwave.errors import DamagedError

Bytes = npt.NDArray[np.uint8]

RAW, ZSTD, DELTA = 0, 1, 2
CODECS = {"raw": RAW, "zstd": ZSTD, "delta": DELTA}
NAMES = {number: name for name, number in CODECS.items()}

ZSTD_LEVEL = 1
ZSTD_DICTIONARY_BYTES = 16 * 1024


def codec_choice(name: Any) -> str:
    """``name`` if it names a codec or "auto".  Raises: ValueError."""
    if name not in ("auto", *CODECS):
        raise ValueError(f"codec: got {name!r}, expected one of 'auto', 'delta', 'zstd', 'raw'")
    return str(name)


def train(codec: int, rows: Bytes) -> bytes:
    """A dictionary for rows that look like ``rows``; ``b""`` where the codec takes none or the rows are too few."""
    if codec == DELTA:
        return delta.majority(rows).tobytes()
    # zstd's trainer divides by zero or reads out of bounds on samples that are too few or too small.
    if codec == ZSTD and len(rows) >= 8 and rows.shape[1] >= 16 and rows.nbytes >= 4096:
        try:
            samples = [row.tobytes() for row in rows]
            size = min(ZSTD_DICTIONARY_BYTES, rows.nbytes // 8)
            # The trainer's own search for settings takes long, and memory beyond ram=, and finds worse ones.
            settings = {"k": max(16, size // 4), "d": 8, "f": 16, "accel": 1}
            return zstandard.train_dictionary(size, samples, level=ZSTD_LEVEL, **settings).as_bytes()
        except zstandard.ZstdError:  # nothing common was found
            return b""
    return b""


def zstd_compressor(dictionary: bytes) -> zstandard.ZstdCompressor:
    """A compressor of rows: no size, checksum or dictionary number, which the segment's header has already."""
    shared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    parameters = zstandard.ZstdCompressionParameters.from_level(
        ZSTD_LEVEL,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )
    return zstandard.ZstdCompressor(dict_data=shared, compression_params=parameters)


def zstd_decompressor(dictionary: bytes) -> zstandard.ZstdDecompressor:
    """The inverse of :func:`zstd_compressor`."""
    shared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdDecompressor(dict_data=shared)


def encode(
    codec: int,
    rows: Bytes,
    dictionary: bytes = b"",
    line_bytes: int = 0,
    *,
    scratch: Bytes | None = None,
    compressor: zstandard.ZstdCompressor | None = None,
) -> bytes | None:
    """Pack ``rows`` uint8 [n, size]; ``None`` where the payload would not be smaller than the rows themselves.

    Args:
        dictionary: from :func:`train`; for delta ``b""`` means a reference of zeros.
        line_bytes: for delta, bytes from a pixel to the one below (``Field.line_bytes``).
        scratch: reused working memory for delta, at least ``(n + 4) * size + 64`` bytes.
        compressor: a reused :func:`zstd_compressor` of this dictionary.

    Cost: delta 1 to 3 us a row of 7 KB, zstd 3 to 5 us.
    """
    count, size = rows.shape
    if codec == RAW:
        return rows.tobytes()
    if codec == DELTA:
        reference = np.frombuffer(dictionary, np.uint8) if dictionary else np.zeros(size, np.uint8)
        if scratch is None:
            scratch = np.empty((count + 4) * size + 64, np.uint8)
        offsets = np.empty(count + 2, np.uint32)
        written = delta.encode_column(rows, reference, line_bytes, scratch, offsets)
        if written < 0 or offsets.nbytes + written >= rows.nbytes:
            return None
        return offsets.tobytes() + scratch[:written].tobytes()
    compressor = compressor or zstd_compressor(dictionary)
    frames = [compressor.compress(row) for row in rows]
    offsets = np.zeros(count + 1, np.uint32)
    np.cumsum([len(frame) for frame in frames], out=offsets[1:])
    payload = offsets.tobytes() + b"".join(frames)
    return payload if len(payload) < rows.nbytes else None


def offsets_of(codec: int, payload: bytes | memoryview, count: int, size: int) -> tuple[npt.NDArray[np.int64], Bytes]:
    """A payload's offset table as int64, and the bytes that it refers to. A raw one has an empty table.

    Raises:
        DamagedError: the table does not rise from 0 to the end, or ``payload`` is not as long as raw rows are.
    """
    data = np.frombuffer(payload, np.uint8)
    if codec == RAW:
        if data.size != count * size:
            raise DamagedError(f"raw column: {data.size} bytes, expected {count} rows of {size}")
        return np.zeros(0, np.int64), data
    if codec not in (ZSTD, DELTA):
        raise DamagedError(f"column: codec number {codec}, expected one of {sorted(NAMES)}")
    entries = count + (2 if codec == DELTA else 1)
    if data.size < 4 * entries:
        raise DamagedError(f"{NAMES[codec]} column: {data.size} bytes cannot hold {entries} offsets")
    offsets = data[: 4 * entries].view("<u4").astype(np.int64)
    packed = data[4 * entries :]
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != packed.size:
        raise DamagedError(f"{NAMES[codec]} column: offsets do not rise from 0 to the payload's {packed.size} bytes")
    return offsets, packed


def _check_reference(dictionary: bytes, size: int) -> None:
    if dictionary and len(dictionary) != size:
        raise DamagedError(f"delta column: the reference has {len(dictionary)} bytes, expected {size}")


def check(codec: int, payload: bytes | memoryview, count: int, size: int, dictionary: bytes, line_bytes: int) -> None:
    """Whether kernels that look at nothing but the offsets can read single rows of ``payload`` in place.

    Where zstd frames hold something else than a row, that is found when they are decoded.

    Raises:
        DamagedError: they cannot.

    Cost: 5 us a column, and for delta 20 ns a row of a game.
    """
    offsets, packed = offsets_of(codec, payload, count, size)
    if codec == DELTA:
        _check_reference(dictionary, size)
        wrong = delta.fits(packed, offsets, line_bytes, size)
        if wrong >= 0:
            raise DamagedError(f"delta column, row {wrong - 1}: a patch reaches outside the row")


def verify(codec: int, payload: bytes | memoryview, count: int, size: int, dictionary: bytes, line_bytes: int) -> None:
    """Whether :func:`decode` gives rows, without keeping them: memory for one.  Raises: DamagedError."""
    check(codec, payload, count, size, dictionary, line_bytes)
    if codec == ZSTD:
        offsets, packed = offsets_of(codec, payload, count, size)
        for _ in _zstd_rows(packed, offsets, count, size, dictionary):
            pass


def _zstd_rows(
    packed: Bytes, offsets: npt.NDArray[np.int64], count: int, size: int, dictionary: bytes
) -> Iterator[bytes]:
    """The rows that zstd frames hold.  Raises: DamagedError."""
    decompressor = None
    for i in range(count):
        try:
            decompressor = decompressor or zstd_decompressor(dictionary)
            frame = packed[offsets[i] : offsets[i + 1]].tobytes()
            if zstandard.frame_content_size(frame) not in (-1, size):  # it would be believed, and allocated
                raise DamagedError(f"zstd column, row {i}: a frame of another size, expected {size} bytes")
            row = decompressor.decompress(frame, max_output_size=size)
        except (zstandard.ZstdError, MemoryError) as error:
            raise DamagedError(f"zstd column, row {i}: {error}") from error
        if len(row) != size:
            raise DamagedError(f"zstd column, row {i}: {len(row)} bytes, expected {size}")
        yield row


def decode(codec: int, payload: bytes | memoryview, count: int, size: int, dictionary: bytes, line_bytes: int) -> Bytes:
    """Unpack what :func:`encode` made: uint8 [count, size].

    The plain way, for checking, recovery and tests; sampling reads single rows in place (``views.kernels``).

    Raises:
        DamagedError: the payload does not hold ``count`` rows of ``size`` bytes. No input does anything else, nor takes
            more memory than ``count * size`` bytes beside the payload.
    """
    offsets, packed = offsets_of(codec, payload, count, size)
    if codec == RAW:
        return packed.reshape(count, size).copy()
    rows = np.empty((count, size), np.uint8)
    if codec == ZSTD:
        for i, row in enumerate(_zstd_rows(packed, offsets, count, size, dictionary)):
            rows[i] = np.frombuffer(row, np.uint8)
        return rows
    _check_reference(dictionary, size)
    background = np.frombuffer(dictionary, np.uint8).copy() if dictionary else np.zeros(size, np.uint8)
    ok = delta.paint(packed, 0, int(offsets[1]), line_bytes, background)
    for i in range(count):
        rows[i] = background
        ok = ok and delta.paint(packed, int(offsets[i + 1]), int(offsets[i + 2]), line_bytes, rows[i])
        if not ok:
            raise DamagedError(f"delta column, row {i}: a patch reaches outside the row")
    return rows
