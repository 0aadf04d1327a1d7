"""What a reader must know of a segment or a store, and what it may pass over: refused by name, or read."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

import sharpwave as sw
from sharpwave.disk.store_folder import packed_manifest
from sharpwave.format import segment, segment_header
from sharpwave.format.region import SEGMENT, read_region
from sharpwave.offline.folder_check import check
from tests.format.test_segment import SPEC, no_dictionary, small_segment
from tests.format.test_versions import files_of
from tests.support.faults import SPEC as STORE_SPEC
from tests.support.faults import frame

WORD = slice(56, 64)
"""Where the features stand in a segment."""


def with_features(data: bytes, word: int) -> bytes:
    body = data[: WORD.start] + word.to_bytes(8, "little") + data[WORD.stop : -4]
    return body + zlib.crc32(body).to_bytes(4, "little")


def test_bits_that_may_be_passed_over_change_nothing() -> None:
    data = with_features(small_segment(), 1 << 63 | 1 << 32)
    header, arrays = segment.unpack(data, SPEC, no_dictionary)
    assert header.features == 1 << 63 | 1 << 32 and header.steps == 6
    _, expected = segment.unpack(small_segment(), SPEC, no_dictionary)
    assert all((arrays[name] == rows).all() for name, rows in expected.items())


@pytest.mark.parametrize("bit", [5, 6, 31])
def test_a_required_bit_that_is_not_known_is_refused_by_number(bit: int) -> None:
    with pytest.raises(sw.NewerVersionError, match=rf"feature of bit {bit}, which this release does not know"):
        segment.parse(with_features(small_segment(), 1 << bit), SPEC)


def small_store(folder: Path) -> None:
    with sw.Store(STORE_SPEC, capacity=200, disk=folder, segment_steps=4) as store:
        for serial in range(40):
            store.append(obs=frame(serial), action=0, reward=0, terminated=False, truncated=False, serial=serial)


def test_a_store_that_requires_what_is_not_known_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    small_store(tmp_path / "s")
    path = tmp_path / "s" / "store.json"
    manifest = json.loads(path.read_text())
    assert manifest["requires"] == ["packed steps"]
    path.write_bytes(packed_manifest({**manifest, "requires": ["sparse fields", "holographic frames"]}))
    before = files_of(tmp_path / "s")
    for look in (sw.Store.open, check):
        with pytest.raises(sw.NewerVersionError, match="requires 'holographic frames'"):
            look(tmp_path / "s")
    assert files_of(tmp_path / "s") == before


@pytest.mark.parametrize("requires", ["x", [1], {"a": 1}, None])
def test_what_names_no_features_is_damage(requires: object, tmp_path: Path) -> None:
    small_store(tmp_path / "s")
    path = tmp_path / "s" / "store.json"
    path.write_bytes(packed_manifest({**json.loads(path.read_text()), "requires": requires}))
    with pytest.raises(sw.DamagedError, match="names of features"):
        sw.Store.open(tmp_path / "s")


def test_a_segment_on_disk_with_a_feature_that_is_not_known_is_found_before_anything_is_written(tmp_path: Path) -> None:
    small_store(tmp_path / "s")
    (path,) = (tmp_path / "s").rglob("*.region")
    region, records, _ = read_region(path)
    assert region is not None
    region.close()
    one = [record for record in records if record.kind == SEGMENT][-1]
    content = bytearray(path.read_bytes())
    where = slice(one.offset, one.offset + one.nbytes)
    content[where] = with_features(bytes(content[where]), 1 << 9)
    path.write_bytes(content)
    before = files_of(tmp_path / "s")
    with pytest.raises(sw.NewerVersionError, match="feature of bit 9"):
        sw.Store.open(tmp_path / "s")
    assert files_of(tmp_path / "s") == before


def test_every_feature_has_a_name_and_a_bit_of_its_own() -> None:
    assert all(bit & bit - 1 == 0 and bit < 1 << 64 for bit in segment_header.NAMES)
    assert len(set(segment_header.NAMES.values())) == len(segment_header.NAMES)
