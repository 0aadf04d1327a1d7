"""Windows worked out by hand, in the tiny language of ``tests/support/oracle.py``: the store's and the oracle's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.support.examples import by_day
from tests.support.oracle import FRAME_SHAPE, Oracle, Stacking, frame, letters_of, play, play_all
from tests.support.sequence_oracle import (
    SequenceOracle,
    Settings,
    assert_same_sequences,
    serials_of,
)
from tests.views.windows import W, check, spec_of, store_of, windows_of


def test_the_first_windows_of_an_episode_are_padded_at_the_left() -> None:
    expected = {
        "a": W("000abc", "---^=", [0, 0, 0, 1, 2], [0, 0, 0, 0.5, 0.5], [0, 1, 2, 4, 5]),
        "c": W("0abcde", "-^===", [0, 1, 2, 3, 4], [0, 0.5, 0.5, 0.5, 0.5], [0, 2, 3, 4, 5]),
        "e": W("bcdeff", "=====", [2, 3, 4, 5, 6], [0.5, 0.5, 0.5, 0.5, 0], [1, 2, 3, 4, 5]),
    }
    check("abcdef.", Settings(length=2, burn_in=3), expected)


def test_an_episodes_last_window_is_short() -> None:
    expected = {
        "a": W("abc", "^=", [1, 2], [0.5, 0.5], [1, 2]),
        "c": W("cF0", "=-", [3, 0], [0.5, 0], [1, 1]),
    }
    check("abc|F", Settings(length=2), expected)
    expected = {
        "a": W("00abc", "--^=", [0, 0, 1, 2], [0, 0, 0.5, 0.5], [0, 1, 3, 4]),
        "c": W("abcF0", "^==-", [1, 2, 3, 0], [0.5, 0.5, 0.5, 0], [1, 2, 3, 3]),
    }
    check("abc/F", Settings(length=2, burn_in=2), expected)


def test_episodes_of_one_step() -> None:
    expected = {
        "a": W("0aB00", "-^--", [0, 1, 0, 0], [0, 0, 0, 0], [0, 2, 2, 3]),
        "c": W("0cD00", "-^--", [0, 2, 0, 0], [0, 0.5, 0, 0], [0, 2, 2, 3]),
        "e": W("0ee00", "-^--", [0, 3, 0, 0], [0, 0, 0, 0], [0, 2, 2, 3]),
    }
    check("a.B c|D e. f", Settings(length=3, burn_in=1), expected)


def test_returns_reach_beyond_the_last_trained_step() -> None:
    """1 + 2/2, 2 + 3/2; 3 + 4/2, 4 + 5/2. The window of e waits for g and h."""
    expected = {
        "a": W("abcd", "^=", [2, 3.5], [0.25, 0.25], [2, 3]),
        "c": W("cdef", "==", [5, 6.5], [0.25, 0.25], [2, 3]),
    }
    check("abcdefg", Settings(length=2, n_step=2), expected)
    with store_of() as store:
        replay = store.sequences(2, n_step=2, gamma=0.5)
        assert [len(replay) for _ in play(store, "abcdefgh")] == [0, 0, 0, 1, 1, 2, 2, 3]


def test_returns_are_cut_at_a_truncation_and_bootstrap_from_the_final_observation() -> None:
    """1 + 2/2, 2 + 3/2, 3; d's episode is another."""
    settings = Settings(length=3, n_step=2)
    check("abc|F d", settings, {"a": W("abcF0", "^==", [2, 3.5, 3], [0.25, 0.25, 0.5], [2, 3, 3])})
    check("abc.F d", settings, {"a": W("abcF0", "^==", [2, 3.5, 3], [0.25, 0, 0], [2, 3, 3])})
    check("abc!F d", settings, {"a": W("abcF0", "^==", [2, 3.5, 3], [0.25, 0, 0], [2, 3, 3])})


def test_an_end_beyond_the_trained_steps() -> None:
    """1 + 2/2 + 3/4, 2 + 3/2, 3: c is the end. The first window trains a and bootstraps from F, three columns on."""
    expected = {
        "a": W("abcF", "^", [2.75], [0.125], [3]),
        "b": W("bcF0", "=", [3.5], [0.25], [2]),
        "c": W("cF00", "=", [3], [0.5], [1]),
    }
    check("abc|F", Settings(length=1, n_step=3), expected)


def test_returns_of_burn_in_columns_reach_into_the_trained_ones() -> None:
    """1 + 2/2 + 3/4, 2 + 3/2 + 4/4, 3 + 4/2 + 5/4, 4 + 5/2 + 6/4."""
    expected = {
        "a": W("00abcde", "--^=", [0, 0, 2.75, 4.5], [0, 0, 0.125, 0.125], [0, 1, 5, 6]),
        "c": W("abcdefg", "^===", [2.75, 4.5, 6.25, 8], [0.125] * 4, [3, 4, 5, 6]),
    }
    check("abcdefg", Settings(length=2, burn_in=2, n_step=3), expected)


