"""Process of one shard: opens or makes its store, listens, and ends with the process that started it.

Its settings arrive as a line of JSON on its standard input, which stays open as long as its parent lives. When it is
ready it writes a line of JSON with its address to its standard output.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sharpwave.errors import StoreInUseError
from sharpwave.serve.addresses import HERE, Address, Security
from sharpwave.serve.cluster_folder import LEASES, MERGING, STORE, write_whole
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.log_lines import LOG, Ending, failure, tell_on_request, unhurried
from sharpwave.serve.merging import merge
from sharpwave.serve.replica_content import finish_deletions
from sharpwave.serve.replicas import Keeper, Neighbour, read_leases
from sharpwave.serve.server import Server
from sharpwave.serve.shard import Shard
from sharpwave.spec import Spec
from sharpwave.store import Store

MANIFEST = "store.json"
DELETED = "deleted.json"
"""File of steps to delete, while they are restored (``replica_content.take``)."""
FREE_S = 5.0
"""Seconds for which a shard that is ending may still hold a folder or an address."""
IN_USE = (errno.EADDRINUSE, errno.EAGAIN, errno.EWOULDBLOCK)
T = TypeVar("T")
LEVEL_S = 0.5
"""Pause between looks whether a shard's replica is as it should be."""
RESTART_S = 5.0
"""Time in which a neighbor that was lost is started again. Beyond it, the log says why there is no replica."""


@dataclass(frozen=True)
class ShardSettings:
    """Settings of one shard, in JSON values.

    Attributes:
        number: of the shard. ``addresses``: where it listens. ``folder``: its own, which holds its store if
            ``on_disk``.
        spec: ``Spec.description()``. ``limits``: ``capacity``, ``ram`` and ``disk_limit`` of this shard.
        options: further arguments of ``Store``. ``begins_from``: folders of the checkpoints from which it starts: one
            shard's, or several that it merges.
        secret, certificate, key: as in ``Security``; the secret in hexadecimal digits.
        keeps: number of the shard whose replica this one keeps. ``kept_by``: addresses of the shard that keeps its
            replica.
        new: ``limits`` and ``options`` of a new store, for settings that are ``None`` here.
    """

    number: int
    addresses: list[str]
    folder: str
    spec: dict[str, Any]
    limits: dict[str, int | None]
    on_disk: bool
    options: dict[str, Any] = field(default_factory=dict)
    begins_from: list[str] = field(default_factory=list)
    secret: str = ""
    certificate: str | None = None
    key: str | None = None
    keeps: int | None = None
    kept_by: str | None = None
    new: dict[str, Any] = field(default_factory=dict)


def opened(settings: ShardSettings) -> Store:
    """Return the shard's store: from its folder, from its checkpoints, or a new one.

    Its writers go on, so no episode is ended.

    Raises: as ``Store`` and ``Store.open``.
    """
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    disk = folder / STORE if settings.on_disk else None
    limits: dict[str, Any] = dict(settings.limits)
    if disk is not None and (disk / MANIFEST).exists():
        return Store.open(disk, writers_go_on=True, **limits)
    if not settings.begins_from:
        return made(settings, disk)
    checkpoints = [Path(one) for one in settings.begins_from]
    leases = [read_leases(one.with_name(f"{one.name}-{LEASES}")) for one in checkpoints]
    if len(checkpoints) == 1:
        store = Store.open(checkpoints[0], disk=disk, writers_go_on=True, **limits)
        merged = leases[0]
    else:
        store = made(settings, disk)
        merged = merge(store, checkpoints, leases, None if disk is None else folder / MERGING)
        shutil.rmtree(folder / MERGING, ignore_errors=True)
    write_whole(folder / LEASES, json.dumps(merged))
    return store


def made(settings: ShardSettings, disk: Path | None) -> Store:
    """Return a new store."""
    given = {name: one for name, one in settings.limits.items() if one is not None}
    return Store(Spec.from_json(settings.spec), disk=disk, **{**settings.new, **given, **settings.options})


def replica(settings: ShardSettings) -> Keeper | None:
    """Return the replica of another shard that this one keeps: the one in its folder, or a new one."""
    if settings.keeps is None:
        return None
    folder = Path(settings.folder) / f"replica-of-{settings.keeps}"
    limits: dict[str, Any] = dict(settings.limits)
    if settings.on_disk and (folder / MANIFEST).exists():
        store = Store.open(folder, writers_go_on=True, **limits)
    else:
        store = made(settings, folder if settings.on_disk else None)
    pending = folder.with_name(f"{folder.name}-{DELETED}") if settings.on_disk else None
    return Keeper(settings.keeps, store, folder.with_name(f"{folder.name}-{LEASES}"), pending)


