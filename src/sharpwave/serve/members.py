"""Members of a cluster: the process that started the shards adds some (``Fleet``), every client is linked to all."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from sharpwave.arguments import is_integer
from sharpwave.errors import StoreInUseError
from sharpwave.serve.addresses import HERE, Address, Security, machine, nearest, reachable
from sharpwave.serve.cluster_folder import Manifest, cut
from sharpwave.serve.forked_clients import follow
from sharpwave.serve.link import Link, OtherShardLostError, ShardLostError
from sharpwave.serve.local_shards import MAX_SHARDS, READY_S, LocalShards, ShardPlan
from sharpwave.serve.ray_cluster import RayShards
from sharpwave.serve.view_uses import ViewUses
from sharpwave.serve.wire import Request
from sharpwave.spec import Spec
from sharpwave.validation import checked_folder

RENEW_S = 5.0
"""Period of asking a directory whether there are other shards."""
ASK_S = 1.0
"""Time in which it must answer that."""
CHECKPOINT_S = 3600.0
"""Time in which a service must write a checkpoint."""
PAUSE_S = 60.0
"""Pause before an unresponsive directory is asked again: connected clients work without it."""


class Fleet:
    """Shards that this process has started, until ``close``.

    Attributes:
        spec: of their steps. ``plan``: by which they were made. ``processes``: of the shards.
        lock: held while shards are added, and while a checkpoint of all is written.
    """

    def __init__(self, spec: Spec, plan: ShardPlan, processes: LocalShards | RayShards) -> None:
        self.spec, self.plan, self.processes = spec, plan, processes
        self.lock = threading.RLock()
        self._process = os.getpid()
        follow(self)

    def forked(self) -> None:
        """Leave the shards to the parent, which stops them."""
        self.lock = threading.RLock()
        self.processes.leave()

    def check_process(self, what: str) -> None:
        """Refuse ``what`` in a process other than the one that started the shards.  Raises: StoreInUseError."""
        if self._process != os.getpid():
            raise StoreInUseError(
                f"{what}: process {self._process} has started these shards; this is process {os.getpid()}, forked from "
                "it: do that there"
            )

    def __len__(self) -> int:
        return self.processes.count

    def link(self, number: int) -> Link:
        """Return a new link to a shard."""
        return Link(
            nearest(self.processes.where(), HERE)[number], self.plan.security, moved=self.processes.moved(number)
        )

    def manifest(self) -> Manifest:
        """Return the manifest of the shards' folder, as it should be now."""
        with self.lock:
            return replace(self.plan.manifest(self.spec), shards=len(self))

    def write(self, **about_to_change: Any) -> None:
        """Write the manifest to the folder of the shards, if they have one.  Raises: OSError.

        Args:
            about_to_change: fields of ``Manifest`` that are not so yet.
        """
        if self.plan.disk is not None and isinstance(self.processes, LocalShards):
            replace(self.manifest(), **about_to_change).write(self.plan.disk)

    def opened(self, found: Manifest) -> None:
        """Write the manifest if it differs from the one that was found: limits given now hold for later lives too.

        Raises: OSError.
        """
        if self.manifest() != found:
            self.write()

    def resize(self, shards: int) -> None:
        """Start further shards.  Raises: as ``Cluster.resize``."""
        self.check_process("resize")
        if self.plan.replicas:
            raise ValueError("resize: with replicas the number of shards stays; open a new cluster with more")
        if not is_integer(shards) or not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"resize: shards={shards!r}, expected an integer from 1 to {MAX_SHARDS}")
        with self.lock:
            if shards < len(self):
                raise ValueError(
                    f"resize: shards={shards}, but {len(self)} run, and a cluster that runs only grows; write a "
                    f"checkpoint and open it with Cluster.open(path, shards={shards})"
                )
            for one in [self.plan.one_more(self.spec, number) for number in range(len(self), shards)]:
                try:
                    self.write(shards=one.number + 1)  # first: clients write to a shard as soon as it is there
                    self.processes.add(one)
                except BaseException:  # shards that have started stay
                    with contextlib.suppress(OSError):
                        self.write()
                    raise

    def close(self) -> None:
        """Stop the shards, which write pending data to their disks; in a forked process, do nothing."""
        if self._process == os.getpid():
            self.processes.close()


