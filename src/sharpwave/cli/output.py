"""Output of commands: a console that survives a closed terminal, tables, a bar of bytes, a run's summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharpwave.configuration import leaves
from sharpwave.escaping import printable, quoted

if TYPE_CHECKING:
    from sharpwave.training.recipes.recipe import Recipe


STORE_PATH = Annotated[
    Path, typer.Argument(help="a store's folder, as given to sharpwave.Store(disk=...), a run's, or a checkpoint")
]


class Unbroken:
    """Stream whose writes never fail: after a first failure all output is discarded, also that flushed at exit."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, or discard it after a failure."""
        try:
            self._stream.write(text)
        except OSError:
            self._let_go()
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless a write has failed."""
        try:
            self._stream.flush()
        except OSError:
            self._let_go()

    def _let_go(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console() -> Any:
    """Return a rich console on standard output that survives a closed terminal or ``| head``."""
    from rich.console import Console

    return Console(file=Unbroken(sys.stdout))  # type: ignore[arg-type]


def table(*headers: str, left: int = 1, title: str | None = None) -> Any:
    """Return an empty table whose first ``left`` columns are aligned to the left, the others to the right."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=None if title is None else escape(title), title_justify="left", box=box.SIMPLE_HEAD)
    for number, header in enumerate(headers):
        made.add_column(header, justify="left" if number < left else "right", no_wrap=True)
    return made


def check_out(out: Path, *endings: str) -> None:
    """Check that a file with one of the ``endings`` can be written to ``out``.  Raises: ValueError."""
    if out.suffix.lower() not in endings:
        raise ValueError(f"--out: got {out.name!r}, expected a name that ends in {' or '.join(endings)}")
    if not out.parent.is_dir():
        raise ValueError(f"--out: the folder {str(out.parent)!r} does not exist; make it first")
    if out.is_dir():
        raise ValueError(f"--out: {str(out)!r} is a folder, expected the name of a file")


@contextmanager
def bytes_bar(what: str) -> Iterator[Callable[[int], Callable[[int], None]]]:
    """Draw a progress bar of bytes, only on a terminal; yields a function: total bytes -> function that adds bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = [TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def start(total: int) -> Callable[[int], None]:
            task = bar.add_task("", total=total)
            return lambda nbytes: bar.advance(task, nbytes)

        yield start


def settings_table(name: str, recipe: Recipe) -> Any:
    """Return a table of the settings by group."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Recipe {name}", title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    groups: dict[str, list[str]] = {}
    for leaf in leaves(recipe):
        value = leaf.value
        shown = "-" if value is None or value == "" else f"{value:,}" if type(value) is int else str(value)
        groups.setdefault(leaf.field.metadata["group"], []).append(f"{leaf.name}={shown}")
    for group, settings in groups.items():
        table.add_row(f"[bold]{group}", Text("  ".join(settings)))
    return table


def summary_table(folder: Path, summary: dict[str, Any]) -> Any:
    """Return a run's summary, to be printed with ``crop=False``."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from sharpwave.training.results import replay_row, summary_rows

    ended = "Ended, " if summary["reason"].startswith("interrupted") else "Ended by "
    title = Text(printable(ended + summary["reason"]), style="table.title")
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    if summary.get("final") is None and summary.get("held_out") is None:
        table.add_row("held-out mean", "- (none was due, or scores were too low: --evaluate-every, --evaluate-from)")
    for row in (*summary_rows(summary), replay_row(summary)):
        table.add_row(*row)
    below = {"folder": printable(str(folder)), "evaluate": f"sharpwave eval {quoted(folder)}"}
    if summary["reason"].startswith("interrupted"):
        below["resume"] = f"sharpwave train --resume {quoted(folder)}"
    # Not cells of the table, which would be cut at the terminal's width: users copy these commands.
    lines = [Text(f" {name:<20}  {text}", no_wrap=True, overflow="ignore") for name, text in below.items()]
    return Group(table, *lines)