@contextlib.contextmanager
def running(settings: ShardSettings, moved: Callable[[], Address] | None = None) -> Iterator[list[str]]:
    """Open a shard's store and listen for it; yield its addresses, with the ports that it got.

    Args:
        moved: returns the address of the shard that keeps this one's replica, if ``kept_by`` is outdated; as in
            ``Link``.

    Raises: as ``Store``, ``Store.open`` and ``Server``.
    """
    store = once_free(lambda: opened(settings))
    keeper = replica(settings)
    over = threading.Event()
    with store, contextlib.nullcontext() if keeper is None else keeper.store:
        pending = Path(settings.folder) / DELETED if settings.on_disk else None
        finish_deletions(store, pending)  # before a client sees the steps
        shard = Shard(store, Path(settings.folder), keeper)
        security = Security(bytes.fromhex(settings.secret), settings.certificate, settings.key)
        if settings.kept_by is not None or moved is not None:
            there = HERE if settings.kept_by is None else Address.parse(settings.kept_by)  # nobody listens at port 0
            security_there = replace(security, authority=settings.certificate)
            link = Link(there, security_there, moved=moved)
            shard.intake.neighbour = Neighbour(
                settings.number, store, link, shard.intake.leases, shard.intake.adopt, pending
            )
        servers: list[Server] = []
        try:
            for one in settings.addresses:
                address = Address.parse(one)
                servers.append(once_free(lambda address=address: Server(shard, address, security)))  # type: ignore[misc]
            if shard.intake.neighbour is not None:  # restore steps that only the replica has, before writers connect
                threading.Thread(target=_stay_level, args=(shard.intake.neighbour, over), daemon=True).start()
            yield [str(one.address) for one in servers]
        finally:
            over.set()
            for server in servers:
                server.close()


def main() -> None:
    """Run a shard until its parent ends, or SIGTERM."""
    with unhurried():
        _run()
    os._exit(0)  # a connection's thread that is in the core would abort the process as the interpreter ends


def _run() -> None:
    logging.basicConfig(format="sharpwave shard: %(message)s", level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, meant for the parent
    ending = Ending()
    signal.signal(signal.SIGTERM, ending.ask)
    tell_on_request()
    settings = ShardSettings(**json.loads(_line()))
    ready = threading.Event()
    threading.Thread(target=_wait_for_parent, args=(ending, ready), name="sharpwave-parent", daemon=True).start()
    with contextlib.ExitStack() as stack:
        try:
            addresses = stack.enter_context(running(settings))
        except (OSError, ValueError, TypeError, MemoryError, RuntimeError) as error:
            _tell({"failed": f"{type(error).__name__}: {error}", "in_use": isinstance(error, StoreInUseError)})
            raise SystemExit(1) from None
        ready.set()
        _tell({"addresses": addresses, "process": os.getpid()})
        ending.wait()


def once_free(make: Callable[[], T]) -> T:
    """Return the result of ``make``; retry while a former process of this shard, whose parent was killed, is ending."""
    deadline = time.monotonic() + FREE_S
    while True:
        try:
            return make()
        except OSError as error:
            if (
                not (isinstance(error, (StoreInUseError, FileExistsError)) or error.errno in IN_USE)
                or time.monotonic() > deadline
            ):
                raise
        time.sleep(0.05)


def _stay_level(neighbour: Neighbour, over: threading.Event) -> None:
    """See that this shard and its neighbor have the same, also while no writer is here to notice."""
    reached = time.monotonic()
    while not over.is_set():
        try:
            neighbour.replicate()
            reached = time.monotonic()
        except ShardLostError as error:
            if (passed := time.monotonic() - reached) > RESTART_S:
                LOG.warning("no replica, and no steps taken, for %.0f s: %s", passed, failure(error))
        except Exception as error:
            LOG.error("the replica differs: %s", failure(error))
        over.wait(LEVEL_S)


def _line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        some = os.read(0, 1 << 16)
        if not some:
            raise SystemExit("sharpwave shard: standard input ended before the settings had come")
        line += some
    return line


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _wait_for_parent(ending: Ending, ready: threading.Event) -> None:
    """Wait until standard input is closed: by the parent, or by the system when the parent has ended.

    A shard that is not ready ends at once, as if it was killed: a retry must find no process that still copies.
    """
    with contextlib.suppress(OSError):
        while os.read(0, 1):  # not sys.stdin, whose lock would be held at interpreter exit
            pass
    if not ready.is_set():
        os._exit(1)
    ending.ask()
