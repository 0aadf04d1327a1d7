"""Columns added later, between shards and their clients: values in batches, and values that clients write.

The head of a reply to a draw names the shard's columns among the fields of the request; each has two parts:
``late:NAME``, uint8 [rows, row bytes], and ``written:NAME``, bool [rows]. They are read under the lock under which
their items are drawn, and lie apart from the batch's own columns: the memory of a batch that was requested before a
column was added, or dropped, fits its reply. Draws leave the columns' metadata out, whatever its size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Bytes, Ints
from sharpwave.errors import NO_STATE
from sharpwave.log.late_columns import WRITTEN, LateColumn, LateColumns, described, field_of
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.remote_ids import checked_shards, checked_steps
from sharpwave.serve.wire import Frame, Part, Request, WireError, array_in
from sharpwave.spec import Field
from sharpwave.store import Store
from sharpwave.views.batch import SequenceBatch
from sharpwave.views.ids import Tag
from sharpwave.views.layout import BatchTarget
from sharpwave.views.sequences import window_values
from sharpwave.views.view_replay import without_gradient

Columns = dict[str, Field]
C = TypeVar("C")

REQUEST_BYTES = 4 << 20
"""Bytes of values of a request, unless a single one has more: a shard's memory for requests is limited."""
MAX_DESCRIBED_BYTES = 128 << 10
"""Bytes of a shard's columns, as JSON, with which clients may add one: a message's head has room for them."""


def columns_in(heads: Iterable[Mapping[str, Any]]) -> Columns:
    """Return the columns that shards have, by the heads of their descriptions."""
    return {name: field_of(about) for head in heads for name, about in head["columns"].items()}


def take_over(columns: Columns, heads: Sequence[Mapping[str, Any]]) -> bool:
    """Replace a client's ``columns`` that another client has dropped and added anew, where the shards agree on the new
    ones; return whether there are any."""
    there = [columns_in([head]) for head in heads]
    before = dict(columns)
    for name, own in before.items():
        first, *others = [one[name] for one in there if name in one] or [own]
        if not same_kind(own, first) and all(same_kind(first, one) for one in others):
            columns[name] = first
    return columns != before


def chosen(columns: Mapping[str, C], names: frozenset[str] | None) -> dict[str, C]:
    """Return the columns of batches with fields of these ``names`` only, which may be of values or marks; ``None``:
    all."""
    return {name: one for name, one in columns.items() if names is None or not names.isdisjoint((name, name + WRITTEN))}


# values in batches


def late_arrays(columns: Mapping[str, LateColumn], items: int, rows: int) -> dict[str, Bytes]:
    """Return memory for the values and marks of items of so many rows, for ``BatchTarget.with_late``."""
    sizes = {name: one.field.row_bytes for name, one in columns.items()}
    sizes |= dict.fromkeys([name + WRITTEN for name in columns], 1)
    return {name: np.zeros((items, rows, nbytes), np.uint8) for name, nbytes in sizes.items()}


def late_parts(
    columns: Mapping[str, LateColumn], arrays: Mapping[str, npt.NDArray[Any]]
) -> tuple[dict[str, Any], dict[str, Part]]:
    """Return the columns of a batch's items, and their values, as head and parts of a reply."""
    head = {name: {"shape": list(one.field.shape), "dtype": one.field.dtype} for name, one in columns.items()}
    parts: dict[str, Part] = {}
    for name, one in columns.items():
        values, written = arrays[name], arrays[name + WRITTEN].view(np.bool_)
        parts |= {f"late:{name}": values.reshape(-1, one.field.row_bytes), f"written:{name}": written.reshape(-1)}
    return ({"columns": head} if head else {}), parts


class LateTaker:
    """Reader of columns in replies, which are checked as untrusted input.

    Args:
        late: of an empty store of the shards' spec: the names that columns may have.
    """

    def __init__(self, late: LateColumns) -> None:
        self._late = late
        self._known: dict[str, tuple[Any, Field]] = {}

    def take(self, target: BatchTarget, message: Frame) -> None:
        """Take over the values of a part of a batch.

        Raises:
            WireError: the message does not hold them.
            MixedColumnError: a shard whose part was taken before has another column of that name.
        """
        columns = message.head.get("columns", {})
        if not isinstance(columns, dict):
            raise WireError(f"columns {columns!r:.100} of a batch, expected a dict")
        for name, about in columns.items():
            field = self._field(name, about)
            rows = len(target.ids) * int(np.prod(_windows(target.batch), dtype=np.int64))
            values = array_in(message.parts, f"late:{name}", np.uint8, rows, field.row_bytes)
            written = array_in(message.parts, f"written:{name}", np.bool_, rows)
            add_column(target.batch, name, field)
            here = slice(target.begin, target.begin + len(target.ids))
            for whole, given in ((name, rows_of(values, field)), (name + WRITTEN, _bools(written))):
                array = target.batch.fields[whole]
                array[here] = given.reshape(array[here].shape)

    def _field(self, name: str, about: Any) -> Field:
        """Return a column's field.  Raises: WireError."""
        known = self._known.get(name)
        if known is None or known[0] != about:
            try:
                field = field_of({**about, "metadata": {}})
                self._late.check_new("columns", name, field)
            except NO_STATE as error:
                raise WireError(f"column {name!r:.100} of a batch: {error}") from error
            known = self._known[name] = about, field
        return known[1]


