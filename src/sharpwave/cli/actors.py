"""``sharpwave actors``: actors of a learner on another machine."""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated

import typer


def actors(
    hub: Annotated[str, typer.Option(help="Where the learner listens: its --hub-listen, as this machine reaches it.")],
    count: Annotated[
        int | None, typer.Option("--actors", min=1, help="Actors to run at most; default: one for each processor.")
    ] = None,
    connect: Annotated[
        str, typer.Option(help="Address of `sharpwave serve` as this machine reaches it; default: as the learner does.")
    ] = "",
    trust: Annotated[bool, typer.Option("--trust", help="Import the modules that the run names.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for a learner that is not there.")] = 300.0,
) -> None:
    """Run actors of `sharpwave train ... --connect HOST:PORT --hub-listen HOST:PORT` on this machine.

    They play with the learner's newest weights and send their steps to the shards. Any number of machines may join,
    leave and come back while the run goes on. The command ends with the run, or by Ctrl-C.

    Addresses that other machines can reach need a shared secret in the environment variable SHARPWAVE_SECRET, the same
    for the learner, the shards and all nodes.
    """
    from rich.console import Console

    from sharpwave.serve.supervisor import ProcessDiedError
    from sharpwave.training.actors.node import Node

    over = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, frame: over.set())
    console = Console()
    try:
        Node(
            hub,
            count or os.cpu_count() or 1,
            lambda text: console.print(text, highlight=False, markup=False),
            connect=connect,
            trust=trust,
            patience_s=patience,
            stopped=over.is_set,
        ).run()
    except (ProcessDiedError, ValueError, OSError) as error:
        typer.echo(f"sharpwave actors: {error}", err=True)
        raise typer.Exit(1) from None
