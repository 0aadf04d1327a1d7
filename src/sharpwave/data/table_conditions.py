"""Conditions of views over the columns of a store's tables, evaluated for each episode alone."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import warnings
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from sharpwave.arrays import Bools, Ints
from sharpwave.data.episode import needed
from sharpwave.data.tables import (
    FACTS,
    STEP_FACTS,
    TABLE,
    column,
    columns_in,
    connected,
    facts,
    lowered,
    parsed,
    statements,
    step_reader,
    step_schema,
    unused,
)
from sharpwave.errors import DamagedError, level_of_caller
from sharpwave.spec import Spec
from sharpwave.views.episodes import EpisodeReader, Table

_KINDS: dict[type, str] = {str: "string", bool: "bool", float: "double"}
"""Types of columns that one value tells."""
MAX_UNTYPED = 3
"""Limit of the annotations without a value whose types are tried for an expression of ``pyarrow.compute``."""


class TableCondition:
    """Condition in SQL, evaluated by DuckDB, or an expression of ``pyarrow.compute``.

    Its columns are those of the table of episodes; where it names others that the table of steps has, it is evaluated
    for each step, over both. An annotation that an episode lacks is null, and a condition that is null does not hold.
    So does one that cannot be evaluated for an episode, of which a RuntimeWarning tells once.

    Args:
        late: names of columns added later, which a condition cannot name: their values may change after it was asked.

    Attributes:
        text: the condition; an expression's ``str``.

    Raises:
        ValueError: no such condition.  TypeError: neither a string nor an expression.
        ModuleNotFoundError: DuckDB or pyarrow is missing.
    """

    def __init__(self, where: Any, spec: Spec, late: Collection[str] = ()) -> None:
        self._pa, compute = needed("pyarrow", "sql"), needed("pyarrow.compute", "sql")
        self._is_sql = isinstance(where, str)
        if not self._is_sql and not isinstance(where, compute.Expression):
            raise TypeError(
                f"where={where!r}: expected a condition in SQL, as \"length > 10 and task = 'push'\", or an expression "
                "of pyarrow.compute"
            )
        self._where, self.text, self._spec = where, str(where), spec
        self._connection: Any = None
        _made.add(self)
        self._by_step = self._warned = False
        schema = step_schema(self._pa, spec.fields, list(spec.fields), FACTS)
        of_steps = {one: k for k, one in enumerate(schema.names) if one not in FACTS}
        try:
            named = self._names(of_steps, schema)
            if changing := sorted(named & {self._plain(one) for one in late}):
                raise ValueError(
                    f"{changing[0]!r} is a column added later, whose values may change after it is judged: draw by it "
                    f"with sampler=Prioritized(by={changing[0]!r}), or fetch the ids that table('steps') has"
                )
            steps = [one for one in of_steps if self._plain(one) in named]
            self._by_step = bool(steps)
            self._fields = [name for k, name in enumerate(spec.fields) if schema.names[len(STEP_FACTS) + k] in steps]
            self._taken = [*FACTS, *(of_steps if self._by_step else ())]
            self._keys = named - {self._plain(one) for one in self._taken}
            if self._is_sql:
                self._places(self._example(schema), sorted(self._keys))
        except (ValueError, self._pa.ArrowException) as error:
            raise ValueError(
                f"where={self.text!r}: {error}; an episode has the columns {', '.join(FACTS)} and its annotations, a "
                f"step also {', '.join(of_steps)}"
            ) from error

    def _plain(self, name: str) -> str:
        return lowered(name) if self._is_sql else name

    def _names(self, of_steps: dict[str, int], schema: Any) -> set[str]:
        """Return the names of columns in the condition, in SQL of lower case; perhaps some more."""
        if self._is_sql:
            with statements():
                for text in (self.text, f"(\n{self.text}\n)"):  # one expression, with parentheses and without
                    said = parsed(self._session, f"select 1 from {TABLE} where {text}")
            if (name := _of_another_table(said)) is not None:  # which would be taken for an annotation that is missing
                *table, column = name
                raise ValueError(f'no table {".".join(table)!r}; name {column!r} alone, or quote "{".".join(name)}"')
            return {lowered(name) for name in columns_in(said)[0]}
        table, found = self._example(schema), set(FACTS)
        while True:
            try:
                table.filter(self._where)
            except self._pa.ArrowException as error:
                missing = _missing(error)
                if missing is None or missing in found:
                    return found
                found.add(missing)
                kind = schema.field(missing).type if missing in of_steps else self._pa.null()
                table = table.append_column(self._pa.field(missing, kind), [self._pa.nulls(0, kind)])
            else:
                return found

    def _example(self, schema: Any) -> Any:
        """Return a table without rows, of the columns that every episode has, and of its steps'."""
        no = np.zeros(0, np.int64)
        none = Table(no, no, no, np.zeros(0), np.zeros(0, np.uint8), np.zeros(0, np.bool_), no)
        table = self._pa.table(facts(self._pa, none), names=list(FACTS))
        if not self._by_step:
            return table
        more = [one for one in schema if one.name not in FACTS]
        return self._pa.table(
            [*table.columns, *(self._pa.nulls(0, one.type) for one in more)],
            names=[*FACTS, *(one.name for one in more)],
        )

    @property
    def _session(self) -> Any:
        if self._connection is None:
            self._connection = _database().cursor()  # its tables are its own
        return self._connection

    def forked(self) -> None:
        """Let go of the parent's connection."""
        _leak(self._connection)
        self._connection = None

    # judging

    def matches(self, table: Table, reader: EpisodeReader, place: Ints, step: Ints) -> Bools:
        """Return whether it holds for some steps, as ``views.conditions.Condition``."""
        infos = reader.annotations_of(table) if self._keys else [{}] * len(table.lane)
        groups: dict[tuple[Any, ...], list[int]] = {}  # of episodes with values of the same types, by annotation
        values, wanted = list[dict[str, Any]](), dict[tuple[str, ...], list[tuple[str, str]]]()
        for number, info in enumerate(infos):
            keys = tuple(info)
            if keys not in wanted:
                wanted[keys] = self._wanted(keys)
            values.append({name: info[key] for key, name in wanted[keys]})
            kinds = tuple((name, self._kind(value)) for name, value in values[-1].items())
            groups.setdefault(kinds, []).append(number)
        chosen: dict[int, Ints | None] = {}  # by episode that matches: the steps that do; None: all
        for kinds, episodes in groups.items():
            self._judge([name for name, _ in kinds], episodes, values, table, reader, chosen)
        order = np.argsort(place, kind="stable")
        begins = np.searchsorted(place[order], np.arange(len(table.lane) + 1))
        found = np.zeros(len(place), np.bool_)
        for number, steps in chosen.items():
            here = order[begins[number] : begins[number + 1]]
            found[here] = True if steps is None else np.isin(step[here], steps)
        return found

    def _wanted(self, keys: Sequence[str]) -> list[tuple[str, str]]:
        """Return those of an episode's annotations that the condition names, each with its column, by column."""
        names = list(self._taken)
        for key in keys:
            names.append(unused(key, names, "info."))
        columns = zip(names[len(self._taken) :], keys, strict=True)
        return [(key, name) for name, key in sorted(columns) if self._plain(name) in self._keys]

    def _kind(self, value: Any) -> str:
        """Return the type of a column of such values."""
        return _KINDS.get(type(value)) or str(column(self._pa, [value]).type)

    def _judge(
        self,
        names: list[str],
        episodes: list[int],
        values: list[dict[str, Any]],
        table: Table,
        reader: EpisodeReader,
        chosen: dict[int, Ints | None],
    ) -> None:
        """Note in ``chosen`` those of ``episodes``, whose annotations ``names`` have values of the same types, that
        match."""
        some = table.some(np.array(episodes))
        columns = facts(self._pa, some) + [column(self._pa, [values[k][name] for k in episodes]) for name in names]
        rows = self._pa.table(columns, names=[*FACTS, *names])
        absent = sorted(self._keys - {self._plain(name) for name in names})
        try:
            if not self._by_step:
                chosen.update((episodes[one], None) for one in self._places(rows, absent).tolist())
                return
            for number, steps in self._matching_steps(some, rows, reader, absent):
                before = chosen.get(episodes[number])
                chosen[episodes[number]] = steps if before is None else np.concatenate([before, steps])
        except (ValueError, OSError, DamagedError, self._pa.ArrowException) as error:
            if len(episodes) > 1:  # of the others it can be told
                for one in episodes:
                    self._judge(names, [one], values, table, reader, chosen)
            elif not self._warned:
                self._warned = True
                warnings.warn(
                    f"where={self.text!r}: {error}; episodes for which it cannot be evaluated are not drawn (the first "
                    f"is in lane {table.lane[episodes[0]]}, from step {table.first_step[episodes[0]]} on)",
                    RuntimeWarning,
                    stacklevel=level_of_caller(),
                )

    def _matching_steps(
        self, some: Table, rows: Any, reader: EpisodeReader, absent: Sequence[str]
    ) -> Iterator[tuple[int, Ints]]:
        """Yield episodes, by their places, and numbers of steps of theirs for which it holds."""
        schema = step_schema(self._pa, self._spec.fields, self._fields, FACTS)
        for batch in step_reader(some, reader, self._fields):
            firsts, steps = (np.asarray(batch.column(name)) for name in ("first_step", "step"))
            here = np.flatnonzero(some.lane == batch.column("lane")[0].as_py())
            number = here[np.searchsorted(some.first_step[here], firsts)]
            joined = rows.take(number)
            for name, values in zip(schema.names, batch.columns, strict=True):
                if name not in FACTS:
                    joined = joined.append_column(name, [values])
            held = self._places(joined, absent)
            for one in np.unique(number[held]).tolist():
                yield one, steps[held][number[held] == one]

    def _places(self, rows: Any, absent: Sequence[str]) -> Ints:
        """Return the rows of a table for which it holds.

        Args:
            absent: columns that are null.

        Raises: ValueError, ArrowException: it cannot be evaluated.
        """
        pa, count = self._pa, rows.num_rows
        if self._is_sql:
            for name in absent:
                rows = rows.append_column(name, [pa.nulls(count)])
            name = unused("place", rows.column_names, "its ")
            with statements():
                self._session.register(TABLE, rows.append_column(name, [pa.array(np.arange(count))]))
                asked = self._session.execute(f'select "{name}" from {TABLE} where (\n{self.text}\n)')
                chosen = asked.fetchnumpy()[name]
                self._session.unregister(TABLE)
            return np.sort(np.asarray(chosen, np.int64))
        kinds = pa.bool_(), pa.string(), pa.int64(), pa.float64()  # a null needs one that the expression takes
        failed: Exception | None = None
        for some in itertools.product(kinds, repeat=min(len(absent), MAX_UNTYPED)):
            table = rows.append_column("its place", [pa.array(np.arange(count))])
            for name, kind in itertools.zip_longest(absent, some, fillvalue=pa.string()):
                table = table.append_column(name, [pa.nulls(count, kind)])
            try:
                return np.sort(np.asarray(table.filter(self._where)["its place"], np.int64))
            except pa.ArrowException as error:
                failed = error
        assert failed is not None
        raise failed


