"""Shards on a Ray of three simulated nodes, which can be lost with their disks: for cluster_faults.py."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from cluster_account import SPEC
from cluster_homes import CAPACITY, Home, end

import sharpwave as sw
from sharpwave.serve.addresses import Address

NODES = 3


class OnRay(Home):
    """Shards that Ray has placed, one on each node."""

    def __init__(self, folder: Path, **given: Any) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1]))
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
