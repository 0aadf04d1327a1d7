"""Checkpoints in a single file: as a folder's, whole or not there, and nobody's trap."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.disk.test_store_folder import SPEC, append
from tests.support.examples import stride
from tests.support.faults import on
from tests.support.faulty import ERRORS, Died, Faulty


def filled(**settings: Any) -> tuple[sw.Store, sw.Transitions]:
    store = sw.Store(SPEC, capacity=2000, segment_steps=16, **settings)
    view = store.transitions(sampler=sw.Prioritized(), name="learner")
    append(store, range(300))
    view.update_priorities(view.sampleable_ids(), np.arange(len(view)))
    view.sample(8)
    return store, view


def assert_restored(store: sw.Store, view: sw.Transitions, again: sw.Store) -> None:
    other = again.transitions(sampler=sw.Prioritized(), name="learner")
    assert len(again) == len(store)
    for _ in range(3):
        one, two = view.sample(32), other.sample(32)
        for name in ("ids", "obs", "action", "weights"):
            np.testing.assert_array_equal(one[name], two[name])


def test_an_empty_store_has_one(tmp_path: Path) -> None:
    sw.Store(SPEC, capacity=100).checkpoint(tmp_path / "one.sharpwave")
    assert len(sw.Store.open(tmp_path / "one.sharpwave")) == 0
    sw.Store(SPEC, capacity=100, disk=tmp_path / "store").checkpoint(tmp_path / "one.sharpwave")
    assert len(sw.Store.open(tmp_path / "one.sharpwave", disk=tmp_path / "again")) == 0


@pytest.mark.parametrize("on_disk", [False, True])
def test_it_is_restored_exactly_and_leaves_nothing_beside_it(tmp_path: Path, on_disk: bool) -> None:
    folder = tmp_path / "files"
    store, view = filled(disk=tmp_path / "store" if on_disk else None)
    path = folder / "one.sharpwave"
    for _ in range(2):  # the second replaces the first
        append(store, range(300, 320))
        store.checkpoint(path)
        assert os.listdir(folder) == ["one.sharpwave"]
    moved = shutil.move(path, tmp_path / "moved")  # the name is for writing
    if on_disk:
        with pytest.raises(ValueError, match="give disk=, a new or empty one"):
            sw.Store.open(moved)
    with sw.Store.open(moved, disk=tmp_path / "deep" / "again" if on_disk else None) as again:
        assert again.recovery is not None and not again.recovery.damages
        assert_restored(store, view, again)
    assert not os.listdir(folder) and sorted(os.listdir(tmp_path)) == sorted(
        ["files", "moved", *(["deep", "store"] if on_disk else [])]
    )
    assert not on_disk or os.listdir(tmp_path / "deep") == ["again"]


def test_what_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    store, _ = filled()
    path = tmp_path / "mine.sharpwave"
    for content in (b"", b"a diary", b"PK\x05\x06" + bytes(18)):
        path.write_bytes(content)
        with pytest.raises(FileExistsError, match=r"mine\.sharpwave is no checkpoint of a store"):
            store.checkpoint(path)
        assert path.read_bytes() == content
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="is no checkpoint"):
        store.checkpoint(path)
    assert path.is_symlink() and not (tmp_path / "elsewhere").exists()
    path.unlink()
    path.mkdir()  # a folder stays what it is
    store.checkpoint(path)
    assert len(sw.Store.open(path)) == 300


@pytest.mark.slow
def test_whatever_fails_the_earlier_file_stays_or_the_new_one_is_there(tmp_path: Path) -> None:
    store, _ = filled()
    path = tmp_path / "one.sharpwave"
    store.checkpoint(path)
    append(store, range(300, 310))
    counting = Faulty()
    with on(counting):
        store.checkpoint(tmp_path / "another.sharpwave")
    before = path.read_bytes()
    for at in range(1, counting.count + 1, stride(1)):
        with on(Faulty(at, ERRORS[at % 2])), contextlib.suppress(OSError):
            store.checkpoint(path)
        assert path.read_bytes() == before or len(sw.Store.open(path)) == 310
        path.write_bytes(before)
    store.checkpoint(path)  # whatever was left beside it
    assert len(sw.Store.open(path)) == 310 and sorted(os.listdir(tmp_path)) == ["another.sharpwave", "one.sharpwave"]


def test_whenever_the_process_dies_the_next_one_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "one.sharpwave"
    filled()[0].checkpoint(path)
    counting = Faulty()
    with on(counting):
        filled()[0].checkpoint(path)
    assert "remove_directory" in counting.log
    (store, _), (other, _) = filled(), filled()
    for at in range(1, counting.count + 1, stride(2)):
        with on(Faulty(at, "killed")), pytest.raises(Died):
            other.checkpoint(path)
        store.checkpoint(path)
        assert os.listdir(tmp_path) == ["one.sharpwave"], (at, counting.log[at - 1])


def save_for_ever(path: Path) -> None:
    store, _ = filled()
    while True:
        append(store, range(300, 303))
        store.checkpoint(path)


def test_killed_at_any_moment_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "one.sharpwave"
    for attempt in range(4):
        process = multiprocessing.get_context("spawn").Process(target=save_for_ever, args=(path,))
        process.start()
        while not path.exists():
            time.sleep(0.01)
        time.sleep(0.03 + 0.02 * attempt)
        process.kill()
        process.join()
        with sw.Store.open(path) as again:
            assert again.recovery is not None and not again.recovery.damages and len(again) >= 303
    store, _ = filled()
    store.checkpoint(path)
    assert os.listdir(tmp_path) == ["one.sharpwave"]


def test_folders_that_a_killed_process_unpacked_are_deleted(tmp_path: Path) -> None:
    store, _ = filled()
    path = tmp_path / "one.sharpwave"
    store.checkpoint(path)
    left = tmp_path / ".one.sharpwave.opening.abc"
    left.mkdir()
    (left / "store.json").write_bytes(b"half")
    assert len(sw.Store.open(path)) == 300 and os.listdir(tmp_path) == ["one.sharpwave"]


def changed(path: Path, change: Any) -> Path:
    """Write the archive again, its entries as ``change`` returns them: (name, content, compression)."""
    out = path.with_name("changed.sharpwave")
    with zipfile.ZipFile(path) as archive:
        entries = [(entry.filename, archive.read(entry), zipfile.ZIP_STORED) for entry in archive.infolist()]
    with zipfile.ZipFile(out, "w") as archive:
        for name, content, compression in change(entries):
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return out


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: [*entries, ("../outside", b"", zipfile.ZIP_STORED)],
        lambda entries: [*entries, ("/etc/outside", b"", zipfile.ZIP_STORED)],
        lambda entries: [*entries, ("1/regions/../../outside", b"", zipfile.ZIP_STORED)],
        lambda entries: [*entries, ("1/regions/", b"", zipfile.ZIP_STORED)],
        lambda entries: [(name, content, zipfile.ZIP_DEFLATED) for name, content, _ in entries],
        lambda entries: [*entries, ("1/regions/000000009999.region", bytes(1 << 24), zipfile.ZIP_DEFLATED)],
        lambda entries: entries[1:],
        lambda entries: [("store.json", b"{}", zipfile.ZIP_STORED), *entries[1:]],
        lambda entries: [("store.json", bytes(2 << 20), zipfile.ZIP_STORED), *entries[1:]],
    ],
)
def test_a_strangers_archive_is_refused_and_nothing_is_written(tmp_path: Path, change: Any) -> None:
    store, _ = filled()
    store.checkpoint(tmp_path / "one.sharpwave")
    path = changed(tmp_path / "one.sharpwave", change)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(sw.DamagedError, match=r"changed\.sharpwave"):
        sw.Store.open(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_every_cut_and_flips_all_over_are_found(tmp_path: Path) -> None:
    """Where the archive's own checksums do not cover a byte, it says nothing that matters."""
    store, _ = filled()
    path = tmp_path / "one.sharpwave"
    store.checkpoint(path)
    content = path.read_bytes()
    rng, opened = np.random.default_rng(0), 0
    broken = [content[:cut] for cut in rng.integers(0, len(content), 20).tolist()]
    for at in [*range(len(content) - 400, len(content), 7), *rng.integers(0, len(content), 60).tolist()]:
        broken.append(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
    for one in broken:
        path.write_bytes(one)
        try:
            again = sw.Store.open(path)
        except sw.DamagedError:
            continue
        opened += 1
        assert len(again) == 300 and not again.recovery.damages  # type: ignore[union-attr]
    assert opened < len(broken) / 2 and os.listdir(tmp_path) == ["one.sharpwave"]
