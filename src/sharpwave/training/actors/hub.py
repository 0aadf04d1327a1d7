"""Hub: the learner's end of actors on other machines. Nodes join it, run its actors, and request progress and weights.

Steps go from actors into shards. A node reports their number to the hub, and receives its actors' allowance; weights
are sent once to a node, which shares them among its actors.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.serve.addresses import Address
from sharpwave.serve.budget import BYTES, Budget
from sharpwave.serve.server import Client, Reply, Server
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.serve.wire import Frame, Request, WireError, array_in
from sharpwave.training.actors.channels import Arrival
from sharpwave.training.actors.pool import STOP_S, lanes_of_actors
from sharpwave.training.actors.worker import most_steps, ratio_limiter
from sharpwave.training.callbacks import CallbackError
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeScore
from sharpwave.training.setup import own_parts

GONE_S = 30.0
"""Time without a word from a node after which its actors are free for others."""
LEAVE_S = STOP_S + 5.0
"""Seconds that nodes may take to stop their actors at the end of the run."""
LONELY_S = 15.0
"""Time without a node after which that is said."""


@dataclass
class _JoinedNode:
    """State of a node.

    Attributes:
        actors: the run's actors that it runs, with ``lanes`` environments in all.
        made: number of steps made. ``granted``: number of steps allowed. ``received``: number of steps in shards.
        number: number of its last report. ``restarts``: of its actors. ``heard``: time of its last request.
    """

    name: str
    actors: list[int]
    lanes: int
    made: int = 0
    granted: int = 0
    received: int = 0
    number: int = 0
    restarts: int = 0
    heard: float = field(default_factory=time.monotonic)


class Hub:
    """Actors of a run on nodes, which may join, leave and return. A context manager that stops them on exit.

    Args:
        run_steps, inserts, say: as for ``ActorPool``.
        store: cluster whose shards take the steps.
        listen: address where nodes join.

    Attributes:
        address: where nodes join. ``restarts``: actors restarted so far. ``budget``: memory budget of connections.

    Raises:
        ValueError, OSError: it cannot listen there.
    """

    callback_failure: CallbackError | None = None

    def __init__(
        self,
        recipe: Recipe,
        agent: Agent,
        store: sw.Cluster,
        run_steps: int,
        inserts: int,
        say: Callable[[str], None] = lambda text: None,
        *,
        listen: str,
    ) -> None:
        self._recipe, self._store, self._say = recipe, store, say
        self._own, self._limiter = own_parts(recipe), ratio_limiter(recipe, agent.replay())
        self._lanes = [len(lanes) for lanes in lanes_of_actors(recipe)]
        self._count = sum(part.numel() for part in agent.policy_tensors(explore=True).values())
        self._run = secrets.token_hex(16)
        self._steps, self._samples, self._inserts = run_steps, 0, inserts
        self._left = 0  # steps of nodes that went
        self._weights: npt.NDArray[np.float32] = np.empty(0, np.float32)
        self._version = 0
        self._nodes: dict[str, _JoinedNode] = {}
        self._inbox: list[Arrival | EpisodeScore] = []
        self._restarts, self._failure, self._stop = 0, "", False
        self._alone_since: float | None = time.monotonic()
        self._changed = threading.Condition()
        self.budget = Budget(BYTES)
        self._server = Server(self, Address.parse(listen), store.security)
        self.address = self._server.address

    def __enter__(self) -> Self:
        self._say(f"Actors join by: sharpwave actors --hub {self.address.from_elsewhere}".replace("tcp://", ""))
        return self

    # the learner's side

    @property
    def restarts(self) -> int:
        with self._changed:
            return self._restarts + sum(node.restarts for node in self._nodes.values())

    def tell(self, steps: int, samples: int) -> None:
        self._steps, self._samples = steps, samples

    def publish(self, parts: Sequence[torch.Tensor]) -> int:
        numbers = np.concatenate([part.detach().reshape(-1).cpu().float().numpy() for part in parts])
        with self._changed:
            self._weights, self._version = numbers, self._version + 1
            return self._version

    def receive(self, timeout_s: float) -> Iterator[Arrival | EpisodeScore]:
        """Yield the nodes' reports, waiting up to ``timeout_s`` for the first.

        Raises:
            ProcessDiedError: actors of the last node died more often than ``actor_restarts`` allows.
        """
        with self._changed:
            if not self._inbox:
                self._changed.wait(timeout_s)
            messages, self._inbox = self._inbox, []
            now = time.monotonic()
            for name, node in list(self._nodes.items()):
                if now - node.heard > GONE_S:
                    self._gone(name, f"has not been heard of for {GONE_S:g} s")
            failure, alone = self._failure, self._alone_since
            if not self._nodes and alone is not None and now - alone > LONELY_S:
                self._alone_since = None
                self._say("No actors play: this run waits for nodes to join")
        yield from messages
        if failure and not self._nodes:
            raise ProcessDiedError(failure)

    def close(self) -> None:
        """Stop all nodes, waiting until they have stopped their actors, and stop listening."""
        deadline = time.monotonic() + LEAVE_S
        with self._changed:
            self._stop = True
            while self._nodes and time.monotonic() < deadline:
                self._changed.wait(0.1)
        self._server.close()

    def free(self) -> int:
        """Return how many actors no node plays."""
        with self._changed:
            return len(self._lanes) - sum(len(node.actors) for node in self._nodes.values())

    def joined(self) -> list[str]:
        with self._changed:
            return [node.name for node in self._nodes.values()]

    # the nodes' side

    def about(self) -> dict[str, Any]:
        return {"hub": self._run}

    def left(self, client: Client) -> None:
        """Do nothing: a node may connect again."""

    def answer(self, client: Client, frame: Frame) -> Reply:
        """Answer a node, or an actor that looks for its shard.  Raises: WireError."""
        if frame.kind == Request.DIRECTORY:
            return {"spec": None, **self._store.where()}, {}
        name = frame.head.get("node")
        if not isinstance(name, str) or frame.kind not in (Request.JOIN, Request.POLL, Request.LEAVE):
            raise WireError(f"a request of kind {frame.kind} to the hub, of node {name!r}")
        with self._changed:
            if frame.kind == Request.JOIN:
                return self._join(name, frame.head), {}
            node = self._nodes.get(name)
            if node is None:
                return {"run": self._run, "stop": self._stop, "unknown": True}, {}
            self._hear(node, frame)
            if frame.kind == Request.LEAVE:
                self._failure = str(frame.head.get("failure") or "")
                self._gone(name, f"left: {self._failure}" if self._failure else "left")
                return {}, {}
            return self._told(node, frame)

    def _join(self, name: str, head: dict[str, Any]) -> dict[str, Any]:
        """Give a node as many free actors as it takes."""
        if name in self._nodes:
            self._gone(name, "began anew")
        wanted = _whole(head, "actors")
        taken = {actor for node in self._nodes.values() for actor in node.actors}
        actors = [actor for actor in range(len(self._lanes)) if actor not in taken][:wanted]
        if actors and not self._stop:
            self._nodes[name] = _JoinedNode(str(head.get("host")), actors, sum(self._lanes[actor] for actor in actors))
            self._failure = ""
            self._say(f"Node {head.get('host')} plays {len(actors)} of {len(self._lanes)} actors")
        return {
            "run": self._run,
            "stop": self._stop,
            "actors": actors,
            "recipe": self._recipe.to_table(),
            "agents": dict(self._own.agents),
            "image_models": dict(self._own.image_models),
            "steps": self._steps,
            "inserts": self._inserts,
            "weights": self._count,
            **self._store.where(),
        }

    def _hear(self, node: _JoinedNode, frame: Frame) -> None:
        """Apply a node's report, once: a report whose reply was lost is sent again."""
        node.heard = time.monotonic()
        head = frame.head
        number, node.made, node.restarts = _whole(head, "number"), _whole(head, "made"), _whole(head, "restarts")
        if number == node.number:
            return
        node.number = number
        delivered = array_in(frame.parts, "delivered", np.int64, -1, 2).tolist()
        episodes = array_in(frame.parts, "episodes", np.float64, -1, 3).tolist()
        for steps, version in delivered:
            node.received += steps
            self._inbox.append(Arrival(steps, version))
        self._inbox += [EpisodeScore(reward, int(steps), int(lane)) for reward, steps, lane in episodes]
        self._changed.notify_all()

    def _told(self, node: _JoinedNode, frame: Frame) -> Reply:
        self._grant(node)
        head = {
            "run": self._run,
            "stop": self._stop,
            "steps": self._steps,
            "samples": self._samples,
            "limit": node.granted,
            "version": self._version,
        }
        new = self._version > _whole(frame.head, "version")
        return head, {"weights": self._weights} if new else {}

    def _grant(self, node: _JoinedNode) -> None:
        """Let a node's actors make their share of the steps that the replay ratio leaves to all actors.

        Nothing granted is taken back: its actors may have made it meanwhile.
        """
        others = [one for one in self._nodes.values() if one is not node]
        spoken_for = self._inserts + self._left + sum(max(one.made, one.granted) for one in others)
        free = most_steps(self._limiter, self._samples) - spoken_for - node.made
        share = free * node.lanes // (node.lanes + sum(one.lanes for one in others))
        node.granted = max(node.granted, node.made + share)

    def _gone(self, name: str, why: str) -> None:
        node = self._nodes.pop(name)
        self._left += node.received  # the steps that it did not deliver are lost
        self._restarts += node.restarts
        if not self._nodes:
            self._alone_since = time.monotonic()
        if not self._stop:
            self._say(f"Node {node.name} {why}; its {len(node.actors)} actors are free for others")
        self._changed.notify_all()


def _whole(head: dict[str, Any], name: str) -> int:
    value = head.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise WireError(f"{name} {value!r}, expected a whole number")
    return value
