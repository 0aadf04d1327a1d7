"""Versions: what a name stands for stays what it was, whatever happens to the store, its branches and its readers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk.store_folder import packed_manifest, read_manifest
from sharpwave.offline.folder_check import check
from sharpwave.persistence import versions
from tests.support.examples import examples, stride

SPEC = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))


def fill(store: sw.Store, steps: int, lane: int = 0) -> None:
    for _ in range(steps):
        k = int(store.lane_steps[lane]) if lane < store.lanes else 0
        obs = np.full(3, k, np.float32)
        store.append(lane=lane, obs=obs, action=k, reward=k % 9, terminated=k % 10 == 9, truncated=False)


def content(store: sw.Store) -> list[tuple[Any, ...]]:
    """All that can be read of a store: episodes, ids, late columns."""
    facts = [(e.lane, e.first_step, e.length, e.total_reward, e.begun, e.ended, e.info) for e in store.episodes()]
    names = [one for name in store.columns for one in (name, f"{name}.written")]
    arrays = [[e.action, e.obs, e.ids, *(e[name] for name in names)] for e in store.episodes()]
    return [(*fact, *(array.tolist() for array in some)) for fact, some in zip(facts, arrays, strict=True)]


def made(folder: Path, **more: Any) -> sw.Store:
    return sw.Store(SPEC, disk=folder, segment_steps=8, **({"capacity": 400} | more))


def to_go(reward: Any) -> Any:
    return np.cumsum(reward[::-1])[::-1]


def test_a_version_stays_as_it_was_while_the_store_goes_on(tmp_path: Path) -> None:
    """Through evictions of all its steps, dropped columns, reopening, and versions deleted beside it."""
    store = made(tmp_path / "d")
    known = {}
    for number in range(6):
        store.annotate(0, {"number": number}, episode=True)
        fill(store, 120)
        fill(store, 33, lane=1)
        if number % 2 == 0:
            store.derive("to_go", to_go, ("reward",))
        elif "to_go" in store.columns:
            store.drop_column("to_go")
        made_version = store.snapshot(f"v{number}", {"number": number})
        assert (made_version.steps, made_version.note) == (len(store), {"number": number})
        assert made_version.parent == (f"v{number - 1}" if number else None)
        known[f"v{number}"] = content(store)
        if number == 3:
            store.delete_version("v1")
            del known["v1"]
            store.close()
            store = sw.Store.open(tmp_path / "d")
    fill(store, 2000)
    assert [one.name for one in store.versions()] == list(known)
    for name, was in known.items():
        with sw.Store.open(tmp_path / "d", version=name) as version:  # while the store is in use
            assert content(version) == was
            assert version.transitions().sample(64).action.max() <= max(one[1] + one[2] for one in was)
        assert not check(tmp_path / "d" / "versions" / name).damages
    assert sorted(os.listdir(tmp_path / "d" / "versions")) == list(known)
    store.close()
    found = check(tmp_path / "d")
    assert not found.damages
    assert not [note for note in found.notes if "versions" in note]


def test_a_branch_goes_on_by_itself(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    fill(store, 100)
    store.derive("to_go", to_go, ("reward",))
    store.snapshot("v")
    before = content(store)
    fill(store, 57)
    branch = store.branch(tmp_path / "b", "v")
    assert content(branch) == before
    fill(branch, 1000)
    now = content(branch)
    assert branch.snapshot("w").parent == "v"
    branch.close()
    with sw.Store.open(tmp_path / "b") as again:
        assert [one[:3] for one in content(again)] == [one[:3] for one in now]
        assert again.snapshot("x").parent == "w"
    with sw.Store.open(tmp_path / "d", version="v") as version:
        assert content(version) == before
    here = store.branch(tmp_path / "c", capacity=300)
    assert len(here) == len(store) == 157
    assert here.capacity == 300
    fill(here, 3)
    assert len(store) == 157


def test_a_version_cannot_be_written_to(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    fill(store, 25)
    store.derive("x", to_go, ("reward",))
    store.snapshot("v")
    before = {path: path.read_bytes() for path in (tmp_path / "d" / "versions").rglob("*") if path.is_file()}
    version = sw.Store.open(tmp_path / "d", version="v")
    writes = [
        lambda: fill(version, 1),
        lambda: version.add_episode(obs=np.zeros((3, 3)), action=[0, 0], reward=[0, 0], terminated=True),
        lambda: version.end_episode(0, np.zeros(3)),
        lambda: version.break_episode(0),
        lambda: version.clear(),
        lambda: version.annotate(None, {"a": 1}),
        lambda: version.drop_steps(0, 0, 1),
        lambda: version.write_column("x", [0], [0.0]),
        lambda: version.drop_column("x"),
        lambda: version.add_column("y", sw.Field((), "bool")),
        lambda: version.snapshot("w"),
    ]
    for write in writes:
        with pytest.raises(ValueError, match=r"the version 'v' of .*, which never changes; store.branch"):
            write()
    view = version.transitions(sampler=sw.Prioritized())
    batch = view.sample(8)
    assert view.update_priorities(batch.ids, np.ones(8)) == 0
    version.flush()
    version.close()
    files = [path for path in (tmp_path / "d" / "versions").rglob("*") if path.is_file()]
    assert {path: path.read_bytes() for path in files} == before
    assert len(store) == 25


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 101, "a b", "é", None, 3])
def test_names_that_are_no_names(tmp_path: Path, name: Any) -> None:
    store = made(tmp_path / "d")
    fill(store, 5)
    with pytest.raises(ValueError, match="letters, digits"):
        store.snapshot(name)
    with pytest.raises(ValueError, match="letters, digits"):
        store.delete_version(name)
    if name is not None:
        with pytest.raises(ValueError, match="letters, digits"):
            sw.Store.open(tmp_path / "d", version=name)
    assert not (tmp_path / "d" / "versions").exists()


def test_what_is_refused(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    fill(store, 5)
    store.snapshot("v")
    with pytest.raises(FileExistsError, match="versions never change"):
        store.snapshot("v")
    with pytest.raises(FileNotFoundError, match="no version 'w'; there are v"):
        sw.Store.open(tmp_path / "d", version="w")
    with pytest.raises(FileNotFoundError, match="no version 'w'; there are v"):
        store.delete_version("w")
    with pytest.raises(ValueError, match="branch"):
        sw.Store.open(tmp_path / "d", version="v", disk=tmp_path / "e")
    with pytest.raises(TypeError, match="note"):
        store.snapshot("n", {"a": object()})
    with pytest.raises(ValueError, match="in memory"):
        sw.Store(SPEC, capacity=10).snapshot("v")
    (tmp_path / "d" / "versions" / "mine").mkdir()  # a stranger's folder
    (tmp_path / "d" / "versions" / "mine" / "notes").write_text("mine")
    (tmp_path / "d" / "versions" / "v" / "notes").write_text("mine")
    assert [one.name for one in store.versions()] == ["v"]
    store.delete_version("v")
    assert (tmp_path / "d" / "versions" / "v" / "notes").read_text() == "mine"
    assert not store.versions()
    store.snapshot("v")
    assert [one.name for one in store.versions()] == ["v"]


def test_deleting_versions_frees_what_no_other_needs(tmp_path: Path) -> None:
    def used() -> int:
        return sum({(s.st_ino): s.st_size for p in tmp_path.rglob("*.region") if (s := p.stat())}.values())

    store = made(tmp_path / "d", capacity=2000)
    for number in range(4):
        fill(store, 2000)
        store.snapshot(f"v{number}")
    before = used()
    for number in range(4):
        store.delete_version(f"v{number}")
    assert used() < before / 2
    assert not os.listdir(tmp_path / "d" / "versions")
    assert len(store) <= 2000
    store.close()
    assert not check(tmp_path / "d").damages


KILLED = """
import os, sys, threading, time, signal, numpy as np, sharpwave as sw
from tests.persistence.test_versions import fill
store = sw.Store.open(sys.argv[1])
threading.Timer(float(sys.argv[2]), os.kill, (os.getpid(), signal.SIGKILL)).start()
number = 0
while True:
    fill(store, 30)
    name = f"k{os.getpid()}.{number}"
    store.snapshot(name)
    print(name, len(store), flush=True)
    if number % 3 == 2:
        sw.Store.open(sys.argv[1], version=name)
        store.delete_version(name)
        print(f"-{name}", flush=True)
    number += 1
