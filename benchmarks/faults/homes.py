"""Homes of the harmed shards: this process, one that can be killed, ``sharpwave serve``, or a simulated Ray."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

import sharpwave as sw
from faults.account import SPEC
from sharpwave.serve.addresses import Address, connect
from sharpwave.serve.link import Link
from sharpwave.serve.wire import Request

BACK_S = 120.0
"""How long what was killed may take to answer again."""
CAPACITY = 4_000_000
"""More than rounds write: what is gone was lost, not evicted."""
HERE = Path(__file__).parent
NODES = 3


class Home:
    """A cluster, and the processes behind it.

    Attributes:
        cluster: as the learner of this process sees it. ``folder``: of the shards' folders, where there are some.
    """

    cluster: sw.Cluster
    folder: Path

    def address(self, shard: int) -> Address:
        """Return where a shard listens."""
        link = self.cluster.links[shard]
        assert link is not None
        return link.address

    def process(self, shard: int) -> int:
        """Return a shard's process.  Raises: ConnectionError: it does not answer."""
        made, about = connect(self.address(shard), self.cluster.security)
        made.close()
        return int(about["process"])

    def processes(self) -> list[int]:
        """Return the processes of all shards.  Raises: ConnectionError."""
        return [self.process(shard) for shard, link in enumerate(self.cluster.links) if link is not None]

    def back(self, shard: int, before: int) -> float:
        """Wait until another process than ``before`` answers for a shard; return the seconds, or infinity."""
        begun = time.monotonic()
        while time.monotonic() < begun + BACK_S:
            with contextlib.suppress(ConnectionError):
                if self.process(shard) != before:
                    link = Link(self.address(shard), self.cluster.security)
                    link.call(Request.DESCRIBE)
                    link.close()
                    return time.monotonic() - begun
            time.sleep(0.01)
        return float("inf")

    def kill(self, shard: int) -> float:
        """Kill a shard; return the seconds until it answered again."""
        before = self.process(shard)
        end(before)
        return self.back(shard, before)

    def lose_disk(self, shard: int) -> float:
        """Kill a shard and delete all that it has on disk; return the seconds until it answered again."""
        before = self.process(shard)
        os.kill(before, signal.SIGSTOP)  # it writes nothing meanwhile, and refuses nothing either
        while any(state(before, thread) != "T" for thread in os.listdir(f"/proc/{before}/task")):
            time.sleep(0.001)
        shutil.rmtree(self.folder / f"shard-{shard}")
        end(before)
        return self.back(shard, before)

    def close(self) -> None:
        """Stop everything."""
        self.cluster.close()


class Here(Home):
    """Shards that this process has started."""

    def __init__(self, folder: Path, shards: int, *, on_disk: bool = True, **given: Any) -> None:
        self.folder = folder / "disk"
        disk = self.folder if on_disk else None
        self.cluster = sw.Cluster(SPEC, shards=shards, capacity=CAPACITY, disk=disk, segment_steps=8, **given)


class Started(Home):
    """Shards of another process, which can be killed and started again."""

    runner: subprocess.Popen[str]

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder, self._shards = folder / "disk", shards
        self._undo = folder / "log"
        self.start()

    def command(self) -> list[str]:
        """Return what is to be run; it prints a line once it is ready."""
        raise NotImplementedError

    def start(self) -> str:
        """Start the process; return its first line."""
        with self._undo.open("a") as log:
            self.runner = subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.runner.stdout is not None
        return self.runner.stdout.readline()

    def kill_runner(self, with_shards: bool) -> float:
        """Kill the process that runs the shards, or all of them at once, and start it again.

        Returns the seconds from its start until every shard answered.
        """
        before = self.processes()
        if with_shards:
            os.kill(self.runner.pid, signal.SIGSTOP)  # it starts none again
            for one in before:
                end(one)
        end(self.runner.pid)
        self.runner.communicate()
        begun = time.monotonic()
        self.start()
        for shard, process in enumerate(before):
            if self.back(shard, process) == float("inf"):
                return float("inf")
        return time.monotonic() - begun

    def close(self) -> None:
        super().close()
        self.runner.terminate()
        self.runner.communicate(timeout=BACK_S)


class Served(Started):
    """Shards of ``sharpwave serve``, which is also the directory."""

    def __init__(self, folder: Path, shards: int, spec: sw.Spec | None = SPEC) -> None:
        self.listen = f"unix:{folder / 'serve.sock'}"
        super().__init__(folder, shards)
        if spec is not None:
            self.cluster = sw.Cluster(spec, address=self.listen)

    def join(self) -> None:
        """Connect, once another client has said what a step is."""
        begun = time.monotonic()
        while True:
            try:
                self.cluster = sw.connect(self.listen)
                return
            except (ValueError, ConnectionError):
                if time.monotonic() > begun + BACK_S:
                    raise
                time.sleep(0.1)

    def command(self) -> list[str]:
        settings = {"shards": self._shards, "capacity": CAPACITY, "segment-steps": 8, "disk": self.folder}
        return serve(self.listen, settings)


def serve(listen: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the command of ``sharpwave serve``."""
    given = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "sharpwave.cli", "serve", "--listen", listen, *given]


class OnRay(Home):
    """Shards that Ray has placed, one on each node."""

    def __init__(self, folder: Path, **given: Any) -> None:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        import pytest

        from tests.serve.on_ray import NODE, simulated

        self._node, self._undo = NODE, ExitStack()
        patch = self._undo.enter_context(pytest.MonkeyPatch.context())
        _, self._nodes = self._undo.enter_context(simulated(NODES, patch))
        self.folder = folder / "disk"
        options: dict[str, Any] = {"disk": self.folder, "segment_steps": 8, "address": "ray", **given}
        self.cluster = sw.Cluster(SPEC, shards=NODES, capacity=CAPACITY, **options)
        self._shards: Any = self.cluster._processes

    def address(self, shard: int) -> Address:
        try:
            where: Address = self._shards.moved(shard)()
            return where
        except LookupError as error:
            raise ConnectionError(str(error)) from error

    def lose_node(self, shard: int, with_disk: bool) -> float:
        """Kill a node and what it has of a shard; return the seconds until the shard answered from another.

        The first node, with Ray's directory, stays: then only the shard is killed, as Ray cannot outlive it.
        """
        before = self.process(shard)
        raylet = psutil.Process(before).ppid()
        os.kill(before, signal.SIGSTOP)  # it writes nothing meanwhile, and refuses nothing either
        if with_disk:
            shutil.rmtree(self.folder / f"shard-{shard}")
        for node in list(self._nodes.worker_nodes):
            if node.all_processes["raylet"][0].process.pid == raylet:
                self._nodes.remove_node(node, allow_graceful=False)
        end(before)
        took = self.back(shard, before)
        while len(self._nodes.worker_nodes) < NODES - 1:
            self._nodes.add_node(**self._node)
        return took

    def close(self) -> None:
        super().close()
        self._undo.close()


def end(process: int) -> None:
    """Kill a process, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def state(process: int, thread: str) -> str:
    """Return a thread's state as Linux calls it; "T": it is stopped."""
    return Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
