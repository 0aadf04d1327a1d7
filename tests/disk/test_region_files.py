"""Region files against a list of what was appended: whole, cut off anywhere, any bit flipped, on a failing disk."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharpwave.codecs.dictionaries import key_of
from sharpwave.disk.region_files import RegionFiles
from sharpwave.format.region import DICTIONARY, NOTE, SEGMENT, TAIL, Identity, read_region
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from tests.support.examples import examples
from tests.support.small_disk import fill, mounted

ME = Identity(bytes(range(16)), 77)


def segment(rng: np.random.Generator, nbytes: int) -> bytes:
    body = rng.integers(0, 256, nbytes, dtype=np.uint8).tobytes()
    return body + zlib.crc32(body).to_bytes(4, "little")


def filled(folder: Path, sizes: list[int], region_bytes: int = 4096, files: Files | None = None) -> dict[int, bytes]:
    """Segments with ids 100, 101, ..., every second of which refers to one of two dictionaries."""
    rng = np.random.default_rng(0)
    regions = RegionFiles(Files().make_folder(folder), ME, region_bytes, files or Files())
    words = [b"one dictionary" * 3, b"another" * 9]
    written = {}
    for i, size in enumerate(sizes):
        needed = {(2, key_of(words[i % 4 // 2])): words[i % 4 // 2]} if i % 2 else {}
        written[100 + i] = segment(rng, size)
        regions.append(SEGMENT, 100 + i, written[100 + i], generation=5, dictionaries=needed)
    regions.sync()
    regions.close()
    return written


def recovered(folder: Path) -> tuple[dict[int, bytes], list[str]]:
    regions = RegionFiles(Files().make_folder(folder), ME, 4096, Files())
    scan = regions.find()
    content = {}
    for record in scan.records:
        if record.kind in (SEGMENT, TAIL):
            out = bytearray(record.nbytes)
            regions.read(record.region, record.offset, memoryview(out))
            content[record.id] = bytes(out)
    regions.close()
    return content, [str(damage) for damage in scan.damages]


def test_what_was_appended_comes_back_and_each_region_holds_its_dictionaries(tmp_path: Path) -> None:
    written = filled(tmp_path, [50, 700, 1, 2000, 900, 3000, 10_000, 20])  # one larger than a region
    assert recovered(tmp_path) == (written, [])
    paths = sorted(tmp_path.glob("*.region"))
    assert len(paths) > 2
    for path in paths:
        region, records, damages = read_region(path, ME)
        assert region is not None and not damages and path.stat().st_size == region.size
        os.close(region.descriptor)
        held = {record.id for record in records if record.kind == DICTIONARY}
        for record in records:
            i = record.id - 100
            if record.kind == SEGMENT and i % 2:
                assert key_of([b"one dictionary" * 3, b"another" * 9][i % 4 // 2]) in held


def test_the_oldest_region_goes_and_the_others_stay(tmp_path: Path) -> None:
    written = filled(tmp_path, [1500] * 8)
    regions = RegionFiles(Files().make_folder(tmp_path), ME, 4096, Files())
    found = regions.find().records
    first = min(regions.regions)
    gone = {record.id for record in found if record.region == first}
    before = regions.nbytes
    regions.delete(first)
    assert regions.nbytes == before - 4096
    regions.close()
    content, damages = recovered(tmp_path)
    assert content == {id_: data for id_, data in written.items() if id_ not in gone} and not damages


def test_recovery_goes_on_in_a_new_file_and_changes_none(tmp_path: Path) -> None:
    written = filled(tmp_path, [100, 200])
    before = {path: path.read_bytes() for path in tmp_path.glob("*.region")}
    regions = RegionFiles(Files().make_folder(tmp_path), ME, 4096, Files())
    regions.find()
    regions.append(TAIL, 500, segment(np.random.default_rng(1), 10), 6, {})
    regions.close()
    assert all(path.read_bytes() == content for path, content in before.items())
    assert set(recovered(tmp_path)[0]) == {*written, 500}


@pytest.mark.parametrize("cut", [0, 1, 71, 72, 73, 100, 112, 500, 1000, 1535])
def test_a_file_that_was_cut_off_gives_what_lies_before_the_cut(tmp_path: Path, cut: int) -> None:
    written = filled(tmp_path, [100, 300, 50, 400, 90], region_bytes=1536)
    (path,) = tmp_path.glob("*.region")
    os.truncate(path, cut)
    content, damages = recovered(tmp_path)
    assert all(written[id_] == data for id_, data in content.items())
    assert list(content) == list(written)[: len(content)]
    assert any(str(path) in damage for damage in damages)
    assert recovered(tmp_path) == (content, damages)  # looking changes nothing


@settings(max_examples=examples(150), deadline=None)
@given(place=st.integers(0, 2047), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found_and_named_and_costs_one_record(
    place: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("regions")
    written = filled(folder, [100, 300, 50, 400, 90], region_bytes=2048)
    (path,) = folder.glob("*.region")
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)
    content, damages = recovered(folder)
    assert damages and all(str(path) in damage for damage in damages)
    assert all(written[id_] == payload for id_, payload in content.items())
    assert len(content) >= (4 if place >= 72 else 0)


def test_a_region_of_another_store_is_named_and_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, [100])
    regions = RegionFiles(Files().make_folder(tmp_path), Identity(bytes(16), 77), 4096, Files())
    scan = regions.find()
    assert not scan.records and "region of store 000102" in str(*scan.damages)
    regions.append(SEGMENT, 1, segment(np.random.default_rng(0), 5), 0, {})
    assert len(list(tmp_path.glob("*.region"))) == 2


class Failing(Files):
    """Fails at the n-th call of one method; a write puts down only a part of its bytes."""

    def __init__(self, method: str, at: int) -> None:
        self.method, self.at = method, at

    def _count(self, method: str) -> None:
        if method == self.method:
            self.at -= 1
            if self.at == 0:  # a disk that is full for an extent may have room for a record
                raise OSError(*((5, "Input/output error") if method == "allocate" else (28, "No space left on device")))

    def open(self, directory: Directory, name: str) -> int:
        self._count("open")
        return super().open(directory, name)

    def allocate(self, descriptor: int, offset: int, nbytes: int) -> None:
        self._count("allocate")
        super().allocate(descriptor, offset, nbytes)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        try:
            self._count("pwrite")
        except OSError:
            super().pwrite(descriptor, data[: len(data) // 2], offset)
            raise
        super().pwrite(descriptor, data, offset)

    def fsync_folder(self, directory: Directory) -> None:
        self._count("fsync_folder")
        super().fsync_folder(directory)


@pytest.mark.parametrize("method", ["open", "allocate", "pwrite", "fsync_folder"])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_an_append_that_fails_is_as_if_it_had_not_been_made(tmp_path: Path, method: str, at: int) -> None:
    rng = np.random.default_rng(0)
    regions = RegionFiles(Files().make_folder(tmp_path), ME, 2048, Failing(method, at))
    written, failures = {}, 0
    for i in range(20):
        payload = segment(rng, 300)
        dictionary = bytes([i % 3]) * 40
        try:
            regions.append(SEGMENT, i, payload, 0, {(2, key_of(dictionary)): dictionary})
        except OSError:
            failures += 1
        else:
            written[i] = payload
    regions.close()
    assert failures == 1
    assert recovered(tmp_path) == (written, [])


def test_a_full_disk_has_room_for_notes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with mounted(tmp_path / "full", 2) as folder:
        regions = RegionFiles(Files().make_folder(folder / "regions"), ME, 1 << 20, Files())
        written = {}
        with pytest.raises(OSError, match="No space left"):
            for i in range(1000):
                payload = segment(rng, 3000)
                regions.append(SEGMENT, i, payload, 0, {})
                written[i] = payload
        fill(folder)
        note = segment(rng, 900)
        for _ in range(8):
            regions.append(NOTE, 0, note, 0, {})
        regions.close()
        assert len(written) > 300 and recovered(folder / "regions") == (written, [])
