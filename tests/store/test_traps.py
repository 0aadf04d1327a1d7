"""The traps that other replay buffers fell into, by number.

13 to 16 are in test_traps_priorities.py, 10 is in test_recorder.py too, 18 in test_threads.py.

Cases are written in the tiny language of oracle.py; gamma is 1/2 and rewards are 1, 2, 3..., so that returns are exact.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.store.letters import append_numbered, assert_same_as_held, letter_store, numbered, told
from tests.support.oracle import (
    FRAME_SHAPE,
    Oracle,
    Pad,
    Stacking,
    assert_same_transition,
    assert_same_view,
    frame,
    frames,
    letters_of,
    play,
    play_all,
)

# ring, stack, boundary


@pytest.mark.parametrize("segment_steps", [1, 2, 3, 5])
def test_trap_01_the_newest_step_waits_for_its_successor_at_every_cursor_position(segment_steps: int) -> None:
    with letter_store(capacity=10, segment_steps=segment_steps) as store:
        replay = store.transitions(n_step=1, gamma=0.5)
        oracle = Oracle(Stacking(3))
        for _ in range(45):
            newest = append_numbered(store, oracle)
            ids = replay.sampleable_ids()
            serials = replay.fetch(ids)["serial"].tolist() if len(ids) else []
            assert newest not in serials
            assert len(serials) == len(store) - 1
            assert_same_as_held(replay, store, oracle, 1)


@pytest.mark.parametrize("pad", ["repeat", "zeros"])
@pytest.mark.parametrize(("capacity", "segment_steps", "stack"), [(5, 1, 4), (8, 2, 4), (7, 3, 2), (12, 5, 4)])
def test_trap_02_stacks_stay_right_when_the_cursor_has_passed_their_older_frames(
    capacity: int, segment_steps: int, stack: int, pad: Pad
) -> None:
    with letter_store(stack, pad, capacity, segment_steps=segment_steps) as store:
        replay = store.transitions(n_step=1, gamma=0.5)
        oracle = Oracle(Stacking(stack, pad))
        for k in range(40):
            append_numbered(store, oracle, end="|" if k % 11 == 9 else "")
            assert_same_as_held(replay, store, oracle, 1)
            assert len(store) <= capacity


def test_trap_03_a_stack_of_one_is_one_frame_and_none_is_no_axis() -> None:
    with letter_store(stack=1) as one, letter_store(stack=None) as none:
        for store in (one, none):
            play_all(store, "ab|F c")
        batch = one.transitions(gamma=0.5).fetch(one.transitions(gamma=0.5).sampleable_ids())
        assert batch.obs.shape == batch.next_obs.shape == (2, 1, *FRAME_SHAPE)
        assert told(one.transitions(gamma=0.5)) == {0: ("a", "b", 1.0, 0.5), 1: ("b", "F", 2.0, 0.5)}
        replay = none.transitions(gamma=0.5)
        batch = replay.fetch(replay.sampleable_ids())
        assert batch.obs.shape == batch.next_obs.shape == (2, *FRAME_SHAPE)
        by_serial = dict(zip(batch["serial"].tolist(), batch.next_obs, strict=True))
        np.testing.assert_array_equal(by_serial[0], frame("b"))
        np.testing.assert_array_equal(by_serial[1], frame("F"))


@pytest.mark.parametrize(("pad", "c", "next_c", "d"), [("repeat", "ccc", "ccd", "ccd"), ("zeros", "00c", "0cd", "0cd")])
def test_trap_04_before_an_episodes_start_is_padding_never_the_previous_episode(
    pad: Pad, c: str, next_c: str, d: str
) -> None:
    with letter_store(3, pad) as store:
        play_all(store, "ab. cd|F e")
        replies = told(store.transitions(gamma=0.5))
        assert replies[2] == (c, next_c, 3.0, 0.5)
        assert replies[3] == (d, "cdF", 4.0, 0.5)


def test_trap_05_no_invented_step_is_ever_sampled_and_no_terminal_appears() -> None:
    with letter_store(2) as store:
        play_all(store, "ab|F c|G def|H")
        replay = store.transitions(gamma=0.5, seed=1)
        assert len(replay) == 6
        batch = replay.sample(500)
        assert set(batch["serial"].tolist()) == set(range(6))
        assert {letters_of(stack)[-1] for stack in batch.obs} == set("abcdef")  # a final frame starts nothing
        assert set(batch.discount.tolist()) == {0.5}  # nothing terminated here


SHORT = ["a.", "a|F", "a!F", "a/F", "a.F b.G c.", "ab. c|F d", "a|F b. cd/G e!H fgh", "abcdefgh. i|F jk"]


@pytest.mark.parametrize("text", SHORT)
@pytest.mark.parametrize("stack", [1, 2, 4])
@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize("pad", ["repeat", "zeros"])
def test_trap_06_short_episodes_and_the_last_item(text: str, stack: int, n_step: int, pad: Pad) -> None:
    oracle = Oracle(Stacking(stack, pad))
    with letter_store(stack, pad, segment_steps=3) as store:
        replay = store.transitions(n_step=n_step, gamma=0.5)
        for _ in play(store, text, oracle=oracle):
            assert_same_view(replay, oracle, n_step, 0.5)


def test_trap_06_several_fields_keep_in_step_through_the_wrap() -> None:
    spec = sw.Spec(
        obs={"image": sw.Field((2, 3), "uint8", stack=3), "speed": sw.Field((2,), "float32")},
        action=sw.Field((3,), "float32"),
        serial=sw.Field((), "int64"),
        flag=sw.Field((), "bool"),
        wide=sw.Field((2, 2), "float64"),
    )
    with sw.Store(spec, capacity=9, segment_steps=2) as store:
        replay = store.transitions(n_step=2, gamma=0.5)
        for k in range(50):
            store.append(
                obs={"image": numbered(k), "speed": np.array([k, -k], np.float32)},
                action=np.array([k, 0.5, k], np.float32),
                reward=k,
                terminated=k % 7 == 6,
                truncated=False,
                serial=k,
                flag=k % 2 == 0,
                wide=np.full((2, 2), k / 3),
            )
            ids = replay.sampleable_ids()
            if len(ids) == 0:
                continue
            batch = replay.fetch(ids)
            for i, serial in enumerate(batch["serial"].tolist()):
                assert batch.obs["speed"][i].tolist() == [serial, -serial]
                np.testing.assert_array_equal(batch.obs["image"][i, -1], numbered(serial))
                assert batch.action[i].tolist() == [serial, 0.5, serial]
                assert batch["flag"][i] == (serial % 2 == 0)
                assert (batch["wide"][i] == serial / 3).all()
                ends = serial % 7 == 6 or serial % 7 == 5
                after = serial + 2 if not ends else serial + (6 - serial % 7)
                assert batch.next_obs["speed"][i].tolist() == [after, -after]


def test_lanes_opened_one_after_another_never_fill_the_store_with_open_segments() -> None:
    """Each lane is written until it may be full and then left alone; the last lanes must still find room."""
    capacity, oracle = 64, Oracle()
    with letter_store(None, capacity=capacity, segment_steps=32) as store:
        replay = store.transitions(gamma=0.5)
        for lane in range(32):
            for _ in range(max(1, capacity // (4 * (lane + 1)))):
                append_numbered(store, oracle, lane)
                assert len(store) <= capacity
        ids = replay.sampleable_ids()
        batch = replay.fetch(ids)
        for i, serial in enumerate(batch["serial"].tolist()):
            assert_same_transition(batch, i, oracle.transition(serial, 1, 0.5))


# truncation


def test_trap_08_a_truncated_step_bootstraps_from_its_final_observation() -> None:
    with letter_store(3) as store:
        play_all(store, "abc|F xyz")
        replies = told(store.transitions(gamma=0.5))
        assert replies[2] == ("abc", "bcF", 3.0, 0.5)
        assert replies[3] == ("xxx", "xxy", 4.0, 0.5)


def test_trap_08_the_final_observation_survives_sealing_and_the_lane_going_on() -> None:
    with letter_store(3, segment_steps=2, capacity=50) as store:
        play_all(store, "abcd|F" + "xyzuvwxyz")
        assert told(store.transitions(gamma=0.5))[3] == ("bcd", "cdF", 4.0, 0.5)


def test_trap_09_truncation_bootstraps_termination_does_not_and_termination_wins() -> None:
    with letter_store(1) as store:
        play_all(store, "a|F b.G c!H d/I e.")
        replies = told(store.transitions(gamma=0.5))
        assert {serial: reply[1] for serial, reply in replies.items()} == {0: "F", 1: "G", 2: "H", 3: "I", 4: "e"}
        assert {serial: reply[3] for serial, reply in replies.items()} == {0: 0.5, 1: 0, 2: 0, 3: 0.5, 4: 0}


def test_trap_10_the_same_buffer_handed_in_again_is_copied() -> None:
    with letter_store(None, segment_steps=4) as store:
        replay = store.transitions(gamma=0.5)
        obs = np.zeros((2, *FRAME_SHAPE), np.uint8)
        final = np.zeros_like(obs)
        serial = np.zeros(2, np.int64)
        action = np.zeros(2, np.int64)
        reward = np.zeros(2, np.float32)
        truncated = np.zeros(2, bool)
        for k in range(6):
            obs[0], obs[1] = numbered(2 * k), numbered(2 * k + 1)
            final[:] = numbered(1000 + k)
            serial[:] = action[:] = [2 * k, 2 * k + 1]
            reward[:] = k
            truncated[:] = k == 3
            store.extend(
                obs=obs,
                action=action,
                reward=reward,
                terminated=np.zeros(2, bool),
                truncated=truncated,
                final_obs=final,
                serial=serial,
            )
            for buffer in (obs, final, serial, action, reward, truncated):
                buffer[:] = 99
        batch = replay.fetch(replay.sampleable_ids())
        assert len(batch.ids) == 10
        for i, s in enumerate(batch["serial"].tolist()):
            np.testing.assert_array_equal(batch.obs[i], numbered(s))
            np.testing.assert_array_equal(batch.next_obs[i], numbered(1003 if s // 2 == 3 else s + 2))
            assert batch.action[i] == s and batch.reward[i] == s // 2


# n-step


def test_trap_11_the_bootstrap_discount_is_gamma_to_the_steps_really_used() -> None:
    with letter_store(1) as store:
        play_all(store, "abcd|F efgh.")
        replies = told(store.transitions(n_step=3, gamma=0.5))
        assert replies == {
            0: ("a", "d", 1 + 2 / 2 + 3 / 4, 0.125),
            1: ("b", "F", 2 + 3 / 2 + 4 / 4, 0.125),
            2: ("c", "F", 3 + 4 / 2, 0.25),
            3: ("d", "F", 4.0, 0.5),
            4: ("e", "h", 5 + 6 / 2 + 7 / 4, 0.125),
            5: ("f", "h", 6 + 7 / 2 + 8 / 4, 0.0),
            6: ("g", "h", 7 + 8 / 2, 0.0),
            7: ("h", "h", 8.0, 0.0),
        }


def test_trap_11_returns_at_a_gamma_that_is_no_binary_fraction() -> None:
    with letter_store(1) as store:
        play_all(store, "abcdefghij", rewards=[0.1 * k for k in range(10)])
        replay = store.transitions(n_step=5, gamma=0.99)
        batch = replay.fetch(replay.sampleable_ids())
        for i, s in enumerate(batch["serial"].tolist()):
            expected = sum(0.99**k * 0.1 * (s + k) for k in range(5))
            np.testing.assert_allclose(batch.reward[i], expected, rtol=1e-6)
            np.testing.assert_allclose(batch.discount[i], 0.99**5, rtol=1e-6)


@pytest.mark.parametrize("n_step", [2, 3, 5])
def test_trap_12_a_window_never_crosses_the_cursor_of_a_full_ring(n_step: int) -> None:
    with letter_store(2, capacity=8, segment_steps=3) as store:
        replay = store.transitions(n_step=n_step, gamma=0.5)
        oracle = Oracle(Stacking(2))
        for _ in range(50):
            append_numbered(store, oracle)
            assert len(replay) == max(0, len(store) - n_step)
            assert_same_as_held(replay, store, oracle, n_step)


def test_trap_12_returns_stop_at_a_truncation_and_the_last_starts_of_an_episode_are_kept() -> None:
    with letter_store(1) as store:
        play_all(store, "abc|F xyz", rewards=[1, 2, 4, 64, 64, 64])
        replies = told(store.transitions(n_step=3, gamma=1.0))
        assert replies == {0: ("a", "F", 7.0, 1.0), 1: ("b", "F", 6.0, 1.0), 2: ("c", "F", 4.0, 1.0)}


# systems


def test_trap_18_a_batch_lasts_as_long_as_it_is_held() -> None:
    with letter_store(3) as store:
        play_all(store, "abcdef. ghi|J klm")
        replay = store.transitions(gamma=0.5, seed=1)
        batch = replay.sample(16)
        obs, next_obs, ids = batch.obs.tobytes(), batch.next_obs.tobytes(), batch.ids.tolist()
        for _ in range(10):
            replay.sample(16)
        assert (batch.obs.tobytes(), batch.next_obs.tobytes(), batch.ids.tolist()) == (obs, next_obs, ids)
        for i, serial in enumerate(batch["serial"].tolist()):
            assert batch.action[i] == serial


def _calls(work: Callable[[], object]) -> int:
    """Calls, of Python and of C functions, that a piece of work makes: a clock that a busy machine does not slow."""
    count = 0

    def seen(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(previous)
    return count


def _peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_trap_19_sampling_and_appending_cost_the_same_at_a_hundred_times_the_size(sampler: str) -> None:
    costs = []
    for steps in (512, 51_200):
        spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
        with sw.Store(spec, capacity=steps, segment_steps=64, codec="raw") as store:
            replay = store.transitions(sampler=sw.Uniform() if sampler == "uniform" else sw.Prioritized(), seed=1)
            lanes = 64
            row: dict[str, Any] = {
                "obs": np.ones((lanes, 4), np.float32),
                "action": np.zeros(lanes, np.int64),
                "reward": np.ones(lanes, np.float32),
                "terminated": np.zeros(lanes, bool),
                "truncated": np.zeros(lanes, bool),
            }
            for _ in range(steps // lanes + 70):  # past the first eviction
                store.extend(**row)

            def learn(replay: Any = replay) -> None:
                batch = replay.sample(32)
                replay.update_priorities(batch.ids, np.ones(32))

            def append(store: sw.Store = store, row: dict[str, Any] = row) -> None:
                store.extend(**row)

            def sample(replay: Any = replay) -> None:
                replay.sample(32)

            work = learn if sampler == "prioritized" else sample
            for _ in range(10):
                work()
                append()
            # the median of several: now and then a segment is sealed, and one leaves
            costs.append(
                [
                    float(np.median([measure(one) for _ in range(15)]))
                    for measure in (_calls, _peak_bytes)
                    for one in (work, append)
                ]
            )
    small, large = costs
    for what, a, b in zip(["sample calls", "append calls", "sample bytes", "append bytes"], small, large, strict=True):
        slack = 100 if "calls" in what else 20_000  # 51,200 int64 take 409,600 bytes, a list of them more
        assert b <= 1.5 * a + slack, f"{what}: {a} at 512 steps, {b} at 51,200"


def test_frames_of_letters_are_what_the_cases_say() -> None:
    assert letters_of(frames("00a")) == "00a"
