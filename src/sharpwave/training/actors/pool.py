"""Actor pool: spawns, polls, restarts and stops worker processes."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from sharpwave.agents.protocol import Agent
from sharpwave.training.actor_callbacks import MakeActorCallback
from sharpwave.training.actors.counters import CONTEXT, Counters
from sharpwave.training.actors.inference import Inference, layout_of
from sharpwave.training.actors.transport import Arrival, Delivered, Failure, Inbox
from sharpwave.training.actors.weights import SharedWeights
from sharpwave.training.actors.worker import TERMINAL_SIGNALS, Place, Task, act, actor_seed, infer
from sharpwave.training.failures import CallbackError, ProcessDiedError, cause_of_death
from sharpwave.training.own_parts import OwnParts, own_parts
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import Episode

HUNG_S = 120.0
"""Time without a heartbeat after which an actor is killed and restarted; imports may delay its first one."""
SILENT_S = 15.0
"""Time without a heartbeat after which an actor that has started is reported."""
STOP_S = 10.0
"""Grace period in which actors may end by themselves before they are terminated."""


class ActorsDiedError(ProcessDiedError):
    """Error raised when an actor has died more often than ``actor_restarts`` allows."""


@dataclass
class _Seat:
    """Slot of the pool: an actor process, its predecessors' counts and the lanes that it plays.

    The process that computes the networks of all has a slot as well, of no lanes.
    """

    number: int
    first_lane: int
    lanes: int
    name: str
    process: Any = None
    inbox: Inbox | None = None
    restarts: int = 0
    received: int = 0  # steps, of all processes of this slot
    failure: str = ""
    beats: int = 0
    begun: bool = False  # the process has had a heartbeat
    silent_s: float = 0.0


class ActorPool:
    """Actor processes of a run. A context manager that ends every process on exit, also after an exception.

    Args:
        first_steps: function (first lane, number of lanes) -> the numbers of their next steps.
        run_steps: steps of the run when this process began.
        inserts: those of them that count towards the replay ratio.
        hung_s: seconds without a heartbeat after which an actor is killed and replaced.
        say: called with a sentence about each actor that is silent or replaced.
        callbacks: factories of actor callbacks, called in each actor's process.
        shards: function (actor) -> ``Task.shard``.
        numbers: the run's actors that are run here; None: all.
        own: what the learner's program has registered; None: this process is the learner.
        inference: where a process of the pool computes the networks of all actors; None: each actor computes its own.

    Attributes:
        restarts: actors restarted so far.
        callback_failure: the error of the first actor callback that raised; None: none did.
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
        shards: Callable[[int], Place | None] = lambda actor: None,
        numbers: Sequence[int] | None = None,
        own: OwnParts | None = None,
        inference: Inference | None = None,
    ) -> None:
        self._inference = inference
        self._shards = shards
        self._say, self._callbacks = say, tuple(callbacks)
        self.recipe, self.counters, self.weights = recipe, counters, weights
        self._own = own_parts(recipe) if own is None else own
        self.restarts = 0
        self.callback_failure: CallbackError | None = None
        self._first_steps, self._run_steps, self._inserts, self._hung_s = first_steps, run_steps, inserts, hung_s
        seats = [_Seat(i, int(lanes[0]), len(lanes), f"actor {i}") for i, lanes in enumerate(lanes_of_actors(recipe))]
        self.seats = seats if numbers is None else [seats[number] for number in numbers]
        if inference is not None:
            self.seats.insert(0, _Seat(recipe.actors.count, 0, 0, "the inference process"))
        self._looked = time.monotonic()

    def __enter__(self) -> Self:
        try:
            for seat in self.seats:
                self._start(seat)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def tell(self, steps: int, samples: int) -> None:
        """Publish the learner's progress to the actors."""
        self.counters.tell(steps, samples)

    def publish(self, parts: Sequence[torch.Tensor]) -> int:
        """Publish weights to the actors; return their version."""
        return self.weights.publish(parts)

    def receive(self, timeout_s: float) -> Iterator[Arrival | Delivered | Episode]:
        """Yield what the actors have sent, waiting up to ``timeout_s`` for the first message.

        The messages of a dead actor are received to the last before the next call replaces it.

        Raises:
            ActorsDiedError: an actor died more often than ``actor_restarts`` allows.
            CallbackError: an actor died of a callback that raised, which it would do again.
        """
        for seat in self.seats:
            if seat.process is None:
                self._start_again(seat)
        pipes: list[Any] = [seat.inbox.pipe for seat in self.seats if seat.inbox is not None]
        wait([*pipes, *(seat.process.sentinel for seat in self.seats)], timeout_s)
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 1.0), now  # not the time while the learner itself was halted
        for seat in self.seats:
            dead = not seat.process.is_alive()  # asked before reading, so that all that a dead actor wrote is read
            yield from self._heard(seat)
            if dead or self._hangs(seat, passed):
                yield from self._buried(seat)

    def _heard(self, seat: _Seat) -> Iterator[Arrival | Delivered | Episode]:
        assert seat.inbox is not None
        try:
            messages = seat.inbox.receive()
        except ValueError as error:
            seat.failure = str(error)
            seat.process.kill()
            return
        for message in messages:
            if isinstance(message, Failure):
                self._failed(seat, message)
                continue
            if isinstance(message, Arrival):
                seat.received += message.segment.steps
            elif isinstance(message, Delivered):
                seat.received += message.steps
            yield message

    def _failed(self, seat: _Seat, failure: Failure) -> None:
        seat.failure = failure.text
        if failure.by_callback and self.callback_failure is None:
            self.callback_failure = CallbackError(f"actor {seat.number}: {failure.text.strip()}")

    def _hangs(self, seat: _Seat, passed: float) -> bool:
        beats = self.counters.beats(seat.number)
        before = seat.silent_s
        seat.silent_s = 0.0 if beats != seat.beats else seat.silent_s + passed
        seat.begun |= beats != seat.beats
        seat.beats = beats
        if seat.begun and before < SILENT_S <= seat.silent_s < self._hung_s:
            self._say(
                f"{seat.name.capitalize()} (process {seat.process.pid}) has been silent for {SILENT_S:g} s: is it "
                f"stopped? After {self._hung_s:g} s it is killed and restarted"
            )
        if seat.silent_s < self._hung_s:
            return False
        seat.failure = f"it was silent for {self._hung_s:g} s"
        return True

    def _buried(self, seat: _Seat) -> Iterator[Arrival | Delivered | Episode]:
        """Kill an actor, yield the messages that it has sent and free its slot."""
        seat.process.kill()
        seat.process.join()
        assert seat.inbox is not None
        before = -1
        while not seat.inbox.ended and seat.received != before:
            before = seat.received
            yield from self._heard(seat)
        if not seat.failure:
            seat.failure = cause_of_death(seat.process)
        self._dismiss(seat)

    def _start_again(self, seat: _Seat) -> None:
        if self.callback_failure is not None:
            raise self.callback_failure
        if seat.restarts >= self.recipe.actors.restarts:
            raise ActorsDiedError(
                f"{seat.name} died of: {seat.failure.strip()}; it had been restarted as often as "
                f"--actor-restarts {self.recipe.actors.restarts} allows"
            )
        reason = (seat.failure.strip().splitlines() or ["?"])[-1]
        self._say(
            f"{seat.name.capitalize()} died of: {reason}; it is restarted; "
            f"restarts left: {self.recipe.actors.restarts - seat.restarts - 1}"
        )
        seat.restarts += 1
        self.restarts += 1
        self.counters.set_made(seat.number, seat.received)  # its unsent steps are lost
        self._start(seat)

    def _start(self, seat: _Seat) -> None:
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
        ours, theirs = CONTEXT.Pipe(duplex=False)
        args = task, theirs, self.counters, self.weights, self._inference
        process = CONTEXT.Process(target=act if seat.lanes else infer, args=args, name=seat.name, daemon=True)
        try:
            with no_interrupts():
                process.start()
        finally:
            theirs.close()  # so that the pipe reads as closed once the actor has ended
        seat.process, seat.inbox, seat.failure, seat.silent_s = process, Inbox(ours), "", 0.0
        seat.begun = False

    def close(self) -> None:
        """Stop all actors, by force those that do not end by themselves in time."""
        self.counters.set_stop()
        for seat in self.seats:
            if seat.process is not None and not seat.begun:  # still importing, or making its environments
                seat.process.terminate()
        for seconds, how in ((STOP_S, "terminate"), (1.0, "kill")):
            deadline = time.monotonic() + seconds
            while self._drain() and time.monotonic() < deadline:
                time.sleep(0.01)
            for seat in self.seats:
                if seat.process is not None:
                    getattr(seat.process, how)()
        for seat in self.seats:
            if seat.process is not None:
                seat.process.join()
                self._dismiss(seat)

    def _drain(self) -> bool:
        """Drain the pipes of actors that are ending, so that none blocks on a full one; return whether any is alive."""
        # Asked before reading, so that the last words of one that ends are read.
        alive = any(seat.process is not None and seat.process.is_alive() for seat in self.seats)
        for seat in self.seats:
            if seat.inbox is not None:
                with contextlib.suppress(ValueError):
                    for message in seat.inbox.receive():
                        if isinstance(message, Failure):
                            self._failed(seat, message)
        return alive

    def _dismiss(self, seat: _Seat) -> None:
        assert seat.inbox is not None
        seat.inbox.pipe.close()
        seat.process.close()
        seat.process = seat.inbox = None


def lanes_of_actors(recipe: Recipe) -> list[Any]:
    """Return the numbers of each actor's environments, among all of the run's."""
    return np.array_split(np.arange(recipe.env.num_envs), recipe.actors.count)


def central_inference(recipe: Recipe, agent: Agent) -> Inference | None:
    """Allocate what the actors of agents like ``agent`` need for central inference; None: the recipe has it not."""
    if not recipe.actors.central:
        return None
    return Inference(layout_of(agent), [slice(lanes[0], lanes[-1] + 1) for lanes in lanes_of_actors(recipe)])


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Let processes that are started inside block the terminal's signals: Ctrl-C is meant for the learner."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {getattr(signal, name) for name in TERMINAL_SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
