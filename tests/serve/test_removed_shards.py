"""The end of a drain: when a shard is removed, and what writers send that were away, idle, or just sending."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sharpwave as sw
from sharpwave.serve.fleet import Fleet
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.remote_writer import RemoteWriter
from sharpwave.serve.requests import Request
from tests.serve.fleets import EPISODE, fleet_of, held, wait_for, write
from tests.serve.serving import Served, served


@pytest.mark.parametrize("heard", [True, False])
def test_a_writer_that_was_away_while_its_shard_went_moves_on_with_all_that_it_kept(
    heard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what belongs before the episodes with which lanes have moved already."""
    monkeypatch.setattr("sharpwave.serve.delivery.GONE_S", 0.0)
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        writer = there.cluster.writer(2, name="w", shard=1, segment_steps=8, timeout=10)
        log: list[tuple[int, int]] = []
        write(writer, log, 0, 23, 2, 0)
        writer.flush()
        if heard:
            fleet.resize(1)
        write(writer, log, 23, 6, 2, 0)
        writer.flush()
        if not heard:
            fleet.resize(1)
        lost = writer.delivery._leases[0].link
        lost.close()
        wait_for(lambda: not there.shards[1].intake.writers)  # until the shard has noticed

        def away(wait_s: float = 0.0) -> None:
            raise ShardLostError("away")

        monkeypatch.setattr(lost, "connect", away)
        write(writer, log, 29, 16, 2, 0)
        assert (len(writer.delivery._leases) == 2) == heard and writer.delivery._leases[0].waiting
        fleet._drain = replace(fleet._drain, at_once=True) if fleet._drain else None
        fleet._look()
        assert len(fleet) == 1 and writer.delivery.waiting
        write(writer, log, 45, 30, 2, 0)
        writer.flush()
        write(writer, log, 75, 1, 2, 0)
        assert [one.number for one in writer.delivery._leases] == [0]
        kept = held(there.stores[0], "all")
        assert kept.keys() >= {number for number, (_, step) in enumerate(log) if 29 <= step < 70}, "steps were lost"
        for lane in {at[0] for at in kept.values()}:  # episodes are whole, from where the shard had taken them
            steps = sorted((step, log[number][1]) for number, (of, step) in kept.items() if of == lane)
            assert [later for _, later in steps] == sorted(later for _, later in steps)
        writer.close()


def test_a_writer_that_sends_nothing_does_not_keep_an_empty_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        writer = there.cluster.writer(1, name="w", shard=1, segment_steps=8, timeout=10)
        log: list[tuple[int, int]] = []
        write(writer, log, 0, 20, 1, 0)
        writer.flush()
        fleet.resize(1, drain=False)
        fleet._look()
        assert len(fleet) == 2, "it may write at any time"
        monkeypatch.setattr("sharpwave.serve.intake.IDLE_S", 0.0)
        fleet._look()
        assert len(fleet) == 1
        write(writer, log, 20, 30, 1, 0)
        writer.flush()
        assert {log[number][1] for number in held(there.stores[0], "all")} >= set(range(20, 47))
        writer.close()


