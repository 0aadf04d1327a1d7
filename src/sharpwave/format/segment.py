"""The segment: a run of one lane's consecutive steps, columnar, encoded, checksummed.

The same bytes are in the arena, on disk and on the wire. ``docs/format.md`` specifies them; this module implements the
specification. All functions are pure.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes, Ints
from sharpwave.codecs import ragged_rows
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.codec_registry import RAGGED, by_number
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.codecs.raw import RAW
from sharpwave.codecs.shared import KEY_BYTES, keys_of
from sharpwave.errors import DamagedError, NewerVersionError, UnknownCodecError
from sharpwave.format.annotations import MAX_METADATA_BYTES, pack_metadata, read_metadata
from sharpwave.format.segment_header import COLUMN_CHECKSUMS, PACKED_STEPS, Header, Placed, check_required, check_rows
from sharpwave.spec import START, Field, Spec

MAGIC = b"SWSG"
VERSION = 2
HEADER = struct.Struct("<4sHHQQQIIIIQQQ")
"""72 bytes: magic, version, columns, then the fields of Header."""
_FEATURES = 11
_LANE_OFFSET = 16
"""Offset of the lane's number, which the first step's follows."""
COLUMN = struct.Struct("<IIQQQ")  # 32 bytes; codec, rows, offset, nbytes, dictionary
COLUMN_OFFSET = 8
"""Offsets, in a column's entry, of the payload's offset and of its size."""
CHECKSUM = struct.Struct("<I")
ALIGNMENT = 8
MIN_APART_BYTES = 1 << 14
"""Bytes of a segment from which on it may be worth reading some columns only."""

MAX_STEPS = 1 << 16
ROOM = 1 << 20
MAX_NUMBER = (1 << 62) - ROOM
"""Limits: steps in a segment; lanes and step numbers. They leave margin for counting on from a file's numbers; larger
ones are never written, as they could not be read again."""
DECODED_BYTES = 1 << 30
"""Default limit of the bytes that ``unpack`` decodes."""

FLAGS, REWARD, FIRST_FIELD = 0, 1, 2
"""Column numbers: flags (uint8), reward (float32), then the spec's fields in their order."""
STEP_BYTES = (1, 4)
"""Bytes of a step's flags, and of its reward."""
_STEP_COLUMNS = (("flags", Field((), "uint8")), ("reward", Field((), "float32")))


@dataclass(frozen=True)
class SegmentColumn:
    """Packed column: ``rows`` rows in ``payload``, and the key of the dictionary it refers to (0: none)."""

    codec: int
    rows: int
    payload: bytes
    dictionary: int = 0


def pack(
    schema: int,
    lane: int,
    first_step: int,
    steps: int,
    frames: int,
    context: int,
    columns: Sequence[SegmentColumn],
    *,
    episode_step: int,
    features: int = 0,
    metadata: bytes = b"",
) -> tuple[bytes, list[int]]:
    """Assemble packed columns: return a segment's bytes, and the offset of each column's payload in them.

    Args:
        features: those of the schema; that of packed steps follows from the columns. Column checksums, where they are
            asked for, are for segments of ``MIN_APART_BYTES`` and more.

    Raises:
        OverflowError: the step numbers exceed the limit, and could not be read again.
    """
    if first_step + steps > MAX_NUMBER:
        raise OverflowError(
            f"segment: {steps:,} steps from step {first_step:,} of lane {lane} on: beyond the limit of {MAX_NUMBER:,}, "
            "the lane's numbers are used up"
        )
    packs = any(column.codec != RAW for column in columns[:FIRST_FIELD])
    features = features & ~PACKED_STEPS | (PACKED_STEPS if packs else 0)
    if sum(len(column.payload) for column in columns) < MIN_APART_BYTES:
        features &= ~COLUMN_CHECKSUMS
    offset = HEADER.size + COLUMN.size * len(columns) + len(metadata)
    table: list[bytes] = []
    parts, begins, apart = [metadata], list[int](), list[int]()
    for c, column in enumerate(columns):
        padding = -offset % ALIGNMENT
        offset += padding
        nbytes = len(column.payload)
        table.append(COLUMN.pack(column.codec, column.rows, offset, nbytes, column.dictionary))
        parts += [bytes(padding), column.payload]
        begins.append(offset)
        offset += nbytes
        if features & COLUMN_CHECKSUMS and c >= REWARD:
            padding = -(offset + CHECKSUM.size) % ALIGNMENT
            parts.append(bytes(padding + CHECKSUM.size))
            offset += padding + CHECKSUM.size
            apart.append(offset)
    nbytes = offset + CHECKSUM.size
    about = (schema, lane, first_step, steps, frames, context, len(metadata), nbytes, features, episode_step)
    body = b"".join([HEADER.pack(MAGIC, VERSION, len(columns), *about), *table, *parts])
    if apart:
        changed = bytearray(body)
        _add_checksums(changed, apart)
        body = bytes(changed)
    return body + CHECKSUM.pack(zlib.crc32(body)), begins


