"""Codec ``ragged``: rows of any length, one behind the other, of which any one is read alone.

It is the only codec of ragged fields, and of no others. Payload, all little-endian:

======= ======= ================================================================================================
bytes   type    content
======= ======= ================================================================================================
0       uint8   how values are stored: 0 as they are, 1 as numbers of codec packed, 2 text, by row with zstd
1       uint8   how the table of rows is stored: 0 not at all (row i is the distinct row i), 1 uint32, 2 packed
2       uint8   how the table of offsets is stored: 1 uint32, 2 packed
3       uint8   how the table of places is stored: 0 not at all, 1 uint32, 2 packed
4       uint32  distinct rows: rows that equal the one before are stored once
8       uint32  bytes of the table of rows: uint32 [rows], the distinct row of each
12      uint32  bytes of the table of offsets: uint32 [distinct + 1], the items at which distinct rows begin and end
16      uint32  bytes of the table of places, of text: uint32 [distinct + 1], where they begin among the stored bytes
20      uint32  bytes of a number that is packed; 0 where values are not
24      bytes   the tables, then the values. A row of text is stored as it is where that takes as many bytes, else as a
                zstd frame
======= ======= ================================================================================================
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from sharpwave.arrays import Bytes, Ints
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.codec_registry import MIN_AUTO_BYTES
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.codecs.zstd import compressor, decompressor
from sharpwave.errors import DamagedError
from sharpwave.native import core

REFERENCE_BYTES = 8
"""Bytes of a row of an open segment: uint32 begin and length in items of its column's values, beside the arena."""
ROOM_BYTES = 1 << 20
"""Limit of the bytes of a segment's values in one column, unless one row is larger."""
OVERHEAD_BYTES = 4096
"""Bytes of a payload beside its values and 16 a row, at most."""
MIN_TEXT_BYTES = 64
"""Rows of text below which zstd is not tried."""
HEAD = struct.Struct("<4B5I")
AS_THEY_ARE, PACKED, ZSTD = 0, 1, 2
NO_TABLE, PLAIN, PACKED_TABLE = 0, 1, 2


