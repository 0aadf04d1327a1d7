"""TFRecord files and the ``tf.train.Example`` messages in them, read without TensorFlow.

Sources: tensorflow/core/lib/io/record_writer.h (framing: length, CRC of it, data, CRC of it), and for messages
tensorflow/core/example/feature.proto in protocol-buffer encoding (protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.data.opened_files import File
from sharpwave.native import core

HEADER, TRAILER_BYTES = struct.Struct("<QI"), 4
BYTES, FLOATS, INTEGERS = 1, 2, 3
"""Fields of a Feature."""
PART_BYTES = 1 << 16
"""Bytes of packed integers decoded at a time; each byte takes some 50 meanwhile."""
Value = list[bytes] | npt.NDArray[np.float32] | npt.NDArray[np.int64]


class Place(NamedTuple):
    """Record in a file: offset and size of its data."""

    name: str
    offset: int
    nbytes: int


def records(file: File, name: str) -> Iterator[Place]:
    """Yield the places of a file's records. Cost: a read of 12 bytes each.  Raises: ValueError: it is damaged."""
    size, at = file.size, 0
    while at < size:
        file.seek(at)
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            raise ValueError(f"{file.path}: ends within a record's header, at byte {at:,}")
        nbytes, checksum = HEADER.unpack(header)
        if checksum != masked_crc(header[:8]):
            raise ValueError(f"{file.path}: no TFRecord file, or damaged at byte {at:,}")
        if at + HEADER.size + nbytes + TRAILER_BYTES > size:
            raise ValueError(f"{file.path}: ends within a record of {nbytes:,} bytes, at byte {at:,}")
        yield Place(name, at + HEADER.size, nbytes)
        at += HEADER.size + nbytes + TRAILER_BYTES


def read(file: File, place: Place) -> memoryview:
    """Read a record's data.  Raises: ValueError: it is damaged."""
    content = memoryview(file.read_at(place.offset, place.nbytes + TRAILER_BYTES))
    if struct.unpack("<I", content[place.nbytes :])[0] != masked_crc(content[: place.nbytes]):
        raise ValueError(f"{file.path}: the record at byte {place.offset:,} does not match its checksum")
    return content[: place.nbytes]


def masked_crc(data: bytes | memoryview) -> int:
    """Return TensorFlow's masked CRC-32C of some bytes."""
    found = core.crc32c(np.frombuffer(data, np.uint8))
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


def example(data: memoryview | bytes, wanted: Collection[str] | None = None) -> dict[str, Value]:
    """Parse an Example: each feature's bytes, float32 or int64 values by name.

    Args:
        wanted: names of the features to parse; ``None``: all.

    Raises: ValueError: it is damaged.
    """
    found: dict[str, Value] = {}
    for number, features in _fields(data):
        if number != 1:
            continue
        for entry_number, entry in _fields(_submessage(features)):
            if entry_number != 1:
                continue
            name, feature = b"", memoryview(b"")
            for part, content in _fields(_submessage(entry)):
                if part == 1:
                    name = bytes(_submessage(content))
                elif part == 2:
                    feature = _submessage(content)
            text = name.decode("utf-8", "replace")
            if wanted is None or text in wanted:
                found[text] = _feature(feature)
    return found


def _feature(data: memoryview) -> Value:
    for number, content in _fields(data):
        if number == BYTES:
            return [bytes(_submessage(value)) for _, value in _fields(_submessage(content))]
        if number in (FLOATS, INTEGERS):
            values = (value for _, value in _fields(_submessage(content)))
            if number == FLOATS:
                return np.concatenate([np.zeros(0, np.float32), *map(_floats, values)])
            return np.concatenate([np.zeros(0, np.int64), *map(_integers, values)])
    return []


def _floats(value: memoryview | int) -> npt.NDArray[np.float32]:
    content = (value & 0xFFFFFFFF).to_bytes(4, "little") if isinstance(value, int) else value
    if len(content) % 4:
        raise ValueError("Example: floats of a size that is no multiple of 4")
    return np.frombuffer(content, "<f4").astype(np.float32, copy=False)


def _integers(value: memoryview | int) -> npt.NDArray[np.int64]:
    """Decode an integer, or packed variable-length ones."""
    if isinstance(value, int):
        return np.array([value & 0xFFFFFFFFFFFFFFFF], np.uint64).view(np.int64)
    array = np.frombuffer(value, np.uint8)
    if not array.size:
        return np.zeros(0, np.int64)
    if array[-1] >= 0x80:
        raise ValueError("Example: ends within a number")
    found = np.empty(int(np.count_nonzero(array < 0x80)), np.uint64)
    at = done = 0
    while at < array.size:
        part = array[at : at + PART_BYTES]
        ends = np.flatnonzero(part < 0x80)
        if not ends.size:
            raise ValueError("Example: a number of more than 64 bits")
        part = part[: ends[-1] + 1]
        found[done : done + ends.size] = _varints(part, ends)
        at, done = at + part.size, done + ends.size
    return found.view(np.int64)


def _varints(array: npt.NDArray[np.uint8], ends: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    """Decode variable-length integers that end at ``ends``."""
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (ends - starts >= 10).any():
        raise ValueError("Example: a number of more than 64 bits")
    place = (np.arange(array.size) - np.repeat(starts, ends - starts + 1)).astype(np.uint64)
    shifted = (array & 0x7F).astype(np.uint64) << (place * np.uint64(7))
    sums: npt.NDArray[np.uint64] = np.add.reduceat(shifted, starts)
    return sums


def _submessage(value: memoryview | bytes | int) -> memoryview:
    if isinstance(value, int):
        raise ValueError("Example: a number where a message is expected")
    return memoryview(value)


def _fields(data: memoryview | bytes) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the number and the value of each field of a message.  Raises: ValueError."""
    view, at = memoryview(data), 0
    while at < len(view):
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            nbytes, at = _varint(view, at)
        elif kind in (1, 5):
            nbytes = 8 if kind == 1 else 4
        else:
            raise ValueError(f"Example: wire type {kind}")
        if at + nbytes > len(view):
            raise ValueError("Example: ends within a field")
        part = view[at : at + nbytes]
        at += nbytes
        yield tag >> 3, part if kind == 2 else int.from_bytes(part, "little")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(view) or shift > 63:
            raise ValueError("Example: ends within a number")
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