def _add_checksums(body: bytearray, ends: Sequence[int]) -> None:
    """Write the checksums of a segment's parts, each of which ends with its own."""
    begin, view = 0, memoryview(body)
    for end in ends:
        CHECKSUM.pack_into(body, end - CHECKSUM.size, zlib.crc32(view[begin : end - CHECKSUM.size]))
        begin = end


def has_column_checksums(data: bytes | bytearray | Bytes) -> bool:
    """Return whether the fields' columns of a segment have checksums of their own."""
    return bool(HEADER.unpack_from(_view(data))[_FEATURES] & COLUMN_CHECKSUMS)


def pack_again(header: Header, steps: int, frames: int, columns: Sequence[SegmentColumn]) -> bytes:
    """Repack a segment with new columns that keep its first ``steps`` steps and ``frames`` frames; return its bytes.

    Annotations of episodes without a remaining step are dropped.
    """
    said = read_metadata(header.metadata, header.steps)
    episodes = [(row, values) for row, values in said.episodes if row < steps]
    return pack(
        header.schema,
        header.lane,
        header.first_step,
        steps,
        frames,
        header.context,
        columns,
        features=header.features,
        episode_step=header.episode_step,
        metadata=header.metadata if steps == header.steps else pack_metadata(episodes),
    )[0]


def step_column(rows: Bytes, packs: bool) -> SegmentColumn:
    """Return the column of flags or rewards ``rows`` uint8 [n, size].  ``packs``: packed, where that saves bytes."""
    payload = PackedNumbers().encode(rows) if packs else None
    return SegmentColumn(PackedNumbers.number if payload else RAW, len(rows), payload or rows.tobytes())


def step_rows(data: bytes | memoryview | Bytes, header: Header, column: int) -> Bytes:
    """Return the flags or the rewards of a checked segment, uint8 [steps, size]."""
    one = header.placed[column]
    payload = _view(data)[one.offset : one.offset + one.nbytes]
    return by_number(one.codec).decode(Packed(payload, one.rows, STEP_BYTES[column]))


def shared_rows(data: bytes | memoryview | Bytes, header: Header, spec: Spec) -> dict[int, Bytes]:
    """Return the keys of shared values in a checked segment, uint8 [n, 16] by column."""
    found = dict[int, Bytes]()
    for c, name in enumerate(spec.fields, FIRST_FIELD):
        if spec.fields[name].shared:
            one = header.placed[c]
            packed = Packed(_view(data)[one.offset : one.offset + one.nbytes], one.rows, KEY_BYTES)
            found[c] = by_number(one.codec).decode(packed)
    return found


def shared_keys(data: bytes | memoryview | Bytes, header: Header, spec: Spec) -> set[tuple[int, int]]:
    """Return the columns and keys of the shared values that a checked segment refers to."""
    return {(c, key) for c, rows in shared_rows(data, header, spec).items() for key in keys_of(rows)}


