"""Windows worked out by hand, in the tiny language of ``tests/support/oracle.py``: the store's and the oracle's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import sharpwave as sw
from tests.support.oracle import FRAME_SHAPE, Oracle, Stacking, frame, letters_of, play, play_all
from tests.support.sequence_oracle import (
    SequenceOracle,
    Settings,
    Window,
    assert_same_sequences,
    serials_of,
)


class W(NamedTuple):
    """A window at gamma = 1/2: frames along the columns (``0``: zeros), and what each column is (``^`` an episode's
    first step, ``=`` another step, ``-`` none)."""

    obs: str
    columns: str
    reward: list[float]
    discount: list[float]
    bootstrap: list[int]


def spec_of(stack: int | None = None, pad: Any = "repeat", **more: sw.Field) -> sw.Spec:
    obs = sw.Field(FRAME_SHAPE, "uint8", stack=stack, pad=pad)
    return sw.Spec(obs=obs, action=sw.Field((), "int64"), serial=sw.Field((), "int64"), **more)


def store_of(spec: sw.Spec | None = None, **settings: Any) -> sw.Store:
    return sw.Store(spec or spec_of(), **{"capacity": 1000, "segment_steps": 3, "seed": 0} | settings)


def told(arrays: Any, obs: Any) -> W:
    marks = zip(arrays["mask"].tolist(), arrays["first"].tolist(), strict=True)
    return W(
        letters_of(obs),
        "".join("^" if first else "=" if real else "-" for real, first in marks),
        arrays["reward"].tolist(),
        arrays["discount"].tolist(),
        arrays["bootstrap"].tolist(),
    )


def windows_of(replay: Any) -> dict[str, W]:
    """What a view says of all its windows, by the letter of the first trained step."""
    ids = replay.sampleable_ids()
    if not len(ids):
        return {}
    batch = replay.fetch(ids)
    names = ("mask", "first", "reward", "discount", "bootstrap")
    rows = [({name: batch[name][row] for name in names}, batch.obs[row]) for row in range(len(ids))]
    return {letters_of(obs[batch.burn_in][None]): told(arrays, obs) for arrays, obs in rows}


def oracle_windows_of(oracle: SequenceOracle) -> dict[str, W]:
    found: list[Window] = [oracle.window(*one) for one in oracle.sampleable().items()]
    first = oracle.settings.burn_in
    return {letters_of(window.obs[first][None]): told(window.arrays, window.obs) for window in found}


def check(text: str, settings: Settings, expected: dict[str, W]) -> None:
    """The windows are those expected: as the oracle says, and as the store does whatever its segments' size."""
    oracle = Oracle(Stacking())
    with store_of() as store:
        play_all(store, text, oracle=oracle)
    assert oracle_windows_of(SequenceOracle(oracle, settings)) == expected
    for segment_steps in (1, 2, 3, 5, 64):
        with store_of(segment_steps=segment_steps) as store:
            early = store.sequences(**settings.asked(), name="early")
            play_all(store, text)
            assert windows_of(early) == expected
            late = store.sequences(**settings.asked(), name="late")
            assert windows_of(late) == expected
            assert_same_sequences(late, SequenceOracle(oracle, settings))


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
@pytest.mark.parametrize("capacity", [6, 7, 8, 9, 10, 11, 13])
@pytest.mark.parametrize("stack", [None, 3])
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


# priorities, uses, order


