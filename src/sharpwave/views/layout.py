"""Memory layout of batches of a given size, and arrays over the memory lent for one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Array, Floats, Ints
from sharpwave.memory.arena import rounded
from sharpwave.memory.batch_pool import Block, Root, block_size
from sharpwave.native import core
from sharpwave.ragged import Ragged
from sharpwave.sampling.sampler_protocol import Draw
from sharpwave.views.ids import tagged

COMMON = (("weights", np.float32), ("probabilities", np.float64), ("ids", np.int64))
LARGE = 256
"""Columns of at least this many bytes an item have blocks of their own: keeping ``reward`` keeps no frames. Each block
costs 1 us a batch."""
ALIGNMENT = 64
MAX_DTYPE_BYTES = (1 << 31) - ALIGNMENT
"""numpy's limit for the itemsize of a structured dtype, less the padding for alignment."""
WHOLE = "whole"
Arrays = Mapping[str | tuple[str, str], Any]
"""Arrays of a batch, by name, or by name and part where a column has parts; and rows of any length, by name."""


@dataclass(frozen=True)
class Column:
    """Array of a batch.

    Attributes:
        dtype, shape: of an item, as the view fills it.
        parts: arrays over the same memory that replace it in the batch, by name: dtype, shape of an item, and byte
            offset within an item. They may overlap. Without parts the batch has the array itself.
        field: number of the field of its rows; ``None``: it holds other values.
        apart: whether its parts, which are then its rows, each form a gapless array over all items, one behind the
            other; the filler of the column sees the same shape. A batch beyond numpy's limit has them item by item.
    """

    dtype: npt.DTypeLike
    shape: tuple[int, ...] = ()
    parts: Mapping[str, tuple[npt.DTypeLike, tuple[int, ...], int]] = dataclasses.field(default_factory=dict)
    field: int | None = None
    apart: bool = False

    @property
    def item(self) -> np.dtype[Any]:
        """Dtype of one item: structured, where there are parts."""
        whole = np.dtype((self.dtype, self.shape))
        if not self.parts:
            return whole
        return np.dtype(
            {
                "names": [WHOLE, *self.parts],
                "formats": [whole, *(np.dtype((dtype, shape)) for dtype, shape, _ in self.parts.values())],
                "offsets": [0, *(begin for _, _, begin in self.parts.values())],
                "itemsize": whole.itemsize,
            }
        )

    def all_items(self, size: int) -> np.dtype[Any]:
        """Return the dtype of ``size`` items with parts apart: each at a multiple of 64 bytes."""
        rows = len(self.parts)
        assert self.shape[0] == rows and self.dtype == np.uint8
        each = rounded(self.shape[1] * size, ALIGNMENT)
        return np.dtype(
            {
                "names": [WHOLE, *self.parts],
                "formats": [np.dtype((np.uint8, (rows, each)))]
                + [np.dtype((dtype, (size, *shape))) for dtype, shape, _ in self.parts.values()],
                "offsets": [0, *(begin // self.shape[1] * each for _, _, begin in self.parts.values())],
                "itemsize": rows * each,
            }
        )

    def by_item(self, whole: Array, size: int) -> Array:
        """Return the rows of parts that are apart, [parts, bytes], as [size, parts, row bytes]."""
        rows, row_bytes = self.shape
        return whole[:, : size * row_bytes].reshape(rows, size, row_bytes).transpose(1, 0, 2)


@dataclass(slots=True)
class BatchTarget:
    """Memory of a batch to fill: arrays that do not keep it alive; ``batch`` does.

    Attributes:
        batch: the batch.
        columns: arrays by name, as ``view.View.columns`` describes them, B items each.
        scratch: int64 [rows, B], working memory of the view. ``rows``: its rows.
        cutter: ``cutting.RowCutter``, which cuts rows of large fields out instead of decoding them; ``None``: none is
            cut.
        begin: number of its first item in the batch.
        blocks, filling: the batch's memory, and its columns there, for fillers of the core; ``None``: they have none.
        grow: called with the bytes that the rows of a ragged field take; may raise, which undoes the draw.
        late: names of columns added later that ``columns`` has beside the view's own (``with_late``).
        ragged: the batch's rows of any length, by name as ``StepView.no_rows`` has them.
    """

    batch: Any
    draw: Draw
    ids: Ints
    columns: dict[str, Array]
    scratch: Ints
    rows: Sequence[Ints]
    cutter: Any = None
    begin: int = 0
    blocks: Sequence[Block] = ()
    filling: core.Filling | None = None
    grow: Callable[[int], None] | None = None
    late: Sequence[str] = ()
    ragged: Mapping[str, Ragged] = dataclasses.field(default_factory=dict)

    def part(self, begin: int, end: int) -> BatchTarget:
        """Return the items ``begin <= i < end``, in the same memory but for the scratch."""
        some = slice(begin, end)
        columns = {name: array[some] for name, array in self.columns.items()}
        scratch = np.empty((len(self.rows), end - begin), np.int64)
        draw, ids = self.draw.part(begin, end), self.ids[some]
        rows, begin = list(scratch), self.begin + begin
        return dataclasses.replace(self, draw=draw, ids=ids, columns=columns, scratch=scratch, rows=rows, begin=begin)

    def with_late(self, columns: Mapping[str, Array]) -> BatchTarget:
        """Return the target with columns added later, uint8 [B, rows, row bytes] each, which its batch lacks."""
        return dataclasses.replace(self, columns={**self.columns, **columns}, late=tuple(columns))

    def own_batch(self) -> Any:
        """Return the batch of its items alone."""
        begin, end = self.begin, self.begin + len(self.ids)
        if len(self.batch) == len(self.ids):
            return self.batch
        return self.batch.map(lambda array: array[begin:end], lambda rows: rows.items(begin, end))

    def fill(self, view: Any, filler: core.Filler | None, begin: int) -> None:
        """Fill it, or cut its rows out, which begin with number ``begin``.

        Args:
            filler: the view's; ``None``: the core has none for it.
        """
        if self.cutter is not None:
            self.cutter.add(view, self, begin)
            return
        if filler is not None and self.filling is not None and not self.late:
            work = self.draw.items, self.draw.uniforms, self.scratch
            if core.fill_lent(filler, self.filling, self.blocks, self.begin, *work):
                return
        view.fill(self)

    def arrange(self, order: Ints) -> None:
        """Put the items ``order`` [n] of a whole batch in this order."""
        for array in (*self.columns.values(), self.draw.probabilities, self.draw.weights, self.ids):
            array[:] = array[order]
        for rows in self.ragged.values():
            rows.reorder(order, np.empty)

    def clear(self, gone: Ints) -> None:
        """Clear items of a whole batch: zeros, weights included, and ids of -1."""
        for array in (*self.columns.values(), self.draw.weights):
            array[gone] = 0
        self.ids[gone] = -1
        for rows in self.ragged.values():
            rows.empty_rows(np.arange(len(rows.offsets) - 1).reshape(rows.shape)[gone].reshape(-1))

    def copy_from(self, other: BatchTarget) -> None:
        """Copy the items of another batch of the same columns."""
        for name, array in other.columns.items():
            self.columns[name][...] = array
        self.ids[...] = other.ids
        self.draw.probabilities[...], self.draw.weights[...] = other.draw.probabilities, other.draw.weights


class BatchLayout:
    """Layout of batches of ``size`` items.

    A block is one array of a structured dtype, whose fields are the batch's arrays. Columns with parts are structures
    of their own. The core makes further batches like the second one.

    Attributes:
        sizes: bytes of a batch's blocks, the first for all small columns. ``roots``: shape and dtype of each.
        work_bytes: size of the memory that is reused for every batch.
        batches: maker of batches; ``None`` until two were made. ``filling``: the same for batches that the core draws
            and fills at once.
    """

    def __init__(self, columns: Mapping[str, Column], scratch_rows: int, size: int) -> None:
        self.size, self._scratch_rows = size, scratch_rows
        self.work_bytes = 8 * (scratch_rows + 3) * size
        small: dict[str, np.dtype[Any]] = {name: np.dtype((kind, (size,))) for name, kind in COMMON}
        nbytes = sum(rounded(item.itemsize, ALIGNMENT) for item in small.values())
        large: list[Root] = []
        self._inside: list[dict[str, tuple[Column, bool]]] = [{}]  # each block's columns, and whether parts are apart
        # The batch's arrays, by name, or by name and part: block, name in the block's dtype, and part.
        self._plain: list[tuple[str, int, str | None]] = [(name, 0, name) for name in small if name != "ids"]
        self._parts: list[tuple[tuple[str, str], int, str | None, str]] = []
        for name, column in columns.items():
            item = column.item
            column_bytes = item.itemsize * size + ALIGNMENT * len(column.parts)
            apart = column.apart and column_bytes <= MAX_DTYPE_BYTES
            if item.itemsize * size < LARGE * max(1, size) and nbytes + column_bytes <= MAX_DTYPE_BYTES:
                block, inner = 0, name
                small[name] = column.all_items(size) if apart else np.dtype((item, (size,)))
                nbytes += rounded(small[name].itemsize, ALIGNMENT)
            else:
                large.append(((), column.all_items(size)) if apart else ((size,), item))
                block, inner = len(large), None
                self._inside.append({})
            self._inside[block][name] = column, apart
            self._parts += [((name, part), block, inner, part) for part in column.parts]
            if not column.parts:
                self._plain.append((name, block, inner))
        offsets = np.cumsum([0, *(rounded(item.itemsize, ALIGNMENT) for item in small.values())]).tolist()
        first = np.dtype(
            {
                "names": list(small),
                "formats": list(small.values()),
                "offsets": offsets[:-1],
                "itemsize": max(1, offsets[-1]),
            }
        )
        self.roots: list[Root] = [((), first), *large]
        self.sizes = tuple(block_size(math.prod(shape) * dtype.itemsize) for shape, dtype in self.roots)
        self._work: tuple[Ints, Floats, Ints, list[Ints]] | None = None
        self.batches: core.Layout | None = None
        self.filling: core.Filling | None = None
        self._used = self._places = False

    def _over(self, block: Block, number: int) -> tuple[BatchLayout, int, Any, dict[str, Array]]:
        """Return the arrays over a block itself, which are kept with it.

        A block lent again may have been made by another layout of the same size.
        """
        kept = block.arrays
        if kept is not None and kept[0] is self and kept[1] == number:
            arrays: tuple[BatchLayout, int, Any, dict[str, Array]] = kept
            return arrays
        shape, dtype = self.roots[number]
        root = np.ndarray(shape, dtype, block.memory)
        if self._work is None:  # not before there is room
            whole = np.empty((self._scratch_rows + 1, self.size), np.int64)
            self._work = whole[-1], np.empty((2, self.size), np.float64), whole[:-1], list(whole[:-1])
        common = None
        if number == 0:
            items, (rest, uniforms), *_ = self._work
            common = Draw(items, root["probabilities"], root["weights"], rest, uniforms), root["ids"]
        columns = {}
        for name, (column, apart) in self._inside[number].items():
            array = root[name] if number == 0 else root
            array = array[WHOLE] if column.parts else array
            columns[name] = column.by_item(array, self.size) if apart else array
        block.arrays = arrays = self, number, common, columns
        return arrays

    def over(self, lent: Sequence[tuple[Block, Array]], view: Any, tag: object) -> BatchTarget:
        """Return the arrays of one batch of ``view`` over blocks of ``sizes`` and ``roots``.

        Args:
            view, tag: of the batch and its ids; the same for all batches of a layout.
        """
        roots = [root for _, root in lent]
        _, _, (draw, ids), columns = self._over(lent[0][0], 0)
        for number in range(1, len(lent)):
            columns = columns | self._over(lent[number][0], number)[3]
        assert self._work is not None
        rows: dict[str, Ragged] = view.no_rows(self.size) if getattr(view, "ragged", ()) else {}
        if self.batches is None:
            arrays = self._arrays(roots, tag)
            batch = view.batch(arrays | rows)
            if self._used:  # a layout that is used once needs no more
                self._places, like = (True, batch) if places_arrays(view) else (False, arrays)
                self.batches = core.Layout(like, roots)
                self._fill_at_once(view, roots, draw, ids, columns)
            self._used = True
        else:
            made = self.batches.over(roots)
            batch = made if self._places else view.batch(made | rows if rows else made)
        blocks, (*_, scratch, scratch_rows) = [block for block, _ in lent], self._work
        return BatchTarget(
            batch, draw, ids, columns, scratch, scratch_rows, blocks=blocks, filling=self.filling, ragged=rows
        )

    def _fill_at_once(
        self, view: Any, roots: Sequence[Array], draw: Draw, ids: Ints, columns: Mapping[str, Array]
    ) -> None:
        """Return the places of a batch's columns, if the core fills all of them at once."""
        names = getattr(view, "filled_at_once", None)
        if names is not None:
            assert self.batches is not None and self._work is not None
            filled = [draw.weights, draw.probabilities, ids, *(columns[name] for name in names)]
            self.filling = core.Filling(
                self.batches, self.sizes, roots, filled, draw.items, draw.rest, draw.uniforms, self._work[2]
            )

    def _arrays(self, roots: Sequence[Array], tag: object) -> dict[str | tuple[str, str], Array]:
        """Return the batch's arrays, by name, or by name and part."""
        arrays: dict[str | tuple[str, str], Array] = {"ids": tagged(roots[0]["ids"], tag)}
        for name, block, inner in self._plain:
            arrays[name] = roots[block] if inner is None else roots[block][inner]
        for key, block, inner, part in self._parts:
            arrays[key] = roots[block][part] if inner is None else roots[block][inner][part]
        return arrays


def places_arrays(view: Any) -> bool:
    """Return whether ``view.batch`` only places arrays in a batch, by the class that has it: then all batches of a
    size are made like one, unless they have ragged fields."""
    if getattr(view, "ragged", ()):  # which have memory of their own
        return False
    own: Any = next((kind for kind in type(view).__mro__ if "batch" in vars(kind)), object)
    return bool(vars(own).get("places_arrays"))
