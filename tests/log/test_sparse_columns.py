"""Fields that keep the values of steps 0, k, 2k, ... of each episode: where their rows lie, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.format.segment_header import sparse_rows
from sharpwave.memory.segment_layout import max_sparse_rows
from sharpwave.native import core as native
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey
from sharpwave.spec import START, TRUNCATED
from tests.support.examples import examples
from tests.support.faults import killed

EVERY = 4
SPEC = sw.Spec(
    obs=sw.Field((8,), "uint8", stack=2),
    action=sw.Field((), "int64"),
    core=sw.Field((2, 3), "float32", every=EVERY),
    serial=sw.Field((), "int64"),
)
NO_STACK = sw.Spec(obs=sw.Field((8,), "uint8"), **{name: SPEC.fields[name] for name in ("action", "core", "serial")})


def flags_of(text: str) -> Any:
    """``a`` a step, ``A`` one that begins an episode."""
    return np.array([START if c == "A" else 0 for c in text], np.uint8)


def locate(memory: Any, flags: int, first: int, count: int, every: int) -> list[int]:
    places, slots = np.empty(count, np.int64), np.zeros(count, np.int64)
    native.locate_sparse(memory, np.array([flags]), np.array([first]), slots, np.arange(count), every, places)
    return places.tolist()


@pytest.mark.parametrize(
    ("text", "first", "every", "rows"),
    [
        ("Aaaaaa", 0, 4, [0, 0, 0, 0, 1, 1]),  # kept: steps 0 and 4
        ("aaaaaa", 2, 4, [0, 0, 1, 1, 1, 1]),  # context, from step 0; then step 4
        ("aaaaaa", 4, 4, [0, 0, 0, 0, 1, 1]),  # step 4 is kept itself: no context
        ("aaAaaaaAA", 3, 3, [0, 0, 1, 1, 1, 2, 2, 3, 4]),
        ("AAA", 0, 100, [0, 1, 2]),
        ("aA", 99, 100, [0, 1]),
    ],
)
def test_the_row_of_each_step(text: str, first: int, every: int, rows: list[int]) -> None:
    flags = flags_of(text)
    memory = np.concatenate([flags, np.full(8, 255, np.uint8)])  # what lies behind is not looked at
    assert locate(memory, 0, first, len(flags), every) == rows
    assert sparse_rows(flags, first, every) == rows[-1] + 1


@settings(max_examples=examples(300), deadline=None)
@given(text=st.text("aaaaaaaaaA", min_size=1, max_size=70), first=st.integers(0, 50), every=st.integers(1, 9))
def test_kernels_do_as_a_loop_does(text: str, first: int, every: int) -> None:
    flags = flags_of(text)
    first = 0 if flags[0] else first
    memory = np.concatenate([np.full(5, 255, np.uint8), flags, np.full(9, 255, np.uint8)])
    kept, number, rows = int(first % every != 0), first, []
    for flag in flags:
        number = 0 if flag & START else number
        kept += number % every == 0
        rows.append(kept - 1)
        number += 1
    assert locate(memory, 5, first, len(flags), every) == rows
    assert sparse_rows(flags, first, every) == kept


def core(serial: int) -> Any:
    return np.full((2, 3), serial, np.float32)


def play(store: Any, count: int, *, lane: int = 0, begin: int = 0, length: int = 11) -> None:
    """Steps whose serial number says which step of its episode each is: the rest of a division by ``length``."""
    for serial in range(begin, begin + count):
        store.extend(
            obs=np.full((1, 8), serial % 256, np.uint8), action=np.array([0]), reward=np.array([1.0]),
            terminated=np.array([serial % length == length - 1]), truncated=np.array([False]), lanes=[lane],
            core=core(serial)[None], serial=np.array([serial]),
        )  # fmt: skip


def assert_kept(store: sw.Store, min_serials: int, length: int = 11) -> None:
    """Every step that can be sampled has the value of the last step of its episode that is kept."""
    view = store.transitions()
    batch = view.fetch(view.sampleable_ids())
    serials = batch["serial"]
    assert len(serials) >= min_serials
    expected = serials - serials % length % EVERY
    np.testing.assert_array_equal(batch["core"], np.broadcast_to(expected[:, None, None], batch["core"].shape))


@pytest.mark.parametrize("spec", [SPEC, NO_STACK], ids=["stack", "no stack"])
@pytest.mark.parametrize("codec", ["auto", "zstd", "raw"])
def test_values_survive_sealing_flushing_and_a_kill(spec: sw.Spec, codec: str, tmp_path: Path) -> None:
    store = sw.Store(spec, capacity=400, disk=tmp_path / "s", segment_steps=6, codec=codec)
    play(store, 97)
    assert_kept(store, 96)
    store.flush()
    killed(store)
    found = check(tmp_path / "s")
    assert not found.damages and found.steps == 97
    assert survey(tmp_path / "s").packed["core"]
    with sw.Store.open(tmp_path / "s") as store:
        assert store.recovery is not None and not store.recovery.damages
        assert_kept(store, 96)
        play(store, 50, begin=99)
        assert_kept(store, 140)


@pytest.mark.parametrize("spec", [SPEC, NO_STACK], ids=["stack", "no stack"])
@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("count", [90, 91, 92, 96, 99])
def test_an_episode_goes_on_behind_a_checkpoint(count: int, disk: bool, spec: sw.Spec, tmp_path: Path) -> None:
    limits: dict[str, Any] = {"disk": tmp_path / "live"} if disk else {}
    store = sw.Store(spec, capacity=400, segment_steps=6, **limits)
    play(store, count)
    store.checkpoint(tmp_path / "c")
    store.close()
    with sw.Store.open(tmp_path / "c") as again:
        assert again.recovery is not None and not again.recovery.damages
        play(again, 60, begin=count)
        assert_kept(again, count + 59)


@pytest.mark.parametrize("count", [3, 4, 6])
def test_a_lane_whose_open_segment_was_evicted_goes_on_behind_a_checkpoint(count: int, tmp_path: Path) -> None:
    """As where many lanes share a small capacity: what the episode's next steps need is all that is left of it."""
    store = sw.Store(NO_STACK, capacity=100, segment_steps=50)
    play(store, count)
    store._log.sealing.abandon(0)
    assert len(store) == 0 and not store._log.opened.ended(0)
    store.checkpoint(tmp_path / "c")
    again = sw.Store.open(tmp_path / "c")
    assert again.recovery is not None and not again.recovery.damages
    for one in (store, again):
        play(one, 6, begin=count)
        assert_kept(one, 5)