def test_a_windows_priority_is_of_its_real_trained_steps() -> None:
    """3/4 max + 1/4 mean: of 3 and 1 that is 2.75; the second window trains one step, the junk is not counted."""
    with store_of() as store:
        play_all(store, "abc.")
        replay = store.sequences(2, burn_in=2, eta=0.75, sampler=sw.Prioritized(alpha=1.0, beta=1.0, eps=0.25))
        ids = replay.sampleable_ids()
        serials = serials_of(replay.fetch(ids), 2)
        errors = {0: [3, -1], 2: [-2, 100]}
        assert replay.update_priorities(ids, [errors[serial] for serial in serials]) == 0
        batch = replay.sample(32)
        expected = {0: 3 / 5.25, 2: 2.25 / 5.25}
        np.testing.assert_allclose(batch.probabilities, [expected[s] for s in serials_of(batch, 2)], rtol=1e-6)
        play_all(store, "de.")  # as much as the largest so far
        batch = replay.sample(32)
        expected = {0: 3 / 8.25, 2: 2.25 / 8.25, 3: 3 / 8.25}
        np.testing.assert_allclose(batch.probabilities, [expected[s] for s in serials_of(batch, 2)], rtol=1e-6)


@pytest.mark.parametrize(("eta", "priority"), [(1.0, 4.0), (0.0, 2.0), (0.9, 3.8)])
def test_eta_mixes_the_largest_and_the_mean(eta: float, priority: float) -> None:
    with store_of() as store:
        play_all(store, "abcd. e.")
        replay = store.sequences(4, eta=eta, sampler=sw.Prioritized(alpha=1.0, beta=0.0, eps=1e-9))
        ids = replay.sampleable_ids()
        long, short = sorted(ids.tolist(), key=lambda one: serials_of(replay.fetch([one]), 0)[0])
        replay.update_priorities([long, short], [[1, -4, 3, 0], [1, 9, 9, 9]])
        batch = replay.sample(32)
        share = np.where(batch.ids == long, priority, 1.0) / (priority + 1)
        np.testing.assert_allclose(batch.probabilities, share, rtol=1e-6)


def test_priorities_may_be_given_for_a_batch() -> None:
    with store_of() as store:
        play_all(store, "abcdefgh.")
        replay = store.sequences(2, sampler=sw.Prioritized(alpha=0.5))
        batch = replay.sample(8)
        assert replay.update_priorities(batch, np.ones((8, 2), np.float32)) == 0
        assert replay.update_priorities(batch.torch().ids, batch.torch().reward) == 0


def test_a_queue_gives_windows_out_in_order_and_once() -> None:
    with store_of() as store:
        queue = store.sequences(2, sampler=sw.Fifo(), max_times_sampled=1)
        play_all(store, "abcde. fg. hi")
        assert serials_of(queue.sample(2), 0) == [0, 2]
        assert serials_of(queue.sample(2), 0) == [4, 5]
        assert len(queue) == 0
        with pytest.raises(sw.EmptyError):
            queue.sample(1)
        play_all(store, "j")
        assert serials_of(queue.sample(1), 0) == [7]


@pytest.mark.parametrize("sampler", [sw.Uniform, sw.Prioritized, sw.Fifo, sw.Lifo])
def test_each_window_is_given_out_so_often(sampler: Any) -> None:
    with store_of() as store:
        play_all(store, "abcde. fg. hi|J k.")
        replay = store.sequences(2, burn_in=1, stride=1, sampler=sampler(), max_times_sampled=3)
        count = len(replay)
        assert count == 10
        seen = [one for size in (1, 7, 9, 13) for one in replay.sample(size).ids.tolist()]
        assert len(seen) == 3 * count and all(seen.count(one) == 3 for one in set(seen))
        assert len(set(seen)) == count and len(replay) == 0


# a batch


