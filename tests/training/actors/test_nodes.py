"""Actors on other machines: the hub's books, and nodes for real that are killed, come back and end with the run."""

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import sharpwave as sw
from sharpwave.sampling.limiters import Cursor
from sharpwave.serve.addresses import Address, Security, machine
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.service import Service
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.serve.wire import Request
from sharpwave.training import setup
from sharpwave.training.actors import hub as hub_module
from sharpwave.training.actors.channels import Arrival
from sharpwave.training.actors.hub import Hub
from sharpwave.training.actors.node import HubLostError, Node
from sharpwave.training.actors.worker import most_steps, ratio_limiter
from sharpwave.training.callbacks import Callback
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run
from sharpwave.training.scores import EpisodeScore

from ..trainer import Trained

pytestmark = pytest.mark.usefixtures("forked_shards")
RECIPE = load_recipe("cartpole").override(
    actors=4, num_envs=8, connect="127.0.0.1:1", hub_listen="127.0.0.1:0", segment_steps=4, warmup_steps=100,
    weights_every=200, batch_size=32, device="cpu",
)  # fmt: skip
STORE: Any = SimpleNamespace(security=Security(), where=lambda: {"shards": [["unix:/there"]], "machine": machine()})


class Books:
    """A hub, and what nodes that play nothing say to it."""

    def __init__(self):
        env = RECIPE.env.make(1)
        self.agent = setup.agent(RECIPE, env)
        env.close()
        self.said: list[str] = []
        self.hub = Hub(RECIPE, self.agent, STORE, 0, 0, self.said.append, listen="127.0.0.1:0")
        self.links: dict[str, Link] = {}
        self.limiter = ratio_limiter(RECIPE, self.agent.replay())

    def ask(self, kind, node, **head):
        link = self.links.setdefault(node, Link(self.hub.address, Security()))
        parts = {
            "delivered": np.array(head.pop("delivered", []), np.int64).reshape(-1, 2),
            "episodes": np.array(head.pop("episodes", []), np.float64).reshape(-1, 3),
        }
        return link.call(kind, {"node": node, "host": node, **head}, parts)

    def join(self, node, actors):
        return self.ask(Request.JOIN, node, actors=actors).head["actors"]

    def poll(self, node, number, made=0, version=0, **rest):
        return self.ask(Request.POLL, node, number=number, made=made, version=version, restarts=0, **rest)


@pytest.fixture
def books():
    made = Books()
    yield made
    for link in made.links.values():
        link.close()
    made.hub._nodes.clear()
    made.hub.close()


def test_actors_are_given_once_and_are_free_again_when_their_node_goes(books):
    assert books.join("a", 3) == [0, 1, 2] and books.join("b", 9) == [3]
    assert books.join("spare", 1) == []
    books.ask(Request.LEAVE, "a", number=1, made=0, restarts=0, version=0)
    assert books.join("spare", 2) == [0, 1]
    assert any(text == "Node a left; its 3 actors are free for others" for text in books.said)
    assert books.poll("a", 2).head["unknown"]  # it has to join anew


def test_a_silent_nodes_actors_are_free_and_its_undelivered_steps_are_not_counted(books, monkeypatch):
    books.join("a", 4)
    assert books.poll("a", 1, made=50, delivered=[[20, 0]]).head["limit"] > 50
    monkeypatch.setattr(hub_module, "GONE_S", 0.0)
    assert list(books.hub.receive(0.01)) == [Arrival(20, 0)]
    monkeypatch.undo()
    assert books.join("b", 4) == [0, 1, 2, 3]
    most = most_steps(books.limiter, 0)
    assert books.poll("b", 1).head["limit"] == most - 20


def test_a_report_is_counted_once_however_often_it_is_sent(books):
    books.join("a", 4)
    for _ in range(3):
        books.poll("a", 1, made=12, delivered=[[8, 0], [4, 1]], episodes=[[9.5, 12, 3]])
    assert list(books.hub.receive(0.01)) == [Arrival(8, 0), Arrival(4, 1), EpisodeScore(9.5, 12, 3)]
    assert list(books.hub.receive(0.0)) == []


def test_weights_go_out_once_to_a_node(books):
    books.join("a", 4)
    assert not books.poll("a", 1).parts.get("weights") is not None
    parts = [*books.agent.policy_tensors(explore=True).values()]
    assert books.hub.publish(parts) == 1
    reply = books.poll("a", 2, version=0)
    assert reply.head["version"] == 1
    np.testing.assert_array_equal(reply.parts["weights"], torch.cat([part.reshape(-1) for part in parts]).numpy())
    assert "weights" not in books.poll("a", 3, version=1).parts


def test_most_steps_is_what_the_limiter_admits(books):
    for samples in (0, 1, 31, 32, 1000, 123_456):
        most = most_steps(books.limiter, samples)
        assert books.limiter.append_waits(1, Cursor(most - 1, samples, most - 1, 0)) is None
        assert books.limiter.append_waits(1, Cursor(most, samples, most, 0)) is not None


