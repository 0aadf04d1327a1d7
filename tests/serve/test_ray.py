"""Shards on a Ray of two simulated nodes: the same items bit for bit, and shards that are killed and come back."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import sharpwave as sw
from sharpwave.errors import ShardFailedError
from sharpwave.extras import install
from sharpwave.serve.ray_cluster import begin_ray, check_authenticated, is_ray
from tests.serve.on_ray import NODE, simulated
from tests.serve.serving import SPEC, play
from tests.serve.test_lives import counting
from tests.serve.test_replicas import steps_of, wait_for_steps


@pytest.fixture(scope="module")
def simulation() -> Iterator[tuple[Any, Any]]:
    with pytest.MonkeyPatch.context() as patch, simulated(2, patch) as begun:
        yield begun


@pytest.fixture
def ray(simulation: tuple[Any, Any]) -> Any:
    return simulation[0]


def test_which_addresses_are_rays() -> None:
    assert [is_ray(one) for one in ("ray", "auto", "ray://h:1", "local", "h:1", "unix:ray")] == [True] * 3 + [False] * 3


def test_a_ray_that_others_reach_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    check_authenticated(["127.0.0.1"])
    with pytest.raises(ValueError, match=r"Ray listens at 10.0.0.7 .*RAY_AUTH_MODE=token"):
        check_authenticated(["127.0.0.1", "10.0.0.7"])
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    check_authenticated(["10.0.0.7"])


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(install("ray"))):
        begin_ray("auto")


def seen(cluster: sw.Cluster, view: str, settings: dict[str, Any], store: sw.Store, batches: int) -> int:
    """Compare batches of a cluster with what one store makes of the same steps; return how many items were seen."""
    name = settings.get("name", view)
    replay, known = getattr(cluster, view)(**settings), getattr(store, view)(**settings | {"name": f"known-{name}"})
    ids = known.sampleable_ids()
    whole = known.fetch(ids)
    at = {key: row for row, key in enumerate(zip(whole.lane.tolist(), whole.step.tolist(), strict=True))}
    found: set[int] = set()
    for _ in range(batches):
        batch = replay.sample(50)
        incarnations = [link.incarnation for link in cluster.links if link is not None]
        lanes = batch.lane + 2 * np.array([incarnations.index(one) for one in batch.shards.tolist()])
        rows = np.array([at[key] for key in zip(lanes.tolist(), batch.step.tolist(), strict=True)])
        for name in vars(whole):
            if name in ("weights", "probabilities", "source", "shards", "relabelled", "burn_in", "ids", "lane"):
                continue
            got, want = getattr(batch, name), getattr(whole, name)
            for one in want if name == "fields" else [None]:
                left, right = (got, want) if one is None else (got[one], want[one])
                np.testing.assert_array_equal(left, right[rows], err_msg=name)
        found |= set(rows.tolist())
    return len(found)


def test_items_are_those_of_one_store_bit_for_bit_and_a_killed_shard_comes_back(ray: Any, tmp_path: Path) -> None:
    with (
        sw.Cluster(
            SPEC, shards=2, capacity=10_000, disk=tmp_path / "replay", address="ray", segment_steps=8
        ) as cluster,
        sw.Store(SPEC, capacity=10_000, segment_steps=8) as store,
    ):
        started: Any = cluster._processes
        assert len({psutil.Process(one).ppid() for one in started.processes}) == 2  # a node each
        writers = [cluster.writer(2, shard=number, durability="flush", segment_steps=8) for number in range(2)]
        steps: list[dict[str, Any]] = [{}, {}]
        for number, writer in enumerate(writers):
            kept = Keeping(writer)
            play(kept, 2, 80, number)  # type: ignore[arg-type]
            steps[number] = kept.joined()
            writer.flush()
        for at in range(80):
            both: Any = {name: np.concatenate([one[name][at] for one in steps]) for name in steps[0]}
            store.extend(**both)
        assert seen(cluster, "transitions", {"n_step": 3}, store, 25) > 200
        assert seen(cluster, "sequences", {"length": 5, "burn_in": 3, "stride": 2}, store, 15) > 60

        before, steps_before = started.processes[0], len(cluster)
        replay = cluster.transitions(name="goes on")
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:  # the learner goes on, first with the other shard
            batch = replay.sample(20)
            if len(set(batch.shards.tolist())) == 2 and started.processes[0] != before:
                break
        assert started.processes[0] != before and len(cluster) == steps_before
        assert seen(cluster, "transitions", {"n_step": 3, "name": "again"}, store, 25) > 200
        play(writers[0], 2, 40, 7)  # its writer finds it where it is now
        writers[0].flush()
        assert len(cluster) > steps_before


def test_a_node_lost_with_its_disk_comes_back_from_the_neighbours(simulation: tuple[Any, Any], tmp_path: Path) -> None:
    _, nodes = simulation
    disk = tmp_path / "replay"
    with sw.Cluster(SPEC, shards=2, capacity=10_000, disk=disk, address="ray", replicas=1) as cluster:
        writers = [cluster.writer(1, shard=number, durability="flush", segment_steps=8) for number in range(2)]
        for writer in writers:
            counting(writer, 0, 100, lanes=1)
            writer.flush()
        held, before = len(cluster), steps_of(cluster, "before")
        (node,) = nodes.worker_nodes
        started: Any = cluster._processes
        (number,) = (k for k, one in enumerate(started.processes) if psutil.Process(one).ppid() == raylet(node))
        process = started.processes[number]
        os.kill(process, signal.SIGSTOP)
        (disk / f"shard-{number}").rename(tmp_path / "lost")  # also the replica of the other
        nodes.remove_node(node, allow_graceful=False)
        os.kill(process, signal.SIGKILL)
        wait_for_steps(cluster, held, patience_s=180)  # Ray takes 15 s or more to notice
        assert steps_of(cluster, "after") == before
        counting(writers[number], 100, 140, lanes=1)  # its writer finds it where it is now
        writers[number].flush()
        assert len(cluster) > held
    nodes.add_node(**NODE)


def raylet(node: Any) -> int:
    """Return the process of a simulated node, whose children its actors are."""
    return int(node.all_processes["raylet"][0].process.pid)


def test_a_cluster_on_ray_grows(ray: Any, tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=1, capacity=10_000, disk=tmp_path / "replay", address="ray") as cluster:
        cluster.resize(shards=2)
        assert len(cluster.links) == 2 and cluster.writer(1, shard=1).delivery.first_lane == 0


class Keeping:
    """Keeps what is written to a writer."""

    def __init__(self, writer: Any) -> None:
        self.writer, self.steps = writer, []  # type: ignore[var-annotated]

    def extend(self, **step: Any) -> None:
        self.steps.append(step)
        self.writer.extend(**step)

    def joined(self) -> dict[str, list[Any]]:
        return {name: [step[name] for step in self.steps] for name in self.steps[0]}


def test_a_folder_of_others_is_refused_and_names_are_the_clusters_own(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "shard-0").mkdir()
    (tmp_path / "shard-0" / "thesis.txt").write_text("mine")
    with pytest.raises(ShardFailedError, match="is not empty; give a new or empty folder"):
        sw.Cluster(SPEC, capacity=1000, disk=tmp_path, address="ray")
    assert (tmp_path / "shard-0" / "thesis.txt").read_text() == "mine"
    assert ray.util.list_named_actors(all_namespaces=True) == []