class MixedColumnError(ValueError):
    """Shards sent values of one column for a batch, but of several dtypes or shapes."""


def add_column(batch: Any, name: str, field: Field) -> None:
    """Add a column to a batch, without values, unless it has it.  Raises: MixedColumnError: it has another one."""
    if name in batch.fields:
        if not fits(batch, name, field):
            array, inner = batch.fields[name], batch.fields[name + WRITTEN].ndim
            raise MixedColumnError(
                f"column {name!r}: it is {array.dtype} {list(array.shape[inner:])} in one shard and {field.dtype} "
                f"{list(field.shape)} in another; drop it in one of them"
            )
        return
    rows = len(batch.ids), *_windows(batch)
    batch.fields[name] = np.zeros((*rows, *field.shape), field.np_dtype)
    batch.fields[name + WRITTEN] = np.zeros(rows, np.bool_)


def fits(batch: Any, name: str, field: Field) -> bool:
    """Return whether a batch's column is of a kind."""
    array, inner = batch.fields[name], batch.fields[name + WRITTEN].ndim
    return bool(array.dtype == field.np_dtype and array.shape[inner:] == field.shape)


def _windows(batch: Any) -> tuple[int, ...]:
    """Return the shape of an item's rows."""
    return batch.mask.shape[1:] if isinstance(batch, SequenceBatch) else ()


# values that clients write


class Written(NamedTuple):
    """Values for steps of several shards, checked.

    Attributes:
        rows: [n, *shape]. ``steps``: for each part of a request the array [n] that names the steps: ``ids``; or
            ``lanes`` and ``steps``.
        shards: int64 [n], incarnations.
    """

    rows: npt.NDArray[Any]
    steps: dict[str, Ints]
    shards: Ints


