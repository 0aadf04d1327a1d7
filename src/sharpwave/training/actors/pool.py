"""Actor pool: the actors' processes, their messages, and the detection of hung ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from sharpwave.agents.protocol import Agent
from sharpwave.serve.supervisor import Supervised, end, spawned
from sharpwave.training.actors.channels import Arrival, Counters, Failure, Inbox, Message, SharedWeights
from sharpwave.training.actors.inference import Inference, layout_of
from sharpwave.training.actors.worker import ShardPlace, Task, act, actor_seed, infer
from sharpwave.training.callbacks import CallbackError, MakeActorCallback
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeScore
from sharpwave.training.setup import OwnParts, own_parts

HUNG_S = 120.0
"""Time without a heartbeat after which an actor is killed and restarted; imports may delay its first one."""
SILENT_S = 15.0
"""Time without a heartbeat after which an actor that has started is reported."""
ENDING_S = 1.0
"""Time that an actor may take to end after it has closed its socket."""
QUEUED = 256
"""Messages that wait for the learner; with more, the threads that read them wait."""
STOP_S = 10.0
"""Grace period in which actors may end by themselves before they are terminated."""


class _ActorSeat(Supervised):
    """Slot of the pool: an actor process under its supervisor, its predecessors' counts and the lanes that it plays.

    The process that computes the networks of all has a slot as well, of no lanes.
    """

    def __init__(
        self, pool: ActorPool, number: int, lanes: Sequence[int], name: str, say: Callable[[str], None]
    ) -> None:
        limit = pool.recipe.actors.restarts
        super().__init__(name, lambda: pool.begun(self), limit, ", as many as --actor-restarts allows", say)
        self.number, self.lanes, self.first_lane = number, len(lanes), int(lanes[0]) if len(lanes) else 0
        self.inbox: Inbox | None = None
        self.received = 0  # steps, of all processes of this slot
        self.beats = 0
        self.plays = False  # the process has had a heartbeat
        self.silent_s = 0.0


class ActorPool:
    """Actor processes of a run. A context manager that ends every process on exit, also after an exception.

    Args:
        first_steps: function (first lane, number of lanes) -> the numbers of their next steps.
        run_steps: steps of the run when this process began; ``inserts``: those that count towards the replay ratio.
        hung_s: seconds without a heartbeat after which an actor is killed and replaced.
        say: called with a message about each silent or replaced actor.
        callbacks: factories of actor callbacks.  shards: function (actor) -> ``Task.shard``.
        numbers: numbers of the run's actors to run here; None: all.
        own: registrations of the learner's program; None: this process is the learner.
        inference: arrays of a process that computes the networks of all actors; None: each actor computes its own.

    Attributes:
        callback_failure: the error of the first actor callback that raised; None: none raised.
    """

    def __init__(
        self,
        recipe: Recipe,
        counters: Counters,
        weights: SharedWeights,
        first_steps: Callable[[int, int], Sequence[int]],
        run_steps: int,
        inserts: int,
        hung_s: float = HUNG_S,
        say: Callable[[str], None] = lambda text: None,
        callbacks: Sequence[MakeActorCallback] = (),
        shards: Callable[[int], ShardPlace | None] = lambda actor: None,
        numbers: Sequence[int] | None = None,
        own: OwnParts | None = None,
        inference: Inference | None = None,
    ) -> None:
        self._inference = inference
        self._shards = shards
        self._callbacks = tuple(callbacks)
        self.recipe, self.counters, self.weights = recipe, counters, weights
        self._own = own_parts(recipe) if own is None else own
        self.callback_failure: CallbackError | None = None
        self._first_steps, self._run_steps, self._inserts, self._hung_s = first_steps, run_steps, inserts, hung_s
        seats = [_ActorSeat(self, i, lanes, f"actor {i}", say) for i, lanes in enumerate(lanes_of_actors(recipe))]
        self.seats = seats if numbers is None else [seats[number] for number in numbers]
        if inference is not None:
            self.seats.insert(0, _ActorSeat(self, recipe.actors.count, (), "the inference process", say))
        self._looked = time.monotonic()
        self._queue: Queue[tuple[_ActorSeat, Message | None]] = Queue(QUEUED)

    @property
    def restarts(self) -> int:
        return sum(seat.restarts for seat in self.seats)

    def __enter__(self) -> Self:
        try:
            for seat in self.seats:
                seat.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def tell(self, steps: int, samples: int) -> None:
        self.counters.steps, self.counters.samples = steps, samples

    def publish(self, parts: Sequence[torch.Tensor]) -> int:
        return self.weights.publish(parts)

    def receive(self, timeout_s: float) -> Iterator[Arrival | EpisodeScore]:
        """Yield the actors' messages, waiting up to ``timeout_s`` for the first.

        The messages of a dead actor are received to the last before the next call replaces it.

        Raises:
            ProcessDiedError: an actor died more often than ``actor_restarts`` allows.
            CallbackError: an actor died of a callback that raised, which would happen again.
        """
        for seat in self.seats:
            if seat.due:
                if self.callback_failure is not None:
                    raise self.callback_failure
                self.counters.set_made(seat.number, seat.received)  # its unsent steps are lost
                seat.restart()
        for _ in range(QUEUED):
            try:
                said = self._queue.get(timeout_s > 0, timeout_s)
            except Empty:
                break
            timeout_s = 0.0
            yield from self._heard(*said)
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 1.0), now  # not the time while the learner itself was halted
        for seat in self.seats:
            if seat.process is None or seat.inbox is None:
                continue
            if seat.inbox.ended or not seat.alive:
                yield from self._buried(seat, ENDING_S)
            elif self._hangs(seat, passed):
                yield from self._buried(seat)

    def _heard(self, seat: _ActorSeat, message: Message | None) -> Iterator[Arrival | EpisodeScore]:
        if message is None:
            assert seat.inbox is not None
            seat.inbox.ended = True
        elif isinstance(message, Failure):
            self._failed(seat, message)
        else:
            if isinstance(message, Arrival):
                seat.received += message.steps
            yield message

    def _failed(self, seat: _ActorSeat, failure: Failure) -> None:
        seat.failure = failure.text.strip()
        if failure.by_callback and self.callback_failure is None:
            self.callback_failure = CallbackError(f"actor {seat.number}: {seat.failure}")

    def _hangs(self, seat: _ActorSeat, passed: float) -> bool:
        beats = self.counters.beats(seat.number)
        before = seat.silent_s
        seat.silent_s = 0.0 if beats != seat.beats else seat.silent_s + passed
        seat.plays |= beats != seat.beats
        seat.beats = beats
        if seat.plays and before < SILENT_S <= seat.silent_s < self._hung_s:
            seat.say(
                f"(process {seat.process.pid}) has been silent for {SILENT_S:g} s: is it stopped? After "
                f"{self._hung_s:g} s it is killed and restarted"
            )
        if seat.silent_s < self._hung_s:
            return False
        seat.failure = f"it was silent for {self._hung_s:g} s"
        return True

    def _buried(self, seat: _ActorSeat, grace_s: float = 0.0) -> Iterator[Arrival | EpisodeScore]:
        """Kill an actor that does not end by itself, yield the messages that it has sent and free its slot."""
        seat.bury(grace_s)
        assert seat.inbox is not None
        seat.inbox.finish()
        while not seat.inbox.ended:
            yield from self._heard(*self._queue.get())
        seat.inbox.close()

    def begun(self, seat: _ActorSeat) -> Any:
        task = Task(
            self.recipe,
            seat.number,
            seat.first_lane,
            tuple(self._first_steps(seat.first_lane, seat.lanes)) if seat.lanes else (),
            actor_seed(self.recipe, self._run_steps, seat.number, seat.restarts),
            self._inserts,
            self._callbacks,
            self._shards(seat.number) if seat.lanes else None,
            self._own,
        )
        target = act if seat.lanes else infer
        process, ours = spawned(target, seat.name, task, self.counters, self.weights, self._inference)
        seat.inbox, seat.silent_s, seat.plays = Inbox(ours, self._queue, seat), 0.0, False
        return process

    def close(self) -> None:
        """Stop all actors; kill those that do not end in time."""
        self.counters.stop = True
        for seat in self.seats:
            if seat.alive and not seat.plays:  # still importing, or making its environments
                seat.process.terminate()
        end(self.seats, STOP_S, meanwhile=self._drain)
        for seat in self.seats:
            if seat.inbox is not None:
                seat.inbox.finish()
                while not seat.inbox.ended:
                    self._note(*self._queue.get())
                seat.inbox.close()

    def _drain(self) -> None:
        """Take messages of actors that are ending, so that none waits for room; their failures are noted."""
        with contextlib.suppress(Empty):
            while True:
                self._note(*self._queue.get_nowait())

    def _note(self, seat: _ActorSeat, message: Message | None) -> None:
        for _ in self._heard(seat, message):
            pass  # steps and episodes that arrive too late


def lanes_of_actors(recipe: Recipe) -> list[Any]:
    """Return the numbers of each actor's environments, among all of the run's."""
    return np.array_split(np.arange(recipe.env.num_envs), recipe.actors.count)


def central_inference(recipe: Recipe, agent: Agent) -> Inference | None:
    """Allocate the shared arrays for central inference of agents like ``agent``; None: the recipe does not use it."""
    if not recipe.actors.central:
        return None
    return Inference(layout_of(agent), [slice(lanes[0], lanes[-1] + 1) for lanes in lanes_of_actors(recipe)])
