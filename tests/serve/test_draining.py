"""Clusters that shrink: shards are drained by FIFO, compared with a plain log of what was written and when."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.errors import DamagedError
from sharpwave.serve import cuts
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.draining import EVERYTHING, Count, Drain
from sharpwave.serve.fleet import Fleet
from sharpwave.serve.manifest import Manifest
from sharpwave.serve.requests import Request
from sharpwave.serve.service import Service
from tests.serve.fleets import CAPACITY, EPISODE, fleet_of, held, wait_for, write
from tests.serve.serving import SPEC, fill, in_fork, served


@pytest.mark.parametrize("evict", [EVERYTHING, 100])
def test_what_a_drain_evicted_does_not_come_back_once_the_drain_was_ended(tmp_path: Path, evict: int) -> None:
    """The limits of the store have room for it, so nothing would evict it again when it is opened."""
    with served(1, tmp_path, disk=tmp_path / "disk") as there:
        writer = there.cluster.writer(2)
        log: list[tuple[int, int]] = []
        for step in range(100):
            write(writer, log, step, 1, 2, 0)
        writer.close()
        (link,), elsewhere = there.cluster.links, there.cluster.where()
        link.call(Request.DRAIN, {"elsewhere": elsewhere, "evict": evict})
        kept = held(there.stores[0], "kept")
        link.call(Request.DRAIN)
        assert held(there.stores[0], "still") == kept
        total = there.stores[0].total_steps
        assert 200 - evict <= len(there.stores[0]) < total
    with sw.Store.open(tmp_path / "disk", writers_go_on=True) as store:
        assert held(store, "opened") == kept
        assert store.total_steps == total


@pytest.mark.parametrize("drain", [False, True])
def test_the_end_of_a_drain_says_what_it_had_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    """A shard that was killed just before has that again, on its disk."""
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        fleet.plan = replace(fleet.plan, disk=tmp_path)
        writers = [there.cluster.writer(1, shard=shard) for shard in range(2)]
        logs: list[list[tuple[int, int]]] = [[], []]
        for writer, log in zip(writers, logs, strict=True):
            write(writer, log, 0, 100, 1, 0)
            writer.flush()
        fleet.resize(1, drain=drain)
        if drain:
            write(writers[0], logs[0], 100, CAPACITY - 50, 1, 0)  # evicts half of what was there
            writers[0].flush()
            fleet._look()
        evicted = there.stores[1].total_steps - len(there.stores[1])
        assert (0 < evicted < 100) if drain else evicted
        asked, real = list[int](), there.shards[1]._answers[Request.DRAIN]

        def note(client: Any, frame: Any) -> Any:
            asked.append(frame.head["evict"])
            return real(client, frame)

        monkeypatch.setitem(there.shards[1]._answers, Request.DRAIN, note)
        fleet.resize(2)
        assert len(asked) == 1 and evicted <= asked[0] <= there.stores[1].total_steps
        for writer in writers:
            writer.close()


def test_a_shard_is_drained_as_the_others_evict_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet_of(3, tmp_path, monkeypatch) as (there, fleet):
        writers = [there.cluster.writer(2, name=f"w{k}", shard=k, segment_steps=8) for k in range(3)]
        log: list[tuple[int, int]] = []
        begin = 0

        def go_on(steps: int) -> None:
            nonlocal begin
            for step in range(begin, begin + steps):
                for k, writer in enumerate(writers):
                    write(writer, log, step, 1, 2, k)
            begin += steps
            for writer in writers:
                writer.flush()

        go_on(400)  # all are full
        replay = there.cluster.transitions(sampler=sw.Uniform())
        there.cluster.resize(shards=2)
        assert len(there.stores[2]) > CAPACITY - 50, "nothing is due yet"
        sizes = []
        for look in range(60):
            go_on(10)
            if fleet._drain is None:
                break
            fleet._look()
            sizes.append(len(there.stores[2]))
            if look % 5 == 0 and sizes[-1]:
                stay = [held(store, f"look{look}") for store in there.stores]
                numbers = [number for one in stay for number in one]
                assert len(numbers) == len(set(numbers)), "a step is in two shards"
                # Its oldest step came when the others, all together, got the step that they evict next: within a
                # segment of each lane, in the plain log.
                evicted = sum(store.total_steps - len(store) for store in there.stores[:2])
                next_one = [number for number, (of, _) in enumerate(log) if of != 2][evicted]
                assert abs(min(stay[2]) - next_one) < 6 * 8 * 2
        assert fleet._drain is None and len(fleet) == 2
        assert sizes == sorted(sizes, reverse=True) or max(np.diff(sizes)) <= 40, "only episodes under way came"
        assert 20 <= len(sizes) <= 40, "as long as the others take to evict what they held"
        assert len(there.cluster.links) == 2
        assert len(replay.sample(32)) == 32 and set(replay._of.known) == {0, 1}
        # Every step that the two shards hold follows the one before, and the writer that moved has lost none.
        go_on(20)
        kept = held(there.stores[0], "end") | held(there.stores[1], "end")
        moved = sorted({log[number][1] for number in kept if log[number][0] == 2})
        assert moved == list(range(moved[0], moved[-1] + 1)) and moved[-1] >= begin - 10
        for writer in writers:
            writer.close()


def test_episodes_stay_whole_and_each_step_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        writer = there.cluster.writer(2, name="w", shard=1, segment_steps=8)
        log: list[tuple[int, int]] = []
        write(writer, log, 0, 23, 2, 0)
        writer.flush()
        fleet.resize(1)
        for step in range(23, 83):
            write(writer, log, step, 1, 2, 0)
            writer.flush()  # and hears that the shard is drained
        assert writer.delivery._of_lane == [writer.delivery._leases[-1]] * 2, "the lanes have moved"
        stores = [held(store, "all") for store in there.stores]
        assert all(stores) and not stores[0].keys() & stores[1].keys()
        assert {*stores[0], *stores[1]} >= set(range(2 * 72)), "acknowledged and lost"
        for numbers in stores:
            episodes = {log[number][1] // EPISODE for number in numbers}
            assert all(log[number][1] // EPISODE in episodes for number in numbers)
        assert not {log[n][1] // EPISODE for n in stores[0]} & {log[n][1] // EPISODE for n in stores[1]}
        other = there.cluster.writer(1, name="new", shard=1)
        assert other.delivery.lane_steps == [0] and there.stores[0].lanes == 2, "a drained shard gives no lanes"
        assert there.shards[0].intake.leases()["new"] == (2, 1)
        fleet.resize(2)  # it takes writers again
        assert there.shards[1].intake.elsewhere is None and fleet._drain is None
        other.close()
        writer.close()


def test_a_draw_during_a_drain_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        writers = [there.cluster.writer(2, name=f"w{k}", shard=k, segment_steps=8) for k in range(2)]
        log: list[tuple[int, int]] = []
        for k, writer in enumerate(writers):
            write(writer, log, 0, 300, 2, k)
            writer.flush()
        replay = there.cluster.transitions(sampler=sw.Prioritized(alpha=1.0, beta=1.0))
        fleet.resize(1)
        write(writers[0], log, 300, 200, 2, 0)
        writers[0].flush()
        fleet._look()
        assert 100 < len(there.stores[1]) < CAPACITY - 100, "amid the drain"
        replay.refresh()
        for _ in range(20):
            batch = replay.sample(128)
            replay.update_priorities(batch, 1.0 + batch.action % 7)
        counts: dict[int, int] = {}
        chance: dict[int, float] = {}
        replay.refresh()
        for _ in range(200):
            batch = replay.sample(128)
            for action, probability in zip(batch.action.tolist(), batch.probabilities.tolist(), strict=True):
                counts[action] = counts.get(action, 0) + 1
                chance[action] = probability
        seen = sorted(counts)
        expected = np.array([chance[one] for one in seen]) * 200 * 128
        observed = np.array([counts[one] for one in seen], float)
        assert sum(chance.values()) == pytest.approx(1.0, abs=0.02), "every item has its probability"
        chi, degrees = float(((observed - expected) ** 2 / expected).sum()), len(seen) - 1
        assert chi < degrees + 4 * np.sqrt(2 * degrees)
        for writer in writers:
            writer.close()


def test_what_a_limiter_counted_in_a_shard_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        writers = [there.cluster.writer(2, name=f"w{k}", shard=k, segment_steps=8) for k in range(2)]
        replay = there.cluster.transitions(limiter=sw.SamplesPerInsert(8, 10, 1e6))
        log: list[tuple[int, int]] = []
        for k, writer in enumerate(writers):
            write(writer, log, 0, 100, 2, k)
            writer.flush()
        for _ in range(5):
            replay.sample(64)
        replay.refresh()
        before = replay._cursor
        writers[1].close()
        fleet.resize(1, drain=False)
        fleet._look()
        assert len(fleet) == 1 and len(there.stores[1]) == 0
        replay.refresh()
        after = replay._cursor
        assert after.samples == before.samples == 320
        assert before.inserts <= after.inserts <= before.inserts + 2 * 8  # what closing the writer sealed
        writers[0].close()


def test_at_once_evicts_all_and_truncates_the_episodes_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        writer = there.cluster.writer(1, name="w", shard=1, segment_steps=8)
        log: list[tuple[int, int]] = []
        write(writer, log, 0, 34, 1, 0)
        writer.flush()
        fleet.resize(1, drain=False)
        assert len(there.stores[1]) == 0
        for step in range(34, 134):  # an episode that does not end
            write(writer, log, step, 1, 1, 0) if step % EPISODE != EPISODE - 1 else log.append((0, step))
            writer.flush()
        fleet._look()
        assert len(fleet) == 1 and len(there.stores[0]) > 60
        assert len(log) - len(there.stores[0]) < 65, "one step was truncated, and later ones are all there"
        writer.close()


def test_a_drain_that_cannot_be_written_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one end, where shards cannot be added."""

    def full(fleet: Fleet, **about_to_change: Any) -> None:
        raise OSError(28, "No space left on device")

    with fleet_of(3, tmp_path, monkeypatch) as (there, fleet):
        for number, store in enumerate(there.stores):
            fill(store, 2, 60, number)
        steps = len(there.cluster)
        for before in (3, 2):
            there.cluster.resize(shards=before)
            draining = fleet.manifest().draining
            with monkeypatch.context() as patch:
                patch.setattr(Fleet, "write", full)
                for shards, drain in ((1, False), (4, True)):
                    with pytest.raises(OSError, match="No space left"):
                        there.cluster.resize(shards=shards, drain=drain)
                    assert fleet.manifest().draining == draining
            fleet._look()
            assert len(there.cluster) == steps and len(fleet) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_of_the_process_that_started_shards_leaves_them_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet_of(1, tmp_path, monkeypatch) as (there, fleet):

        def child() -> None:
            processes: Any = fleet.processes
            assert processes.left and len(there.cluster) == 0
            for call in (lambda: there.cluster.resize(shards=2), lambda: there.cluster.checkpoint(tmp_path / "no")):
                with pytest.raises(sw.StoreInUseError, match="has started these shards"):
                    call()
            fleet.close()

        assert in_fork(child) == 0
        assert len(there.cluster) == 0 and not (tmp_path / "no").exists()


