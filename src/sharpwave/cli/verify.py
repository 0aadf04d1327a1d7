"""``sharpwave verify PATH``: check every byte of a store's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sharpwave.cli.output import bytes_bar, table
from sharpwave.escaping import escaped
from sharpwave.showing import byte_text

SHOWN = 100
"""Limit of printed damages, and of printed notes; a file full of garbage may have millions."""


def verify(
    path: Annotated[
        Path, typer.Argument(help="a store's folder, as given to sharpwave.Store(disk=...), a run's, or a checkpoint")
    ],
) -> None:
    """Read and decode everything in a store's folder, and list all damage.

    Nothing is changed, and the store may be in use. Checks every record's checksum, every segment's columns, every
    dictionary they refer to, every lane's chain of segments, and store.json.

    Exits with 0 if everything is intact, 1 if anything is damaged, 2 if there is no store.
    """
    from rich.console import Console

    from sharpwave.offline.folder_check import check
    from sharpwave.persistence.checkpoint_file import folder_of
    from sharpwave.viewer.sources import replay_of

    console, path = Console(), replay_of(path)
    try:
        with folder_of(path) as folder, bytes_bar("verifying") as progress:
            found = check(folder, progress)
    except OSError as error:
        raise ValueError(f"verify: {error}") from error
    counts = table("checked", "number", title=escaped(path))
    counts.add_column("", no_wrap=True)
    counts.add_row("region files", f"{found.files:,}", byte_text(found.bytes))
    counts.add_row("segments", f"{found.segments:,}", "sealed, decoded")
    counts.add_row("tails", f"{found.tails:,}", "rows of open segments")
    counts.add_row("superseded", f"{found.superseded:,}", "of the segments and tails, by later ones")
    for name in ("dictionaries", "lanes", "steps"):
        counts.add_row(name, f"{getattr(found, name):,}", "")
    console.print(counts)

    def listed(lines: list[str], more: str) -> None:
        for line in lines[:SHOWN]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if len(lines) > SHOWN:
            console.print(f"... and {len(lines) - SHOWN:,} more {more}", highlight=False)

    if found.notes:
        console.print("Notes (no damage):", style="bold")
        listed(found.notes, "notes")
    if not found.damages:
        console.print("Sound.", style="bold green")
        return
    console.print("Damaged:", style="bold red")
    listed([damage_text(damage) for damage in found.damages], "damages")
    console.print(
        f"{len(found.damages):,} damages. sharpwave.Store.open restores what is intact; files with nothing intact are "
        "moved to the folder quarantine.",
        highlight=False,
        soft_wrap=True,
    )
    raise typer.Exit(1)


def damage_text(damage: Any) -> str:
    """Return a damage in one line."""
    return escaped(f"{damage.path}: byte {damage.offset:,}: {damage.what}; {damage.nbytes:,} bytes")
