"""``sharpwave sql PATH "select ..."``: a query over the episodes and steps of a store's folder."""

from __future__ import annotations

import csv
import json
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from sharpwave.cli.output import bytes_bar, console, table
from sharpwave.escaping import escaped
from sharpwave.training.folder import replay_of


def sql(
    path: Annotated[
        Path, typer.Argument(help="a store's folder, as given to sharpwave.Store(disk=...), a run's, or a checkpoint")
    ],
    query: Annotated[
        str, typer.Argument(help='a select in SQL, as "select task, avg(length) from episodes group by all"')
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON object a row")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print comma-separated values")] = False,
) -> None:
    """Query the episodes and steps of a store's folder in SQL, by DuckDB.

    The table episodes has a row an episode: lane, first_step, last_step, length, return, begun, ended and a column for
    each key of their annotations. The table steps has a row a step: lane, first_step (its episode's), step, first,
    reward, terminated, truncated and the fields; only fields that the query names are decoded. Names that SQL has its
    own meaning for are quoted: "return". Nothing is changed, and the store may be in use.
    """
    if as_json and as_csv:
        raise ValueError("sql: --json and --csv, expected one of them")
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
        for damage in found.damages[:1]:
            more = f" and {len(found.damages) - 1:,} more" if len(found.damages) > 1 else ""
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
        from rich.markup import escape

        shown = table(*(escape(escaped(name)) for name in result.column_names))
        for row in rows:
            shown.add_row(*(escape(_text(value)) for value in row))
        console().print(shown)


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
