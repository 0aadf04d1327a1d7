"""``sharpwave serve``: a store as a service, for any number of processes that write and sample."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer


def serve(
    shards: Annotated[
        int | None,
        typer.Option(help="Shards, each a process with a part of the store; 1. A cluster that is there has its own."),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Where clients connect: unix:PATH or HOST:PORT (shards take the ports behind it).")
    ] = "127.0.0.1:7070",
    capacity: Annotated[float | None, typer.Option(help="Limit in steps of all shards together.")] = None,
    ram: Annotated[str | None, typer.Option(help="Limit in bytes of memory of all shards together: 16GiB.")] = None,
    disk: Annotated[
        Path | None, typer.Option(help="Folder in which steps are kept; a cluster that is there is opened.")
    ] = None,
    disk_limit: Annotated[str | None, typer.Option(help="Limit in bytes of its files.")] = None,
    replicas: Annotated[
        int | None,
        typer.Option(help="1: each shard's steps are kept by the next one too; limits of bytes include them."),
    ] = None,
    segment_steps: Annotated[int | None, typer.Option(help="Steps in a segment of the shards.")] = None,
    codec: Annotated[str | None, typer.Option(help="Codec of every field; auto, or that which is there.")] = None,
    on_full: Annotated[
        str | None,
        typer.Option(help="What a shard does when its disk is full: raise, block, drop_oldest, drop_newest."),
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file: connections are encrypted.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
) -> None:
    """Serve a store to other processes, until Ctrl-C or SIGTERM.

    Clients write sharpwave.Cluster(spec, address="HOST:PORT"); the first one says what a step is. Others use
    sharpwave.connect("HOST:PORT"), or `sharpwave train ... --connect HOST:PORT`.

    An address that other machines can reach needs a shared secret in the environment variable SHARPWAVE_SECRET, the
    same for the clients.
    """
    from rich.console import Console

    from sharpwave.errors import ShardFailedError
    from sharpwave.serve.addresses import Address, Security
    from sharpwave.serve.log_lines import Ending, unhurried
    from sharpwave.serve.service import Service

    if capacity is None and (disk_limit if disk is not None else ram) is None and not _is_cluster(disk):
        raise typer.BadParameter("give --capacity, or --ram, or --disk with --disk-limit: it would never be full")
    console, ending = Console(), Ending()
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
            console.print("Stopping: shards write what is left.", highlight=False)
    except (ShardFailedError, ValueError, OSError) as error:
        typer.echo(f"sharpwave serve: {error}", err=True)
        raise typer.Exit(1) from None


def _is_cluster(disk: Path | None) -> bool:
    from sharpwave.serve.cluster_folder import CLUSTER

    return disk is not None and (disk / CLUSTER).exists()
