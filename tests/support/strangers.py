"""Stores that nobody's release wrote: sound ones of the corpus, anything in them changed, under checksums that hold.

    PYTHONPATH=src:. python -m tests.support.strangers 3000

tries so many and prints what came of them. ``tests/format/test_hostile.py`` tries a few.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.disk.store_folder import packed_manifest
from sharpwave.format import checkpoint_state, segment
from sharpwave.format.checkpoint_state import read_state
from sharpwave.format.region import (
    DICTIONARY,
    HEADER,
    MAGIC,
    MAX_GENERATION,
    MAX_NUMBER,
    MAX_SEQUENCE,
    RECORD,
    RECORD_MAGIC,
    SEGMENT,
    TAIL,
    read_region,
)
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey
from sharpwave.sampling.sampler_protocol import Sampler

CORPUS = Path(__file__).parent.parent / "data"
REFUSED = (sw.DamagedError, sw.NewerVersionError, FileNotFoundError, MemoryError)
"""What opening a stranger's store may raise. A limit that no machine has room for is refused with a MemoryError."""
LIMIT_S = 30
METADATA = ["[" * 5000, '{"a":' * 3000, "{}", "null", '{"episodes":[[0,{}],[0,{}]]}', '{"episodes":[[99,{"a":1}]]}']
METADATA += ['{"episodes":{}}', '{"episodes":[[1.0,{}]]}', '{"episodes":[[0,[]]]}', '{"following":7}']
METADATA += [
    '{"episodes":[[0,{"a":NaN}]]}',
    '{"episodes":[[0,{"$bytes":"%%"}]]}',
    '{"episodes":[[3,{"a":1e999}]]}',
    "\ud7ff",
]
"""What may stand in place of a segment's metadata."""

NUMBERS = [0, 1, 2, 3, 7, 8, 127, 255, 256, 65535, 65536, 2**20 - 1, 2**20, 2**30 - 1, 2**30, 2**31 - 1, 2**31]
NUMBERS += [2**32 - 1, 2**32, 2**53, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
NUMBERS += [one - k for one in (MAX_NUMBER, MAX_GENERATION, MAX_SEQUENCE, segment.MAX_NUMBER) for k in (1, 2, 1100)]
OTHERS: list[Any] = [
    None,
    True,
    False,
    "",
    "x",
    "\x1b[31m",
    "[red]",
    [],
    {},
    [[]],
    {"kind": "Fifo"},
    {"fields": {}},
    0.5,
    -1,
    1e308,
]
OTHERS += [float("inf"), float("nan"), 10**30, -(2**63), "9" * 40, ["\ud800"]]


def altered(value: Any, rng: random.Random) -> Any:
    """Another value in place of one of JSON, or of a tree of arrays."""
    if isinstance(value, np.ndarray) and rng.random() < 0.8:
        return _altered_array(value, rng)
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        found = dict(value)
        how = rng.random()
        if how < 0.1:
            del found[key]
        elif how < 0.15:
            found[rng.choice(["more", "array", "dict", "0", "99", key + "2"])] = value[key]
        else:
            found[key] = altered(value[key], rng)
        return found
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], altered(value[at], rng), *value[at + rng.randrange(2) :]]
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice([-1, 1, 7, 1 << 20, -value * 2])
    return rng.choice([*OTHERS, *NUMBERS])


def _altered_array(array: np.ndarray[Any, Any], rng: random.Random) -> Any:
    how = rng.randrange(6)
    if how == 0:
        return array[: rng.randrange(len(array) + 1)] if array.ndim else array
    if how == 1:
        return np.concatenate([array, array]) if array.ndim else array.reshape(1, 1)
    if how == 2:
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(["int8", "int64", "float32", "float64", "uint8", "bool", "uint64"]))
    if how == 3:
        return array.reshape(1, *array.shape)
    found = array.copy()
    for _ in range(rng.choice([1, 1, 1, 5])):
        if found.size:
            values = NUMBERS if found.dtype.kind in "iu" else [0.0, -1.0, 1e300, float("nan"), float("inf"), 0.5]
            with np.errstate(all="ignore"):
                found.reshape(-1)[rng.randrange(found.size)] = np.array(rng.choice(values)).astype(found.dtype)
    return found


def alter_manifest(folder: Path, rng: random.Random) -> None:
    path = folder / "store.json"
    manifest = json.loads(path.read_text())
    found = altered(manifest, rng)
    path.write_bytes(packed_manifest(found) if isinstance(found, dict) else json.dumps(found).encode())