@pytest.mark.parametrize("spec", [SPEC, NO_STACK], ids=["stack", "no stack"])
def test_segments_from_elsewhere(spec: sw.Spec, tmp_path: Path) -> None:
    made: list[sw.SealedSegment] = []
    writer = sw.SegmentWriter(spec, 1, made.append, segment_steps=5)
    play(writer, 120)
    with sw.Store(spec, capacity=400, disk=tmp_path / "s", segment_steps=6) as store:
        for one in made:
            store.add_segment(one.packed, one.dictionaries)
        assert_kept(store, 110)
    lost = sw.Store(spec, capacity=400, segment_steps=6)
    for number, one in enumerate(made):
        if number % 4:
            lost.add_segment(one.packed, one.dictionaries)
    assert_kept(lost, 80)


def test_ends_and_breaks_of_episodes_begin_to_count_anew() -> None:
    store = sw.Store(SPEC, capacity=400, segment_steps=5)
    expected: list[int] = []
    serial = 0

    def append(count: int, **more: Any) -> None:
        nonlocal serial
        for _ in range(count):
            step = {"obs": np.full(8, serial, np.uint8), "action": 0, "reward": 0, "core": core(serial)}
            store.append(**step, serial=serial, terminated=False, truncated=False, **more)
            serial += 1

    append(7)
    store.end_episode(0, np.zeros(8, np.uint8))
    expected += [0, 0, 0, 0, 4, 4, 4]
    append(6)  # serials 7 to 12, of which the last is dropped: what came after it is not known
    store.break_episode(0)
    expected += [7, 7, 7, 7, 11]
    append(6, next_obs=np.full(8, 99, np.uint8))  # each begins an episode: the one before promised something else
    expected += [13, 14, 15, 16, 17]
    view = store.transitions()
    batch = view.fetch(view.sampleable_ids())
    order = np.argsort(batch["serial"])
    assert batch["core"][order, 0, 0].tolist() == expected


def test_short_episodes_end_segments_before_a_sparse_column_is_full() -> None:
    store = sw.Store(SPEC, capacity=4000, segment_steps=64)
    play(store, 1000, length=1)
    assert_kept(store, 1000, length=1)
    assert store._log.index.sparse.max() <= max_sparse_rows(64, EVERY) < 64


def test_memory_and_bytes_follow_what_is_kept() -> None:
    dense = sw.Spec(
        **{name: SPEC.fields[name] for name in ("obs", "action", "serial")}, core=sw.Field((512,), "float32")
    )
    sparse = sw.Spec(
        **{name: SPEC.fields[name] for name in ("obs", "action", "serial")}, core=sw.Field((512,), "float32", every=40)
    )
    taken = []
    for spec in (dense, sparse):
        store = sw.Store(spec, capacity=10_000, codec="raw")
        for serial in range(2000):
            store.append(
                obs=np.zeros(8, np.uint8), action=0, reward=0, core=np.full(512, serial, np.float32), serial=serial,
                terminated=serial % 500 == 499, truncated=False,
            )  # fmt: skip
        taken.append(store.stats()["encoded_bytes_per_step"])
    assert sparse.step_bytes == dense.step_bytes - 2048 + 52 and sparse.max_step_bytes == dense.step_bytes
    assert taken[1] < taken[0] / 10


def test_every_is_refused_where_each_step_is_needed() -> None:
    field = sw.Field((), "int64")
    with pytest.raises(ValueError, match="every=4 and stack=2"):
        sw.Field((8,), "uint8", stack=2, every=4)
    for every in (0, -1, 1 << 21, 2.0):
        with pytest.raises(ValueError, match="must be None or an integer from 1"):
            sw.Field((8,), "uint8", every=every)  # type: ignore[arg-type]
    sparse = sw.Field((), "int64", every=4)
    for fields in (
        {"obs": sparse, "action": field},
        {"obs": field, "action": sparse},
        {"obs": {"a": sparse}, "action": field},
    ):
        with pytest.raises(ValueError, match="only fields beside obs and action may be sparse"):
            sw.Spec(**fields)
    assert sw.Field((), "int64", every=1).every == 1, "a batch of sequences has one value a window of it"


def test_a_truncated_flag_does_not_move_rows() -> None:
    """Opening may truncate a segment's last step in memory: rows follow from where episodes begin alone."""
    flags = flags_of("aaaAaa")
    truncated = flags.copy()
    truncated[-1] |= TRUNCATED
    assert sparse_rows(flags, 3, 4) == sparse_rows(truncated, 3, 4)
