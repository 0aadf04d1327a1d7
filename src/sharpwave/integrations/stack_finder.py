"""Detection of stacks of frames in observations, from transitions as they arrive."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.integrations.frame_stacks import Stack, channel_axis, same_bits, ways

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


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

    def __init__(self, shape: tuple[int, ...], dtype: Any, frames: int | str | None) -> None:
        self.whole = Stack(shape, np.dtype(dtype).name)
        self._moved, self._looked = 0, False
        self._open: list[Stack] = []
        known = is_integer(frames) and int(frames or 0) >= 1
        if frames is not None and frames != "auto" and not known:
            raise ValueError(
                f"frame_stack={frames!r}, expected 'auto', None, or the number of frames in an observation"
            )
        if len(shape) == 3 and known and frames != 1:
            self._open = ways(self.whole, int(frames))  # type: ignore[arg-type]
        elif len(shape) == 3 and frames == "auto" and _looks_like_an_image(shape, np.dtype(dtype)):
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
    shapes: Mapping[str, tuple[tuple[int, ...], Any]], frames: int | str | None, whole: Collection[str]
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