def counts(order: list[int], shards: int, capacity: int) -> list[Count]:
    return [Count(min(total, capacity), total) for total in np.bincount(order, minlength=shards).tolist()]


def test_steps_are_due_in_the_order_of_one_plain_log() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        order: list[int] = []  # the shard of each step, in the order of arrival
        stay, capacity = int(rng.integers(1, 4)), int(rng.integers(50, 200))
        order += rng.integers(0, stay + 1, int(rng.integers(2, 5)) * capacity * (stay + 1)).tolist()
        *others, own = counts(order, stay + 1, capacity)
        drain = Drain(stay)
        drain.begin(stay, own, others)
        held_at_first = min(own.total, capacity)
        for _ in range(40):
            order += rng.choice(stay, size=10).tolist()
            others = counts(order, stay + 1, capacity)[:stay]
            due, evicted = drain.due(stay, others), sum(one.evicted for one in others)
            # In the plain log: steps of the drained shard that came before the oldest that the others hold.
            places = np.flatnonzero(np.array(order) != stay)
            older = int(np.count_nonzero(np.array(order)[: places[evicted]] == stay)) if evicted < len(places) else 0
            at_least = own.total - held_at_first
            assert due >= at_least
            assert abs(due - max(older, at_least)) <= 0.25 * held_at_first + 5
        assert Drain.of(drain.state()).state() == drain.state()
    with pytest.raises(DamagedError, match="draining"):
        Drain.of({"keeps": 1})


