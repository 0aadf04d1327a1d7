"""What a cluster refuses: the error names the value and what to do, and comes at once."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.wire import Request
from tests.serve.serving import SPEC, play, served


@pytest.mark.parametrize("lanes", [0, -1, 1.5, "4", 10**9, True])
def test_a_number_of_lanes_that_no_writer_has(tmp_path: Path, lanes: Any) -> None:
    two: Any = np.int64(2)
    with served(1, tmp_path) as there:
        with pytest.raises(ValueError, match=rf"writer: lanes={lanes!r}, expected an integer from 1 to "):
            there.cluster.writer(lanes=lanes)
        there.cluster.writer(lanes=two).close()
        with pytest.raises(ValueError, match="writer: segment_steps=0, expected an integer from 1 to "):
            there.cluster.writer(segment_steps=0)
        assert there.shards[0].intake.leases().popitem()[1] == (0, 2)  # none was taken for those


def test_a_durable_writer_needs_a_disk(tmp_path: Path) -> None:
    text = "durability='flush', but this cluster has no disk"
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    with served(1, tmp_path / "memory") as there, pytest.raises(ValueError, match=text):
        there.cluster.writer(durability="flush")
    with served(1, tmp_path / "disk", disk=tmp_path / "disk" / "store") as there:
        writer = there.cluster.writer(durability="flush")
        play(writer, 1, 40, 0)
        writer.flush()
        assert writer.delivery.acknowledged and not writer.delivery.waiting


def used_after(cluster: sw.Cluster, writer: Any, replay: Any, batch: Any, folder: Path) -> list[Callable[[], object]]:
    return [
        lambda: len(cluster),
        cluster.stats,
        cluster.flush,
        cluster.writer,
        cluster.transitions,
        lambda: cluster.sequences(4),
        lambda: cluster.resize(shards=3),
        lambda: cluster.checkpoint(folder / "checkpoint"),
        lambda: len(replay),
        lambda: replay.sample(8),
        lambda: next(replay.stream(8)),
        lambda: replay.update_priorities(batch, np.ones(8)),
        lambda: play(writer, 2, 1, 1),
    ]


def test_a_closed_cluster_says_so_at_once_whatever_is_asked_of_it(tmp_path: Path) -> None:
    """Its own shards have ended; or others' go on, and writers have connections of their own."""
    with served(2, tmp_path) as there:
        for cluster in (sw.Cluster(SPEC, shards=2, capacity=10_000), there.cluster):
            writer = cluster.writer(2, timeout=3600)  # for which it would wait
            play(writer, 2, 100, 0)
            writer.flush()
            replay = cluster.transitions(sampler=sw.Prioritized())
            batch = replay.sample(8, lookahead=2)
            play(writer, 2, 2, 0, end=0.0)
            cluster.close()
            cluster.close()
            for use in used_after(cluster, writer, replay, batch, tmp_path):
                with pytest.raises(ValueError, match="cluster: closed; make a new Cluster, or connect again"):
                    use()
            if cluster is there.cluster:  # which sends the last steps, but those without a successor
                writer.close()
                assert sum(len(store) for store in there.stores) == 202
            else:
                with pytest.raises(ValueError, match="cluster: closed"):
                    writer.close()


def test_what_belongs_to_a_process_says_what_another_does_instead(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        cluster = there.cluster
        for one, text in (
            (cluster, r"sharpwave\.Cluster\.of\(spec, \[one\[0\] for one in cluster\.where\(\)\[\"shards\"\]\]\)"),
            (cluster.writer(), r"make a writer with cluster\.writer\(\)"),
            (cluster.transitions(), "make the view 'transitions' of sharpwave.connect"),
        ):
            with pytest.raises(TypeError, match=text):
                pickle.dumps(one)
        other = sw.Cluster.of(SPEC, [one[0] for one in cluster.where()["shards"]])  # as it says
        assert len(other) == 0
        other.close()


def test_a_recorder_of_a_cluster_says_that_it_needs_a_writer(tmp_path: Path) -> None:
    given: Any
    with served(1, tmp_path) as there, pytest.raises(TypeError, match=r"cluster\.writer\(lanes=\.\.\.\)"):
        given = there.cluster
        sw.Recorder(gym.make("CartPole-v1"), given)


def test_shards_are_not_asked_for_where_they_are_served(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"shards= is for address='local'"):
        sw.Cluster(SPEC, shards=4, address=f"unix:{tmp_path}/none")


@pytest.mark.parametrize("address", [None, b"unix:/a", 7070])
def test_an_address_that_is_no_text(address: Any) -> None:
    for connect in (sw.connect, lambda address: sw.Cluster(SPEC, address=address)):
        with pytest.raises(TypeError, match=r"address .*, expected unix:PATH"):
            connect(address)


def test_more_lanes_than_a_shard_has_are_refused_by_name_and_leave_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(1, tmp_path) as there:
        with pytest.raises(
            ValueError, match=r"lanes=500,000 .*at most 50,000, 2 steps each of its capacity of 100,000"
        ):
            there.cluster.writer(lanes=500_000)
        writer = there.cluster.writer(lanes=40_000)
        assert writer.delivery.first_lane == 0 and writer.delivery.lane_steps == [0] * 40_000
        writer.delivery.close()
    assert "Traceback" not in capfd.readouterr().err


def test_lanes_of_a_lease_that_failed_are_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(1, tmp_path) as there:
        with monkeypatch.context() as patch:
            patch.setattr(there.stores[0], "flush", _full)
            with pytest.raises(OSError, match="full"):
                there.cluster.links[0].call(Request.LEASE, {"name": "two", "lanes": 8, "durable": True, "turn": 0})
        assert not there.shards[0].intake.leases()
        assert json.loads((tmp_path / "0" / "writers.json").read_text()) == {}
        writers = [there.cluster.writer(lanes=lanes, name=f"{lanes}") for lanes in (2, 3)]
        assert [one.delivery.first_lane for one in writers] == [0, 2]
        for number, one in enumerate(writers):
            play(one, one.delivery.lanes, 10, number)
            one.close()


def _full(**_: object) -> None:
    raise OSError(28, "the disk is full")


def test_a_writers_extend_takes_a_timeout_as_a_stores_does(tmp_path: Path) -> None:
    step: dict[str, Any] = {
        "obs": np.zeros((1, 6, 5), np.uint8), "action": [1], "reward": [0.0], "terminated": [True],
        "truncated": [False], "noise": np.zeros((1, 2), np.float32),
    }  # fmt: skip
    with served(1, tmp_path) as there:
        link = there.cluster.links[0]
        writer = there.cluster.writer(segment_steps=1)
        wrongs: list[Any] = [-1, float("nan"), "1", True]
        for wrong in wrongs:
            with pytest.raises(ValueError, match="append: timeout="):
                there.stores[0].extend(**step, timeout=wrong)
            with pytest.raises(ValueError, match="append: timeout="):
                writer.extend(**step, timeout=wrong)
        writer.extend(**step, timeout=5)
        link.call(Request.PAUSE)  # as a checkpoint does
        taken = 1
        with pytest.raises(sw.LimiterTimeoutError, match=r"were not taken in 0\.05 s"):
            for _ in range(1000):
                writer.extend(**step, timeout=0.05)
                taken += 1
        link.call(Request.RESUME)
        writer.extend(**step)
        writer.close()
        assert len(there.cluster) == taken + 1
