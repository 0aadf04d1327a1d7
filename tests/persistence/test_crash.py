"""Every file operation of a store's life fails in every way, or is its last: what was acknowledged is there."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import sharpwave as sw
from sharpwave.disk.compaction import Compaction
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.region_files import RegionFiles
from sharpwave.disk.store_folder import read_manifest
from sharpwave.format import segment
from sharpwave.format.region import RECORD, SEGMENT, Identity, read_region
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from tests.disk.tier import NoClaims
from tests.support.examples import stride
from tests.support.faults import (
    CAPACITY,
    RESERVOIR,
    SEGMENT_STEPS,
    SPEC,
    frame,
    killed,
    on,
    round_of,
    serials_of,
)
from tests.support.faulty import ERRORS, KINDS, Faulty
from tests.support.kinds import EACH_KIND

ME = Identity(bytes(16), 5)


@pytest.mark.parametrize("kind", EACH_KIND)
def test_nothing_acknowledged_is_lost_at_any_operation(tmp_path: Path, kind: str) -> None:
    """Every seventh operation in CI, other ones for each kind; all of them in benchmarks/crash.py."""
    operations = round_of(tmp_path / "whole", "delta", 0, kind).log
    made, written = {"open", "truncate", "allocate", "rename", "unlink"}, {"open_again", "pwrite"}
    assert made | written | {"fsync", "fsync_folder"} == set(operations)
    for at in range(1 + KINDS.index(kind) % 7, len(operations) + 1, stride(7)):
        try:
            files = round_of(tmp_path / str(at), "delta", at, kind, seed=at)
        except BaseException as error:
            error.add_note(f"operation {at}, {operations[at - 1]}: {kind}")
            raise
        assert files.count >= at and files.dead != (kind in ERRORS)


@pytest.mark.parametrize("kind", EACH_KIND)
def test_nothing_acknowledged_is_lost_at_any_operation_of_a_compaction(tmp_path: Path, kind: str) -> None:
    """Every seventh operation of all that a reservoir's regions are copied with, other ones for each kind."""
    compactions: list[range] = []
    watched = Faulty(seed=1)

    compact_one = Compaction.compact

    def compact(*args: Any, **more: Any) -> bool:
        begin = watched.count + 1
        moved = compact_one(*args, **more)
        compactions.append(range(begin, watched.count + 1))
        return moved

    settings: dict[str, Any] = {"appends": 300, "settings": RESERVOIR}
    with mock.patch.object(Compaction, "compact", compact):
        round_of(tmp_path / "whole", "delta", 0, kind, files=watched, **settings)
    compactions = [one for one in compactions if len(one)]
    assert len(compactions) > 10
    names = [watched.log[at - 1] for one in compactions for at in one]
    assert {"open", "pwrite", "fsync", "rename", "unlink"} <= set(names)
    places = [at for one in compactions[:2] + compactions[-2:] for at in one]
    for at in places[KINDS.index(kind) % 7 :: stride(7)]:
        try:
            files = round_of(tmp_path / str(at), "delta", at, kind, seed=at, **settings)
        except BaseException as error:
            error.add_note(f"operation {at}, {watched.log[at - 1]}: {kind}")
            raise
        assert files.count >= at and files.dead != (kind in ERRORS)


@pytest.mark.parametrize(("at", "seed"), [(118, 118), (117, 8117)])
def test_a_gap_in_what_a_power_cut_left_takes_nothing_before_it_along(tmp_path: Path, at: int, seed: int) -> None:
    """A segment without its dictionary, and the next one whole: those before had been taken for evicted."""
    round_of(tmp_path / "x", "delta", at, "power cut", seed=seed)


def payload(nbytes: int, value: int) -> bytes:
    body = bytes([value]) * nbytes
    return body + zlib.crc32(body).to_bytes(4, "little")


def found_in(folder: Path) -> set[tuple[int, int]]:
    """(kind, id) of every record that is whole."""
    regions = RegionFiles(Files().make_folder(folder), ME, 4096, Files())
    found = regions.find().records
    regions.close()
    return {(record.kind, record.id) for record in found}


def test_flushed_rows_go_only_when_what_replaces_them_is_on_disk(tmp_path: Path) -> None:
    files = Faulty()
    with on(files):
        disk = DiskTier(tmp_path, ME, None, None, files)
        disk.begin(NoClaims(), 16, in_order=True)
        disk.append_tail(7, payload(100, 1), 0)
        disk.regions.sync()
        for i in range(3):  # the next regions
            disk.append(100 + i, payload(3900, 2), 0, {})
        for i in range(2):
            disk.release(1 + i, 3904)
        assert disk.append(7, payload(120, 3), 0, {}) and len(disk.regions.regions) < 4, "the first region has gone"
        disk.close()
    files.cut_power(tmp_path, kept_share=0.0)
    regions = RegionFiles(Files().make_folder(tmp_path / "regions"), ME, 4096, Files())
    found = regions.find().records
    regions.close()
    assert 7 in {record.id for record in found}


def small_store(folder: Path) -> sw.Store:
    return sw.Store(SPEC, capacity=CAPACITY, disk=folder, segment_steps=SEGMENT_STEPS, codec="raw")


