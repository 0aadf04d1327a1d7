"""Cluster: one experience store of several shards, in processes of this machine or of others."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

from sharpwave.errors import not_to_be_copied
from sharpwave.serve.addresses import HERE, Address, Security, machine, nearest, reachable
from sharpwave.serve.cluster_views import ClusterViews
from sharpwave.serve.delivery import Delivery
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.local_shards import MAX_SHARDS, READY_S, LocalShards, Plan
from sharpwave.serve.manifest import CLUSTER, Manifest, is_ours, new_folder
from sharpwave.serve.ray_cluster import RayShards, is_ray
from sharpwave.serve.remote_writer import RemoteWriter
from sharpwave.serve.requests import Request
from sharpwave.spec import Spec
from sharpwave.store import Store
from sharpwave.validation import checked_folder

LOCAL_CAPACITY = 64


class Cluster(ClusterViews):
    """Experience store that several processes write to and sample from.

    Args:
        spec: schema of a step.
        shards: number of shards, each a process with a store.
        capacity, ram, disk_limit: limits of all shards together; each gets an equal part.
        disk: folder in which each shard has a folder of its own.
        replicas: 1: each shard's steps are kept by the next one too, so that they survive the loss of its folder or
            memory. ``ram`` and ``disk_limit`` include them. It needs 2 shards or more.
        address: "local": shards are processes of this machine, which end with this one; "auto" or "ray://HOST:PORT":
            they are actors of that Ray, "ray": of the one that this process has begun; else the address of
            ``sharpwave serve``: "unix:PATH" or "HOST:PORT".
        secret: shared secret; default: that of the environment variable SHARPWAVE_SECRET.
        tls_authority: PEM file by which the certificates of shards elsewhere are checked: connections are encrypted.
        seed: seed of the draws.
        options: further arguments of each shard's ``Store``: ``codec``, ``on_full``, ``retention``, ``segment_steps``.

    Attributes:
        security: what other clients need to know: the secret.

    Raises:
        ValueError, TypeError: an invalid argument.
        ConnectionError: nobody answers at the address.
        ShardFailedError: a shard's process does not begin.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        shards: int = 1,
        capacity: int | None = None,
        ram: int | str | None = None,
        disk: str | os.PathLike[str] | None = None,
        disk_limit: int | str | None = None,
        replicas: int = 0,
        address: str = "local",
        secret: str | bytes | None = None,
        tls_authority: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        security = Security.of(secret, authority=tls_authority)
        if is_ray(address) and not security.secret:  # Ray hands it to the shards
            security = replace(security, secret=secrets.token_hex(32).encode())
        self._begin(spec, security, seed)
        try:
            if is_ray(address):
                if replicas:
                    raise ValueError(f"Cluster: replicas={replicas!r} is not for shards on Ray; leave it out")
                given = {"seed": self._seed, **options}
                folder = None if disk is None else Path(disk).absolute()
                plan = Plan(shards, Path(), capacity, ram, disk_limit, folder, given, security=self.security)
                self._run(plan, RayShards(address, plan.settings(spec)))
            elif address == "local":
                folder = None if disk is None else checked_folder("disk", disk)
                sockets, given = self._sockets(), {"seed": self._seed, **options}
                plan = Plan(
                    shards,
                    sockets,
                    capacity,
                    ram,
                    disk_limit,
                    folder,
                    given,
                    security=self.security,
                    replicas=replicas,
                )
                manifest = plan.manifest(spec)
                if folder is not None:
                    new_folder(folder, manifest)
                self._start(plan)
            else:
                self._join(
                    address,
                    {"capacity": capacity, "ram": ram, "disk": disk, "disk_limit": disk_limit}
                    | {"replicas": replicas or None}
                    | options,
                )
        except BaseException:
            self.close()
            raise

    def _begin(self, spec: Spec, security: Security, seed: int) -> None:
        self.spec, self.security, self._seed = spec, security, int(seed)
        self.links: list[Link | None] = []
        self._undo = ExitStack()
        self._processes: LocalShards | RayShards | None = None
        self._plan: Plan | None = None
        self._said: dict[str, Any] | None = None
        self._local = Store(spec, capacity=LOCAL_CAPACITY)
        self._made = 0
        self._writers = 0

    def _start(self, plan: Plan) -> None:
        """Start the shards of a plan as processes of this machine."""
        self._run(plan, LocalShards(plan.settings(self.spec)))

    def _run(self, plan: Plan, started: LocalShards | RayShards) -> None:
        self._plan, self._processes = plan, started
        self._undo.callback(started.close)
        self.links = [self._linked(number) for number in range(plan.shards)]

    def _linked(self, number: int) -> Link:
        """Return a link to a shard that this object has started."""
        assert self._processes is not None
        found = nearest(self._processes.where(), HERE)[number]
        return Link(found, self.security, moved=self._processes.moved(number))

    def _join(self, address: str, given: Mapping[str, Any]) -> None:
        """Connect to the shards of ``sharpwave serve``, which makes them if there are none."""
        named = sorted(name for name, value in given.items() if value is not None)
        if named:
            raise ValueError(
                f"Cluster: {named[0]}= is for address='local'; {address} has the limits that it was served with"
            )
        directory = Address.parse(address)
        self._said = reachable(ask_directory(directory, self.security, self.spec), directory)
        self.links = [Link(one, self.security) for one in nearest(self._said, directory)]

    @classmethod
    def of(
        cls,
        spec: Spec,
        addresses: Sequence[Address | str],
        *,
        secret: str | bytes | None = None,
        tls_authority: str | None = None,
        seed: int = 0,
    ) -> Self:
        """Return the cluster of shards that listen at ``addresses``."""
        made = cls.__new__(cls)
        made._begin(spec, Security.of(secret, authority=tls_authority), seed)
        made.links = [Link(Address.parse(str(one)), made.security) for one in addresses]
        return made

    def _sockets(self) -> Path:
        """Return a folder for unix sockets, which only this user can enter, deleted at the end."""
        return Path(
            self._undo.enter_context(tempfile.TemporaryDirectory(prefix="sharpwave-", ignore_cleanup_errors=True))
        )

    # writers

    def writer(
        self,
        lanes: int = 1,
        *,
        name: str | None = None,
        shard: int | None = None,
        durability: str = "memory",
        segment_steps: int | None = None,
        codec: str | Mapping[str, str] = "auto",
        timeout: float | None = None,
    ) -> RemoteWriter:
        """Make a writer of ``lanes`` lanes, which one shard gets: for a ``Recorder``, or to call ``extend``.

        Args:
            name: of the writer. One that replaces another of the same name goes on with its lanes.
            shard: number of the shard; default: one after the other, without those that cannot be reached.
            durability: "memory": a segment is acknowledged once it is in the shard's store; "flush": once it is on the
                shard's disk.
            segment_steps: steps in a segment; default, and at most: the shard's, 32 unless it was made with another.
                With fewer the shard holds fewer steps than its capacity says.
            timeout: seconds that the writer waits for its shard; default 60.

        Raises:
            ValueError: an invalid argument.  ShardLostError: the shard cannot be reached.
        """
        if durability not in ("memory", "flush"):
            raise ValueError(f"writer: durability={durability!r}, expected 'memory' or 'flush'")
        alive = [number for number, link in enumerate(self.links) if link is not None]
        tried = [shard]
        if shard is None:  # one after the other, and past those that are away
            begin = (self._writers + os.getpid()) % len(alive)
            tried = [*alive[begin:], *alive[:begin]]
            self._writers += 1
        for number in tried:
            link = self.links[number] if number in alive else None
            if link is None:
                raise ValueError(f"writer: shard={number!r}, expected one of {alive}")
            try:
                delivery = Delivery(
                    link.another(),
                    uuid.uuid4().hex if name is None else str(name),
                    lanes,
                    durable=durability == "flush",
                    timeout=timeout,
                )
                break
            except ShardLostError:
                if number == tried[-1]:
                    raise
        return RemoteWriter(self.spec, delivery, codec=codec, segment_steps=segment_steps)

    # the whole

    def where(self) -> dict[str, Any]:
        """Return what a directory says: the addresses of each of ``shards``, and the ``machine`` that they are on."""
        if self._said is not None:
            return self._said
        if self._processes is not None:
            return self._processes.where()
        return {"shards": [[str(link.address)] for link in self.links if link is not None], "machine": machine()}

    def _call(self, kind: Request, head: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Send a request to every shard, twice if its connection broke; return their replies' heads.

        Raises: ShardLostError.
        """
        links = [link for link in self.links if link is not None]
        tickets: list[tuple[Link, int | None]] = []
        for link in links:
            try:
                tickets.append((link, link.submit(kind, head or {})))
            except ShardLostError:  # a connection of the shard's life before, perhaps
                tickets.append((link, None))
        said = []
        for link, ticket in tickets:
            try:
                said.append(link.call(kind, head) if ticket is None else link.wait(ticket))
            except ShardLostError:
                if ticket is None:
                    raise
                said.append(link.call(kind, head))
        return [one.head for one in said]

    def _answers(self, kind: Request) -> list[dict[str, Any]]:
        """Return the heads of the replies of those shards that can be reached.  Raises: ShardLostError: none can."""
        tickets: list[tuple[Link, int]] = []
        found, lost = [], ShardLostError("Cluster: there are no shards")
        for link in [link for link in self.links if link is not None]:
            try:
                tickets.append((link, link.submit(kind, {})))
            except ShardLostError as error:
                lost = error
        for link, ticket in tickets:
            try:
                found.append(link.wait(ticket).head)
            except ShardLostError as error:
                lost = error
        if not found:
            raise lost
        return found

    @property
    def recovery(self) -> None:
        """``None``: shards say in their logs what was damaged when they were opened."""
        return None

    def __len__(self) -> int:
        """Return the number of steps that the shards hold."""
        return sum(int(one["steps"]) for one in self._call(Request.DESCRIBE))

    def stats(self) -> dict[str, Any]:
        """Return every shard's ``Store.stats()`` under ``shards``, and sums of the numbers that add up.

        Shards that are being started again are left out.  Raises: ShardLostError: none can be reached.
        """
        each = [one["stats"] for one in self._answers(Request.STATS)]
        names = ("steps", "total_steps", "evicted_steps", "segments", "lanes", "total_bytes", "fixed_bytes")
        sums = {name: sum(one[name] for one in each) for name in names}
        steps = max(1, sums["steps"])
        encoded = sum(one["encoded_bytes_per_step"] * one["steps"] for one in each) / steps
        means = {"bytes_per_step": sums["total_bytes"] / steps, "encoded_bytes_per_step": encoded}
        return sums | means | {"shards": each}

    def annotate(self, lane: None, values: Mapping[str, Any]) -> None:
        """Annotate the stores of all shards: as ``Store.annotate`` with ``lane=None``."""
        self._call(Request.ANNOTATE, {"values": dict(values)})

    def flush(self) -> None:
        """Write all that the shards hold to their disks.  Raises: OSError, ShardLostError."""
        self._call(Request.FLUSH)

    def clear(self) -> None:
        """Evict every step of every shard."""
        self._call(Request.CLEAR)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of all shards at one moment, to a folder that all of them reach.

        Shards take no steps while it is written; writers keep theirs meanwhile. What writers had been told was taken is
        in it, with priorities and random states.

        Raises:
            OSError: a shard cannot write; an earlier checkpoint there is unchanged.
        """
        folder = checked_folder("checkpoint", path)
        folder.mkdir(parents=True, exist_ok=True)
        before = Manifest.read(folder).cut if (folder / CLUSTER).exists() else 0
        others = [one.name for one in folder.iterdir() if not is_ours(one.name)]
        if others or (not before and (folder / CLUSTER).exists()):
            what = others[0] if others else "a cluster that is no checkpoint"
            raise FileExistsError(f"checkpoint: {folder} holds {what}; give a new or empty folder")
        cut = folder / f"cut-{before + 1}"
        if cut.exists():  # of an attempt that failed
            shutil.rmtree(cut)
        links = [link for link in self.links if link is not None]
        self._call(Request.PAUSE)
        try:
            tickets = [
                (link, link.submit(Request.CHECKPOINT, {"path": str(cut / f"shard-{number}")}))
                for number, link in enumerate(links)
            ]
            said = [link.wait(ticket).head for link, ticket in tickets]
        finally:
            self._call(Request.RESUME)
        on_disk = any(one["on_disk"] for one in said)
        alike = Manifest(self.spec, len(links), on_disk) if self._plan is None else self._plan.manifest(self.spec)
        replace(alike, shards=len(links), on_disk=on_disk, cut=before + 1).write(folder)
        for old in folder.glob("cut-*"):
            if old != cut:
                shutil.rmtree(old, ignore_errors=True)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        disk: str | os.PathLike[str] | None = None,
        capacity: int | None = None,
        ram: int | str | None = None,
        disk_limit: int | str | None = None,
        secret: str | bytes | None = None,
        seed: int = 0,
    ) -> Self:
        """Open a checkpoint of a cluster, or the folder of one on disk, in as many shards on this machine as it had.

        Writers of the cluster that is opened go on with their lanes if they are made with the same ``name``.

        Args:
            disk: a new or empty folder for the shards of a checkpoint of a cluster on disk.
            capacity, ram, disk_limit: of all shards together; default: as before.

        Raises:
            FileNotFoundError: the folder holds no cluster.  DamagedError: ``cluster.json`` is damaged.
            ValueError, FileExistsError, ShardFailedError.
        """
        folder = checked_folder("open", path)
        found = Manifest.read(folder)
        target: Path | None = folder
        begins_from = None
        if found.cut:
            begins_from = folder / f"cut-{found.cut}"
            if found.on_disk and disk is None:
                raise ValueError(
                    f"open: {folder} is a checkpoint of a cluster on disk; give disk=, a new folder for it"
                )
            target = None if disk is None else new_folder(disk, found)
        elif disk is not None:
            raise ValueError(f"open: disk={os.fspath(disk)!r}, but {folder} is no checkpoint; leave disk= out")
        made = cls.__new__(cls)
        made._begin(found.spec, Security.of(secret), seed)
        try:
            limits: dict[str, Any] = {"capacity": capacity, "ram": ram, "disk_limit": disk_limit}
            made._start(
                Plan(
                    found.shards,
                    made._sockets(),
                    disk=target,
                    security=made.security,
                    begins_from=begins_from,
                    opens=True,
                    replicas=found.replicas,
                    new=found.new,
                    **limits,
                )
            )
        except BaseException:
            made.close()
            raise
        return made

    def resize(self, *, shards: int) -> None:
        """Start further shards, which begin empty; draws stay exact. For a cluster whose shards this object started.

        Raises:
            ValueError: fewer than there are, or the shards are not this object's.
        """
        if self._plan is None or self._processes is None:
            raise ValueError("resize: these shards were started elsewhere; add shards there")
        if self._plan.replicas:
            raise ValueError("resize: with replicas the number of shards stays; open a new cluster with more")
        count = len(self.links)
        if isinstance(shards, bool) or not isinstance(shards, int) or not count <= shards <= MAX_SHARDS:
            raise ValueError(
                f"resize: shards={shards!r}, expected an integer from {count}, those there, to {MAX_SHARDS}"
            )
        for number in range(count, shards):
            self._processes.add(self._plan.one_more(self.spec, number))
            self.links.append(self._linked(number))
        if self._plan.disk is not None and isinstance(self._processes, LocalShards):
            replace(self._plan.manifest(self.spec), shards=shards).write(self._plan.disk)

    def close(self) -> None:
        """Disconnect; shards that this object started write what is left to their disks, and end."""
        for link in self.links:
            if link is not None:
                link.close()
        self._undo.close()
        self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self)


