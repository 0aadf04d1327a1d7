"""Shared values through writers elsewhere, clusters and actors: shards have each once, learners have all of them."""

from __future__ import annotations

import queue
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.merging import merge
from sharpwave.training.actors.transport import Arrival, Inbox, Outbox
from tests.serve.serving import Kind, served

SPEC = sw.Spec(
    obs=sw.Field((40,), "uint8"),
    action=sw.Field((), "int64"),
    prompt=sw.Field((None,), "int32", shared=True),
    task=sw.Field(str, shared=True),
    image=sw.Field((8, 8, 3), "uint8", shared=True),
)


def values_of(number: int) -> dict[str, Any]:
    """Return the values of step ``number``, of which 16 and 5 and 40 have the same."""
    prompt = np.random.default_rng(number // 16).integers(0, 50_000, 200).astype(np.int32)
    return {
        "prompt": prompt,
        "task": f"task {number // 5}" * 5,
        "image": np.full((8, 8, 3), number // 40 % 256, np.uint8),
    }


def write(writer: Any, lanes: int, steps: int) -> None:
    for number in range(steps):
        given: dict[str, Any] = {name: [value] * lanes for name, value in values_of(number).items()}
        given["image"] = np.stack(given["image"])
        obs, ended = np.full((lanes, 40), number % 256, np.uint8), np.full(lanes, number % 50 == 49)
        writer.extend(
            obs=obs, action=np.full(lanes, number), reward=np.ones(lanes), terminated=ended, truncated=ended & False,
            final_obs=obs, **given,
        )  # fmt: skip


def check(batch: Any) -> None:
    numbers = batch.action.tolist()
    for i, number in enumerate(numbers):
        for name, value in values_of(number).items():
            found = batch[name][i]
            assert found == value if isinstance(value, str) else (found == value).all() and found.dtype == value.dtype


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_clusters_draw_the_values_of_their_stores(kind: Kind, tmp_path: Path) -> None:
    with served(2, tmp_path, kind, spec=SPEC) as there:
        local = sw.Store(SPEC, capacity=1000)
        for shard in range(2):
            writer = there.cluster.writer(lanes=2, shard=shard)
            write(writer, 2, 400)
            writer.close()
        write(local, 2, 400)
        for store in there.stores:
            assert len(store) == 800
            assert {name: one["values"] for name, one in store.stats()["shared"].items()} == {
                "prompt": 25, "task": 80, "image": 10,
            }  # fmt: skip
        replay, own = there.cluster.transitions(), local.transitions(name="own")
        check(replay.sample(64))
        check(next(iter(replay.stream(32, lookahead=1))))
        parts: list[Any] = [(0.5, replay), (0.5, own)]
        check(sw.Blend(parts).sample(32))
        batch = there.cluster.sequences(length=5, burn_in=3, stride=2).sample(32)
        for b, t in zip(*np.nonzero(batch.mask), strict=True):
            for name, value in values_of(int(batch.action[b, t])).items():
                assert np.array_equal(batch[name][b, t], value), name
        assert not batch["image"][~batch.mask].any() and not batch["prompt"].lengths[~batch.mask].any()


def test_a_writer_may_send_more_values_than_a_connection_remembers(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        writer = there.cluster.writer(lanes=1)
        write(writer, 1, 6000)
        writer.close()
        assert there.stores[0].stats()["shared"]["task"]["values"] == 1200
        check(there.cluster.transitions().sample(64))


def test_stores_are_merged_with_their_values(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        with sw.Store(SPEC, capacity=1000, segment_steps=8) as store:
            write(store, 1, 100)
            paths.append(tmp_path / str(number))
            store.checkpoint(paths[-1])
    with sw.Store(SPEC, capacity=2000, segment_steps=8) as whole:
        merge(whole, paths, [{}, {}], None)
        assert len(whole) == 192 and whole.stats()["shared"]["prompt"]["values"] == 6  # open segments stay behind
        replay = whole.transitions()
        check(replay.fetch(replay.sampleable_ids()))


def test_actors_send_values_with_their_segments() -> None:
    ends = socket.socketpair()
    arrived: queue.Queue[Any] = queue.Queue()
    inbox, outbox, store = Inbox(ends[1], arrived, "actor"), Outbox(ends[0]), sw.Store(SPEC, capacity=1000)
    writer = sw.SegmentWriter(SPEC, 1, lambda one: outbox.send(Arrival(one.steps, 0, one)), segment_steps=8)
    write(writer, 1, 300)
    writer.seal()
    ends[0].close()
    while (message := arrived.get(timeout=30)[1]) is not None:
        store.add_segment(message.segment.packed, message.segment.dictionaries)
    inbox.close()
    assert len(store) == 300 and store.stats()["shared"]["prompt"]["values"] == 19
    replay = store.transitions()
    check(replay.fetch(replay.sampleable_ids()))