@functools.cache
def _database() -> Any:
    """Return the process's empty database: making one takes 13 ms, a connection to it microseconds."""
    return connected(threads=1)


def _leak(connection: Any) -> None:
    """Free a connection of the parent never: that would wait for threads that only the parent has."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


_made: weakref.WeakSet[TableCondition] = weakref.WeakSet()


def _in_child() -> None:
    for one in list(_made):
        one.forked()
    if _database.cache_info().currsize:
        _leak(_database())
        _database.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _of_another_table(tree: Any) -> list[str] | None:
    """Return the first name of a column of another table than ``TABLE``, outside of subqueries, in DuckDB's tree."""
    if isinstance(tree, dict):
        parts = tree["column_names"] if tree.get("class") == "COLUMN_REF" else []
        if len(parts) > 1 and lowered(parts[0]) != TABLE:
            return list(parts)
        tree = [] if tree.get("class") == "SUBQUERY" else list(tree.values())
    found = (_of_another_table(one) for one in tree) if isinstance(tree, list) else iter(())
    return next((one for one in found if one is not None), None)


def _missing(error: Exception) -> str | None:
    """Return the name of the column that a table lacks, by Arrow's message."""
    found = re.match(r"No match for FieldRef\.Name\((.*?)\) in ", str(error), re.DOTALL)
    return None if found is None else found[1]