def test_the_ratio_holds_over_all_nodes_and_nobody_waits_for_ever(books):
    """Nodes that use up what they are granted, at random times, and a learner that is never ahead of what arrived."""
    rng = np.random.default_rng(0)
    batch, every = RECIPE.agent.replay.batch_size, RECIPE.training.update_every
    per_actor = RECIPE.env.num_envs // RECIPE.actors.count
    nodes = {"a": 1, "b": 2, "c": 1}
    made, arrived, number = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
    limit = dict.fromkeys(nodes, 0)
    unsealed = RECIPE.actors.segment_steps + 4
    for name, actors in nodes.items():
        books.join(name, actors)
    samples = 0
    for _ in range(600):
        name = str(rng.choice([*nodes]))
        steps = max(0, limit[name] - made[name]) // per_actor * per_actor
        made[name] += min(steps, int(rng.integers(0, 20)) * per_actor)
        lanes = nodes[name] * per_actor
        new = max(0, made[name] - lanes * unsealed - arrived[name])
        arrived[name] += new
        number[name] += 1
        limit[name] = books.poll(name, number[name], made[name], delivered=[[new, 0]]).head["limit"]
        due = max(0, sum(arrived.values()) - RECIPE.training.warmup_steps) // every * batch
        samples = max(samples, due)
        books.hub.tell(sum(arrived.values()), samples)
        assert sum(max(limit[one], made[one]) for one in nodes) <= most_steps(books.limiter, samples)
    assert sum(made.values()) > 3_000  # many times the window: they went on


def test_the_last_nodes_failure_ends_the_run_and_anothers_does_not(books):
    books.join("a", 2)
    books.join("b", 2)
    leave = {"number": 1, "made": 0, "restarts": 1, "version": 0}
    books.ask(Request.LEAVE, "a", failure="actor 0 died of: x", **leave)
    assert list(books.hub.receive(0.0)) == [] and books.hub.restarts == 1
    books.ask(Request.LEAVE, "b", failure="actor 2 died of: y", **leave)
    with pytest.raises(ProcessDiedError, match="actor 2 died of: y"):
        list(books.hub.receive(0.0))


@pytest.mark.parametrize(
    "head", [{"made": -1}, {"made": 1.5}, {"number": None}, {"version": "x"}], ids=["made", "float", "number", "text"]
)
def test_a_report_that_is_none_ends_the_connection(books, head):
    books.join("a", 4)
    with pytest.raises(ShardLostError):
        books.ask(Request.POLL, "a", **{"number": 1, "made": 0, "restarts": 0, "version": 0} | head)
    assert list(books.hub.receive(0.0)) == []


def test_a_node_without_a_hub_gives_up_and_one_of_a_strange_module_is_refused(books):
    said: list[str] = []
    with pytest.raises(HubLostError, match=r"not reached for 0.2 s.*--patience"):
        Node("127.0.0.1:1", 1, said.append, patience_s=0.2).run()
    assert said[0].startswith("hub tcp://127.0.0.1:1: nothing answers there")
    assert "start `sharpwave train ... --hub-listen`" in said[0] and "serve" not in said[0]
    books.hub._own = books.hub._own._replace(agents={"mine": "os:path"})
    with pytest.raises(ValueError, match=r"would import 'os:path'.*--trust"):
        Node(str(books.hub.address), 1).run()


def test_nodes_of_other_machines_are_told_a_name_that_they_can_use(monkeypatch):
    monkeypatch.setenv("SHARPWAVE_SECRET", "a secret of more than sixteen")
    env = RECIPE.env.make(1)
    agent = setup.agent(RECIPE, env)
    env.close()
    said: list[str] = []
    store: Any = SimpleNamespace(**vars(STORE) | {"security": Security.of(None)})
    with contextlib.closing(Hub(RECIPE, agent, store, 0, 0, said.append, listen="0.0.0.0:0")) as hub:
        hub.__enter__()
        assert said[0].endswith(f"--hub {socket.gethostname()}:{hub.address.port}")


def test_actors_elsewhere_need_shards():
    with pytest.raises(ValueError, match=r"--hub-listen: .*none without --connect"):
        load_recipe("cartpole").override(actors=2, hub_listen="127.0.0.1:0")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="shards in processes of this machine")
