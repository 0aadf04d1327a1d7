"""Queries in SQL over the episodes and steps of a store's folder, which is not opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from sharpwave.offline.surveys import EpisodeSpan, Survey
from sharpwave.ragged import Ragged
from sharpwave.spec import START, TERMINATED, TRUNCATED

if TYPE_CHECKING:
    import pyarrow

MAX_BYTES = 4 << 30
"""Limit of the decoded bytes of the steps that a query reads."""


def query(found: Survey, sql: str) -> pyarrow.Table:
    """Return the result of one ``select`` over the tables ``episodes`` and ``steps`` of a store's folder.

    Their columns are those of ``Store.table``, without ids, sparse fields and columns added later. Only fields that the
    query names are decoded. It reads no other file and opens no connection.

    Raises:
        ValueError: it is no such query, or needs more than ``MAX_BYTES`` of steps.
        DamagedError: a segment was deleted meanwhile.  ModuleNotFoundError: the extra ``sql`` is not installed.
    """
    pa, spec = needed("pyarrow", "sql"), found.described.spec
    with session({}) as connection, statements():
        try:
            said = parsed(connection, sql)
        except ValueError as error:
            raise ValueError(f"sql: {error}") from error
        if len(said["statements"]) != 1:
            raise ValueError(f"sql: {len(said['statements'])} statements, expected one select")
        names, stars = columns_in(said)
        connection.register("episodes", episodes_of(sorted(found.episodes, key=lambda one: (one.lane, one.first_step))))
        known = [name for name in spec.fields if name not in spec.sparse_names]
        schema = step_schema(pa, spec, known)
        facts = len(schema) - len(known)
        wanted = [
            name
            for name, one in zip(known, schema.names[facts:], strict=True)
            if stars or one.lower() in {other.lower() for other in names}
        ]
        if _reads(said, "steps"):
            nbytes = found.steps * sum(spec.fields[name].typical_bytes for name in wanted)
            if nbytes > MAX_BYTES:
                raise ValueError(
                    f"sql: {nbytes:,} bytes of steps, expected at most {MAX_BYTES:,}; name the columns that you need"
                )
            kept = pa.schema([one for k, one in enumerate(schema) if k < facts or known[k - facts] in wanted])
            batches = list(_steps(pa, kept, found, wanted))
            connection.register("steps", pa.Table.from_batches(batches, kept).drop(["id"]))
        return connection.sql(sql).to_arrow_table()


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
    for episode in sorted(found.episodes, key=lambda one: (one.lane, one.first_step)):
        for part in found.read(episode, names):
            yield _batch(pa, schema, found, names, episode, part)


def _batch(pa: Any, schema: Any, found: Survey, names: list[str], episode: EpisodeSpan, part: Any) -> Any:
    flags, rows = part.arrays["flags"][part.rows], part.rows
    count = rows.stop - rows.start
    steps = episode.first_step + part.first + np.arange(rows.start, rows.stop)
    arrays: list[Any] = [
        np.full(count, episode.lane),
        np.full(count, episode.first_step),
        steps,
        np.zeros(count, np.int64),
    ]
    arrays += [flags & START != 0, part.arrays["reward"][rows], flags & TERMINATED != 0, flags & TRUNCATED != 0]
    for name in names:
        values = part.arrays[name][part.frames[rows] if name in found.described.spec.obs_names else rows]
        if name in found.described.spec.ragged_names:
            field = found.described.spec.fields[name]
            arrays.append(Ragged.of(values.tolist(), np.empty((0, *field.inner), field.np_dtype), field.text))
            continue
        arrays.append(values)
    columns = [arrow_values(pa, array, kind) for array, kind in zip(arrays, schema.types, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _reads(tree: Any, table: str) -> bool:
    """Return whether a table is named in DuckDB's tree of a statement."""
    if isinstance(tree, dict):
        if str(tree.get("table_name", "")).lower() == table:
            return True
        tree = list(tree.values())
    return isinstance(tree, list) and any(_reads(one, table) for one in tree)