def test_windows_overlap_where_the_stride_is_smaller() -> None:
    expected = {
        "a": W("abcd", "^==", [1, 2, 3], [0.5, 0.5, 0.5], [1, 2, 3]),
        "c": W("cdef", "===", [3, 4, 5], [0.5, 0.5, 0.5], [1, 2, 3]),
    }
    check("abcdefg", Settings(length=3, stride=2), expected)  # the window of e waits for h
    expected |= {
        "e": W("efgg", "===", [5, 6, 7], [0.5, 0.5, 0], [1, 2, 3]),
        "g": W("gg00", "=--", [7, 0, 0], [0, 0, 0], [1, 1, 2]),
    }
    check("abcdefg.", Settings(length=3, stride=2), expected)


def test_a_window_that_ends_with_the_episode_is_there_at_once() -> None:
    with store_of() as store:
        replay = store.sequences(2, burn_in=1, n_step=3)
        assert [len(replay) for _ in play(store, "abcd. ef|G h.")] == [0, 0, 0, 2, 2, 3, 4]
    with store_of() as store:
        replay = store.sequences(2)
        play_all(store, "ab")
        assert len(replay) == 0
        store.end_episode(0, frame("F"))
        assert windows_of(replay)["a"].obs == "abF"


def test_an_episode_that_is_broken_off_bootstraps_from_what_was_seen_last() -> None:
    with store_of() as store:
        replay = store.sequences(3, gamma=0.5)
        play_all(store, "abc")
        store.break_episode(0)
        play_all(store, "def.")
        assert windows_of(replay) == {
            "a": W("abc0", "^=-", [1, 2, 0], [0.5, 0.5, 0], [1, 2, 2]),
            "d": W("deff", "^==", [1, 2, 3], [0.5, 0.5, 0], [1, 2, 3]),
        }


@pytest.mark.parametrize(("pad", "first"), [("repeat", "aa"), ("zeros", "0a")])
def test_stacks(pad: Any, first: str) -> None:
    """Each column has its own; columns that are nothing are zeros whatever the pad is."""
    with store_of(spec_of(2, pad)) as store:
        play_all(store, "abc|F de")
        replay = store.sequences(2, burn_in=1)
        batch = replay.fetch(replay.sampleable_ids())
        assert batch.obs.shape == (2, 4, 2, *FRAME_SHAPE)
        found = {tuple(letters_of(stack) for stack in row) for row in batch.obs}
        assert found == {("00", first, "ab", "bc"), ("ab", "bc", "cF", "00")}


def test_a_stack_of_one_keeps_its_axis() -> None:
    for stack, shape in ((1, (1, 3, 1, *FRAME_SHAPE)), (None, (1, 3, *FRAME_SHAPE))):
        with store_of(spec_of(stack)) as store:
            play_all(store, "abc")
            assert store.sequences(2).sample(1).obs.shape == shape


def count_store(every: int, **settings: Any) -> tuple[sw.Store, Callable[..., None]]:
    """Steps whose dense and sparse values are their numbers from 1 on, and what appends some."""
    store = store_of(spec_of(core=sw.Field((2,), "float32", every=every)), **settings)

    def append(count: int, end: bool = False) -> None:
        for k in range(count):
            number = store.total_steps + 1
            store.append(
                obs=frame("a"), action=number, reward=number, terminated=end and k == count - 1, truncated=False,
                serial=number, core=[number, -number],
            )  # fmt: skip

    return store, append


@pytest.mark.parametrize("segment_steps", [1, 2, 3, 5, 64])
@pytest.mark.parametrize(
    ("length", "burn_in", "expected"),
    [
        (2, 0, {1: 1, 3: 1, 5: 4, 7: 7, 9: 7}),  # steps 0, 2, 4, 6, 8; kept are 0, 3, 6
        (2, 1, {1: 1, 3: 1, 5: 4, 7: 4, 9: 7}),  # first real steps 0, 1, 3, 5, 7
        (3, 0, {1: 1, 4: 4, 7: 7}),
        (3, 3, {1: 1, 4: 1, 7: 4}),
        (4, 2, {1: 1, 5: 1, 9: 7}),  # first real steps 0, 2, 6
    ],
)
def test_a_sparse_fields_value_is_that_of_the_first_real_step(
    length: int, burn_in: int, expected: dict[int, int], segment_steps: int
) -> None:
    store, append = count_store(3, segment_steps=segment_steps)
    append(9, True)
    replay = store.sequences(length, burn_in=burn_in)
    batch = replay.fetch(replay.sampleable_ids())
    assert batch["core"].shape == (len(expected), 2) and batch["core"].dtype == np.float32
    assert dict(zip(serials_of(batch, burn_in), batch["core"][:, 0].tolist(), strict=True)) == expected
    np.testing.assert_array_equal(batch["core"][:, 1], -batch["core"][:, 0])


