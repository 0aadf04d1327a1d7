"""Service: runs shards in processes of this machine, and their directory, for ``sharpwave serve``."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from sharpwave.memory.address_space import PAGE, reserve
from sharpwave.serve.addresses import TCP, Address, Security, check_free, machine
from sharpwave.serve.budget import Budget
from sharpwave.serve.cluster_folder import CLUSTER, Manifest, alone, delete_shard, empty_folder
from sharpwave.serve.fleet import Fleet, ShardPlan
from sharpwave.serve.local_shards import LocalShards
from sharpwave.serve.server import Client, Reply, Server
from sharpwave.serve.shard_process import once_free
from sharpwave.serve.wire import Frame, Request, WireError
from sharpwave.spec import Field, Spec

SMALLEST = Spec(obs=Field((1,), "uint8"), action=Field((1,), "uint8"))
"""Smallest steps: settings that shards cannot have with them, they cannot have at all."""
BYTES = 1 << 28
"""Budget of a directory's memory for connections."""


class Service:
    """Service of ``sharpwave serve``. A context manager that stops the shards on exit.

    If no folder holds a cluster, the first client defines the step, and the shards are started then.

    Args:
        listen: where the directory listens.
        shards: number of shards in a new folder, or without a folder; ``None``: 1.
        disk: folder of the cluster, which is opened if it holds one.
        limits: as in ``ShardPlan``. ``replicas`` and ``options`` must equal the settings of the cluster there.

    Attributes:
        address: where it listens, with the port that it got.
        budget: memory budget of the connections.

    Raises:
        ValueError, OSError, ShardFailedError, DamagedError.
    """

    def __init__(
        self, listen: Address, shards: int | None, disk: Path | None, security: Security, **limits: Any
    ) -> None:
        self._undo = ExitStack()
        self.budget = Budget(BYTES)
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        security.check(listen)
        try:
            sockets = _sockets(listen)
            if sockets is None:
                sockets = Path(self._undo.enter_context(tempfile.TemporaryDirectory(prefix="sharpwave-")))
            asked = {"shards": shards, "replicas": limits.pop("replicas", None), **limits.pop("options", {})}
            given = {name: value for name, value in asked.items() if value is not None}
            here: dict[str, Any] = {"sockets": sockets, "disk": disk, "listen": listen, "security": security, **limits}
            if disk is not None and (disk / CLUSTER).exists():
                self._open(disk, given, here)
            else:
                many = {"shards": given.pop("shards", 1), "replicas": given.pop("replicas", 0)}
                self._plan = ShardPlan(**many, options=given, **here)
                self._check()
                if disk is not None:
                    empty_folder(disk)
            self.server = Server(self, listen, security)
            self._undo.callback(self.server.close)
            self._sockets = sockets
            self.address = self.server.address
        except BaseException:
            self._undo.close()
            raise

    def _open(self, disk: Path, given: dict[str, Any], here: dict[str, Any]) -> None:
        """Start the shards of the cluster that is in a folder."""
        with alone(disk):
            found = Manifest.read(disk)
            found.check_whole(disk)
            if found.cut:
                raise ValueError(
                    f"{disk} is a checkpoint; open it with sharpwave.Cluster.open, or serve another folder"
                )
            _check_asked(disk, found, given)
            check_free(here["listen"], here["security"])  # shards take a while to begin
            self._plan = ShardPlan(found.shards, found=found, replicas=found.replicas, parts=found.parts, **here)
            self._start(found.spec).opened(found)

    def _check(self) -> None:
        """Refuse settings that shards of no spec can have, before the first client connects.

        Raises: ValueError, OSError.
        """
        for one in self._plan.settings(SMALLEST):
            for text in one.addresses:
                if (address := Address.parse(text)).kind != TCP:
                    continue
                try:
                    once_free(lambda address=address: check_free(address, self._plan.security))  # type: ignore[misc]
                except OSError as error:
                    raise OSError(
                        f"{error.strerror or error}: shard {one.number} needs that port, one of those behind "
                        f"{self._plan.listen}; free it, or listen elsewhere"
                    ) from error
        if (ram := one.limits["ram"]) is not None:
            try:
                reserve(-(-ram // PAGE) * PAGE)
            except (OSError, ValueError, OverflowError) as error:
                raise ValueError(
                    f"ram={self._plan.ram!r}: this machine cannot reserve {ram:,} bytes for each shard ({error}); "
                    "lower it"
                ) from error

    def _make(self, spec: Spec) -> None:
        """Start the shards of a new cluster."""
        with self._plan.begun(spec):
            if self._plan.disk is None:  # a killed service left its writers' leases, whose steps are lost
                for one in self._plan.sockets.glob("shard-*"):
                    delete_shard(one)
            self._start(spec)

    def _start(self, spec: Spec) -> Fleet:
        self._fleet = Fleet(spec, self._plan, LocalShards(self._plan.settings(spec)))
        self._undo.callback(self._fleet.close)
        return self._fleet

    @property
    def shards(self) -> Any:
        """The shards' processes; ``None``: they were not started yet."""
        return None if self._fleet is None else self._fleet.processes

    # the directory, which its server asks

    def about(self) -> dict[str, Any]:
        """Return the description that clients get when they connect."""
        return {"directory": True}

    def answer(self, client: Client, frame: Frame) -> Reply:
        """Return the shards' addresses, and their spec; make them if the request brings a spec and there are none.
        Or add shards, or write a checkpoint.

        Raises:
            ValueError: the spec is another, or there cannot be so many shards.
            ShardFailedError: one does not begin.  OSError: a checkpoint cannot be written.
        """
        if frame.kind == Request.DIRECTORY:
            return self._named(frame.head.get("spec")), {}
        if frame.kind not in (Request.RESIZE, Request.CHECKPOINT):
            raise WireError(f"a request of kind {frame.kind} to the directory, expected {Request.DIRECTORY}")
        if self._fleet is None:
            raise ValueError("there are no shards yet; the first client says what a step is")
        if frame.kind == Request.RESIZE:
            self._fleet.resize(frame.head.get("shards", 0))
            return {}, {}
        self._fleet.checkpoint(str(frame.head["path"]))
        return {}, {}

    def _named(self, asked: Any) -> dict[str, Any]:
        with self._lock:  # of two first clients one makes the shards
            if asked is not None:
                spec = Spec.from_json(asked)
                if self._fleet is None:
                    self._make(spec)
                elif (there := self._fleet.spec.description()) != spec.description():
                    raise ValueError(
                        f"the shards store steps of {there}, asked for were {spec.description()}; "
                        "use that spec, or serve another folder"
                    )
            if self._fleet is None:
                return {"spec": None, "shards": [], "machine": machine()}
            return {"spec": self._fleet.spec.description(), **self._fleet.where()}

    def left(self, client: Client) -> None:
        """Do nothing: clients hold nothing up."""

    def close(self) -> None:
        """Stop the directory and the shards, which write pending data to their disks."""
        self._undo.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_asked(disk: Path, found: Manifest, asked: dict[str, Any]) -> None:
    """Refuse to open a cluster with other settings; its number of shards is the last result of ``resize``.

    Raises: ValueError.
    """
    there = {"codec": "auto", "on_full": "raise", **found.new, "replicas": found.replicas}
    for name, value in asked.items():
        if name in there and value != there[name]:
            raise ValueError(
                f"{disk} holds a cluster with {name}={there[name]!r}, asked for was {name}={value!r}; leave that out, "
                f"or serve a new folder"
            )


def _sockets(listen: Address) -> Path | None:
    """Return a folder of this user's for the shards' sockets, the same whenever the service listens at this address:
    clients find the shards again after it was killed. ``None``: there is none, or it is not safe.
    """
    if not hasattr(os, "getuid") or (listen.kind == TCP and not listen.port):
        return None
    name = hashlib.sha256(str(listen).encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"sharpwave-serve-{os.getuid()}-{name}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if private else None
