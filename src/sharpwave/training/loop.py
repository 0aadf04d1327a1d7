"""The training loop: request steps, make the updates that are due, receive steps, notify callbacks, save.

Its batches come from a ``Feed``, on the learner's device; from shards and on CUDA the next one is prefetched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

import sharpwave as sw
from sharpwave.agents.demonstrations import DemonstratedReplay
from sharpwave.agents.protocol import Learned
from sharpwave.errors import EmptyError
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.remote_replay import RemoteReplay
from sharpwave.training.callbacks import Training
from sharpwave.training.progress import Metrics

T = TypeVar("T")

WAIT_S = 0.1
"""Longest wait for experience while no update is due; signals are handled in between."""
LOOKAHEAD = 1
"""Batches that shards draw and decode while the learner learns from one."""


def train(training: Training, ahead: bool | None = None) -> Metrics:
    """Train until an evaluation solves the recipe, its limit of steps is reached, or ``Training.stop`` is called.

    Args:
        ahead: prefetch batches; None: on CUDA only.
    Returns:
        the last report, with ``reason``: why training ended.
    """
    recipe, state, experience = training.recipe, training.state, training.experience
    progress = state.progress
    replay = training.agent.replay()
    feed = Feed(training.view, replay.batch_size, training.agent.device, ahead, replay.fewest, replay.takes_all)
    training.tell("on_begin", training)
    ending = False
    with experience:
        while not ending:
            training.tell("on_step_begin", training)
            experience.request()
            learned = catch_up(training, feed, experience.max_updates)
            arrived = experience.receive(0.0 if learned else WAIT_S)
            progress.advance(arrived.steps)
            if experience.failure is not None:
                training.fail(experience.failure)
            for episode in arrived.episodes:
                state.scores.add(episode)
                training.tell("on_episode", progress.of_episode(episode, state.scores))
            training.tell("on_step", training)
            training.reason = state.end_reached(recipe) or training.reason

            ending = training.reason is not None
            saving = any(training.tell("wants_checkpoint", training))
            if saving or ending:
                catch_up(training, feed, None if state.end_reached(recipe) else experience.max_updates)
            if progress.passed(recipe.training.report_every) or saving or ending:
                metrics = training.report()
                training.tell("on_report", metrics)
            if saving:
                experience.break_off()
                training.tell("on_checkpoint", training, metrics)
    if training.learning:
        training.tell("on_learner_end", training)
    if experience.failure is not None:  # it may have failed while it stopped
        training.fail(experience.failure)
    last = {**metrics, "reason": training.reason}
    training.tell("on_end", last)
    return last


def catch_up(training: Training, feed: Feed, max_updates: int | None = None) -> int:
    """Make the updates that are due, at most ``max_updates``; return how many.

    If shards have lost all steps, no update is due until the warm-up's steps have arrived again.
    """
    progress, made = training.state.progress, 0
    if isinstance(training.view, DemonstratedReplay):
        training.view.follow(progress.steps)
    while progress.updates < progress.updates_due and made != max_updates and feed.ready:
        if not training.learning:
            training.learning = True
            training.tell("on_learner_begin", training)
        training.tell("on_update_begin", training)
        learned = update(training, feed)
        if learned is None:
            break
        made += 1
        training.tell("on_update", training, learned)
    if not made and training.learning and progress.updates < progress.updates_due and feed.lost:
        progress.warm_up_again()
    return made


def update(training: Training, feed: Feed) -> Learned | None:
    """Make one update from a batch of ``feed``, and before the first let the agent prepare on a larger one.

    Returns None, with nothing done, where the batch is lost with its shards.
    """
    agent, view, progress = training.agent, training.view, training.state.progress
    replay = agent.replay()
    if progress.updates == 0 and agent.first_look:
        first = feed.unless_lost(lambda: view.sample(agent.first_look))
        if first is None:
            return None
        agent.prepare(first.torch(agent.device))
    beta = replay.beta(progress.steps)
    taken = feed.take(beta)
    if taken is None:
        return None
    batch, tensors = taken
    learned = agent.learn(tensors, progress.steps)
    feed.prepare(beta)
    if replay.prioritized and learned.td_error is not None:
        view.update_priorities(batch, learned.td_error.cpu().numpy())
    progress.learned(learned.metrics)
    return learned


class Feed:
    """Source of batches that samples a view and moves them to ``device``.

    On a CPU a batch is sampled by ``take``, and its tensors share its memory. On CUDA, where the processor is idle
    during an update, ``prepare`` samples the next batch and copies it through pinned memory in a stream of its own.
    A prefetched batch does not see the steps and priorities added between ``prepare`` and ``take``. Of a view of shards
    ``take`` asks for the next batch as well, on any device, so that the learner does not wait for it.

    Args:
        ahead: prefetch batches; None: on CUDA only.
        fewest: items without which there is no batch.
        takes_all: a batch is all items that wait; from shards it is ``batch_size`` of them.
    """

    def __init__(
        self,
        replay: Any,
        batch_size: int,
        device: torch.device,
        ahead: bool | None = None,
        fewest: int = 1,
        takes_all: bool = False,
    ) -> None:
        self.replay = replay
        self._batch_size, self._fewest, self._takes_all = batch_size, fewest, takes_all
        self._device = device
        self._ahead = device.type == "cuda" if ahead is None else ahead
        self._shards = replay if isinstance(replay, RemoteReplay) else None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ready: tuple[sw.Batch, sw.Batch] | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a batch to take. Shards are asked only where none is on its way."""
        if self._ready is not None or (self._shards is not None and self._shards.asked > 0):
            return True
        try:
            return len(self.replay) >= self._fewest
        except ShardLostError:  # all are being started again
            return False

    @property
    def lost(self) -> bool:
        """Whether shards have lost all steps and began empty."""
        return self._shards is not None and self._shards.lost

    def take(self, beta: float | None = None) -> tuple[sw.Batch, sw.Batch] | None:
        """Return the next batch, as sampled and as tensors on the device; None: shards that had it are lost.

        Args:
            beta: exponent of the importance weights; ignored for a prefetched batch, which used ``prepare``'s.
        """
        ready = self.unless_lost(lambda: self._ready or self._draw(beta))
        if ready is None:
            return None
        batch, tensors = ready
        self._ready = None
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)

            def used(tensor: torch.Tensor) -> torch.Tensor:
                tensor.record_stream(current)  # the allocator may not reuse it before that stream has read it
                return tensor

            tensors.map(used)
        return batch, tensors

    def unless_lost(self, draw: Callable[[], T]) -> T | None:
        """Return the result of a draw; None: shards that had its items are lost."""
        try:
            return draw()
        except (EmptyError, ShardLostError):
            if self._shards is None:
                raise
            return None

    def prepare(self, beta: float | None = None) -> None:
        """Prefetch the next batch if batches are prefetched and there are items for one; else do nothing."""
        if self._ahead and self._ready is None and self.ready:
            self._ready = self.unless_lost(lambda: self._draw(beta))

    def _draw(self, beta: float | None) -> tuple[sw.Batch, sw.Batch]:
        if self._shards is None:
            batch = self.replay.sample(len(self.replay) if self._takes_all else self._batch_size, beta=beta)
        else:
            batch = self._shards.sample(self._batch_size, beta=beta, lookahead=LOOKAHEAD)
        if self._stream is None:
            return batch, batch.torch(self._device)
        with torch.cuda.stream(self._stream):
            return batch, batch.torch(self._device)
