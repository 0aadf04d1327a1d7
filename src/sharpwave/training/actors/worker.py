"""Actor process: steps environments with a copy of the policy, encodes the steps and sends them to the learner."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.protocol import ViewSettings
from sharpwave.recorder import Recorder
from sharpwave.sampling.limiters import Cursor, SamplesPerInsert
from sharpwave.segment_writer import SealedSegment, SegmentWriter
from sharpwave.serve.addresses import Address, Security, nearest
from sharpwave.serve.link import Link
from sharpwave.serve.members import ask_directory
from sharpwave.serve.remote_writer import Delivery
from sharpwave.serve.supervisor import PARENT_GONE, follow_parent
from sharpwave.training import setup
from sharpwave.training.actors.channels import Arrival, Counters, Failure, Outbox, SharedWeights, load
from sharpwave.training.actors.inference import Asking, Inference, InferenceServer, Stopped
from sharpwave.training.callbacks import Actor, ActorHooks, CallbackError, MakeActorCallback, Stepped
from sharpwave.training.progress import where_raised
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeSums, game_result
from sharpwave.training.setup import OwnParts

NAP_S = 0.001
"""Polling period of an actor that waits for the learner to catch up."""
ASK_S = 5.0
"""Seconds that a directory may take to locate a shard."""


@dataclass(frozen=True)
class ShardPlace:
    """Shard that takes an actor's steps.

    Attributes:
        address: of the shard. ``lanes``: name of the actor's lanes there, which its successor resumes.
        directory, number: address of the directory that locates the shard of this number, if it has moved, and lists
            the others; "": it does not move.
    """

    address: str
    lanes: str
    directory: str = ""
    number: int = 0

    @classmethod
    def of(cls, actor: int, player: str, shards: Sequence[Any], directory: str) -> ShardPlace:
        """Return the destination of an actor of ``player``, a learner or a node, among the addresses of all shards."""
        number = actor % len(shards)
        return cls(str(shards[number]), f"{player}-actor-{actor}", directory, number)

    def delivery(self, lanes: int) -> Delivery:
        """Connect to the shard.  Raises: ShardLostError, ValueError."""
        security = Security.of(None)

        def shards() -> list[Address]:
            directory = Address.parse(self.directory)
            return nearest(ask_directory(directory, security, None, patience_s=ASK_S), directory)

        def linked(number: int, address: Address) -> Link:
            return Link(address, security, moved=(lambda: shards()[number]) if self.directory else None)

        def others() -> list[Link]:
            return [linked(number, one) for number, one in enumerate(shards())]

        link = linked(self.number, Address.parse(self.address))
        return Delivery(link, self.lanes, lanes, number=self.number, others=others if self.directory else None)


@dataclass(frozen=True)
class Task:
    """Assignment of an actor, in plain values.

    Attributes:
        actor: the actor's number.
        first_lane, first_steps: the first of the store's lanes that it plays, and the number of each one's next step.
        seed: seed of its environments and of its exploration.
        inserts: steps that count towards the replay ratio and were made before this learner process began.
        callbacks: factories of actor callbacks.
        shard: destination of its steps; ``None``: the learner.
        own: registrations of the learner's program.
    """

    recipe: Recipe
    actor: int
    first_lane: int
    first_steps: tuple[int, ...]
    seed: int
    inserts: int
    callbacks: tuple[MakeActorCallback, ...] = ()
    shard: ShardPlace | None = None
    own: OwnParts = field(default_factory=OwnParts)


def actor_seed(recipe: Recipe, steps: int, actor: int, restart: int) -> int:
    """Return the seed of an actor that starts after ``steps`` steps of the run; seed + lane fits an int32."""
    return int(np.random.SeedSequence([recipe.training.seed, steps, actor, restart]).generate_state(1)[0] >> 2)


def used_up(recipe: Recipe, replay: ViewSettings) -> bool:
    """Return whether the learner uses up each step, so that waiting steps form a queue."""
    return replay.most_samples <= float(replay.batch_size * recipe.update_ratio)


def ratio_limiter(recipe: Recipe, replay: ViewSettings) -> SamplesPerInsert:
    """Make the rate limiter that bounds the actors' lead over the learner.

    They may be ahead by twice the steps that they may hold unsealed; with less both sides could wait for each other.
    The learner is never ahead: it makes only the updates due for the arrived steps and, if items are used up, only
    with enough items. One batch and the unsealed steps may wait (``ActorExperience`` computes the number).
    """
    ratio = min(float(replay.batch_size * recipe.update_ratio), replay.most_samples)
    lanes, unsealed = recipe.env.num_envs, recipe.actors.segment_steps + 2
    under_way = lanes * unsealed if used_up(recipe, replay) else 2 * lanes * (unsealed + replay.horizon)
    return SamplesPerInsert(
        ratio, max(1, recipe.training.warmup_steps), max(1.0, ratio, under_way * ratio + replay.batch_size)
    )


def most_steps(limiter: SamplesPerInsert, samples: int) -> int:
    """Return how many steps actors may have made in all after so many samples."""
    return math.floor(limiter.min_size + (samples + limiter.error_buffer) / limiter.ratio)


def act(
    learner: socket.socket, task: Task, counters: Counters, weights: SharedWeights, inference: Inference | None = None
) -> None:
    """Run an actor until the learner stops it or has ended. The target of an actor's process."""
    _run(learner, task, lambda task, outbox: _ActorLoop(task, outbox, counters, weights, inference).play())


