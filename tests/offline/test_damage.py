"""Every kind of damage to a store's folder, looked at from outside: found, named, and never an exception."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk.region_files import RegionFiles
from sharpwave.disk.store_folder import packed_manifest
from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.format.region import (
    DICTIONARY,
    FIRST,
    HEADER,
    MAGIC,
    RECORD,
    RECORD_MAGIC,
    SEGMENT,
    TAIL,
    read_region,
)
from sharpwave.native.file_operations import Files
from sharpwave.offline.folder_check import check
from sharpwave.offline.scan import LIMITS, describe
from sharpwave.offline.surveys import survey
from tests.offline.written import SPEC, Writer, fill, region_of, told, written
from tests.support.examples import examples


@pytest.fixture(scope="module")
def store_bytes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A store with dictionaries and tails, and the bytes of its region file, cut behind its last record."""
    folder = tmp_path_factory.mktemp("sound")
    written(folder, steps=300)
    path = region_of(folder)
    region, _, _ = read_region(path)
    assert region is not None and region.keys
    os.close(region.descriptor)
    return folder, path.read_bytes()[: region.used + 200]


@pytest.fixture
def damaged(store_bytes: tuple[Path, bytes], tmp_path: Path) -> Iterator[tuple[Path, Path, bytes]]:
    """A copy of it: its folder, its region file, that file's bytes."""
    folder, data = store_bytes
    copy = tmp_path / "store"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.region"))
    path = copy / "regions" / "000000000000.region"
    yield copy, path, data


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.offline.scan.LOOK_AGAIN_S", 0.0)


