"""Rows of any length: what batches and episodes have of fields such as ``Field((None,), "int32")``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Bytes, Ints
from sharpwave.native import core

Text = Literal["str", "bytes"]

Lend = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]
MAX_INT32 = (1 << 31) - 1


class Ragged:
    """Rows of any length, 0 included, one behind the other.

    ``ragged[i]`` is a row: an array [length, *inner], a str or bytes. Slices, arrays of indices and masks select rows,
    and make another ``Ragged``. In batches of sequences the rows have two axes, ``ragged[b, t]``.

    Args:
        shape: of the rows, such as (B,) or (B, T); ``None``: one axis.
        text: "str" or "bytes", where rows are these; ``None``: numbers.

    Attributes:
        values: [total, *inner]; of text uint8 [total], UTF-8 where rows are strings.
        offsets: int64 [n + 1]: row i, counted over all axes, is ``values[offsets[i] : offsets[i + 1]]``.
    """

    def __init__(
        self, values: Any, offsets: Any, shape: tuple[int, ...] | None = None, text: Text | None = None
    ) -> None:
        self.values, self.offsets, self.text = values, offsets, text
        self.shape = (len(offsets) - 1,) if shape is None else tuple(shape)
        self._parts: list[tuple[int, int, Any, Ints]] = []  # first and last row, values, lengths
        self._joined = False

    @classmethod
    def of(cls, rows: Sequence[npt.NDArray[Any]], like: npt.NDArray[Any], text: Text | None = None) -> Ragged:
        """Join arrays, of the dtype and the inner shape of ``like`` [0, *inner]."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.concatenate([like, *rows]), offsets, text=text)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        kind = self.text or str(self.values.dtype).removeprefix("torch.")
        inner = "".join(f", {n}" for n in self.values.shape[1:])
        return f"<Ragged {kind} [{', '.join(map(str, self.shape))}, None{inner}]>"

    @classmethod
    def of_parts(cls, parts: Sequence[npt.NDArray[Any]], lengths: Sequence[Ints], text: Text | None) -> Ragged:
        """Return rows of ``lengths`` [n] whose values lie behind one another in ``parts``, at least one."""
        offsets = np.concatenate([np.zeros(1, np.int64), *lengths])
        return cls(np.concatenate(parts), np.cumsum(offsets), text=text)

    def take_part(self, first: int, values: npt.NDArray[Any], lengths: Ints, lend: Lend) -> None:
        """Take the rows from number ``first`` on, of ``lengths`` [n] in ``values``, in the place of earlier ones.

        Rows that were never taken are empty. Once there are parts of all rows, they are joined.

        Args:
            lend: returns uninitialized memory of a shape and dtype.
        """
        last, count = first + len(lengths), len(self.offsets) - 1
        if self._joined:  # a part is filled again, as a segment was damaged
            found, ends = np.diff(self.offsets), self.offsets
            self._parts = [(0, first, self.values[: ends[first]], found[:first])]
            self._parts += [(last, count, self.values[ends[last] :], found[last:])]
            self._joined = False
        others = [part for part in self._parts if part[1] <= first or part[0] >= last]
        self._parts = sorted([*others, (first, last, values, lengths)], key=lambda part: part[0])
        if sum(end - begin for begin, end, _, _ in self._parts) < count:
            return
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            joined = values
        else:
            total = sum(len(part) for _, _, part, _ in parts)
            joined = np.concatenate(
                [part for _, _, part, _ in parts], out=lend((total, *values.shape[1:]), values.dtype)
            )
        np.cumsum(np.concatenate([part for _, _, _, part in parts]), out=self.offsets[1:])
        self.values, self._joined = joined, True

    def taken(self) -> tuple[npt.NDArray[Any], Ints]:
        """Return the values of the rows that were taken so far, in order, and their lengths."""
        if not self._parts:
            return self.values, np.diff(self.offsets)
        return np.concatenate([part[2] for part in self._parts]), np.concatenate([part[3] for part in self._parts])

    def items(self, begin: int, end: int) -> Ragged:
        """Return the rows of some items, numbers along the first axis, which were taken."""
        if not self._parts:
            return self._some(np.arange(len(self.offsets) - 1).reshape(self.shape)[begin:end])
        each = (len(self.offsets) - 1) // max(1, self.shape[0])
        taken = [part for part in self._parts if part[0] >= begin * each and part[1] <= end * each]
        lengths = np.concatenate([np.zeros(1, np.int64), *(part[3] for part in taken)])
        values = np.concatenate([self.values[:0], *(part[2] for part in taken)])
        return Ragged(values, np.cumsum(lengths), (end - begin, *self.shape[1:]), self.text)

    def reorder(self, items: Ints, lend: Lend) -> None:
        """Put the rows of ``items`` [n], numbers along the first axis, in their place of this order."""
        rows = self._some(np.arange(len(self.offsets) - 1).reshape(self.shape)[items], lend)
        self.values, self.offsets[:] = rows.values, rows.offsets

    def empty_rows(self, numbers: Ints) -> None:
        """Empty some rows."""
        lengths = np.diff(self.offsets)
        kept = np.repeat(np.isin(np.arange(len(lengths)), numbers, invert=True), lengths)
        lengths[numbers] = 0
        self.values = self.values[kept]
        np.cumsum(lengths, out=self.offsets[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.values.nbytes + self.offsets.nbytes)

    @property
    def lengths(self) -> Any:
        """Length of each row, int64 of ``shape``."""
        return (self.offsets[1:] - self.offsets[:-1]).reshape(self.shape)

    def row(self, number: int) -> Any:
        """Return a row by its number over all axes."""
        row = self.values[int(self.offsets[number]) : int(self.offsets[number + 1])]
        if self.text is None:
            return row
        content = np.asarray(row).tobytes()
        return content.decode() if self.text == "str" else content

    def __getitem__(self, index: Any) -> Any:
        numbers = np.arange(len(self.offsets) - 1).reshape(self.shape)[index]
        return self.row(int(numbers)) if np.ndim(numbers) == 0 else self._some(numbers)

    def _some(self, numbers: Ints, lend: Lend = np.empty) -> Ragged:
        """Return rows by their numbers, of the shape of ``numbers``, in memory that ``lend`` returns."""
        self._check_numpy("selecting rows")
        chosen = np.ascontiguousarray(numbers, np.int64).reshape(-1)
        begins = self.offsets[:-1][chosen]
        lengths = self.offsets[1:][chosen] - begins
        offsets = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = lend((int(offsets[-1]), *self.values.shape[1:]), self.values.dtype)
        copy_rows(self.values, begins, lengths, values, offsets[:-1])
        return Ragged(values, offsets, numbers.shape, self.text)

    def map(self, function: Any) -> Ragged:
        """Return the same rows with ``function`` applied to ``values`` and to ``offsets``."""
        return Ragged(function(self.values), function(self.offsets), self.shape, self.text)

    def padded(
        self, value: Any = 0, side: Literal["left", "right"] = "right", multiple_of: int = 1
    ) -> tuple[npt.NDArray[Any], Bools]:
        """Return the rows as one array [*shape, L, *inner], and a mask, bool [*shape, L], False where it is padding.

        Args:
            value: of the padding. ``side``: on which it lies.
            multiple_of: L is the greatest length, rounded up to a multiple of it.

        Raises: ValueError: an invalid argument.
        """
        self._check_numpy("padded()")
        if side not in ("left", "right"):
            raise ValueError(f"padded: side={side!r}, expected 'left' or 'right'")
        if not isinstance(multiple_of, (int, np.integer)) or multiple_of < 1:
            raise ValueError(f"padded: multiple_of={multiple_of!r}, expected an integer of at least 1")
        lengths = np.diff(self.offsets)
        longest = -(-int(lengths.max(initial=0)) // int(multiple_of)) * int(multiple_of)
        out = np.full((len(lengths), longest, *self.values.shape[1:]), value, self.values.dtype)
        places, begins = np.arange(longest), np.arange(len(lengths)) * longest
        if side == "left":
            mask = places >= longest - lengths[:, None]
            begins += longest - lengths
        else:
            mask = places < lengths[:, None]
        copy_rows(self.values, self.offsets[:-1], lengths, out.reshape(-1, *out.shape[2:]), begins)
        return out.reshape(*self.shape, *out.shape[1:]), mask.reshape(*self.shape, longest)

    def packed(self) -> tuple[Any, Any]:
        """Return ``values`` and ``cu_seqlens``, the offsets as int32 [n + 1], as kernels of attention take them.

        Raises: ValueError: the values are too many for int32.
        """
        if int(self.offsets[-1]) > MAX_INT32:
            raise ValueError(f"packed: {int(self.offsets[-1]):,} values, expected at most {MAX_INT32:,}")
        offsets = self.offsets
        return self.values, offsets.astype(np.int32) if isinstance(offsets, np.ndarray) else offsets.int()

    def torch(self) -> Any:
        """Return the rows as a jagged nested tensor of torch, [n, None, *inner], which shares the values' memory."""
        import torch

        values, offsets = (torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in (self.values, self.offsets))
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    def strings(self) -> list[Any]:
        """Return the rows as strings; where rows have two axes, as lists of these.

        Raises: TypeError: the rows are no strings.
        """
        if self.text != "str":
            raise TypeError(f"strings: rows of {self.text or self.values.dtype}, expected those of a Field(str)")
        return self._nested([content.decode() for content in self._contents()])

    def bytes(self) -> list[Any]:
        """Return the rows' bytes; of strings their UTF-8.  Raises: TypeError: the rows are numbers."""
        if self.text is None:
            raise TypeError(f"bytes: rows of {self.values.dtype}, expected those of a Field(str) or Field(bytes)")
        return self._nested(self._contents())

    def _contents(self) -> list[Any]:
        whole, offsets = np.asarray(self.values).tobytes(), self.offsets.tolist()
        return [whole[begin:end] for begin, end in pairwise(offsets)]

    def _nested(self, rows: list[Any]) -> list[Any]:
        flat = np.empty(len(rows), object)
        flat[:] = rows
        nested: list[Any] = flat.reshape(self.shape).tolist()
        return nested

    def _check_numpy(self, what: str) -> None:
        if not isinstance(self.values, np.ndarray):
            raise TypeError(
                f"{what}: rows of {type(self.values).__name__}, expected numpy's; do it before batch.torch()"
            )


def copy_rows(source: npt.NDArray[Any], begins: Ints, lengths: Ints, out: npt.NDArray[Any], places: Ints) -> None:
    """Copy the rows of ``lengths`` [n] items from ``begins`` [n] of ``source`` on to ``places`` [n] of ``out``."""
    size = source.dtype.itemsize * int(np.prod(source.shape[1:], dtype=np.int64))
    begins, lengths = np.ascontiguousarray(begins), np.ascontiguousarray(lengths)
    core.copy_rows(_flat(source), size, begins, lengths, _flat(out), np.ascontiguousarray(places))


def _flat(array: npt.NDArray[Any]) -> Bytes:
    flat: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat
