"""``sharpwave warmup``: compile the store's kernels ahead, so that a first batch does not wait for it."""

from __future__ import annotations

import time

import typer


def warmup() -> None:
    """Compile the store's kernels for this machine, and keep the machine code.

    Without it they are compiled when a store first needs them, some seconds in all. The machine code is kept in
    numba's cache (NUMBA_CACHE_DIR, the package's folder, or the user's cache folder) until Sharpwave or numba changes.
    """
    from rich.console import Console
    from rich.markup import escape

    from sharpwave.native.jit import CACHED
    from sharpwave.warmup import warm_up

    console, begun, count = Console(stderr=True), time.monotonic(), 0

    with console.status("compiling") as status:

        def tell(name: str) -> None:
            nonlocal count
            count += 1
            status.update(f"compiling kernel {count}: {escape(name)}")

        compiled = warm_up(tell)
    if compiled:
        typer.echo(f"{compiled} kernels compiled in {time.monotonic() - begun:.0f} s.")
    else:
        typer.echo("All kernels were compiled already.")
    if not CACHED:
        typer.echo(
            "sharpwave: there is no folder to keep machine code in, so this helps no other process; set "
            "NUMBA_CACHE_DIR to one that can be written to",
            err=True,
        )
        raise typer.Exit(1)
