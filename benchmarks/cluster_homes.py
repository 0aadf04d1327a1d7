"""Who runs the shards that cluster_faults.py harms: this process, one that can be killed, or ``sharpwave serve``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster_account import SPEC

import sharpwave as sw
from sharpwave.serve.addresses import Address, Security, connect
from sharpwave.serve.link import Link
from sharpwave.serve.requests import Request

BACK_S = 120.0
"""How long what was killed may take to answer again."""
CAPACITY = 4_000_000
"""More than rounds write: what is gone was lost, not evicted."""
HERE = Path(__file__).parent


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


class Driven(Started):
    """Shards of a program with ``Cluster(address="local")``; where they are changes whenever it is started again."""

    def __init__(self, folder: Path, shards: int) -> None:
        super().__init__(folder, shards)
        self.cluster = sw.Cluster.of(SPEC, [])
        self.cluster._members.links[:] = [
            Link(self._addresses[shard], Security(), moved=lambda shard=shard: self._addresses[shard])  # type: ignore[misc]
            for shard in range(shards)
        ]

    def command(self) -> list[str]:
        program = str(HERE / "cluster_account.py")
        return [sys.executable, program, "driver", str(self.folder), str(self._shards), str(CAPACITY)]

    def start(self) -> str:
        line = super().start()
        self._addresses = [Address.parse(one) for one in json.loads(line)]
        return line

    def address(self, shard: int) -> Address:
        return self._addresses[shard]


def serve(listen: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the command of ``sharpwave serve``."""
    given = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "sharpwave.cli", "serve", "--listen", listen, *given]


def end(process: int) -> None:
    """Kill a process, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def state(process: int, thread: str) -> str:
    """Return a thread's state as Linux calls it; "T": it is stopped."""
    return Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def anonymous_bytes(process: int) -> int:
    """Return the private memory of another process; 0: it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon")), 0)