class Members:
    """Links to the shards: started by this process, named by a directory, or listening at given addresses.

    Args:
        fleet: shards that this process has started. ``directory``: lists the shards; ``said``: its answer.
        addresses: addresses of shards, if there is neither.

    Attributes:
        links: by number. ``views``: views that are used over them. ``freed``: numbers of blocks of shared memory, of
            any view, that the shards must be told about.
    """

    def __init__(
        self,
        security: Security,
        *,
        fleet: Fleet | None = None,
        directory: Address | None = None,
        said: Mapping[str, Any] | None = None,
        addresses: Sequence[Address] = (),
    ) -> None:
        self._security, self._fleet, self._directory = security, fleet, directory
        self._said = None if said is None or directory is None else reachable(said, directory)
        self._asked_at, self._lock = time.monotonic(), threading.RLock()
        self._closed = False
        self.links = [Link(one, security) for one in addresses]
        self._fit()
        self.views, self.freed = ViewUses(self), deque[int]()
        follow(self)

    def forked(self) -> None:
        """Take a lock that no thread of the parent holds."""
        self._lock = threading.RLock()

    @property
    def directory(self) -> str:
        """Address of the directory; "": there is none."""
        return "" if self._directory is None else str(self._directory)

    def where(self) -> dict[str, Any]:
        """Return the addresses of each of ``shards``, and the ``machine`` that they are on, as a directory does."""
        if self._fleet is not None:
            return self._fleet.processes.where()
        if self._said is not None:
            return dict(self._said)
        return {"shards": [[str(link.address)] for link in self.links], "machine": machine()}

    def check_open(self, sending: bool = False) -> None:
        """Refuse a cluster that was closed.  Raises: ValueError.

        Args:
            sending: segments of before the end, for shards that did not end with the cluster.
        """
        if self._closed and (self._fleet is not None or not sending):
            raise ValueError("cluster: closed; make a new Cluster, or connect again, to go on")

    def now(self) -> list[Link]:
        """Return links to the shards that there are now, by number.  Raises: ValueError: closed."""
        self.renew()
        return self.links

    def renew(self, older_s: float = RENEW_S) -> bool:
        """Link to new shards, and drop links to shards that a restarted service lacks.

        Asks the directory only if its last answer is older than ``older_s`` seconds. Returns whether any link changed.

        Raises: ValueError: closed.
        """
        self.check_open()
        with self._lock:
            before = len(self.links)
            if self._directory is not None and self._asked_at <= time.monotonic() - older_s:
                self._asked_at = time.monotonic()
                try:
                    said = ask_directory(self._directory, self._security, None, ASK_S)
                except (OSError, RuntimeError):
                    self._asked_at += PAUSE_S
                    return False
                self._said = reachable(said, self._directory)
            self._fit()
            return len(self.links) != before

    def _fit(self) -> None:
        """Make links to new shards, and drop links to removed shards."""
        if self._fleet is not None:
            count = len(self._fleet)
        elif self._said is not None:
            count = len(self._said["shards"])
        else:
            return
        while len(self.links) > count:
            self.links.pop().close()
        if len(self.links) < count:
            new = range(len(self.links), count)
            if self._fleet is not None:
                self.links += [self._fleet.link(number) for number in new]
            elif self._said is not None and self._directory is not None:
                there = nearest(self._said, self._directory)
                self.links += [Link(there[number], self._security) for number in new]

    def call(
        self, kind: Request, head: Mapping[str, Any] | None = None, *, of_all: bool = True
    ) -> list[dict[str, Any]]:
        """Send a request to every shard, twice if its connection broke; return their replies' heads.

        Args:
            of_all: whether every shard must answer; else skip unreachable shards.

        Raises: ShardLostError: a required shard, or every shard, is unreachable.
        """
        self.renew()
        tickets: list[tuple[Link, int | None]] = []
        for link in list(self.links):
            ticket = None
            with contextlib.suppress(ShardLostError):  # a connection of the shard's life before, perhaps
                ticket = link.submit(kind, head or {})
            tickets.append((link, ticket))
        found: list[dict[str, Any]] = []
        lost: ShardLostError | None = None
        for link, ticket in tickets:
            try:
                found.append(_reply(link, ticket, kind, head))
            except ShardLostError as error:
                if of_all:
                    raise
                lost = error
        if lost is not None and not found:
            raise lost
        return found

    def resize(self, shards: int) -> None:
        """Add shards.  Raises: as ``Cluster.resize``."""
        self.check_open()
        if self._fleet is not None:
            self._fleet.resize(shards)
        elif self._directory is not None:
            self._ask_service(self._directory, Request.RESIZE, {"shards": shards}, READY_S)
        else:
            raise ValueError("resize: these shards were started elsewhere; resize them there")
        self.renew(0.0)

    def checkpoint(self, path: str | os.PathLike[str], spec: Spec) -> None:
        """Write a checkpoint of all shards, to which none is added meanwhile: as ``Cluster.checkpoint``.

        A service writes its own.
        """
        self.check_open()
        if self._directory is not None:
            asked = {"path": str(checked_folder("checkpoint", path).absolute())}
            self._ask_service(self._directory, Request.CHECKPOINT, asked, CHECKPOINT_S)
            return
        if self._fleet is not None:
            self._fleet.check_process("checkpoint")
        with nullcontext() if self._fleet is None else self._fleet.lock:
            manifest = None if self._fleet is None else self._fleet.manifest()
            self.renew()
            cut(list(self.links), self.call, path, spec, manifest)

    def _ask_service(self, directory: Address, kind: Request, head: Mapping[str, Any], patience_s: float) -> None:
        """Send a request to the service.  Raises: ShardLostError: it, or a shard that it needs, is away."""
        link = Link(directory, self._security, patience_s)
        try:
            link.call(kind, head)
        except OtherShardLostError as error:
            raise ShardLostError(str(error)) from error
        finally:
            link.close()

    def close(self) -> None:
        """Disconnect, for good."""
        self._closed = True
        for link in self.links:
            link.close()


def _reply(link: Link, ticket: int | None, kind: Request, head: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the head of a reply; where the connection broke, ask again.  Raises: ShardLostError."""
    if ticket is not None:
        with contextlib.suppress(ShardLostError):
            return link.wait(ticket).head
    return link.call(kind, head).head


def ask_directory(
    address: Address, security: Security, spec: Spec | None, patience_s: float = READY_S
) -> dict[str, Any]:
    """Return a directory's reply: ``spec``, and addresses of ``shards``, made if there are none and it is given.

    Raises:
        ConnectionError, ValueError.
    """
    link = Link(address, security, patience_s=patience_s)
    try:
        return link.call(Request.DIRECTORY, {"spec": None if spec is None else spec.description()}).head
    finally:
        link.close()
