"""Parts of batches as messages: encoded rows, cut out by the shard and decoded by the learner.

A message has parts by name: ``ids``, ``probabilities``; ``rows:NAME``, windows of encoded rows of a column, and
``pieces:NAME``, uint32 [2, n], if the rows differ in length; ``column:NAME``, other columns; ``places``, begins and
ends of windows of steps; and ``row_dictionary:FIELD:PLACE``, dictionaries of these rows that the connection lacks.
Of fields with rows of any length there are ``values:NAME``, one row behind the other, and ``lengths:NAME``; also where
the other columns are decoded into shared memory. Of shared fields, ``column:NAME`` or ``values:NAME`` has each distinct
row once, and ``which:NAME`` says which of these each row of the batch is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes, Ints
from sharpwave.codecs.dictionaries import PLACES, DictionaryTable
from sharpwave.codecs.ragged_rows import check_text
from sharpwave.errors import DamagedError
from sharpwave.ragged import copy_rows
from sharpwave.serve.wire import MAX_BODY_BYTES, Frame, Part, WireError, array_in
from sharpwave.spec import Field, Spec
from sharpwave.views.cutting import CutReader, RowCutter
from sharpwave.views.gather import Read, RowReader
from sharpwave.views.layout import BatchTarget
from sharpwave.views.step_views import AFTER, StepView
from sharpwave.views.view_protocol import View

Sent = dict[tuple[int, int], bytes]
"""Dictionaries that a connection has had, by field and place."""

DICTIONARY = "row_dictionary:"
"""Begins the names of their parts; no other reply has such names (``Link`` reads them from any)."""
MAX_DICTIONARY_BYTES = 1 << 28
"""Limit of the dictionaries that a shard makes a learner keep: some 30,000 of frames of Atari."""
MAX_FIELDS = 1 << 12
MAX_PLACE = 1 << 31


def written(target: BatchTarget, cutter: RowCutter, tables: Sequence[DictionaryTable], sent: Sent) -> dict[str, Part]:
    """Return the parts of a message with a batch's items.

    Args:
        cutter: has cut their rows.
        tables: the fields' dictionaries. ``sent``: dictionaries that the connection has; updated.
    """
    parts: dict[str, Part] = {"ids": target.ids.copy(), "probabilities": target.draw.probabilities.copy()}
    for name, array in target.columns.items():
        if name in cutter.shared:
            size = array.shape[-1]
            which, rows = _distinct(array.tobytes(), np.full(array.size // size, size))
            parts[f"column:{name}"] = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, size)
            parts[f"which:{name}"] = _narrow(which)
        elif name not in cutter.columns and name not in target.late:
            parts[f"column:{name}"] = _narrow(array) if array.dtype == np.int64 else array.copy()
    for name, column in cutter.columns.items():
        parts[f"rows:{name}"] = column.rows
        if column.all_pieces is not None:
            parts[f"pieces:{name}"] = _narrow(column.all_pieces)
        for place in np.flatnonzero(column.used).tolist():
            data, key = tables[column.field].data(place), (column.field, place)
            if place and sent.get(key) is not data:
                for one in [one for one, had in sent.items() if tables[one[0]].data(one[1]) is not had]:
                    del sent[one]  # nothing refers to it any more
                sent[key] = data
                parts[f"{DICTIONARY}{column.field}:{place}"] = data
    if cutter.places is not None:
        parts["places"] = _narrow(cutter.places)
    return parts


def ragged_parts(target: BatchTarget, spec: Spec) -> dict[str, Part]:
    """Return the rows of any length of a batch's items, as parts of a message.

    Raises: ValueError: rows of a shared field that take more than a message may hold, each by itself.
    """
    parts: dict[str, Part] = {}
    for name, rows in target.ragged.items():
        values, lengths = rows.taken()
        field = spec.fields[name.removesuffix(AFTER)]
        if field.shared:
            if values.nbytes > MAX_BODY_BYTES:
                raise ValueError(f"{name}: rows of {values.nbytes:,} bytes, expected at most {MAX_BODY_BYTES:,}")
            which, distinct = _distinct(values.tobytes(), lengths * field.item_bytes)
            values = np.frombuffer(b"".join(distinct), np.uint8).view(field.np_dtype).reshape(-1, *field.inner)
            lengths = np.array([len(row) for row in distinct], np.int64) // field.item_bytes
            parts[f"which:{name}"] = _narrow(which)
        parts |= {f"values:{name}": values, f"lengths:{name}": _narrow(lengths)}
    return parts


def _distinct(content: bytes, sizes: Ints) -> tuple[Ints, list[bytes]]:
    """Return the distinct rows of ``content``, in which rows of ``sizes`` bytes lie one behind the other, and which of
    these each row is."""
    found = dict[bytes, int]()
    rows = (content[begin:end] for begin, end in pairwise(accumulate(sizes.tolist(), initial=0)))
    which = np.fromiter((found.setdefault(row, len(found)) for row in rows), np.int64, len(sizes))
    return which, list(found)


def take_ragged(target: BatchTarget, message: Frame, spec: Spec) -> None:
    """Take the rows of any length of a message over, which are checked as untrusted input.  Raises: WireError."""
    for name, rows in target.ragged.items():
        field = spec.fields[name.removesuffix(AFTER)]
        each = int(np.prod(rows.shape[1:], dtype=np.int64))
        values, sizes = ragged_in(message.parts, name, field)
        count = each * len(target.ids)
        if field.shared:
            values, sizes = _repeated(name, values, sizes, _which(message.parts, name, len(sizes), count))
        elif len(sizes) != count:
            raise WireError(f"rows of {name}: lengths of {len(sizes)}, expected {count}")
        rows.take_part(target.begin * each, values, sizes, np.empty)


def ragged_in(parts: Mapping[str, Any], name: str, field: Field) -> tuple[npt.NDArray[Any], Ints]:
    """Return rows of any length of a message: their values, one row behind the other, and their lengths.

    Raises: WireError: they are not of ``field``.
    """
    values, lengths = parts.get(f"values:{name}"), parts.get(f"lengths:{name}")
    if not isinstance(values, np.ndarray) or not isinstance(lengths, np.ndarray) or not values.ndim:
        raise WireError(f"a message without rows of {name}, expected values and lengths")
    if lengths.dtype.kind not in "iu" or lengths.ndim != 1:
        raise WireError(f"rows of {name}: lengths {lengths.shape} {lengths.dtype}, expected integers [n]")
    sizes = lengths.astype(np.int64)
    fits = sizes.min(initial=0) >= 0 and sizes.max(initial=0) <= field.most_items and sizes.sum() == len(values)
    if not fits or values.dtype != field.np_dtype or values.shape[1:] != field.inner:
        raise WireError(f"rows of {name}: lengths do not fit {values.shape} {values.dtype}")
    if field.text == "str":
        ends = np.cumsum(sizes).tolist()
        try:
            for number, (end, size) in enumerate(zip(ends, sizes.tolist(), strict=True)):
                check_text(values[end - size : end].data, number)
        except DamagedError as error:
            raise WireError(f"rows of {name}: {error}") from error
    return values, sizes


def _which(parts: Mapping[str, Any], name: str, rows: int, count: int) -> Ints:
    """Return which of so many distinct ``rows`` each of ``count`` rows of a shared field is.  Raises: WireError."""
    which = parts.get(f"which:{name}")
    if not isinstance(which, np.ndarray) or which.dtype.kind not in "iu" or which.shape != (count,):
        raise WireError(f"a batch's rows of {name}, expected which of {rows} distinct ones each of {count} is")
    numbers = which.astype(np.int64)
    if count and not 0 <= numbers.min() <= numbers.max() < rows:
        raise WireError(f"a batch's rows of {name}: from {numbers.min()} to {numbers.max()} of {rows} distinct ones")
    return numbers


def _repeated(name: str, values: npt.NDArray[Any], sizes: Ints, which: Ints) -> tuple[npt.NDArray[Any], Ints]:
    """Return the rows ``which`` of some distinct ones, and their lengths.  Raises: WireError: they take too much."""
    lengths = sizes[which]
    total, item_bytes = sum(lengths.tolist()), values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    if total * item_bytes > MAX_BODY_BYTES:
        raise WireError(f"a batch's rows of {name}: {total * item_bytes:,} bytes, expected at most {MAX_BODY_BYTES:,}")
    made = np.empty((total, *values.shape[1:]), values.dtype)
    copy_rows(values, (np.cumsum(sizes) - sizes)[which], lengths, made, np.cumsum(lengths) - lengths)
    return made, lengths


def _narrow(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy as the narrowest unsigned integers that hold it, if any do."""
    least, most = int(array.min(initial=0)), int(array.max(initial=0))
    for dtype in (np.uint8, np.uint16, np.uint32):
        if least >= 0 and most <= np.iinfo(dtype).max:
            return array.astype(dtype)
    return array.copy()


