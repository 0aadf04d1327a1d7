"""How a batch of a given size lies in memory, and the arrays over memory that was lent for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sampling.samplers import Draw
from ..spec import Field, Spec
from ..tiers.pool import Block, block_size
from .batch import Batch
from .ids import Ids

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

LARGE = 128
"""A field of at least this many bytes an item has a block of its own: who keeps ``reward`` keeps no frames."""
ALIGNMENT = 64
WORK_BYTES = 80
"""Bytes an item that are used again for every batch."""


@dataclass(slots=True)
class Buffers:
    """What a batch is decoded into: arrays as kernels take them. Those over its memory do not hold it, ``batch`` does.

    Attributes:
        batch: what is handed out.
        windows: uint8 [B, rows, row bytes], one or two of each of the spec's fields.
        places: seven int64 [B], where the windows lie in the log.
    """

    batch: Batch
    draw: Draw
    reward: npt.NDArray[np.float32]
    discount: npt.NDArray[np.float32]
    ids: Ints
    places: Sequence[Ints]
    windows: list[list[Bytes]]


class _Place:
    """An array over one of a batch's blocks: what ``numpy.ndarray`` is told. ``number``: of the block's arrays."""

    number = 0

    def __init__(
        self, block: int, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> None:
        self.block, self.offset, self.shape, self.dtype, self.strides = block, offset, shape, np.dtype(dtype), strides

    def over(self, memory: Sequence[Any]) -> npt.NDArray[Any]:
        if 0 in self.shape:  # numpy takes no strides for it
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, memory[self.block], self.offset, self.strides)


class Form:
    """Batches of ``size`` transitions of a view.

    Attributes:
        sizes: bytes of the blocks that a batch needs, the first for all that is small.
        work_bytes: of memory that is used again for every batch.
    """

    def __init__(self, spec: Spec, n_step: int, size: int) -> None:
        self.size, self.work_bytes = size, WORK_BYTES * size
        self._nbytes = [0]
        self._places: list[_Place] = []
        self._reward, self._discount, self._weights = (self._place((size,), np.float32) for _ in range(3))
        self._probabilities, self._ids = self._place((size,), np.float64), self._place((size,), np.int64)
        self._windows: list[list[_Place]] = []
        shaped: dict[str, list[_Place]] = {}
        for name, field in spec.fields.items():
            if name not in spec.obs_names:
                windows = [self._window(field, 1)]
                shaped[name] = [_shaped(windows[0], field, 0)]
            elif n_step == 1:  # one window holds both stacks, which overlap by all but one frame
                windows = [self._window(field, field.frames + 1)]
                shaped[name] = [_shaped(windows[0], field, row) for row in (0, 1)]
            else:
                windows = [self._window(field, field.frames) for _ in range(2)]
                shaped[name] = [_shaped(window, field, 0) for window in windows]
            self._windows.append(windows)
        self._obs, self._next_obs = (
            spec.join_obs({name: shaped[name][which] for name in spec.obs_names}) for which in (0, 1)
        )
        self._fields = {name: shaped[name][0] for name in spec.step_names}
        self._action = self._fields.pop("action")
        self.sizes = tuple(block_size(nbytes) for nbytes in self._nbytes)
        self._work: tuple[Ints, npt.NDArray[np.float64], list[Ints]] | None = None

    def _window(self, field: Field, rows: int) -> _Place:
        return self._place((self.size, rows, field.row_bytes), np.uint8)

    def _place(self, shape: tuple[int, ...], dtype: Any) -> _Place:
        """Room for an array: in the first block, or in one of its own."""
        nbytes, block, begin = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object)), 0, self._nbytes[0]
        if nbytes < LARGE * max(1, self.size):
            self._nbytes[0] += -(-nbytes // ALIGNMENT) * ALIGNMENT
        else:
            self._nbytes.append(nbytes)
            block, begin = len(self._nbytes) - 1, 0
        place = _Place(block, begin, shape, dtype)
        place.number = sum(other.block == block for other in self._places)
        self._places.append(place)
        return place

    def _inside(self, block: Block, number: int) -> list[npt.NDArray[Any]]:
        """The arrays over a block itself, kept with it for when it is lent again; then it may be another of as many
        bytes."""
        kept = block.arrays
        if kept is not None and kept[0] is self and kept[1] == number:
            arrays: list[npt.NDArray[Any]] = kept[2]
            return arrays
        memory = [block.memory] * len(self.sizes)
        arrays = [place.over(memory) for place in self._places if place.block == number]
        block.arrays = self, number, arrays
        return arrays

    def over(self, lent: Sequence[tuple[Block, Bytes]], tag: object) -> Buffers:
        """The arrays of one batch over blocks of :attr:`sizes`; its ids carry the store's ``tag``."""
        inner = [self._inside(block, number) for number, (block, _) in enumerate(lent)]
        reward, discount, weights, probabilities, ids = inner[0][:5]
        windows = [[inner[place.block][place.number] for place in places] for places in self._windows]
        if self._work is None:  # not before there is room for it
            whole = np.empty((8, self.size), np.int64)
            self._work = whole[7], np.empty((2, self.size), np.float64), list(whole[:7])
        leaves, (rest, uniforms), places = self._work

        flats = [flat for _, flat in lent]
        place = self._ids
        known = np.ndarray.__new__(Ids, place.shape, place.dtype, flats[0], place.offset)
        known.store = tag
        fields = self._fields
        batch = Batch(
            _over(self._obs, flats),
            self._action.over(flats),
            self._reward.over(flats),
            _over(self._next_obs, flats),
            self._discount.over(flats),
            self._weights.over(flats),
            self._probabilities.over(flats),
            known,
            {name: place.over(flats) for name, place in fields.items()} if fields else {},
        )
        draw = Draw(leaves, probabilities, weights, rest, uniforms)
        return Buffers(batch, draw, reward, discount, ids, places, windows)


def _over(places: Any, flats: list[Bytes]) -> Any:
    """An observation: an array, or a dict of those."""
    if isinstance(places, dict):
        return {key: place.over(flats) for key, place in places.items()}
    return places.over(flats)


def _shaped(window: _Place, field: Field, first: int) -> _Place:
    """A window's rows from ``first`` on, as many as an observation has, in the field's dtype and shape."""
    rows = () if field.stack is None else (field.frames,)
    inner = np.empty((*rows, *field.shape), field.dtype).strides
    strides = (window.shape[1] * field.row_bytes, *inner)
    offset = window.offset + first * field.row_bytes
    return _Place(window.block, offset, (window.shape[0], *rows, *field.shape), field.dtype, strides)
