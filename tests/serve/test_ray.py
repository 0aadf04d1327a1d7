"""Shards on a Ray of two simulated nodes: the same items bit for bit, and shards that are killed and come back."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.local_shards import ShardFailedError
from sharpwave.serve.ray_cluster import begin_ray, check_authenticated, is_ray
from tests.serve.on_ray import simulated
from tests.serve.serving import SPEC, play


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, simulated(2, patch) as ray:
        yield ray


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
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'sharpwave\[ray\]'"):
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
        placed = {one["NodeID"] for one in ray.nodes()}
        assert len(placed) == 2
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

        started: Any = cluster._processes
        before, steps_before = started.processes[0], len(cluster)
        replay = cluster.transitions(name="goes on")
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # the learner goes on, first with the other shard
            batch = replay.sample(20)
            if len(set(batch.shards.tolist())) == 2 and started.processes[0] != before:
                break
        assert started.processes[0] != before and len(cluster) == steps_before
        assert seen(cluster, "transitions", {"n_step": 3, "name": "again"}, store, 25) > 200
        play(writers[0], 2, 40, 7)  # its writer finds it where it is now
        writers[0].flush()
        assert len(cluster) > steps_before


def test_a_shard_on_ray_is_drained_and_another_takes_its_place(ray: Any, tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=2, capacity=10_000, disk=tmp_path / "replay", address="ray") as cluster:
        writer = cluster.writer(2, shard=1, segment_steps=8)
        play(writer, 2, 80, 0)
        writer.flush()
        cluster.resize(shards=1, drain=False)
        deadline = time.monotonic() + 60
        steps = 0
        while len(cluster.links) == 2:  # its writer moves, and it ends
            assert time.monotonic() < deadline
            play(writer, 2, 1, steps)
            writer.flush()
            steps += 1
            time.sleep(0.02)
        play(writer, 2, 40, 1)
        writer.flush()
        assert len(cluster) >= 2 * 32 and len(cluster.transitions().sample(16)) == 16
        assert not list((tmp_path / "replay").glob("shard-1*"))
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
