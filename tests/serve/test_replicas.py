"""Replicas: what a shard acknowledged is in two processes, and comes back from either."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.log.remote_segments import Copy
from sharpwave.serve import replica_content, shard_process
from sharpwave.serve.addresses import Security
from sharpwave.serve.fleet import ShardPlan
from sharpwave.serve.link import Link
from sharpwave.serve.remote_writer import Delivery, RemoteWriter
from sharpwave.serve.replica_content import deleted_runs, finish_deletions, lacking, take
from sharpwave.serve.replicas import Keeper, Neighbour
from tests.serve.fleets import fleet_of, wait_for
from tests.serve.serving import SPEC, sealed, served
from tests.serve.test_lives import actions, counting

STEPS = 100


def steps_of(cluster: sw.Cluster, name: str) -> list[int]:
    """Return the numbers of all steps that can be sampled, each of one lane, in order."""
    return sorted(action for action, _ in actions(cluster, name).values())


def wait_for_steps(cluster: sw.Cluster, steps: int, patience_s: float = 60.0) -> None:
    """Wait until shards and replicas that are started again hold what they had."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            each = cluster.stats()["shards"]
            found = [sum(one["steps"] for one in each), sum(one["replica"]["steps"] for one in each)]
            if found == [steps, steps]:
                return
        except ConnectionError:
            found = []
        assert time.monotonic() < deadline, f"{found} steps came back, expected {steps}"
        time.sleep(0.05)


def kill(cluster: sw.Cluster, number: int) -> None:
    assert cluster._processes is not None
    os.kill(cluster._processes.processes[number], signal.SIGKILL)


def written(cluster: sw.Cluster, begin: int = 0, durability: str = "flush") -> list[RemoteWriter]:
    """Write steps to every shard, by writers with names; return these."""
    writers = []
    for number in range(len(cluster.links)):
        writers.append(cluster.writer(1, name=f"w{number}", shard=number, durability=durability, segment_steps=8))
        counting(writers[-1], begin, STEPS, lanes=1)
        writers[-1].flush()
    return writers


@pytest.mark.slow
def test_folders_that_are_lost_come_back_from_the_neighbours(tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=3, capacity=100_000, disk=tmp_path / "d", replicas=1) as cluster:
        written(cluster)
        held, before = len(cluster), steps_of(cluster, "before")
        (tmp_path / "d" / "shard-1").rename(tmp_path / "lost")  # also the replica of shard 0
        kill(cluster, 1)
        wait_for_steps(cluster, held)
        assert steps_of(cluster, "after") == before
    shutil.rmtree(tmp_path / "d" / "shard-0")  # whose replica shard 1 has made again
    with sw.Cluster.open(tmp_path / "d") as cluster:
        wait_for_steps(cluster, held)
        assert steps_of(cluster, "all") == before
        writer = cluster.writer(1, name="w0", shard=0)  # its lanes came back too
        assert writer.delivery.first_lane == 0 and writer.delivery.lane_steps[0] == 96


def test_a_shard_in_memory_that_is_killed_comes_back(tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=2, capacity=100_000, replicas=1) as cluster:
        writers = written(cluster, durability="memory")
        before = len(cluster)
        for number in (0, 1):
            kill(cluster, number)
            wait_for_steps(cluster, before)
        for writer in writers:
            counting(writer, STEPS, STEPS, lanes=1)  # in mid-episode: 100 is a multiple of 25
            writer.flush()
        seen = steps_of(cluster, "all")
        assert len(cluster) == 2 * 192 and seen == sorted(2 * [*range(191)])


FRAMES = sw.Spec(obs=sw.Field((24, 24), "uint8"), action=sw.Field((), "int64"))
FRAME = np.random.default_rng(5).integers(0, 4, (24, 24), np.uint8) * 60


def write_frames(writer: RemoteWriter, begin: int, steps: int) -> None:
    """Write frames that share most of their pixels, so that segments refer to dictionaries."""
    for number in range(begin, begin + steps):
        frame = FRAME.copy()
        frame[number % 24] = number % 251
        frame[:, number % 7] = 3
        writer.extend(
            obs=frame[None], action=[number], reward=[1.0], terminated=[number % 20 == 19], truncated=[False],
            final_obs=frame[None],
        )  # fmt: skip


