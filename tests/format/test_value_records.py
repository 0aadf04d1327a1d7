"""Runs of shared values in region files, as the core finds them, against their reader one by one in Python."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from sharpwave.format import region
from sharpwave.format.region import HEADER, MAGIC, NOTE, RECORD, RECORD_MAGIC, SHARED, VERSION, Values, read_region
from sharpwave.native import core

SIZES = (8, 9, 30, 500, 501, 4000, 5000, 70_000, 140_000)
KEYS = 300
"""Values of a file, some of which it has twice."""


def record_of(kind: int, column: int, payload: bytes, sequence: int, id_: int = 0) -> bytes:
    body = RECORD.pack(RECORD_MAGIC, kind, len(payload), id_, sequence, column, 0)[:-4]
    whole = body + struct.pack("<I", zlib.crc32(body)) + payload
    return whole + bytes(-len(whole) % 8)


def payload_of(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def write_region(path: Path, rng: random.Random, records: int) -> list[tuple[int, int]]:
    """Write values, a few other records between them, and a few that no store writes; return where each lies."""
    parts, places, at = [], [], HEADER.size
    for sequence in range(records):
        chance = rng.random()
        if chance < 0.05:
            part = record_of(NOTE, 0, payload_of(rng.randbytes(20)), sequence)
        elif chance < 0.07:
            part = record_of(SHARED, 0, rng.randbytes(rng.randrange(40)), sequence)  # too short, or no checksum
        elif chance < 0.09:
            strange: dict[str, Any] = rng.choice([{"column": 1 << 16}, {"sequence": 1 << 62}, {"id_": 1 << 62}])
            given = {"column": 1, "sequence": sequence} | strange
            part = record_of(SHARED, payload=payload_of(rng.randbytes(40)), **given)
        else:
            key = rng.randrange(KEYS).to_bytes(16, "little")
            size = rng.choice(SIZES if rng.random() < 0.1 else SIZES[:5])
            part = record_of(SHARED, rng.randrange(3), payload_of(key + rng.randbytes(size)), sequence)
        places.append((at, len(part)))
        parts.append(part)
        at += len(part)
    body = HEADER.pack(MAGIC, VERSION, 0, 7, at, 1, bytes(16), 0, 0, 0)[:-4]
    path.write_bytes(body + struct.pack("<I", zlib.crc32(body)) + b"".join(parts))
    return places


def damage(path: Path, rng: random.Random, places: list[tuple[int, int]]) -> None:
    """Change a few bytes, of heads, keys, payloads and padding, and cut the file."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([0, 1, 5])):
        at, nbytes = rng.choice(places)
        content[at + rng.choice([rng.randrange(40), 40 + rng.randrange(16), rng.randrange(nbytes), nbytes - 1])] ^= 1
    for _ in range(rng.choice([0, 0, 1])):  # a hole
        at, nbytes = rng.choice(places)
        content[at : at + nbytes] = bytes(nbytes)
    path.write_bytes(content[: len(content) - rng.choice([0, 0, rng.randrange(200)])])


def found_in(path: Path, index: core.SharedIndex | None, verified: bool) -> tuple[Any, ...]:
    """Return all that a reader learns of a file."""
    values = None if index is None else Values(index, verified)
    found, records, damages = read_region(path, values=values)
    assert found is not None
    learned = found.used, found.sequence, found.size, found.finished, records, damages
    found.close()
    if index is None:
        return learned
    keys = [(c, number.to_bytes(16, "little")) for c in range(3) for number in range(KEYS)]
    held = {key: index.copies(index.find(*key)) for key in keys if index.find(*key) >= 0}
    return *learned, held, len(index), index.copied_bytes


@pytest.mark.parametrize("seed", range(60))
def test_runs_are_read_as_one_by_one(seed: int, tmp_path: Path) -> None:
    rng, path = random.Random(seed), tmp_path / "000000000007.region"
    damage(path, rng, write_region(path, rng, rng.choice([3, 60, 3000 if seed % 10 == 0 else 300])))
    for verified in (None, True, False):
        with mock.patch.object(core, "find_values", lambda *given: 0):
            expected = found_in(path, None if verified is None else core.SharedIndex(), bool(verified))
        found = found_in(path, None if verified is None else core.SharedIndex(), bool(verified))
        assert found == expected


@pytest.mark.skipif(os.name == "nt", reason="the core reads no files there")
def test_a_long_run_takes_few_calls(tmp_path: Path) -> None:
    path = tmp_path / "000000000007.region"
    with mock.patch.object(random.Random, "random", lambda self: 0.5):  # values only
        places = write_region(path, random.Random(0), 5000)
    descriptor = os.open(path, os.O_RDONLY)
    found = np.empty((9000, 7), np.uint64)
    try:
        for verified in (True, False):
            end = sum(places[-1])
            assert core.find_values(descriptor, HEADER.size, end, verified, found) == len(places)
            assert found[: len(places), 0].tolist() == [at + RECORD.size for at, _ in places]
            assert core.find_values(descriptor, HEADER.size, end - 8, verified, found) == len(places) - 1
            assert core.find_values(descriptor, HEADER.size + 8, end, verified, found) == 0
    finally:
        os.close(descriptor)
    with mock.patch.object(core, "find_values", wraps=core.find_values) as calls:
        read, records, _ = read_region(path)
    assert read is not None and len(records) == 5000 and calls.call_count == -(-5000 // region._RUN)
    read.close()
