"""The training loop: request steps, make the updates that are due, receive steps, notify callbacks, save."""

from __future__ import annotations

from sharpwave.agents.demonstrations import DemonstratedReplay
from sharpwave.agents.protocol import Learned
from sharpwave.training.callbacks import Training
from sharpwave.training.feed import Feed
from sharpwave.training.progress import Metrics

WAIT_S = 0.1
"""Longest wait for experience while no update is due; signals are handled in between."""


def train(training: Training, ahead: bool | None = None) -> Metrics:
    """Train until an evaluation solves the recipe, its limit of steps is reached, or ``Training.stop`` is called.

    Args:
        ahead: prefetch batches; None: on CUDA only.
    Returns:
        the last report, with ``reason``: why training ended.
    """
    recipe, state, experience, callbacks = training.recipe, training.state, training.experience, training.callbacks
    progress = state.progress
    replay = training.agent.replay()
    feed = Feed(training.view, replay.batch_size, training.agent.device, ahead, replay.fewest)
    for callback in callbacks:
        callback.on_begin(training)
    ending = False
    with experience:
        while not ending:
            for callback in callbacks:
                callback.on_step_begin(training)
            experience.request()
            learned = catch_up(training, feed, experience.max_updates)
            arrived = experience.receive(0.0 if learned else WAIT_S)
            progress.advance(arrived.steps)
            if experience.failure is not None:
                training.fail(experience.failure)
            for episode in arrived.episodes:
                state.scores.add(episode)
                for callback in callbacks:
                    callback.on_episode(progress.of_episode(episode, state.scores))
            for callback in callbacks:
                callback.on_step(training)
            training.reason = state.end_reached(recipe) or training.reason

            ending = training.reason is not None
            saving = any([callback.wants_checkpoint(training) for callback in callbacks])
            if saving or ending:
                catch_up(training, feed, None if state.end_reached(recipe) else experience.max_updates)
            if progress.passed(recipe.training.report_every) or saving or ending:
                metrics = training.report()
                for callback in callbacks:
                    callback.on_report(metrics)
            if saving:
                experience.break_off()
                for callback in callbacks:
                    callback.on_checkpoint(training, metrics)
    if training.learning:
        for callback in callbacks:
            callback.on_learner_end(training)
    if experience.failure is not None:  # it may have failed while it stopped
        training.fail(experience.failure)
    last = {**metrics, "reason": training.reason}
    for callback in callbacks:
        callback.on_end(last)
    return last


def catch_up(training: Training, feed: Feed, max_updates: int | None = None) -> int:
    """Make the updates that are due, at most ``max_updates``; return how many.

    Where shards have lost all that there was to learn from, none is due until the warm-up's steps have arrived anew.
    """
    progress, made = training.state.progress, 0
    if isinstance(training.view, DemonstratedReplay):
        training.view.follow(progress.steps)
    while progress.updates < progress.updates_due and made != max_updates and feed.ready:
        if not training.learning:
            training.learning = True
            for callback in training.callbacks:
                callback.on_learner_begin(training)
        for callback in training.callbacks:
            callback.on_update_begin(training)
        learned = update(training, feed)
        if learned is None:
            break
        made += 1
        for callback in training.callbacks:
            callback.on_update(training, learned)
    if not made and training.learning and progress.updates < progress.updates_due and feed.lost:
        progress.warm_up_again()
    return made


def update(training: Training, feed: Feed) -> Learned | None:
    """Make one update from a batch of ``feed``; before the first, let the agent prepare on a larger batch.

    Returns None, with nothing done, where the batch is lost with its shards.
    """
    agent, view, progress = training.agent, training.view, training.state.progress
    replay = agent.replay()
    if progress.updates == 0 and agent.first_look:
        agent.prepare(view.sample(agent.first_look).torch(agent.device))
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
