"""Deleted episodes: never seen again, by whatever way steps can be seen, and by no later life of the store."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import sharpwave as sw
from sharpwave.cli.commands import app
from sharpwave.data import queries
from sharpwave.disk import state_files
from sharpwave.errors import NewerVersionError
from sharpwave.format import segment_header
from sharpwave.format.checkpoint_state import read_state, write_state
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from sharpwave.offline import scan
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import Following, survey
from sharpwave.persistence import opening
from sharpwave.views import conditions, items, steps
from tests.support.examples import examples, stride
from tests.support.faults import killed, on
from tests.support.faulty import CUTS, ERRORS, KINDS, Died, Faulty

SPEC = sw.Spec(obs=sw.Field((2,), "float32", stack=2), action=sw.Field((), "int64"))


def add(store: sw.Store, first: int, steps: int = 5, lane: int = 0) -> Any:
    """An episode whose actions are ``first``, ``first + 1``, ...; rewards are 1."""
    obs = np.arange(first, first + steps + 1, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    actions = np.arange(first, first + steps)
    return store.add_episode(lane=lane, obs=obs, action=actions, reward=np.ones(steps), terminated=True)


def seen(store: sw.Store) -> list[int]:
    """The actions of all steps, by every way that there is to read them, which agree."""
    by_episodes = sorted(int(action) for episode in store.episodes() for action in episode.action)
    assert len(store) == store.stats()["steps"] == len(by_episodes)
    ids = [int(id_) for episode in store.episodes() for id_ in episode.ids]
    view = store.transitions(name="look")
    known = view.sampleable_ids()
    if len(known):
        assert sorted(view.fetch(known).action.tolist()) == by_episodes
    assert sorted(known.tolist()) == sorted(ids)
    for lane in range(store.lanes):
        found = store.ids(lane, np.arange(int(store.lane_steps[lane])), missing="mask")
        assert set(found[found >= 0].tolist()) <= set(ids)
    return by_episodes


def seen_in(folder: Path, *, torn: bool = False) -> list[int]:
    """The actions of all steps in a folder that is not opened, and has no damage, but for half a record if ``torn``."""
    found, checked = survey(folder), check(folder)
    assert torn or not found.damages
    assert torn or not checked.damages
    actions = [
        int(action)
        for episode in found.episodes
        for part in found.read(episode, ("action",))
        for action in part.arrays["action"][part.rows]
    ]
    assert found.steps == checked.steps == len(actions)
    return sorted(actions)


def made(folder: Path | None, **more: Any) -> sw.Store:
    where: dict[str, Any] = {} if folder is None else {"disk": folder}
    return sw.Store(SPEC, **({"capacity": 4000, "segment_steps": 8} | where | more))


PLANS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "delete", "delete", "again", "kill", "checkpoint", "snapshot", "draw"]),
        st.integers(0, 1 << 20),
    ),
    max_size=25,
)


@pytest.mark.parametrize("disk", [False, True])
@settings(max_examples=examples(40), deadline=None)
@given(plan=PLANS, capacity=st.sampled_from([60, 4000]))
def test_deleted_steps_stay_away_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, disk: bool, plan: list[tuple[str, int]], capacity: int
) -> None:
    folder = tmp_path_factory.mktemp("s")
    names = itertools.count()
    store = made(folder / "d" if disk else None, capacity=capacity)
    deleted, added, versions, late = set[int](), 0, dict[str, list[int]](), 0

    def views() -> list[Any]:
        fifo = store.transitions(name="fifo", sampler=sw.Fifo(), max_times_sampled=3)
        ranked = store.transitions(name="p", n_step=3, sampler=sw.Prioritized())
        windows = store.sequences(4, burn_in=2, stride=2, sampler=sw.Prioritized())
        goals = store.transitions(name="u", sampler=sw.Lifo())
        return [fifo, ranked, windows, goals]

    used = views()
    streams = [view.stream(3) for view in used]
    for kind, number in plan:
        if kind == "add":
            for _ in range(1 + number % 4):
                steps = 1 + number % 13
                add(store, added, steps, lane=number % 3)
                added += steps
        elif kind == "delete":
            episodes = store.episodes()
            some = [one for k, one in enumerate(episodes) if (number >> (k % 20)) & 1]
            deleted |= {int(action) for one in some for action in one.action}
            assert store.delete(episodes=some) == sum(one.length for one in some)
            assert store.delete(episodes=some) == 0
            late += 1
        elif kind in ("again", "kill") and disk:
            streams.clear()
            if kind == "kill":
                store.flush(views=bool(number % 2))
                killed(store)
            else:
                store.close()
            store = sw.Store.open(folder / "d")
            assert not store.recovery.damages  # type: ignore[union-attr]
            used = views()
            streams = [view.stream(3) for view in used]
        elif kind == "checkpoint":
            place = folder / f"c{next(names)}"
            store.checkpoint(place)
            if not disk:
                store = sw.Store.open(place)
                used = views()
                streams = [view.stream(3) for view in used]
            assert seen_in(place) == seen(store)
        elif kind == "snapshot" and disk:
            name = f"v{next(names)}"
            store.snapshot(name)
            versions[name] = seen(store)
        elif kind == "draw":
            for view, stream in zip(used, streams, strict=True):
                for take in (lambda view=view: view.sample(4), lambda stream=stream: next(stream)):
                    try:
                        drawn = np.asarray(take().action).ravel()
                    except sw.EmptyError:
                        continue
                    assert not deleted & set(drawn[drawn > 0].tolist())
        now = seen(store)
        assert not deleted & set(now)
        if capacity == 4000:
            assert set(now) == set(range(added)) - deleted
        for view in used:
            assert view.source.items.count <= len(now)
    if disk:
        store.flush()
        assert seen_in(folder / "d") == seen(store)
        for name, known in versions.items():
            with sw.Store.open(folder / "d", version=name) as version:
                assert seen(version) == known
            assert seen_in(folder / "d" / "versions" / name) == known
    store.close()


def test_an_operation_that_fails_or_kills_leaves_all_or_nothing(tmp_path: Path) -> None:
    """At each file operation of a deletion, in each way; and a deletion that returned stays one."""
    outcomes = set[tuple[str, bool]]()
    for kind in KINDS:
        for at in itertools.count(1 + KINDS.index(kind) % stride(1), stride(1)):
            folder, files = tmp_path / f"{kind} {at}", Faulty(0, kind, at)
            with on(files):
                store = made(folder)
                for k in range(0, 100, 5):
                    add(store, k)
                store.delete(episodes=store.episodes()[2:3])
                store.flush()
                add(store, 100)
                before = sorted({*range(105)} - {*range(10, 15)})
                after = sorted(set(before) - {*range(30, 55), *range(100, 105)})
                some = [one for one in store.episodes() if int(one.action[0]) in {*range(30, 55), 100}]
                files.at, began = files.count + at, files.count
                returned, dead = False, False
                try:
                    returned = store.delete(episodes=some) == 30
                except OSError:
                    assert kind in ERRORS
                    assert seen(store) == before
                except Died:
                    dead = True
                over = files.count - began < at
                if not dead:
                    assert seen(store) == (after if returned else before)
                files.at = 0
                try:
                    killed(store)
                except Died:
                    assert store._log.disk is not None
                    os.close(next(reversed(store._log.disk.regions.regions.values())).descriptor)
            if kind in CUTS and dead:
                files.cut_power(folder)
            with on(Faulty()), sw.Store.open(folder) as store:
                now = seen(store)
                lost = {*range(100, 105)}  # not flushed before the deletion
                differs = [(set(now) ^ set(one)) - lost for one in (before, after)]
                assert set() in differs, (kind, at, differs, store.recovery)
                assert not returned or set(now) == set(after), (kind, at)
                outcomes.add((kind, set(now) <= set(after)))
                add(store, 200)
                store.flush()
            assert set(seen_in(folder, torn="write" in kind or kind in CUTS)) == {*now, *range(200, 205)}
            if over:
                break
        assert at > 6
    assert {(kind, True) for kind in KINDS} < outcomes
    assert {(kind, False) for kind in KINDS} < outcomes


KILLED = """
import os, signal, sys, numpy as np, sharpwave as sw
from sharpwave.native.file_operations import Files
left = [1 << 30]
def counted(real):
    def call(*given, **more):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **more)
    return call
