"""Checkpoints that fail, are damaged, or hold a state of any content."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave import store as store_module
from sharpwave.format.checkpoint_state import read_state, write_state
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from sharpwave.offline.folder_check import check
from tests.persistence.play import LANES, SAMPLERS, SPEC, Play, assert_right, learned
from tests.support.examples import stride


def test_a_checkpoint_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Files):
        left = 10**9

        def _count(self) -> None:
            Failing.left -= 1
            if Failing.left < 0:
                raise OSError(28, "No space left on device")

        def pwrite(self, *args: Any) -> None:
            self._count()
            super().pwrite(*args)

        def fsync(self, descriptor: int) -> None:
            self._count()
            super().fsync(descriptor)

        def fsync_folder(self, directory: Directory) -> None:
            self._count()
            super().fsync_folder(directory)

        def open(self, directory: Directory, name: str) -> int:
            self._count()
            return super().open(directory, name)

    for disk in (False, True):
        place: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
        folder = tmp_path / f"checkpoint {disk}"
        monkeypatch.setattr(store_module, "Files", Failing)
        store = sw.Store(SPEC, capacity=600, segment_steps=16, **place)
        play = Play(store)
        play.go_on(100)
        store.checkpoint(folder)
        play.go_on(20)
        failed = 0
        while True:
            Failing.left = failed
            try:
                store.checkpoint(folder)
            except OSError as error:
                assert "No space" in str(error)
                failed += 1
                Failing.left = 10**9
                opened = sw.Store.open(folder, disk=tmp_path / f"opened {failed}" if disk else None)
                assert opened.recovery is not None and not opened.recovery.damages
                number = int(next(path.name for path in folder.iterdir() if path.name.isdigit()))
                # Where only the last sync failed it is the new one, which a power cut might take back.
                assert opened.total_steps == 100 * LANES or (number == 2 and opened.total_steps == 120 * LANES)
                opened.close()
            else:
                break
        Failing.left = 10**9
        assert failed > 3
        assert [path.name for path in sorted(folder.iterdir())][1:] == ["lock", "store.json"], "nothing is left over"
        play.go_on(300)
        store.close()


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_what_is_damaged_is_named_and_the_rest_goes_on(tmp_path: Path, disk: bool) -> None:
    place: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
    store = sw.Store(SPEC, capacity=600, segment_steps=16, **place)
    play, view = Play(store), store.transitions(n_step=3, sampler=sw.Prioritized())
    play.go_on(200)
    learned(play, view, np.random.default_rng(1), 5)
    store.checkpoint(tmp_path / "checkpoint")
    store.close()
    region = sorted((tmp_path / "checkpoint").rglob("*.region"))[0]
    content = bytearray(region.read_bytes())
    content[len(content) // 2] ^= 16
    region.write_bytes(content)  # the link is not broken: the store's own file is damaged as well
    assert len(check(tmp_path / "checkpoint").damages) >= 1
    opened = sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "other" if disk else None)
    assert opened.recovery is not None and any(region.name in damage for damage in opened.recovery.damages)
    assert len(store) - 16 <= len(opened) < len(store)
    again = opened.transitions(n_step=3, sampler=sw.Prioritized())
    learned(Play(opened, play.steps), again, np.random.default_rng(2), 20)


@pytest.mark.slow
def test_a_state_of_any_content_is_refused_or_makes_a_store_that_works(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=600, segment_steps=16)
    settings: dict[str, Any] = {"n_step": 2, "max_times_sampled": 3}
    views = [store.transitions(name=kind, sampler=SAMPLERS[kind](), **settings) for kind in SAMPLERS]
    play = Play(store)
    play.go_on(150)
    stream = views[0].stream(8, lookahead=2)
    next(stream)
    store.checkpoint(tmp_path)
    path = tmp_path / "1" / "state.npz"
    state = read_state(path)
    rng = np.random.default_rng(0)
    leaves = list(paths_of(state))
    tried, chosen = 0, np.random.default_rng(1)
    for where in leaves:
        before = at(state, where)
        for value in changed(before, rng):
            tried += 1
            if chosen.integers(stride(1)):
                continue
            put(state, where, value)
            path.unlink()
            with Directory.open(path.parent) as directory:
                write_state(directory, path.name, state, Files())
            opened = sw.Store.open(tmp_path)
            assert opened.recovery is not None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                for kind in SAMPLERS:
                    view = opened.transitions(name=kind, sampler=SAMPLERS[kind](), **settings)
                    if len(view) >= 8:
                        assert_right(view.sample(8))
                        assert_right(next(view.stream(8)))
            Play(opened, play.steps).go_on(20)
        put(state, where, before)
    assert tried > 100
    path.write_bytes(path.read_bytes()[:-100])
    opened = sw.Store.open(tmp_path)
    assert opened.recovery is not None and "state.npz" in opened.recovery.damages[0]
    assert len(opened) > len(store) - 2 * LANES, "segments are there, and rows of open ones"


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_of(one, (*path, key))
    else:
        yield path


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: tuple[Any, ...], one: Any) -> None:
    at(value, path[:-1])[path[-1]] = one


def changed(value: Any, rng: np.random.Generator) -> list[Any]:
    if not isinstance(value, np.ndarray):
        return ["x", -1]
    found: list[Any] = [3, value[:-1], np.concatenate([value, value])]
    if value.size:
        wild = value.copy()
        wild[rng.integers(0, value.size)] = rng.choice([0, 1, 2**31 - 1 if value.itemsize > 1 else 255])
        found.append(wild)
    return found
