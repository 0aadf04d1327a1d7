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
        made = self
        if field.stack is not None and len(self.shape) == 3:
            axis = _channel_axis(self.shape)
            made = replace(self, frames=field.stack, channels=self.shape[axis] // field.stack, axis=axis, pad=field.pad)
        return made if made.field() == field else None

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
        shape, dtype: of an observation; only images, uint8 [C, H, W] or [H, W, C], are looked at.
        frames: "auto"; or how many frames there are, if known; ``None`` or 1: observations are stored as they are.

    Raises:
        ValueError: an observation has no so many frames.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any, frames: int | str | None) -> None:
        kind = np.dtype(dtype).name
        self.whole = Stack(shape, kind)
        self._moved = 0
        self._open: list[Stack] = []
        known = isinstance(frames, (int, np.integer)) and not isinstance(frames, bool) and frames >= 1
        if frames is not None and frames != "auto" and not known:
            raise ValueError(
                f"frame_stack={frames!r}, expected 'auto', None, or the number of frames in an observation"
            )
        if frames is None or frames == 1:
            return
        image = len(shape) == 3 and (known or np.dtype(dtype) == np.uint8)
        if image:
            axis = _channel_axis(shape)
            counts = [int(frames)] if known else [k for k in range(shape[axis], 1, -1)]
            stacks = [(k, shape[axis] // k) for k in counts if shape[axis] % k == 0]
            self._open = [Stack(shape, kind, k, c, axis, pad) for k, c in stacks for pad in ("repeat", "zeros")]
        if known and frames != 1 and not self._open:
            raise ValueError(
                f"frame_stack={frames}: {name} of shape {shape} is not made of {frames} images, [C, H, W] or [H, W, C] "
                "with C a multiple of that; expected frame_stack=None, or 'auto'"
            )

    def look(self, obs: Array, next_obs: Array, first: Bools, last: Bools) -> None:
        """Drop the ways that do not fit transitions: observations [n, *shape], and which begin an episode, and which
        terminate it, bool [n]."""
        kept = []
        for stack in self._open:
            if (stack.goes_on(obs, next_obs) | last).all() and stack.begins(obs[first]).all():
                kept.append(stack)
        self._open = kept
        if kept:
            self._moved += int((~_same(kept[0].split(obs), kept[0].split(next_obs))).sum())

    @property
    def found(self) -> Stack | None:
        """The way that observations consist of frames; ``None`` while that cannot be told, as nothing moves."""
        if not self._open:
            return self.whole
        most = self._open[0]
        return most if self._moved >= 2 * most.frames else None


def _channel_axis(shape: tuple[int, ...]) -> Literal[0, -1]:
    return 0 if shape[0] <= shape[2] else -1


def _channels(obs: Array, axis: int, begin: int | None, end: int | None) -> Array:
    return obs[:, begin:end] if axis == 0 else obs[..., begin:end]


def _same(one: Array, other: Array) -> Bools:
    """Return which rows are equal: bool [n]."""
    equal: Bools = (one == other).all(axis=tuple(range(1, one.ndim)))
    return equal
