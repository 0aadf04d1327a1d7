"""A store's folder among others' files: reached in one way, never through a link, and only what is the store's own."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk.ownership import MARK
from sharpwave.disk.store_folder import read_manifest
from sharpwave.native.file_operations import Files
from sharpwave.offline.folder_check import check
from tests.support.faults import on
from tests.support.faulty import Died, Faulty

SPEC = sw.Spec(obs=sw.Field((4,), "int64"), action=sw.Field((), "int64"))


def made(folder: str | Path, **settings: Any) -> sw.Store:
    return sw.Store(SPEC, capacity=1000, segment_steps=4, disk=folder, codec="raw", **settings)


def append(store: sw.Store, numbers: range) -> None:
    for k in numbers:
        store.append(obs=np.full(4, k), action=k, reward=0.0, terminated=False, truncated=False)


def held(store: sw.Store) -> list[int]:
    """The numbers of all steps that can be sampled."""
    view = store.transitions()
    return sorted(view.fetch(view.sampleable_ids()).action.tolist())


def tree(folder: Path) -> dict[str, Any]:
    """Everything in a folder, links as links."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (path.lstat().st_ino, content)
    return found


def test_a_relative_folder_is_the_same_after_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        made("store").close()
    monkeypatch.chdir(tmp_path / "a")
    store = sw.Store.open("store")
    append(store, range(10))
    monkeypatch.chdir(tmp_path / "b")
    before = tree(tmp_path / "b")
    append(store, range(10, 2000))
    store.flush()
    store.checkpoint(tmp_path / "checkpoint")
    store.resize(capacity=500)
    append(store, range(2000, 2010))
    store.close()
    assert tree(tmp_path / "b") == before
    with sw.Store.open(tmp_path / "a" / "store") as store:
        assert store.recovery is not None and not store.recovery.damages and store.capacity == 500
        assert held(store)[-1] >= 2000
    with sw.Store.open(tmp_path / "checkpoint", disk="opened") as store:
        monkeypatch.chdir(tmp_path)
        append(store, range(2000, 2010))
        store.flush()
    assert set(held(sw.Store.open(tmp_path / "b" / "opened"))) >= set(range(2000, 2009))


def test_a_folder_that_is_renamed_goes_on(tmp_path: Path) -> None:
    store = made(tmp_path / "a")
    append(store, range(6))
    os.rename(tmp_path / "a", tmp_path / "b")
    made(tmp_path / "a").close()
    before = tree(tmp_path / "a")
    append(store, range(6, 3000))
    store.flush()
    store.checkpoint(tmp_path / "c")
    store.close()
    assert tree(tmp_path / "a") == before
    with sw.Store.open(tmp_path / "b") as store:
        assert held(store)[-1] == 2998


LINKED = ["lock", "store.json", "regions", "regions/000000000000.region", "quarantine"]


@pytest.mark.parametrize("name", LINKED)
def test_links_in_a_store_are_not_followed(tmp_path: Path, name: str) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    with made(folder) as store:
        append(store, range(10))
        store.flush()
    other.mkdir()
    path, target = folder / name, other / Path(name).name
    if name == "quarantine":  # and something to be moved there
        (folder / "regions" / f"{7:012d}.region").write_bytes((folder / "regions" / f"{0:012d}.region").read_bytes())
        target.mkdir()
    else:
        os.rename(path, target)
    path.symlink_to(target)
    before = tree(other)
    try:
        with sw.Store.open(folder) as store:
            assert store.recovery is not None and "a symbolic link, expected a regular file" in str(
                store.recovery.damages
            )
            append(store, range(10, 100))
            store.flush()
    except OSError as error:
        assert "is a symbolic link, expected a" in str(error) and str(path) in str(error)
    assert tree(other) == before and path.is_symlink()
    if name not in ("lock", "quarantine"):
        assert "a symbolic link, expected a" in str(check(folder).damages)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [make_fifo, Path.mkdir], ids=["FIFO", "folder"])