def test_steps_that_come_just_before_a_shard_would_be_removed_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a writer that was idle: they were acknowledged, and deleted with the shard, long before they were due."""
    monkeypatch.setattr("sharpwave.serve.intake.IDLE_S", 0.0)
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        writers, log = drained(there, fleet)
        ask = fleet._ask
        late: list[int] = []

        def asked(number: int, kind: Request, *head: Any) -> dict[str, Any]:
            if kind == Request.CEDE and not late:
                late.extend(range(len(log), len(log) + 8))
                write(writers[1], log, 25, 8, 1, 1)
                writers[1].flush()
            return ask(number, kind, *head)

        monkeypatch.setattr(fleet, "_ask", asked)
        fleet._look()
        assert late and len(fleet) == 2
        assert held(there.stores[1], "all").keys() | held(there.stores[0], "all").keys() >= set(late[:-3])
        fleet._look()  # and notes that they came
        fill_up(writers[0], log, there.stores[0])
        fleet._look()
        assert len(fleet) == 1
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("removed", [True, False])
def test_steps_that_come_while_a_shard_is_removed_go_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """Or are taken by it after all, if it cannot be removed, as the disk is full."""
    monkeypatch.setattr("sharpwave.serve.intake.IDLE_S", 0.0)
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        writers, log = drained(there, fleet)
        late, begin = range(len(log), len(log) + 40), threading.Event()

        def go_on() -> None:
            begin.wait(10)
            write(writers[1], log, 25, 40, 1, 1)
            writers[1].flush()

        thread = threading.Thread(target=go_on)
        thread.start()

        def manifest(**_: Any) -> None:
            if not begin.is_set():
                begin.set()
                wait_for(lambda: bool(there.shards[1].intake.writers))  # it waits there
                if not removed:
                    raise OSError(28, "No space left on device")

        monkeypatch.setattr(fleet, "write", manifest)
        if removed:
            fleet._look()
        else:
            with pytest.raises(OSError, match="No space left"):
                fleet._look()
        thread.join(20)
        assert not thread.is_alive() and len(fleet) == (1 if removed else 2)
        kept = held(there.stores[0], "all").keys() | (set() if removed else held(there.stores[1], "all").keys())
        assert kept >= set(late[:-10])
        for writer in writers:
            writer.close()


def test_a_writer_that_was_idle_goes_on_where_another_shard_is_in_the_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one gives lanes other numbers, as its writers come in another order."""
    monkeypatch.setattr("sharpwave.serve.link.RETRY_S", 0.0)
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    with served(1, folders[0]) as old, served(1, folders[1]) as new:
        log: list[tuple[int, int]] = []
        writers = [old.cluster.writer(1, name=f"w{k}", segment_steps=8, timeout=10) for k in range(2)]
        for k, writer in enumerate(writers):
            write(writer, log, 0, 25, 1, k)
            writer.flush()
        begun = len(log)
        for writer in writers:
            link = writer.delivery._leases[0].link
            link.close()
            link.address = new.cluster.links[0].address
        for k in (1, 0):
            write(writers[k], log, 25, 40, 1, k)
            writers[k].flush()
            assert writers[k].delivery.acknowledged > 56
        kept = held(new.stores[0], "all")
        for k in range(2):
            steps = [log[number][1] for number in sorted(kept) if log[number][0] == k and number >= begun]
            assert steps and steps == list(range(steps[0], steps[-1] + 1)), "steps were lost"
            assert steps[0] <= 30 and steps[-1] >= 55
        for writer in writers:
            writer.close()


def test_a_writer_whose_shard_is_gone_does_not_replace_a_later_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharpwave.serve.intake.IDLE_S", 0.0)
    monkeypatch.setattr("sharpwave.serve.delivery.GONE_S", 0.0)
    with fleet_of(2, tmp_path, monkeypatch) as (there, fleet):
        earlier = there.cluster.writer(1, name="w", shard=1, segment_steps=8, timeout=10)
        log: list[tuple[int, int]] = []
        write(earlier, log, 0, 20, 1, 0)
        earlier.flush()
        fleet.resize(1, drain=False)
        fleet._look()
        assert len(fleet) == 1
        later = there.cluster.writer(1, name="w", segment_steps=8, timeout=10)
        write(later, log, 0, 20, 1, 1)
        later.flush()
        with pytest.raises(ValueError, match="has replaced this one"):
            write(earlier, log, 20, 30, 1, 0)
        write(later, log, 20, 20, 1, 1)
        later.close()


def drained(there: Served, fleet: Fleet) -> tuple[list[RemoteWriter], list[tuple[int, int]]]:
    """Write to two shards and drain the second, until all that it held is due; return the writers, and their log."""
    writers = [there.cluster.writer(1, name=f"w{k}", shard=k, segment_steps=8, timeout=10) for k in range(2)]
    log: list[tuple[int, int]] = []
    for k, writer in enumerate(writers):
        write(writer, log, 0, 25, 1, k)
        writer.flush()
    fleet.resize(1)
    fill_up(writers[0], log, there.stores[0])
    return writers, log


def fill_up(writer: RemoteWriter, log: list[tuple[int, int]], store: sw.Store) -> None:
    """Write until a store has evicted all that it held."""
    until = store.total_steps
    while store.total_steps - len(store) <= until:
        write(writer, log, 0, EPISODE, 1, 0)
        writer.flush()
