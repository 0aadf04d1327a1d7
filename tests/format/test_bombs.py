"""Files that claim much: opening and verifying them takes bounded memory and time."""

from __future__ import annotations

import os
import resource
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.errors import DamagedError
from sharpwave.format import checkpoint_state, segment
from sharpwave.format.region import RECORD, RECORD_MAGIC, SEGMENT, TAIL, read_region
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey
from tests.format.small_store import SPEC, checkpoint, play, regions_of


def peak_of(call: Callable[[], object]) -> int:
    """Bytes that a call takes at most."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_array_that_is_named_a_thousand_times_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(tree: Any, arrays: dict[str, Any]) -> Any:
        arrays["a1"] = np.zeros(1 << 17)
        return {"dict": {"log": [{"array": "a1"}] * 1000}}

    monkeypatch.setattr(checkpoint_state, "_plain", plain)
    descriptor = os.open(tmp_path / "state", os.O_RDWR | os.O_CREAT)
    checkpoint_state.write_tree(descriptor, {})

    def read() -> None:
        with pytest.raises(DamagedError, match="each at most once"):
            checkpoint_state.read_tree(descriptor)

    assert peak_of(read) < 4 << 20
    os.close(descriptor)


def test_a_state_of_a_terabyte_that_is_not_there_is_not_read(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c")
    os.truncate(path, 1 << 40)
    opened: list[sw.Store] = []
    assert peak_of(lambda: opened.append(sw.Store.open(tmp_path / "c"))) < 64 << 20
    assert opened[0].recovery is not None and len(opened[0]) > 95
    assert "a hole in a sparse file" in opened[0].recovery.damages[-1]
    assert [one.path.name for one in check(tmp_path / "c").damages] == ["state.npz"]


def test_a_region_of_terabytes_that_are_not_there_is_not_read(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=4000, disk=tmp_path / "s", segment_steps=8) as store:
        play(store, 200)
        store.flush()
    path = regions_of(tmp_path / "s")[0]
    end = path.stat().st_size
    size = 1 << 43
    prefix = RECORD.pack(RECORD_MAGIC, SEGMENT, size // 2, 800, 900, 0, 0)[:-4]
    with path.open("r+b") as file:
        file.seek(end + -end % 4096)
        file.write(prefix + zlib.crc32(prefix).to_bytes(4, "little"))
        file.truncate(size)
    assert any("that has not so many" in one.what for one in check(tmp_path / "s").damages)
    survey(tmp_path / "s")
    with sw.Store.open(tmp_path / "s") as store:
        assert len(store) >= 190
        play(store, 30, 200)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_rows_of_an_open_segment_that_are_too_many_are_not_read(tmp_path: Path, checkpoint: bool) -> None:
    with sw.Store(SPEC, capacity=4000, disk=tmp_path / "live", segment_steps=8) as store:
        play(store, 100)
        store.flush()
        if checkpoint:
            store.checkpoint(tmp_path / "s")
    folder = tmp_path / ("s" if checkpoint else "live")
    path = regions_of(folder)[-1]
    region, found, _ = read_region(path)
    assert region is not None
    region.close()
    (tail,) = [record for record in found if record.kind == TAIL][-1:]
    size, at = 48 << 20, -(-path.stat().st_size // 8) * 8 if checkpoint else -(-region.used // 8) * 8
    content = path.read_bytes()[tail.offset : tail.offset + segment.HEADER.size]
    prefix = RECORD.pack(RECORD_MAGIC, TAIL, size, tail.id, 9999, 0, 0)[:-4]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(prefix + zlib.crc32(prefix).to_bytes(4, "little") + content)
        file.seek(at + RECORD.size + size - 4)
        file.write(zlib.crc32(content + bytes(size - 4 - len(content))).to_bytes(4, "little"))
    opened: list[sw.Store] = []
    assert peak_of(lambda: opened.append(sw.Store.open(folder))) < 16 << 20
    with opened[0] as store:
        assert store.recovery is not None and "expected at most" in store.recovery.damages[0] and len(store) > 90


def test_verify_takes_a_row_of_memory_however_much_a_segment_unpacks_to(tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field((1 << 20,), "uint8"), action=sw.Field((), "int64"))
    blank = np.zeros(1 << 20, np.uint8)
    with sw.Store(spec, capacity=1000, disk=tmp_path / "s", segment_steps=64, codec="zstd") as store:
        for step in range(130):
            store.append(obs=blank, action=step, reward=0, terminated=step % 65 == 64, truncated=False)
        store.flush()
    found: list[Any] = []
    assert peak_of(lambda: found.append(check(tmp_path / "s"))) < 16 << 20
    assert not found[0].damages and found[0].steps >= 128, "128 MiB of rows"


def test_one_step_of_a_high_lane_costs_neither_minutes_nor_gigabytes(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=1 << 22, disk=tmp_path / "s", segment_steps=8, codec="raw") as store:
        play(store, 240)
    path = regions_of(tmp_path / "s")[0]
    region, found, _ = read_region(path)
    assert region is not None
    region.close()
    content = bytearray(path.read_bytes())
    one = [record for record in found if record.kind == SEGMENT][5]
    data = content[one.offset : one.offset + one.nbytes - 4]
    data[16:24] = ((1 << 20) - 1).to_bytes(8, "little")
    content[one.offset : one.offset + one.nbytes] = data + zlib.crc32(data).to_bytes(4, "little")
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with sw.Store.open(tmp_path / "s") as store:
        assert store.lanes == 1 << 20 and len(store.transitions()) >= 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
