"""Progress of imports and exports: a bar in a terminal, a caller's function, or nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Shown = Callable[[int], None]
"""Function that receives the number of steps done since the last call."""


@contextlib.contextmanager
def shown(progress: bool | Callable[[int, int], None] | None, what: str, total: int) -> Iterator[Shown]:
    """Show progress of ``total`` steps while the block runs.

    Args:
        progress: a function that receives the steps done and in total; ``True``; ``None``: in a terminal, if rich is
            installed.

    Raises: ModuleNotFoundError: ``True``, without rich.
    """
    if callable(progress):
        done = 0

        def tell(steps: int) -> None:
            nonlocal done
            done += steps
            progress(done, total)

        yield tell
        return
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda steps: None
        return
    try:
        from rich import progress as bars
        from rich.console import Console
        from rich.markup import escape
    except ModuleNotFoundError:
        if progress:
            raise
        yield lambda steps: None
        return
    columns = (
        bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(), bars.TextColumn("steps"),
        bars.TimeRemainingColumn(),
    )  # fmt: skip
    name = what if len(what) <= 32 else f"...{what[-29:]}"
    with bars.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(escape("".join(c if c.isprintable() else "?" for c in name)), total=total)
        yield lambda steps: bar.advance(task, steps)