def with_steps(
    data: bytes, header: Header, spec: Spec, packs: bool, flags: Bytes | None = None
) -> tuple[bytes, Header]:
    """Return a checked segment whose flags and rewards are packed, or raw, and its header.

    Args:
        flags: uint8 [steps, 1], in place of its own.
    """
    if flags is None:
        if packs == bool(header.features & PACKED_STEPS):
            return data, header
        features = header.features & ~COLUMN_CHECKSUMS | (COLUMN_CHECKSUMS if packs else 0)
        header = replace(header, features=features)
    rows = step_rows(data, header, FLAGS) if flags is None else flags, step_rows(data, header, REWARD)
    others = [
        SegmentColumn(one.codec, one.rows, data[one.offset : one.offset + one.nbytes], one.dictionary)
        for one in header.placed[FIRST_FIELD:]
    ]
    columns = [*(step_column(one, packs) for one in rows), *others]
    packed = pack_again(header, header.steps, header.frames, columns)
    return packed, parse(packed, spec)


def seal_again(data: Bytes) -> None:
    """Recompute, in place, the checksum of a whole segment's bytes after a change."""
    data[-CHECKSUM.size :] = np.frombuffer(CHECKSUM.pack(zlib.crc32(data[: -CHECKSUM.size].data)), np.uint8)


def readdressed(packed: bytes, lane: int, first_step: int) -> bytes:
    """Return a segment's bytes with its steps in another lane, from its step ``first_step`` on.

    The rest of a segment does not depend on them: annotations are by row.
    """
    data = bytearray(packed)
    struct.pack_into("<QQ", data, _LANE_OFFSET, lane, first_step)
    if has_column_checksums(data):
        _, _, offset, nbytes, _ = COLUMN.unpack_from(data, HEADER.size + COLUMN.size * REWARD)
        end = offset + nbytes + CHECKSUM.size  # of the first checksum, the only one whose bytes changed
        _add_checksums(data, [end + -end % ALIGNMENT])
    seal_again(np.frombuffer(data, np.uint8))
    return bytes(data)