@pytest.mark.parametrize("name", ["lock", "store.json", f"regions/{0:012d}.region", f"regions/{9:012d}.region"])
def test_what_is_no_regular_file_is_named_and_hangs_nothing(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    with made(tmp_path) as store:
        append(store, range(10))
        store.flush()
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    if name.endswith(".region"):
        with sw.Store.open(tmp_path) as store:
            assert store.recovery is not None and "expected a regular file" in store.recovery.damages[0]
            assert held(store) == (list(range(9)) if "9" in name else [])
            append(store, range(20, 30))
            store.flush()
    else:
        with pytest.raises(OSError, match="expected a regular file"):
            sw.Store.open(tmp_path)
    assert (tmp_path / name).exists() and not (tmp_path / name).is_file()
    if name != "lock":
        assert "expected a regular file" in str(check(tmp_path).damages)


def strew(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"mine: {name}")


def foreign(folder: Path, names: list[str]) -> dict[str, Any]:
    found = tree(folder)
    return {name: found.get(name) for name in names}


IN_A_CHECKPOINT = ["7/notes", "2/regions/000000000000.region", "1999/state.npz", "notes.txt", ".DS_Store", "3"]


@pytest.mark.parametrize("content", [b"4711\n", b""])
def test_a_lock_that_is_somebody_else_s_file_as_well_is_not_written_to(tmp_path: Path, content: bytes) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "pid"
    with made(store) as one:
        append(one, range(9))
    elsewhere.write_bytes(content)
    (store / "lock").unlink()
    os.link(elsewhere, store / "lock")
    with sw.Store.open(store) as one:
        with pytest.raises(sw.StoreInUseError, match="in use by process unknown"):
            sw.Store.open(store)
        append(one, range(9, 12))
    assert elsewhere.read_bytes() == content


@pytest.mark.parametrize("disk", [False, True])
def test_a_checkpoint_deletes_only_what_checkpoints_made(tmp_path: Path, disk: bool) -> None:
    folder = tmp_path / "checkpoint"
    strew(folder, IN_A_CHECKPOINT)
    (folder / "4").mkdir()
    (folder / "5").symlink_to(tmp_path / "elsewhere")
    strew(tmp_path / "elsewhere", ["regions/000000000000.region", "state.npz"])
    elsewhere, names = tree(tmp_path / "elsewhere"), [*IN_A_CHECKPOINT, "4", "5"]
    before = foreign(folder, names)
    store = made(tmp_path / "store") if disk else sw.Store(SPEC, capacity=1000, segment_steps=4)
    for k in range(6):
        append(store, range(10 * k, 10 * k + 10))
        store.checkpoint(folder)
        own = {path.name for path in folder.iterdir()} - {Path(name).parts[0] for name in names}
        assert own == {"store.json", "lock", str(read_manifest(folder)["checkpoint"])}
    part = folder / str(read_manifest(folder)["checkpoint"])
    strew(part, ["mine", "regions/mine"])
    store.checkpoint(folder)
    assert sorted(path.name for path in part.rglob("*")) == ["mine", "mine", "regions"]
    store.close()
    with sw.Store.open(folder) as store:  # of a store on disk: in its own folder
        assert len(store) == 60 and store.recovery is not None and not store.recovery.damages
        append(store, range(60, 70))
    assert foreign(folder, names) == before and tree(tmp_path / "elsewhere") == elsewhere


@pytest.mark.parametrize("disk", [False, True])
def test_a_checkpoint_that_lost_its_mark_is_replaced_and_another_one_stays(tmp_path: Path, disk: bool) -> None:
    """Only ``store.json`` shows then that a numbered folder is a checkpoint's."""
    folder = tmp_path / "checkpoint"
    store = made(tmp_path / "store") if disk else sw.Store(SPEC, capacity=1000, segment_steps=4)
    append(store, range(10))
    store.checkpoint(folder)
    (folder / "1" / MARK).unlink()
    shutil.copytree(folder / "1", folder / "2")
    append(store, range(10, 20))
    store.checkpoint(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3", "lock", "store.json"]
    (folder / "3" / MARK).unlink()
    store.close()
    with sw.Store.open(folder) as store:
        assert len(store) == 20
    assert disk != (folder / "3").exists() and (folder / "2").exists()


@pytest.mark.parametrize("disk", [False, True])
def test_a_checkpoint_is_opened_only_into_a_new_or_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: bool
) -> None:
    folder = tmp_path / "checkpoint"
    with made(tmp_path / "store") as store:
        append(store, range(20))
        store.checkpoint(folder)
    for name in ("regions/mine", "regions/000000000000.region", "notes", "quarantine/x"):
        target = tmp_path / name.replace("/", " ")
        strew(target, [name])
        before = tree(target)
        with pytest.raises(FileExistsError, match="neither new nor empty"):
            sw.Store.open(folder, disk=target)
        assert tree(target) == before
    lost = tmp_path / "lost"  # its own regions, in a store whose store.json is lost
    shutil.copytree(tmp_path / "store", lost)
    (lost / "store.json").unlink()
    before = tree(lost)
    with pytest.raises(FileExistsError, match="put back a copy"):
        sw.Store.open(folder, disk=lost)
    assert tree(lost) == before
    before = tree(folder)
    monkeypatch.chdir(folder)
    (tmp_path / "link").symlink_to(folder)
    for path in (folder / "1", folder / "new", folder / "1" / "regions", Path("1"), tmp_path / "link" / "1" / "x"):
        with pytest.raises(FileExistsError, match="lies in the folder of a checkpoint"):
            sw.Store.open(folder, disk=path)
        with pytest.raises(FileExistsError, match="lies in the folder of a checkpoint"):
            made(path)
    assert tree(folder) == before
    with sw.Store.open(folder, disk=tmp_path / "fine") as store:
        assert len(store) == 20


def test_a_checkpoint_does_not_go_into_folders_of_a_store(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        append(store, range(20))
        (tmp_path / "link").symlink_to(tmp_path / "store")
        before = tree(tmp_path)
        for path in ("store/regions", "store/regions/x", "store/quarantine/x", "link/regions/x", "store", "link"):
            with pytest.raises(FileExistsError, match=r"the store's own folder|lies in the folder of a store"):
                store.checkpoint(tmp_path / path)
        assert tree(tmp_path) == before
        store.checkpoint(tmp_path / "checkpoint")
        with pytest.raises(FileExistsError, match="lies in the folder of a checkpoint"):
            store.checkpoint(tmp_path / "checkpoint" / "1" / "again")


@pytest.mark.parametrize("name", ["notes", ".hidden", "regions/000000000000.region", "1/state.npz", "lock"])
def test_a_new_store_is_not_made_among_other_files(tmp_path: Path, name: str) -> None:
    strew(tmp_path, [name])
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match="no store's lock file" if name == "lock" else "neither new nor empty"):
        made(tmp_path)
    assert tree(tmp_path) == before


def test_a_store_whose_manifest_is_lost_is_not_overwritten(tmp_path: Path) -> None:
    with made(tmp_path) as store:
        append(store, range(20))
    content = (tmp_path / "store.json").read_bytes()
    (tmp_path / "store.json").unlink()
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match=r"store\.json was lost: put back a copy"):
        made(tmp_path)
    assert tree(tmp_path) == before
    (tmp_path / "store.json").write_bytes(content)
    with sw.Store.open(tmp_path) as store:
        assert held(store)


