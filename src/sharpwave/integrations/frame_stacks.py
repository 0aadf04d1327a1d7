"""Frame stacks in other frameworks' observations: found by looking at them, stored frame by frame, put together again.

An observation of shape [k * c, H, W] (or [H, W, k * c]) may be k frames of c channels, oldest first, and each frame
comes k times. The store holds the newest one of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sharpwave.spec import Field

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Stack:
    """How observations [*shape] consist of frames.

    Attributes:
        frames: frames of an observation; 1: it is stored as it is.
        channels: channels of a frame. ``axis``: that of the channels in an observation, 0 or -1.
        pad: what precedes an episode's first frame: that frame again ("repeat"), or zeros ("zeros").
    """

    shape: tuple[int, ...]
    dtype: str
    frames: int = 1
    channels: int = 1
    axis: Literal[0, -1] = 0
    pad: Literal["repeat", "zeros"] = "repeat"

    def field(self) -> Field:
        """Return the field of the frames."""
        if self.frames == 1:
            return Field(self.shape, self.dtype)
        return Field(self._newest(np.empty((1, *self.shape), self.dtype)).shape[1:], self.dtype, self.frames, self.pad)

    def as_stored(self, field: Field) -> Stack | None:
        """Return how such observations were stored in ``field``; ``None``: they were not."""
        made = [self]
        if field.stack is not None and len(self.shape) == 3:
            made = [stack for stack in _stacks(self, field.stack) if stack.pad == field.pad]
        return next((stack for stack in made if stack.field() == field), None)

    @property
    def otherwise(self) -> Stack:
        """The same, padded in the other way."""
        return replace(self, pad="zeros" if self.pad == "repeat" else "repeat")

    def split(self, obs: Array) -> Array:
        """Return the newest frames [n, *frame] of observations [n, *shape]."""
        return obs if self.frames == 1 else self._newest(obs)

    def _newest(self, obs: Array) -> Array:
        frame = _channels(obs, self.axis, -self.channels, None)
        if self.channels > 1:
            return frame
        return frame[:, 0] if self.axis == 0 else frame[..., 0]

    def join(self, stacks: Array) -> Array:
        """Return observations [n, *shape] of stacks [n, frames, *frame] (or what was stored as it is).

        A view, but for channels at the end.
        """
        if self.frames == 1:
            return stacks
        if self.axis == -1:
            stacks = np.moveaxis(stacks, 1, -1 if self.channels == 1 else -2)
        return stacks.reshape(len(stacks), *self.shape)

    def goes_on(self, obs: Array, next_obs: Array) -> Bools:
        """Return which of ``next_obs`` [n, *shape] are ``obs`` [n, *shape] with one more frame: bool [n]."""
        if self.frames == 1:
            return np.ones(len(obs), np.bool_)
        older = _channels(next_obs, self.axis, None, -self.channels)
        return _same(older, _channels(obs, self.axis, self.channels, None))

    def begins(self, obs: Array) -> Bools:
        """Return which of ``obs`` [n, *shape] are an episode's first, padded: bool [n]."""
        if self.frames == 1:
            return np.ones(len(obs), np.bool_)
        older, newest = self._parts(obs)
        if self.pad == "zeros":
            black: Bools = (older == 0).all(axis=tuple(range(1, older.ndim)))
            return black
        return _same(older, np.broadcast_to(newest, older.shape))

    def _parts(self, obs: Array) -> tuple[Array, Array]:
        """Return the older frames and the newest: [n, frames - 1, channels, H, W] and [n, 1, channels, H, W]."""
        first = obs if self.axis == 0 else np.moveaxis(obs, -1, 1)
        frames = first.reshape(len(obs), self.frames, self.channels, *first.shape[2:])
        return frames[:, :-1], frames[:, -1:]


class StackFinder:
    """Finds out how observations of one shape consist of frames, from transitions as they come.

    Args:
        shape, dtype: of an observation; only images, [C, H, W] or [H, W, C], are looked at; for "auto" those of
            uint8, or of floats and at least 16 x 16.
        frames: "auto"; or how many frames there are, if known; ``None`` or 1: observations are stored as they are.

    Attributes:
        whole: how observations are stored if they are no stacks. ``told``: they are said to be stacks.

    Raises:
        ValueError: ``frames`` is something else.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, frames: int | str | None) -> None:
        self.whole = Stack(shape, np.dtype(dtype).name)
        self._moved, self._looked = 0, False
        self._open: list[Stack] = []
        known = isinstance(frames, (int, np.integer)) and not isinstance(frames, bool) and frames >= 1
        if frames is not None and frames != "auto" and not known:
            raise ValueError(
                f"frame_stack={frames!r}, expected 'auto', None, or the number of frames in an observation"
            )
        if len(shape) == 3 and known and frames != 1:
            self._open = _stacks(self.whole, int(frames))  # type: ignore[arg-type]
        elif len(shape) == 3 and frames == "auto" and _looks_like_an_image(shape, np.dtype(dtype)):
            axis = _channel_axis(shape)
            counts = [k for k in range(shape[axis], 1, -1) if shape[axis] % k == 0]
            self._open = [stack for k in counts for stack in _stacks(self.whole, k) if stack.axis == axis]
        self.told = known and bool(self._open)

    @property
    def stacked(self) -> bool:
        """Whether observations may be stacks."""
        return bool(self._open)

    def look(self, obs: Array, next_obs: Array, first: Bools, true: Bools) -> None:
        """Drop the ways that do not fit transitions.

        Args:
            obs, next_obs: [n, *shape]. ``first``, ``true``: bool [n], which ``obs`` begin an episode, and which
                ``next_obs`` are what the step led to.
        """
        self._looked = True
        self._open = [
            stack
            for stack in self._open
            if (stack.goes_on(obs, next_obs) | ~true).all() and stack.begins(obs[first]).all()
        ]
        if self._open:
            stack = self._open[0]
            self._moved += int((~_same(stack.split(obs), stack.split(next_obs)) & true).sum())

    @property
    def found(self) -> Stack | None:
        """The way that observations consist of frames; ``None`` while that cannot be told, as nothing moves."""
        if not self._open:
            return self.whole
        most = self._open[0]
        return most if self._moved >= 2 * most.frames or (self.told and self._looked) else None


_PADS: tuple[Literal["repeat", "zeros"], ...] = ("repeat", "zeros")


def _stacks(whole: Stack, frames: int) -> list[Stack]:
    """Return the ways that images may be so many frames: the likelier axis first."""
    axis = _channel_axis(whole.shape)
    axes: list[Literal[0, -1]] = [0, -1] if axis == 0 else [-1, 0]
    return [
        replace(whole, frames=frames, channels=whole.shape[axis] // frames, axis=axis, pad=pad)
        for axis in axes
        if whole.shape[axis] % frames == 0
        for pad in _PADS
    ]


def _looks_like_an_image(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return dtype == np.uint8 or (dtype.kind == "f" and sorted(shape)[1] >= 16)


def _channel_axis(shape: tuple[int, ...]) -> Literal[0, -1]:
    return 0 if shape[0] <= shape[2] else -1


def _channels(obs: Array, axis: int, begin: int | None, end: int | None) -> Array:
    return obs[:, begin:end] if axis == 0 else obs[..., begin:end]


def _same(one: Array, other: Array) -> Bools:
    """Return which rows are equal: bool [n]."""
    equal: Bools = (one == other).all(axis=tuple(range(1, one.ndim)))
    return equal
