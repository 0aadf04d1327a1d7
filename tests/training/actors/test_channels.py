"""Messages of actors: each arrives whole and in order, and no actor holds up another or the learner.

Weights in shared memory: whatever the other process does at that moment, a reader gets a whole version or none.
"""

import socket
import threading
import time
from contextlib import ExitStack
from queue import Empty, Queue
from typing import Any

import numpy as np
import pytest
import torch

from sharpwave.agents.dqn import DQN
from sharpwave.agents.inputs import FrameInputs
from sharpwave.segment_writer import SealedSegment
from sharpwave.serve import wire
from sharpwave.serve.supervisor import CONTEXT
from sharpwave.training import setup
from sharpwave.training.actors import channels, worker
from sharpwave.training.actors.channels import (
    ARRIVAL,
    MAX_DICTIONARIES,
    Arrival,
    Failure,
    Inbox,
    Message,
    Outbox,
    SharedWeights,
    load,
    shared_weights,
)
from sharpwave.training.recipes import load_recipe
from sharpwave.training.scores import EpisodeScore
from tests.support.examples import examples


def random_arrival(rng, known):
    """A segment with some dictionaries, old or new, with or without errors; or steps that a shard has."""
    steps, version = int(rng.integers(1, 40)), int(rng.integers(0, 2**40))
    if rng.random() < 0.1:
        return Arrival(steps, version)
    keys = rng.choice(list(known), rng.integers(0, 3), replace=False).tolist()
    sealed = SealedSegment(
        int(rng.integers(0, 1_000)), int(rng.integers(0, 2**40)), steps, rng.bytes(rng.integers(1, 20_000)),
        {key: known[key] for key in keys}, tuple(rng.integers(0, 9, 5).tolist()),
    )  # fmt: skip
    errors = rng.random(steps).astype(np.float32) if rng.random() < 0.5 else None
    return Arrival(steps, version, sealed, errors)


def assert_same(got, sent):
    assert type(got) is type(sent)
    if not isinstance(sent, Arrival):
        assert got == sent
        return
    assert (got.steps, got.version, got.segment) == (sent.steps, sent.version, sent.segment)
    assert (got.td_error is None) == (sent.td_error is None)
    if sent.td_error is not None:
        np.testing.assert_array_equal(got.td_error, sent.td_error)


class Ends:
    """Both ends of an actor's sockets, and the learner's queue."""

    def __init__(self, pair):
        self.queue: Queue[Any] = Queue(4)
        self.ours, self.theirs = pair()
        self.outbox, self.inbox = Outbox(self.theirs), Inbox(self.ours, self.queue, self)

    def get(self):
        owner, message = self.queue.get(timeout=30)
        assert owner is self
        return message


@pytest.fixture
def pair():
    """A function that makes a pair of sockets, which the test need not close."""
    with ExitStack() as stack:
        yield lambda: tuple(map(stack.enter_context, socket.socketpair()))


def test_messages_arrive_in_order_and_then_the_end(pair):
    rng = np.random.default_rng(0)
    known = {key: rng.bytes(50) for key in range(1, 3 * MAX_DICTIONARIES)}  # more than either end remembers
    sent: list[Message] = []
    for at in range(1_500):
        if at % 10 == 0:
            figures = {"a": float("inf"), "b": 0.1} if at % 20 else {}
            sent.append(EpisodeScore(rng.normal(), int(rng.integers(0, 10_000)), int(rng.integers(0, 99)), figures))
        else:
            sent.append(random_arrival(rng, known))
    sent.append(Failure("Traceback: Grüße" + "!" * wire.MAX_HEAD_BYTES, by_callback=True))
    ends = Ends(pair)

    def send():
        for message in sent:
            ends.outbox.send(message)
        ends.theirs.close()

    sender = threading.Thread(target=send)
    sender.start()
    for one in sent:
        assert_same(ends.get(), one)
    assert ends.get() is None
    sender.join()


def test_a_dictionary_crosses_once(pair):
    ends = Ends(pair)
    sizes = []
    arrival = Arrival(1, 1, SealedSegment(0, 0, 1, b"segment", {5: bytes(9_000)}))
    ours, theirs = pair()
    outbox = Outbox(theirs)
    for _ in range(2):
        outbox.send(arrival)
        sizes.append(len(ours.recv(1 << 16)))
        ends.outbox.send(arrival)
        assert_same(ends.get(), arrival)
    assert sizes[0] > 9_000 > sizes[1]


def test_part_of_a_message_holds_up_no_other_actor_and_is_none(pair):
    queue: Queue[Any] = Queue()
    (ours, theirs), (others, another) = pair(), pair()
    halted = Inbox(ours, queue, 1)
    Inbox(others, queue, 2)
    text = Failure("gone")
    whole, reader = pair()
    Outbox(whole).send(text)
    content = reader.recv(1 << 16)
    theirs.sendall(content + content[:-1])
    assert queue.get(timeout=30) == (1, text)
    Outbox(another).send(text)
    assert queue.get(timeout=30) == (2, text)
    with pytest.raises(Empty):
        queue.get(timeout=0.1)
    halted.finish()  # killed: a process of its own may hold the socket open
    assert queue.get(timeout=30) == (1, None)
    another.close()
    assert queue.get(timeout=30) == (2, None)