for name in ("pwrite", "fsync", "create", "replace", "unlink", "rename", "make_directory", "fsync_folder"):
    setattr(Files, name, counted(getattr(Files, name)))
store = sw.Store.open(sys.argv[1])
left[0] = int(sys.argv[2])
store.delete(episodes=store.episodes()[3:9])
print("returned", flush=True)
store._life.over()
os._exit(0)
"""


def test_sigkill_at_each_operation_leaves_all_or_nothing(tmp_path: Path) -> None:
    outcomes = []
    for number in itertools.count(0, stride(1)):
        folder = tmp_path / str(number)
        with made(folder) as store:
            for k in range(0, 100, 5):
                add(store, k)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(folder), str(number)], capture_output=True, timeout=100
        )
        returned = b"returned" in done.stdout
        assert returned or done.returncode == -signal.SIGKILL
        with sw.Store.open(folder) as store:
            now = seen(store)
            assert not store.recovery.damages  # type: ignore[union-attr]
        assert seen_in(folder) == now
        assert now in ([*range(100)], [*range(15), *range(45, 100)])
        outcomes.append(len(now))
        if returned:
            break
    assert outcomes == sorted(outcomes, reverse=True)
    assert {outcomes[0], outcomes[-1]} == {100, 70}


@pytest.mark.parametrize("more", [9, 12, 22])
def test_steps_in_memory_are_on_disk_before_their_deletion_counts(tmp_path: Path, more: int) -> None:
    """Otherwise a crash at a file operation of the deletion brings a segment back that was evicted for them, and steps
    of it that were deleted before: the marks of what is held now have replaced theirs."""
    for at in itertools.count(1):
        folder, files, returned = tmp_path / str(at), Faulty(0, "killed", at), False
        with on(files):
            store = made(folder, capacity=40)
            for k in range(0, 40, 5):
                add(store, k)
            store.flush()
            store.delete(episodes=[one for one in store.episodes() if one.action[0] == 5])
            store.flush()
            add(store, 100, more)
            files.at, began = files.count + at, files.count
            with contextlib.suppress(Died):
                returned = store.delete(episodes=store.episodes()[-1]) == more
            over, files.at = files.count - began < at, 0
            try:
                killed(store)
            except Died:
                assert store._log.disk is not None
                os.close(next(reversed(store._log.disk.regions.regions.values())).descriptor)
        with sw.Store.open(folder) as store:
            now = set(seen(store))
            assert not now & set(range(5, 10)), at
            assert not returned or not now & set(range(100, 100 + more))
        if over:
            assert returned
            break
    assert at > 6


def test_a_deletion_flushes_the_steps_that_stay(tmp_path: Path) -> None:
    store = made(tmp_path / "s")
    for k in range(0, 20, 5):
        add(store, k)
    store.delete(episodes=store.episodes()[1])
    killed(store)
    with sw.Store.open(tmp_path / "s") as store:
        assert seen(store) == [*range(5), *range(10, 20)]


def test_deletion_by_condition(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    store = made(tmp_path / "d")
    for k in range(6):
        store.annotate(0, {"success": k % 2 == 0}, episode=True)
        add(store, 10 * k, 5 + k)
    store.annotate(0, {"success": False}, episode=True)
    obs = np.zeros(2, np.float32)
    store.append(obs=obs, action=999, reward=0.0, terminated=False, truncated=False, next_obs=obs)
    view = store.transitions(where="length > 5")
    ids = [episode.ids for episode in store.episodes()]
    assert view.sampleable_ids().size
    assert store.delete(where="success = false") == 6 + 8 + 10  # not the one that has not ended
    assert [int(one.action[0]) for one in store.episodes()] == [0, 20, 40, 999]
    assert sorted(set(view.fetch(view.sampleable_ids()).action // 10)) == [2, 4]
    assert store.table("episodes").read_all()["length"].to_pylist() == [5, 7, 9, 1]
    assert len(store.table("steps").read_all()) == len(store) == 22
    with pytest.raises(KeyError, match="evicted"):
        store.annotations_of(ids[1])
    with pytest.raises(KeyError):
        view.fetch(ids[1])
    assert store.delete(where="success = false") == 0
    with pytest.raises(ValueError, match="delete: the episode of lane 0 has not ended"):
        store.delete(episodes=store.episodes())
    store.close()


def test_late_columns_and_readers_of_deleted_episodes() -> None:
    store = made(None)
    ids = [add(store, k) for k in range(0, 40, 5)]
    store.derive("x", lambda reward: reward, ("reward",))
    episode = store.episodes()[3]
    assert store.delete(episodes=episode) == 5
    assert store.write_column("x", np.concatenate(ids[2:5]), np.ones(15)) == 10
    assert store.read_column("x", ids[3])[1].tolist() == [False] * 5
    for read in (lambda: episode.obs, lambda: episode.reward, lambda: episode.ids, lambda: episode.info):
        with pytest.raises(KeyError):
            read()
    assert store.delete(episodes=[episode]) == 0
    assert store.stats()["deleted_steps"] == 5


def test_space_of_wholly_deleted_segments_is_free_at_once(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    for k in range(0, 800, 4):
        add(store, k, 4)
    before = store.stats()
    store.delete(episodes=store.episodes()[20:180])
    after = store.stats()
    assert after["segments"] <= before["segments"] - 79
    assert after["evicted_segments"] >= 79
    assert after["deleted_steps"] <= 8
    assert after["steps"] + after["deleted_steps"] + after["evicted_steps"] == after["total_steps"]
    store.close()


def test_a_branch_and_an_opened_checkpoint_are_without_deleted_episodes(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    for k in range(0, 50, 5):
        add(store, k)
    store.snapshot("before")
    store.delete(episodes=store.episodes()[3:7])
    known = [*range(15), *range(35, 50)]
    store.checkpoint(tmp_path / "c")
    store.branch(tmp_path / "b").close()
    for place in ("b", "c", "b"):
        with sw.Store.open(tmp_path / place) as again:
            assert seen(again) == known
            assert not again.recovery.damages  # type: ignore[union-attr]
            assert again.recovery.steps == len(known)  # type: ignore[union-attr]
        assert seen_in(tmp_path / place) == known
    with store.branch(tmp_path / "e", "before") as whole:
        assert seen(whole) == [*range(50)]
    store.close()


def test_refusals(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    add(store, 0)
    other = made(None)
    add(other, 0)
    episodes: Any
    for episodes, what in (("x", "expected episodes"), ([3], "got 3"), (5, "expected episodes")):
        with pytest.raises(TypeError, match=what):
            store.delete(episodes=episodes)
    for arguments in ({}, {"where": "length > 1", "episodes": []}):
        with pytest.raises(TypeError, match="either where= or episodes="):
            store.delete(**arguments)
    with pytest.raises(ValueError, match="another store"):
        store.delete(episodes=other.episodes())
    store.snapshot("v")
    with sw.Store.open(tmp_path / "d", version="v") as version, pytest.raises(ValueError, match="never changes"):
        version.delete(episodes=version.episodes())
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.delete(episodes=[])


def test_a_follower_of_the_folder_notices(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    for k in range(0, 15, 5):
        add(store, k)
    store.flush()
    following = Following(tmp_path / "d")
    following.update()
    assert following.survey.steps == 15
    store.delete(episodes=store.episodes()[0])
    assert following.update()
    assert following.survey.steps == 10
    assert not following.update()
    store.close()


def test_a_release_that_does_not_know_deletions_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tmp_path / "d") as store:
        add(store, 0)
        add(store, 5)
        store.delete(episodes=store.episodes()[0])
        store.resize(capacity=5000)
        store.checkpoint(tmp_path / "c")
    with sw.Store.open(tmp_path / "d", capacity=3000):
        pass
    monkeypatch.setattr(segment_header, "DELETED_STEPS", "another")
    for place in ("d", "c"):
        with pytest.raises(NewerVersionError, match="deleted steps"):
            sw.Store.open(tmp_path / place)


def with_deletion(folder: Path) -> Path:
    """A store of steps 5 to 19 whose steps 0 to 4 were deleted; return the file that says so."""
    with made(folder) as store:
        for first in range(0, 20, 5):
            add(store, first)
        store.delete(episodes=store.episodes()[0])
    (file,) = (folder / "columns").iterdir()
    return file


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_a_passing_read_error_refuses_the_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    file = with_deletion(tmp_path / "d")
    before = {path: path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file()}
    opened = Directory.open_file

    def failing(directory: Directory, name: str, **more: Any) -> int:
        if name == file.name:
            raise OSError(number, os.strerror(number), name)
        return opened(directory, name, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "open_file", failing)
        with pytest.raises(OSError, match=f"{file.name}.*which steps were deleted") as caught:
            sw.Store.open(tmp_path / "d")
        assert caught.value.errno == number
        patch.setattr(state_files, "read_state", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            sw.Store.open(tmp_path / "d")
        patch.setattr(state_files, "read_state", lambda *_: (_ for _ in ()).throw(NewerVersionError("x")))
        with pytest.raises(NewerVersionError):
            sw.Store.open(tmp_path / "d")
    assert before == {path: path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file()}
    with sw.Store.open(tmp_path / "d") as store:
        assert not store.recovery.damages  # type: ignore[union-attr]
        assert seen(store) == [*range(5, 20)]


def test_a_passing_read_error_refuses_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_deletion(tmp_path / "d")
    with sw.Store.open(tmp_path / "d") as store:
        store.checkpoint(tmp_path / "c")

    def failing(*_: Any) -> Any:
        raise OSError(errno.EIO, "broken", "state.npz")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "read_state", failing)
        with pytest.raises(OSError, match="broken"):
            sw.Store.open(tmp_path / "c")
    with sw.Store.open(tmp_path / "c") as store:
        assert seen(store) == [*range(5, 20)]
        assert not store.recovery.damages  # type: ignore[union-attr]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)


def of_another_shape(file: Path) -> None:
    """Sound as a file, and of a store with other segments."""
    state = read_state(file) | {"deleted": np.zeros(1, np.uint8)}
    file.unlink()
    with Directory.open(file.parent) as directory:
        write_state(directory, file.name, state, Files())


@pytest.mark.parametrize("damage", [cut, flipped, of_another_shape])
def test_damaged_deletions_are_named_and_set_aside(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    file = with_deletion(tmp_path / "d")
    damage(file)
    broken = file.read_bytes()
    assert len(check(tmp_path / "d").damages) == 1
    with sw.Store.open(tmp_path / "d") as store:
        (named,) = store.recovery.damages  # type: ignore[union-attr]
        assert str(file) in named
        assert "steps that were deleted are there again" in named
        assert seen(store) == [*range(20)]
        store.delete(episodes=store.episodes()[1])
    assert (tmp_path / "d" / "quarantine" / file.name).read_bytes() == broken
    with sw.Store.open(tmp_path / "d") as store:
        assert not store.recovery.damages  # type: ignore[union-attr]
        assert seen(store) == [*range(5), *range(10, 20)]
    assert seen_in(tmp_path / "d") == [*range(5), *range(10, 20)]


def lost(file: Path) -> None:
    file.unlink()


def lost_with_its_folder(file: Path) -> None:
    shutil.rmtree(file.parent)


def folder_in_its_place(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [lost, lost_with_its_folder, folder_in_its_place])
def test_lost_deletions_are_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    file = with_deletion(tmp_path / "d")
    damage(file)
    (found,) = check(tmp_path / "d").damages
    assert found.path == file
    for capacity in (4000, 5000, 6000):  # store.json is written again, and goes on to name deleted steps
        with sw.Store.open(tmp_path / "d", capacity=capacity) as store:
            (named,) = store.recovery.damages  # type: ignore[union-attr]
            assert str(file) in named
            assert "steps that were deleted are there again" in named
            assert seen(store) == [*range(20)]
        assert len(check(tmp_path / "d").damages) == 1
    if file.exists():
        file.rmdir()
    with sw.Store.open(tmp_path / "d") as store:
        store.delete(episodes=store.episodes()[0])
    assert not check(tmp_path / "d").damages
    with sw.Store.open(tmp_path / "d") as store:
        assert not store.recovery.damages  # type: ignore[union-attr]
        assert seen(store) == [*range(5, 20)]


def test_a_deletion_that_failed_leaves_no_trace(tmp_path: Path) -> None:
    """Until the first deletion is written, nothing names deleted steps whose file would be missing."""
    with made(tmp_path / "d") as store:
        add(store, 0)
        assert store._log.disk is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store._log.disk.files, "replace", broken_disk)
            with pytest.raises(OSError, match="broken"):
                store.delete(episodes=store.episodes())
        store.resize(capacity=5000)
    assert not check(tmp_path / "d").damages
    with sw.Store.open(tmp_path / "d") as store:
        assert not store.recovery.damages  # type: ignore[union-attr]
        assert seen(store) == [*range(5)]


def broken_disk(*_: Any) -> None:
    raise OSError(errno.EIO, "broken")


def test_episodes_deleted_before_a_folder_was_read_stay_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although a deletion while it is read frees a segment, and so its marks."""
    store = made(tmp_path / "d")
    for first in range(0, 40, 4):  # two episodes a segment
        add(store, first, 4)
    by_first = {int(one.action[0]): one for one in store.episodes()}
    store.delete(episodes=by_first[0])
    read, deletions = scan.FolderScan._read_files, iter([[4, 20], [16, 32], *[[]] * 9])

    def read_and_delete(self: Any, *given: Any) -> bool:
        changed = read(self, *given)
        for first in next(deletions):
            store.delete(episodes=by_first[first])
        return changed

    monkeypatch.setattr(scan.FolderScan, "_read_files", read_and_delete)
    assert seen_in(tmp_path / "d") == seen(store)
    deletions = iter([[24], [8], [12], [28], [36]])  # at each look another
    assert {one.first_step for one in survey(tmp_path / "d").episodes} <= {24, 8, 12, 28, 36}
    store.close()


