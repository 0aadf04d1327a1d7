"""Arrow tables of a store's episodes and steps, which DuckDB, Polars and pandas read; and episodes chosen by them."""

from __future__ import annotations

import json
import os
import string
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Ints
from sharpwave.data.episode import needed
from sharpwave.json_values import encode
from sharpwave.log.late_columns import WRITTEN
from sharpwave.ragged import Ragged
from sharpwave.spec import START, TERMINATED, TRUNCATED, Field
from sharpwave.views.episodes import EpisodeReader, Table, find

if TYPE_CHECKING:
    import pyarrow


FACTS = ("lane", "first_step", "last_step", "length", "return", "begun", "ended", "first_id")
"""Columns of every table of episodes; annotations follow, one column a key."""
TABLE = "episodes"
"""Name of the table that conditions in SQL are evaluated over."""
STEP_FACTS = ("lane", "first_step", "step", "id", "first", "reward", "terminated", "truncated")
"""Columns of every table of steps; ``first_step`` is its episode's, as in the table of episodes."""
MAX_WHOLE = 1 << 53
"""Largest integer up to which a float64 has all."""
_SMALL = {ord(one): one.lower() for one in string.ascii_uppercase}
MAX_ROWS, MAX_BYTES = 1 << 16, 1 << 24
"""Limits of one batch of steps."""


def episode_table(table: Table, reader: EpisodeReader) -> pyarrow.Table:
    """Return episodes as a table: a row an episode, the columns ``FACTS``, and one for each key of their annotations.

    Strings, numbers and bools are columns of their type; a key with other or mixed values is a column of JSON. A key
    with the name of an earlier column, whatever the case of its letters, has the column ``info.KEY``.
    Episodes evicted meanwhile have no annotations.
    """
    pa = needed("pyarrow", "sql")
    return with_annotations(pa, FACTS, facts(pa, table), reader.annotations_of(table))


def with_annotations(pa: Any, names: Sequence[str], columns: Sequence[Any], infos: Sequence[Mapping[str, Any]]) -> Any:
    """Return a table of these columns, and of one for each key of the annotations."""
    names, columns = list(names), list(columns)
    for key in dict.fromkeys(key for info in infos for key in info):
        names.append(unused(key, names, "info."))
        columns.append(column(pa, [info.get(key) for info in infos]))
    return pa.table(columns, names=names)


def facts(pa: Any, table: Table) -> list[Any]:
    """Return the columns ``FACTS`` of episodes."""
    ends = {TERMINATED: "terminated", TRUNCATED: "truncated", TERMINATED | TRUNCATED: "terminated", 0: None}
    ended = [ends[flag] for flag in (table.flags & (TERMINATED | TRUNCATED)).tolist()]
    found = [table.lane, table.first_step, table.first_step + table.length - 1, table.length, table.total, table.begun]
    return [*(pa.array(array) for array in found), pa.array(ended, pa.string()), pa.array(table.id)]


def lowered(name: str) -> str:
    """Return a name as SQL compares it: DuckDB takes capitals of ASCII for small letters, and no others."""
    return name.translate(_SMALL)


def unused(name: str, taken: Sequence[str], prefix: str) -> str:
    """Return a name that no column has, behind as many prefixes as that takes. SQL ignores the case of letters."""
    while lowered(name) in (lowered(one) for one in taken):
        name = prefix + name
    return name


def column(pa: Any, values: list[Any]) -> Any:
    """Return annotations by one key as a column; ``None``: the episode has none."""
    kinds = {type(value) for value in values if value is not None}
    whole = all(abs(value) <= MAX_WHOLE for value in values if type(value) is int)
    if kinds == {int, float} and whole:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    for kind, arrow in ((str, pa.string()), (bool, pa.bool_()), (int, pa.int64()), (float, pa.float64())):
        if kinds == {kind} and not (
            kind is int and any(value is not None and abs(value) >= 1 << 63 for value in values)
        ):
            return pa.array(values, arrow)
    texts = [None if value is None else json.dumps(encode({"": value}, "info")[""]) for value in values]
    return pa.array(texts, pa.string())