@pytest.mark.parametrize("on_disk", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_segments_come_back_with_their_dictionaries(on_disk: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"disk": tmp_path / "d"} if on_disk else {}
    with sw.Cluster(FRAMES, shards=2, capacity=100_000, replicas=1, **given) as cluster:
        writer = cluster.writer(shard=0, timeout=60)
        write_frames(writer, 0, 320)
        writer.flush()
        held = len(cluster)
        assert cluster.stats()["shards"][0]["bytes"]["dictionaries"] > FRAME.nbytes
        if on_disk:
            (tmp_path / "d" / "shard-0").rename(tmp_path / "lost")
        kill(cluster, 0)
        wait_for_steps(cluster, held)
        view = cluster.transitions()
        for batch in (view.sample(64), view.sample(64)):
            for frame, number in zip(batch.obs, batch.action.tolist(), strict=True):
                expected = FRAME.copy()
                expected[number % 24] = number % 251
                expected[:, number % 7] = 3
                np.testing.assert_array_equal(frame, expected)
        write_frames(writer, 320, 64)
        writer.flush()
        assert len(cluster) == held + 64
        wait_for(lambda: [one["replica_trouble"] for one in cluster.stats()["shards"]] == ["", ""])


def test_a_shard_says_why_it_is_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log and the statistics, as long as it lasts; a neighbor that is started again within a time is no trouble."""
    with served(2, tmp_path) as there, sw.Store(SPEC, capacity=100_000, segment_steps=8) as replica:
        first, second = there.shards
        second.keeper = Keeper(0, replica, tmp_path / "writers.json")
        for one in sealed(2, 100, 0):
            replica.add_segment(one.packed, one.dictionaries)
        link, over = Link(there.servers[1].address, Security()), threading.Event()
        neighbour = Neighbour(0, first.store, link, first.intake.leases, first.intake.adopt)
        first.intake.neighbour = neighbour
        give = second.keeper.give
        monkeypatch.setattr(second.keeper, "give", lambda frame: ({}, {"row_dictionary:unknown": b""}))
        monkeypatch.setattr(shard_process, "LEVEL_S", 0.01)
        thread = threading.Thread(target=shard_process._stay_level, args=(neighbour, over))
        thread.start()
        try:
            wait_for(lambda: "row_dictionary:unknown" in there.cluster.stats()["shards"][0]["replica_trouble"])
            assert not caplog.records
            monkeypatch.setattr(shard_process, "RESTART_S", 0.0)
            wait_for(lambda: "row_dictionary:unknown" in caplog.text)
            assert len(first.store) == 0 and "no replica, and no steps taken" in caplog.text
            monkeypatch.setattr(second.keeper, "give", refuse)
            wait_for(lambda: "out of order" in there.cluster.stats()["shards"][0]["replica_trouble"])
            monkeypatch.setattr(second.keeper, "give", give)
            wait_for(lambda: neighbour.level)
            assert first.store.lane_steps.tolist() == replica.lane_steps.tolist()
            wait_for(lambda: there.cluster.stats()["shards"][0]["replica_trouble"] == "")
        finally:
            over.set()
            thread.join()
        link.close()


def test_what_a_replica_lacks_is_brought_to_it_and_the_other_way_round(tmp_path: Path) -> None:
    """Of two stores each of which has what the other has not."""
    with served(2, tmp_path) as there, sw.Store(SPEC, capacity=100_000, segment_steps=8) as replica:
        segments = sealed(2, 100, 0)
        first, second = there.shards
        for one in segments[:7]:
            first.store.add_segment(one.packed, one.dictionaries)
        for one in segments:
            if one.lane == 0:
                replica.add_segment(one.packed, one.dictionaries)
        second.keeper = Keeper(0, replica, tmp_path / "writers.json")
        link = Link(there.servers[1].address, Security())
        first.intake.neighbour = Neighbour(0, first.store, link, first.intake.leases, first.intake.adopt)
        first.intake.neighbour.replicate()
        assert first.store.lane_steps.tolist() == replica.lane_steps.tolist()
        with sw.Store(SPEC, capacity=100_000, segment_steps=8) as reference:
            for lane in (0, 1):
                count = int(replica.lane_steps[lane])
                for one in segments:
                    if one.lane == lane and one.first_step < count:
                        reference.add_segment(one.packed, one.dictionaries)
            for store in (first.store, replica):
                same(store, reference)
        link.close()


def same(store: sw.Store, reference: sw.Store) -> None:
    batches = [view.fetch(view.sampleable_ids()) for view in (store.transitions(), reference.transitions())]
    orders = [np.lexsort((one.step, one.lane)) for one in batches]
    for name in ("lane", "step", "obs", "action", "reward", "next_obs", "discount", "truncated"):
        left, right = (getattr(one, name)[order] for one, order in zip(batches, orders, strict=True))
        np.testing.assert_array_equal(left, right, err_msg=name)


def test_nothing_is_acknowledged_before_the_neighbour_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that ended between the two stores: the segment is sent again, and arrives at the second."""
    with served(2, tmp_path) as there, sw.Store(SPEC, capacity=100_000, segment_steps=8) as replica:
        first, second = there.shards
        second.keeper = Keeper(0, replica, tmp_path / "writers.json")
        first.intake.neighbour = Neighbour(
            0, first.store, Link(there.servers[1].address, Security()), first.intake.leases, first.intake.adopt
        )
        writer = RemoteWriter(SPEC, Delivery(Link(there.servers[0].address, Security()), "w", 1), segment_steps=8)
        counting(writer, 0, 40, lanes=1)
        writer.flush()
        replica.clear()
        assert replica.lane_steps.tolist() == first.store.lane_steps.tolist() == [32]
        keep = second.keeper.keep
        monkeypatch.setattr(second.keeper, "keep", refuse)
        counting(writer, 40, 8, lanes=1)
        with pytest.raises(ValueError, match="out of order"):
            writer.flush()
        assert first.store.lane_steps.tolist() == [40] and writer.delivery.waiting == 1
        monkeypatch.setattr(second.keeper, "keep", keep)
        writer.delivery._lease.link.close()
        writer.flush()
        assert replica.lane_steps.tolist() == [40] and len(replica) == 8
        writer.delivery.close()
        first.intake.neighbour._link.close()


def refuse(frame: object) -> None:
    raise ValueError("out of order")


def test_a_durable_writer_that_reconnects_hears_of_what_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(1, tmp_path, disk=tmp_path / "store") as there:
        link = Link(there.servers[0].address, Security())
        flushed: list[int] = []
        store = there.stores[0]
        flush = store.flush

        def noted(views: bool = True) -> None:
            flushed.append(int(store.lane_steps.sum()))
            flush(views=views)

        monkeypatch.setattr(store, "flush", noted)
        delivery = Delivery(link, "w", 1, durable=True)
        segment = sealed(1, 20, 0, end=0.0)[0]
        delivery.put(segment)
        link.wait(delivery._lease._kept[0].ticket)  # the shard has it, and its acknowledgement is lost
        link.close()
        flushed.clear()
        delivery.flush()
        assert delivery.acknowledged == 8 and flushed == [8]
        delivery.close()


def test_limits_include_replicas_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    plan = ShardPlan(2, tmp_path, 10_000, "64MiB", replicas=1)
    assert {one.limits["ram"] for one in plan.settings(SPEC)} == {16 << 20}
    assert {one.limits["capacity"] for one in plan.settings(SPEC)} == {5000}
    with fleet_of(1, tmp_path) as (there, fleet, _):
        fleet.plan = plan
        with pytest.raises(ValueError, match="with replicas the number of shards stays"):
            there.cluster.resize(shards=3)
    for shards, copies in ((1, 1), (3, 2), (3, -1)):
        with pytest.raises(ValueError, match=f"replicas={copies} of {shards} shards"):
            sw.Cluster(SPEC, shards=shards, capacity=1000, replicas=copies, disk=tmp_path / "none")
    assert not (tmp_path / "none").exists()


# deletion


def step(writer: RemoteWriter, action: int, ends: bool) -> None:
    frames, no = np.zeros((1, 6, 5), np.uint8), [False]
    writer.extend(
        obs=frames, action=[action], reward=[1], terminated=[ends], truncated=no, final_obs=frames, noise=[[0, 0]]
    )


def written_episodes(cluster: sw.Cluster, shard: int, first: int, episodes: int) -> RemoteWriter:
    """Write episodes of 3, 10, 3, 10 ... steps; actions count from ``first`` on."""
    writer = cluster.writer(1, name=f"w{shard}", shard=shard, segment_steps=4)
    for episode in range(episodes):
        length = (3, 10)[episode % 2]
        for k in range(length):
            step(writer, first + 100 * episode + k, k == length - 1)
    writer.flush()
    return writer


def seen(cluster: sw.Cluster) -> list[int]:
    """Return the actions of all steps that are there."""
    return sorted(int(action) for one in cluster.episodes() for action in one.action)


def restored(cluster: sw.Cluster, number: int, steps: int, lost: Path | None = None) -> None:
    """Kill a shard, with its folder where one is given; check all that it samples until it has all its steps again."""
    assert cluster._processes is not None
    before = cluster._processes.processes[number]
    if lost is not None:
        lost.rename(lost.with_name(f"lost-{time.time_ns()}"))
    os.kill(before, signal.SIGKILL)
    deadline, view = time.monotonic() + 60, cluster.transitions()
    while time.monotonic() < deadline:
        try:
            if cluster._processes.processes[number] != before and len(cluster) == steps:
                assert not {int(one) % 1000 // 100 % 2 for one in view.sample(64).action} & {0}, "a deleted step"
                return
            assert not {int(one) % 1000 // 100 % 2 for one in view.sample(64).action} & {0}, "a deleted step"
        except (ConnectionError, sw.EmptyError):
            pass
        time.sleep(0.02)
    pytest.fail(f"the shard has not its steps again: {len(cluster)}, expected {steps}")


@pytest.mark.parametrize("on_disk", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_deleted_steps_never_come_back_from_a_replica(on_disk: bool, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with sw.Cluster(SPEC, shards=2, capacity=100_000, replicas=1, disk=folder if on_disk else None) as cluster:
        writers = [written_episodes(cluster, shard, 10_000 * shard, 9) for shard in range(2)]
        total = len(cluster)
        if on_disk:
            short = [one for one in cluster.episodes() if one.length == 3 and one.ended]
            deleted = cluster.delete(episodes=short)
        else:
            deleted = cluster.delete(where="length = 3")
        assert deleted == 2 * 4 * 3 and cluster.delete(where="length = 3") == 0
        left = seen(cluster)
        assert len(left) == len(cluster) == total - deleted
        for writer in writers:
            step(writer, 800, True)
            writer.close()
        cluster.delete(where="length < 10")
        left = seen(cluster)
        for number in (0, 1):
            restored(cluster, number, len(left), folder / f"shard-{number}" if on_disk else None)
            assert seen(cluster) == left
            wait_for_steps(cluster, len(left))
        writer = written_episodes(cluster, 0, 500_100, 0)  # of an earlier name, all of whose last steps were deleted
        for k in range(12):
            step(writer, 100 + k, k % 4 == 3)
        writer.close()
        more = seen(cluster)
        assert len(more) == len(left) + 12
        wait_for_steps(cluster, len(more))
        restored(cluster, 0, len(more), folder / "shard-0" if on_disk else None)
        assert seen(cluster) == more


def test_a_restored_segment_is_deleted_from_although_its_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the segment and the deletion of its steps: they are deleted when the store is opened again."""
    pending = tmp_path / "deleted.json"
    segments = [Copy(one.packed, one.dictionaries) for one in sealed(2, 60, 0)]
    runs = np.array([[0, 3, 17], [1, 0, 8], [1, 40, 1 << 40], [7, 0, 5], [-1, 0, 5]])

    def steps(store: sw.Store) -> set[tuple[int, int]]:
        places = [(lane, step) for lane in range(store.lanes) for step in range(60)]
        held = np.asarray(store.ids(*np.array(places).T, missing="mask")) >= 0
        return {one for one, there in zip(places, held.tolist(), strict=True) if there}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with sw.Store(SPEC, capacity=1000, segment_steps=8) as reference:
        take(reference, segments, np.zeros((0, 3), np.int64), None)
        gone = {(lane, step) for lane, first, end in runs.tolist() for step in range(first, min(end, 60))}
        expected = steps(reference) - gone
    with sw.Store(SPEC, capacity=1000, segment_steps=8, disk=tmp_path / "d") as store:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(replica_content, "delete_runs", killed)
            take(store, segments, runs, pending)
        assert pending.exists() and len(steps(store)) > len(expected)
        store.flush()
    with sw.Store.open(tmp_path / "d", writers_go_on=True) as store:
        finish_deletions(store, pending)
        assert steps(store) == expected and not pending.exists()
        assert deleted_runs(store).shape[1] == 3
        with sw.Store(SPEC, capacity=1000, segment_steps=8) as other:
            take(other, *lacking(store, np.zeros(0, np.int64)), None)
            assert steps(other) == expected


def test_steps_on_their_way_to_a_replica_are_deleted_there_too(tmp_path: Path) -> None:
    with served(2, tmp_path) as there, sw.Store(SPEC, capacity=100_000, segment_steps=8) as replica:
        first, second = there.shards
        second.keeper = Keeper(0, replica, tmp_path / "writers.json")
        link = Link(there.servers[1].address, Security())
        first.intake.neighbour = Neighbour(0, first.store, link, first.intake.leases, first.intake.adopt)
        for one in sealed(2, 100, 0):  # as by a writer's connection that did not reach the replica yet
            first.store.add_segment(one.packed, one.dictionaries)
        found = there.cluster.episodes(order="length")
        some = [one for one in found if one.ended][:5]
        assert there.cluster.delete(episodes=some) == sum(one.length for one in some)
        same(first.store, replica)
        running = next(one for one in found if one.ended is None)
        with pytest.raises(ValueError, match="had not ended"):
            there.cluster.delete(episodes=[found[7], running])
        same(first.store, replica)
        second.keeper = None
        with pytest.raises(ValueError, match="keeps no replica"):
            there.cluster.delete(where="length > 0")
        assert len(first.store) == len(replica)
        link.close()