def test_steps_that_came_during_the_drain_wait_for_their_turn_and_lost_shards_count_as_evicted() -> None:
    drain = Drain(1)
    drain.begin(1, Count(100, 100), [Count(100, 100)])
    assert drain.due(1, [Count(100, 150)]) == 50 and not drain.over(1, [Count(100, 150)])
    assert drain.appended(1, Count(60, 110), [Count(100, 150)])
    assert drain.due(1, [Count(100, 200)]) == 100
    assert drain.due(1, [Count(100, 225)]) == 105 and drain.over(1, [Count(100, 225)])
    assert drain.due(1, [Count(100, 260)]) == 110
    assert drain.due(1, [Count(5, 5)]) == 110, "a shard that began anew has lost what it had"
    empty = Drain(1)
    empty.begin(1, Count(100, 100), [Count(0, 0)])
    assert empty.due(1, [Count(40, 40)]) == 0 and empty.due(1, [Count(40, 41)]) == 100
    assert Drain(1, at_once=True).due(1, []) == EVERYTHING


@pytest.mark.slow
def test_clients_of_a_service_shrink_grow_and_save_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    still: list[bool] = []

    def cut(*given: Any) -> None:
        assert service._fleet is not None
        with ThreadPoolExecutor(1) as pool:  # the thread that drains is another, too
            still.append(not pool.submit(service._fleet.lock.acquire, blocking=False).result())
        cuts.cut(*given)

    monkeypatch.setattr("sharpwave.serve.members.cut", cut)
    with Service(Address.parse("127.0.0.1:0"), 2, None, Security(), capacity=10_000) as service:
        log: list[tuple[int, int]] = []
        with (
            sw.Cluster(SPEC, address=str(service.address)) as one,
            sw.connect(str(service.address)) as other,
        ):
            writers = [other.writer(2, name=f"w{k}", shard=k, segment_steps=8) for k in range(2)]
            for k, writer in enumerate(writers):
                write(writer, log, 0, 100, 2, k)
                writer.flush()
            replay = other.transitions()
            one.resize(shards=1)
            other.checkpoint(tmp_path / "ckpt")
            assert still == [True] and Manifest.read(tmp_path / "ckpt").draining["keeps"] == 1
            one.resize(shards=1, drain=False)
            assert [len(link) for link in (one.links, other.links)] == [2, 2], "its writer is still there"
            deadline = time.monotonic() + 60
            step = 100
            while writers[1].delivery._of_lane[0] is writers[1].delivery._leases[0] and time.monotonic() < deadline:
                write(writers[1], log, step, 1, 2, 1)
                writers[1].flush()
                step += 1
                if len(writers[1].delivery._leases) == 1 and step > 140:
                    break
            for writer in writers:
                writer.close()
            wait_for(lambda: one._members.renew(0.0) or len(one.links) == 1)
            assert len(other) == len(one) > 2 * 90, "the other client notices by itself"
            assert len(other.links) == 1 and len(replay.sample(32)) == 32
            one.resize(shards=2)
            other._members.renew(0.0)
            assert len(other.links) == len(one.links) == 2
            write(again := other.writer(1, shard=1), log, 0, 70, 1, 2)
            again.flush()
            replay.refresh()
            assert len(set(replay.sample(128).shards.tolist())) == 2
            with pytest.raises(ValueError, match="expected an integer from 1"):
                one.resize(shards=0)
            again.close()