def known_names(names: Any, known: Sequence[str], what: str) -> list[str]:
    """Return the names asked for, of ``known``; ``None``: all.  Raises: ValueError, TypeError."""
    if names is None:
        return list(known)
    if isinstance(names, str) or not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"table: fields={names!r}, expected a list of names")
    for name in names:
        if name not in known:
            raise ValueError(f"table: no {what} {name!r}, expected some of {', '.join(known)}")
    return list(dict.fromkeys(names))


def matching(table: Table, reader: EpisodeReader, where: Any) -> Ints:
    """Return the places of the episodes for which ``where`` holds, ascending.

    Args:
        where: a condition in SQL, evaluated by DuckDB, or an expression of ``pyarrow.compute``, over the columns of
            ``episode_table``. A null is no match.

    Raises:
        ValueError: it cannot be evaluated; names the columns there are.  TypeError: neither a string nor an expression.
        ModuleNotFoundError: DuckDB or pyarrow is missing.
    """
    pa, compute = needed("pyarrow", "sql"), needed("pyarrow.compute", "sql")
    if not isinstance(where, str | compute.Expression):
        raise TypeError(
            f"where={where!r}: expected a condition in SQL, as \"length > 10 and task = 'push'\", or an expression of "
            "pyarrow.compute"
        )
    found = pa.table(facts(pa, table), names=FACTS)
    with suppress(ValueError):  # it names an annotation, or is wrong
        if not isinstance(where, str) or _names_facts_only(where):
            return rows_where(found, where)
    order = np.lexsort((table.first_step, table.lane))  # as in Store.table: annotations' columns are named in it
    return np.sort(order[rows_where(episode_table(table.some(order), reader), where)])


def _names_facts_only(where: str) -> bool:
    """Return whether a condition in SQL names no columns but ``FACTS``. Annotations take longer to read than it to
    evaluate.  Raises: ValueError: it is none."""
    with session({}) as connection:
        names, stars = columns_in(parsed(connection, f"select 1 from {TABLE} where (\n{where}\n)"))
    return not stars and {lowered(name) for name in names} <= set(FACTS)


def rows_where(found: pyarrow.Table, where: Any, timeout_s: float | None = None, **settings: Any) -> Ints:
    """Return the rows of a table of episodes for which ``where`` holds, as ``matching`` does, ascending.

    Args:
        timeout_s, settings: as for ``session``.
    """
    pa = needed("pyarrow", "sql")
    names = ", ".join(found.column_names)
    place = unused(f"place {os.urandom(8).hex()}", found.column_names, "its ")  # which no condition names
    found = found.append_column(place, pa.array(np.arange(found.num_rows)))
    try:
        if isinstance(where, str):
            with session({TABLE: found}, timeout_s, **settings) as connection:
                chosen = connection.table(TABLE).filter(where).project(f'"{place}"').to_arrow_table()
        else:
            chosen = found.filter(where)
    except (ValueError, pa.ArrowException) as error:
        raise ValueError(f"where={str(where)!r}: {error}; an episode has the columns {names}") from error
    return np.sort(np.asarray(chosen[place].to_numpy(), np.int64))


@contextmanager
def session(tables: Mapping[str, Any], timeout_s: float | None = None, **settings: Any) -> Iterator[Any]:
    """Make a session of DuckDB that knows these tables only: it reads no file and opens no connection.

    Args:
        timeout_s: time after which its statements are ended; ``None``: no limit. ``settings``: of DuckDB.

    Raises: ValueError: a statement cannot be evaluated, or took too long.  ModuleNotFoundError: DuckDB is missing.
    """
    with connected(**settings) as connection, ExitStack() as stack:
        for name, one in tables.items():
            connection.register(name, one)
        if timeout_s is not None:
            timer = threading.Timer(timeout_s, connection.interrupt)
            timer.start()
            stack.callback(timer.join)
            stack.callback(timer.cancel)
        with statements():
            yield connection


def connected(**settings: Any) -> Any:
    """Return a connection to an empty database of DuckDB in memory, which reads no file and opens no connection."""
    return needed("duckdb", "sql").connect(config={"enable_external_access": "false", **settings})


