"""Late columns: values of steps that come after the steps, such as returns, advantages and rewards of a model.

A late column is an array over the index's leaves, beside the segments: writing to it moves no step. Views read it
like a raw column of the segments. Each has a second column, ``NAME.written``, of the steps whose values were given.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Bytes, Ints
from sharpwave.codecs.raw import RAW
from sharpwave.format.marked_rows import DELETED, VALUED, packed, unpacked
from sharpwave.json_values import decode, encode
from sharpwave.log.inventory import LogListener
from sharpwave.memory.segment_index import LEAF_BITS, SegmentIndex
from sharpwave.native import core
from sharpwave.native.untouched import zeros
from sharpwave.sampling.sampler_protocol import checked_array
from sharpwave.spec import Field, Spec

WRITTEN = ".written"
"""Suffix of the name of a late column's mask, which tells the steps with a value; no late column has a dot."""
CHUNK_BYTES = 1 << 22
"""Bytes of a late column that are written to its files together."""
MAX_NAME_CHARACTERS = 100
RECENT = 64
"""Number of last deletions whose slots are known; views that followed none of them look at all slots."""


class ColumnWriter(Protocol):
    """Writer of late columns to the store's folder."""

    def write_names(self) -> None:
        """Write which columns there are.  Raises: OSError."""

    def write(self) -> None:
        """Write which columns there are, and values given since the last call.  Raises: OSError."""

    def write_deleted(self, more: Ints | None = None) -> None:
        """Write which steps were deleted, and the steps ``more`` with them.  Raises: OSError."""


@dataclass(eq=False)
class LateColumn:
    """One late column.

    Attributes:
        field: of a step's value.
        values: [leaves, *shape], 0 where none was given. ``written``: bool [leaves].
        key: random name, which tells its files from those of another column of its name.
        chunk_slots: slots of a chunk. ``changed``: chunks with values given since they were written to files.
    """

    field: Field
    values: npt.NDArray[Any]
    written: Bools
    chunk_slots: int
    key: str = dataclasses.field(default_factory=lambda: os.urandom(8).hex())
    changed: set[int] = dataclasses.field(default_factory=set)

    @property
    def parts(self) -> tuple[tuple[Bytes, int], tuple[Bytes, int]]:
        """The bytes of the values and of ``written``, each with its bytes a step."""
        values, written = (one.reshape(-1).view(np.uint8) for one in (self.values, self.written))
        return (values, self.field.row_bytes), (written, 1)


