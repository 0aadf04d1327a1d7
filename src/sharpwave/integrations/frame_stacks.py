"""Frame stacks in other frameworks' observations: detected, taken apart, compared, and put together again.

An observation of shape [k * c, H, W] (or [H, W, k * c]) may be k frames of c channels, oldest first. Each frame occurs
in k observations, and the store holds the newest frame of each observation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from sharpwave.arguments import is_integer
from sharpwave.arrays import Array, Bools
from sharpwave.spec import MAX_ROW_BYTES, Field


@dataclass(frozen=True)
class Stack:
    """Composition of observations [*shape] of frames.

    Attributes:
        shape, dtype: of an observation, as a ``Field`` takes them; texts and rows of any length are stored whole.
        frames: number of frames in an observation; 1: it is stored whole.
        channels: number of channels of a frame. ``axis``: axis of the channels in an observation, 0 or -1.
        pad: padding before an episode's first frame: that frame again ("repeat"), or zeros ("zeros").
        max_length: as for a ``Field``, of rows of any length.
    """

    shape: tuple[Any, ...]
    dtype: str
    frames: int = 1
    channels: int = 1
    axis: Literal[0, -1] = 0
    pad: Literal["repeat", "zeros"] = "repeat"
    max_length: int | None = None

    def limited(self, max_length: int | None) -> Stack:
        """Return the stack with a limit of its rows' lengths, if they have any length: at most what a field allows."""
        if max_length is None or self.shape[:1] != (None,):
            return self
        return replace(self, max_length=most_items(self.shape, self.dtype, max_length))

    def field(self) -> Field:
        """Return the field of the frames."""
        if self.frames == 1:
            return Field(self.shape, self.dtype, max_length=self.max_length)
        return Field(self._stacked[1:], self.dtype, self.frames, self.pad)

    def as_stored(self, field: Field) -> Stack | None:
        """Return the stack by which ``field`` stores such observations; ``None``: it stores others."""
        made = [replace(self, max_length=field.max_length)]  # the store's limit stays
        if field.stack is not None and _three_axes(self.shape):
            made = [stack for stack in ways(self, field.stack) if stack.pad == field.pad]
        return next((stack for stack in made if stack.field() == field), None)

    @property
    def otherwise(self) -> Stack:
        """The same stack with the other padding."""
        return replace(self, pad="zeros" if self.pad == "repeat" else "repeat")

    def stacks(self, obs: Array) -> Array:
        """Return observations [n, *shape] as stacks [n, frames, *frame], in C order (or whole observations unchanged).

        The inverse of ``join``. It is a view if memory is in that order already, which is rare: wrappers that stack
        frames use the last axis, and wrappers that move it first leave memory unchanged.

        Raises:
            ValueError: another shape, which has no such stacks.
        """
        if self.frames == 1:
            return np.ascontiguousarray(obs)
        if obs.shape[1:] != self.shape:
            raise ValueError(f"add: got observations of shape {obs.shape[1:]}, expected {self.shape}")
        if self.axis == 0 and obs.flags.c_contiguous:
            return obs.reshape(len(obs), *self._stacked)
        last = obs.transpose(0, 2, 3, 1) if self.axis == 0 else obs
        if self.channels == 1:
            return _planes(last)
        parts = last.reshape(*last.shape[:-1], self.frames, self.channels)
        order = (0, 3, 4, 1, 2) if self.axis == 0 else (0, 3, 1, 2, 4)
        return np.ascontiguousarray(parts.transpose(order))

    def join(self, stacks: Array) -> Array:
        """Return observations [n, *shape] of stacks [n, frames, *frame] (or whole observations unchanged).

        It is a view, unless the channels come last.
        """
        if self.frames == 1:
            return stacks
        if self.axis == -1:
            stacks = np.moveaxis(stacks, 1, -1 if self.channels == 1 else -2)
        return stacks.reshape(len(stacks), *self.shape)

    def newest(self, stacks: Array) -> Array:
        """Return the newest frames [n, *frame] of stacks [n, frames, *frame] (or whole observations)."""
        return stacks if self.frames == 1 else stacks[:, -1]

    def goes_on(self, stacks: Array, next_stacks: Array) -> Bools:
        """Return which ``next_stacks`` are ``stacks`` [n, frames, *frame] with one more frame: bool [n]."""
        if self.frames == 1:
            return np.ones(len(stacks), np.bool_)
        return same_bits(next_stacks[:, :-1], stacks[:, 1:])

    def begins(self, stacks: Array) -> Bools:
        """Return which ``stacks`` [n, frames, *frame] are an episode's padded first one: bool [n]."""
        if self.pad == "repeat":
            return self.goes_on(stacks, stacks)
        if self.frames == 1:
            return np.ones(len(stacks), np.bool_)
        return same_bits(stacks[:, :-1], np.zeros_like(stacks[:, :-1]))

    @property
    def _stacked(self) -> tuple[int, ...]:
        """Shape [frames, *frame]."""
        height, width = self.shape[1:] if self.axis == 0 else self.shape[:2]
        if self.channels == 1:
            return self.frames, height, width
        if self.axis == 0:
            return self.frames, self.channels, height, width
        return self.frames, height, width, self.channels


def most_items(shape: tuple[Any, ...], dtype: str, max_length: int) -> int:
    """Return ``max_length``, or fewer items of rows of any length, if a field holds no more."""
    return min(max_length, MAX_ROW_BYTES // max(1, Field(shape, dtype).item_bytes))


_PADS: tuple[Literal["repeat", "zeros"], ...] = ("repeat", "zeros")


def ways(whole: Stack, frames: int) -> list[Stack]:
    """Return the possible stacks of ``frames`` frames in images, the likelier axis first."""
    axis = channel_axis(whole.shape)
    axes: list[Literal[0, -1]] = [0, -1] if axis == 0 else [-1, 0]
    return [
        replace(whole, frames=frames, channels=whole.shape[axis] // frames, axis=axis, pad=pad)
        for axis in axes
        if whole.shape[axis] % frames == 0
        for pad in _PADS
    ]


def channel_axis(shape: tuple[int, ...]) -> Literal[0, -1]:
    """Return the axis of an image's channels: the shorter one, the first or the last."""
    return 0 if shape[0] <= shape[2] else -1


def _planes(images: Array) -> Array:
    """Return images [n, H, W, k] as [n, k, H, W], in C order."""
    pixels = np.ascontiguousarray(images)
    count, height, width, frames = pixels.shape
    if frames * pixels.itemsize != 4 or pixels.itemsize != 1:
        return np.ascontiguousarray(np.moveaxis(pixels, -1, 1))
    words, planes = pixels.view("<u4")[..., 0], np.empty((count, frames, height, width), pixels.dtype)
    for k in range(frames):  # half the time of a copy by single bytes
        np.right_shift(words, 8 * k, out=planes[:, k].view(np.uint8), casting="unsafe")
    return planes


def same_bits(one: Array, other: Array) -> Bools:
    """Return which rows [n, ...] are equal bit by bit, so a NaN equals itself: bool [n].

    Different dtypes are compared by value; rows of different shapes are unequal. Texts and rows of any length, in
    arrays of objects, are compared one by one.
    """
    if one.shape != other.shape:
        return np.zeros(len(one), np.bool_)
    if one.dtype == object == other.dtype:
        return np.array([_same_row(a, b) for a, b in zip(one.flat, other.flat, strict=True)], np.bool_)
    if one.dtype != other.dtype:
        equal: Bools = (one == other).all(axis=tuple(range(1, one.ndim)))
        return equal
    count, size = len(one), one[:1].nbytes
    if not count or not size:
        return np.ones(count, np.bool_)
    word = next(word for word in (8, 4, 2, 1) if size % word == 0)
    words = [_rows(array).view(f"u{word}") for array in (one, other)]
    equal = (words[0] == words[1]).all(1)
    return equal


def _same_row(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool(same_bits(one[None], other[None])[0])
    return type(one) is type(other) and bool(one == other)


def _three_axes(shape: tuple[Any, ...]) -> bool:
    return len(shape) == 3 and shape[0] is not None


def _rows(array: Array) -> Array:
    """Return rows [n, ...] as [n, size], each in C order; a view if memory is in that order."""
    flat = array.reshape(len(array), -1)
    return flat if flat.strides[-1] == flat.itemsize else np.ascontiguousarray(flat)


class StackFinder:
    """Detector of the stack in observations of one shape, from transitions as they arrive.

    Args:
        shape, dtype: of an observation. Only images, [C, H, W] or [H, W, C], are examined; for "auto" only images of
            uint8, or of floats and at least 16 x 16.
        frames: "auto"; or the number of frames, if known; ``None`` or 1: observations are stored whole.

    Attributes:
        whole: stack of one frame, for observations that are no stacks. ``told``: the user declared stacks.

    Raises:
        ValueError: ``frames`` is something else.
    """

    def __init__(self, shape: tuple[Any, ...], dtype: Any, frames: int | str | None) -> None:
        self.whole = Stack(shape, np.dtype(dtype).name)
        self._moved, self._looked = 0, False
        self._open: list[Stack] = []
        known = is_integer(frames) and int(frames or 0) >= 1
        if frames is not None and frames != "auto" and not known:
            raise ValueError(
                f"frame_stack={frames!r}, expected 'auto', None, or the number of frames in an observation"
            )
        if _three_axes(shape) and known and frames != 1:
            self._open = ways(self.whole, int(frames))  # type: ignore[arg-type]
        elif _three_axes(shape) and frames == "auto" and _looks_like_an_image(shape, np.dtype(dtype)):
            axis = channel_axis(shape)
            counts = [k for k in range(shape[axis], 1, -1) if shape[axis] % k == 0]
            self._open = [stack for k in counts for stack in ways(self.whole, k) if stack.axis == axis]
        self.told = known and bool(self._open)

    @property
    def stacked(self) -> bool:
        """Whether observations may be stacks."""
        return bool(self._open)

    def look(self, obs: Array, next_obs: Array, first: Bools, true: Bools) -> None:
        """Drop the stacks that do not fit transitions.

        Args:
            obs, next_obs: [n, *shape]. ``first``, ``true``: bool [n], which ``obs`` begin an episode, and which
                ``next_obs`` are the step's own successor.
        """
        self._looked = True
        self._open = [stack for stack in self._open if _fits(stack, obs, next_obs, first, true)]
        if self._open:
            before, after = (self._open[0].newest(self._open[0].stacks(one)) for one in (obs, next_obs))
            self._moved += int((~same_bits(before, after) & true).sum())

    @property
    def found(self) -> Stack | None:
        """Detected stack; ``None`` while it is unknown because nothing moves."""
        if not self._open:
            return self.whole
        most = self._open[0]
        return most if self._moved >= 2 * most.frames or (self.told and self._looked) else None


def finders(
    shapes: Mapping[str, tuple[tuple[Any, ...], Any]], frames: int | str | None, whole: Collection[str]
) -> dict[str, StackFinder]:
    """Return a finder for each of several observations.

    Args:
        shapes: shape and dtype by name. ``frames``: as for ``StackFinder``. ``whole``: names of observations that are
            stored whole, whatever ``frames`` says.

    Raises:
        ValueError: ``frames`` is a number, and no observation can be a stack of so many.
    """
    made = {name: StackFinder(*one, None if name in whole else frames) for name, one in shapes.items()}
    if frames not in (None, 1, "auto") and not any(one.stacked for one in made.values()):
        raise ValueError(
            f"frame_stack={frames}: observations of shape {[one.whole.shape for one in made.values()]} are not made of "
            f"{frames} images, [C, H, W] or [H, W, C] with C a multiple of that; expected frame_stack=None, or 'auto'"
        )
    return made


def _fits(stack: Stack, obs: Array, next_obs: Array, first: Bools, true: Bools) -> bool:
    before = stack.stacks(obs)
    return bool((stack.goes_on(before, stack.stacks(next_obs)) | ~true).all() and stack.begins(before[first]).all())


def _looks_like_an_image(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return dtype == np.uint8 or (dtype.kind == "f" and sorted(shape)[1] >= 16)
