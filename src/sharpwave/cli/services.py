"""``sharpwave serve``, ``actors`` and ``view``: commands that serve until they are interrupted."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from sharpwave.cli.output import console as standard_output
from sharpwave.extras import install


def serve(
    shards: Annotated[
        int | None,
        typer.Option(help="Shards, each a process with a part of the store; default 1, or those of the folder."),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Address for clients: unix:PATH, or HOST:PORT (shards take the following ports).")
    ] = "127.0.0.1:7070",
    capacity: Annotated[float | None, typer.Option(help="Limit of all shards together, in steps.")] = None,
    ram: Annotated[str | None, typer.Option(help="Limit of memory of all shards together, for example 16GiB.")] = None,
    disk: Annotated[Path | None, typer.Option(help="Folder for the steps; a cluster in it is opened.")] = None,
    disk_limit: Annotated[str | None, typer.Option(help="Limit of the files in it, for example 50GiB.")] = None,
    replicas: Annotated[
        int | None,
        typer.Option(help="1: the next shard keeps a replica of each shard's steps; limits of bytes include it."),
    ] = None,
    segment_steps: Annotated[
        int | None, typer.Option(help="Steps in a segment; default 32, or that of the folder.")
    ] = None,
    codec: Annotated[
        str | None, typer.Option(help="Codec of every field; default auto, or that of the folder.")
    ] = None,
    on_full: Annotated[
        str | None,
        typer.Option(help="Behavior of a shard when its disk is full: raise, block, drop_oldest, drop_newest."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate; encrypts connections.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with the certificate's key.")] = None,
) -> None:
    """Serve a store to other processes, until Ctrl-C or SIGTERM.

    Clients write sharpwave.Cluster(spec, address="HOST:PORT"); the first client defines the spec. Others use
    sharpwave.connect("HOST:PORT"), or `sharpwave train ... --connect HOST:PORT`.

    An address that other machines can reach needs a shared secret in the environment variable SHARPWAVE_SECRET, the
    same for the clients.
    """
    from sharpwave.errors import ShardFailedError
    from sharpwave.serve.addresses import Address, Security
    from sharpwave.serve.log_lines import Ending, unhurried
    from sharpwave.serve.service import Service

    if capacity is None and (disk_limit if disk is not None else ram) is None and not _is_cluster(disk):
        raise typer.BadParameter("give --capacity, or --ram, or --disk with --disk-limit: the store needs a limit")
    console, ending = standard_output(), Ending()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, ending.ask)
    limits = {
        "capacity": capacity,
        "ram": ram,
        "disk_limit": disk_limit,
        "replicas": replicas,
        "options": {"codec": codec, "segment_steps": segment_steps, "on_full": on_full},
    }
    try:
        address = Address.parse(listen)
        files = [None if one is None else str(one) for one in (tls_certificate, tls_key)]
        security = Security.of(None, certificate=files[0], key=files[1])
        with unhurried(), Service(address, shards, disk, security, **limits) as service:
            running = 0 if service.shards is None else len(service.shards.addresses)
            there = f" with {running} shards" if running else ""
            console.print(f"Serving at {service.address}{there}; Ctrl-C stops.", highlight=False)
            if running and shards not in (None, running):
                console.print(
                    f"--shards {shards} is for a new folder; Cluster.resize adds shards to this one.", highlight=False
                )
            ending.wait()
            console.print("Stopping: shards write pending steps.", highlight=False)
    except (ShardFailedError, ValueError, OSError) as error:
        named = re.sub(r"\btls_(certificate|key)=(?=[ ,])", r"--tls-\1", str(error))
        named = re.sub(r"\btls_(certificate|key)=", r"--tls-\1 ", named)
        typer.echo(f"sharpwave serve: {named}", err=True)
        raise typer.Exit(1) from None


def _is_cluster(disk: Path | None) -> bool:
    from sharpwave.serve.cluster_folder import CLUSTER

    return disk is not None and (disk / CLUSTER).exists()


def actors(
    hub: Annotated[str, typer.Option(help="The learner's --hub-listen address, as this machine reaches it.")],
    count: Annotated[
        int | None, typer.Option("--actors", min=1, help="Largest number of actors; default one for each processor.")
    ] = None,
    connect: Annotated[
        str, typer.Option(help="Address of `sharpwave serve` as this machine reaches it; default the learner's.")
    ] = "",
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the modules that the run names, and run their code.")
    ] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for an unreachable learner.")] = 300.0,
) -> None:
    """Run actors of `sharpwave train ... --connect HOST:PORT --hub-listen HOST:PORT` on this machine.

    They play with the learner's newest weights and send their steps to the shards. Any number of machines may join,
    leave and come back while the run goes on. The command ends with the run, or by Ctrl-C.

    Addresses that other machines can reach need a shared secret in the environment variable SHARPWAVE_SECRET, the same
    for the learner, the shards and all nodes.
    """
    from sharpwave.serve.supervisor import ProcessDiedError
    from sharpwave.training.actors.node import Node

    over = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, frame: over.set())
    console = standard_output()
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


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="a run, a store, a cluster, a checkpoint, or a folder of these; several are shown side by side",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="address to listen at; one that other machines reach requires a token, in the URL")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="port; default the first free one from 8765 on; 0: any")
    ] = None,
    token: Annotated[bool, typer.Option("--token", help="require a token on this machine, too")] = False,
    browser: Annotated[bool, typer.Option(help="open the page in a browser")] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a tokenizer.json, which decodes tokens to text")
    ] = None,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="rerun FILE", help="write an episode to a file instead: rerun FILE.rrd, for Rerun's viewer"
        ),
    ] = None,
    episode: Annotated[
        int | None,
        typer.Option(min=0, help="with --export: the episode's number in `sharpwave inspect`; default the best"),
    ] = None,
) -> None:
    """Show what is in a replay memory, on a page in the browser: episodes with their frames, priorities, sizes, and
    the learning curve of the run.

    The run may be live. It is only read: nothing is locked or changed, and what is read once is not read again.
    """

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
    serve(paths, host, port, browser, token, say, tokenizer)