class Dictionaries:
    """Dictionaries received over a link with rows, by field and place.

    Rows keep the dictionaries that were current when they arrived: a replacement makes a new object.
    """

    def __init__(self, data: Mapping[tuple[int, int], bytes] | None = None) -> None:
        self._data: Sent = dict(data or {})
        self._tables: dict[int, tuple[DictionaryTable, Bytes]] = {}

    def after(self, parts: Mapping[str, Any]) -> Dictionaries:
        """Return the dictionaries, updated from a message's parts.  Raises: WireError."""
        new: Sent = {}
        for name, part in parts.items():
            if name.startswith(DICTIONARY):
                new[_key(name)] = bytes(part)
        if not new:
            return self
        result = Dictionaries(self._data) if new.keys() & self._data.keys() else self
        result._data |= new
        if sum(map(len, result._data.values())) > MAX_DICTIONARY_BYTES:
            raise WireError(f"more than {MAX_DICTIONARY_BYTES:,} bytes of dictionaries on one connection")
        for (field, place), data in new.items():
            if field in result._tables:
                table, known = result._tables[field]
                table.put(place, data)
                known[place] = 1
        return result

    def table(self, field: int, row_bytes: int) -> tuple[DictionaryTable, Bytes]:
        """Return a field's table, for rows of ``row_bytes``, and uint8 [places], whether there is a dictionary."""
        if field not in self._tables:
            table, known = DictionaryTable(row_bytes), np.zeros(PLACES, np.uint8)
            known[0] = 1
            for (number, place), data in self._data.items():
                if number == field:
                    table.put(place, data)
                    known[place] = 1
            self._tables[field] = table, known
        return self._tables[field]


