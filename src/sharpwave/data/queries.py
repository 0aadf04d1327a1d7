"""Queries in SQL over the episodes and steps of a store's folder, which is not opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np

from sharpwave.data.episode import needed
from sharpwave.data.tables import (
    FACTS,
    arrow_values,
    columns_in,
    parsed,
    session,
    statements,
    step_schema,
    with_annotations,
)
from sharpwave.json_values import decode
from sharpwave.offline.surveys import EpisodeSpan, Stretch, Survey
from sharpwave.ragged import Ragged
from sharpwave.spec import START, TERMINATED, TRUNCATED

if TYPE_CHECKING:
    import pyarrow

MAX_BYTES = 4 << 30
"""Limit of the decoded bytes of the steps that a query reads."""
INTERRUPT_S = 0.1
"""Time between two attempts to end a query."""


def query(found: Survey, sql: str) -> pyarrow.Table:
    """Return the result of one ``select`` over the tables ``episodes`` and ``steps`` of a store's folder.

    Their columns are those of ``Store.table``, without ids and sparse fields. Only fields that the query names are
    decoded. It reads no other file and opens no connection.

    Raises:
        ValueError: it is no such query, or needs more than ``MAX_BYTES`` of steps.
        DamagedError: a segment was deleted meanwhile, or a column added later cannot be read.
        ModuleNotFoundError: the extra ``sql`` is not installed.
    """
    pa, spec, late = needed("pyarrow", "sql"), found.described.spec, found.late
    with session({}) as connection, statements():
        try:
            said = parsed(connection, sql)
        except ValueError as error:
            raise ValueError(f"sql: {error}") from error
        if len(said["statements"]) != 1:
            raise ValueError(f"sql: {len(said['statements'])} statements, expected one select")
        names, stars = columns_in(said)
        connection.register("episodes", episodes_of(sorted(found.episodes, key=lambda one: (one.lane, one.first_step))))
        fields = {name: field for name, field in spec.fields.items() if name not in spec.sparse_names} | late.fields
        known = [*fields]
        schema = step_schema(pa, fields, known)
        facts = len(schema) - len(known)
        wanted = [
            name
            for name, one in zip(known, schema.names[facts:], strict=True)
            if stars or one.lower() in {other.lower() for other in names}
        ]
        if _reads(said, "steps"):
            nbytes = found.steps * sum(fields[name].typical_bytes for name in wanted)
            if nbytes > MAX_BYTES:
                raise ValueError(
                    f"sql: {nbytes:,} bytes of steps, expected at most {MAX_BYTES:,}; name the columns that you need"
                )
            kept = pa.schema([one for k, one in enumerate(schema) if k < facts or known[k - facts] in wanted])
            batches = list(_steps(pa, kept, found, wanted))
            connection.register("steps", pa.Table.from_batches(batches, kept).drop(["id"]))
        return _result(connection, sql)


def _result(connection: Any, sql: str) -> pyarrow.Table:
    """Return the result of a query, which an interrupt ends: in a thread of its own, for DuckDB looks at signals only
    between the batches of a result."""
    with ThreadPoolExecutor(1) as threads:
        running: Future[Any] = threads.submit(lambda: connection.sql(sql).to_arrow_table())
        try:
            return running.result()
        finally:
            while not running.done():  # again: an interrupt before the query has begun is lost
                connection.interrupt()
                wait([running], INTERRUPT_S)


def episodes_of(episodes: Sequence[EpisodeSpan]) -> pyarrow.Table:
    """Return episodes of a folder as a table, with the columns of ``Store.table("episodes")`` but for the ids."""
    pa = needed("pyarrow", "sql")

    def ints(values: Iterator[int]) -> Any:
        return pa.array(list(values), pa.int64())

    columns = [
        ints(one.lane for one in episodes),
        ints(one.first_step for one in episodes),
        ints(one.first_step + one.steps - 1 for one in episodes),
        ints(one.steps for one in episodes),
        pa.array([one.total for one in episodes], pa.float64()),
        pa.array([one.begun for one in episodes], pa.bool_()),
        pa.array([None if one.end == "unfinished" else one.end for one in episodes], pa.string()),
    ]
    infos = [decode(dict(one.annotations)) for one in episodes]
    return with_annotations(pa, FACTS[: len(columns)], columns, infos)


def _steps(pa: Any, schema: Any, found: Survey, names: list[str]) -> Iterator[Any]:
    """Yield the steps of all episodes, in order."""
    own = [name for name in names if name not in found.late.fields]
    for episode in sorted(found.episodes, key=lambda one: (one.lane, one.first_step)):
        for part in found.read(episode, own):
            yield _batch(pa, schema, found, names, episode, part)


def _batch(pa: Any, schema: Any, found: Survey, names: list[str], episode: EpisodeSpan, part: Stretch) -> Any:
    spec, flags = found.described.spec, part.arrays["flags"][part.rows]
    rows = np.arange(part.rows.start, part.rows.stop)
    ids = part.segment.record.id + rows
    arrays: list[Any] = [np.full(len(rows), episode.lane), np.full(len(rows), episode.first_step)]
    arrays += [part.segment.header.first_step + rows, ids]
    arrays += [flags & START != 0, part.arrays["reward"][rows], flags & TERMINATED != 0, flags & TRUNCATED != 0]
    nulls: list[Any] = [None] * len(arrays)
    for name in names:
        if name in found.late.fields:
            values, written = found.late.read(name, ids)
            arrays.append(values)
            nulls.append(~written)
            continue
        values = part.arrays[name][part.frames[rows] if name in spec.obs_names else rows]
        field = spec.fields[name]
        empty = np.empty((0, *field.inner), field.np_dtype)
        arrays.append(Ragged.of(values.tolist(), empty, field.text) if name in spec.ragged_names else values)
        nulls.append(None)
    columns = [arrow_values(pa, *one) for one in zip(arrays, schema.types, nulls, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _reads(tree: Any, table: str) -> bool:
    """Return whether a table is named in DuckDB's tree of a statement."""
    if isinstance(tree, dict):
        if str(tree.get("table_name", "")).lower() == table:
            return True
        tree = list(tree.values())
    return isinstance(tree, list) and any(_reads(one, table) for one in tree)
