"""Fleet: the shards of a cluster that this process starts, by a plan, and the folder that names them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sharpwave.arguments import is_integer
from sharpwave.errors import StoreInUseError
from sharpwave.native.forks import follow
from sharpwave.persistence.settings import LEAST, Settings, checked_limits
from sharpwave.serve.addresses import HERE, TCP, Address, Security, nearest
from sharpwave.serve.cluster_folder import CLUSTER, Manifest, alone, cut, delete_when_free, empty_folder
from sharpwave.serve.link import Link
from sharpwave.serve.local_shards import LocalShards
from sharpwave.serve.members import Members
from sharpwave.serve.ray_cluster import RayShards
from sharpwave.serve.shard_process import ShardSettings
from sharpwave.spec import Spec
from sharpwave.validation import check_capacity, parse_bytes

MAX_SHARDS = 1024
MAX_PORT = 65535
SEGMENT_STEPS = 32
"""Steps in a segment of shards and of their writers. A store has slots for its capacity in segments of its own length:
shorter segments, which writers seal, would leave it partly empty."""


@dataclass(frozen=True)
class ShardPlan:
    """Plan of a cluster's shards, all alike.

    Attributes:
        shards: their number. ``capacity``, ``ram``, ``disk_limit``: limits of all shards together.
        disk: folder of their folders; ``None``: they are in memory. ``sockets``: folder of their unix sockets. Paths
            become absolute: a restarted shard must find them after this process has changed its working directory.
        options: further arguments of ``Store``: ``codec``, ``on_full``, ``segment_steps``, ``seed``.
        listen: their second address: shard k at ``port + 1 + k``, or any free port if the port is 0.
        found: the shards that are opened: ``None`` leaves a limit as it was.
        begins_from: folder of a checkpoint, with a folder of each shard found: shard k takes every ``shards``-th, from
            the k-th on.
        replicas: copies of each shard, kept by its neighbor: 0 or 1.
        parts: number of shards by which the limits are divided; 0: ``shards``.
    """

    shards: int
    sockets: Path
    capacity: Any = None
    ram: Any = None
    disk_limit: Any = None
    disk: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    listen: Address | None = None
    security: Security = field(default_factory=Security)
    found: Manifest | None = None
    begins_from: Path | None = None
    replicas: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        if self.options.get("segment_steps") is None and not self.new.get("segment_steps"):
            object.__setattr__(self, "options", {**self.options, "segment_steps": SEGMENT_STEPS})
        object.__setattr__(self, "parts", self.parts or self.shards)
        for name in ("disk", "begins_from"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, path.absolute())

    @property
    def new(self) -> dict[str, Any]:
        """Limits and options of a store that must be made while others are opened."""
        return {} if self.found is None else self.found.new

    def one_more(self, spec: Spec, number: int) -> ShardSettings:
        """Return the settings of a shard like these, which begins empty."""
        return replace(self, begins_from=None)._one(spec, number, self._limits())

    def _limits(self) -> dict[str, int | None]:
        """Return each shard's limits; ``None``: the limit of its existing store.  Raises: ValueError."""
        given: dict[str, Any] = {"capacity": self.capacity, "ram": self.ram, "disk_limit": self.disk_limit}
        if self.found is not None:
            whole: dict[str, int | None] = {
                name: None if one is None else check_capacity(one) if name == "capacity" else parse_bytes(one, name)
                for name, one in given.items()
            }
        else:
            whole = checked_limits(**given, on_disk=self.disk is not None)
        return {name: None if one is None else self._part(name, one, given[name]) for name, one in whole.items()}

    def _part(self, name: str, whole: int, given: Any) -> int:
        """Return a store's part of a limit.  Raises: ValueError: no store can have it."""
        stores = self.parts * (1 if name == "capacity" else 1 + self.replicas)
        part, least = whole // stores, LEAST[name]
        if part < least:
            said = repr(given) if isinstance(given, str) else whole
            kept = f", each with {self.replicas} replica" if stores > self.parts else ""
            raise ValueError(
                f"{name}={said} of {self.parts} shards{kept}, expected at least {least * stores:,}: each store gets "
                f"an equal part, at least {least:,} {'steps' if name == 'capacity' else 'bytes'}; raise it, or have "
                "fewer shards"
            )
        return part

    def manifest(self, spec: Spec) -> Manifest:
        """Return the manifest of these shards' folder.  Raises: as ``settings``."""
        one = self.settings(spec)[0]
        new = {**one.new, **{name: value for name, value in (one.limits | one.options).items() if value is not None}}
        return Manifest(spec, self.shards, self.disk is not None, replicas=self.replicas, new=new, parts=self.parts)

    @contextlib.contextmanager
    def begun(self, spec: Spec) -> Iterator[None]:
        """Make the folder of new shards, if they have one, and hold it while they start.

        If they do not start, delete their files: the next attempt finds the folder as this one did.

        Raises: as ``empty_folder``, ``alone``, ``settings``.
        """
        manifest = self.manifest(spec)
        if self.disk is None:
            yield
            return
        with alone(empty_folder(self.disk)):
            empty_folder(self.disk)
            manifest.write(self.disk)
            try:
                yield
            except BaseException:
                with contextlib.suppress(StoreInUseError):  # of one that still ends
                    for number in range(self.shards):
                        delete_when_free(self.disk / f"shard-{number}")
                    (self.disk / CLUSTER).unlink(missing_ok=True)
                raise

    def settings(self, spec: Spec) -> list[ShardSettings]:
        """Return the settings of each shard.  Raises: ValueError, TypeError: a store or a cluster cannot have these."""
        if isinstance(self.shards, bool) or not isinstance(self.shards, int) or not 1 <= self.shards <= MAX_SHARDS:
            raise ValueError(f"shards={self.shards!r}, expected an integer from 1 to {MAX_SHARDS}")
        if self.replicas not in (0, 1) or self.replicas >= self.shards:
            raise ValueError(
                f"replicas={self.replicas!r} of {self.shards} shards, expected 0, or 1 of 2 shards or more: each "
                "shard's steps are kept by the next one too"
            )
        unknown = sorted(self.options.keys() - {"codec", "on_full", "segment_steps", "seed"})
        if unknown:
            raise TypeError(f"Cluster: {unknown[0]}= is no setting of shards; there are codec, on_full, segment_steps")
        each = self._limits()
        if self.found is None:
            checked: dict[str, Any] = {"on_full": "raise", "codec": "auto", "segment_steps": None, "seed": 0}
            of_store: dict[str, Any] = {**each, **checked, **self.options}
            Settings.checked(spec, on_disk=self.disk is not None, retention=None, **of_store)
        return [self._one(spec, number, each) for number in range(self.shards)]

    def _one(self, spec: Spec, number: int, limits: dict[str, int | None]) -> ShardSettings:
        addresses = [f"unix:{self.sockets / f'{number}.sock'}"]
        if self.listen is not None and self.listen.kind == TCP:
            port = self.listen.port and self.listen.port + 1 + number
            if port > MAX_PORT:
                raise ValueError(
                    f"{self.listen}: shard {number} would listen at port {port}, of at most {MAX_PORT}: shards take "
                    "the ports behind it; listen at a lower one"
                )
            addresses.append(str(replace(self.listen, port=port)))
        folder = (self.sockets if self.disk is None else self.disk) / f"shard-{number}"
        return ShardSettings(
            number,
            addresses,
            str(folder),
            spec.description(),
            limits,
            self.disk is not None,
            {**self.options, "seed": int(self.options.get("seed", self.new.get("seed", 0))) + number},
            []
            if self.begins_from is None or self.found is None
            else [str(self.begins_from / f"shard-{one}") for one in range(number, self.found.shards, self.shards)],
            self.security.secret.hex(),
            self.security.certificate,
            self.security.key,
            (number - 1) % self.shards if self.replicas else None,
            f"unix:{self.sockets / f'{(number + 1) % self.shards}.sock'}" if self.replicas else None,
            self.new,
        )


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

    def _check_process(self, what: str) -> None:
        """Refuse ``what`` in a process other than the one that started the shards.  Raises: StoreInUseError."""
        if self._process != os.getpid():
            raise StoreInUseError(
                f"{what}: process {self._process} has started these shards; this is process {os.getpid()}, forked from "
                "it: do that there"
            )

    def __len__(self) -> int:
        return self.processes.count

    def where(self) -> dict[str, Any]:
        """Return the shards' description for a directory."""
        return self.processes.where()

    def link(self, number: int) -> Link:
        """Return a new link to a shard."""
        address = nearest(self.where(), HERE)[number]
        return Link(address, self.plan.security, moved=self.processes.moved(number))

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
        self._check_process("resize")
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

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of all shards, to which none is added meanwhile: as ``Cluster.checkpoint``."""
        self._check_process("checkpoint")
        members = Members(self.plan.security, fleet=self)
        try:
            with self.lock:
                cut(members, path, self.spec, self.manifest())
        finally:
            members.close()

    def close(self) -> None:
        """Stop the shards, which write pending data to their disks; in a forked process, do nothing."""
        if self._process == os.getpid():
            self.processes.close()
