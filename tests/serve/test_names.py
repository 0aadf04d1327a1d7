"""Writers of one name: the later goes on with the lanes of the earlier, whichever shards there are."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import sharpwave as sw
from sharpwave.serve.addresses import Security
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.members import home
from sharpwave.serve.remote_writer import Delivery
from sharpwave.serve.server import Server
from tests.serve.fleets import fleet_of
from tests.serve.serving import SPEC, play, served

NAMES = [f"actor-{number}" for number in range(6)]
HOME = 1_408_797_718


def place(writer: sw.serve.remote_writer.RemoteWriter) -> tuple[int, int]:
    return writer.delivery._lease.number, writer.delivery.first_lane


def test_a_writer_finds_the_shard_that_has_its_name(tmp_path: Path) -> None:
    with served(3, tmp_path) as there:
        earlier = [there.cluster.writer(2, name=name, timeout=5.0) for name in NAMES]
        for writer in earlier:
            play(writer, 2, 20, seed=0)
            writer.flush()
        assert sorted(place(writer)[0] for writer in earlier) == [0, 0, 1, 1, 2, 2]
        before = sum(store.lanes for store in there.stores)
        with sw.Cluster.of(SPEC, [str(one.address) for one in there.servers]) as again:
            again.writer()  # whose turn it is among writers without a name does not matter
            later = [again.writer(2, name=name) for name in reversed(NAMES)][::-1]
            assert [place(writer) for writer in later] == [place(writer) for writer in earlier]
            assert sum(store.lanes for store in there.stores) == before
            for writer in earlier:
                with pytest.raises(ValueError, match="another writer of that name"):
                    play(writer, 2, 100, seed=1)
                    writer.flush()
            with pytest.raises(ValueError, match="has 2 lanes, asked for were 1"):
                again.writer(1, name=NAMES[0])


def test_a_name_does_not_move_with_the_number_of_shards_and_is_found_where_it_went(tmp_path: Path) -> None:
    with fleet_of(2, tmp_path) as (there, _, _):
        cluster = there.cluster
        earlier = {name: cluster.writer(name=name) for name in NAMES}
        apart = cluster.writer(name="apart", shard=1)  # put there by hand
        places = {name: place(writer) for name, writer in earlier.items()}
        cluster.resize(shards=4)
        assert {name: place(cluster.writer(name=name)) for name in NAMES} == places
        assert place(cluster.writer(name="apart")) == place(apart)
        new = {f"new-{number}": place(cluster.writer(name=f"new-{number}")) for number in range(16)}
        assert {number for number, _ in new.values()} == {0, 1, 2, 3}
        assert {name: place(cluster.writer(name=name)) for name in new} == new
        replay = cluster.transitions()
        for shard in range(4):
            play(cluster.writer(2, shard=shard), 2, 60, shard)
        replay.refresh()
        batch = replay.sample(128)
        assert len(set(batch.shards.tolist())) == 4 and replay.update_priorities(batch, [1.0] * 128) == 0
        with pytest.raises(ValueError, match=r"4 run, and a cluster that runs only grows; write a checkpoint"):
            cluster.resize(shards=3)


def test_a_name_waits_for_a_shard_that_is_away_and_others_do_not(tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=2, capacity=100_000, disk=tmp_path / "d") as cluster:
        writers = {name: cluster.writer(name=name, durability="flush") for name in NAMES}
        for writer in writers.values():
            play(writer, 1, 40, seed=0)
            writer.flush()
        places = {name: place(writer) for name, writer in writers.items()}
        assert cluster._processes is not None
        os.kill(cluster._processes.processes[1], signal.SIGKILL)
        assert {name: place(cluster.writer(name=name)) for name in NAMES} == places


def test_a_new_name_goes_past_a_shard_that_stays_away(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        known = place(there.cluster.writer(name="known", shard=0))
        there.servers[1].close()
        assert place(there.cluster.writer(name="known", timeout=3600)) == known  # waits for nobody
        assert {place(there.cluster.writer(name=name, timeout=0.5))[0] for name in NAMES} == {0}


@pytest.mark.parametrize("given", [{"shard": 0}, {"shard": 0, "name": "a"}, {"name": "a"}])
def test_a_writer_waits_for_its_shard_that_is_away(given: dict[str, Any], tmp_path: Path) -> None:
    with served(1, tmp_path, "tcp") as there:
        there.cluster.writer(name="a").close()
        address = there.servers[0].address
        there.servers[0].close()
        with pytest.raises(ShardLostError, match="nothing answers there"):
            there.cluster.writer(timeout=0.3, **given)
        again: list[Server] = []
        back = threading.Timer(0.3, lambda: again.append(Server(there.shards[0], address, Security(b""))))
        back.start()
        there.cluster.writer(timeout=30, **given).close()
        back.join()
        again[0].close()


def test_every_process_takes_a_new_name_to_the_same_shard() -> None:
    """As its home follows from its bytes: crc32("actor-") is `HOME`; Python's own hashes differ by process."""
    assert [home(name, 3) for name in NAMES] == [(HOME + number) % 3 for number in range(6)]
    assert home("actor-", 3) == HOME % 3 and home("a" * 200, 1) == 0


def test_a_shard_that_is_lost_just_after_it_said_that_it_has_the_name_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(2, tmp_path) as there:
        there.cluster.writer(1, name="w", shard=1).close()
        lost = [True, True]

        def delivery(*arguments: Any, **settings: Any) -> Any:
            if lost:
                lost.pop()
                raise ShardLostError("killed")
            return Delivery(*arguments, **settings)

        monkeypatch.setattr("sharpwave.serve.cluster.Delivery", delivery)
        with pytest.raises(ShardLostError, match="killed"):
            there.cluster.writer(1, name="w", timeout=0.0)
        writer = there.cluster.writer(1, name="w", timeout=10)
        assert not lost and writer.delivery._lease.number == 1
        writer.close()