def infer(learner: socket.socket, task: Task, counters: Counters, weights: SharedWeights, inference: Inference) -> None:
    """Compute the networks of all actors until the learner stops them or has ended. The target of a process."""

    def serve(task: Task, _: Outbox) -> None:
        InferenceServer(task.recipe, task.actor, counters, weights, inference).serve()

    _run(learner, task, serve)


def _run(learner: socket.socket, task: Task, run: Callable[[Task, Outbox], None]) -> None:
    follow_parent()
    outbox = Outbox(learner)
    try:
        task.own.register()
        task = replace(task, recipe=task.recipe.override(device="cpu", threads=1))
        with setup.arithmetic(task.recipe):
            run(task, outbox)
    except Exception as error:
        failure = Failure(traceback.format_exc(limit=-8))
        if isinstance(error, CallbackError):
            cause = "".join(traceback.format_exception(error.__cause__, limit=-8))
            failure = Failure(f"{error}\n{cause}", by_callback=True)
        try:
            outbox.send(failure)
        except OSError:  # the learner has ended; a connection that broke in an environment is a failure
            os._exit(PARENT_GONE)
        raise SystemExit(1) from None


class _ActorLoop:
    def __init__(
        self, task: Task, outbox: Outbox, counters: Counters, weights: SharedWeights, inference: Inference | None
    ) -> None:
        recipe = self.recipe = task.recipe
        self.task, self.outbox, self.counters, self.weights = task, outbox, counters, weights
        self.lanes = len(task.first_steps)
        self.env = recipe.env.make(self.lanes)
        self.agent = setup.agent(recipe, self.env, seed=[task.seed, 1])
        self.replay = self.agent.replay()
        self._first_lane, self._first_steps = task.first_lane, list(task.first_steps)
        self._delivery: Delivery | None = None
        segment_steps = recipe.actors.segment_steps
        if task.shard is not None:
            self._delivery = task.shard.delivery(self.lanes)
            self._first_lane = self._delivery.first_lane
            self._first_steps = [step + (step > 0) for step in self._delivery.lane_steps]
            segment_steps = min(segment_steps, self._delivery.segment_steps)  # a shard refuses longer ones
        self.writer = SegmentWriter(
            setup.step_spec(self.env, self.agent),
            self.lanes,
            self._sealed,
            first_lane=self._first_lane,
            first_steps=self._first_steps,
            codec=recipe.replay.codec,
            segment_steps=segment_steps,
        )
        self.recorded = Recorder(self.env, self.writer)
        kept = 2 * (recipe.actors.segment_steps + self.replay.horizon) + 8  # unsealed steps at most, with a margin
        self.errors = self.agent.initial_errors(self.lanes, kept) if self.replay.prioritized else None
        self.version = 0
        self._asking: Asking | None = None
        if inference is not None:
            self._asking = Asking(inference, task.actor, self._goes_on)
            self.agent.infer = self._asking  # type: ignore[method-assign]
        self._numbers = np.empty(weights.count if inference is None else 0, np.float32)
        self._versions: deque[int] = deque(maxlen=kept)  # the weights' version at each step
        self._steps = 0  # of each lane, by this process
        self._hooks = ActorHooks(task.callbacks)
        self._waiting: deque[SealedSegment] = deque()  # sealed, but the errors of their last steps are unknown

    def play(self) -> None:
        with contextlib.suppress(Stopped):  # while it waited for its networks
            self._play()
        self._hooks.end()
        if self._hooks.failure is not None:
            raise self._hooks.failure
        self.env.close()
        if self._delivery is not None:
            self._delivery.flush()
            self._delivery.close()

    def _play(self) -> None:
        task, agent, sums = self.task, self.agent, EpisodeSums(self.lanes, self.task.first_lane)
        limiter = ratio_limiter(self.recipe, self.replay)
        lanes = range(task.first_lane, task.first_lane + self.lanes)
        self._hooks.begin(Actor(task.actor, lanes, agent))
        obs, _ = self._played(self.recorded.reset, seed=task.seed)
        self._hooks.episodes_begin(lanes)
        state = agent.begin(self.lanes, task.first_lane, self.recipe.env.num_envs)
        while self._may_go_on(limiter):
            if self._asking is not None:
                self._asking.version = self.weights.latest  # of actions that need no network
            elif self.weights.latest != self.version:
                self._take_weights()
            self._hooks.step_begins(obs)
            acted = agent.act(obs, state, self.counters.steps)
            self._versions.append(self.version if self._asking is None else self._asking.version)
            self.counters.add_made(task.actor, self.lanes)
            self._steps += 1
            obs, reward, terminated, truncated, infos = self._played(self.recorded.step, acted.action, **acted.fields)
            ended = terminated | truncated
            if self.errors is not None:
                final_obs = final_observations(obs, infos["final_obs"], ended) if ended.any() else None
                self.errors.add(acted, reward, terminated, truncated, final_obs)
            state = agent.observe(acted.state, reward, ended)
            self._send_ready()
            episodes = sums.add(*game_result(reward, ended, infos))
            if self._hooks:
                stepped = Stepped(obs, acted, reward, terminated, truncated, infos)
                episodes = self._hooks.stepped(stepped, episodes)
            for episode in episodes:
                self.outbox.send(episode)
            if self._hooks.failure is not None:
                raise self._hooks.failure

    def _played(self, call: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        """Return what environments return.  Raises: RuntimeError: one raised, of its error."""
        try:
            return call(*args, **fields)
        except Exception as error:
            lanes = range(self.task.first_lane, self.task.first_lane + self.lanes)
            where = where_raised(self.recipe.env.name, lanes, self._steps, self.task.seed)
            raise RuntimeError(f"{type(error).__name__}: {error}; {where}") from error

    def _may_go_on(self, limiter: SamplesPerInsert) -> bool:
        """Wait until the learner has caught up; return False if it stops the actors."""
        counters = self.counters
        while not counters.stop:
            counters.beat(self.task.actor)
            made = self.task.inserts + counters.made
            granted = counters.made + self.lanes <= counters.limit
            if granted and limiter.append_waits(self.lanes, Cursor(made, counters.samples, made, 0)) is None:
                return True
            if self._delivery is not None:
                self._delivery.hear()  # receive a refusal: the learner may wait for the refused segment
            time.sleep(NAP_S)
        return False

    def _goes_on(self) -> bool:
        self.counters.beat(self.task.actor)
        return not self.counters.stop

    def _take_weights(self) -> None:
        version = self.weights.read(self._numbers)
        if version is not None:
            load(self.agent, self._numbers)
            self.version = version

    def _sealed(self, segment: SealedSegment) -> None:
        self._waiting.append(segment)

    def _send_ready(self) -> None:
        while self._waiting:
            segment = self._waiting[0]
            lane = segment.lane - self._first_lane
            first = segment.first_step - self._first_steps[lane]
            if self.errors is not None and first + segment.steps > self.errors.known:
                break
            version = self._versions[first - self._steps]
            errors: Any = None if self.errors is None else self.errors.of(lane, first, segment.steps)
            if self._delivery is None:
                self.outbox.send(Arrival(segment.steps, version, segment, errors))
            else:
                self._delivery.put(segment, errors)
                self.outbox.send(Arrival(segment.steps, version))
            self._waiting.popleft()


def final_observations(obs: Any, final: Any, ended: npt.NDArray[np.bool_]) -> Any:
    """Return final observations, ``infos["final_obs"]``, in the layout of ``obs``.

    Rows of lanes that have not ``ended`` are undefined. ``final`` may be an object array with one observation a lane.
    """
    if isinstance(final, np.ndarray) and final.dtype == object:
        rows = np.flatnonzero(ended)

        def filled(array: npt.NDArray[Any], values: list[Any]) -> npt.NDArray[Any]:
            copy = np.array(array)
            copy[rows] = np.stack(values)
            return copy

        if isinstance(obs, dict):
            return {name: filled(array, [final[row][name] for row in rows]) for name, array in obs.items()}
        return filled(obs, [final[row] for row in rows])
    return {name: np.asarray(final[name]) for name in obs} if isinstance(obs, dict) else np.asarray(final)
