"""A run's metrics as a table: one row an event of metrics.jsonl, one column a figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from sharpwave.showing import table

SHOWN_ROWS = 10
"""Rows that a notebook shows, the newest."""


class MetricsTable(Mapping[str, list[Any]]):
    """Columns by name, of events of a run's log in their order; None where an event has no such figure.

    ``event`` is "episode", "report" or "evaluation", and ``steps`` says when it was. Figures within others have their
    names joined by dots: ``learner.learning_rate``.

    Args:
        events: the log's events.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._rows = [dict(_flat(event)) for event in events]
        names = dict.fromkeys(name for row in self._rows for name in row)
        self._columns = {name: [row.get(name) for row in self._rows] for name in names}

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def of(self, event: str) -> MetricsTable:
        """Return the rows of one kind of event, with the columns that these have."""
        return MetricsTable(row for row in self._rows if row.get("event") == event)

    def to_dict(self) -> dict[str, list[Any]]:
        return dict(self._columns)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``.  Raises: ModuleNotFoundError: pandas is not installed."""
        return import_module("pandas").DataFrame(self._columns)

    def to_polars(self) -> Any:
        """Return a ``polars.DataFrame``.  Raises: ModuleNotFoundError: polars is not installed."""
        return import_module("polars").DataFrame(self._columns, strict=False, infer_schema_length=None)

    def __repr__(self) -> str:
        return f"<MetricsTable: {len(self._rows):,} rows of {', '.join(self._columns)}>"

    def _repr_html_(self) -> str:
        names = [name for name, column in self._columns.items() if not any(isinstance(one, list) for one in column)]
        last = self._rows[-SHOWN_ROWS:]
        return table(names, ([_text(row.get(name)) for name in names] for row in last))


def _flat(event: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in event.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield within + name, value


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