class Kind(NamedTuple):
    """Kind of a ragged field's rows, and their limits.

    Attributes:
        dtype: of a number; of text uint8. ``inner``: shape of an item.
        text: "str", "bytes" or ``None``.
        most_items, room_bytes: limits of a row's items and of the bytes of all values.
    """

    dtype: np.dtype[Any]
    inner: tuple[int, ...]
    text: str | None
    most_items: int
    room_bytes: int

    @property
    def item_bytes(self) -> int:
        return math.prod(self.inner) * self.dtype.itemsize

    @property
    def most_bytes(self) -> int:
        """Limit of a row's bytes."""
        return self.most_items * self.item_bytes

    def row(self, content: Bytes | bytes) -> npt.NDArray[Any]:
        """Return bytes as a row."""
        return np.frombuffer(content, self.dtype).reshape(-1, *self.inner)


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """Rows of any length in a buffer, to be packed.

    Attributes:
        values: uint8, the buffer. ``begins``, ``lengths``: int64 [n], in items; equal neighbors may share a place.
    """

    kind: Kind
    values: Bytes
    begins: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def nbytes(self) -> int:
        return int(self.lengths.sum()) * self.kind.item_bytes

    @classmethod
    def of(cls, kind: Kind, rows: npt.NDArray[Any]) -> RaggedRows:
        """Join rows from ``decode``. Equal neighbors share a place, as in an open segment: its rows have room again."""
        lengths = np.array([len(row) for row in rows], np.int64)
        begins, end = np.empty(len(rows), np.int64), 0
        parts = [np.empty(0, np.uint8)]
        for k, row in enumerate(rows):
            part = np.ascontiguousarray(row).reshape(-1).view(np.uint8)
            if k and lengths[k] == lengths[k - 1] and np.array_equal(part, parts[-1]):
                begins[k] = begins[k - 1]
                continue
            begins[k] = end
            parts.append(part)
            end += int(lengths[k])
        return cls(kind, np.concatenate(parts), begins, lengths)

    def pack(self) -> bytes:
        """Return the payload. Cost: 2 to 6 ns a number, 5 us a KiB of text."""
        kind, size = self.kind, self.kind.item_bytes
        new = np.ones(len(self), np.bool_)
        new[1:] = (np.diff(self.begins) != 0) | (np.diff(self.lengths) != 0)
        begins, lengths = self.begins[new], self.lengths[new]
        offsets = np.zeros(len(begins) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if (begins[1:] == begins[:-1] + lengths[:-1]).all():
            first = int(begins[0]) * size if len(begins) else 0
            values = self.values[first : first + int(offsets[-1]) * size]
        else:  # steps between were dropped
            ends = zip(begins.tolist(), lengths.tolist(), strict=True)
            values = np.concatenate([self.values[begin * size : (begin + length) * size] for begin, length in ends])
        rows = (NO_TABLE, b"") if new.all() else _table(np.cumsum(new) - 1)
        stored, places, unit, how = values.tobytes(), (NO_TABLE, b""), 0, AS_THEY_ARE
        if kind.text is not None:
            frames = _frames(values, offsets)
            if sum(map(len, frames)) + 4 * len(frames) < len(stored):
                how, stored = ZSTD, b"".join(frames)
                places = _table(np.cumsum([0, *map(len, frames)]))
        elif len(values) and (size < MIN_AUTO_BYTES or kind.dtype.kind != "f"):
            number = size if size < MIN_AUTO_BYTES else kind.dtype.itemsize
            packed = PackedNumbers().encode(values.reshape(-1, number))
            if packed is not None:
                how, stored, unit = PACKED, packed, number
        of_offsets = _table(offsets)
        tables = (rows, of_offsets, places)
        sizes = [len(content) for _, content in tables]
        head = HEAD.pack(how, *(one for one, _ in tables), len(begins), *sizes, unit)
        return b"".join([head, *(content for _, content in tables), stored])


def _frames(values: Bytes, offsets: Ints) -> list[bytes]:
    """Return each row of text as a zstd frame, or as it is where that is no longer."""
    whole, by, frames = values.tobytes(), compressor(), list[bytes]()
    for begin, end in pairwise(offsets.tolist()):
        row = whole[begin:end]
        frame = by.compress(row) if len(row) >= MIN_TEXT_BYTES else row
        frames.append(frame if len(frame) < len(row) else row)
    return frames


def _table(numbers: Ints) -> tuple[int, bytes]:
    plain = numbers.astype("<u4")
    packed = PackedNumbers().encode(plain.view(np.uint8).reshape(-1, 4)) if len(plain) else None
    return (PLAIN, plain.tobytes()) if packed is None else (PACKED_TABLE, packed)


class _Parsed(NamedTuple):
    """A payload that is sound.

    Attributes:
        rows: int64 [n], the distinct row of each. ``offsets``: int64 [distinct + 1], in items.
        places: int64 [distinct + 1], of stored rows of text; ``None``: values are not stored row by row.
        stored: the values. ``unit``: bytes of a packed number, or 0.
    """

    rows: Ints
    offsets: Ints
    places: Ints | None
    stored: Bytes
    unit: int


def _parse(column: Packed, kind: Kind) -> _Parsed:
    """Take a payload of any origin apart.  Raises: DamagedError."""
    payload = np.frombuffer(column.payload, np.uint8)
    if column.dictionary or len(payload) < HEAD.size:
        raise DamagedError(f"ragged column: {len(payload)} bytes, expected a head of {HEAD.size}, and no dictionary")
    how, *hows, distinct, rows_bytes, offsets_bytes, places_bytes, unit = HEAD.unpack_from(payload.data)
    ends = np.cumsum([HEAD.size, rows_bytes, offsets_bytes, places_bytes]).tolist()
    if how > ZSTD or (how == ZSTD) != (kind.text is not None and hows[2] != NO_TABLE) or ends[-1] > len(payload):
        raise DamagedError(f"ragged column: kind {how} of values, or tables beyond its {len(payload):,} bytes")
    if distinct > column.count or (hows[0] == NO_TABLE and distinct != column.count):
        raise DamagedError(f"ragged column: {distinct:,} distinct rows of {column.count:,}")

    def table(number: int, count: int) -> Ints:
        return _read_table(payload[ends[number] : ends[number + 1]], hows[number], count)

    rows = np.arange(distinct) if hows[0] == NO_TABLE else table(0, column.count)
    offsets = table(1, distinct + 1)
    if (hows[0] == NO_TABLE and rows_bytes) or (rows >= distinct).any():
        raise DamagedError(f"ragged column: a row refers beyond the {distinct:,} distinct ones")
    lengths, total, stored = np.diff(offsets), int(offsets[-1]), payload[ends[-1] :]
    if offsets[0] or (lengths < 0).any() or (lengths > kind.most_items).any():
        raise DamagedError(f"ragged column: offsets do not rise from 0 by at most {kind.most_items:,}")
    nbytes = total * kind.item_bytes
    if nbytes > kind.room_bytes:
        raise DamagedError(f"ragged column: {nbytes:,} bytes of values, expected at most {kind.room_bytes:,}")
    places = None
    if how == ZSTD:
        places = table(2, distinct + 1)
        sizes = np.diff(places)
        if places[0] or (sizes < 0).any() or (sizes > lengths).any() or places[-1] != len(stored):
            raise DamagedError(f"ragged column: places do not rise from 0 to the {len(stored):,} bytes stored")
    elif places_bytes or hows[2] != NO_TABLE:
        raise DamagedError("ragged column: a table of places without rows of text")
    elif how == PACKED:
        known = unit in {kind.item_bytes, kind.dtype.itemsize} and unit < MIN_AUTO_BYTES
        if not known or not total or kind.text is not None:
            raise DamagedError(f"ragged column: packed numbers of {unit} bytes in items of {kind.item_bytes}")
        PackedNumbers().check(Packed(stored, nbytes // unit, unit))
    elif len(stored) != nbytes:
        raise DamagedError(f"ragged column: {len(stored):,} bytes of values, expected {nbytes:,}")
    if (unit != 0) != (how == PACKED):
        raise DamagedError(f"ragged column: {unit} bytes of a packed number, expected 0 where none is packed")
    return _Parsed(rows, offsets, places, stored, unit)


def _read_table(content: Bytes, how: int, count: int) -> Ints:
    if how == PLAIN and len(content) == 4 * count:
        return content.view("<u4").astype(np.int64)
    if how == PACKED_TABLE and core.check_packed(np.ascontiguousarray(content), count, 4):
        numbers = np.empty((count, 4), np.uint8)
        core.decode_packed(content, 0, numbers)
        return numbers.reshape(-1).view("<u4").astype(np.int64)
    raise DamagedError(f"ragged column: a table of {len(content):,} bytes does not hold {count:,} numbers")


def check(column: Packed, kind: Kind) -> None:
    """Check a payload, but for the content of zstd frames.

    Raises: DamagedError: naming the damage.
    """
    parsed = _parse(column, kind)
    if kind.text == "str":
        for number, row in enumerate(_stored_rows(parsed)):
            if row is not None:
                check_text(row, number)


def verify(column: Packed, kind: Kind) -> None:
    """Check that every row can be decoded, in the memory of one row.  Raises: DamagedError."""
    parsed = _parse(column, kind)
    if kind.text is not None:
        for number in range(len(parsed.offsets) - 1):
            _text_row(parsed, number, kind)


def decode(column: Packed, kind: Kind, limit: int) -> npt.NDArray[Any]:
    """Decode all rows: an array of arrays [count], each [length, *inner]; equal neighbors may share memory.

    Args:
        limit: of the bytes of decoded values.

    Raises: DamagedError.
    """
    parsed, size = _parse(column, kind), kind.item_bytes
    total = int(parsed.offsets[-1]) * size
    if total > limit:
        raise DamagedError(f"ragged column: {total:,} bytes of values, expected at most {limit:,}")
    offsets = parsed.offsets.tolist()
    if parsed.places is not None:
        distinct = [kind.row(_text_row(parsed, number, kind)) for number in range(len(offsets) - 1)]
    else:
        values = parsed.stored
        if parsed.unit:
            values = np.empty((total // parsed.unit, parsed.unit), np.uint8)
            core.decode_packed(np.ascontiguousarray(parsed.stored), 0, values)
        flat = values.reshape(-1).tobytes()  # aligned
        whole = kind.row(flat)
        distinct = [whole[begin:end] for begin, end in pairwise(offsets)]
        if kind.text == "str":
            for number, row in enumerate(distinct):
                check_text(row.tobytes(), number)
    rows = np.empty(column.count, object)
    for i, number in enumerate(parsed.rows.tolist()):
        rows[i] = distinct[number]
    return rows


def _stored_rows(parsed: _Parsed) -> list[bytes | None]:
    """Return the rows of text that are stored as they are; ``None`` for the others."""
    places = parsed.offsets if parsed.places is None else parsed.places
    plain = (np.diff(places) == np.diff(parsed.offsets)).tolist()
    begins = places.tolist()
    whole = parsed.stored.tobytes()
    return [whole[begins[i] : begins[i + 1]] if one else None for i, one in enumerate(plain)]


def _text_row(parsed: _Parsed, number: int, kind: Kind) -> bytes:
    """Decode one distinct row of text.  Raises: DamagedError."""
    size = int(parsed.offsets[number + 1] - parsed.offsets[number])
    places = parsed.offsets if parsed.places is None else parsed.places
    row = parsed.stored[places[number] : places[number + 1]].tobytes()
    if len(row) != size:
        try:
            if zstandard.frame_content_size(row) not in (-1, size):  # the library would allocate so much
                raise DamagedError(f"ragged column, row {number}: a frame of another size, expected {size} bytes")
            row = decompressor().decompress(row, max_output_size=size)
        except (zstandard.ZstdError, MemoryError) as error:
            raise DamagedError(f"ragged column, row {number}: {error}") from error
        if len(row) != size:
            raise DamagedError(f"ragged column, row {number}: {len(row)} bytes, expected {size}")
    if kind.text == "str":
        check_text(row, number)
    return row


def check_text(row: bytes | memoryview, number: int) -> None:
    """Refuse a row that is no UTF-8.  Raises: DamagedError."""
    try:
        str(row, "utf-8")
    except UnicodeDecodeError as error:
        raise DamagedError(f"ragged column, row {number}: no UTF-8 ({error.reason} at byte {error.start})") from error


def unpack_frames(memory: Bytes, begins: Ints, nbytes: Ints, sizes: Ints) -> Any:
    """Decompress frames in ``memory``, of ``sizes`` [n] bytes unpacked; return n buffers.

    Raises: DamagedError: one does not hold so many bytes.
    """
    if (nbytes[sizes > 0] <= 0).any():
        raise DamagedError("ragged column: a row without a frame")
    ranges = np.stack([begins, nbytes], axis=1).astype(np.uint64)
    source = zstandard.BufferWithSegments(memory.data, ranges.tobytes())
    try:
        made = decompressor().multi_decompress_to_buffer(
            source, decompressed_sizes=sizes.astype(np.uint64).tobytes(), threads=-1
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise DamagedError(f"ragged column: frames do not hold rows: {error}") from error
    if any(len(made[i]) != size for i, size in enumerate(sizes.tolist())):
        raise DamagedError("ragged column: a frame of fewer bytes than its row")
    return made
