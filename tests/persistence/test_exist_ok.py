"""The cell of a notebook that makes a store on disk, run again: exist_ok=True."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))


def store_in(folder: Any, spec: sw.Spec = SPEC, **more: Any) -> sw.Store:
    return sw.Store(spec, **{"capacity": 1000, "disk": folder, "exist_ok": True} | more)


def add(store: sw.Store, steps: int) -> None:
    store.add_episode(obs=np.zeros((steps + 1, 3)), action=np.arange(steps), reward=np.ones(steps), terminated=True)


def test_the_open_store_is_returned_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path / "replay")
    add(store, 10)
    view = store.transitions(name="mine")
    monkeypatch.chdir(tmp_path)
    os.symlink("replay", "link")
    again = store_in("replay"), store_in("link"), sw.Store.open(tmp_path / "replay", exist_ok=True)
    assert all(one is store for one in again) and len(store) == 10
    assert store_in("replay", strict=True)._log.boundaries.strict
    assert len(view.sample(4)) == 4
    for call in (lambda: sw.Store.open("replay"), lambda: sw.Store(SPEC, capacity=1000, disk="replay")):
        with pytest.raises(sw.StoreInUseError, match="exist_ok=True"):
            call()
    store.close()
    with pytest.raises(FileExistsError, match="give exist_ok=True, or give an empty folder"):
        sw.Store(SPEC, capacity=1000, disk="replay")


def test_a_store_whose_views_alone_are_left_is_returned(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, 10)
    store.resize(capacity=500)
    view = store.transitions(name="mine")
    del store
    again = store_in(tmp_path, capacity=500)
    add(again, 5)
    assert again is store_in(tmp_path, capacity=500) and len(again) == len(view) == 15
    del view, again
    assert len(store_in(tmp_path)) == 15  # opened: the last of them closed it


def test_one_that_was_closed_or_freed_is_opened(tmp_path: Path) -> None:
    store = store_in(tmp_path / "replay", segment_steps=32)
    add(store, 10)
    store.close()
    second = store_in(tmp_path / "replay", capacity=2000)
    assert second is not store and len(second) == 10 and second.capacity == 2000 and second.recovery is not None
    add(second, 5)
    del second
    third = store_in(tmp_path / "replay")
    assert len(third) == 15 and third.capacity == 1000 and third.stats()["lanes"] == 1
    third.close()
    assert sw.Store.open(tmp_path / "replay", exist_ok=True).capacity == 1000


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"spec": sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))}, "spec is"),
    ({"codec": "raw"}, "codecs is"),
    ({"retention": sw.Reservoir()}, "retention is .*Fifo.*, given was .*Reservoir"),
    ({"segment_steps": 7}, "segment_steps is"),
]
LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"capacity": 999}, "capacity is 1000, given was 999"),
    ({"ram": "100MiB"}, "ram is None, given was 104857600"),
    ({"seed": 3}, "seed is 0, given was 3"),
]


@pytest.mark.parametrize(("more", "said"), OTHERS + LIMITS)
def test_other_settings_are_named(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with pytest.raises(ValueError, match=rf"open in this process, with other settings \({said}.*resize\(\)"):
        store_in(tmp_path, **more)
    add(store, 3)  # it goes on
    store.close()
    if (more, said) in OTHERS:
        with pytest.raises(ValueError, match=rf"holds a store with other settings \({said}"):
            store_in(tmp_path, **more)
    else:
        assert len(store_in(tmp_path, **more)) == 3


def test_opening_again_with_other_limits_names_them(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with pytest.raises(ValueError, match="capacity is 1000, given was 999"):
        sw.Store.open(tmp_path, capacity=999, exist_ok=True)
    assert sw.Store.open(tmp_path, capacity=1000, exist_ok=True) is store


def test_what_is_no_store_on_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exist_ok=True without disk="):
        sw.Store(SPEC, capacity=100, exist_ok=True)
    with pytest.raises(TypeError, match="exist_ok='yes', expected True or False"):
        sw.Store(SPEC, capacity=100, disk=tmp_path / "a", exist_ok="yes")  # type: ignore[arg-type]
    with sw.Store(SPEC, capacity=100) as store:
        store.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(FileExistsError, match="holds a store already"):
        store_in(tmp_path / "checkpoint")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"letter\.txt"):
        store_in(tmp_path / "foreign")


@pytest.mark.parametrize(
    "again", [store_in, lambda folder, **more: sw.Store.open(folder, **more)], ids=["make", "open"]
)
def test_a_lowered_capacity_says_what_it_evicts_before_it_does(again: Any, tmp_path: Path) -> None:
    with store_in(tmp_path, segment_steps=10) as store:
        for _ in range(30):
            add(store, 10)
    with again(tmp_path, capacity=1000) as same:  # nothing is said of an ordinary opening
        assert len(same) == 300
    with again(tmp_path, capacity=400) as lower:  # nor of one that has room for all
        assert len(lower) == 300
    said = r"holds 300 steps, capacity=120 has no room for 180 of them.*evicted now.*capacity was 400"
    with warnings.catch_warnings(), pytest.raises(RuntimeWarning, match=said):
        warnings.simplefilter("error")
        again(tmp_path, capacity=120)
    with again(tmp_path, capacity=400) as kept:  # as the warning was an error, nothing was evicted
        assert len(kept) == 300
    with pytest.warns(RuntimeWarning, match=said) as warned:
        lower = again(tmp_path, capacity=120)
    assert len(lower) == 120 and len(warned) == 1 and warned[0].filename == __file__
    lower.close()
    with again(tmp_path, capacity=120) as same:
        assert len(same) == 120


def test_a_lowered_disk_limit_says_that_it_evicts(tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field((1 << 16,), "uint8"), action=sw.Field((), "int64"))
    rng = np.random.default_rng(0)
    with sw.Store(spec, disk_limit="64MiB", disk=tmp_path, codec="raw", segment_steps=16) as store:
        for k in range(480):  # 30 MiB that no codec makes smaller
            obs = rng.integers(0, 256, 1 << 16, dtype=np.uint8)
            store.append(obs=obs, action=k, reward=0.0, terminated=k == 479, truncated=False)
    with pytest.warns(RuntimeWarning, match=r"holds 3\d,\d{3},\d{3} bytes of files, disk_limit=16,777,216 has no room"):
        lower = sw.Store.open(tmp_path, disk_limit="16MiB")
    assert 0 < len(lower) < 480
