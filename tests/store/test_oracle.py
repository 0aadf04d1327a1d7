"""The oracle against cases worked out by hand: a wrong oracle would bless a wrong store."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.oracle import Oracle, Row, Stacking, frame, frames, letters_of, parse, play_all


class Ledger:
    """A store that keeps nothing: `play` drives it, the oracle beside it remembers."""

    def __init__(self) -> None:
        self.total_steps = 0

    def append(self, **row: object) -> None:
        self.total_steps += 1

    def end_episode(self, lane: int, final_obs: object) -> None:
        pass


def played(text: str, stack: int | None = 3, pad: str = "repeat") -> Oracle:
    oracle = Oracle(Stacking(stack, pad))  # type: ignore[arg-type]
    play_all(Ledger(), text, oracle=oracle)
    return oracle


def told(oracle: Oracle, serial: int, n_step: int = 1) -> tuple[str, str, float, float]:
    """(stack, next stack, return, discount) of a step, at gamma = 1/2."""
    t = oracle.transition(serial, n_step, 0.5)
    return letters_of(t.obs), letters_of(t.next_obs), t.reward, t.discount


def test_the_tiny_language() -> None:
    assert parse("a b. c|F d!G e/H f.I") == [
        Row("a"),
        Row("b", "."),
        Row("c", "|", "F"),
        Row("d", "!", "G"),
        Row("e", "/", "H"),
        Row("f", ".", "I"),
    ]
    with pytest.raises(AssertionError, match="needs a final frame"):
        parse("ab|c")
    assert letters_of(frames("0aZ")) == "0aZ"
    assert letters_of(np.stack([frame("a")[::-1]])) == "?"


def test_every_letter_has_its_own_frame() -> None:
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert len({frame(c).tobytes() for c in alphabet}) == 52
    assert letters_of(frames(alphabet)) == alphabet


def test_a_truncated_episode_then_an_open_one() -> None:
    oracle = played("abcd|F ef")
    assert oracle.sampleable(1) == {0, 1, 2, 3, 4}  # f has no successor yet
    assert oracle.sampleable(2) == {0, 1, 2, 3}
    #                                stack  next   return  discount
    assert told(oracle, 0) == ("aaa", "aab", 1.0, 0.5)
    assert told(oracle, 1) == ("aab", "abc", 2.0, 0.5)
    assert told(oracle, 2) == ("abc", "bcd", 3.0, 0.5)
    assert told(oracle, 3) == ("bcd", "cdF", 4.0, 0.5)
    assert told(oracle, 4) == ("eee", "eef", 5.0, 0.5)
    # two steps: 1 + 2/2, 2 + 3/2, 3 + 4/2, then 4 alone
    assert told(oracle, 0, 2) == ("aaa", "abc", 2.0, 0.25)
    assert told(oracle, 1, 2) == ("aab", "bcd", 3.5, 0.25)
    assert told(oracle, 2, 2) == ("abc", "cdF", 5.0, 0.25)
    assert told(oracle, 3, 2) == ("bcd", "cdF", 4.0, 0.5)


def test_a_terminated_episode_repeats_its_last_observation_where_none_was_given() -> None:
    oracle = played("ab. cd.G")
    assert oracle.sampleable(5) == {0, 1, 2, 3}
    assert told(oracle, 1) == ("aab", "abb", 2.0, 0.0)
    assert told(oracle, 3) == ("ccd", "cdG", 4.0, 0.0)
    assert told(oracle, 0, 5) == ("aaa", "abb", 2.0, 0.0)  # 1 + 2/2


def test_zeros_before_the_first_frame() -> None:
    oracle = played("ab. c/F", stack=4, pad="zeros")
    assert told(oracle, 0) == ("000a", "00ab", 1.0, 0.5)
    assert told(oracle, 1) == ("00ab", "0abb", 2.0, 0.0)
    assert told(oracle, 2) == ("000c", "00cF", 3.0, 0.5)


def test_both_flags_at_once_is_a_termination() -> None:
    assert told(played("a!F"), 0) == ("aaa", "aaF", 1.0, 0.0)


def test_one_frame_and_no_stack() -> None:
    one, none = played("ab", stack=1), played("ab", stack=None)
    assert one.transition(0, 1, 1.0).obs.shape == (1, 2, 3)
    assert none.transition(0, 1, 1.0).obs.shape == (2, 3)
    assert np.array_equal(none.transition(0, 1, 1.0).next_obs, frame("b"))


def test_the_end_of_the_episode_makes_its_last_step_sampleable() -> None:
    oracle = played("abc")
    assert oracle.sampleable(1) == {0, 1}
    assert oracle.sampleable(3) == set()
    oracle.end_episode(0, frame("F"))
    assert oracle.sampleable(1) == oracle.sampleable(3) == {0, 1, 2}
    assert told(oracle, 0, 3) == ("aaa", "bcF", 2.75, 0.125)  # 1 + 2/2 + 3/4


def test_what_has_left_is_not_sampleable_and_lends_its_frames_still() -> None:
    oracle = played("abcde")
    assert oracle.sampleable(1, {0: 3}) == {3}
    assert told(oracle, 3) == ("bcd", "cde", 4.0, 0.5)


def test_fields_of_a_dict_are_stacked_each_its_own_way() -> None:
    oracle = Oracle({"image": Stacking(2, "zeros"), "speed": Stacking()})
    for value in (1.0, 2.0):
        obs = {"image": np.array([value]), "speed": np.array(value)}
        oracle.append(0, obs, 0, 0.0, False, False)
    t = oracle.transition(0, 1, 1.0)
    assert t.obs["image"].tolist() == [[0.0], [1.0]] and t.obs["speed"] == 1.0
    assert t.next_obs["image"].tolist() == [[1.0], [2.0]] and t.next_obs["speed"] == 2.0


def test_lanes_know_nothing_of_each_other() -> None:
    oracle = Oracle(Stacking(2))
    for lane, letter in [(0, "a"), (1, "x"), (0, "b"), (1, "y")]:
        oracle.append(lane, frame(letter), 0, 0.0, False, False)
    assert oracle.sampleable(1) == {0, 1}
    assert letters_of(oracle.transition(1, 1, 1.0).next_obs) == "xy"
