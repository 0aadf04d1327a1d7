"""Streams: the same batches as without, drawn ahead, and read before they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw


def filled(**settings: Any) -> sw.Store:
    spec = sw.Spec(obs=sw.Field((20, 20), "uint8", stack=2), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=5000, segment_steps=16, codec="raw", seed=3, **settings)
    for k in range(4000):
        picture = np.full((20, 20), k % 256, np.uint8)
        picture[0, :2] = k // 256, k % 256
        store.append(lane=0, obs=picture, action=k, reward=0.0, terminated=False, truncated=False)
    return store


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in ("obs", "next_obs", "action", "ids", "weights"))


@pytest.mark.parametrize("disk", [False, True])
def test_the_batches_are_those_that_sample_would_give(tmp_path: Path, disk: bool) -> None:
    sampled = filled().transitions(seed=1)
    stream = filled(**({"disk": tmp_path, "ram": "4MiB"} if disk else {})).transitions(seed=1).stream(32, lookahead=3)
    for _ in range(20):
        assert same(next(stream), sampled.sample(32))


def test_what_a_stream_needs_is_read_ahead(tmp_path: Path) -> None:
    store = filled(disk=tmp_path, ram="4MiB")
    residency = store._log.residency
    assert residency is not None
    while residency.cool():
        pass
    stream = store.transitions(seed=1).stream(8, lookahead=4)
    next(stream)
    before = store.stats()["disk"]["misses"]
    drawn = {slot for _, _, slots in stream._drawn for slot in slots.tolist()}
    assert all(store._log.index.resident[slot] or residency._state[slot] for slot in drawn)
    next(stream)
    assert store.stats()["disk"]["misses"] - before <= 8, "one batch is read for each that is handed out"
    stream.close()
    assert not residency._pins.any()


def test_a_prioritized_stream_has_the_weights_of_the_draw() -> None:
    replay = filled().transitions(sampler=sw.Prioritized(alpha=1.0, beta=1.0), seed=1)
    stream = replay.stream(16, lookahead=2)
    first = next(stream).copy()
    replay.update_priorities(first.ids, np.full(16, 1e6))  # would make these 16 nearly certain
    second, third, fourth = next(stream).copy(), next(stream).copy(), next(stream).copy()
    for late in (second, third):
        np.testing.assert_allclose(late.probabilities, first.probabilities)
        np.testing.assert_array_equal(late.weights, 1)
    assert set(fourth.ids) <= set(first.ids)


def test_bad_arguments_are_named() -> None:
    replay = filled().transitions()
    with pytest.raises(ValueError, match="lookahead=-1"):
        replay.stream(8, lookahead=-1)
    with pytest.raises(ValueError, match="batch_size=0"):
        replay.stream(0)
    with pytest.raises(ValueError, match="beta=2"):
        replay.stream(8, beta=2)
