"""Memory of batches that shards decode into: the learner's while it holds them, used again, and given up."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve import server as client_module
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.members import Members
from sharpwave.serve.shared_memory import SharedBlocks
from tests.serve.serving import fill, served


def test_a_batch_belongs_to_whoever_holds_a_part_of_it(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 100, number)
        replay = there.cluster.transitions()
        held = []
        for _ in range(30):
            batch = replay.sample(16)
            held.append((batch.obs[3:5], batch.obs[3:5].copy()))
        for view, copy in held:
            np.testing.assert_array_equal(view, copy)
        before = replay._batches.pool.nbytes
        held.clear()
        for _ in range(30):
            replay.sample(16)
        assert replay._batches.pool.nbytes <= before


def test_blocks_that_are_freed_are_unmapped_by_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_MAPPED", 40)
    with served(1, tmp_path) as there:
        fill(there.stores[0], 1, 100, 0)
        replay = there.cluster.transitions()
        for size in range(1, 60):  # each size has blocks of its own
            replay.sample(size)
            replay._batches.pool.trim()
        link = there.cluster.links[0]
        assert link is not None and len(link.shared) < 20


def test_threads_sample_and_update_at_once(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 150, number)
        replay = there.cluster.transitions(sampler=sw.Prioritized())
        wholes = {
            shard.incarnation: store.transitions(name="whole")
            for shard, store in zip(there.shards, there.stores, strict=True)
        }
        failures: list[BaseException] = []

        def learn(seed: int) -> None:
            try:
                rng = np.random.default_rng(seed)
                for batch in replay.stream(24, lookahead=seed % 3):
                    for incarnation, whole in wholes.items():
                        mine = np.flatnonzero(batch.shards == incarnation)
                        if mine.size:
                            expected = whole.fetch(np.asarray(batch.ids)[mine])
                            np.testing.assert_array_equal(batch.obs[mine], expected.obs)
                    assert replay.update_priorities(batch, rng.random(24)) == 0
                    if rng.random() < 0.02:
                        return
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=learn, args=(seed,)) for seed in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(120)
        assert not failures


def test_an_error_of_a_shard_reaches_the_caller_and_the_next_batch_comes(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 100, number)
        replay = there.cluster.transitions()
        view = there.shards[1].views.replays[0]
        original = view.source.draw_into

        def fails(*_: object) -> None:
            raise sw.DamagedError("nothing readable is left")

        view.source.draw_into = fails  # type: ignore[assignment, method-assign]
        with pytest.raises(sw.DamagedError, match="nothing readable"):
            replay.sample(32)
        view.source.draw_into = original  # type: ignore[method-assign]
        assert len(replay.sample(32)) == 32 and replay._of.ahead == 0


def test_shared_memory_cannot_shrink_and_is_closed() -> None:
    members = Members(Security(), addresses=[Address.parse("unix:nowhere")])
    block = SharedBlocks(members).make(10_000)
    link = members.links[0]
    link.shared.add(block.number)
    with pytest.raises(OSError):
        os.ftruncate(block.fd, 100)
    fd, number = block.fd, block.number
    del block
    assert not link.shared and list(link.forgotten) == [number]
    with pytest.raises(OSError):
        os.fstat(fd)
