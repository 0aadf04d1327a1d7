"""Shards as actors of Ray, which places, names and restarts them. Data goes over their own sockets."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sharpwave.errors import ShardFailedError
from sharpwave.extras import install
from sharpwave.serve.addresses import HERE, TCP, Address, machine, nearest
from sharpwave.serve.cluster_folder import write_whole
from sharpwave.serve.link import READY_S
from sharpwave.serve.local_shards import STOP_S
from sharpwave.serve.shard_process import ShardSettings, running

NAMESPACE = "sharpwave"
CLUSTER = "ray.txt"
"""File in a shard's folder: names the cluster that owns the folder."""
ASK_S = 0.05
"""Seconds that a client waits for Ray to locate a shard, before it retries later."""


def is_ray(address: str) -> bool:
    """Return whether an address is one of Ray."""
    return isinstance(address, str) and (address in ("ray", "auto") or address.startswith("ray://"))


def begin_ray(address: str) -> Any:
    """Connect to Ray, if this process is not connected; return its module.

    Raises:
        ModuleNotFoundError: it is not installed.  ConnectionError: no Ray runs there.
        ValueError: its ports are open to everyone.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"address={address!r} needs Ray: {install('ray')}", name="ray") from error
    if not ray.is_initialized():
        if address == "ray":
            raise ConnectionError(
                "address='ray' is the Ray that this process has begun, and it has not: call ray.init() first, or give "
                "address='auto' for one that `ray start` began"
            )
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
    check_authenticated([str(node["NodeManagerAddress"]) for node in ray.nodes()])
    return ray


def check_authenticated(hosts: Sequence[str]) -> None:
    """Refuse a Ray that other machines reach and that asks for no token.  Raises: ValueError."""
    far = [host for host in hosts if not Address(TCP, host=host).is_local]
    if far and os.environ.get("RAY_AUTH_MODE") != "token":
        raise ValueError(
            f"Ray listens at {far[0]} and runs the code of whoever connects. Start it with token authentication: "
            "RAY_AUTH_MODE=token and a token (`ray get-auth-token --generate`) on every machine, this one included; or "
            "bind it to 127.0.0.1"
        )


def placed(ray: Any) -> list[dict[str, Any]]:
    """Return the Ray nodes that work can be placed on, in a fixed order."""
    alive = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeID"]))
    return [node for node in alive if node["Resources"].get("CPU", 0) > 0] or alive


class RayShard:
    """Actor that runs one shard. Its settings are a process's; its machine decides where it listens.

    Args:
        kept_by: number of the shard that keeps this one's replica, if any.
    """

    def __init__(self, cluster: str, settings: dict[str, Any], kept_by: int | None) -> None:
        import ray

        given = ShardSettings(**settings)
        self._undo = ExitStack()
        sockets = Path(tempfile.gettempdir()) / f"sharpwave-{cluster}-{given.number}"
        shutil.rmtree(sockets, ignore_errors=True)  # of a process before this one, which was killed
        sockets.mkdir(0o700)
        self._undo.callback(shutil.rmtree, sockets, ignore_errors=True)
        folder = Path(given.folder) if given.on_disk else sockets / "shard"
        _take(folder, cluster)
        addresses = [f"unix:{sockets / '0.sock'}", str(Address(TCP, host=ray.util.get_node_ip_address()))]
        given = replace(given, folder=str(folder), addresses=addresses, kept_by=None)
        moved = None if kept_by is None else _asked(ray, _actor(cluster, kept_by))
        self._addresses = self._undo.enter_context(running(given, moved))

    def where(self) -> dict[str, Any]:
        """Return where it listens, on which machine, in which process."""
        return {"addresses": self._addresses, "machine": machine(), "process": os.getpid()}

    def stop(self) -> None:
        """Write pending data to the disk, and stop listening."""
        self._undo.close()


def _actor(cluster: str, number: int) -> str:
    """Return the name of a shard's actor."""
    return f"sharpwave-{cluster}-shard-{number}"


def _asked(ray: Any, name: str) -> Callable[[], Address]:
    """Return a function that asks an actor for its address, or raises LookupError while the address is unknown."""
    under_way: list[Any] = []

    def where() -> Address:
        try:
            if not under_way:
                under_way.append(ray.get_actor(name, namespace=NAMESPACE).where.remote())
            done, _ = ray.wait(under_way, timeout=ASK_S)
            if done:
                said = ray.get(under_way.pop())
                there = {"shards": [said["addresses"]], "machine": machine(), "machines": [said["machine"]]}
                return nearest(there, HERE)[0]
        except (ray.exceptions.RayError, ValueError):  # no actor of that name yet
            under_way.clear()
        raise LookupError(f"{name} is being started")

    return where