"""


def test_kills_amid_snapshots_and_readings(tmp_path: Path) -> None:
    """An acknowledged version is whole; one that was being made is whole or not there; nothing is left behind."""
    store = made(tmp_path / "d")
    fill(store, 20)
    store.close()
    there: dict[str, int] = {}
    for life in range(0, 8, stride(1)):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "d"), str(0.05 + 0.09 * life)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == -signal.SIGKILL, done.stderr
        perhaps = ""
        for line in done.stdout.split("\n")[:-1]:  # after the last newline, half a line may have been printed
            if line.startswith("-"):
                del there[line[1:]]
            else:
                name, steps = line.split()
                there[name], perhaps = int(steps), name
        store = sw.Store.open(tmp_path / "d")
        found = {one.name: one.steps for one in store.versions()}
        missing = there.keys() - found.keys()
        assert missing <= {perhaps}  # it was being deleted
        for name in missing:
            del there[name]
        assert found.items() >= there.items()
        assert len(found) <= len(there) + 1
        there = found
        store.close()
    for one, count in there.items():
        with sw.Store.open(tmp_path / "d", version=one) as version:
            assert len(version) == count
            assert version.recovery is not None
            assert not version.recovery.damages
    assert not [name for name in os.listdir(tmp_path / "d" / "versions") if name.startswith(".")]
    assert not check(tmp_path / "d").damages


def test_a_version_is_made_while_others_write_and_sample(tmp_path: Path) -> None:
    store = made(tmp_path / "d", capacity=3000)
    fill(store, 50)
    view, wrong, stop = store.transitions(), list[BaseException](), threading.Event()

    turns = [0, 0]

    def use(which: int, call: Any) -> None:
        try:
            while not stop.is_set():
                call()
                turns[which] += 1
        except BaseException as error:
            wrong.append(error)

    calls = [lambda: fill(store, 5), lambda: view.sample(32)]
    threads = [threading.Thread(target=use, args=one) for one in enumerate(calls)]
    for thread in threads:
        thread.start()
    for number in range(examples(12, most=12)):
        store.snapshot(f"v{number}")
        before = list(turns)
        while any(now == was for now, was in zip(turns, before, strict=True)) and not wrong:  # each goes on
            time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    for version in store.versions():
        with sw.Store.open(tmp_path / "d", version=version.name) as read:
            assert len(read) == version.steps
            for episode in read.episodes():
                first, length = episode.first_step, episode.length
                assert episode.action.tolist() == list(range(first, first + length))


def test_a_version_is_no_store_to_open(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    fill(store, 25)
    version = store.snapshot("v")
    with pytest.raises(ValueError, match="never changes"):
        sw.Store.open(version.folder)
    with pytest.raises(ValueError, match="branch"):
        sw.Store.open(tmp_path / "d", version="v", exist_ok=True)
    with sw.Store.open(tmp_path / "d", version="v") as read, pytest.raises(ValueError, match="never changes"):
        read.resize(capacity=50)
    assert [one.name for one in store.versions()] == ["v"]


def test_a_name_is_given_once(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    fill(store, 25)
    for number in range(5):
        outcomes = list[Any]()

        def snapshot(name: str = f"v{number}", outcomes: list[Any] = outcomes) -> None:
            try:
                outcomes.append(store.snapshot(name))
            except FileExistsError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=snapshot) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(type(one).__name__ for one in outcomes) == ["FileExistsError", "Version"]


def test_a_branch_replaces_nothing(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    fill(store, 25)
    store.checkpoint(tmp_path / "c")
    store.snapshot("v")
    for version in (None, "v"):
        with pytest.raises(FileExistsError, match="new or empty"):
            store.branch(tmp_path / "c", version)
        with pytest.raises(FileExistsError, match="new or empty"):
            store.branch(tmp_path / "b.sharpwave", version)
    assert len(sw.Store.open(tmp_path / "c", disk=tmp_path / "e")) == 25
    with pytest.raises(ValueError, match="in memory"):
        sw.Store(SPEC, capacity=10).branch(tmp_path / "f")


def test_readers_of_one_version_at_once(tmp_path: Path) -> None:
    store = made(tmp_path / "d")
    fill(store, 25)
    store.snapshot("v")
    code = (
        "import sys, sharpwave as sw\nfor _ in range(12):\n"
        "    with sw.Store.open(sys.argv[1], version='v') as v: assert len(v) == 25"
    )
    readers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "d")]) for _ in range(4)]
    assert [reader.wait(100) for reader in readers] == [0] * 4


def test_the_next_call_ends_a_deletion_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(tmp_path / "d")
    fill(store, 300)
    store.snapshot("v")
    store.snapshot("w")

    def dies(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(versions, "remove_partial_manifests", dies)
        with pytest.raises(KeyboardInterrupt):
            store.delete_version("v")
    assert [one.name for one in store.versions()] == ["w"]
    assert list((tmp_path / "d" / "versions" / "v").rglob("*.region"))
    store.delete_version("w")
    assert not list((tmp_path / "d" / "versions").rglob("*.region"))


@pytest.mark.parametrize("wrong", [{"steps": "many"}, {"steps": None}, {"columns": 5}, {"name": "other"}])
def test_a_wrong_version_hides_no_other(tmp_path: Path, wrong: dict[str, Any]) -> None:
    store = made(tmp_path / "d")
    fill(store, 25)
    store.snapshot("v")
    store.snapshot("w")
    folder = tmp_path / "d" / "versions" / "v"
    said = read_manifest(folder)
    (folder / "store.json").write_bytes(packed_manifest(said | {"version": said["version"] | wrong}))
    assert [one.name for one in store.versions()] == ["w"]
    with pytest.raises(sw.DamagedError, match="no version's folder"):
        sw.Store.open(tmp_path / "d", version="v")
