"""Actors on the nodes of Ray: it places processes that join the learner's hub, one for each share of the actors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.serve.addresses import TCP, Address
from sharpwave.serve.ray_cluster import NAMESPACE, begin_ray, placed
from sharpwave.training.actors.hub import Hub
from sharpwave.training.actors.node import Node
from sharpwave.training.recipes.recipe import Recipe

LOOK_S = 1.0
"""Seconds between checks for free resources and ended nodes."""


class RayNode:
    """Actor of Ray that plays some of a run's actors."""

    def __init__(self, secret: str) -> None:
        os.environ["SHARPWAVE_SECRET"] = secret  # also for the processes of actors
        # Otherwise each of them would import the main module of Ray's workers, and Ray with it.
        sys.modules["__main__"].__dict__.pop("__file__", None)

    def run(self, hub: str, actors: int, label: str) -> None:
        """Play until the learner stops its actors.  Raises: as ``Node.run``."""
        Node(hub, actors, trust=True, label=label).run()


@dataclass
class _StartedNode:
    """Actor of Ray, on one of its nodes, for ``actors`` of the run; ``ended``: the result of its ``run``."""

    label: str
    where: str
    actors: int
    handle: Any
    ended: Any


class RayHub(Hub):
    """Hub whose nodes Ray runs: as many actors on each as it has processors, in proportion.

    It listens at this node's address. Free actors, at first or after a node has left, are placed on the present nodes.
    """

    def __init__(
        self,
        recipe: Recipe,
        agent: Agent,
        store: sw.Cluster,
        run_steps: int,
        inserts: int,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._ray = begin_ray(recipe.replay.ray)
        host = str(Address(TCP, host=self._ray.util.get_node_ip_address()))
        super().__init__(recipe, agent, store, run_steps, inserts, say, listen=host)
        self._placed: list[_StartedNode] = []
        self._made = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_placed, name="sharpwave-ray", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        self._closing.set()
        super().close()
        if self._thread.is_alive():
            self._thread.join()
        for one in self._placed:
            self._ray.kill(one.handle, no_restart=True)

    def _keep_placed(self) -> None:
        while not self._closing.is_set():
            try:
                self._place()
            except self._ray.exceptions.RayError as error:  # its head is away, perhaps
                self._say(f"Ray: {error}")
            self._closing.wait(LOOK_S)

    def _place(self) -> None:
        """Place the actors that no node plays, or will soon."""
        for one in list(self._placed):
            if self._ray.wait([one.ended], timeout=0)[0]:
                self._placed.remove(one)
        joined = set(self.joined())
        free = self.free() - sum(one.actors for one in self._placed if one.label not in joined)
        nodes = placed(self._ray) if free > 0 else []
        loads = {node["NodeID"]: 0 for node in nodes}
        for one in self._placed:
            if one.where in loads:
                loads[one.where] += one.actors
        for where, actors in shares(free, {n["NodeID"]: n["Resources"].get("CPU", 1.0) for n in nodes}, loads).items():
            self._start(where, actors)

    def _start(self, where: str, actors: int) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._made += 1
        label = f"{where[:8]} of Ray ({self._made})"
        made = self._ray.remote(RayNode).options(
            namespace=NAMESPACE,
            num_cpus=0,  # its actors are shared out by processors
            scheduling_strategy=NodeAffinitySchedulingStrategy(where, soft=False),
        )
        handle = made.remote(self._store.security.secret.decode())
        ended = handle.run.remote(str(self.address), actors, label)
        self._placed.append(_StartedNode(label, where, actors, handle, ended))


def shares(free: int, processors: dict[str, float], loads: dict[str, int]) -> dict[str, int]:
    """Share out ``free`` actors, each to the node that has fewest for its processors, beside the ``loads`` that they
    have.
    """
    given: dict[str, int] = {}
    for _ in range(free if processors else 0):
        where = min(processors, key=lambda node: (loads[node] + given.get(node, 0) + 1) / max(processors[node], 1e-3))
        given[where] = given.get(where, 0) + 1
    return given
