"""Headers that the store reads, with bytes, numbers and lengths changed: each is read, or refused as documented.

    SHARPWAVE_FUZZ=1000000 PYTHONPATH=src:. python -m tests.format.fuzzing [--seed N] [--only NUMBER] [TARGET...]

Tries so many inputs of each target. Checksums are computed anew, so that what lies behind them is reached. A failure is
printed with the number that repeats it. ``test_fuzzing.py`` tries a few.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import random
import resource
import socket
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.codec_registry import by_name, by_number
from sharpwave.codecs.dictionaries import key_of
from sharpwave.disk import region_notes
from sharpwave.errors import DamagedError, NewerVersionError, UnknownCodecError
from sharpwave.format import region, segment
from sharpwave.format.annotations import pack_metadata
from sharpwave.serve import wire

SPEC = sw.Spec(
    obs=sw.Field((12, 8), "uint8", stack=2), action=sw.Field((), "int64"), goal=sw.Field((3,), "bool", every=3)
)
INPUTS = int(os.environ.get("SHARPWAVE_FUZZ", "10000"))
STEPS = 6
LIMIT = 1 << 16
"""Bytes that ``unpack`` may decode."""
MAX_GROWTH = 64 << 20
MAX_S = 5
EDGES = [0, 1, 2, 5, 6, 7, 8, 127, 128, 255, 256, 65535, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
EDGES += [1 << 32, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
REFUSED = (DamagedError, NewerVersionError, UnknownCodecError)

PICTURES = np.arange(STEPS * 96, dtype=np.uint8).reshape(STEPS, 96) // 40
STRINGS = bytes(range(200)) * 3
REFERENCE = PICTURES[0].tobytes()
DICTIONARIES = {0: b"", 3: STRINGS, key_of(REFERENCE): REFERENCE}


def packed(codec: str) -> bytes:
    """Return a sound segment whose observations are encoded."""
    key = {"raw": 0, "packed": 0, "zstd": 3}.get(codec, key_of(REFERENCE))
    flags = bytes([sw.spec.START, 0, sw.spec.TERMINATED, sw.spec.START, 0, 0])
    rows = np.vstack([PICTURES[:3], PICTURES[2:], PICTURES[-1:]])  # with a final and a next observation
    payload = rows.tobytes() if codec == "raw" else by_name(codec).encode(rows, DICTIONARIES[key], 8)
    assert payload is not None
    steps = [segment.SegmentColumn(0, STEPS, flags), segment.SegmentColumn(0, STEPS, bytes(4 * STEPS))]
    if codec == "packed":
        head = struct.pack("<BBHIQiHBB", 1, 0, 1, 3, 0, 0, 0, 3, 0)
        bits = sum(flag << 3 * row for row, flag in enumerate(flags))
        table = struct.pack("<BBHIQiHBB2f", 4, 0, 1, 1, 0, 25, 2, 1, 0, 0.0, 1.5)
        steps = [
            segment.SegmentColumn(5, STEPS, head + bits.to_bytes(3, "little")),
            segment.SegmentColumn(5, STEPS, table[:24] + b"\x24" + table[24:]),
        ]
    columns = [
        *steps,
        segment.SegmentColumn(by_name(codec).number, len(rows), payload, key),
        segment.SegmentColumn(0, STEPS, bytes(8 * STEPS)),
        segment.SegmentColumn(0, 2, bytes(6)),
    ]
    said = pack_metadata([(0, {"policy": 7, "notes": ["a", {"b": None}]}), (3, {"x": 1.5})])
    about = (SPEC.schema_hash, 1, 40, STEPS, len(rows), 0)
    return segment.pack(*about, columns, features=1, episode_step=0, metadata=said)[0]


def frame() -> bytes:
    """Return a frame of the wire, as a socket carries it."""
    near, far = socket.socketpair()
    with near, far:
        parts: dict[str, Any] = {"ids": np.arange(5), "rows": np.ones((3, 4), np.float32), "said": b"abc"}
        wire.send(near, 3, 7, {"view": 1, "more": [None, {"a": 2}]}, parts)
        near.shutdown(socket.SHUT_WR)
        found = b""
        while part := far.recv(1 << 16):
            found += part
    return found


def records() -> bytes:
    """Return a region file: a segment, a dictionary, an open segment's rows, a note, the end."""
    store = bytes(range(16))
    head = region.HEADER.pack(region.MAGIC, region.VERSION, 0, 0, 1 << 16, SPEC.schema_hash, store, 0, 0, 0)
    found = head[:-4] + zlib.crc32(head[:-4]).to_bytes(4, "little")
    found += bytes(region.FIRST - len(found))
    one, note = packed("delta"), region_notes.pack_evicted(region_notes.Evicted(1.0, 3, 0, np.array([4, 8])))
    for sequence, (kind, id_, payload) in enumerate(
        [
            (region.SEGMENT, 8, one),
            (region.DICTIONARY, key_of(REFERENCE), REFERENCE),
            (region.TAIL, 16, one),
            (region.NOTE, 0, note),
            (region.NOTE, 0, region_notes.pack_ends(np.array([3, 9]))),
            (region.END, 0, b""),
        ]
    ):
        prefix = region.RECORD.pack(region.RECORD_MAGIC, kind, len(payload), id_, sequence, 2, 0)[:-4]
        found += prefix + zlib.crc32(prefix).to_bytes(4, "little") + payload
        found += bytes(-len(found) % region.ALIGNMENT)
    return found