@contextmanager
def statements() -> Iterator[None]:
    """Raise errors of DuckDB's statements as ValueError, and its interrupts as KeyboardInterrupt."""
    try:
        yield
    except needed("duckdb", "sql").Error as error:
        text = str(error).partition("\n\nLINE")[0].partition(" You might need to add")[0]  # before the statement itself
        raise ValueError(" ".join(text.split())) from error
    except RuntimeError as error:
        if "interrupt" in str(error).lower():  # DuckDB takes the signal, and raises this in its place
            raise KeyboardInterrupt from error
        raise


def parsed(connection: Any, sql: str) -> Any:
    """Return DuckDB's tree of statements.  Raises: ValueError: they cannot be parsed."""
    said = json.loads(connection.execute("select json_serialize_sql(?)", [sql]).fetchall()[0][0])
    if said["error"]:
        raise ValueError(said["error_message"])
    return said


def columns_in(tree: Any) -> tuple[set[str], bool]:
    """Return the names of columns in DuckDB's tree of a statement, perhaps with tables and parts of columns; and
    whether it names all columns of a table."""
    names, stars = set[str](), False
    if isinstance(tree, dict):
        if tree.get("class") == "COLUMN_REF":
            parts = tree["column_names"]
            names.update(parts[1:] if len(parts) > 1 and parts[0].lower() == TABLE else parts)
        stars = tree.get("class") == "STAR"
        tree = list(tree.values())
    if isinstance(tree, list):
        for one in tree:
            more, star = columns_in(one)
            names |= more
            stars |= star
    return names, stars