def test_every_flipped_bit_is_found_and_named(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    rng = np.random.default_rng(1)
    path.write_bytes(data)
    baseline = [damage for damage in check(folder).damages if damage.path == path]
    assert len(baseline) == 1 and "the file ends here" in baseline[0].what  # this fixture cut the file
    places = [*rng.integers(0, len(data), examples(200, most=2000)).tolist(), 0, FIRST - 1, FIRST, len(data) - 1]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        damages = [one for one in check(folder).damages if "the file ends here" not in one.what]
        assert damages, f"byte {place}"
        assert any(one.path == path and one.offset <= place < one.offset + one.nbytes for one in damages), (
            place, damages,
        )  # fmt: skip
        survey(folder)


def test_a_file_cut_off_anywhere_is_found(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    rng = np.random.default_rng(2)
    for length in [
        0,
        1,
        FIRST - 1,
        FIRST,
        FIRST + 1,
        len(data) - 1,
        *rng.integers(0, len(data), examples(100, most=1000)).tolist(),
    ]:
        path.write_bytes(data[:length])
        found = check(folder)
        assert any(one.path == path for one in found.damages)
        survey(folder)


def test_garbage_of_any_kind_is_damage_and_never_an_exception(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    rng = np.random.default_rng(3)
    kinds = [b"", b"\0" * 500, b"SWRC" * 3000, data[:FIRST] + b"SWRC" * 20_000, data[FIRST:], data + data]
    for size in (1, 40, 72, 1000, 50_000):
        noise = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
        kinds += [noise, data[:FIRST] + noise, data[:5000] + noise + data[5000:]]
    for content in kinds:
        path.write_bytes(content)
        assert check(folder).damages
        survey(folder)


def rewrite(folder: Path, kind: int, id_: int, payload: bytes) -> None:
    """A record whose checksums hold, appended in a region of its own."""
    identity = describe(folder).identity
    (number,) = {int(path.stem) + 1 for path in [max((folder / "regions").glob("*.region"))]}
    regions = RegionFiles(Files().make_folder(folder / "regions"), identity, 1 << 16, Files())
    regions.next_number, regions.sequence = number, 10**6
    regions.append(kind, id_, payload, 10**6, {})
    regions.close()


def payloads(path: Path, kind: int) -> list[tuple[int, bytes]]:
    region, records, _ = read_region(path)
    assert region is not None
    found = [(one.id, os.pread(region.descriptor, one.nbytes, one.offset)) for one in records if one.kind == kind]
    os.close(region.descriptor)
    return found


def sealed(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


def test_segments_that_lie_under_right_checksums_are_found(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    path.write_bytes(data + bytes((1 << 20) - len(data)))
    rng = np.random.default_rng(4)
    id_, one = payloads(path, SEGMENT)[3]
    path.unlink()
    reported, rounds = 0, examples(200, most=2000)
    for round_ in range(rounds):
        body = bytearray(one[:-4])
        for _ in range(int(rng.integers(1, 4))):
            body[int(rng.integers(0, len(body) if round_ % 2 else 300))] ^= 1 << int(rng.integers(8))
        body[4:6] = one[4:6]  # else it is another release's, and refused as that
        body[56:60] = one[56:60]  # the same holds for a feature that is not known
        path.write_bytes(data + bytes((1 << 20) - len(data)))
        rewrite(folder, SEGMENT, 10**6 << 32 | id_, sealed(bytes(body)))
        found = check(folder)  # some changes are other values, and as right as those before
        reported += bool([one for one in found.damages if one.path.name == f"{1:012d}.region"])
        survey(folder)
        (folder / "regions" / f"{1:012d}.region").unlink()
    assert reported > rounds / 4


def test_a_segment_that_claims_to_be_huge_is_not_believed(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    path.write_bytes(data)
    id_, one = payloads(path, SEGMENT)[0]
    body = bytearray(one[:-4])
    body[32:36] = (2**32 - 1).to_bytes(4, "little")
    body[36:40] = (2**32 - 1).to_bytes(4, "little")
    for column in range(5):
        body[segment.HEADER.size + 32 * column + 4 : segment.HEADER.size + 32 * column + 8] = (2**32 - 1).to_bytes(
            4, "little"
        )
    rewrite(folder, TAIL, 10**6 << 32 | id_, sealed(bytes(body)))
    assert any("4,294,967,295 steps" in one.what for one in check(folder).damages)


def test_a_record_as_large_as_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    import resource

    sw.Store(SPEC, capacity=100_000, disk=tmp_path).close()
    path = tmp_path / "regions" / f"{0:012d}.region"
    me = describe(tmp_path).identity
    nbytes = 1 << 29
    for kind in (SEGMENT, DICTIONARY):
        header = HEADER.pack(MAGIC, 1, 0, 0, nbytes, me.schema, me.store, 0, 0, 0)[:-4]
        record = RECORD.pack(RECORD_MAGIC, kind, nbytes - FIRST - RECORD.size, 0, 0, 0, 0)[:-4]
        parts = [header, zlib.crc32(header).to_bytes(4, "little"), record, zlib.crc32(record).to_bytes(4, "little")]
        path.write_bytes(b"".join(parts))
        os.truncate(path, nbytes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(check(tmp_path).damages) == 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_missing_dictionaries_overlaps_and_copies_are_found(tmp_path: Path) -> None:
    written(tmp_path, "delta")
    path = region_of(tmp_path)
    segments = [(id_, payload) for id_, payload in payloads(path, SEGMENT)]
    refers = [one for one in segments if any(np.frombuffer(one[1][56 : 56 + 160], "<u8").reshape(5, 4)[:, 3])]
    rewrite(tmp_path, SEGMENT, 10**6 << 32 | refers[0][0], refers[0][1])  # as written, but in another region
    damages = check(tmp_path).damages
    assert any("which this region does not hold" in one.what and one.path.stem == f"{1:012d}" for one in damages)
    (tmp_path / "regions" / f"{1:012d}.region").unlink()

    written(tmp_path / "plain", "raw")
    _, plain = payloads(region_of(tmp_path / "plain"), SEGMENT)[4]
    rewrite(tmp_path / "plain", SEGMENT, 10**6 << 32 | 10**6, plain)  # the same steps in another slot
    (damage,) = check(tmp_path / "plain").damages
    assert "are in another segment as well" in damage.what
    survey(tmp_path / "plain")

    shutil.copy(path, tmp_path / "regions" / f"{7:012d}.region")
    assert "region 0 under a wrong name, expected 000000000000.region" in check(tmp_path).damages[0].what


def test_what_does_not_belong_is_named(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    written(mine), written(other)
    stray = mine / "regions" / f"{5:012d}.region"
    shutil.copy(region_of(other), stray)
    (damage,) = check(mine).damages
    assert damage.path == stray and "region of store" in damage.what
    survey(mine)
    with sw.Store.open(mine) as store:
        assert store.recovery is not None and len(store.recovery.damages) == 1
    (mine / "notes.txt").write_text("hello")
    found = check(mine)
    assert found.damages == [damage], "another store's region is left where it is"
    assert any("notes.txt" in note for note in found.notes)
    os.mkfifo(mine / "regions" / "pipe.region")
    (mine / "regions" / "folder.region").mkdir()
    assert [one.what for one in check(mine).damages] == [
        damage.what, "a folder, expected a regular file", "a FIFO, expected a regular file"
    ]  # fmt: skip


def test_a_region_that_is_gone_leaves_gaps_and_no_wrong_episode(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=100_000, disk=tmp_path, disk_limit=16 << 20, codec="raw") as store:
        writer = Writer(store)
        fill(writer, 12_000, 2)
        store.flush()
    paths = sorted((tmp_path / "regions").glob("*.region"))
    assert len(paths) > 2
    paths[1].unlink()
    found = check(tmp_path)
    assert found.damages == [] and any("are missing" in note for note in found.notes)
    expected = {one[:3]: one for one in writer.episodes()}
    for one in survey(tmp_path).episodes:
        if one.whole:
            assert expected[one.lane, one.first_step, one.steps] == told([one])[0]
        else:
            assert (one.lane, one.first_step, one.steps) not in expected or one.end == "unfinished" or not one.begun


MANIFESTS = [
    b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": 1, "store": "00", "schema": 1}',
    b'{"format": 1, "store": "%s", "schema": Infinity}' % (b"00" * 16),
]  # fmt: skip


@pytest.mark.parametrize("content", MANIFESTS, ids=range(len(MANIFESTS)))
def test_a_damaged_manifest_is_a_damage_and_the_rest_is_checked(content: bytes, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "store.json").write_bytes(content)
    found = check(tmp_path)
    assert [one.path.name for one in found.damages] == ["store.json"] and found.segments > 10
    with pytest.raises(DamagedError, match=r"store\.json"):
        survey(tmp_path)


def test_every_part_of_a_manifest_may_be_anything(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "store.json"
    manifest = json.loads(path.read_text())
    for name in manifest.keys() - {"checksum"}:
        values: list[Any] = [None, -1, 1.5, "x", [], {}, {"fields": {}}, {"fields": {"obs": 3}}, 10**30]
        for value in values:
            if value is None and name in ("capacity", "ram", "disk_limit"):
                continue
            path.write_bytes(packed_manifest({**manifest, name: value}))
            sound = name in (*LIMITS, "on_full", "retention") or (name, value) == ("requires", [])
            assert check(tmp_path).damages or sound, (name, value)
    path.unlink()
    assert "is missing" in check(tmp_path).damages[0].what
