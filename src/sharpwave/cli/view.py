"""``sharpwave view PATH``: a page on a run, a store or a checkpoint."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from sharpwave.extras import install


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="a run, a store's folder or a checkpoint, or a folder of those; several are shown side by side",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="address to listen at; others than this machine's own ask for a token, in the URL")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="port; default the first free one from 8765 on; 0: any")
    ] = None,
    token: Annotated[bool, typer.Option("--token", help="ask for a token on this machine, too")] = False,
    browser: Annotated[bool, typer.Option(help="open the page in a browser")] = False,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="rerun FILE", help="instead write an episode to a file: rerun FILE.rrd, for Rerun's viewer"
        ),
    ] = None,
    episode: Annotated[
        int | None,
        typer.Option(min=0, help="with --export: the episode's number, as inspect counts; default the best whole one"),
    ] = None,
) -> None:
    """Show what is in a replay memory, on a page in the browser: episodes with their frames, priorities, sizes, and
    the learning curve of the run.

    The run may be live. It is only read: nothing is locked or changed, and what is read once is not read again.
    """
    import sys

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if export is not None:
        from sharpwave.viewer.rerun_export import export_rerun

        if export[0] != "rerun":
            raise ValueError(f"--export: got {export[0]!r}, expected rerun FILE.rrd")
        if len(paths) != 1:
            raise ValueError(f"--export: got {len(paths)} paths, expected one")
        export_rerun(paths[0], export[1], episode, say)
        return
    if episode is not None:
        raise ValueError("--episode chooses what --export writes; the page shows all")

    from sharpwave.viewer.page_server import NEEDED, serve

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(f"view needs {' and '.join(missing)}: {install('view')}")
    serve(paths, host, port, browser, token, say)
