"""What is evicted for what comes: decided before anything is committed, and undone where it fails."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.log.admission import Admission, Made
from sharpwave.log.inventory import LogListener
from sharpwave.sampling.retention import Newcomer

SPEC = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))


def filled(steps: int, **settings: Any) -> sw.Store:
    store = sw.Store(SPEC, segment_steps=2, **settings)
    append(store, steps)
    return store


def append(store: sw.Store, steps: int) -> None:
    for _ in range(steps):
        store.append(obs=store.total_steps, action=0, reward=0.0, terminated=False, truncated=False)


def books(store: sw.Store) -> tuple[Any, ...]:
    """All that an append that was refused must leave as it was."""
    log = store._log
    index, used = log.index, slice(0, log.index.highest)
    taken = (index.sealed[used] > 0) & (index.rows[used] > 0)
    return (
        len(store), store.total_steps, log.arena.used_bytes, len(log.retention), log.inventory.sealed_bytes,
        np.flatnonzero(taken).tolist(), log.opened.slots.tolist(), [table.nbytes for table in log.tables],
        log.retention.order()["slots"].tolist(),
    )  # fmt: skip


class Told(LogListener):
    """Remembers evictions, and reads what is evicted."""

    def __init__(self, store: sw.Store) -> None:
        self.store, self.slots = store, list[int]()

    def evicting(self, slot: int) -> None:
        assert self.store._log.index.rows[slot] == 2
        self.slots.append(slot)


def test_listeners_are_told_while_the_segment_can_still_be_read() -> None:
    store = filled(20, capacity=20)
    told = Told(store)
    store._log.inventory.tell(told)
    oldest = store._log.retention.order()["slots"][:2].tolist()
    append(store, 4)
    assert told.slots == oldest and len(store) == 20


def test_a_newcomer_that_the_retention_does_not_keep_evicts_nothing() -> None:
    store = filled(40, capacity=1000, retention=sw.Reservoir(0))
    admission, retention, before = store._log.admission, store._log.retention, books(store)
    assert isinstance(retention, sw.Reservoir)
    highest = max(-key for key, _ in retention._heap)
    worse = next(id_ for id_ in range(10_000, 20_000) if retention.key(id_) > highest)
    assert admission.evict(Newcomer(999, worse)) is Made.NOT_KEPT
    assert books(store) == before and retention.threshold == retention.key(worse)
    assert not retention.admits(worse)
    better = next(id_ for id_ in range(10_000, 20_000) if retention.key(id_) < highest)
    assert admission.evict(Newcomer(999, better)) is Made.ROOM
    assert len(store) == 38


def test_with_nothing_sealed_there_is_nothing_to_evict() -> None:
    store = filled(2, capacity=1000)
    assert store._log.admission.evict() is Made.NOTHING
    assert store._log.admission.evict(Newcomer(5, 1)) is Made.NOTHING


@pytest.mark.parametrize("error", [MemoryError("no"), OSError(errno.EIO, "no")])
@pytest.mark.parametrize("where", ["arena", "commit"])
def test_a_segment_that_cannot_be_sealed_leaves_the_books_as_they_were(
    tmp_path: Path, where: str, error: Exception
) -> None:
    store = filled(20, capacity=1000, disk=tmp_path)
    before = books(store)
    target, name = (Admission, "_allocate") if where == "arena" else (type(store._log.sealed), "enter")
    with mock.patch.object(target, name, side_effect=error), pytest.raises(type(error)):
        append(store, 1)
    assert books(store) == before
    append(store, 3)
    assert len(store) == 23
    replay = store.transitions()
    assert sorted(replay.fetch(replay.sampleable_ids()).obs.tolist()) == list(range(22))
    store.close()


def test_a_segment_that_cannot_be_sealed_keeps_no_dictionary_alive(tmp_path: Path) -> None:
    """After the scene has changed and its segments have left, as in a store where nothing failed."""
    spec = sw.Spec(obs=sw.Field((8, 12), "uint8"), action=sw.Field((), "int64"))
    places = []
    for fails in (False, True):
        store = sw.Store(spec, capacity=24, segment_steps=4, codec="delta", disk=tmp_path / str(fails))
        (table,) = (table for table in store._log.tables if table.references.shape[1] == 96)
        for step in range(200):
            picture = np.arange(96, dtype=np.uint8).reshape(8, 12) * np.uint8(1 if step < 30 else 3)
            picture[step % 7, step % 12] ^= 255
            rest: dict[str, Any] = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}
            if fails and step in (8, 12):
                with mock.patch.object(Admission, "_allocate", side_effect=MemoryError), pytest.raises(MemoryError):
                    store.append(obs=picture, **rest)
            store.append(obs=picture, **rest)
            if step == 29:
                before = set(table._place)
        assert len(before) > 1, "or nothing would be tested"
        places.append(set(table._place))
        store.close()
    assert places[0] == places[1] and not (before - {0}) & places[0]
