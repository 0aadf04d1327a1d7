"""What a cluster refuses: the error names the value and what to do, and comes at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import sharpwave as sw
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
    with sw.Cluster(SPEC, capacity=1000) as cluster, pytest.raises(ValueError, match=text):
        cluster.writer(durability="flush")
    with sw.Cluster(SPEC, capacity=1000, disk=tmp_path / "disk") as cluster:
        writer = cluster.writer(durability="flush")
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