def test_a_batch_and_its_copies() -> None:
    with store_of(spec_of(2)) as store:
        play_all(store, "abcdefgh.")
        replay = store.sequences(2, burn_in=1, n_step=2)
        batch = replay.sample(5)
        assert len(batch) == 5 and batch.burn_in == 1
        assert batch.obs.shape == (5, 5, 2, *FRAME_SHAPE)
        for name in ("action", "step_reward", "reward", "discount", "bootstrap", "mask", "first"):
            assert batch[name] is getattr(batch, name) and batch[name].shape == (5, 3)
        copy, tensors = batch.copy(), batch.torch()
        assert copy.burn_in == tensors.burn_in == 1
        for name in ("obs", "action", "reward", "mask", "first", "bootstrap", "serial", "ids", "weights"):
            np.testing.assert_array_equal(copy[name], batch[name])
            np.testing.assert_array_equal(tensors[name].numpy(), batch[name])
            assert not np.shares_memory(copy[name], batch[name])
        with pytest.raises(KeyError, match="no field 'core'"):
            batch["core"]
        again = replay.fetch(batch)
        np.testing.assert_array_equal(again.obs, batch.obs)
        with store_of() as other, pytest.raises(ValueError, match="of another store"):
            other.sequences(2).fetch(batch)


def test_a_dict_of_observations() -> None:
    obs = {"image": sw.Field((2,), "uint8", stack=2, pad="zeros"), "speed": sw.Field((), "float32")}
    with sw.Store(sw.Spec(obs=obs, action=sw.Field((), "int64")), capacity=100, segment_steps=2) as store:
        for k in (1, 2, 3):
            store.append(
                obs={"image": [k, k], "speed": k / 2}, action=k, reward=k, terminated=False, truncated=k == 3,
                final_obs={"image": [9, 9], "speed": 4.5},
            )  # fmt: skip
        batch = store.sequences(4, n_step=1).sample(1)
        assert batch.obs["image"][0, :, :, 0].tolist() == [[0, 1], [1, 2], [2, 3], [3, 9], [0, 0]]
        assert batch.obs["speed"][0].tolist() == [0.5, 1, 1.5, 4.5, 0]


def test_transitions_and_sequences_share_a_store() -> None:
    with store_of() as store:
        one, two, three = store.sequences(2), store.sequences(3, burn_in=1), store.transitions()
        play_all(store, "abcdefg. hi")
        assert (len(one), len(two), len(three)) == (4, 3, 8)
        assert {view.name for view in (one, two, three)} >= {"sequences", "transitions"}
        assert len(set(one.sampleable_ids().tolist())) == 4


# from a checkpoint, and from disk


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_checkpoint_keeps_priorities_ids_and_the_windows_under_way(tmp_path: Path, on_disk: bool) -> None:
    def view_of(store: sw.Store) -> Any:
        return store.sequences(3, burn_in=2, n_step=2, gamma=0.5, sampler=sw.Prioritized(alpha=1.0), name="learner")

    settings: dict[str, Any] = {"disk": tmp_path / "store"} if on_disk else {}
    store = store_of(**settings)
    view = view_of(store)
    play_all(store, "abcdefgh. ijklmn")
    ids = view.sampleable_ids()
    view.update_priorities(ids, np.arange(3 * len(ids)).reshape(-1, 3))
    store.checkpoint(tmp_path / "checkpoint")
    with sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "again" if on_disk else None) as again:
        other = view_of(again)
        for _ in range(3):
            one, two = view.sample(6), other.sample(6)
            for name in ("ids", "obs", "reward", "probabilities", "weights", "mask", "serial"):
                np.testing.assert_array_equal(one[name], two[name])
        for both in (store, again):
            play_all(both, "opq|R")
        assert windows_of(view) == windows_of(other)
        assert set(view.sampleable_ids().tolist()) == set(other.sampleable_ids().tolist())
    store.close()


def test_a_store_on_disk_has_the_same_windows_when_it_is_opened(tmp_path: Path) -> None:
    with store_of(disk=tmp_path / "store") as store:
        play_all(store, "abcdefg. hijk|L mn")
        view = store.sequences(2, burn_in=3, n_step=2, gamma=0.5)
        before, ids = windows_of(view), set(view.sampleable_ids().tolist())
    with sw.Store.open(tmp_path / "store") as again:
        view = again.sequences(2, burn_in=3, n_step=2, gamma=0.5)
        after = windows_of(view)
        assert {letter: window for letter, window in after.items() if letter in before} == before
        assert set(after) - set(before) == {"m"}  # n was what m led to, and ends the episode
        assert after["m"].obs == "000mn00" and after["m"].columns == "---^-"
        assert ids < set(view.sampleable_ids().tolist())


