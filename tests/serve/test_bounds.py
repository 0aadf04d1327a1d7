"""What connections can make a shard hold: bounded, refused by name, and freed when they end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.format.segment import readdressed
from sharpwave.serve import budget as budget_module
from sharpwave.serve import server as client_module
from sharpwave.serve import shard_views, wire
from sharpwave.serve.addresses import Security, connect
from sharpwave.serve.budget import Budget
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.wire import Request
from tests.serve.serving import SPEC, Kind, Served, fill, play, sealed, served
from tests.support.examples import by_day


def eventually(what: object, seconds: float = 20.0) -> None:
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def bounded(folder: Path, limit: int, kind: Kind, monkeypatch: pytest.MonkeyPatch, **store: Any) -> Iterator[Served]:
    monkeypatch.setattr(Budget, "of_store", classmethod(lambda cls, ram, segment_bytes: cls(limit)))
    with served(1, folder, kind, **store) as there:
        yield there


def linked(there: Served) -> Link:
    return Link(there.servers[0].address, Security())


def test_views_are_bounded_and_those_that_nobody_uses_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_views, "MAX_VIEWS", 3)
    with served(1, tmp_path) as there:
        fill(there.stores[0], 1, 40, 0)
        views = there.shards[0].views
        held = [there.cluster.transitions(name=f"view{k}") for k in range(3)]
        other = sw.Cluster.of(SPEC, [str(there.servers[0].address)])
        with pytest.raises(ValueError, match=r"'one more': there are 3 views, of at most 3.*'view1'"):
            other.transitions(name="one more")
        assert len(held[1].sample(8)) == 8
        there.cluster.close()
        eventually(lambda: sum(not one.users for one in views._views.values()) == 3)
        with pytest.raises(ValueError, match=r"an object that lives, or was used within 300 s.*free an object"):
            other.transitions(name="one more")
        again = other.transitions(name="view0")  # in use again
        monkeypatch.setattr(shard_views, "UNUSED_S", 0.0)
        more = other.transitions(name="one more")
        names = {one.name for one in views.replays.values()}
        assert len(names) == 3 and {"view0", "one more"} < names
        assert len(more.sample(8)) == len(again.sample(8)) == 8
        other.close()


@pytest.mark.parametrize("watched", [False, True])
def test_a_learner_that_is_gone_holds_writers_up_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    with served(1, tmp_path) as there:
        watcher = there.cluster.transitions() if watched else None  # without a limiter, by one who goes on
        writer = there.cluster.writer(1, segment_steps=8, timeout=30)
        learner = sw.Cluster.of(SPEC, [str(there.servers[0].address)])
        replay = learner.transitions(limiter=sw.SamplesPerInsert(1.0, 20, 64))
        play(writer, 1, 40, 0)
        writer.flush()
        replay.sample(8)
        done = threading.Event()

        def write() -> None:
            play(writer, 1, 400, 1)
            writer.flush()
            done.set()

        threading.Thread(target=write, daemon=True).start()
        assert not done.wait(0.5), "its limiter holds the writer up"
        learner.close()
        assert not done.wait(0.5), "a learner may come back"
        monkeypatch.setattr(shard_views, "UNUSED_S", 0.5)
        assert done.wait(60)
        back = there.cluster.transitions(limiter=sw.SamplesPerInsert(1.0, 20, 64))
        assert watcher is None or watcher.name == back.name
        assert back._of.cursor.inserts > 300 and back._of.cursor.samples == 8, "its counts are there"


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_a_connection_that_ends_while_its_writer_waits_for_the_learner_is_freed(tmp_path: Path, kind: Kind) -> None:
    with served(1, tmp_path, kind) as there:
        replay = there.cluster.transitions(limiter=sw.SamplesPerInsert(1.0, 20, 64))
        fill(there.stores[0], 1, 40, 0)
        replay.sample(8)
        link, segments = linked(there), sealed(1, 200, 1)
        link.call(Request.LEASE, {"name": "w", "lanes": 1})
        for one in segments:
            head = {"segments": 1, "keys": [f"{key:x}" for key in one.dictionaries]}
            parts = {f"dictionary:{key:x}": data for key, data in one.dictionaries.items()}
            link.submit(Request.PUT, head, parts | {"segment:0": readdressed(one.packed, 1, one.first_step)})
        server, budget = there.servers[0], there.shards[0].budget
        eventually(lambda: budget._writers > 0 and there.stores[0].total_steps > 60)
        time.sleep(0.3)
        assert budget._writers > 0, "it waits"
        link.close()
        eventually(lambda: len(server._connections) == 1 and budget._writers == 0)


def test_layouts_and_shared_blocks_of_a_connection_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_LAYOUTS", 5)
    made: list[client_module.Client] = []
    original = client_module.Client.layout

    def layout(self: client_module.Client, *given: Any) -> object:
        made.append(self)
        return original(self, *given)

    monkeypatch.setattr(client_module.Client, "layout", layout)
    with served(1, tmp_path) as there:
        fill(there.stores[0], 1, 60, 0)
        replay = there.cluster.transitions()
        for size in [*range(1, 30), *range(1, 30)]:
            assert len(replay.sample(size)) == size
        (client,) = {id(one): one for one in made}.values()
        assert len(client.layouts) == 5
        assert {block.arrays[0].size for block in client.blocks.values() if block.arrays} <= set(range(25, 30))
        monkeypatch.setattr(client_module, "MAX_MAPPED_TOGETHER", len(client_module._MAPPED))
        with pytest.raises(MemoryError, match=r"blocks of memory with this process.*fewer learners"):
            for size in range(100, 130):
                replay.sample(size)
        monkeypatch.setattr(client_module, "MAX_MAPPED_TOGETHER", 1000)
        assert len(replay.sample(130)) == 130


def test_names_of_writers_are_bounded(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        for name in ("x" * 201, "", "a\nb"):
            with pytest.raises(ValueError, match="expected 1 to 200 printable characters"):
                there.cluster.writer(1, name=name)
        link = Link(there.servers[0].address, Security())
        with pytest.raises(ValueError, match="expected a name"):
            link.call(Request.VIEW, {"kind": "transitions", "settings": {}, "sampler": {"kind": "Uniform"}})
        link.close()


def test_messages_beyond_the_budget_are_refused_by_name_and_the_connection_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bounded(tmp_path, 1 << 20, "tcp", monkeypatch) as there:
        fill(there.stores[0], 1, 60, 0)
        replay = there.cluster.transitions()
        link = linked(there)
        number = link.call(Request.VIEW, replay._of._asked).head["view"]
        for kind, part in ((Request.DRAW, np.zeros(50_000)), (Request.PUT, bytes(200_000))):
            with pytest.raises(MemoryError, match=r"a message of \d+,000 bytes takes [\d,]+ bytes.*of at most.*ram="):
                link.call(kind, {"view": number}, {"points": part} if kind == Request.DRAW else {"segment:0": part})
        with pytest.raises(MemoryError, match=r"a draw of 5,000 items takes .*smaller batches"):
            link.call(Request.DRAW, {"view": number}, {"points": np.zeros(5_000)})
        assert link.connections == 1 and len(replay.sample(32)) == 32
        held = there.shards[0].budget
        # The memory of the last reply may be freed a moment after it was read.
        eventually(lambda: there.stores[0].stats()["bytes"]["connections"] == held.held_bytes < 1 << 19)
        link.close()


def test_a_request_waits_for_memory_and_those_that_do_not_send_theirs_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bounded(tmp_path, 1 << 20, "tcp", monkeypatch) as there:
        fill(there.stores[0], 1, 60, 0)
        replay = there.cluster.transitions()
        stalled = []
        for _ in range(3):  # they say what is to come, and send nothing
            made, _ = connect(there.servers[0].address, Security())
            made.sendall(wire.HEADER.pack(wire.MAGIC, wire.VERSION, Request.UPDATE, 1, 2, 87_000, 0))
            stalled.append(made)
        budget = there.shards[0].budget
        eventually(lambda: budget._passing > 520_000)
        closing = threading.Timer(0.5, stalled[0].close)
        closing.start()
        assert len(replay.sample(32)) == 32 and closing.finished.is_set()
        monkeypatch.setattr(budget_module, "WAIT_S", 0.2)
        made, _ = connect(there.servers[0].address, Security())
        made.sendall(wire.HEADER.pack(wire.MAGIC, wire.VERSION, Request.UPDATE, 1, 2, 87_000, 0))
        eventually(lambda: budget._passing > 520_000)
        with pytest.raises(
            MemoryError, match=r"found no .* bytes of memory in .*connections hold 52\d,\d\d\d, of at most 524,288"
        ):
            replay.sample(32)
        monkeypatch.setattr(budget_module, "WAIT_S", 30.0)
        monkeypatch.setattr(budget_module, "STALLED_S", 0.1)
        assert len(replay.sample(32)) == 32
        eventually(lambda: budget._passing == 0)
        for one in [made, *stalled]:
            one.close()


def test_segments_that_wait_for_a_learner_leave_room_for_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would wait for memory, and they for it."""
    with bounded(tmp_path, 1 << 16, "unix", monkeypatch) as there:
        replay = there.cluster.transitions(limiter=sw.SamplesPerInsert(1.0, 20, 64))
        writers = [there.cluster.writer(1, segment_steps=8, timeout=60) for _ in range(24)]
        play(writers[0], 1, 40, 0)
        writers[0].flush()
        replay.sample(8)
        writes = [threading.Thread(target=play, args=(one, 1, 64, k)) for k, one in enumerate(writers)]
        for thread in writes:
            thread.start()
        budget = there.shards[0].budget
        eventually(lambda: budget._writers > (1 << 13))
        while there.stores[0].total_steps < 24 * 56 + 32:
            assert budget._writers <= 1 << 14 and budget.held_bytes <= 1 << 16
            with contextlib.suppress(sw.LimiterTimeoutError):
                replay.sample(8, timeout=0.01)
        for thread in writes:
            thread.join(20)
        for writer in writers:
            writer.delivery.close()


