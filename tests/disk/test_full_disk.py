"""What ``on_full`` promises, on small file systems that really become full."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.support.examples import every_two
from tests.support.faults import killed
from tests.support.small_disk import fill, free_bytes, mounted

NUMBER = sw.Field((), "int64")
SPEC = sw.Spec(obs=sw.Field((32, 32), "uint8"), action=NUMBER)
RETENTIONS = [sw.Fifo(), sw.Reservoir(3), sw.LowestPriority()]
BYTES = 66_000
"""Of a segment of 64 steps, as nothing in it can be made smaller."""


def make(folder: Path, on_full: str, **settings: Any) -> sw.Store:
    return sw.Store(SPEC, capacity=10**6, disk=folder / "s", on_full=on_full, codec="raw", **settings)


def play(store: sw.Store, first: int, steps: int) -> None:
    rng = np.random.default_rng(first)
    for i in range(first, first + steps):
        frame = rng.integers(0, 255, (32, 32), dtype=np.uint8)
        store.append(obs=frame, action=i, reward=0.0, terminated=i % 20 == 19, truncated=False)


def actions(store: sw.Store) -> set[int]:
    view = store.transitions()
    ids = view.sampleable_ids()
    return set(view.fetch(ids).action.tolist()) if len(ids) else set()


@pytest.mark.parametrize(("retention", "limit"), every_two(RETENTIONS, [None, "1GiB"]))
def test_drop_oldest_drops_until_there_is_room(tmp_path: Path, retention: Any, limit: str | None) -> None:
    with mounted(tmp_path / "full", 6) as folder:
        store, least, total = make(folder, "drop_oldest", retention=retention, disk_limit=limit), 0, 0
        for first in range(0, 12_000, 100):
            before = len(store)
            play(store, first, 100)
            if len(store) < before + 100:
                least = min(least or len(store), len(store))
        share = 0.5 if retention.in_order else 0.2  # a reservoir's threshold also turns newcomers away
        assert least > share * (6 << 20) / 1056, "a region is dropped at a time, not nearly everything"
        store.flush()  # may drop a segment for the rows of the open one
        stats, held, total = store.stats(), actions(store), 12_000
        assert stats["evicted_steps"] == total - len(store)
        assert 0 < stats["disk"]["dropped_steps"] <= stats["evicted_steps"]
        if retention.in_order:
            assert held == set(range(min(held), max(held) + 1)) and max(held) >= total - 2
            assert stats["disk"]["dropped_steps"] == stats["evicted_steps"]
        killed(store)
        if retention.in_order:
            fill(folder)
        with sw.Store.open(folder / "s") as again:
            assert actions(again) >= held - {max(held)} and actions(again) <= held | {total - 1}
            assert again.stats()["disk"]["dropped_steps"] == stats["disk"]["dropped_steps"]
            play(again, total, 500)
            assert len(again) > 1000


@pytest.mark.parametrize("retention", RETENTIONS, ids=lambda one: type(one).__name__)
def test_drop_oldest_goes_on_while_others_fill_the_disk(tmp_path: Path, retention: Any) -> None:
    with mounted(tmp_path / "full", 8) as folder:
        store = make(folder, "drop_oldest", retention=retention)
        play(store, 0, 2000)
        theirs = fill(folder)
        for first in range(2000, 6000, 500):
            fill(folder)  # what is dropped is not left to others while an append runs
            play(store, first, 500)
        assert len(store) > 500 and store.stats()["disk"]["dropped_steps"] > 0
        theirs.unlink()
        dropped, held = store.stats()["disk"]["dropped_steps"], len(store)
        play(store, 6000, 1500)
        assert store.stats()["disk"]["dropped_steps"] == dropped
        assert isinstance(retention, sw.Reservoir) or len(store) == held + 1500
        store.close()


def test_drop_oldest_survives_a_checkpoint_on_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "full", 6) as folder:
        store = make(folder, "drop_oldest")
        play(store, 0, 3000)
        store.checkpoint(tmp_path / "elsewhere")
        fill(folder)
        play(store, 3000, 3000)
        assert 500 < len(store) < 6000
        store.close()


@pytest.mark.parametrize("retention", RETENTIONS, ids=lambda one: type(one).__name__)
def test_drop_oldest_goes_on_after_an_opening_and_a_checkpoint(tmp_path: Path, retention: Any) -> None:
    """No disk space is held in reserve then, and no file is left that a note could be written to."""
    with mounted(tmp_path / "full", 6) as folder:
        with make(folder, "drop_oldest", retention=retention) as store:
            play(store, 0, 3000)
        store = sw.Store.open(folder / "s")
        store.checkpoint(folder / "c")
        shutil.rmtree(folder / "c")
        fill(folder)
        for first in range(3000, 8000, 500):
            play(store, first, 500)
        store.flush()
        stats, held = store.stats(), actions(store)
        assert len(store) > 500 and 0 < stats["disk"]["dropped_steps"] <= stats["evicted_steps"]
        assert not retention.in_order or held == set(range(min(held), 8000))
        store.close()
        with sw.Store.open(folder / "s") as again:
            assert actions(again) == held
            assert again.stats()["disk"]["dropped_steps"] == stats["disk"]["dropped_steps"]


def test_nothing_is_dropped_where_a_checkpoint_holds_the_same_files(tmp_path: Path) -> None:
    with mounted(tmp_path / "full", 6) as folder:
        store = make(folder, "drop_oldest")
        play(store, 0, 3000)
        store.checkpoint(folder / "c")
        theirs = fill(folder)
        with pytest.raises(OSError, match="a checkpoint holds the same files, so dropping steps frees nothing"):
            play(store, 3000, 2000)
        assert len(store) >= 3000 and store.stats()["disk"]["dropped_steps"] == 0
        theirs.unlink()
        play(store, 5000, 500)
        store.close()
        with sw.Store.open(folder / "s") as again:
            assert actions(again) >= set(range(2999))


def test_a_store_that_cannot_be_opened_on_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    refused = 0
    with mounted(tmp_path / "full", 6) as folder:
        for count in range(700, 960, 37):  # whether there is room for the last rows depends on where they lie
            with make(folder, "drop_oldest") as store:
                play(store, 0, count)
            theirs = fill(folder)
            try:
                sw.Store.open(folder / "s").close()
            except OSError as error:
                refused += 1
                assert "s: No space left on device: nothing of it is lost; " in str(error)
                assert "Make room, some MiB, and repeat the call" in str(error)
            with pytest.raises(OSError, match=r"t: No space left .*: it cannot be begun. Make room"):
                sw.Store(SPEC, capacity=1000, disk=folder / "t")
            theirs.unlink()
            with sw.Store.open(folder / "s") as again:
                ended = (count - 1) % 20 == 19
                assert actions(again) == set(range(count if ended else count - 1))
            shutil.rmtree(folder / "s")
        assert refused
        sw.Store(SPEC, capacity=1000, disk=folder / "t").close()


def test_drop_newest_keeps_what_is_there(tmp_path: Path) -> None:
    with mounted(tmp_path / "full", 4) as folder:
        store = make(folder, "drop_newest")
        play(store, 0, 2000)
        theirs = fill(folder)
        play(store, 2000, 1280)
        assert store.stats()["disk"]["dropped_steps"] == store.stats()["evicted_steps"] > 0
        assert actions(store) >= set(range(1900))
        theirs.unlink()
        dropped = store.stats()["disk"]["dropped_steps"]
        play(store, 3280, 500)
        assert store.stats()["disk"]["dropped_steps"] == dropped and actions(store) >= set(range(3400, 3779))
        store.flush()
        held = actions(store)
        killed(store)
        with sw.Store.open(folder / "s") as again:
            assert actions(again) >= held - {max(held)}


def test_block_waits_until_others_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted(tmp_path / "full", 4) as folder:
        store = make(folder, "block")
        play(store, 0, 1000)
        theirs, slept = fill(folder), []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                theirs.unlink()

        monkeypatch.setattr("sharpwave.writing.time.sleep", sleep)
        play(store, 1000, 1500)
        assert len(store) == 2500 and len(slept) == 3 and store.stats()["disk"]["dropped_steps"] == 0
        store.close()


def test_a_store_that_raises_is_as_it_was(tmp_path: Path) -> None:
    with mounted(tmp_path / "full", 4) as folder:
        store = make(folder, "raise")
        play(store, 0, 500)
        theirs = fill(folder)
        with pytest.raises(OSError, match="No space left"):
            play(store, 500, 3000)
        held = len(store)
        assert free_bytes(folder) < BYTES
        theirs.unlink()
        play(store, held, 500)
        assert len(store) == held + 500 and store.stats()["evicted_steps"] == 0
        store.close()