def test_an_actor_that_breaks_the_protocol_is_not_heard_any_more(pair):
    heads: list[tuple[int, dict[str, Any]]] = [(ARRIVAL, {}), (2, {"steps": 1, "lane": 0, "names": []}), (3, {})]
    for kind, head in heads:
        ends = Ends(pair)
        wire.send(ends.theirs, kind, 0, head)
        assert ends.get() is None
    ends = Ends(pair)
    ends.theirs.sendall(b"no frame at all, but some bytes of a stranger")
    assert ends.get() is None


def test_the_learners_end_is_noticed(pair):
    ours, theirs = pair()
    ours.close()
    with pytest.raises(BrokenPipeError):
        Outbox(theirs).send(Failure("anyone?"))


def test_a_connection_that_breaks_in_an_environment_is_told(pair, monkeypatch):
    def run(task, outbox):
        raise ConnectionResetError("the simulator has ended")

    monkeypatch.setattr(worker, "follow_parent", lambda: None)
    ends = Ends(pair)
    task = worker.Task(load_recipe("cartpole"), 0, 0, (0,), 1, 0)
    with pytest.raises(SystemExit):
        worker._run(ends.theirs, task, run)
    assert "ConnectionResetError: the simulator has ended" in ends.get().text


COUNT = 20_000


def hammer(weights, end):
    """Publish as fast as possible: version v is COUNT numbers v."""
    numbers = torch.empty(COUNT)
    while not end.value:
        weights.publish([numbers.fill_(weights.latest + 1)])


def test_no_read_is_torn_while_another_process_publishes_as_fast_as_it_can(monkeypatch):
    slow = np.random.default_rng(0)

    def copy(into, numbers):
        """Every other copy is interrupted in the middle, for long enough to be overtaken."""
        np.copyto(into[: COUNT // 2], numbers[: COUNT // 2])
        if slow.random() < 0.5:
            time.sleep(0.002)
        np.copyto(into[COUNT // 2 :], numbers[COUNT // 2 :])

    monkeypatch.setattr(channels, "_copy", copy)
    weights, end = SharedWeights(COUNT), CONTEXT.RawValue("b", 0)
    writer = CONTEXT.Process(target=hammer, args=(weights, end), daemon=True)
    writer.start()
    into, versions = np.empty(COUNT, np.float32), [0]
    limit = time.monotonic() + 240
    try:
        while len(versions) < examples(60) and writer.is_alive():
            assert time.monotonic() < limit, f"{len(versions)} versions read in 240 s"
            version = weights.read(into)
            if version is not None and version != versions[-1]:
                assert (into == version).all(), f"version {version} holds {np.unique(into)}"
                versions.append(version)
            else:
                time.sleep(0.0005)  # else the writer waits for a processor, too
    finally:
        end.value = 1
        writer.join(120)
    assert writer.exitcode == 0 and versions == sorted(versions)


def test_a_writer_that_dies_in_the_middle_leaves_the_version_before():
    weights = SharedWeights(4)
    into = np.zeros(4, np.float32)
    assert weights.latest == 0 and weights.read(into) is None
    weights.publish([torch.ones(4)])
    assert weights.publish([torch.tensor([[1.0, 2.0]]), torch.tensor([3.0, 4.0])]) == 2

    class DyingError(Exception):
        pass

    class Dying(torch.Tensor):
        def numel(self):
            raise DyingError

    with pytest.raises(DyingError):
        weights.publish([torch.full((2,), 9.0), torch.ones(2).as_subclass(Dying)])
    assert weights.read(into) == 2 and into.tolist() == [1, 2, 3, 4]
    assert weights.publish([torch.zeros(4)]) == 3
    weights._slots[1][2] = 5.0  # as if a core saw the version before the numbers
    assert weights.read(into) is None


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_an_agent_with_the_weights_of_another_acts_alike(name):
    recipe = load_recipe(name).override(num_envs=2, precision="float32")
    env = recipe.env.make()
    obs, _ = env.reset(seed=1)
    one, two = setup.agent(recipe, env), setup.agent(recipe.override(seed=7), env)
    assert isinstance(one, DQN) and isinstance(two, DQN)
    if recipe.agent.standardize:
        assert isinstance(one.inputs, FrameInputs)
        one.inputs.standardize(torch.from_numpy(np.ascontiguousarray(obs)))
    assert not np.array_equal(one.values(obs), two.values(obs))
    weights = shared_weights(one)
    weights.publish([*one.policy_tensors(explore=True).values()])
    numbers = np.empty(weights.count, np.float32)
    assert weights.read(numbers) == 1
    load(two, numbers)
    np.testing.assert_array_equal(one.values(obs), two.values(obs))
    acted = two.act(obs, two.begin(2), 0, explore=False)
    np.testing.assert_array_equal(one.values(obs).argmax(axis=1), acted.action)
    env.close()