def alter_state(folder: Path, rng: random.Random) -> None:
    (path,) = folder.rglob("state.npz")
    tree = read_state(path)
    for _ in range(rng.choice([1, 1, 2, 4])):
        tree = altered(tree, rng) if isinstance(tree, dict) else tree
    path.unlink()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    checkpoint_state.write_tree(descriptor, tree)
    os.close(descriptor)


def _with_crc(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(4, "little")


def alter_header(folder: Path, rng: random.Random) -> None:
    path = rng.choice(sorted(folder.rglob("*.region")))
    content = bytearray(path.read_bytes())
    fields = list(HEADER.unpack_from(content))
    at = rng.choice([3, 3, 4, 5, 7, 7, 7, 8])
    fields[at] = rng.choice(NUMBERS)
    content[: HEADER.size] = _with_crc(HEADER.pack(MAGIC, *fields[1:8], fields[8] & 0xFFFFFFFF, 0)[:-4])
    path.write_bytes(content)


def alter_record(folder: Path, rng: random.Random) -> None:
    path, content, record = _some_record(folder, rng, (SEGMENT, TAIL, DICTIONARY))
    begin = record.offset - RECORD.size
    _, kind, nbytes, id_, sequence, column, _ = RECORD.unpack_from(content, begin)
    what = rng.choice(
        ["kind", "id", "id", "generation", "generation", "slot", "sequence", "sequence", "column", "nbytes"]
    )
    number = rng.choice(NUMBERS)
    if what == "kind":
        kind = rng.choice([0, 1, 2, 3, 4, 5, 6, 2**32 - 1])
    elif what == "id":
        id_ = number
    elif what == "generation":
        id_ = (number & 0xFFFFFFFF) << 32 | id_ & 0xFFFFFFFF
    elif what == "slot":
        id_ = id_ >> 32 << 32 | (number * 16) & 0xFFFFFFFF
    elif what == "sequence":
        sequence = number
    elif what == "column":
        column = number & 0xFFFFFFFF
    else:
        nbytes = rng.choice([number, nbytes - 8, nbytes + 8, nbytes // 2])
    content[begin : record.offset] = _with_crc(
        RECORD.pack(RECORD_MAGIC, kind, nbytes & (2**64 - 1), id_ & (2**64 - 1), sequence, column, 0)[:-4]
    )
    path.write_bytes(content)


def alter_segment(folder: Path, rng: random.Random) -> None:
    path, content, record = _some_record(folder, rng, (SEGMENT, SEGMENT, SEGMENT, TAIL))
    data = bytearray(content[record.offset : record.offset + record.nbytes])
    table, columns = segment.HEADER.size, int.from_bytes(data[6:8], "little")
    for _ in range(rng.choice([1, 1, 2, 3])):
        whats = ["lane", "lane", "first_step", "steps", "frames", "context", "table", "payload", "payload"]
        places = {"lane": (16, 8), "first_step": (24, 8), "steps": (32, 4), "frames": (36, 4), "context": (40, 4)}
        if table == segment.HEADER.size:
            places |= {"features": (60, 4), "required": (56, 4), "episode_step": (64, 8), "metadata_bytes": (44, 4)}
            whats += [
                "features",
                "required",
                "episode_step",
                "episode_step",
                "metadata_bytes",
                "metadata",
                "metadata",
                "metadata",
            ]
        what = rng.choice(whats)
        if what == "metadata":
            begin, size = table + segment.COLUMN.size * columns, int.from_bytes(data[44:48], "little")
            begin = min(begin, len(data) - 4)
            size = min(size, len(data) - 4 - begin)
            data[begin : begin + size] = rng.choice(METADATA).encode()[:size].ljust(size)
            continue
        if what in places:
            begin, size = places[what]
        elif what == "table":
            size = 4
            begin = table + 4 * rng.randrange(segment.COLUMN.size * columns // 4)
        else:
            size = rng.choice([1, 1, 4, 16])
            begin = rng.randrange(table + columns * segment.COLUMN.size, len(data) - 20)
        value = rng.choice(NUMBERS) if what != "payload" else rng.getrandbits(8 * size)
        data[begin : begin + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    content[record.offset : record.offset + record.nbytes] = _with_crc(bytes(data[:-4]))
    path.write_bytes(content)


def _some_record(folder: Path, rng: random.Random, kinds: tuple[int, ...]) -> tuple[Path, bytearray, Any]:
    path = rng.choice(sorted(folder.rglob("*.region")))
    region, records, _ = read_region(path)
    assert region is not None
    region.close()
    kind = rng.choice(kinds)
    record = rng.choice([one for one in records if one.kind == kind] or [one for one in records if one.kind in kinds])
    return path, bytearray(path.read_bytes()), record


ALTERATIONS: dict[str, Callable[[Path, random.Random], None]] = {
    "store.json": alter_manifest,
    "state.npz": alter_state,
    "region header": alter_header,
    "record": alter_record,
    "segment": alter_segment,
}


def make(folder: Path, what: str, seed: int) -> None:
    """A stranger's store, of which ``what`` was changed."""
    rng = random.Random(f"{what} {seed}")
    names = ["memory-checkpoint", "disk-checkpoint"] + ["flushed", "reservoir"] * (what != "state.npz")
    with zipfile.ZipFile(CORPUS / "v2" / f"{rng.choice(names)}.zip") as file:
        file.extractall(folder)
    ALTERATIONS[what](folder, rng)


def use(folder: Path, specs: list[sw.Spec]) -> str:
    """Look at a store, open it, learn from it, write to it, and open it again. Returns how it was opened.

    Raises: whatever must not be raised.
    """
    damaged = True
    try:
        damaged = bool(check(folder).damages)
        survey(folder)
    except REFUSED:
        pass
    try:
        store = sw.Store.open(folder)
    except REFUSED as error:
        return type(error).__name__
    written = 0
    try:
        assert store.recovery is not None
        named = bool(store.recovery.damages)
        if store.spec.schema_hash not in [spec.schema_hash for spec in specs]:
            return "another spec"
        samplers: dict[str, Sampler] = {"transitions": sw.Prioritized(alpha=0.6), "transitions-2": sw.Uniform()}
        for name, sampler in samplers.items():
            try:
                view = store.transitions(name=name, n_step=3, gamma=0.9, sampler=sampler)
            except MemoryError:  # tables for a capacity that no machine has room for
                return "MemoryError"
            try:
                for _ in range(3):
                    view.sample(32)
            except (sw.EmptyError, sw.DamagedError):  # nothing is left that is whole
                assert len(view) == 0 or named or damaged
            with contextlib.suppress(sw.DamagedError):
                store.annotations_of(view.sampleable_ids()[:50])
        store.annotations()
        written = play(store, 40)
        store.stats()
        on_disk = "disk" in store.stats()
    finally:
        with contextlib.suppress(OSError):  # its numbers are used up, and something was not flushed
            store.close()
    if on_disk and written:
        with sw.Store.open(folder) as again:
            if again.capacity is None or again.capacity < 200 or not isinstance(again._settings.retention, sw.Fifo):
                return "opened"
            assert {7_000_000, 7_000_036} <= set(serials_of(again)), "what was flushed is gone"
    return "opened, damage named" if named or damaged else "opened, other values"


def serials_of(store: sw.Store) -> list[int]:
    """Of the steps that can be read."""
    view, found = store.transitions(), []
    for id_ in view.sampleable_ids().tolist():
        with contextlib.suppress(sw.DamagedError):
            found.append(int(view.fetch([id_])["serial"][0]))
    return found


def play(store: sw.Store, count: int) -> int:
    """Append steps to lane 0 and flush them; returns how many could be, before its numbers were used up."""
    more: dict[str, Any] = {"core": np.ones((2, 3), np.float32)} if "core" in store.spec.fields else {}
    for serial in range(7_000_000, 7_000_000 + count):
        try:
            store.append(
                obs={"image": np.full((12, 8), serial % 250, np.uint8), "text": np.full(64, serial, np.float32)},
                action=0, reward=1, serial=serial, terminated=serial % 10 == 9, truncated=False, **more,
            )  # fmt: skip
        except (OverflowError, ValueError):
            return 0
    try:
        store.flush()
    except OverflowError:
        return 0
    return count


def main(count: int) -> None:
    """Try ``count`` of each sort, and print what came of them."""
    from tests.format.test_versions import WRITE

    specs = [WRITE["SPEC"], WRITE["SPEC_1"]]
    total = wrong = 0
    for what in ALTERATIONS:
        outcomes: collections.Counter[str] = collections.Counter()
        slowest = 0.0
        for seed in range(count):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / "s"
                make(folder, what, seed)
                begin = time.perf_counter()
                signal.alarm(LIMIT_S)
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        outcome = use(folder, specs)
                except Exception as error:
                    outcome = f"!! {type(error).__name__}"
                    wrong += 1
                    print(f"{what} {seed}: {error!r}", traceback.format_exc().splitlines()[-4:], flush=True)
                finally:
                    signal.alarm(0)
                slowest = max(slowest, time.perf_counter() - begin)
                shutil.rmtree(folder, ignore_errors=True)
            outcomes[outcome] += 1
        total += count
        print(f"{what}: {dict(outcomes.most_common())}, slowest {slowest:.1f} s", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{total:,} stores of strangers, {wrong} times something else than was promised; {peak:,.0f} MiB at most")


if __name__ == "__main__":
    main(int(sys.argv[1]))