def value_requests(
    rows: npt.NDArray[Any], steps: Mapping[str, Ints], max_bytes: int = REQUEST_BYTES
) -> Iterator[dict[str, Part]]:
    """Yield the parts of requests with values [n, *shape] of steps: the later of repeated steps come later."""
    each = max(1, max_bytes // max(1, rows[:1].nbytes + 8 * len(steps)))
    for begin in range(0, len(rows), each):
        here = slice(begin, begin + each)
        some = np.ascontiguousarray(rows[here])
        parts: dict[str, Part] = {name: array[here] for name, array in steps.items()}
        yield parts | {"values": some.reshape(len(some), -1).view(np.uint8).reshape(len(some), -1)}


def checked_values(
    name: str, field: Field, items: Any, values: Any, shards: Any, tag: Tag, links: Sequence[Link]
) -> Written:
    """Check values for the steps ``items``.

    Args:
        items: a batch of transitions, or their ids, with ``shards``; or a batch of sequences.
        tag, links: of the cluster.

    Raises: ValueError, TypeError: naming the argument.
    """
    given = without_gradient(values) if hasattr(values, "detach") else values
    if isinstance(items, SequenceBatch):
        lanes, numbers, rows, item = window_values(name, field, items, given)
        whole = checked_shards("write_column", items.shards if shards is None else shards, len(items))
        return Written(rows, {"lanes": lanes, "steps": numbers}, whole[item])
    ids, found = checked_steps("write_column", items, shards, tag, links)
    return Written(field.rows(name, given, len(ids)), {"ids": ids}, found)


def send_values(link: Link, head: Mapping[str, Any], values: Written) -> int:
    """Send a shard the values of its steps; return how many of the steps the shard holds.

    They are sent again if a connection broke: writing twice is writing once. The steps of a shard that does not
    answer, or that began anew, count as not held.
    """
    for _ in range(2):
        with suppress(ShardLostError):
            link.connect()
            own = values.shards == link.incarnation
            requests = value_requests(values.rows[own], {name: array[own] for name, array in values.steps.items()})
            replies = [link.call(Request.WRITE_COLUMN, head, parts) for parts in requests]
            return sum(int(reply.head["written"]) for reply in replies)
    return 0


def write_values(
    store: Store,
    head: Mapping[str, Any],
    parts: Mapping[str, Any],
    add_it: Callable[[Any, Field], None] | None = None,
) -> int:
    """Write the values of a request; return the number of its steps that are held.

    A store that lacks the column gets it, by ``add_it`` or ``add``: it began anew, or after the others.

    Raises:
        WireError: no such request.
        ValueError: there is another column of this name; and as ``add``.
    """
    name, field = name_in(head), field_in(head)
    values = array_in(parts, "values", np.uint8, -1, field.row_bytes)
    places = [
        array_in(parts, one, np.int64, len(values)) for one in (("ids",) if "ids" in parts else ("lanes", "steps"))
    ]
    if name not in store.columns:
        (partial(add, store) if add_it is None else add_it)(name, field)
    with store._lock:  # the column stays the one that was compared
        check_same(name, store._log.late.column("write_column", name).field, field)
        found = places[0] if len(places) == 1 else store.ids(*places, missing="mask")
        return store.write_column(name, found, rows_of(values, field))


def name_in(head: Mapping[str, Any]) -> str:
    """Return the name of the column of a request, which the store checks.  Raises: WireError."""
    name = head.get("name")
    if not isinstance(name, str):
        raise WireError(f"column {name!r:.100}, expected a name")
    return name


def field_in(head: Mapping[str, Any]) -> Field:
    """Return the field that a request describes.  Raises: ValueError."""
    try:
        return field_of(head["field"])
    except NO_STATE as error:
        raise ValueError(f"column {head.get('name')!r:.100}: {error}") from error


def add(store: Store, name: str, field: Field) -> None:
    """Add a column, unless the store has it, and write its name to the store's folder, also where an earlier call could
    not.

    Raises: ValueError: the store has another one.  OSError; and as ``Store.add_column``.
    """
    with store._lock:  # of two clients that add it, one does
        if lacks(store, name, field):
            store.add_column(name, field)
        keep_names(store)


def lacks(store: Store, name: Any, field: Field) -> bool:
    """Return whether a store lacks a column that may be added to it.  Raises: ValueError, TypeError: it may not be."""
    there = store.columns.get(name)
    if there is None:
        check_described(name, {**store.columns, name: field})
        store._log.late.check_new("add_column", name, field)
    else:
        check_same(name, there, field)
    return there is None


def drop(store: Store, name: Any) -> None:
    """Drop a column, if there is one, also from the store's folder.

    Raises: OSError: a crash may bring it back; call it again.  And as ``Store.drop_column``.
    """
    with store._lock:
        if name in store.columns:
            store.drop_column(name)
        keep_names(store)


def keep_names(store: Store) -> None:
    """Write which columns a store has to its folder. Values and steps are not written.  Raises: OSError."""
    if store._log.late.writer is not None:
        store._log.late.writer.write_names()


def check_described(name: str, columns: Columns) -> None:
    """Refuse a column with which the descriptions of all columns take too much.  Raises: ValueError."""
    nbytes = len(json.dumps({one: described(field) for one, field in columns.items()}))
    if nbytes > MAX_DESCRIBED_BYTES:
        raise ValueError(
            f"column {name!r:.100}: names and metadata of the columns added later take {nbytes:,} bytes as JSON with "
            f"it, expected at most {MAX_DESCRIBED_BYTES:,} in a shard; give it less metadata"
        )


def check_same(name: str, there: Field, given: Field) -> None:
    """Refuse a column that differs from the one there is.  Raises: ValueError."""
    if not same_kind(there, given):
        raise ValueError(
            f"column {name!r}: it is {there.dtype} {list(there.shape)} here, expected {given.dtype} {list(given.shape)}"
        )


def same_kind(one: Field, other: Field) -> bool:
    """Return whether values of one column fit the other."""
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def rows_of(values: Bytes, field: Field) -> npt.NDArray[Any]:
    """Return a peer's bytes [n, row bytes] as values [n, *shape]."""
    dtype = field.np_dtype
    if dtype == np.bool_:
        return _bools(values).reshape(len(values), *field.shape)
    aligned = np.ascontiguousarray(values).reshape(-1)
    return aligned.view(dtype).reshape(len(values), *field.shape)


def _bools(values: npt.NDArray[Any]) -> Bools:
    """Return a peer's bools, which may be other bytes than 0 and 1."""
    made: Bools = values.view(np.uint8) != 0
    return made