def test_a_query_reads_a_folder_again_whose_files_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    store = made(tmp_path / "d")
    for first in range(0, 400, 4):
        add(store, first, 4)
    store.flush()
    tries, found = itertools.count(), queries.query
    disk, compaction = store._log.disk, store._log.compaction
    assert disk is not None
    assert compaction is not None

    def vanishing(survey: Any, text: str) -> Any:
        if next(tries) < 2:
            disk.regions.finish()
            compaction._copy([*disk.regions.regions])
        return found(survey, text)

    monkeypatch.setattr(queries, "query", vanishing)
    done = CliRunner().invoke(app, ["sql", str(tmp_path / "d"), "select count(*) n from steps", "--csv"])
    assert (done.exit_code, done.stdout.split()) == (0, ["n", "400"]), done.output
    store.close()


@pytest.mark.parametrize("fed", [False, True])
def test_no_part_of_a_running_episode_can_be_deleted(fed: bool) -> None:
    """Also where others of its segments were evicted, between its first steps and its last."""
    pytest.importorskip("duckdb")
    store = made(None, capacity=80, retention=sw.Reservoir(seed=1))
    add(store, 0, 20)
    obs = np.zeros(2, np.float32)

    target: Any = store
    if fed:
        take = lambda one: store.add_segment(one.packed, one.dictionaries)  # noqa: E731
        target = sw.SegmentWriter(SPEC, 1, take, first_lane=1, segment_steps=8)
    for k in range(200):
        target.extend(
            obs=obs[None], action=np.array([1000 + k]), reward=np.ones(1), terminated=[False], truncated=[False]
        )
    running = [one for one in store.episodes() if int(one.action[0]) >= 1000]
    assert len(running) > 1
    others = len(store) - sum(one.length for one in running)
    assert store.delete(where="length between 0 and 1000000") == others
    assert sum(one.length for one in running) == len(store)
    for one in running:
        with pytest.raises(ValueError, match="has not ended"):
            store.delete(episodes=one)