def step_reader(table: Table, reader: EpisodeReader, names: Sequence[str]) -> pyarrow.RecordBatchReader:
    """Return the steps of episodes as a reader of batches: a row a step, the columns ``STEP_FACTS`` and fields.

    A field with axes is a column of flat lists; its shape is in the column's metadata. One with the name of a fact has
    the column ``field.NAME``. A column added later is null where it was not written. Steps evicted before their batch
    is read are left out. Each batch is decoded when it is read, under the store's lock.
    """
    pa = needed("pyarrow", "sql")
    spec = reader.log.late.spec
    schema = step_schema(pa, spec.fields, names)
    row_bytes = sum(spec.fields[name].typical_bytes for name in names)
    most = max(1, min(MAX_ROWS, MAX_BYTES // max(1, row_bytes)))
    return pa.RecordBatchReader.from_batches(schema, _batches(pa, schema, table, reader, names, most))


def step_schema(pa: Any, fields: Mapping[str, Field], names: Sequence[str], taken: Sequence[str] = ()) -> Any:
    """Return the columns of steps; a field's column has none of the names ``taken``."""
    kinds = [pa.int64()] * 4 + [pa.bool_(), pa.float32(), pa.bool_(), pa.bool_()]
    columns = [pa.field(name, kind) for name, kind in zip(STEP_FACTS, kinds, strict=True)]
    for name in names:
        free = unused(name, [*taken, *(one.name for one in columns)], "field.")
        columns.append(_field(pa, free, fields[name]))
    return pa.schema(columns)


def _field(pa: Any, name: str, field: Field) -> Any:
    if field.dtype == "float16":  # DuckDB has no type of two bytes
        field = replace(field, dtype="float32")
    shape = {"shape": json.dumps(list(field.shape))} if field.shape and field.text is None else None
    return pa.field(name, arrow_type(pa, field), metadata=shape)


def arrow_type(pa: Any, field: Field) -> Any:
    """Return the type of a field's column: values, flat lists, lists of any length, strings or bytes."""
    if field.text is not None:
        return pa.large_string() if field.text == "str" else pa.large_binary()
    kind, inner = pa.from_numpy_dtype(field.np_dtype), field.inner if field.ragged else field.shape
    item = pa.list_(kind, int(np.prod(inner))) if inner else kind
    return pa.large_list(item) if field.ragged else item


def _batches(
    pa: Any, schema: Any, table: Table, reader: EpisodeReader, names: Sequence[str], most: int
) -> Iterator[pyarrow.RecordBatch]:
    for begin, end in pairwise(_groups(table, most)):
        some = table.some(slice(begin, end))
        step, last = int(some.first_step[0]), int(some.first_step[-1] + some.length[-1])
        while (held := _held(some, step, last, reader)) is not None:
            step, ids = held
            for first in range(0, len(ids), most):
                part = ids[first : first + most]
                try:
                    batch = _batch(pa, schema, some, reader, names, step, part)
                except KeyError:
                    break  # evicted meanwhile: find the steps that are still held
                yield batch
                step += len(part)


def _held(some: Table, step: int, last: int, reader: EpisodeReader) -> tuple[int, Ints] | None:
    """Return a lane's first held step from ``step`` to before ``last``, and the ids of the held steps from it on."""
    if step >= last:
        return None
    if step == some.first_step[0]:
        with suppress(KeyError):
            return step, np.asarray(reader.ids(int(some.id[0]), last - step))
    with reader.lock:
        now = find(reader.log, [int(some.lane[0])], with_totals=False)
        begin, found = step, list[Ints]()
        for first, length, id_ in zip(now.first_step.tolist(), now.length.tolist(), now.id.tolist(), strict=True):
            if first + length <= step or first >= last:
                continue
            if found and first != begin + sum(map(len, found)):
                break
            begin = begin if found else max(step, first)
            found.append(np.asarray(reader.ids(id_, length))[max(0, step - first) : last - first])
    return (begin, np.concatenate(found)) if found else None


def _batch(
    pa: Any, schema: Any, some: Table, reader: EpisodeReader, names: Sequence[str], step: int, ids: Ints
) -> pyarrow.RecordBatch:
    """Decode the steps with these ids, from ``step`` on.  Raises: KeyError: some were evicted."""
    first, count = int(ids[0]), len(ids)
    steps = np.arange(step, step + count)
    episode = some.first_step[np.searchsorted(some.first_step, steps, side="right") - 1]
    flags = reader.flags(first, count)
    arrays = [np.full(count, some.lane[0]), episode, steps, ids, flags & START != 0, reader.rewards(first, count)]
    arrays += [flags & TERMINATED != 0, flags & TRUNCATED != 0]
    late, spec = reader.log.late.columns, reader.log.late.spec
    gone = [name for name in names if name not in spec.fields]
    if gone:
        raise ValueError(f"table: the column {gone[0]!r} was dropped before it was read; make the table anew")
    masks: list[npt.NDArray[np.bool_] | None] = [None] * len(arrays)
    arrays += [reader.read(name, first, count) for name in names]
    masks += [~reader.read(f"{name}{WRITTEN}", first, count) if name in late else None for name in names]
    columns = [arrow_values(pa, *one) for one in zip(arrays, schema.types, masks, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _groups(table: Table, most: int) -> list[int]:
    """Return where groups of adjoining episodes of a lane begin, of ``most`` steps or one episode, and the end."""
    begins, steps = [0], 0
    for place, length in enumerate(table.length.tolist()):
        before = place - 1
        apart = place and (
            table.lane[place] != table.lane[before]
            or table.first_step[place] != table.first_step[before] + table.length[before]
        )
        if place and (apart or steps + length > most):
            begins.append(place)
            steps = 0
        steps += length
    return [*begins, len(table.lane)] if len(table.lane) else [0]


def arrow_values(pa: Any, array: Any, kind: Any, null: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return values of steps as a column, null where said; those with axes as flat lists."""
    if isinstance(array, Ragged):
        offsets = np.ascontiguousarray(array.offsets)
        if array.text is not None:
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(array.values))]
            return pa.Array.from_buffers(kind, len(array), buffers)
        return pa.LargeListArray.from_arrays(pa.array(offsets), arrow_values(pa, array.values, kind.value_type))
    if array.ndim == 1:
        return pa.array(array, kind, mask=null)
    flat = pa.array(np.ascontiguousarray(array).reshape(-1), kind.value_type)
    return pa.FixedSizeListArray.from_arrays(flat, type=kind, mask=None if null is None else pa.array(null))
