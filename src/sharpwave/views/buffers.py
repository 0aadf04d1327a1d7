"""How a batch of a given size lies in memory, and the arrays over memory that was lent for one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.memory.arena import rounded
from sharpwave.memory.batch_pool import Block, Root, block_size
from sharpwave.sampling.samplers import Draw
from sharpwave.spec import Field, Spec
from sharpwave.views.batch import Batch
from sharpwave.views.ids import Ids

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

SMALL = (
    ("reward", np.float32),
    ("discount", np.float32),
    ("weights", np.float32),
    ("probabilities", np.float64),
    ("ids", np.int64),
)
LARGE = 256
"""A field of at least this many bytes an item has a block of its own: who keeps ``reward`` keeps no frames. Each block
costs 1 us a batch."""
ALIGNMENT = 64
WORK_BYTES = 80
"""Bytes an item that are used again for every batch."""
MAX_DTYPE_BYTES = (1 << 31) - ALIGNMENT
"""numpy's limit for the itemsize of a structured dtype, less what alignment adds."""


@dataclass(slots=True)
class Buffers:
    """What a batch is decoded into: arrays as kernels take them. Those over its memory do not hold it, ``batch`` does.

    Attributes:
        batch: what is handed out.
        windows: uint8 [B, rows, row bytes], one or two of each of the spec's fields.
        located: int64 [7, B], where the windows lie in the log (:func:`.kernels.locate`). ``places``: its rows.
    """

    batch: Batch
    draw: Draw
    reward: npt.NDArray[np.float32]
    discount: npt.NDArray[np.float32]
    ids: Ints
    located: Ints
    places: Sequence[Ints]
    windows: list[list[Bytes]]