class LateColumns(LogListener):
    """Late columns of a log, by name. The store's lock is held.

    Attributes:
        columns: by name.
        spec: the log's, with two further fields for each column; views read these.
        version: incremented with each column added or dropped.
        writer: of the columns' files; ``None`` without a folder.
        room: returns the bytes that a column may take, without evicting steps.
        deleted: bool [leaves], whether a held step was deleted; ``None``: none ever was. ``deletions``: incremented
            with each deletion.
        marked: slots that have deleted steps, or had. ``unsettled``: those among them that may have become free.
    """

    def __init__(self, spec: Spec, index: SegmentIndex) -> None:
        self._own, self._index = spec, index
        self.columns: dict[str, LateColumn] = {}
        self.spec = spec
        self.version = 0
        self.writer: ColumnWriter | None = None
        self.room: Callable[[], float] = lambda: math.inf
        self.deleted: Bools | None = None
        self.deletions = 0
        self.marked, self.unsettled = set[int](), set[int]()
        self._recent = deque[Ints](maxlen=RECENT)  # slots of the last deletions
        self._counted = ((0, 0), 0)

    @property
    def followers(self) -> list[core.Items]:
        """None: the core clears the values of an evicted segment itself."""
        return []

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        rows = self._index.highest * self._index.stride
        own = 0 if self.deleted is None else rows
        return own + sum(rows * (column.field.row_bytes + 1) for column in self.columns.values())

    def check_new(self, what: str, name: Any, kind: Any) -> None:
        """Refuse a column that cannot be added.  Raises: ValueError, TypeError."""
        if not isinstance(kind, Field):
            raise TypeError(f"{what}: {name!r} is {kind!r}, expected a sharpwave.Field")
        if kind.stack is not None or kind.every is not None or kind.codec is not None:
            raise ValueError(f"{what}: {name!r} has stack=, every= or codec=, which a column added later cannot have")
        if kind.shared:
            raise ValueError(f"{what}: {name!r} has shared=True, which only fields of the spec can have")
        if kind.ragged:
            raise ValueError(
                f"{what}: {name!r} has rows of any length, which only fields of the spec can have; declare it there, "
                "or pad its values to one length"
            )
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
            raise ValueError(f"{what}: name={name!r}, expected 1 to {MAX_NAME_CHARACTERS} printable characters")
        if "." in name:
            raise ValueError(f"{what}: name={name!r}, expected one without a dot")
        if name in self._own.fields or name in self.columns:
            raise ValueError(f"{what}: there is a field {name!r} already")
        self._own.with_fields(self._fields() | {name: kind, name + WRITTEN: kind})

    def column(self, what: str, name: Any) -> LateColumn:
        """Return a column.  Raises: ValueError: there is none of this name."""
        if not isinstance(name, str) or name not in self.columns:
            own = " (it is a field of the spec, whose values come with the steps)" if name in self._own.fields else ""
            there = ", ".join(map(repr, self.columns)) or "none; add_column() makes one"
            raise ValueError(f"{what}: no column {name!r} was added{own}; there are {there}")
        return self.columns[name]

    def add(self, name: str, kind: Field) -> LateColumn:
        """Add a column without values.  Raises: MemoryError: ``ram`` has no room for it; nothing changed."""
        leaves, need = self._index.leaves, self._index.highest * self._index.stride * (kind.row_bytes + 1)
        if need > (room := self.room()):
            raise MemoryError(
                f"column {name!r}: takes {need:,} bytes of memory for the steps there are, and ram= leaves {room:,.0f} "
                "without evicting any; raise it (resize(ram=), or ram= of Store.open)"
            )
        chunk = max(1, CHUNK_BYTES // (self._index.stride * (kind.row_bytes + 1)))
        column = LateColumn(kind, zeros((leaves, *kind.shape), kind.np_dtype), zeros(leaves, np.bool_), chunk)
        self._become({**self.columns, name: column})
        return column

    def drop(self, name: str) -> None:
        """Drop a column and its values."""
        self._become({other: column for other, column in self.columns.items() if other != name})

    def _fields(self) -> dict[str, Field]:
        """Return the columns as fields, and whether each was written."""
        fields = dict[str, Field]()
        for name, column in self.columns.items():
            fields |= {name: column.field, name + WRITTEN: Field((), "bool")}
        return fields

    def _become(self, columns: dict[str, LateColumn]) -> None:
        before, self.columns = self.columns, columns
        self._clear_with_slots()
        del before  # not earlier: the core clears their memory until here
        self.spec = self._own.with_fields(self._fields())
        self.version += 1

    def _clear_with_slots(self) -> None:
        """Have the core clear a slot's values once its ids are stale: no later step may have them."""
        free = self._index.free
        free.clear_nothing()
        if self.deleted is not None:
            free.clear_with(self.deleted.view(np.uint8), self._index.stride)
        for column in self.columns.values():
            for memory, row_bytes in column.parts:
                free.clear_with(memory, row_bytes * self._index.stride)

    def growing(self, slots: int) -> None:
        """Enlarge the columns.  Raises: MemoryError: nothing changed."""
        leaves, held = slots * self._index.stride, self._index.highest * self._index.stride
        small = [column for column in self.columns.values() if len(column.written) < leaves]
        before, larger = [(column.values, column.written, self.deleted) for column in small], []
        gone, old = self.deleted, self.deleted
        if old is not None and len(old) < leaves:
            gone = zeros(leaves, np.bool_)
            gone[:held] = old[:held]
        for column in small:
            values, written = zeros((leaves, *column.field.shape), column.field.np_dtype), zeros(leaves, np.bool_)
            values[:held], written[:held] = column.values[:held], column.written[:held]
            larger.append((values, written))
        for column, (values, written) in zip(small, larger, strict=True):
            column.values, column.written = values, written
        self.deleted = gone
        self._clear_with_slots()
        del before, old  # not earlier: the core clears their memory until here
        self.version += bool(small)

    # deleted steps

    def deleted_steps(self, evicted_steps: int) -> int:
        """Return the number of steps that are held and deleted.

        Args:
            evicted_steps: the log's number; as long as it and the deletions stay, so does the result. Otherwise it
                costs O(slots), where any step was deleted.
        """
        if self.deleted is None:
            return 0
        now, (then, count) = (self.deletions, evicted_steps), self._counted
        if now != then:
            count = int(np.count_nonzero(self.deleted[: self._index.highest * self._index.stride]))
            self._counted = now, count
        return count

    def expect_deletions(self) -> None:
        """Provide memory for marks of deleted steps.  Raises: MemoryError; then nothing changed."""
        if self.deleted is None:
            self.deleted = zeros(self._index.leaves, np.bool_)
            self._clear_with_slots()

    def delete(self, leaves: Ints) -> None:
        """Mark steps as deleted, after ``expect_deletions``."""
        assert self.deleted is not None
        self.deleted[leaves] = True
        self.deletions += 1
        slots = np.unique(leaves // self._index.stride)
        self._recent.append(slots)
        self.marked.update(slots.tolist())
        self.unsettled.update(slots.tolist())

    def slots_deleted_since(self, deletions: int) -> Ints | None:
        """Return the slots in which steps were deleted since that number of deletions; ``None``: any."""
        count = self.deletions - deletions
        if not 0 < count <= len(self._recent):
            return None
        return np.unique(np.concatenate([*self._recent][-count:]))

    def is_deleted(self, leaves: Ints) -> Bools:
        """Return whether each step was deleted: bool [n]."""
        return np.zeros(len(leaves), np.bool_) if self.deleted is None else self.deleted[leaves]

    def deleted_state(self, more: Ints | None = None) -> dict[str, Any]:
        """Return the deleted steps for ``restore_deleted``, and the steps ``more`` with them."""
        assert self.deleted is not None
        highest = self._index.highest
        deleted = self.deleted[: highest * self._index.stride].copy()
        if more is not None:
            deleted[more] = True
        return packed(DELETED, self._index.generation[:highest], deleted)

    def restore_deleted(self, state: Any) -> None:
        """Mark the deleted steps of a state, as far as they are held.

        Raises: KeyError, TypeError, ValueError: not such a state; nothing changed.  MemoryError.
        """
        leaves, generations = unpacked(DELETED, state, self._index.stride)
        _, there = self.held(generations << LEAF_BITS | leaves)
        self.expect_deletions()
        self.delete(leaves[there])

    # values

    def write(self, name: str, items: Ints, values: npt.NDArray[Any]) -> None:
        """Give ``values`` [n, *shape] to steps; of repeated steps the last one counts. Cost: O(n).

        Args:
            items: int64 [n], the steps' leaves, all held.
        """
        column = self.columns[name]
        column.values[items], column.written[items] = values, True
        chunks = np.bincount(items // (self._index.stride * column.chunk_slots))  # np.unique takes ten times as long
        column.changed.update(np.flatnonzero(chunks).tolist())

    def held(self, ids: Ints) -> tuple[Ints, Bools]:
        """Return the leaves of steps, 0 for those not held, and whether each is held: [n]. Cost: O(n + slots)."""
        index = self._index
        spans = np.zeros((index.slots, 2), np.int32)
        spans[:, 1] = index.rows
        items, there = np.empty(len(ids), np.int64), np.empty(len(ids), np.bool_)
        core.resolve(ids, index.generation, spans, index.stride, items, there)
        if self.deleted is not None:
            there &= ~self.deleted[items]
            items[~there] = 0
        return items, there

    def arrays(self) -> Iterator[tuple[Field, dict[str, Any]]]:
        """Yield each column of ``spec`` beside the log's own, with the arrays by which ``gather`` reads it as raw."""
        index = self._index
        slots, first = index.slots, np.arange(index.slots) * index.stride
        for column in self.columns.values():
            for kind, (memory, row_bytes) in zip((column.field, Field((), "bool")), column.parts, strict=True):
                yield (
                    kind,
                    {
                        "memory": memory,
                        "offset": first * row_bytes,
                        "codec": np.full(slots, RAW, np.uint8),
                        "dictionary": np.zeros(slots, np.int32),
                        "counts": index.rows,
                        "references": np.zeros((1, row_bytes), np.uint8),
                    },
                )

    # states

    def state(self) -> dict[str, Any]:
        """Return all columns for ``restore``."""
        slots = self._index.highest
        return {name: described(one.field) | self.chunk(one, 0, slots) for name, one in self.columns.items()}

    def chunk(self, column: LateColumn, begin: int, end: int) -> dict[str, Any]:
        """Return a column's values in the slots from ``begin`` to before ``end``, and marks of their steps."""
        stride = self._index.stride
        written = column.written[begin * stride : end * stride]
        values = column.values[begin * stride : end * stride][written]
        marks = packed(VALUED, self._index.generation[begin:end], written)
        return marks | {"values": values.reshape(-1).view(np.uint8)}

    def take(self, column: LateColumn, begin: int, state: Mapping[str, Any]) -> int:
        """Take values from ``chunk`` of the segments that are still in the slots from ``begin`` on; return how many.

        Raises:
            ValueError: not such a state; nothing was taken.
        """
        index, stride = self._index, self._index.stride
        leaves, generations, rows = given(state, column.field, stride, begin)
        slots = leaves // stride
        held = slots < index.slots
        held[held] = generations[held] == index.generation[slots[held]]
        held[held] = leaves[held] - slots[held] * stride < index.rows[slots[held]]
        column.values[leaves[held]], column.written[leaves[held]] = rows[held], True
        return int(np.count_nonzero(held))

    def restore(self, state: Any) -> None:
        """Restore ``state``, as far as segments are held; the columns count as changed.

        Raises:
            ValueError, TypeError, KeyError: not such a state; columns before the wrong one are restored.
        """
        if not isinstance(state, dict):
            raise ValueError(f"columns: {type(state).__name__}, expected a dict")
        for name, one in state.items():
            kind = field_of(one)
            self.check_new("columns", name, kind)
            column = self.add(name, kind)
            self.take(column, 0, one)
            self.change_all(column)

    def change_all(self, column: LateColumn) -> None:
        """Have all of a column written to its files."""
        column.changed.update(range(-(-self._index.highest // column.chunk_slots)))


def described(kind: Field) -> dict[str, Any]:
    """Return a column's field for ``field_of``."""
    return {"shape": list(kind.shape), "dtype": kind.dtype, "metadata": encode(kind.metadata, "column")}


def field_of(state: Mapping[str, Any]) -> Field:
    """Return the field of ``described``.  Raises: ValueError, TypeError, KeyError."""
    shape, dtype = state["shape"], state["dtype"]
    if not isinstance(shape, list) or not isinstance(dtype, str):
        raise ValueError(f"columns: shape {shape!r} and dtype {dtype!r}, expected a list and a name")
    return Field(tuple(shape), dtype, metadata=decode(state["metadata"]))


def given(state: Mapping[str, Any], field: Field, stride: int, begin: int) -> tuple[Ints, Ints, npt.NDArray[Any]]:
    """Return the leaves, rising, the generations and the values of the steps with values in a state of ``chunk``.

    Args:
        begin: its first slot.

    Raises: ValueError, KeyError: not such a state.
    """
    rows, generations = unpacked(VALUED, state, stride)
    values = checked_array(state, "values", np.uint8)
    if len(values) != len(rows) * field.row_bytes or begin < 0:
        raise ValueError(f"{len(values):,} bytes of values, expected {len(rows) * field.row_bytes:,}")
    return begin * stride + rows, generations, values.view(field.np_dtype).reshape(-1, *field.shape)
