"""Node: actors of a learner on another machine. They share memory with this process, which asks the learner's hub."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from sharpwave.serve.addresses import Address, Security, nearest
from sharpwave.serve.link import HUB, Link, ShardLostError
from sharpwave.serve.members import ask_directory
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.serve.wire import Request
from sharpwave.training.actors.channels import Arrival, Counters, SharedWeights
from sharpwave.training.actors.pool import ActorPool
from sharpwave.training.actors.worker import ShardPlace
from sharpwave.training.folder import check_imports
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeScore
from sharpwave.training.setup import OwnParts

POLL_S = 0.1
"""Time between two questions to the hub."""
SPARE_S = 2.0
"""Time between two attempts to join a run that has no actor to give."""
LINK_S = 30.0
"""Seconds that the hub may take to answer."""
PATIENCE_S = 300.0


class HubLostError(ConnectionError):
    """Error raised where a node has not reached its hub for too long."""


class Node:
    """Share of the actors of a learner's run, on this machine.

    Args:
        hub: address of the learner's hub.
        actors: maximum number of actors to run.
        say: called with a message about each event.
        connect: address of the shards' directory as this machine reaches it; "": the hub's addresses.
        trust: import the modules that the run names.
        patience_s: seconds to wait for an unreachable hub.
        label: name of this node in the hub's messages; "": the machine's name.
        stopped: called several times a second; ``True`` ends the node.
    """

    def __init__(
        self,
        hub: str,
        actors: int,
        say: Callable[[str], None] = lambda text: None,
        *,
        connect: str = "",
        trust: bool = False,
        patience_s: float = PATIENCE_S,
        label: str = "",
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._label = label or f"{socket.gethostname()} (process {os.getpid()})"
        self.hub, self._actors, self._say, self._connect = Address.parse(hub), actors, say, connect
        self._trust, self._patience_s, self._stopped = trust, patience_s, stopped
        self._security = Security.of(None)
        self._link = Link(self.hub, self._security, patience_s=LINK_S, peer=HUB)
        self._name = ""

    def run(self) -> None:
        """Play until the learner stops its actors.

        Raises:
            HubLostError: the hub was not reached for ``patience_s``.
            ProcessDiedError: an actor died more often than the run allows.
            ValueError: the run needs a module that is not trusted.
        """
        try:
            while not self._stopped():
                said = self._joined()
                if said is None or self._played(said):
                    return
        finally:
            self._link.close()

    def _joined(self) -> dict[str, Any] | None:
        waits = told = False
        lost = time.monotonic()
        while not self._stopped():
            self._name = uuid.uuid4().hex
            try:
                said = self._link.call(
                    Request.JOIN, {"node": self._name, "actors": self._actors, "host": self._label}
                ).head
            except ShardLostError as error:
                self._be_patient(lost, error)
                if not told:
                    self._say(f"{error}. Trying again for {self._patience_s:g} s")
                told = True
                time.sleep(min(1.0, self._patience_s / 4))
                continue
            if said["stop"]:
                return None
            if said["actors"]:
                return said
            if not waits:
                self._say(f"All actors of {self.hub} are played already; this node waits for some to become free")
            waits, lost = True, time.monotonic()
            time.sleep(SPARE_S)
        return None

    def _be_patient(self, lost: float, error: Exception) -> None:
        if time.monotonic() - lost > self._patience_s:
            raise HubLostError(
                f"{error}: not reached for {self._patience_s:g} s. Is the learner there? --patience waits longer"
            ) from error

    def _played(self, said: Mapping[str, Any]) -> bool:
        """Play actors of a run; return whether it is over. Otherwise the hub no longer knows this node."""
        recipe, own = self._recipe(said)
        weights, counters = SharedWeights(said["weights"]), Counters(recipe.actors.count)
        counters.limit = 0  # until the hub grants some
        self._say(f"Playing {len(said['actors'])} actors of {recipe.env.name} for {self.hub}")

        def place(actor: int) -> ShardPlace:
            directory = Address.parse(self._connect) if self._connect else self.hub
            found = ask_directory(directory, self._security, None) if self._connect else said
            return ShardPlace.of(actor, self._name, nearest(found, directory), str(directory))

        with ActorPool(
            recipe,
            counters,
            weights,
            lambda lane, lanes: [0] * lanes,  # the shard knows them
            said["steps"],
            said["inserts"],
            say=self._say,
            shards=place,
            numbers=said["actors"],
            own=own,
        ) as pool:
            return self._relayed(pool, counters, weights)

    def _recipe(self, said: Mapping[str, Any]) -> tuple[Recipe, OwnParts]:
        own = OwnParts(said["agents"], said["image_models"])
        named = [*own.agents.values(), *own.image_models.values()]
        if named and not self._trust:
            raise ValueError(
                f"{self.hub}: this run would import {named[0]!r} and run its code; nothing was imported. If you trust "
                "that module, repeat the command with --trust"
            )
        own.register()
        recipe = Recipe.from_table(said["recipe"])
        if not self._trust:
            check_imports(str(self.hub), recipe)
        return recipe, own

    def _relayed(self, pool: ActorPool, counters: Counters, weights: SharedWeights) -> bool:
        """Carry the actors' messages to the hub, and its answers to them, until it stops them."""
        report = _Report()
        asked, heard = 0.0, time.monotonic()
        while True:
            try:
                for message in pool.receive(POLL_S / 2):
                    report.add(message)
            except ProcessDiedError as error:
                self._leave(report, counters, pool, str(error))
                raise
            if self._stopped():
                self._leave(report, counters, pool, "")
                return True
            now = time.monotonic()
            if now - asked < POLL_S:
                continue
            asked = now
            head, parts = report.next(self._name, counters.made, pool.restarts, weights.latest)
            try:
                reply = self._link.call(Request.POLL, head, parts)
            except ShardLostError as error:
                self._be_patient(heard, error)
                continue
            heard = time.monotonic()
            report.arrived()
            said = reply.head
            if said["stop"]:
                pool.close()
                self._leave(report, counters, pool, "")
                return True
            if said.get("unknown"):
                self._say(f"{self.hub} is another run, or gave this node up; joining anew")
                return False
            if "weights" in reply.parts:
                numbers = torch.from_numpy(np.array(reply.parts["weights"]))
                weights.publish([numbers], said["version"])
            counters.steps, counters.samples = said["steps"], said["samples"]
            counters.limit = said["limit"]

    def _leave(self, report: _Report, counters: Counters, pool: ActorPool, failure: str) -> None:
        head, parts = report.next(self._name, counters.made, pool.restarts, 0)
        try:
            self._link.call(Request.LEAVE, head | {"failure": failure}, parts)
        except (ShardLostError, OSError) as error:
            self._say(f"The hub was not told: {error}")


class _Report:
    """Messages of actors since the last report that reached the hub."""

    def __init__(self) -> None:
        self._number = 1
        self._delivered: Counter[int] = Counter()  # steps, by the learner's version of the weights
        self._episodes: list[tuple[float, float, float]] = []
        self._sent: tuple[dict[str, Any], dict[str, Any]] | None = None

    def add(self, message: Arrival | EpisodeScore) -> None:
        if isinstance(message, EpisodeScore):
            self._episodes.append((message.reward, message.steps, message.lane))
        else:
            self._delivered[message.version] += message.steps

    def next(self, node: str, made: int, restarts: int, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the report to send: again the last one, with the present figures, if the hub may not have it."""
        if self._sent is None:
            parts = {
                "delivered": np.array([[s, v] for v, s in self._delivered.items()], np.int64).reshape(-1, 2),
                "episodes": np.array(self._episodes, np.float64).reshape(-1, 3),
            }
            self._delivered.clear()
            self._episodes.clear()
            self._sent = {"number": self._number}, parts
        head, parts = self._sent
        return {**head, "node": node, "made": made, "restarts": restarts, "version": version}, parts

    def arrived(self) -> None:
        self._sent, self._number = None, self._number + 1
