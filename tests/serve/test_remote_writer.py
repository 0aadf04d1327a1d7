"""Segments reach a shard once, also where another shard takes the place of their own, or the cluster has fewer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sharpwave as sw
from tests.serve.fleets import fleet_of, held, write
from tests.serve.serving import in_fork, served


def test_a_writer_whose_shard_is_gone_gives_another_all_that_was_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharpwave.serve.remote_writer.GONE_S", 0.0)
    with fleet_of(2, tmp_path) as (there, fleet, processes):
        writer = there.cluster.writer(2, name="w", shard=1, segment_steps=8, timeout=10)
        log: list[tuple[int, int]] = []
        write(writer, log, 0, 29, 2, 0)
        writer.flush()
        taken = writer.delivery.acknowledged
        processes.lose()
        write(writer, log, 29, 40, 2, 0)
        writer.flush()
        assert len(fleet) == 1 and writer.delivery._lease.number == 0
        kept = held(there.stores[0], "all")
        assert kept.keys() >= {number for number, (_, step) in enumerate(log) if 29 <= step < 62}, "steps were lost"
        assert taken + len(there.stores[0]) == writer.delivery.acknowledged, "a step was given twice"
        for lane in range(2):
            steps = sorted((step, log[number][1]) for number, (of, step) in kept.items() if of == lane)
            assert [later for _, later in steps] == sorted(later for _, later in steps)
        writer.close()


def test_a_writer_that_was_idle_goes_on_where_another_shard_is_in_the_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one gives lanes other numbers, as its writers come in another order; and then a third one, too."""
    monkeypatch.setattr("sharpwave.serve.link.RETRY_S", 0.0)
    folders = [tmp_path / name for name in ("old", "new", "newer")]
    for folder in folders:
        folder.mkdir()
    with served(1, folders[0]) as old, served(1, folders[1]) as new, served(1, folders[2]) as newer:
        log: list[tuple[int, int]] = []
        writers = [old.cluster.writer(1, name=f"w{k}", segment_steps=8, timeout=10) for k in range(2)]
        for k, writer in enumerate(writers):
            write(writer, log, 0, 25, 1, k)
            writer.flush()
        for life, there in enumerate((new, newer)):
            begun, first = len(log), 25 + 40 * life
            for writer in writers:
                link = writer.delivery._lease.link
                link.close()
                link.address = there.cluster.links[0].address
            for k in (1, 0) if life == 0 else (0, 1):
                write(writers[k], log, first, 40, 1, k)
                writers[k].flush()
                assert writers[k].delivery.acknowledged > first + 31
            kept = held(there.stores[0], "all")
            for k in range(2):
                steps = [log[number][1] for number in sorted(kept) if log[number][0] == k and number >= begun]
                assert steps and steps == list(range(steps[0], steps[-1] + 1)), "steps were lost"
                assert steps[0] <= first + 5 and steps[-1] >= first + 30
        for writer in writers:
            writer.close()


def test_a_writer_whose_shard_is_gone_does_not_replace_a_later_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharpwave.serve.remote_writer.GONE_S", 0.0)
    with fleet_of(2, tmp_path) as (there, _, processes):
        earlier = there.cluster.writer(1, name="w", shard=1, segment_steps=8, timeout=10)
        log: list[tuple[int, int]] = []
        write(earlier, log, 0, 20, 1, 0)
        earlier.flush()
        processes.lose()
        later = there.cluster.writer(1, name="w", segment_steps=8, timeout=10)
        write(later, log, 0, 20, 1, 1)
        later.flush()
        with pytest.raises(ValueError, match="has replaced this one"):
            write(earlier, log, 20, 30, 1, 0)
        write(later, log, 20, 20, 1, 1)
        later.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_of_the_process_that_started_shards_leaves_them_to_it(tmp_path: Path) -> None:
    with fleet_of(1, tmp_path) as (there, fleet, processes):

        def child() -> None:
            assert processes.left and len(there.cluster) == 0
            for call in (lambda: there.cluster.resize(shards=2), lambda: there.cluster.checkpoint(tmp_path / "no")):
                with pytest.raises(sw.StoreInUseError, match="has started these shards"):
                    call()
            fleet.close()

        assert in_fork(child) == 0
        assert len(there.cluster) == 0 and not (tmp_path / "no").exists()


def test_shards_at_plain_addresses_are_not_resized(tmp_path: Path) -> None:
    with served(1, tmp_path) as there, pytest.raises(ValueError, match="started elsewhere"):
        there.cluster.resize(shards=2)