def changed(data: bytes, rng: random.Random) -> bytearray:
    """Return bytes of which one to eight places are others."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        if not found:
            return found
        how, at = rng.random(), rng.randrange(len(found))
        if rng.random() < 0.6:
            at = rng.randrange(min(len(found), 72 + 32 * 5 + 120))  # headers, tables, the beginning of what follows
        if how < 0.3:
            found[at] = rng.randrange(256)
        elif how < 0.4:
            found[at] ^= 1 << rng.randrange(8)
        elif how < 0.75:
            width, value = rng.choice([2, 4, 4, 8, 8]), rng.choice(EDGES)
            begin = at // width * width
            found[begin : begin + width] = value.to_bytes(8, "little")[:width]
        elif how < 0.85:
            del found[at : at + rng.choice([1, 2, 4, 8, 40])]
        else:
            found[at:at] = rng.randbytes(rng.choice([1, 4, 8, 40]))
    return found


def checked(data: bytearray) -> bytes:
    """Return bytes that end with their checksum."""
    return bytes(data[:-4]) + zlib.crc32(data[:-4]).to_bytes(4, "little")


def _dictionary(key: int) -> bytes:
    return DICTIONARIES[key]


SEGMENTS = {codec: packed(codec) for codec in ("raw", "zstd", "delta", "predict", "patches", "packed")}


def try_segment(rng: random.Random, codec: str) -> bool:
    """Read a segment in each way; return whether it may be sampled in place."""
    data = changed(SEGMENTS[codec], rng)
    if len(data) > 56 and rng.random() < 0.9:
        data[48:56] = len(data).to_bytes(8, "little")
    whole, sampled = checked(data), False
    try:
        header = segment.check(whole, SPEC, _dictionary)
        sampled = True
    except REFUSED as error:
        assert str(error)
    decoded = True
    try:
        _, arrays = segment.unpack(whole, SPEC, _dictionary, limit=LIMIT)
        assert sum(one.nbytes for one in arrays.values()) <= LIMIT, "more was decoded than the limit"
    except REFUSED as error:
        decoded = False
        assert str(error)
    try:
        segment.check(whole, SPEC, _dictionary, decode=True)
        assert sampled and decoded, "what is verified can be sampled, and decoded"
    except REFUSED as error:
        assert not (sampled and decoded), str(error)
    if sampled and not decoded:  # a frame of zstd is checked when it is decoded
        used = {by_number(one.codec).name for one in header.placed}
        assert used & {"zstd", "predict"}, "what may be sampled in place cannot be decoded"
    return sampled


def try_records(rng: random.Random, place: Path) -> bool:
    """Read a region's records; return whether all of it was sound."""
    data = changed(RECORDS, rng)
    if rng.random() < 0.8 and len(data) >= region.FIRST:
        data[: region.HEADER.size] = checked(data[: region.HEADER.size])
    at = region.FIRST
    while rng.random() < 0.95 and at + region.RECORD.size <= len(data):  # checksums that hold, record by record
        data[at : at + region.RECORD.size] = checked(data[at : at + region.RECORD.size])
        kind, nbytes = region.RECORD.unpack_from(data, at)[1:3]
        end = at + region.RECORD.size + nbytes
        if end > len(data):
            break
        if kind != region.DICTIONARY and nbytes >= 4:
            data[at + region.RECORD.size : end] = checked(data[at + region.RECORD.size : end])
        at += region.space(nbytes)
    place.write_bytes(data)
    try:
        found, listed, damages = region.read_region(place)
    except NewerVersionError as error:
        assert str(error)
        return False
    try:
        ends = region.FIRST
        for one in listed:
            assert ends <= one.offset <= one.offset + one.nbytes <= len(data), "a record outside its file"
            ends = one.offset + one.nbytes
            if one.kind == region.NOTE:
                read_note(bytes(data[one.offset : ends]))
    finally:
        if found is not None:
            found.close()
    return not damages


