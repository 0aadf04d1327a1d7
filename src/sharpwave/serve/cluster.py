"""Cluster: one experience store of several shards, in processes of this machine or of others."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

from sharpwave.arguments import is_integer
from sharpwave.errors import not_to_be_copied
from sharpwave.log.boundaries import NOTICED
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.cluster_views import ClusterViews
from sharpwave.serve.cluster_writers import ClusterWriters
from sharpwave.serve.cuts import opening
from sharpwave.serve.directory import ask_directory
from sharpwave.serve.fleet import Fleet, started_link
from sharpwave.serve.forks import temporary_folder
from sharpwave.serve.link import Link
from sharpwave.serve.local_shards import LocalShards, Plan
from sharpwave.serve.manifest import Manifest
from sharpwave.serve.members import Members
from sharpwave.serve.ray_cluster import RayShards, is_ray
from sharpwave.serve.requests import Request
from sharpwave.spec import Spec
from sharpwave.store import Store
from sharpwave.validation import checked_folder

LOCAL_CAPACITY = 64


class Cluster(ClusterWriters, ClusterViews):
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
        options: further arguments of each shard's ``Store``: ``codec``, ``on_full``, ``segment_steps``.

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
                given = {"seed": self._seed, **options}
                here, folder = Path(), None if disk is None else Path(disk).absolute()
                plan = Plan(
                    shards, here, capacity, ram, disk_limit, folder, given, security=self.security, replicas=replicas
                )  # fmt: skip
                self._run(plan, RayShards(address, plan.settings(spec)))
            elif address == "local":
                folder = None if disk is None else checked_folder("disk", disk)
                sockets, given = self._sockets(), {"seed": self._seed, **options}
                plan = Plan(
                    shards, sockets, capacity, ram, disk_limit, folder, given, security=self.security, replicas=replicas
                )  # fmt: skip
                with plan.begun(spec):
                    self._start(plan)
            else:
                self._join(
                    address,
                    {"capacity": capacity, "ram": ram, "disk": disk, "disk_limit": disk_limit}
                    | {"replicas": replicas or None, "shards": None if shards == 1 else shards}
                    | options,
                )
        except BaseException:
            self.close()
            raise

    def _begin(self, spec: Spec, security: Security, seed: int) -> None:
        self.spec, self.security, self._seed = spec, security, int(seed)
        self._members = Members(security)
        self._undo = ExitStack()
        self._fleet: Fleet | None = None
        self._local = Store(spec, capacity=LOCAL_CAPACITY)
        self._made = 0
        self._writers = 0

    def _start(self, plan: Plan, draining: dict[str, Any] | None = None) -> None:
        """Start the shards of a plan as processes of this machine."""
        self._run(plan, LocalShards(plan.settings(self.spec)), draining)

    def _run(self, plan: Plan, started: LocalShards | RayShards, draining: dict[str, Any] | None = None) -> None:
        self._fleet = Fleet(self.spec, plan, started, started_link(started, self.security), draining)
        self._undo.callback(self._fleet.close)
        self._members = Members(self.security, fleet=self._fleet)

    @property
    def links(self) -> list[Link]:
        """Links to the shards that there are now, by number."""
        return self._members.now()

    @property
    def directory(self) -> str:
        """Address of the ``sharpwave serve`` whose shards these are; "": they are of no service."""
        return self._members.directory

    @property
    def _processes(self) -> LocalShards | RayShards | None:
        return None if self._fleet is None else self._fleet.processes

    def _join(self, address: str, given: Mapping[str, Any]) -> None:
        """Connect to the shards of ``sharpwave serve``, which makes them if there are none."""
        named = sorted(name for name, value in given.items() if value is not None)
        if named:
            raise ValueError(f"Cluster: {named[0]}= is for address='local'; {address} has shards and limits already")
        directory = Address.parse(address)
        said = ask_directory(directory, self.security, self.spec)
        self._members = Members(self.security, directory=directory, said=said)

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
        made._members = Members(made.security, addresses=[Address.parse(str(one)) for one in addresses])
        return made

    def _sockets(self) -> Path:
        """Return a folder for unix sockets, which only this user can enter, deleted at the end."""
        folder, delete = temporary_folder(self)
        self._undo.callback(delete)
        return folder

    # the whole

    def where(self) -> dict[str, Any]:
        """Return what a directory says: the addresses of each of ``shards``, and the ``machine`` that they are on."""
        return self._members.where()

    @property
    def recovery(self) -> None:
        """``None``: shards say in their logs what was damaged when they were opened."""
        return None

    def __len__(self) -> int:
        """Return the number of steps that the shards hold."""
        return sum(int(one["steps"]) for one in self._members.call(Request.DESCRIBE))

    def stats(self) -> dict[str, Any]:
        """Return every shard's ``Store.stats()`` under ``shards``, and sums of the numbers that add up,
        among them what writers noticed (``broken_episodes``, ``unchained_steps``, ``rounded_breaks``,
        ``repeated_finals``, ``dropped_resets``).

        Shards that are being started again are left out.  Raises: ShardLostError: none can be reached.
        """
        each = [one["stats"] for one in self._members.answers(Request.STATS)]
        names = ("steps", "total_steps", "evicted_steps", "segments", "lanes", "total_bytes", "fixed_bytes")
        sums = {name: sum(one[name] for one in each) for name in names}
        sums |= {name: sum(one.get(name, 0) for one in each) for name in NOTICED}  # an older shard counts none
        steps = max(1, sums["steps"])
        encoded = sum(one["encoded_bytes_per_step"] * one["steps"] for one in each) / steps
        means = {"bytes_per_step": sums["total_bytes"] / steps, "encoded_bytes_per_step": encoded}
        return sums | means | {"shards": each}

    def annotate(self, lane: None, values: Mapping[str, Any]) -> None:
        """Annotate the stores of all shards: as ``Store.annotate`` with ``lane=None``."""
        self._members.call(Request.ANNOTATE, {"values": dict(values)})

    def flush(self) -> None:
        """Write all that the shards hold to their disks.  Raises: OSError, ShardLostError."""
        self._members.call(Request.FLUSH)

    def clear(self) -> None:
        """Evict every step of every shard."""
        self._members.call(Request.CLEAR)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of all shards at one moment, to a folder that all of them reach.

        Shards take no steps while it is written; writers keep theirs meanwhile. What writers had been told was taken is
        in it, with priorities and random states.

        Raises:
            OSError: a shard cannot write; an earlier checkpoint there is unchanged.
            FileExistsError: the folder holds something else than checkpoints of clusters.
        """
        self._members.checkpoint(path, self.spec)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        disk: str | os.PathLike[str] | None = None,
        capacity: int | None = None,
        ram: int | str | None = None,
        disk_limit: int | str | None = None,
        secret: str | bytes | None = None,
        seed: int = 0,
    ) -> Self:
        """Open a checkpoint of a cluster, or the folder of one on disk, on this machine.

        Writers of the cluster that is opened go on with their lanes if they are made with the same ``name``.

        Args:
            shards: number of shards; default: as before. A checkpoint opens in fewer: each shard merges several, with
                all their steps, and with the priorities, uses and counts of views.
            disk: a new or empty folder for the shards of a checkpoint of a cluster on disk; or one in which that was
                not finished, which begins anew.
            capacity, ram, disk_limit: of all shards together; default: as before. Where shards are merged, each gets
                the limits of as many as the largest merge.

        Raises:
            FileNotFoundError: the folder holds no cluster.  DamagedError: ``cluster.json`` is damaged.
            StoreInUseError: another process opens a checkpoint into ``disk``.
            ValueError, FileExistsError, ShardFailedError.
        """
        with opening(path, disk) as (found, folder, begins_from):
            count = _checked_shards(shards, found, path, begins_from)
            limits = {"capacity": capacity, "ram": ram, "disk_limit": disk_limit}
            parts = found.parts if capacity is ram is disk_limit is None else 0
            if count < found.shards:
                limits, parts = found.merged_limits(count) | _given(limits), 0
            made = cls.__new__(cls)
            made._begin(found.spec, Security.of(secret), seed)
            try:
                plan = Plan(
                    count, made._sockets(), **limits, disk=folder, security=made.security, begins_from=begins_from,
                    merges=found.shards, opens=True, replicas=found.replicas, new=found.new, parts=parts,
                )  # fmt: skip
                made._start(plan, found.draining)
                assert made._fleet is not None
                made._fleet.opened(found)
            except BaseException:
                made.close()
                raise
        return made

    def resize(self, *, shards: int, drain: bool = True) -> None:
        """Start further shards, or begin to drain the last ones; draws stay exact.

        A new shard begins empty, with the limits that the others have. One that is drained takes no new episodes: its
        writers' lanes go to other shards as their episodes end. Its steps are drawn as before, and are evicted, oldest
        first, as the shards that stay evict what they held at that time; then its process ends. More shards than are
        to stay end the drain of those that are still there. For shards that this object started, or that
        ``sharpwave serve`` has.

        Args:
            drain: ``False``: evict the steps of shards that are not to stay at once, and truncate the episodes that
                their writers are in.

        Raises:
            ValueError: no such number, replicas, or nobody who could start shards.
            ShardLostError: a shard is away at present; nothing was changed.
            OSError: the folder cannot be written to; no drain has begun, and shards that were added stay.
        """
        self._members.resize(shards, drain)

    def close(self) -> None:
        """Disconnect; shards that this object started write what is left to their disks, and end.

        Writers and views of this object raise ValueError from then on. Close writers before; those of shards that were
        started elsewhere can still be closed after, and send what they have.
        """
        self._members.close()
        self._undo.close()
        self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        there = f"sharpwave.connect({self.directory!r})"
        if not self.directory:
            there = 'sharpwave.Cluster.of(spec, [one[0] for one in cluster.where()["shards"]])'
        raise not_to_be_copied(self, f"connect to its shards with {there}")