def _key(name: str) -> tuple[int, int]:
    field, _, place = name.removeprefix(DICTIONARY).partition(":")
    written = max(len(field), len(place)) < 10 and field.isdecimal() and place.isdecimal()
    if not (written and int(field) < MAX_FIELDS and 0 < int(place) < PLACES):
        raise WireError(f"part {name!r}, expected {DICTIONARY}FIELD:PLACE, a place from 1 to {PLACES - 1}")
    return int(field), int(place)


def read_into(
    target: BatchTarget, message: Frame, view: View[Any], fields: Sequence[Field], numbers: Mapping[str, int]
) -> None:
    """Read the parts of a message into a batch's memory. Parts are checked as untrusted input.

    Args:
        fields: the spec's. ``numbers``: numbers of the fields with encoded rows, by the column's name.

    Raises:
        WireError: the message does not hold the items.
        UnknownCodecError: its rows use a codec that is not registered here.
    """
    parts, divided = message.parts, cast("StepView[Any]", view)
    try:
        target.ids[:] = array_in(parts, "ids", np.int64, len(target.ids))
        chances = target.draw.probabilities
        chances[:] = array_in(parts, "probabilities", np.float64, len(chances))
        if not ((chances > 0) & (chances <= 1 + 1e-9)).all():
            raise ValueError("probabilities, expected numbers above 0, up to 1")
        reads: list[Read] = []
        readers: list[RowReader] = []
        for name, array in target.columns.items():
            if f"rows:{name}" in parts:
                field = numbers[name]
                table, known = message.dictionaries.table(field, fields[field].row_bytes)
                pieces = _pieces(parts.get(f"pieces:{name}"), array.shape[0] * array.shape[1])
                length = np.full(len(array), array.shape[1]) if pieces is None else pieces[0]
                reader = CutReader(array_in(parts, f"rows:{name}", np.uint8, -1), length, table, known, fields[field])
                reads.append(_read(name, field, reader, pieces))
                readers.append(reader)
            else:
                column = parts[f"column:{name}"]
                if name in numbers and fields[numbers[name]].shared and isinstance(column, np.ndarray):
                    if column.ndim != 2 or column.shape[1] != array.shape[-1]:
                        raise ValueError(f"column {name}, expected distinct rows of {array.shape[-1]} bytes")
                    which = _which(parts, name, len(column), array.size // array.shape[-1])
                    column = column[which].reshape(array.shape)
                if not isinstance(column, np.ndarray) or column.shape != array.shape:
                    raise ValueError(f"column {name}, expected an array of shape {array.shape}")
                array[:] = column
        if divided.decode_rows:
            places = np.asarray(parts["places"]).astype(np.int64)
            if places.size and not 0 <= places.min() <= places.max() < MAX_PLACE:
                raise ValueError(f"places from {places.min()} to {places.max()}")
            target.scratch[: divided.decode_rows] = places
        divided.decode(target, reads, readers)
    except (KeyError, ValueError, TypeError, DamagedError) as error:
        raise WireError(f"a batch's part does not fit: {type(error).__name__}: {error}") from error


def _pieces(part: Any, rows: int) -> Ints | None:
    """Return the windows' lengths and places as int64 [2, n], within so many ``rows``.  Raises: ValueError."""
    if part is None:
        return None
    pieces = np.ascontiguousarray(part).astype(np.int64)
    if pieces.ndim != 2 or len(pieces) != 2 or pieces.shape[1] > rows:
        raise ValueError(f"pieces {pieces.shape}, expected [2, n] for {rows} rows")
    length, begin = pieces
    if pieces.size and (length.min() < 1 or begin.min() < 0 or max(length.max(), begin.max()) > rows):
        raise ValueError(f"pieces that are not within {rows} rows")
    if (begin + length > rows).any():
        raise ValueError(f"pieces that are not within {rows} rows")
    return pieces


def _read(name: str, field: int, reader: CutReader, pieces: Ints | None) -> Read:
    """Return the rows to decode: all of each window, which are columns of their own."""
    newest = reader.counts.astype(np.int64) - 1
    slot, first = np.arange(len(newest)), np.zeros(len(newest), np.int64)
    if pieces is None:
        return Read(name, field, slot, newest, first)
    return Read(name, field, slot, newest, first, np.stack([slot, newest, first, *pieces]))