# what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length=0"),
        ({"length": -1}, "length=-1"),
        ({"length": 1.5}, "length=1.5"),
        ({"length": "80"}, "length='80'"),
        ({"length": 2, "burn_in": -1}, "burn_in=-1"),
        ({"length": 2, "burn_in": 0.5}, "burn_in=0.5"),
        ({"length": 2, "burn_in": None}, "burn_in=None"),
        ({"length": 2, "stride": 0}, "stride=0"),
        ({"length": 2, "stride": -2}, "stride=-2"),
        ({"length": 2, "stride": 3}, "stride=3"),  # every third step would be trained from no window
        ({"length": 2, "stride": 1.0}, "stride=1.0"),
        ({"length": 2, "n_step": 0}, "n_step=0"),
        ({"length": 2, "n_step": 2.0}, "n_step=2.0"),
        ({"length": 2, "gamma": 1.01}, "gamma=1.01"),
        ({"length": 2, "gamma": -0.1}, "gamma=-0.1"),
        ({"length": 2, "gamma": float("nan")}, "gamma=nan"),
        ({"length": 2, "eta": -0.1}, "eta=-0.1"),
        ({"length": 2, "eta": 1.1}, "eta=1.1"),
        ({"length": 2, "eta": float("nan")}, "eta=nan"),
        ({"length": 2, "eta": None}, "eta=None"),
        ({"length": 2, "max_times_sampled": 0}, "max_times_sampled=0"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with store_of() as store:
        with pytest.raises(ValueError, match=message):
            store.sequences(**arguments)
        assert len(store.sequences(2)) == 0  # and the store is as it was


def test_too_large_a_stride_says_why() -> None:
    with store_of() as store, pytest.raises(ValueError, match=r"stride=81.*(80|length)"):
        store.sequences(80, stride=81)


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        (np.ones(3), r"td_error has shape \(3,\), expected \(3, 2\)"),
        (np.ones((3, 3)), r"td_error has shape \(3, 3\), expected \(3, 2\)"),  # burn-in is not trained
        (np.ones((2, 2)), r"td_error has shape \(2, 2\), expected \(3, 2\)"),
        (np.ones((3, 2, 1)), r"td_error has shape \(3, 2, 1\), expected \(3, 2\)"),
        (np.array([[1, 2], [3, np.nan], [5, 6]]), r"td_error\[1, 1\] is nan"),
        (np.array([[1, 2], [3, np.inf], [5, 6]]), r"td_error\[1, 1\] is inf"),
        ([["a", "b"]] * 3, "td_error cannot be read as numbers"),
    ],
)
def test_td_errors_that_make_no_sense(errors: Any, message: str) -> None:
    with store_of() as store:
        play_all(store, "abcdef.")
        replay = store.sequences(2, burn_in=1, sampler=sw.Prioritized(alpha=1.0))
        ids = replay.sampleable_ids()
        replay.update_priorities(ids, [[1, 1], [2, 2], [4, 4]])
        before = sorted(set(replay.sample(64).probabilities.tolist()))
        with pytest.raises(ValueError, match=message):
            replay.update_priorities(ids, errors)
        assert sorted(set(replay.sample(64).probabilities.tolist())) == before


def test_nothing_to_sample_yet() -> None:
    with store_of() as store:
        replay = store.sequences(3, burn_in=2, n_step=2)
        with pytest.raises(sw.EmptyError):
            replay.sample(1)
        play_all(store, "abcd")  # the window of a waits for e
        with pytest.raises(sw.EmptyError):
            replay.sample(1)
        play_all(store, "e")
        assert len(replay.sample(4)) == 4
