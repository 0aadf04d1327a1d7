"""Folders of clusters and of their checkpoints: whose they are, where they are, and what counts as whole."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import sharpwave as sw
from sharpwave.disk.ownership import MARK
from sharpwave.errors import ShardFailedError
from sharpwave.native.file_operations import Files
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.cluster_folder import Manifest, cut, write_whole
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.local_shards import LocalShards
from sharpwave.serve.service import Service
from sharpwave.serve.shard_process import ShardSettings
from tests.serve.serving import SPEC, play, served


def write(cluster: sw.Cluster, shards: int = 2, steps: int = 40) -> int:
    """Write to every shard, under a name; return how many steps the cluster holds."""
    for number in range(shards):
        writer = cluster.writer(2, name=f"writer-{number}", shard=number, durability="flush", segment_steps=8)
        play(writer, 2, steps, seed=number)
        writer.close()
    return len(cluster)


def kill_a_shard(cluster: sw.Cluster) -> None:
    """Kill shard 0, and wait until it answers again."""
    assert cluster._processes is not None
    process, shards = cluster._processes.processes[0], len(cluster._processes.processes)
    os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while True:
        assert time.monotonic() < deadline
        with contextlib.suppress(ShardLostError):
            if cluster._processes.processes[0] != process and len(cluster.stats()["shards"]) == shards:
                break
        time.sleep(0.1)


@pytest.mark.slow
def test_paths_are_those_of_where_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
    monkeypatch.chdir(before)
    with sw.Cluster(SPEC, shards=2, capacity=10_000, disk="replay") as cluster:
        held = write(cluster)
        monkeypatch.chdir(after)
        kill_a_shard(cluster)
        assert len(cluster) == held
        cluster.checkpoint("ckpt")
        cluster.resize(shards=3)
    assert sorted(os.listdir(before / "replay")) == ["cluster.json", "shard-0", "shard-1", "shard-2"]
    assert os.listdir(after) == ["ckpt"]
    with sw.Cluster.open("ckpt", disk="copy") as cluster:
        monkeypatch.chdir(before)
        kill_a_shard(cluster)
        assert len(cluster) == held
    with sw.Cluster.open("replay") as cluster:
        monkeypatch.chdir(after)
        kill_a_shard(cluster)
        assert len(cluster) == held
    assert os.listdir(before) == ["replay"] and sorted(os.listdir(after)) == ["ckpt", "copy"]


@pytest.mark.parametrize("own", [False, True])
def test_a_checkpoint_leaves_folders_alone_that_none_made(tmp_path: Path, own: bool) -> None:
    """Those of another program that have a cut's name too, also where checkpoints were written before."""
    film = tmp_path / "film"
    with served(2, tmp_path) as there:
        cluster = there.cluster
        if own:
            cluster.checkpoint(film)
        for name in ("cut-2", "cut-7"):
            (film / name).mkdir(parents=True)
            (film / name / "holiday.mp4").write_text("mine")
        before = sorted(os.listdir(film))
        with pytest.raises(FileExistsError, match=r"holds cut-[27]; give a new or empty folder"):
            cluster.checkpoint(film)
        assert sorted(os.listdir(film)) == before
        assert all((film / name / "holiday.mp4").read_text() == "mine" for name in ("cut-2", "cut-7"))


def test_a_checkpoint_that_a_shard_cannot_write_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ckpt"
    with served(2, tmp_path) as there:
        real, failing = there.stores[1].checkpoint, [True]

        def checkpoint(path: Path) -> None:
            real(path)
            if failing:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(there.stores[1], "checkpoint", checkpoint)
        with pytest.raises(OSError, match="No space left"):
            there.cluster.checkpoint(folder)
        with pytest.raises(FileNotFoundError, match="first checkpoint there was not finished"):
            sw.Cluster.open(folder)
        failing.clear()
        there.cluster.checkpoint(folder)
        (folder / "cut-1" / "notes.txt").write_text("mine")
        failing.append(True)
        with pytest.raises(OSError, match="No space left"):
            there.cluster.checkpoint(folder)
        assert sorted(os.listdir(folder)) == ["cluster.json", "cut-1"]
        failing.clear()
        there.cluster.checkpoint(folder)
        assert sorted(os.listdir(folder)) == ["cluster.json", "cut-1", "cut-2"]
        assert (folder / "cut-1" / "notes.txt").read_text() == "mine"
    with sw.Cluster.open(folder) as cluster:
        assert len(cluster) == 0


