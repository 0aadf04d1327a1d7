"""Shards that are merged: a checkpoint of a cluster, opened with fewer shards, with every step and priority."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.cluster_folder import Manifest
from sharpwave.serve.merging import merge
from tests.serve.serving import SPEC, fill, play, served

Step = tuple[bytes, float, int, bytes]


def views_of(store: sw.Store) -> dict[str, Any]:
    return {
        "priorities": store.transitions(name="priorities", sampler=sw.Prioritized(alpha=1.0, beta=1.0)),
        "uses": store.transitions(name="uses", max_times_sampled=2),
        "queue": store.transitions(name="queue", sampler=sw.Fifo(), max_times_sampled=1),
    }


def left(view: Any) -> list[Step]:
    """Draw all that a view of limited uses has left; return its steps, in order."""
    found: list[Step] = []
    while count := len(view):
        batch = view.sample(min(16, count))
        found += [
            (obs.tobytes(), float(reward), int(action), following.tobytes())
            for obs, reward, action, following in zip(
                batch.obs, batch.reward, batch.action, batch.next_obs, strict=True
            )
        ]
    return found


def contents(store: sw.Store) -> list[Step]:
    return sorted(left(store.transitions(name="all", sampler=sw.Fifo(), max_times_sampled=1)))


def priorities(view: Any) -> dict[bytes, float]:
    """Return the probability of every step that can be drawn, by its observation, times their sum."""
    view.source.items.follow()
    found: dict[bytes, float] = {}
    for _ in range(400):
        batch = view.sample(32)
        found |= {
            obs.tobytes(): float(p) * view.sampler.mass for obs, p in zip(batch.obs, batch.probabilities, strict=True)
        }
    return found


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("capacity", [10_000, 200])
@pytest.mark.parametrize("sources", [1, 3])
def test_a_merged_store_has_every_step_priority_and_use(
    tmp_path: Path, on_disk: bool, capacity: int, sources: int
) -> None:
    paths, steps, masses, queues, uses = list[Path](), list[Step](), dict[bytes, float](), set[Step](), list[Step]()
    totals = samples = 0
    for k in range(sources):
        disk = tmp_path / f"disk-{k}" if on_disk else None
        with sw.Store(SPEC, capacity=capacity, disk=disk, segment_steps=8, seed=k) as store:
            views = views_of(store)
            fill(store, 2 + k, 130, k)
            batch = views["priorities"].sample(64)
            views["priorities"].update_priorities(batch, 1.0 + np.arange(64.0) + 100 * k)
            samples += 64
            for _ in range(3):
                views["uses"].sample(32)
                views["queue"].sample(8)
            store.annotate(None, {"env": f"v{k}", f"own-{k}": k})
            paths.append(tmp_path / f"shard-{k}")
            store.checkpoint(paths[-1])
            totals += store.total_steps
            steps += contents(store)
            masses |= priorities(views["priorities"])
            queues |= set(left(views["queue"]))
            uses += left(views["uses"])
    leases = [{f"w{k}": (0, 2 + k)} for k in range(sources)]
    folder = tmp_path / "merged" if on_disk else None
    with sw.Store(SPEC, capacity=capacity * sources, disk=folder, segment_steps=8) as store:
        merged = merge(store, paths, leases, tmp_path / "scratch" if on_disk else None)
        assert merged == dict([("w0", (0, 2)), ("w1", (2, 3)), ("w2", (5, 4))][:sources])
        assert store.total_steps == totals and store.stats()["evicted_steps"] == totals - len(store)
        assert store.annotations() == {"env": "v0", **{f"own-{k}": k for k in range(sources)}}
        views = views_of(store)
        assert contents(store) == sorted(steps)
        assert views["priorities"].source.items.samples == samples
        found = priorities(views["priorities"])
        for step, mass in found.items():
            if step in masses:
                assert mass == pytest.approx(masses[step], rel=1e-6)
        assert set(left(views["queue"])) == queues
        assert sorted(left(views["uses"])) == sorted(uses)


def test_priorities_and_queues_stay_with_their_steps_where_the_merged_store_is_smaller(tmp_path: Path) -> None:
    masses, queue = dict[bytes, float](), set[Step]()
    paths = [tmp_path / f"shard-{k}" for k in range(3)]
    for k, path in enumerate(paths):
        with sw.Store(SPEC, capacity=200, segment_steps=8, seed=k) as store:
            views = views_of(store)
            fill(store, 2, 60 + 20 * k, k)
            for number in range(20):
                batch = views["priorities"].sample(64)
                views["priorities"].update_priorities(batch, 1.0 + np.arange(64.0) + 100 * k + number)
            store.checkpoint(path)
            masses |= priorities(views["priorities"])
            queue |= set(left(views["queue"]))
    with sw.Store(SPEC, capacity=300, segment_steps=8) as store:
        merge(store, paths, [{}, {}, {}], None)
        views = views_of(store)
        found = priorities(views["priorities"])
        assert {step: masses[step] for step in found if step in masses} == pytest.approx(
            {step: mass for step, mass in found.items() if step in masses}, rel=1e-6
        )
        waiting = left(views["queue"])
        assert len(waiting) == len(set(waiting)) > 200 and set(waiting) <= queue
        assert set(waiting) == set(contents(store)) & queue


def write(cluster: sw.Cluster, shards: int, steps: int, seed: int) -> None:
    for number in range(shards):
        with contextlib.closing(cluster.writer(2, name=f"writer-{number}", segment_steps=8)) as writer:
            play(writer, 2, steps, seed=seed + number)


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_checkpoint_opens_in_fewer_shards_without_loss(tmp_path: Path, on_disk: bool) -> None:
    def folder(name: str) -> Path | None:
        return tmp_path / name if on_disk else None

    with sw.Cluster(SPEC, shards=3, capacity=300, disk=folder("disk"), replicas=int(on_disk)) as cluster:
        write(cluster, 3, 80, 0)  # every shard is full
        held = len(cluster)
        cluster.checkpoint(tmp_path / "ckpt")
        if on_disk:
            with pytest.raises(ValueError, match="integer from 1 to 3"):
                sw.Cluster.open(tmp_path / "ckpt", shards=4, disk=tmp_path / "no")
    if on_disk:
        with pytest.raises(ValueError, match=r"expected a checkpoint: open the folder, write one with checkpoint\(\)"):
            sw.Cluster.open(tmp_path / "disk", shards=2)
    with sw.Cluster.open(tmp_path / "ckpt", shards=2, disk=folder("two")) as cluster:
        assert [one["steps"] > 0 for one in cluster.stats()["shards"]] == [True, True]
        assert len(cluster) == held
        with contextlib.closing(cluster.writer(2, name="writer-2", segment_steps=8)) as writer:
            assert min(writer.delivery.lane_steps) >= 79, "it goes on with its lanes"
            play(writer, 2, 20, seed=9)
        assert cluster.stats()["total_steps"] > 3 * 2 * 79 and len(cluster.transitions().sample(32)) == 32
        held = len(cluster)
        if on_disk:
            cluster.flush()
    if on_disk:
        with sw.Cluster.open(tmp_path / "two") as cluster:
            assert len(cluster) == held and len(cluster.links) == 2
    with sw.Cluster.open(tmp_path / "ckpt", shards=1, disk=folder("one")) as cluster:  # without a neighbor, no replica
        (shard,) = cluster.stats()["shards"]
        assert "replica" not in shard and shard["steps"] > 0


def test_a_checkpoint_by_a_client_of_plain_addresses_opens_in_fewer_shards_and_grows(tmp_path: Path) -> None:
    """It knew the shards' addresses, and not their limits."""
    with served(3, tmp_path, capacity=200, segment_steps=16) as there:
        write(there.cluster, 3, 80, 0)
        held = len(there.cluster)
        there.cluster.checkpoint(tmp_path / "ckpt")
    for shards in (1, 2, 3):
        with sw.Cluster.open(tmp_path / "ckpt", shards=shards) as cluster:
            assert len(cluster) == held and len(cluster.transitions().sample(32)) == 32
            if shards == 2:
                write(cluster, 3, 300, 5)
                assert len(cluster) <= 2 * 400
                cluster.resize(shards=3)
                assert len(cluster.links) == 3
    manifest = Manifest.read(tmp_path / "ckpt")
    assert manifest.new == {
        "capacity": 200, "segment_steps": 16, "on_full": "raise", "codec": dict.fromkeys(SPEC.fields, "auto"),
    }  # fmt: skip
    replace(manifest, new={}).write(tmp_path / "ckpt")
    with pytest.raises(ValueError, match=r"says no limit of its shards; give capacity= or ram="):
        sw.Cluster.open(tmp_path / "ckpt", shards=2)
    with sw.Cluster.open(tmp_path / "ckpt", shards=2, capacity=800) as cluster:
        assert len(cluster) == held