def connect(
    address: str, *, secret: str | bytes | None = None, tls_authority: str | None = None, seed: int = 0
) -> Cluster:
    """Return the cluster that ``sharpwave serve`` serves at an address: "unix:PATH" or "HOST:PORT".

    Args:
        secret: shared secret; default: that of the environment variable SHARPWAVE_SECRET.
        tls_authority: PEM file by which its certificate is checked: connections are encrypted.
        seed: seed of the draws.

    Raises:
        ConnectionError: nobody answers there, or the secret is another.
        ValueError: it has no shards yet: the first client says what a step is, ``sw.Cluster(spec, address=...)``.
    """
    said = ask_directory(Address.parse(address), Security.of(secret, authority=tls_authority), None)
    if said["spec"] is None:
        raise ValueError(
            f"{address}: nothing is stored there yet; say what a step is: sharpwave.Cluster(spec, address={address!r})"
        )
    shards, spec = nearest(said, Address.parse(address)), Spec.from_json(said["spec"])
    return Cluster.of(spec, shards, secret=secret, tls_authority=tls_authority, seed=seed)


def ask_directory(
    address: Address, security: Security, spec: Spec | None, patience_s: float = READY_S
) -> dict[str, Any]:
    """Return what a directory says: ``spec``, and addresses of ``shards``, made if there are none and it is given.

    Raises:
        ConnectionError, ValueError.
    """
    link = Link(address, security, patience_s=patience_s)
    try:
        return link.call(Request.DIRECTORY, {"spec": None if spec is None else spec.description()}).head
    finally:
        link.close()
