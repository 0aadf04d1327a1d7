"""Stores of every format version there was: each opens, with every step, priority and random state, and is sound.

``tests/data/write.py`` wrote them.
"""

from __future__ import annotations

import json
import os
import runpy
import zipfile
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import sharpwave as sw
from sharpwave.disk.store_folder import FORMAT, packed_manifest
from sharpwave.errors import DamagedError
from sharpwave.format import checkpoint_state, segment
from sharpwave.format.checkpoint_state import read_state
from sharpwave.format.region import SEGMENT, read_region
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey

DATA = Path(__file__).parent.parent / "data"
VERSIONS = sorted(path.name for path in DATA.glob("v*"))
STORES = [(path.parent.name, path.stem) for path in sorted(DATA.glob("v*/*.zip"))]
WRITE = runpy.run_path(str(DATA / "write.py"))


def unpacked(version: str, name: str, folder: Path) -> Path:
    """A copy of a store of the corpus."""
    with zipfile.ZipFile(DATA / version / f"{name}.zip") as file:
        file.extractall(folder / name)
    return folder / name


def expected(version: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / version / "expected.json").read_text())[name]
    return found


def test_there_is_a_store_of_each_sort_of_each_version() -> None:
    assert "v2" in VERSIONS
    for version in VERSIONS:
        assert {name for of, name in STORES if of == version} >= set(WRITE["STORES"])


@pytest.mark.parametrize(("version", "name"), STORES)
def test_a_store_of_a_version_comes_back(version: str, name: str, tmp_path: Path) -> None:
    folder = unpacked(version, name, tmp_path)
    found = check(folder)
    assert not found.damages
    assert found.steps and found.dictionaries and found.tails
    with sw.Store.open(folder) as store:
        assert store.recovery is not None and not store.recovery.damages
        assert not store.recovery.differences
        told = WRITE["told"](store, WRITE["views_of"](store))
        WRITE["play"](store, 40)  # and it goes on
        store.flush()
    was = expected(version, name)
    for view, steps in was["views"].items():
        if (name, view) == ("reservoir", "prioritized"):
            # The release that wrote these expectations took gaps for truncations, and cut returns short there.
            now = told["views"][view]["steps"]
            assert 0.9 * len(steps["steps"]) < len(now) and now.keys() < steps["steps"].keys()
            assert all(now[id_][:-1] == steps["steps"][id_][:-1] for id_ in now)
            continue
        for id_, step in steps["steps"].items():
            *values, chance = step
            assert told["views"][view]["steps"][id_][:-1] == values, (view, id_)
            assert told["views"][view]["steps"][id_][-1] == pytest.approx(chance, rel=1e-6, abs=2e-9), (view, id_)
        assert told["views"][view]["steps"].keys() == steps["steps"].keys()
        assert told["views"][view]["first_batch"] == steps["first_batch"]
    others = was.keys() - {"views"}
    assert {key: told[key] for key in others} == {key: was[key] for key in others}
    assert not check(folder).damages


# of a later release


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file's content but the lock's."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def with_crc(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(4, "little")


def newer_region(folder: Path) -> None:
    path = max(folder.rglob("*.region"))
    content = path.read_bytes()
    path.write_bytes(with_crc(content[:8] + (2).to_bytes(4, "little") + content[12:68]) + content[72:])


def newer_segment(folder: Path) -> None:
    path = min(folder.rglob("*.region"))
    region, records, _ = read_region(path)
    assert region is not None
    region.close()
    content = bytearray(path.read_bytes())
    one = [record for record in records if record.kind == SEGMENT][-1]
    data = content[one.offset : one.offset + one.nbytes]
    content[one.offset : one.offset + one.nbytes] = with_crc(
        bytes(data[:4] + (segment.VERSION + 1).to_bytes(2, "little") + data[6:-4])
    )
    path.write_bytes(content)


def newer_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_bytes(packed_manifest({**manifest, "format": FORMAT + 1, "more": {"to": "say"}}))


def newer_state(folder: Path) -> None:
    (path,) = folder.rglob("state.npz")
    tree = read_state(path)
    path.unlink()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    with mock.patch.object(checkpoint_state, "VERSION", checkpoint_state.VERSION + 1):
        checkpoint_state.write_tree(descriptor, tree)
    os.close(descriptor)


@pytest.mark.parametrize("name", ["flushed", "memory-checkpoint", "disk-checkpoint"])
@pytest.mark.parametrize("newer", [newer_region, newer_segment, newer_manifest, newer_state])
def test_what_a_later_release_wrote_is_refused_and_left_alone(name: str, newer: Any, tmp_path: Path) -> None:
    if name == "flushed" and newer is newer_state:
        newer = newer_region  # it has none
    folder = unpacked("v2", name, tmp_path)
    newer(folder)
    before = files_of(folder)
    for look in (sw.Store.open, check, survey):
        with pytest.raises(sw.NewerVersionError, match="written by a newer sharpwave; upgrade"):
            look(folder)
        assert files_of(folder) == before
    if name == "disk-checkpoint":
        with pytest.raises(sw.NewerVersionError):
            sw.Store.open(folder, disk=tmp_path / "elsewhere")
        assert files_of(folder) == before and not files_of(tmp_path / "elsewhere")


def test_a_format_that_no_release_wrote_is_refused(tmp_path: Path) -> None:
    folder = unpacked("v2", "flushed", tmp_path)
    manifest = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_bytes(packed_manifest({**manifest, "format": 1}))
    before = files_of(folder)
    assert check(folder).damages
    for look in (sw.Store.open, survey):
        with pytest.raises(DamagedError, match=r"store\.json: format 1, expected 2"):
            look(folder)
        assert files_of(folder) == before