def test_a_sparse_value_of_the_second_episode_is_its_own() -> None:
    store, append = count_store(4)
    append(6, True)
    append(6, True)
    replay = store.sequences(3, burn_in=1)
    batch = replay.fetch(replay.sampleable_ids())
    found = dict(zip(serials_of(batch, 1), batch["core"][:, 0].tolist(), strict=True))
    assert found == {1: 1, 4: 1, 7: 7, 10: 7}  # first real steps 0 and 2 of each


def test_a_sparse_field_of_every_step_is_the_first_real_steps_own() -> None:
    store, append = count_store(1)
    append(5, True)
    replay = store.sequences(2, burn_in=1)
    batch = replay.fetch(replay.sampleable_ids())
    assert dict(zip(serials_of(batch, 1), batch["core"][:, 0].tolist(), strict=True)) == {1: 1, 3: 2, 5: 4}


def test_fields_are_zero_where_there_is_no_step() -> None:
    store, append = count_store(100)
    append(3, True)
    replay = store.sequences(2, burn_in=1)
    batch = replay.fetch(replay.sampleable_ids())
    rows = dict(zip(serials_of(batch, 1), range(2), strict=True))
    for name in ("action", "serial"):
        assert batch[name].dtype == np.int64
        assert batch[name][rows[1]].tolist() == [0, 1, 2]
        assert batch[name][rows[3]].tolist() == [2, 3, 0]
    assert batch.step_reward.dtype == batch.reward.dtype == batch.discount.dtype == np.float32
    assert batch.bootstrap.dtype == np.int64 and batch.mask.dtype == batch.first.dtype == np.bool_
    assert batch.step_reward[rows[3]].tolist() == [2, 3, 0]


# eviction


def test_a_window_is_gone_with_its_burn_in() -> None:
    """Segments of 2, room for 8: with the ninth step the oldest two go, of which the window of e needs none."""
    with store_of(capacity=8, segment_steps=2) as store:
        replay = store.sequences(2, burn_in=2, gamma=0.5)
        play_all(store, "abcdefgh")
        assert set(windows_of(replay)) == {"a", "c", "e"}  # g waits for i
        stale = {letters_of(replay.fetch([one]).obs[0][2][None]): one for one in replay.sampleable_ids()}
        play_all(store, "i")
        assert len(store) == 7
        assert set(windows_of(replay)) == {"e", "g"}  # c's burn-in was a and b
        for letter in "ac":
            with pytest.raises(KeyError, match=str(stale[letter])):
                replay.fetch([stale[letter]])
        assert replay.update_priorities([stale["a"], stale["e"], stale["c"]], np.ones((3, 2))) == 2
        assert set(windows_of(replay)) == {"e", "g"}


@pytest.mark.parametrize("segment_steps", [1, 2, 3, 5])
@pytest.mark.parametrize("capacity", [*by_day(6, 7, 8, 10, 11), 9, 13])
@pytest.mark.parametrize("stack", [pytest.param(None, marks=pytest.mark.nightly), 3])
def test_every_position_of_the_cursor(capacity: int, segment_steps: int, stack: int | None) -> None:
    """Episodes of 1 to 7 steps pass through a small store; every view has what the oracle has after each step."""
    text = "abcdefg. h. ij|K lmn.O pqrst/U vwxyza bcdefghij"
    oracle = Oracle(Stacking(stack))
    asked = [Settings(1), Settings(2, 1, n_step=2), Settings(3, 2, 1), Settings(3, 5, 2, 3), Settings(4, 0, 4, 2)]
    with store_of(spec_of(stack), capacity=capacity, segment_steps=segment_steps) as store:
        probe = store.transitions(gamma=0.5)
        views = [(store.sequences(**one.asked(), name=str(one)), SequenceOracle(oracle, one)) for one in asked]
        known: list[dict[int, int]] = [{} for _ in views]
        for _ in play(store, text, oracle=oracle):
            held = set(probe.fetch(probe.sampleable_ids())["serial"].tolist())
            for (view, plain), ids in zip(views, known, strict=True):
                ids |= (found := assert_same_sequences(view, plain, held))
                assert ids == ids | found and len(set(ids.values())) == len(ids)
        assert all(ids for ids in known)