def read_note(payload: bytes) -> bool:
    """Read a note as each kind; return whether it is one of evictions."""
    found = region_notes.unpack_evicted(payload)
    if found is not None:
        assert 0 <= found.threshold <= 1 and (found.ids >= 0).all() and found.nbytes == len(payload)
    ends = region_notes.unpack_ends(payload)
    assert (ends >= 0).all() and 8 * len(ends) <= len(payload)
    if len(payload) >= region_notes.WHERE_BYTES:
        region_notes.where(payload)
    return found is not None


NOTES = [
    bytes(12),
    region_notes.pack_evicted(region_notes.Evicted(0.25, 3, 7, np.array([4, 8, 1 << 40]))),
    region_notes.pack_ends(np.array([3, 0, 9])),
]
RECORDS, FRAME = records(), frame()


def try_frame(rng: random.Random) -> bool:
    """Receive a frame of the wire; return whether it was not refused."""
    data = changed(FRAME, rng)
    if len(data) >= wire.HEADER.size and rng.random() < 0.9:
        fields = list(wire.HEADER.unpack_from(data))
        body = len(data) - wire.HEADER.size
        if rng.random() < 0.8:
            fields[4] = min(fields[4], body)
            fields[5] = body - fields[4]
        head, rest = data[wire.HEADER.size :][: fields[4]], data[wire.HEADER.size :][fields[4] :]
        fields[6] = wire._checksum([memoryview(head), memoryview(rest)])
        wire.HEADER.pack_into(data, 0, *fields)
    near, far = socket.socketpair()
    with near, far:
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        try:
            found = wire.receive(far, max_body=1 << 16, max_head=1 << 12)
        except wire.WireError as error:
            assert str(error)
            return False
    if found is None:
        assert not data
        return False
    held = sum(one.nbytes for one in found.parts.values())
    assert isinstance(found.head, dict) and held <= len(data)
    return True


def try_payload(rng: random.Random) -> bool:
    """Decode a payload of any codec as rows of other numbers and sizes; return whether it could be decoded."""
    name = rng.choice(list(SEGMENTS))
    header = segment.parse(SEGMENTS[name], SPEC)
    column = header.placed[segment.FIRST_FIELD]
    payload = bytes(changed(SEGMENTS[name][column.offset : column.offset + column.nbytes], rng))
    key = rng.choice([*DICTIONARIES]) if rng.random() < 0.1 else column.dictionary
    count = rng.choice(EDGES[:12]) if rng.random() < 0.1 else column.rows
    one, decoded = Packed(payload, count, 96, DICTIONARIES[key], rng.choice([0, 1, 8, 96])), []
    for act in ("check", "verify", "decode"):
        try:
            getattr(by_name(name), act)(one)
            decoded.append(act)
        except DamagedError as error:
            assert str(error)
    assert ("decode" in decoded) == ("verify" in decoded), f"{name}: of verify and decode one refuses"
    return "decode" in decoded


def targets(folder: Path) -> dict[str, Callable[[random.Random], bool]]:
    """Return what is tried, by name."""
    found: dict[str, Callable[[random.Random], bool]] = {
        f"segment_{codec}": functools.partial(try_segment, codec=codec) for codec in SEGMENTS
    }
    found["note"] = lambda rng: read_note(checked(changed(rng.choice(NOTES), rng)))
    found["region"] = lambda rng: try_records(rng, folder / f"{0:012d}.region")
    return found | {"frame": try_frame, "payload": try_payload}


def run(name: str, act: Callable[[random.Random], bool], inputs: int, seed: int, only: int | None) -> dict[str, Any]:
    """Try inputs; return how many had which outcome.  Raises: AssertionError."""
    outcomes: collections.Counter[str] = collections.Counter()
    act(random.Random(0))
    base = _peak()
    for number in [only] if only is not None else range(inputs):
        said, begun = f"{name} {number} of seed {seed}", time.process_time()
        try:
            outcomes["read" if act(random.Random(f"{seed} {name} {number}")) else "refused"] += 1
        except Exception as error:
            raise AssertionError(f"{said}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error
        assert _peak() - base < MAX_GROWTH, f"{said}: took {(_peak() - base) >> 20:,} MiB"
        assert time.process_time() - begun < MAX_S, f"{said}: took {time.process_time() - begun:.0f} s"
    return {"target": name, **outcomes}


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def main() -> None:
    """Try each target that is asked for, and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        known = targets(Path(folder))
        for name in given.targets or known:
            begun = time.monotonic()
            found = run(name, known[name], INPUTS, given.seed, given.only)
            print(json.dumps(found | {"seconds": round(time.monotonic() - begun, 1)}), flush=True)


if __name__ == "__main__":
    main()