def test_folders_in_which_a_kill_left_half_of_a_first_file_are_used(tmp_path: Path) -> None:
    """A cluster's that was not begun, and a checkpoint's whose mark was not there yet: they were refused for ever."""
    folder = tmp_path / "disk"
    folder.mkdir()
    (folder / "cluster.json.partial").write_text('{"form')
    with sw.Cluster(SPEC, capacity=1_000, disk=folder) as cluster:
        cluster.checkpoint(tmp_path / "ckpt")
        (tmp_path / "ckpt" / "cut-2").mkdir()
        (tmp_path / "ckpt" / "cut-2" / f"{MARK}.partial").write_text('{"cu')
        cluster.checkpoint(tmp_path / "ckpt")
    assert sorted(os.listdir(tmp_path / "ckpt")) == ["cluster.json", "cut-2"]
    assert sorted(os.listdir(folder)) == ["cluster.json", "shard-0"]


def children(process: int) -> list[str]:
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False)
    return found.stdout.split()


def refused(folder: Path) -> None:
    """Check that nobody takes a folder for whole into which a checkpoint was not copied to the end."""
    with pytest.raises(ValueError, match=r"not all is there; sharpwave\.Cluster\.open\("):
        sw.Cluster.open(folder)
    with pytest.raises(FileExistsError, match=r"not all is there; sharpwave\.Cluster\.open\("):
        sw.Cluster(SPEC, shards=2, capacity=1_000, disk=folder)
    with pytest.raises(ValueError, match="not all is there"):
        Service(Address.parse("127.0.0.1:0"), None, folder, Security())
    with sw.Cluster(SPEC, capacity=1_000) as cluster, pytest.raises(FileExistsError, match="is no checkpoint"):
        cluster.checkpoint(folder)