def test_nodes_play_die_and_come_back_while_the_learner_goes_on(tmp_path):
    log = (tmp_path / "nodes").open("w")
    nodes: list[subprocess.Popen[bytes]] = []

    def start(address, actors):
        command = [sys.executable, "-m", "sharpwave.cli", "actors", "--hub", str(address), "--actors", str(actors)]
        nodes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path))

    class Director(Callback):
        """Starts two nodes, kills one after some learning, and starts another.

        What depends on both waits for both: on a busy machine one may play all before the other has begun.
        """

        def on_begin(self, training):
            experience: Any = training.experience
            self.hub = experience._actors
            self.address = self.hub.address
            start(self.address, 1)
            start(self.address, 1)

        def on_step(self, training):
            if training.state.progress.updates >= 20 and len(nodes) == 2:
                self.wait(lambda: self.node(0) is not None)
                nodes[0].send_signal(signal.SIGKILL)
                self.then = training.state.progress.steps
                start(self.address, 2)
            if len(nodes) == 3 and (killed := self.node(0)) is not None:
                killed.heard -= hub_module.GONE_S  # the others' time stays long: they may be slow
            elif len(nodes) == 3:  # its actor is free
                self.wait(lambda: self.node(2) is not None)

        def node(self, number):
            """Return the record that the hub has of a node; None: it has none."""
            known = [*self.hub._nodes.values()]
            return next((one for one in known if f"(process {nodes[number].pid})" in one.name), None)

        def wait(self, until):
            limit = time.monotonic() + 120
            while not until():
                assert time.monotonic() < limit, (tmp_path / "nodes").read_text()
                time.sleep(0.05)

    recipe = RECIPE.override(actors=2, num_envs=4, steps=2_000, warmup_steps=300, report_every=500)
    director = Director()
    try:
        with Service(Address.parse("127.0.0.1:0"), 2, None, Security(), capacity=50_000) as service:
            trained = Trained(recipe.override(connect=str(service.address)), director)
            last, cluster = trained.last, trained.store
            assert isinstance(cluster, sw.Cluster)
            total = cluster.stats()["total_steps"]
            cluster.close()
        assert trained.training.error is None and last["steps"] >= 2_000 > director.then
        # What was counted is in the shards; beyond it only what a killed or stopped node had delivered, untold.
        assert last["steps"] <= total <= last["steps"] + 2_000
        # A node's own end is seen by its exit status: with the run, without error.
        assert [node.wait(60) for node in nodes[1:]] == [0, 0], (tmp_path / "nodes").read_text()
        assert last["updates"] <= (last["steps"] - 300) // recipe.training.update_every
        assert trained.state.scores.count > 10
    finally:
        for node in nodes:
            if node.poll() is None:
                os.kill(node.pid, signal.SIGKILL)
                node.wait()
        log.close()
    assert threading.active_count() < 50


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="shards in processes of this machine")
def test_actors_seal_segments_that_their_shard_takes():
    options = {"options": {"segment_steps": 3}}
    with Service(Address.parse("127.0.0.1:0"), 1, None, Security(), capacity=50_000, **options) as service:
        recipe = load_recipe("cartpole").override(
            actors=1, connect=str(service.address), steps=400, warmup_steps=100, segment_steps=32,
            stop_reward=None, evaluate_every=0, actor_restarts=0,
        )  # fmt: skip
        trained = Trained(recipe)
        total = trained.store.stats()["total_steps"]
        trained.close()
    assert trained.training.error is None and 400 <= trained.last["steps"] <= total


@pytest.mark.slow
def test_a_run_outlives_its_only_shard():
    """What the shard held is lost with it: neither learner nor actors, which wait for each other, wait for ever."""

    class Killer(Callback):
        killed = 0

        def on_step(self, training: Any) -> None:
            if training.state.progress.updates >= 300 and not self.killed:
                self.killed = training.state.progress.updates
                assert service.shards is not None
                os.kill(service.shards.processes[0], signal.SIGKILL)

    with Service(Address.parse("127.0.0.1:0"), 1, None, Security(), capacity=50_000) as service:
        recipe = load_recipe("cartpole").override(
            actors=1, connect=str(service.address), steps=4_000, warmup_steps=200, report_every=100, segment_steps=4,
            batch_size=32, device="cpu", evaluate_every=0, stop_reward=None,
        )  # fmt: skip
        killer = Killer()
        trained = Trained(recipe, killer)
        held = len(trained.store)
        trained.store.close()
    assert trained.training.error is None and trained.last["steps"] >= 3_000
    assert held < trained.last["steps"] - 300  # it did begin anew, with what actors keep
    assert trained.last["updates"] > killer.killed + 100


def test_a_resumed_run_goes_on_with_what_the_cluster_holds(tmp_path):
    recipe = load_recipe("cartpole").override(steps=800, warmup_steps=400, batch_size=8, device="cpu")
    with Service(Address.parse("127.0.0.1:0"), 2, None, Security(), capacity=50_000) as service:
        console = Console(file=io.StringIO())
        folder, first = run("cartpole", recipe.override(connect=str(service.address)), tmp_path / "run", console)
        told = io.StringIO()
        _, second = resume(folder, {"steps": 1_200}, Console(file=told, width=200))
    assert first["updates"] >= (800 - 400) // 4
    assert "holds" in told.getvalue() and "before learning goes on" not in told.getvalue()
    assert second["updates"] >= (1_200 - 400) // 4  # it did not warm up again
