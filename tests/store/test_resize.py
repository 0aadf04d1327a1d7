"""Limits that change while a store is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.persistence.play import SPEC, Play


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_limits_change_while_a_learner_goes_on(tmp_path: Path, disk: bool) -> None:
    place: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
    spec = sw.Spec(obs=sw.Field((64, 64), "uint8"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=1000, ram="6MiB", segment_steps=16, codec="raw", **place)
    view = store.transitions(sampler=sw.Prioritized(), max_times_sampled=50)
    stream = view.stream(8, lookahead=2)
    rng = np.random.default_rng(0)

    def go_on(count: int) -> None:
        for _ in range(count):
            k = store.total_steps
            obs = rng.integers(0, 256, (64, 64), dtype=np.uint8)
            obs.reshape(-1)[:2] = k % 256, k // 256
            store.append(obs=obs, action=k, reward=0.0, terminated=False, truncated=False)
        for batch in (view.sample(8), next(stream)):
            found = batch.obs.reshape(8, -1)
            np.testing.assert_array_equal(found[:, 0] + 256 * found[:, 1].astype(int), batch.action)
            view.update_priorities(batch.ids, np.ones(8))

    go_on(2000)
    ids = view.sampleable_ids()
    store.resize(capacity=20_000, ram="64MiB")
    assert set(ids) == set(view.sampleable_ids()) and store.capacity == 20_000 and store.ram == 64 << 20
    go_on(4000)
    assert len(store) > 4600  # with 6 MiB, half of them for batches, there were some 650
    store.resize(ram="8MiB")
    assert store.stats()["total_bytes"] <= 8 << 20
    assert len(store) > 4700 if disk else 500 < len(store) < 2000
    go_on(500)
    store.resize(capacity=300)
    assert 280 <= len(store) <= 300
    go_on(500)
    if disk:
        store.resize(capacity=None, disk_limit="16MiB", ram=None)
        go_on(6000)
        assert store.stats()["disk"]["bytes"] <= 16 << 20 and len(store) > 2000
        store.close()
        with sw.Store.open(tmp_path / "store") as opened:
            assert (opened.capacity, opened.ram, opened.disk_limit) == (None, None, 16 << 20)


def test_limits_that_cannot_be_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=1000, segment_steps=16)
    Play(store).go_on(100)
    view = store.transitions(limiter=sw.MinSize(100))
    for changes, what in (
        ({"capacity": 1}, "capacity=1, expected an integer number of steps from 2"),
        ({"capacity": None}, "without either it would never be full"),
        ({"capacity": 50}, "waits for size=100 steps, the store's capacity is 50"),
        ({"ram": "1MiB"}, "expected at least 4 MiB"),
        ({"disk_limit": "1GiB"}, "a folder as disk="),
        ({"capacity": 5}, "waits for|too small for 3 lanes"),
    ):
        with pytest.raises(ValueError, match=what):
            store.resize(**changes)
    assert store.capacity == 1000 and len(store) == 300 and len(view) == 297


@pytest.mark.parametrize("shape", [(4,), (64, 64)], ids=["numbers", "frames"])
def test_a_full_store_takes_no_more_memory_however_long_it_goes_on(shape: tuple[int, ...]) -> None:
    rng, lanes, steps = np.random.default_rng(0), 4, 64  # blocks, which are quicker than steps
    dtype: Any = np.uint8 if len(shape) > 1 else np.float32
    noise = rng.integers(0, 255, (lanes, steps, *shape)).astype(dtype)
    capacity = 1 << (11 if len(shape) > 1 else 17)
    with sw.Store(sw.Spec(obs=sw.Field(shape, dtype), action=sw.Field((), "int64")), capacity=capacity) as store:
        largest = []
        for _ in range(6):
            for _ in range(capacity // (lanes * steps)):
                block: dict[str, Any] = {"obs": noise, "action": np.zeros((lanes, steps), np.int64)}
                ends = np.zeros((lanes, steps), bool)
                block |= {"reward": np.zeros((lanes, steps), np.float32), "terminated": ends, "truncated": ends}
                store.extend(**{name: np.swapaxes(one, 0, 1) for name, one in block.items()})
            largest.append(store.stats()["total_bytes"])
        assert store.stats()["evicted_steps"] > 4 * capacity
        assert max(largest) < 1.05 * largest[0] + (4 << 20), largest


def test_limits_given_to_open_are_those_of_the_next_life(tmp_path: Path) -> None:
    """A plain opening after one with a raised limit evicted what that limit had let in."""
    sw.Store(SPEC, capacity=256, disk=tmp_path / "store", segment_steps=16).close()
    with sw.Store.open(tmp_path / "store", capacity=2048) as store:
        play = Play(store)
        play.go_on(17 * 30)  # whole episodes
        held = len(store)
    with sw.Store.open(tmp_path / "store") as store:
        assert (store.capacity, len(store)) == (2048, held)
        assert held > 256