def test_shards_at_plain_addresses_and_replicas_are_not_resized(tmp_path: Path) -> None:
    with served(1, tmp_path) as there, pytest.raises(ValueError, match="started elsewhere"):
        there.cluster.resize(shards=2)


@pytest.mark.slow
def test_a_writer_that_comes_first_to_a_cluster_amid_a_drain_gets_lanes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sw.Cluster(SPEC, shards=2, capacity=1_000, disk=tmp_path / "d") as cluster:
        for k in range(2):
            with contextlib.closing(cluster.writer(1, name=f"w{k}", shard=k, durability="flush")) as writer:
                write(writer, [], 0, 40, 1, k)
        cluster.resize(shards=1)
    monkeypatch.setattr("sharpwave.serve.fleet.LOOK_S", 3600.0)
    with sw.Cluster.open(tmp_path / "d") as cluster:
        before = [one["total_steps"] for one in cluster.stats()["shards"]]
        with contextlib.closing(cluster.writer(1, name="new", shard=1, durability="flush")) as writer:
            write(writer, [], 0, 30, 1, 2)
        after = [one["total_steps"] for one in cluster.stats()["shards"]]
        assert [now - then for then, now in zip(before, after, strict=True)] == [30, 0]


@pytest.mark.slow
def test_a_drain_goes_on_after_a_kill_and_where_the_cluster_is_opened_again(tmp_path: Path) -> None:
    log: list[tuple[int, int]] = []
    with sw.Cluster(SPEC, shards=2, capacity=1_000, disk=tmp_path / "d") as cluster:
        writers = [cluster.writer(2, name=f"w{k}", shard=k, durability="flush") for k in range(2)]
        for k, writer in enumerate(writers):
            write(writer, log, 0, 300, 2, k)
            writer.flush()
        cluster.resize(shards=1)
        assert cluster._processes is not None
        os.kill(cluster._processes.processes[1], signal.SIGKILL)
        for writer in writers:
            writer.close()
        wait_for(lambda: len(cluster.stats()["shards"]) == 2)
        assert [one["draining"] for one in cluster.stats()["shards"]] == [False, True]
        cluster.checkpoint(tmp_path / "ckpt")
    for opened in (sw.Cluster.open(tmp_path / "d"), sw.Cluster.open(tmp_path / "ckpt", disk=tmp_path / "other")):
        with opened as cluster:
            assert len(cluster.links) == 2 and len(cluster) > 800
            writer = cluster.writer(2, name="w1", shard=1, timeout=30.0)  # the drain goes on: the other shard's
            write(writer, log, 0, 350, 2, 1)
            writer.flush()
            wait_for(lambda: len(cluster.links) == 1)
            assert 400 < len(cluster) <= 500
            writer.close()
    assert not (tmp_path / "d" / "shard-1").exists()
    with sw.Cluster.open(tmp_path / "d") as cluster:
        assert len(cluster.links) == 1
        cluster.resize(shards=2)  # it grows again
        again = cluster.writer(1, name="w1", shard=1)
        assert again.delivery.lane_steps == [0]
        again.close()