def _take(folder: Path, cluster: str) -> None:
    """Take a shard's folder for a cluster.  Raises: FileExistsError: it is another's."""
    mark = folder / CLUSTER
    if folder.is_dir() and any(folder.iterdir()) and not (mark.exists() and mark.read_text() == cluster):
        raise FileExistsError(f"disk: {folder} is not empty; give a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(mark, cluster)


class RayShards:
    """Shards on Ray, spread over its nodes in turn, until ``close`` or the end of this process.

    A shard that dies is restarted: on its node, with the data on its disk, or on another node if that one is gone.

    Args:
        settings: as for processes of this machine; a folder is on each shard's own machine.

    Raises:
        ShardFailedError: a shard does not start; then all are stopped.  As ``begin_ray``.
    """

    def __init__(self, address: str, settings: Sequence[ShardSettings]) -> None:
        self._ray = begin_ray(address)
        self._name = secrets.token_hex(4)
        self._handles: list[Any] = []
        self._said: list[dict[str, Any]] = []  # of each shard, when it was last asked
        self._asked: dict[int, Any] = {}  # that have not been answered
        self._lock = threading.Lock()
        try:
            for one in settings:
                self._handles.append(self._placed(one, None if one.keeps is None else (one.number + 1) % len(settings)))
            self._said = [self._ready(number) for number in range(len(self._handles))]
        except BaseException:
            self.close()
            raise

    def _placed(self, settings: ShardSettings, kept_by: int | None = None) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = placed(self._ray)
        node = nodes[settings.number % len(nodes)]
        made = self._ray.remote(RayShard).options(
            name=_actor(self._name, settings.number),
            namespace=NAMESPACE,
            num_cpus=0.001,  # decoding uses idle cores; with 0, Ray would choose the node
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=True),
        )
        return made.remote(self._name, asdict(settings), kept_by)

    def _ready(self, number: int) -> dict[str, Any]:
        """Wait until a shard listens.  Raises: ShardFailedError."""
        try:
            said: dict[str, Any] = self._ray.get(self._handles[number].where.remote(), timeout=READY_S)
            return said
        except self._ray.exceptions.RayError as error:
            raise ShardFailedError(f"shard {number} on Ray: {str(error).strip().splitlines()[-1]}") from error

    @property
    def count(self) -> int:
        """Number of the shards."""
        return len(self._said)

    @property
    def processes(self) -> list[int]:
        """Numbers of the shards' processes, each on its machine, as they last answered."""
        self.where()
        return [int(one["process"]) for one in self._said]

    def add(self, settings: ShardSettings) -> None:
        """Start one more shard.  Raises: ShardFailedError."""
        self._handles.append(self._placed(settings))
        self._said.append(self._ready(len(self._handles) - 1))

    def moved(self, number: int) -> Callable[[], Address]:
        """Return a function that returns a shard's address, or raises LookupError while the shard restarts."""
        return lambda: nearest(self._where([self._asked_again(number)]), HERE)[0]

    def where(self) -> dict[str, Any]:
        """Return the shards' description for a directory: the last known address of each."""
        for number in range(len(self._handles)):
            with self._lock:
                if number < len(self._handles):
                    self._ask(number)
        return self._where(list(self._said))

    def _where(self, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
        machines = [one["machine"] for one in said]
        return {"shards": [one["addresses"] for one in said], "machine": machine(), "machines": machines}

    def _asked_again(self, number: int) -> dict[str, Any]:
        with self._lock:
            if number >= len(self._handles) or not self._ask(number):
                raise LookupError(f"shard {number} on Ray is being started again")
            return self._said[number]

    def _ask(self, number: int) -> bool:
        """Ask a shard where it is; return whether it has answered."""
        asked = self._asked.pop(number, None) or self._handles[number].where.remote()
        try:
            done, _ = self._ray.wait([asked], timeout=ASK_S)
            if done:
                self._said[number] = self._ray.get(asked)
                return True
        except self._ray.exceptions.RayError:
            return False
        self._asked[number] = asked
        return False

    def leave(self) -> None:
        """Do nothing, in a forked process: Ray serves the parent only."""

    def close(self) -> None:
        """Stop the shards, which write pending data to their disks."""
        with self._lock:
            handles, self._handles = self._handles, []
        if not self._ray.is_initialized():  # they have ended with it
            return
        stopping = [handle.stop.remote() for handle in handles]
        self._ray.wait(stopping, num_returns=len(stopping), timeout=STOP_S) if stopping else None
        for handle in handles:
            self._ray.kill(handle, no_restart=True)