def append(store: sw.Store, lane: int, serials: range) -> None:
    for serial in serials:
        store.append(
            lane=lane, obs=frame(serial), action=serial, reward=0, serial=serial, terminated=False, truncated=False
        )


def test_opening_deletes_flushed_rows_only_when_they_are_on_disk_anew(tmp_path: Path) -> None:
    files = Faulty()
    with on(files):
        with small_store(tmp_path) as store:
            append(store, 0, range(3))
            store.flush()
            store.checkpoint(tmp_path / "c")  # and so the region is not written on
        with sw.Store.open(tmp_path) as store:
            assert serials_of(store) == [0, 1]
        assert "unlink" in files.log
    files.cut_power(tmp_path, kept_share=0.0)
    with sw.Store.open(tmp_path) as store:
        assert serials_of(store) == [0, 1]


@pytest.mark.parametrize("end", ["going on", "finished", "torn"])
def test_a_flush_is_also_one_of_what_a_killed_process_left(tmp_path: Path, end: str) -> None:
    files = Faulty()
    with on(files):
        store = small_store(tmp_path)
        append(store, 0, range(16))
        regions = store._log.disk.regions  # type: ignore[union-attr]
        newest = regions.newest
        assert newest is not None and newest.synced < newest.used, "or nothing would be tested"
        if end == "finished":
            regions.finish()  # as a checkpoint begins
        if end == "torn":
            files.pwrite(newest.descriptor, b"half a record", newest.used)
        killed(store)
        with sw.Store.open(tmp_path) as store:
            kept = serials_of(store)
            store.flush()
    files.cut_power(tmp_path, kept_share=0.0)
    with sw.Store.open(tmp_path) as store:
        assert kept == serials_of(store) == list(range(kept[-1] + 1)) and len(kept) > 8


@pytest.mark.parametrize("retention", [sw.Reservoir(3), sw.LowestPriority()])
def test_flushing_what_is_flushed_lets_nothing_go(tmp_path: Path, retention: Any) -> None:
    with on(Faulty()):
        settings = {"disk_limit": 8 * 4096, "retention": retention}
        with sw.Store(SPEC, disk=tmp_path, segment_steps=SEGMENT_STEPS, codec="raw", **settings) as store:
            for serial in range(0, 300, 2):
                for lane in range(2):
                    append(store, lane, range(serial + lane, serial + lane + 1))
                store.flush()
                held = len(store)
                store.flush()
                assert len(store) == held
            assert held < 200, "the limit is reached"


def test_a_sync_that_failed_is_not_believed_the_next_time(tmp_path: Path) -> None:
    """The system says once that it could not write, and then counts the bytes as written."""
    files = Faulty()
    regions = RegionFiles(Files().make_folder(tmp_path), ME, 4096, files)
    regions.append(SEGMENT, 1, payload(100, 1), 0, {})
    files.at, files.kind = files.count + 1, "EIO"
    with pytest.raises(OSError):
        regions.sync()
    regions.append(SEGMENT, 2, payload(100, 2), 0, {})
    regions.sync()
    regions.close()
    files.cut_power(tmp_path, kept_share=0.0)
    assert found_in(tmp_path) == {(SEGMENT, 1), (SEGMENT, 2)}


@pytest.mark.parametrize("then", ["a smaller one", "another region", "nothing"])
def test_what_a_failed_write_left_is_made_zeros_again(tmp_path: Path, then: str) -> None:
    class HalfWritten(Files):
        fails = False

        def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
            super().pwrite(descriptor, data[:-9] if self.fails else data, offset)
            if self.fails:
                self.fails = False
                raise OSError(28, "No space left on device")

    files = HalfWritten()
    regions = RegionFiles(Files().make_folder(tmp_path), ME, 4096, files)
    regions.append(SEGMENT, 1, payload(100, 1), 0, {})
    files.fails = True
    with pytest.raises(OSError):
        regions.append(SEGMENT, 2, payload(2000, 2), 0, {})
    if then != "nothing":
        regions.append(SEGMENT, 3, payload(50 if then == "a smaller one" else 4000, 3), 0, {})
    regions.close()
    for path in tmp_path.glob("*.region"):
        region, _, damages = read_region(path, ME)
        assert region is not None and not damages
        os.close(region.descriptor)
    assert found_in(tmp_path) == {(SEGMENT, 1)} | ({(SEGMENT, 3)} if then != "nothing" else set())


def test_rows_that_were_flushed_outlive_segments_that_had_left(tmp_path: Path) -> None:
    """What had left is there again when the store is opened, as long as its region is; it leaves first."""
    with small_store(tmp_path) as store:
        append(store, 1, range(1000, 1003))
        store.flush()
        append(store, 0, range(100))
    with sw.Store.open(tmp_path) as store:
        assert len(store) <= CAPACITY and set(serials_of(store)) >= {1000, 1001, 99 - SEGMENT_STEPS}


def test_a_region_that_cannot_be_deleted_is_tried_again(tmp_path: Path) -> None:
    files = Faulty()
    with on(files), small_store(tmp_path) as store:
        append(store, 0, range(CAPACITY))
        while "unlink" not in files.log:
            append(store, 0, range(store.total_steps, store.total_steps + 1))
        before = store.stats()["disk"]["bytes"]
        refused = False

        def unlink(directory: Directory, name: str) -> None:
            nonlocal refused
            refused = True
            raise OSError(5, "Input/output error")

        files.unlink = unlink  # type: ignore[method-assign]
        while not refused:
            append(store, 0, range(store.total_steps, store.total_steps + 1))
        more = store.stats()["disk"]["bytes"]
        assert more >= before and store.stats()["disk"]["failures"] == 1
        del files.unlink
        append(store, 0, range(store.total_steps, store.total_steps + 8))
        assert store.stats()["disk"]["bytes"] <= more
        assert serials_of(store) == list(range(store.total_steps - len(store), store.total_steps - 1))


def test_a_segment_without_its_dictionary_gives_way_to_the_rows_that_were_flushed(tmp_path: Path) -> None:
    files = Faulty()
    with small_store(tmp_path) as store:
        append(store, 0, range(3))
        store.flush()
        id_, rows = store._log.opened.pack_so_far(0)
    column = segment.HEADER.size + segment.COLUMN.size * 3 - 8
    broken = rows[:column] + (99).to_bytes(8, "little") + rows[column + 8 : -4]
    manifest = read_manifest(tmp_path)
    me = Identity(bytes.fromhex(manifest["store"]), manifest["schema"])
    regions = RegionFiles(Files().make_folder(tmp_path / "regions"), me, 4096, files)
    regions.find()
    regions.append(SEGMENT, id_, broken + zlib.crc32(broken).to_bytes(4, "little"), 0, {})
    regions.close()
    with sw.Store.open(tmp_path) as store:
        assert store.recovery is not None and "dictionary 0000000000000063" in store.recovery.damages[0]
        assert serials_of(store) == [0, 1]


def test_quarantine_keeps_what_it_has(tmp_path: Path) -> None:
    small_store(tmp_path).close()
    me = bytes.fromhex(read_manifest(tmp_path)["store"])
    for turn in range(3):
        (tmp_path / "regions" / "000000000000.region").write_bytes(bytes(40) + me + b"turn %d" % turn)
        with sw.Store.open(tmp_path) as store:
            assert store.recovery is not None and len(store.recovery.damages) == 1
    found = {path.read_bytes()[56:] for path in (tmp_path / "quarantine").iterdir()}
    assert found == {b"turn 0", b"turn 1", b"turn 2"}


def test_a_full_disk_at_opening_costs_nothing(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        append(store, 0, range(3))
        store.flush()
    with on(Faulty(1, "ENOSPC")), pytest.raises(OSError, match="No space left"):
        sw.Store.open(tmp_path)
    with sw.Store.open(tmp_path) as store:
        assert serials_of(store) == [0, 1]


def test_a_flipped_bit_in_every_byte_and_every_cut_of_a_manifest_is_found(tmp_path: Path) -> None:
    small_store(tmp_path).close()
    path = tmp_path / "store.json"
    content = path.read_bytes()
    flips = [(at, 1 << (at % 8)) for at in range(len(content))]
    broken = [content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :] for at, flip in flips]
    for data in (*broken, *(content[:cut] for cut in range(len(content))), content + b" "):
        path.write_bytes(data)
        with pytest.raises(sw.DamagedError, match=re.escape(str(path))):
            read_manifest(tmp_path)
    with pytest.raises(sw.DamagedError, match="put back a copy"):
        sw.Store.open(tmp_path)
    path.write_bytes(content)
    assert read_manifest(tmp_path)["capacity"] == CAPACITY


def test_a_store_cut_off_anywhere_or_flipped_opens_and_is_named(tmp_path: Path) -> None:
    """At every record's boundary, a byte before and a byte behind it; every seventh of them through the whole store."""
    with small_store(tmp_path / "s") as store:
        append(store, 0, range(30))
        store.flush()
    (path,) = (tmp_path / "s" / "regions").glob("*.region")
    content = path.read_bytes()
    region, records, _ = read_region(path)
    assert region is not None and len(records) == 8
    os.close(region.descriptor)
    marks = {72} | {one.offset - RECORD.size for one in records} | {one.offset + one.nbytes for one in records}
    cuts = sorted({cut for mark in marks for cut in (mark - 1, mark, mark + 1)})
    for number, cut in enumerate(cuts):
        path.write_bytes(content[:cut])
        region, kept, damages = read_region(path)
        assert damages and kept == ([one for one in records if one.offset + one.nbytes <= cut] if region else [])
        if region is not None:
            os.close(region.descriptor)
        if number % 7 == 0:
            shutil.copytree(tmp_path / "s", tmp_path / str(cut))
            with sw.Store.open(tmp_path / str(cut)) as store:
                assert store.recovery is not None and path.name in store.recovery.damages[0]
                found = serials_of(store)
                assert found == list(range(len(found))) and len(found) >= 4 * (len(kept) - 1)