def _checked_shards(shards: int | None, found: Manifest, path: Any, begins_from: Path | None) -> int:
    """Return in how many shards a folder is opened.  Raises: ValueError."""
    if shards is None or shards == found.shards:
        return found.shards
    if not is_integer(shards) or not 1 <= shards < found.shards:
        raise ValueError(
            f"open: shards={shards!r}, expected an integer from 1 to {found.shards}, as many as {os.fspath(path)!r} "
            "has; resize() adds shards to a cluster that runs"
        )
    if begins_from is None:
        raise ValueError(
            f"open: shards={shards}, but {os.fspath(path)!r} is the folder of a cluster of {found.shards} shards, "
            "expected a checkpoint: open the folder, write one with checkpoint(), and open that"
        )
    return int(shards)


def _given(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: limit for name, limit in limits.items() if limit is not None}


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
    directory, security = Address.parse(address), Security.of(secret, authority=tls_authority)
    said = ask_directory(directory, security, None)
    if said["spec"] is None:
        raise ValueError(
            f"{address}: nothing is stored there yet; say what a step is: sharpwave.Cluster(spec, address={address!r})"
        )
    made = Cluster.__new__(Cluster)
    made._begin(Spec.from_json(said["spec"]), security, seed)
    made._members = Members(security, directory=directory, said=said)
    return made