@pytest.mark.slow
def test_a_checkpoint_that_was_not_opened_to_the_end_is_opened_anew(tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=2, capacity=10_000, disk=tmp_path / "disk", replicas=1) as cluster:
        held = write(cluster)
        cluster.checkpoint(tmp_path / "ckpt")
    copy = tmp_path / "copy"
    with pytest.raises(ShardFailedError, match="ram"):
        sw.Cluster.open(tmp_path / "ckpt", disk=copy, ram="400000TiB")
    refused(copy)
    program = "import sys, sharpwave as sw; sw.Cluster.open(sys.argv[1], disk=sys.argv[2]); print('opened')"
    command = [sys.executable, "-c", program, str(tmp_path / "ckpt"), str(copy)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as opener:
        assert opener.stdout is not None
        deadline = time.monotonic() + 120
        while len(children(opener.pid)) < 2:
            assert opener.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        opener.send_signal(signal.SIGSTOP)  # its shards go on, which takes them a while
        while not (copy / "shard-0" / "store").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(sw.StoreInUseError, match=f"process {opener.pid}"):
            sw.Cluster.open(tmp_path / "ckpt", disk=copy)
        opener.kill()
        assert opener.stdout.read() == ""
    refused(copy)
    (copy / "shard-1").mkdir(exist_ok=True)
    (copy / "shard-1" / "notes.txt").write_text("mine")
    with sw.Cluster.open(tmp_path / "ckpt", disk=copy) as cluster:
        assert len(cluster) == held
    with sw.Cluster.open(copy) as cluster:
        assert len(cluster) == held
        writer = cluster.writer(2, name="writer-1", shard=1)
        assert writer.delivery.first_lane == 0 and min(writer.delivery.lane_steps) > 30
        writer.close()
    assert (copy / "shard-1" / "notes.txt").read_text() == "mine"
    with pytest.raises(FileExistsError, match="holds a cluster already"):
        sw.Cluster.open(tmp_path / "ckpt", disk=copy)


@pytest.mark.slow
def test_a_service_whose_first_shards_did_not_begin_makes_them_for_the_next_client(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with contextlib.ExitStack() as stack:
        while True:  # until the two ports behind the directory's are free
            with socket.create_server(("127.0.0.1", 0)) as one:
                port = int(one.getsockname()[1])
            with contextlib.suppress(OSError, ValueError):
                service = Service(Address.parse(f"127.0.0.1:{port}"), 2, folder, Security(), capacity=10_000)
                break
        stack.enter_context(service)
        with socket.create_server(("127.0.0.1", port + 2)), pytest.raises(ShardFailedError, match="shard 1"):
            sw.Cluster(SPEC, address=f"127.0.0.1:{port}")
        assert os.listdir(folder) == []  # so what others begin there meanwhile is not deleted by the next attempt
        other = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
        with sw.Cluster(other, address=f"127.0.0.1:{port}") as cluster:
            assert len(cluster) == 0
    with sw.Cluster.open(folder) as cluster:
        assert cluster.spec == other


@pytest.mark.slow
def test_a_cluster_whose_first_shards_did_not_begin_leaves_its_folder_to_the_next_attempt(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with pytest.raises(ShardFailedError, match="cannot reserve"):
        sw.Cluster(SPEC, shards=2, capacity=1_000, ram="100000TiB", disk=folder)
    assert os.listdir(folder) == []  # with these limits no later life could open it
    with sw.Cluster(SPEC, shards=2, capacity=1_000, ram="100MiB", disk=folder) as cluster:
        held = write(cluster)
    with pytest.raises(FileExistsError, match="holds a cluster already"):
        sw.Cluster(SPEC, shards=2, capacity=1_000, disk=folder)
    with sw.Cluster.open(folder) as cluster:
        assert len(cluster) == held


def test_of_two_that_make_a_cluster_in_one_folder_the_first_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had found it empty, and the second deleted the first one's shards, as its own had not begun."""
    folder, real = tmp_path / "disk", Manifest.write
    refused: list[BaseException] = []

    def write(manifest: Manifest, where: Path) -> None:
        monkeypatch.setattr(Manifest, "write", real)
        with pytest.raises(sw.StoreInUseError, match="another process is making or opening a cluster in") as caught:
            sw.Cluster(SPEC, capacity=1_000, disk=folder)
        refused.append(caught.value)
        real(manifest, where)

    monkeypatch.setattr(Manifest, "write", write)
    with sw.Cluster(SPEC, capacity=1_000, disk=folder) as cluster:
        assert len(cluster) == 0 and len(refused) == 1


@pytest.mark.slow
def test_of_two_that_open_a_cluster_at_once_the_first_has_all_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had got some, so that both were refused."""
    folder, refused = tmp_path / "disk", list[BaseException]()

    class Shards(LocalShards):
        def __init__(self, settings: Sequence[ShardSettings]) -> None:
            monkeypatch.undo()
            with pytest.raises(FileExistsError, match="holds a cluster already"):
                sw.Cluster(SPEC, capacity=1_000, disk=folder)
            with pytest.raises(sw.StoreInUseError, match="another process is making or opening a cluster in") as caught:
                sw.Cluster.open(folder)
            refused.append(caught.value)
            with pytest.raises(sw.StoreInUseError, match="another process is making or opening a cluster in"):
                Service(Address.parse("127.0.0.1:0"), None, folder, Security())
            super().__init__(settings)

    monkeypatch.setattr("sharpwave.serve.cluster.LocalShards", Shards)
    with sw.Cluster(SPEC, shards=2, capacity=1_000, disk=folder) as cluster:
        held = write(cluster)
    monkeypatch.setattr("sharpwave.serve.cluster.LocalShards", Shards)
    with sw.Cluster.open(folder) as cluster:
        assert len(cluster) == held
    monkeypatch.setattr("sharpwave.serve.service.LocalShards", Shards)
    with Service(Address.parse("127.0.0.1:0"), None, folder, Security()) as service:
        assert len(sw.connect(str(service.address))) == held
    assert len(refused) == 3


def test_what_is_in_a_folders_way_or_fills_its_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "disk"):
        with pytest.raises(FileExistsError, match="file is a file, expected a folder; give another path"):
            sw.Cluster(SPEC, capacity=100, disk=folder)
        with pytest.raises(FileExistsError, match="file is a file, expected a folder; give another path"):
            cut(Mock(), folder, SPEC, None)
    assert (tmp_path / "file").read_text() == "mine"

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"No space left on device: '.*cluster\.json'"):
        patch.setattr(Files, "fsync", full)
        write_whole(tmp_path / "cluster.json", "{}")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.slow
def test_shards_that_a_resize_added_before_it_failed_are_there_when_the_folder_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with sw.Cluster(SPEC, shards=1, capacity=10_000, disk=folder) as cluster:
        (folder / "shard-2").write_text("in the way")
        with pytest.raises(ShardFailedError, match="shard 2"):
            cluster.resize(shards=3)
        held = write(cluster)  # to shard 1, too
    with sw.Cluster.open(folder) as cluster:
        assert len(cluster.links) == 2 and len(cluster) == held
        (folder / "shard-2").unlink()
        cluster.resize(shards=3)
        assert len(cluster) == held
    with sw.Cluster.open(folder) as cluster:
        assert len(cluster.links) == 3 and len(cluster) == held


@pytest.mark.slow
def test_a_service_that_is_started_again_with_its_limits_keeps_all_that_a_resized_cluster_holds(tmp_path: Path) -> None:
    """Each shard has the part that one of the first shards had, as before, and so has one that is added then."""
    listen, folder = Address.parse(f"unix:{tmp_path}/sock"), tmp_path / "disk"
    held = 0
    for life in range(3):
        with Service(listen, 1, folder, Security(), capacity=160), sw.Cluster(SPEC, address=str(listen)) as cluster:
            assert len(cluster) == held and len(cluster.links) == life + 1
            cluster.resize(shards=life + 2)
            with sw.connect(str(listen)) as grown:
                held = write(grown, life + 2, 100)
            assert held > (life + 2) * 150  # they are full, but for numbers that a writer made again skips


@pytest.mark.slow
def test_limits_that_a_cluster_is_opened_with_are_those_of_its_next_lives_and_of_shards_that_are_added(
    tmp_path: Path,
) -> None:
    folder, listen = tmp_path / "disk", Address.parse(f"unix:{tmp_path}/sock")

    def limits(cluster: sw.Cluster) -> list[int]:
        files = [folder / f"shard-{number}" / "store" / "store.json" for number in range(len(cluster.links))]
        return [int(json.loads(one.read_text())["capacity"]) for one in files]

    with sw.Cluster(SPEC, shards=2, capacity=1_000, disk=folder, seed=5) as cluster:
        assert limits(cluster) == [500, 500]
    before = (folder / "cluster.json").stat().st_mtime_ns
    with sw.Cluster.open(folder):
        pass
    assert (folder / "cluster.json").stat().st_mtime_ns == before, "nothing is to be changed, so nothing is written"
    with sw.Cluster.open(folder, capacity=4_000) as cluster:
        assert limits(cluster) == [2_000, 2_000]
    with sw.Cluster.open(folder) as cluster:
        cluster.resize(shards=3)
        assert limits(cluster) == [2_000] * 3
    with Service(listen, None, folder, Security(), capacity=3_000), sw.connect(str(listen)) as cluster:
        assert limits(cluster) == [1_500] * 3, "of two shards, as when it was last divided"
    assert Manifest.read(folder).new["seed"] == 5
    with Service(listen, None, folder, Security()), sw.connect(str(listen)) as cluster:
        cluster.resize(shards=4)
        assert limits(cluster) == [1_500] * 4


@pytest.mark.slow
def test_clients_of_a_service_grow_and_save_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    still: list[bool] = []

    def held_up(*given: Any) -> None:
        assert service._fleet is not None
        with ThreadPoolExecutor(1) as pool:  # another thread, as that of another client
            still.append(not pool.submit(service._fleet.lock.acquire, blocking=False).result())
        cut(*given)

    def away(*_: object) -> None:
        raise ShardLostError("shard 1: nothing answers there")

    with Service(Address.parse("127.0.0.1:0"), 1, tmp_path / "disk", Security(), capacity=10_000) as service:
        address = str(service.address)
        with sw.Cluster(SPEC, address=address) as one, sw.connect(address) as other:
            replay = other.transitions()
            one.resize(shards=2)
            assert len(one.links) == 2
            with pytest.raises(ValueError, match=r"only grows; write a checkpoint and open it with Cluster\.open"):
                one.resize(shards=1)
            with pytest.raises(ValueError, match="expected an integer from 1"):
                one.resize(shards=0)
            assert other._members.renew(0.0) and len(other.links) == 2
            held = write(other)
            replay.refresh()
            assert len(set(replay.sample(128).shards.tolist())) == 2
            monkeypatch.setattr("sharpwave.serve.fleet.cut", held_up)
            other.checkpoint(tmp_path / "ckpt")
            assert still == [True]
            monkeypatch.setattr("sharpwave.serve.fleet.cut", away)
            with pytest.raises(ShardLostError, match="nothing answers there"):  # as who started the shards is told
                other.checkpoint(tmp_path / "ckpt")
    with sw.Cluster.open(tmp_path / "ckpt", shards=1, disk=tmp_path / "one") as cluster:
        assert len(cluster) == held


def test_a_service_deletes_its_socket_unless_another_file_is_there_by_then(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with Service(Address.parse(path), 1, None, Security(), capacity=100):
        assert path.is_socket()
    assert not path.exists()
    with Service(Address.parse(path), 1, None, Security(), capacity=100):
        path.unlink()
        path.write_text("mine")
    assert path.read_text() == "mine"