def _view(data: bytes | bytearray | memoryview | Bytes) -> memoryview:
    return (np.ascontiguousarray(data).data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def payload_ends(memory: Bytes, bases: Ints, column: int) -> Ints:
    """Return where a column's payload ends in each of the segments at ``bases`` [n] of ``memory``, counted from the
    segment's beginning. Their column tables must have been checked."""
    places = bases + (HEADER.size + COLUMN.size * column + COLUMN_OFFSET)
    offset_and_nbytes = memory[places[:, None] + np.arange(16)].view("<i8")
    ends: Ints = offset_and_nbytes.sum(axis=1)
    return ends


def version_of(data: bytes | bytearray | memoryview) -> int:
    """Return the format version of a segment that begins with ``data``: every release finds it there."""
    return int.from_bytes(data[len(MAGIC) : len(MAGIC) + 2], "little")


def check_version(data: bytes | memoryview, what: str) -> None:
    """Refuse a segment that begins with ``data`` and needs a later release.  Raises: NewerVersionError."""
    version = version_of(data)
    if version > VERSION:
        raise NewerVersionError(f"{what}: segment format version {version}, this release reads up to {VERSION}")
    if version == VERSION and len(data) >= HEADER.size:
        check_required(HEADER.unpack_from(data)[_FEATURES], what)


def parse(data: bytes | memoryview | Bytes, spec: Spec) -> Header:
    """Parse and check a segment's header, column table and checksum. Payloads and metadata stay packed.

    Raises:
        DamagedError: naming the damage and the expected value.  NewerVersionError: also for a feature unknown to this
            release.
    """
    data = _view(data)
    if len(data) < HEADER.size + CHECKSUM.size:
        raise DamagedError(f"segment: {len(data)} bytes, too short for a header of {HEADER.size}")
    if data[: len(MAGIC)] != MAGIC:
        raise DamagedError(f"segment: begins with {bytes(data[: len(MAGIC)])!r}, expected {MAGIC!r}")
    (stored,) = CHECKSUM.unpack_from(data, len(data) - CHECKSUM.size)
    found = zlib.crc32(data[: -CHECKSUM.size])
    if stored != found:
        raise DamagedError(f"segment: checksum {found:08x}, expected {stored:08x}")
    check_version(data, "segment")
    version = version_of(data)
    if version != VERSION:
        raise DamagedError(f"segment: format version {version}, expected {VERSION}")
    about = HEADER.unpack_from(data)
    _, _, count, schema, lane, first_step, steps, frames, context, metadata_bytes, nbytes, features, number = about
    if nbytes != len(data):
        raise DamagedError(f"segment: {len(data)} bytes, expected {nbytes} as its header says")
    if schema != spec.schema_hash:
        raise DamagedError(
            f"segment: schema {schema:016x}, expected {spec.schema_hash:016x}: it was written under another Spec"
        )
    begin = HEADER.size + COLUMN.size * count + metadata_bytes
    if count != FIRST_FIELD + len(spec.fields) or begin + CHECKSUM.size > nbytes:
        raise DamagedError(f"segment: {count} columns, expected {FIRST_FIELD + len(spec.fields)}")
    if metadata_bytes > MAX_METADATA_BYTES:
        raise DamagedError(f"segment: {metadata_bytes:,} bytes of metadata, expected at most {MAX_METADATA_BYTES:,}")
    if steps > MAX_STEPS or max(lane, first_step + steps, number) > MAX_NUMBER:
        raise DamagedError(
            f"segment: {steps:,} steps from step {first_step:,} of lane {lane:,} on, step {number:,} of its episode; "
            f"expected numbers up to {MAX_NUMBER:,}"
        )
    metadata = bytes(data[begin - metadata_bytes : begin])
    placed = []
    for i, rows in enumerate(_rows(spec, steps, frames)):
        column = Placed(*COLUMN.unpack_from(data, HEADER.size + COLUMN.size * i))
        if column.rows not in rows or column.offset + column.nbytes > nbytes - CHECKSUM.size:
            raise DamagedError(f"segment: column {i} has {column.rows} rows, expected {rows[-1]}, or lies outside")
        if column.offset % ALIGNMENT or column.offset < begin:
            raise DamagedError(f"segment: column {i} begins at byte {column.offset}, expected a multiple of 8 there")
        begin = column.offset + column.nbytes
        placed.append(column)
    return Header(schema, lane, first_step, steps, frames, context, nbytes, tuple(placed), number, features, metadata)


def annotations_in(head: bytes | Bytes) -> tuple[tuple[int, dict[str, Any]], ...]:
    """Return the annotations of a segment's episodes, each with the row of the episode's first step there.

    Args:
        head: the segment up to its columns, or more, whose checksum was found right.

    Raises: DamagedError: naming the damage.
    """
    data = _view(head)
    _, _, count, _, _, _, steps, _, _, metadata_bytes, *_ = HEADER.unpack_from(data)
    begin = HEADER.size + COLUMN.size * count
    return read_metadata(bytes(data[begin : begin + metadata_bytes]), steps).episodes


def _rows(spec: Spec, steps: int, frames: int) -> list[range]:
    """Return the row counts that each column may have."""
    dense, observed, sparse = range(steps, steps + 1), range(frames, frames + 1), range(steps + 2)
    kinds = dict.fromkeys(spec.obs_names, observed) | dict.fromkeys(spec.sparse_names, sparse)
    return [dense] * FIRST_FIELD + [kinds.get(name, dense) for name in spec.fields]


def _layout(spec: Spec) -> list[tuple[str, Field]]:
    return [*_STEP_COLUMNS, *spec.columns.items()]


def _check_codec(field: Field, codec: int) -> None:
    """Refuse another codec than ``ragged`` for a ragged field.  Raises: DamagedError."""
    if field.ragged and codec != RAGGED:
        raise DamagedError(f"rows of any length are packed with codec {codec}, expected {RAGGED}")


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Prefix a codec's errors with the field's name."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"segment: {name}: {error}") from error
    except UnknownCodecError as error:
        raise UnknownCodecError(f"segment: {name}: {error.what}") from error


def _shared(name: str, key: int, dictionary: Callable[[int], bytes]) -> bytes:
    try:
        return dictionary(key) if key else b""
    except KeyError as error:
        raise DamagedError(f"segment: {name} refers to dictionary {key:016x}, which is missing") from error


def check(
    data: bytes | memoryview | Bytes,
    spec: Spec,
    dictionary: Callable[[int], bytes],
    *,
    sealed: bool = True,
    decode: bool = False,
) -> Header:
    """Check that a segment of any origin can be sampled in place, without further checks.

    Beyond ``parse``: flags and rewards are raw or packed, every step and every episode's end has a frame, the metadata
    can be parsed, and each payload's rows lie within it (``Codec.check``).

    Args:
        sealed: whether no step follows; an open segment may lack its last step's successor.
        decode: decode every row, too (``Codec.verify``); takes the memory of one row and the dictionaries.

    Raises:
        DamagedError: naming the damage and the expected value.  NewerVersionError, UnknownCodecError.

    Cost: 70 us for 128 steps of 84x84 frames, beside the checksum.
    """
    header = parse(data, spec)
    view = _view(data)
    for_steps = (RAW, PackedNumbers.number) if header.features & PACKED_STEPS else (RAW,)
    for (name, field), column in zip(_layout(spec), header.placed, strict=True):
        if name in ("flags", "reward") and column.codec not in for_steps:
            raise DamagedError(f"segment: {name} is packed with codec {column.codec}, expected one of {for_steps}")
        payload = view[column.offset : column.offset + column.nbytes]
        shared = _shared(name, column.dictionary, dictionary)
        packed = Packed(payload, column.rows, field.row_bytes, shared, field.line_bytes)
        with _naming(name):
            _check_codec(field, column.codec)
            if spec.columns.get(name) is not spec.fields.get(name) and column.dictionary:
                raise DamagedError("keys of shared values, which take no dictionary")
            if field.ragged:
                (ragged_rows.verify if decode else ragged_rows.check)(packed, spec.kinds[name])
                continue
            codec = by_number(column.codec)
            (codec.verify if decode else codec.check)(packed)
    flags = step_rows(view, header, FLAGS)[:, 0]
    check_rows(header, spec, flags, sealed=sealed)
    if header.steps and flags[0] & START and header.episode_step > 0:
        raise DamagedError(
            f"segment: its first step begins an episode, expected episode_step 0, got {header.episode_step}"
        )
    read_metadata(header.metadata, header.steps)  # raises where it cannot be parsed
    if header.context > spec.context:
        raise DamagedError(f"segment: {header.context} frames of context, expected at most {spec.context}")
    return header


def unpack(
    data: bytes | memoryview | Bytes,
    spec: Spec,
    dictionary: Callable[[int], bytes],
    only: Collection[str] | None = None,
    limit: int = DECODED_BYTES,
) -> tuple[Header, dict[str, npt.NDArray[Any]]]:
    """Decode a whole segment: return its header, and ``flags``, ``reward`` and every field as ``[rows, *shape]``; a
    ragged field as an array of arrays ``[rows]``.

    Args:
        dictionary: maps keys to bytes of the dictionaries that columns refer to; may raise KeyError.
        only: names of the columns to decode; ``None``: all.
        limit: bound on the bytes of decoded rows. For any ``data``, no larger allocation is made, except for three
            times the bytes of ``data`` and of the dictionaries.

    Raises:
        DamagedError: naming the damage and the expected value. No input raises another error.
    """
    header = parse(data, spec)
    view = _view(data)
    arrays = {}
    for (name, field), column in zip(_layout(spec), header.placed, strict=True):
        if only is not None and name not in only:
            continue
        size = field.row_bytes
        limit -= column.rows * size
        if limit < 0:
            raise DamagedError(
                f"segment: {name}: {column.rows:,} rows of {size:,} bytes, expected at most {limit:,} bytes in all"
            )
        shared = _shared(name, column.dictionary, dictionary)
        payload = view[column.offset : column.offset + column.nbytes]
        with _naming(name):
            _check_codec(field, column.codec)
            packed = Packed(payload, column.rows, size, shared, field.line_bytes)
            if field.ragged:
                arrays[name] = ragged_rows.decode(packed, spec.kinds[name], limit)
                limit -= sum(row.nbytes for row in arrays[name])
                continue
            rows = by_number(column.codec).decode(packed)
        arrays[name] = rows.reshape(-1).view(field.np_dtype).reshape(column.rows, *field.shape)
    return header, arrays
