"""Lanes without memory for an open segment: those that are fed with segments, until a step is appended to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from tests.support.audit import audit
from tests.support.examples import examples

ATARI = sw.Spec(obs=sw.Field((84, 84), "uint8", stack=4), action=sw.Field((), "int64"))
SMALL = sw.Spec(obs=sw.Field((3,), "float32", stack=2), action=sw.Field((), "int64"))


def segments(spec: sw.Spec, lane: int, steps: int, first: int = 0) -> list[sw.SealedSegment]:
    """Segments of a lane, of one episode whose last step terminated it; an action is the step's number in the lane."""
    sealed: list[sw.SealedSegment] = []
    writer = sw.SegmentWriter(spec, 1, sealed.append, first_lane=lane, first_steps=[first], segment_steps=4)
    for step in range(first, first + steps + 1):
        one_step(writer.extend, spec, [0], step, ends=step >= first + steps - 1)
    return sealed


def one_step(extend: Any, spec: sw.Spec, lanes: list[int], step: int, ends: bool = False) -> None:
    obs = np.full((len(lanes), *spec.fields["obs"].shape), step % 200, spec.fields["obs"].np_dtype)
    no = np.zeros(len(lanes), bool)
    extend(lanes=lanes, obs=obs, action=no + step, reward=np.zeros(len(lanes)), terminated=no | ends, truncated=no)


def feed(store: sw.Store, lane: int, steps: int, first: int = 0) -> None:
    for one in segments(store.spec, lane, steps, first):
        store.add_segment(one.packed, one.dictionaries)


def test_hundreds_of_lanes_that_are_fed_take_no_more_than_eight() -> None:
    sealed = segments(ATARI, 0, 4)[0]
    held = []
    for lanes in (8, 300):
        store = sw.Store(ATARI, ram="64MiB")
        for lane in range(lanes):
            feed(store, lane, 4)
        taken = store.stats()["bytes"]
        held.append(sum(taken.values()) - taken["arena_used"] - taken["index"])
        assert taken["open_segments"] == 0 and len(store) + store.stats()["evicted_steps"] == 4 * lanes
        assert len(store) > 2 * lanes
        assert taken["arena_used"] < 2 * lanes * len(sealed.packed)
        assert store._log.segment_bytes > 26 << 20
        audit(store, [])
    assert held[1] < held[0] + (1 << 20)


def test_the_first_step_that_is_appended_takes_the_memory() -> None:
    store = sw.Store(ATARI, ram="64MiB")
    for lane in range(100):
        feed(store, lane, 4)
    one = store._log.layout.open_bytes
    for lanes, staged in (([17], 1), ([3, 17, 99], 3), ([101], 4)):
        one_step(store.extend, ATARI, lanes, 50)
        assert store.stats()["bytes"]["open_segments"] == staged * one
        audit(store, [])
    assert store.lanes == 102
    batch = store.transitions().sample(64)
    assert set(batch.action.tolist()) <= {0, 1, 2, 3, 50}


def test_lanes_for_which_memory_is_too_small_are_refused_and_nothing_changes() -> None:
    store = sw.Store(ATARI, ram="64MiB")
    for lane in range(300):
        feed(store, lane, 4)
    with pytest.raises(MemoryError, match=r"300 lanes need .* bytes for open segments, ram leaves"):
        one_step(store.extend, ATARI, list(range(300)), 50)
    assert store.stats()["bytes"]["open_segments"] == 0 and store.lanes == 300 and len(store) == 1200
    with pytest.raises(MemoryError, match="400 lanes"):
        one_step(store.extend, ATARI, list(range(300, 700)), 50)
    assert store.lanes == 300
    audit(store, [])


def test_memory_for_a_lane_evicts_only_when_it_is_needed() -> None:
    store = sw.Store(ATARI, ram="24MiB")
    lane = 0
    while store.stats()["evicted_steps"] == 0:
        feed(store, lane, 4)
        lane += 1
    evicted = store.stats()["evicted_steps"]
    one_step(store.extend, ATARI, [0], 50)
    assert store.stats()["evicted_steps"] > evicted
    audit(store, [])


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_restored_lane_has_memory_where_it_had(tmp_path: Path, on_disk: bool) -> None:
    options: dict[str, Any] = {"capacity": 2000, "disk": tmp_path / "d"} if on_disk else {"capacity": 2000}
    with sw.Store(SMALL, **options) as store:
        for lane in range(6):
            feed(store, lane, 4)
        one_step(store.extend, SMALL, [2], 50)
        one_step(store.extend, SMALL, [4], 50, ends=True)
        store.checkpoint(tmp_path / "c")
    with sw.Store.open(tmp_path / "c", disk=tmp_path / "e" if on_disk else None) as again:
        assert (again._log.opened.staging >= 0).tolist() == [False, False, True, False, True, False]
        audit(again, [])
        one_step(again.extend, SMALL, [0, 2], 51)
        assert len(again) == 28
        audit(again, [])
    if on_disk:
        with sw.Store.open(tmp_path / "d") as crashed:
            assert crashed._log.space.staged == 0 and crashed.lanes == 6
            one_step(crashed.extend, SMALL, [1, 5], 60)
            assert crashed._log.space.staged == 2
            audit(crashed, [])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["feed", "step", "steps", "end", "clear", "grow"]), st.integers(0, 7)), max_size=25
    ),
    st.booleans(),
)
def test_a_store_of_fed_and_appended_lanes_is_whole(plan: list[tuple[str, int]], bounded: bool) -> None:
    """Every lane's steps are sampled in the order in which they came, whichever way each came."""
    store = sw.Store(SMALL, capacity=80 if bounded else 4000, segment_steps=4)
    view = store.transitions()
    own: set[int] = set()
    for k, (what, lane) in enumerate(plan):
        steps = store.lane_steps
        first = int(steps[lane]) if lane < store.lanes else 0
        if what == "feed" and lane not in own:
            feed(store, lane, 8, first)
        elif what == "step":
            own.add(lane)
            store.append(
                lane=lane, obs=np.full(3, k, np.float32), action=first, reward=0.0, terminated=k % 3 == 0,
                truncated=False,
            )  # fmt: skip
        elif what == "steps":
            lanes = list(range(lane, 8, 3))
            own.update(lanes)
            numbers = [int(steps[one]) if one < store.lanes else 0 for one in lanes]
            store.extend(
                lanes=lanes, obs=np.full((len(lanes), 3), k, np.float32), action=numbers, reward=np.zeros(len(lanes)),
                terminated=np.zeros(len(lanes), bool), truncated=np.zeros(len(lanes), bool),
            )  # fmt: skip
        elif what == "end":
            store.break_episode(lane)
        elif what == "clear":
            store.clear()
        elif what == "grow" and bounded:
            store.resize(capacity=(store.capacity or 0) + 1000)
        audit(store, [view])
        assert store._log.space.staged <= len(own)
    if len(view):
        batch = view.sample(32)
        steps = np.asarray(batch.step)
        assert (np.asarray(batch.action) == steps).all()
