"""``sharpwave sql PATH "select ..."``: a query over the episodes and steps of a store's folder."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any

import typer

from sharpwave.cli.output import STORE_PATH, bytes_bar, console, table
from sharpwave.escaping import escaped
from sharpwave.training.folder import replay_of


def sql(
    path: STORE_PATH,
    query: Annotated[
        str, typer.Argument(help='a select in SQL, such as "select task, avg(length) from episodes group by all"')
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON object for each row")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print comma-separated values")] = False,
) -> None:
    """Query the episodes and steps of a store's folder in SQL, by DuckDB.

    The table episodes has a row an episode: lane, first_step, last_step, length, return, begun, ended and a column for
    each key of their annotations. The table steps has a row a step: lane, first_step (its episode's), step, first,
    reward, terminated, truncated, the fields, and the columns added later, null where they were not written; only
    columns that the query names are decoded. Quote names that are words of SQL: "return". A result
    wider than the terminal is printed row by row, a column a line. Nothing is changed, and the store may be in use.
    """
    if as_json and as_csv:
        raise ValueError("sql: got --json and --csv, expected one of them")
    from sharpwave.data.queries import query as run
    from sharpwave.offline.scan import LOOKS
    from sharpwave.offline.surveys import VanishedError, survey
    from sharpwave.persistence.checkpoint_file import folder_of

    with folder_of(replay_of(path)) as folder:
        for looks_left in reversed(range(LOOKS)):
            with bytes_bar("reading") as progress:
                try:
                    found = survey(folder, progress)
                except OSError as error:
                    raise ValueError(f"sql: {error}") from error
            try:
                result = run(found, query)
                break
            except VanishedError:
                if not looks_left:
                    raise
        damages = [*map(str, found.damages), *filter(None, [found.late.damage])]
        for damage in damages[:1]:
            more = f" and {len(damages) - 1:,} more" if len(damages) > 1 else ""
            print(f"left out: {damage}{more}; see `sharpwave verify`", file=sys.stderr)
    rows = zip(*(column.to_pylist() for column in result.columns), strict=True)
    if as_json:
        names = list[str]()
        for name in result.column_names:
            names.append(name if name not in names else f"{name}:{len(names)}")
        for row in rows:
            print(json.dumps(dict(zip(names, map(_plain, row), strict=True)), default=str))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.column_names)
        writer.writerows(rows)
    else:
        _show(result.column_names, [[_text(value) for value in row] for row in rows])


def _show(names: Sequence[str], rows: list[list[str]]) -> None:
    """Print rows as a table; where it is wider than the terminal, each row's columns one below the other."""
    from rich.markup import escape

    out, shown = console(), table(*(escape(escaped(name)) for name in names))
    for row in rows:
        shown.add_row(*map(escape, row))
    unlimited = out.options.update(max_width=sys.maxsize)
    if out.measure(shown, options=unlimited).maximum <= out.width:
        out.print(shown)
        return
    width = max(len(escaped(name)) for name in names)
    for number, row in enumerate(rows, 1):
        out.print(f"row {number:,}", style="bold", highlight=False)
        for name, text in zip(names, row, strict=True):
            out.print(f"  {escaped(name):{width}}  {text}", highlight=False, markup=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: whole numbers as such, ``None`` for NaN and infinity, bytes as text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


def _text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else escaped(value)
