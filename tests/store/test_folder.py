"""A store's folder among others' files: reached in one way, never through a link, and only what is the store's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.tiers.check import check

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
    for one in LINKED:
        (other / one).parent.mkdir(exist_ok=True)
    path = folder / name
    target = other / Path(name).name
    if name == "quarantine":
        (folder / "regions" / f"{7:012d}.region").write_bytes((folder / "regions" / f"{0:012d}.region").read_bytes())
        target.mkdir()
    else:
        os.rename(path, target) if not target.is_dir() or target.rmdir() is None else None
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
    shutil.rmtree(tmp_path / name) if (tmp_path / name).is_dir() else (tmp_path / name).unlink(missing_ok=True)
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