def test_what_a_store_left_that_was_not_made_to_its_end_is_in_nobodys_way(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    files = Faulty()
    with on(files):
        made(tmp_path / "whole").close()
    (folder / "lost+found").mkdir(parents=True)
    for at in range(1, files.count + 1):
        with on(Faulty(at, "killed in a write")), contextlib.suppress(Died):
            made(folder).close()
        if (folder / "store.json").exists():
            (folder / "store.json").unlink()
    made(folder).close()
    assert {"store.json", "lock", "regions"} == {path.name for path in folder.iterdir()} - {"lost+found"}


@pytest.mark.parametrize("place", ["elsewhere", "in place"])
def test_an_opening_of_a_checkpoint_that_was_killed_is_made_again(tmp_path: Path, place: str) -> None:
    with made(tmp_path / "store") as store:
        append(store, range(50))
        store.checkpoint(tmp_path / "checkpoint")
    at = 0
    while True:
        at += 1
        copy, target = tmp_path / f"copy {at}", tmp_path / f"target {at}"
        shutil.copytree(tmp_path / "checkpoint", copy)
        disk: dict[str, Any] = {"disk": target} if place == "elsewhere" else {}
        files = Faulty(at, "killed")
        with on(files), contextlib.suppress(Died):
            sw.Store.open(copy, **disk).close()
        if not files.dead:
            break
        found = target if place == "elsewhere" else copy
        whole = place == "elsewhere" and (found / "store.json").exists()
        with sw.Store.open(found if whole else copy, **({} if whole else disk)) as store:
            assert set(held(store)) >= set(range(48)) and store.recovery is not None and not store.recovery.damages
        assert {path.name for path in found.iterdir()} == {"store.json", "lock", "regions"}, at
    assert at > 10


def test_checkpoints_that_were_killed_leave_nothing_after_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    with made(tmp_path / "store") as store:
        append(store, range(50))
        at = 0
        while True:
            at += 1
            files = Faulty(at, "killed in a write")
            with on(files), contextlib.suppress(Died):
                store.checkpoint(folder)
            if not files.dead:
                break
            store.checkpoint(folder)
            number = str(read_manifest(folder)["checkpoint"])
            assert {path.name for path in folder.iterdir()} == {number, "store.json", "lock"}, at
        assert at > 10


def test_regions_of_others_are_left_where_they_are(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        with made(folder) as store:
            append(store, range(10))
            store.flush()
    stray = mine / "regions" / f"{1:012d}.region"
    shutil.copy(other / "regions" / f"{0:012d}.region", stray)
    shutil.copy(other / "regions" / f"{0:012d}.region", mine / "regions" / f"{5:012d}.partial")
    strew(mine, ["regions/notes.region", f"regions/{8:012d}.region", f"regions/{9:012d}.partial", "quarantine/x"])
    names = [str(stray.relative_to(mine)), f"regions/{5:012d}.partial"]
    names += ["regions/notes.region", f"regions/{8:012d}.region", f"regions/{9:012d}.partial", "quarantine/x"]
    before = foreign(mine, names)
    for k in range(3):
        with on(Files()), sw.Store.open(mine) as store:  # regions are small
            assert store.recovery is not None and len(store.recovery.damages) == 3
            assert store._log.disk is not None
            free = (f"regions/{number:012d}.region" for number in itertools.count(store._log.disk.regions.next_number))
            dropped = next(name for name in free if not (mine / name).exists())  # where the next region would go
            strew(mine, [dropped])
            before |= foreign(mine, [dropped])
            append(store, range(1000 * k, 1000 * k + 900))
            store.flush()
            assert set(held(store)) >= set(range(1000 * k + 100, 1000 * k + 899))
        assert foreign(mine, [*names, dropped]) == before
        (mine / dropped).unlink()
        del before[dropped]
