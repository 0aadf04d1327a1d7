"""The flow of training on one screen: act, step and record, learn at the ratio, tell what happened, save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sharpwave as sw
from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import epsilon_ladder, linear_schedule
from sharpwave.agents.networks import FrameInputs
from sharpwave.training.callbacks import Callback, Metrics
from sharpwave.training.feed import Feed
from sharpwave.training.held_out import HeldOut
from sharpwave.training.recipes import Recipe
from sharpwave.training.setup import Env
from sharpwave.training.state import Progress, TrainingState, episode_seed

STANDARD_FRAMES = 2048
"""Observations of the warm-up over which their mean and spread are measured."""


def train(
    recipe: Recipe,
    env: Env,
    agent: DQN,
    store: sw.Store,
    replay: Any,
    callbacks: Sequence[Callback] = (),
    interrupted: Callable[[], str | None] = lambda: None,
    state: TrainingState | None = None,
    save: Callable[[TrainingState, Metrics], None] | None = None,
    keep: Callable[[HeldOut], None] | None = None,
) -> Metrics:
    """Train ``agent`` until a held-out evaluation solves the recipe, its steps are made, or ``interrupted`` says why.

    Args:
        state: where a run that is resumed stands; None: at its start.
        save: makes a checkpoint, given the state and the last report. Called every ``checkpoint_every`` steps and at
            the end; before it all environments begin new episodes, so that what follows depends on nothing but what
            was saved.
        keep: saves the best policy, whenever a held-out evaluation was the best so far.
    Returns:
        the last report, with ``reason``: why it ended.
    """
    recorded = sw.Recorder(env, store)
    state = state or TrainingState.fresh(recipe)
    episodes, progress, held_out = state.episodes, state.progress, state.held_out
    feed = Feed(replay, recipe.batch_size, agent.device)

    def catch_up() -> None:
        while progress.updates < progress.updates_due and len(replay):
            update(recipe, agent, feed, progress)

    reason: str | None = None
    obs, _ = recorded.reset(seed=episode_seed(recipe.seed, progress.steps))
    while reason is None:
        epsilon = linear_schedule(progress.steps, recipe.epsilon_start, recipe.epsilon_end, recipe.epsilon_steps)
        action = agent.act(obs, epsilon_ladder(epsilon, recipe.num_envs, recipe.epsilon_ladder), state.rng)
        recorded.step_async(action)
        catch_up()  # while the environments step
        obs, reward, terminated, truncated, infos = recorded.step_wait()
        progress.advance(recipe.num_envs)
        if recipe.target_tau == 0 and progress.passed(recipe.target_every):
            agent.update_target()

        for episode in episodes.add(infos.get("unclipped_reward", reward), terminated | truncated):
            for callback in callbacks:
                callback.on_episode(progress.of_episode(episode.reward, episode.steps, episodes))
        if state.evaluation_due(recipe):
            evaluate(agent, state, callbacks, keep)
        reason = state.end_reached(recipe) or interrupted()
        saving = save is not None and (progress.checkpoint_due or reason is not None)
        if saving or reason is not None:
            catch_up()
        if progress.passed(recipe.report_every) or saving or reason is not None:
            metrics = progress.report(epsilon, episodes, store) | held_out.report()
            for callback in callbacks:
                callback.on_report(metrics)
        if saving and save is not None:
            obs, _ = recorded.reset(seed=episode_seed(recipe.seed, progress.steps))
            episodes.break_off()
            save(state, metrics)
    return {**metrics, "reason": reason}


def update(recipe: Recipe, agent: DQN, feed: Feed, progress: Progress) -> None:
    """One update from a batch of ``feed``; before the first one the frames are standardized, if they are to be."""
    beta: float | None = None
    if recipe.prioritized:
        beta = linear_schedule(progress.steps, recipe.beta_start, recipe.beta_end, recipe.beta_steps)
    if progress.updates == 0 and recipe.standardize and isinstance(agent.inputs, FrameInputs):
        agent.inputs.standardize(feed.replay.sample(STANDARD_FRAMES).torch(agent.device).obs)
    if recipe.learning_rate_end is not None:
        agent.set_learning_rate(
            linear_schedule(progress.steps, recipe.learning_rate, recipe.learning_rate_end, recipe.learning_rate_steps)
        )
    batch, tensors = feed.take(beta)
    learned = agent.learn(tensors)
    feed.prepare(beta)
    if recipe.prioritized:
        feed.replay.update_priorities(batch.ids, learned.td_errors.cpu().numpy())
    progress.updates += 1
    progress.losses.append(learned.loss)


def evaluate(
    agent: DQN, state: TrainingState, callbacks: Sequence[Callback], keep: Callable[[HeldOut], None] | None
) -> None:
    """Measure the policy on held-out episodes, tell the outcome, and keep the weights that are the best so far."""
    held_out, progress = state.held_out, state.progress
    best = held_out.evaluate(agent, progress.steps)
    assert held_out.latest is not None
    for callback in callbacks:
        callback.on_evaluation({"minutes": progress.minutes, **held_out.latest.figures(), "best": best})
    if best and keep is not None:
        keep(held_out)
