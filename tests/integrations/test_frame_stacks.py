"""Stacks of frames taken apart and put together, from memory in any order, and compared bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sharpwave.integrations.frame_stacks import Stack, same_bits, ways


def channels_last_in_memory(obs: Any) -> Any:
    """The same observations [n, C, H, W] in memory as wrappers leave them that put the last axis first."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(obs, 1, -1)), -1, 1)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32"])
@pytest.mark.parametrize("frames", [2, 4])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", ["C", "channels last", "every second"])
def test_observations_are_the_frames_in_order_whatever_their_memory(
    dtype: str, frames: int, channels: int, order: str
) -> None:
    rng = np.random.default_rng(0)
    parts = rng.integers(-99, 99, (3, frames, channels, 6, 5)).astype(dtype)
    first = Stack((frames * channels, 6, 5), dtype, frames, channels, 0)
    last = Stack((6, 5, frames * channels), dtype, frames, channels, -1)
    whole = parts.reshape(3, frames * channels, 6, 5)
    obs = {"C": whole, "channels last": channels_last_in_memory(whole), "every second": np.repeat(whole, 2, 0)[::2]}
    for stack, given in ((first, obs[order]), (last, np.moveaxis(obs[order], 1, -1))):
        stacks = stack.stacks(given)
        frame = parts if stack is first else np.moveaxis(parts, 2, -1)
        expected = frame.squeeze(axis=2 if stack is first else -1) if channels == 1 else frame
        assert stacks.flags.c_contiguous
        np.testing.assert_array_equal(stacks, expected)
        assert stacks.shape[1:] == (frames, *stack.field().shape)
        np.testing.assert_array_equal(stack.join(stacks), given)
        np.testing.assert_array_equal(stack.newest(stacks), expected[:, -1])


def test_one_more_frame_goes_on_and_any_other_bit_does_not() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (8, 6, 5), np.uint8)
    stack = Stack((4, 6, 5), "uint8", 4)
    one, after = frames[None, :4], frames[None, 1:5]
    assert stack.goes_on(one, after).tolist() == [True]
    for place in range(3):
        other = after.copy()
        other[0, place, 2, 3] ^= 1
        assert stack.goes_on(one, other).tolist() == [False]
    other = after.copy()
    other[0, 3] += 1
    assert stack.goes_on(one, other).tolist() == [True]


def test_first_stacks_are_padded_by_the_first_frame_or_by_zeros() -> None:
    frame = np.arange(30, dtype=np.uint8).reshape(6, 5) + 1
    repeated, zeros = np.stack([frame] * 3)[None], np.stack([frame * 0] * 2 + [frame])[None]
    for stack in ways(Stack((3, 6, 5), "uint8"), 3)[:2]:
        assert stack.begins(repeated).tolist() == [stack.pad == "repeat"]
        assert stack.begins(zeros).tolist() == [stack.pad == "zeros"]


def test_rows_are_equal_if_their_bits_are() -> None:
    nan, zero = np.array([[1.0, np.nan]]), np.array([[0.0, 1.0]])
    assert same_bits(nan, nan.copy()).tolist() == [True]
    assert same_bits(zero, -zero * [[1, -1]]).tolist() == [False]  # -0 and 0
    assert same_bits(zero, zero.astype(np.float32)).tolist() == [True]
    assert same_bits(zero, zero[:, :1]).tolist() == [False]
    for size in (1, 2, 3, 12, 16):  # words of every width
        one = np.arange(4 * size, dtype=np.uint8).reshape(4, size)
        other = one.copy()
        other[2, -1] ^= 1
        assert same_bits(one, other).tolist() == [True, True, False, True]
        assert same_bits(np.repeat(one, 2, 1)[:, ::2], one).all()


def test_another_shape_is_refused_before_it_is_taken_apart() -> None:
    with pytest.raises(ValueError, match=r"got observations of shape \(6, 5, 4\), expected \(4, 6, 5\)"):
        Stack((4, 6, 5), "uint8", 4).stacks(np.zeros((2, 6, 5, 4), np.uint8))