def test_what_is_kept_is_bounded_and_whoever_keeps_most_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sw.Spec(obs=sw.Field((16, 16), "uint8"), action=sw.Field((), "int64"))
    with bounded(tmp_path, 1 << 20, "tcp", monkeypatch, spec=spec) as there:
        for obs in np.random.default_rng(0).integers(0, 256, (64, 1, 16, 16), np.uint8):
            there.stores[0].extend(obs=obs, action=[0], reward=[0.0], terminated=[False], truncated=[False])
        replay = there.cluster.transitions()
        links = [linked(there) for _ in range(4)]
        for k, link in enumerate(links):
            for key in range(k + 1):
                link.call(Request.PUT, {"keys": []}, {f"dictionary:{key + 1:x}": bytes(50_000)})
        budget = there.shards[0].budget
        assert budget._kept == 500_000
        assert len(replay.sample(64)) == 64  # its rows need more than is left
        eventually(lambda: budget._kept < 310_000 + (1 << 17))
        with pytest.raises(ShardLostError):
            links[3].call(Request.PUT, {"keys": []}, {"dictionary:9": bytes(1)})
        for link in links[:3]:
            link.call(Request.PUT, {"keys": []})
        with pytest.raises(ShardLostError):  # the one that keeps most does not end others
            for key in range(20, 40):
                links[2].call(Request.PUT, {"keys": []}, {f"dictionary:{key:x}": bytes(50_000)})
        for link in links:
            link.close()
        eventually(lambda: budget._kept <= 1 << 17)
        there.cluster.close()
        eventually(lambda: budget.held_bytes == 0 and not budget._holdings)


def test_the_budget_is_a_part_of_ram() -> None:
    assert Budget.of_store(1 << 32, 1_000).limit_bytes == 1 << 30 == Budget.of_store(None, 1_000).limit_bytes
    assert Budget.of_store(1 << 20, 1 << 20).limit_bytes == 16 << 20, "room for segments of that size"