@pytest.mark.parametrize("disk", [False, True])
def test_the_lowest_priority_is_by_steps_that_are_there(tmp_path: Path, disk: bool) -> None:
    store = made(tmp_path / "d" if disk else None, capacity=160, segment_steps=16, retention=sw.LowestPriority())
    view = store.transitions(sampler=sw.Prioritized(alpha=1))
    add(store, 0, 15)
    add(store, 20, 1)  # in one segment with the first
    for first in range(100, 700, 100):
        add(store, first, 16)
    priority = {int(id_): 1.0 for id_ in view.sampleable_ids()}
    priority |= {int(id_): 1.5 for id_ in store.episodes()[0].ids}
    priority |= {int(id_): 9.0 for id_ in store.episodes()[1].ids}
    view.update_priorities(np.array([*priority]), np.array([*priority.values()]))
    store.delete(episodes=store.episodes()[0])
    for first in range(1000, 1400, 100):
        add(store, first, 16)
    assert 20 in {int(one.action[0]) for one in store.episodes()}
    store.close()


def test_deleting_an_episode_looks_at_its_segments_only(monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(None)
    for first in range(0, 1000, 10):
        add(store, first, 10)
    views: list[Any] = [store.transitions(name="t"), store.sequences(4, burn_in=2, stride=2)]
    episodes = list(store.episodes())
    store.delete(episodes=episodes[10])
    looked = list[int]()
    flags, judged = steps.Steps.flags, conditions.Judge.deleted_of

    def count_flags(self: Any, slot: int) -> Any:
        looked.append(slot)
        return flags(self, slot)

    def count_items(self: Any, items: Any) -> Any:
        assert len(items) <= 4 * 8
        return judged(self, items)

    with monkeypatch.context() as patch:
        patch.setattr(steps.Steps, "flags", count_flags)
        patch.setattr(conditions.Judge, "deleted_of", count_items)
        store.delete(episodes=episodes[50])
        for view in views:
            assert not set(range(500, 510)) & set(view.sample(200).action.ravel().tolist())
    assert 0 < len(looked) < 10
    assert seen(store) == [*range(100), *range(110, 500), *range(510, 1000)]


def test_the_number_of_steps_counts_deleted_ones_through_evictions() -> None:
    store = made(None, capacity=100)
    view = store.transitions()
    for first in range(0, 600, 5):
        add(store, first)
        if first % 20 == 0:
            store.delete(episodes=store.episodes(order="newest")[0])
        assert len(store) == sum(one.length for one in store.episodes())
        assert store.stats()["deleted_steps"] == store._log.inventory.held_steps - len(store)
        assert not {k for k in range(first + 5) if k % 20 < 5} & set(view.fetch(view.sampleable_ids()).action.tolist())
    store.clear()
    assert len(store) == 0


def taken(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (folder / "regions").iterdir())


def large(folder: Path) -> sw.Store:
    """A store of 8 MiB that cannot be compressed: 250 episodes, a segment each."""
    rng = np.random.default_rng(0)
    spec = sw.Spec(obs=sw.Field((256,), "int64"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=100_000, disk=folder, segment_steps=16)
    for k in range(250):
        obs = rng.integers(0, 1 << 60, (17, 256))
        store.add_episode(lane=0, obs=obs, action=np.full(16, k), reward=np.ones(16), terminated=True)
    store.flush()
    return store


def test_files_shrink_with_a_deletion(tmp_path: Path) -> None:
    store = large(tmp_path / "d")
    before, kept = taken(tmp_path / "d"), [one.obs for one in store.episodes()[::10]]
    gone = [one for k, one in enumerate(store.episodes()) if k % 10]
    store.delete(episodes=gone)
    assert taken(tmp_path / "d") < 0.25 * before
    for again in range(2):
        for one, obs in zip(store.episodes(), kept, strict=True):
            assert np.array_equal(one.obs, obs), again
        store.transitions(name=str(again)).sample(64)
        store.close()
        store = sw.Store.open(tmp_path / "d")
        assert not store.recovery.damages  # type: ignore[union-attr]
        assert taken(tmp_path / "d") < 0.25 * before
    store.close()


def test_files_of_a_version_are_not_copied(tmp_path: Path) -> None:
    store = large(tmp_path / "d")
    store.snapshot("v")
    files = {path.name for path in (tmp_path / "d" / "regions").iterdir()}
    store.delete(episodes=store.episodes()[20:])
    left = {path.name: path.stat().st_nlink for path in (tmp_path / "d" / "regions").iterdir()}
    assert {name for name, links in left.items() if links > 1} & files
    assert taken(tmp_path / "d") < 10 << 20
    with sw.Store.open(tmp_path / "d", version="v") as version:
        assert len(version) == 4000
    assert len(store) == 320
    store.close()


def test_a_full_disk_is_named_by_the_deletion(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    add(store, 0)
    disk = store._log.disk
    assert disk is not None

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    for name in ("pwrite", "replace"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk.files, name, full)
            with pytest.raises(OSError, match=r"delete: .*nothing was deleted.*clear\(\)") as caught:
                store.delete(episodes=store.episodes())
        assert caught.value.errno == errno.ENOSPC
        assert seen(store) == [*range(5)]
    assert store.delete(episodes=store.episodes()) == 5
    store.close()


@pytest.mark.parametrize("prioritized", [False, True])
def test_draws_after_a_deletion_are_by_the_core_again(prioritized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(None, capacity=120)
    view = store.transitions(sampler=sw.Prioritized(alpha=1) if prioritized else sw.Uniform())
    for first in range(0, 50, 5):
        add(store, first)
    store.delete(episodes=store.episodes()[2:4])
    gone, drawn = {*range(10, 20)}, set[int]()
    with monkeypatch.context() as patch:
        for first in range(50, 70, 5):
            if first == 60:  # batches of this size have their memory by then
                patch.setattr(items.Items, "_insert", None)
            add(store, first)
            batch = view.sample(256)
            drawn |= set(batch.action.tolist())
            if prioritized:
                assert view.update_priorities(batch.ids, np.full(256, 2.0)) == 0  # stale ones
    assert drawn == {*range(70)} - gone
    for first in range(70, 300, 5):  # the slots of deleted steps have others
        add(store, first)
        drawn = set(view.sample(256).action.tolist())
        assert not drawn & gone
        if first == 100:
            store.delete(episodes=[one for one in store.episodes() if int(one.action[0]) == 100])
            gone |= {*range(100, 105)}
    known = view.sampleable_ids()
    assert set(view.fetch(known).action.tolist()) == {int(a) for one in store.episodes() for a in one.action}
    assert view.source.items.count == len(known) == len(store)