@dataclass(slots=True)
class _Place:
    """Where an array lies: a field of a block's dtype, or of the items of its ``window``."""

    block: int
    window: str | None
    part: str

    def over(self, roots: Sequence[npt.NDArray[Any]] | Mapping[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The array, whose base is that of the block's."""
        root = roots[self.block]
        return root[self.part] if self.window is None else root[self.window][self.part]


class Form:
    """Batches of ``size`` transitions of a view.

    A block is one array of a structured dtype, whose fields are what is handed out: to take a field costs .1 us, to
    make an array from a shape, dtype, offset and strides .5 us. Windows are structures of their own, one an item, with
    fields for both stacks, which may overlap, and for all their bytes.

    Attributes:
        sizes: bytes of the blocks that a batch needs, the first for all that is small. ``roots``: what each is lent as.
        work_bytes: of memory that is used again for every batch.
    """

    def __init__(self, spec: Spec, n_step: int, size: int) -> None:
        self.size, self.work_bytes = size, WORK_BYTES * size
        self._names: list[str] = []
        self._formats: list[np.dtype[Any]] = []
        self._offsets: list[int] = []
        self._nbytes = 0  # of the first block
        for name, kind in SMALL:
            self._enter(name, np.dtype((kind, (size,))))
        others: list[np.dtype[Any]] = []
        self._windows: list[list[_Place]] = []
        shaped: dict[str, list[_Place]] = {}
        for name, field in spec.fields.items():
            if name not in spec.obs_names:
                windows = [_window(field, 1, ["0"])]
            elif n_step == 1:  # one window holds both stacks, which overlap by all but one frame
                windows = [_window(field, field.frames + 1, ["0", "1"])]
            else:
                windows = [_window(field, field.frames, [which]) for which in "01"]
            self._windows.append([])
            shaped[name] = []
            for number, window in enumerate(windows):
                nbytes = window.itemsize * size
                if nbytes < LARGE * max(1, size) and self._nbytes + nbytes <= MAX_DTYPE_BYTES:
                    where: tuple[int, str | None] = 0, f"{name} {number}"
                    self._enter(f"{name} {number}", np.dtype((window, (size,))))
                else:
                    others.append(window)
                    where = len(others), None
                self._windows[-1].append(_Place(*where, "bytes"))
                shaped[name] += [_Place(*where, part) for part in window.names or () if part != "bytes"]
        self._obs, self._next_obs = (
            spec.join_obs({name: shaped[name][which] for name in spec.obs_names}) for which in (0, 1)
        )
        self._fields = {name: shaped[name][0] for name in spec.step_names}
        self._action = self._fields.pop("action")
        small = np.dtype(
            {
                "names": self._names,
                "formats": self._formats,
                "offsets": self._offsets,
                "itemsize": max(1, self._nbytes),
            }
        )
        self.roots: list[Root] = [((), small), *(((size,), window) for window in others)]
        self.sizes = tuple(block_size(math.prod(shape) * dtype.itemsize) for shape, dtype in self.roots)
        self._work: tuple[Ints, npt.NDArray[np.float64], Ints, list[Ints]] | None = None

    def _enter(self, name: str, form: np.dtype[Any]) -> None:
        """Room for an array in the first block."""
        self._names.append(name)
        self._formats.append(form)
        self._offsets.append(self._nbytes)
        self._nbytes += rounded(form.itemsize, ALIGNMENT)

    def _inside(self, block: Block, number: int) -> tuple[Form, int, Any, dict[str | None, Bytes]]:
        """The arrays over a block itself, kept with it for when it is lent again; then it may be another of as many
        bytes."""
        kept = block.arrays
        if kept is not None and kept[0] is self and kept[1] == number:
            arrays: tuple[Form, int, Any, dict[str | None, Bytes]] = kept
            return arrays
        shape, dtype = self.roots[number]
        root = np.ndarray(shape, dtype, block.memory)
        if self._work is None:  # not before there is room for it
            whole = np.empty((8, self.size), np.int64)
            self._work = whole[7], np.empty((2, self.size), np.float64), whole[:7], list(whole[:7])
        small = None
        if number == 0:
            leaves, (rest, uniforms), *_ = self._work
            draw = Draw(leaves, root["probabilities"], root["weights"], rest, uniforms)
            small = draw, root["reward"], root["discount"], root["ids"]
        places = [place for places in self._windows for place in places if place.block == number]
        arrays = self, number, small, {place.window: place.over({number: root}) for place in places}
        block.arrays = arrays
        return arrays

    def over(self, lent: Sequence[tuple[Block, npt.NDArray[Any]]], tag: object) -> Buffers:
        """The arrays of one batch over blocks of :attr:`sizes` and :attr:`roots`; its ids carry the store's ``tag``."""
        inner = [self._inside(block, number) for number, (block, _) in enumerate(lent)]
        roots = [root for _, root in lent]
        small, fields = roots[0], self._fields
        ids = small["ids"].view(Ids)
        ids.store = tag
        batch = Batch(
            _over(self._obs, roots),
            self._action.over(roots),
            small["reward"],
            _over(self._next_obs, roots),
            small["discount"],
            small["weights"],
            small["probabilities"],
            ids,
            {name: place.over(roots) for name, place in fields.items()} if fields else {},
        )
        windows = [[inner[place.block][3][place.window] for place in places] for places in self._windows]
        draw, reward, discount, inner_ids = inner[0][2]
        assert self._work is not None
        return Buffers(batch, draw, reward, discount, inner_ids, *self._work[2:], windows)


def _over(places: Any, roots: list[npt.NDArray[Any]]) -> Any:
    """An observation: an array, or a dict of those."""
    if isinstance(places, dict):
        return {key: place.over(roots) for key, place in places.items()}
    return places.over(roots)


def _window(field: Field, rows: int, parts: Sequence[str]) -> np.dtype[Any]:
    """An item's ``rows`` frames: as bytes, and as observations, of which each part begins a frame later."""
    shape = field.shape if field.stack is None else (field.frames, *field.shape)
    return np.dtype(
        {
            "names": ["bytes", *parts],
            "formats": [(np.uint8, (rows, field.row_bytes)), *[(field.dtype, shape)] * len(parts)],
            "offsets": [0, *(k * field.row_bytes for k in range(len(parts)))],
            "itemsize": rows * field.row_bytes,
        }
    )
