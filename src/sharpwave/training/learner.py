"""The flow of training with actors on one screen: take in what they send, learn at the ratio, publish weights, save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sharpwave as sw
from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import linear_schedule
from sharpwave.training.callbacks import Callback, Metrics
from sharpwave.training.crew import ActorsDiedError, Crew
from sharpwave.training.episodes import Episode
from sharpwave.training.feed import Feed
from sharpwave.training.held_out import HeldOut
from sharpwave.training.loop import evaluate, update
from sharpwave.training.recipes import Recipe
from sharpwave.training.shared import Counters
from sharpwave.training.staleness import Staleness
from sharpwave.training.state import TrainingState
from sharpwave.training.weights import policy, shared_weights

WAIT_S = 0.1
"""The learner that has nothing to learn looks after signals so often."""


def train_with_actors(
    recipe: Recipe,
    agent: DQN,
    store: sw.Store,
    replay: Any,
    callbacks: Sequence[Callback] = (),
    interrupted: Callable[[], str | None] = lambda: None,
    state: TrainingState | None = None,
    save: Callable[[TrainingState, Metrics], None] | None = None,
    keep: Callable[[HeldOut], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Metrics:
    """As :func:`sharpwave.training.loop.train`, while ``recipe.actors`` other processes play.

    A step counts when it has arrived in the store. Checkpoints break no episodes off; what was under way in actors is
    not in them.

    Args:
        say: told in a sentence what happens to actors.
    Returns:
        the last report, with ``reason``, and ``failed`` where that is actors that died too often.
    """
    state = state or TrainingState.fresh(recipe)
    episodes, progress, held_out = state.episodes, state.progress, state.held_out
    feed = Feed(replay, recipe.batch_size, agent.device)
    counters, weights = Counters(recipe.actors), shared_weights(agent)
    staleness = Staleness(progress)
    first_step, first_update = progress.ratio_since
    counters.tell(progress.steps, (progress.updates - first_update) * recipe.batch_size)
    staleness.published(weights.publish(policy(agent)))

    def first_steps(lane: int, lanes: int) -> list[int]:
        """One is left out where there are steps: some of the actor before may be lost."""
        known = [*store.lane_steps[lane : lane + lanes].tolist(), *[0] * lanes][:lanes]
        return [step + (step > 0) for step in known]

    reason: str | None = None
    failed = False
    inserts = progress.steps - first_step
    with Crew(recipe, counters, weights, first_steps, progress.steps, inserts, say=say) as crew:
        while reason is None:
            due = progress.updates < progress.updates_due and len(replay) > 0
            full = state.end_reached(recipe)
            arrived = 0
            try:
                for message in crew.receive(0.0 if due else WAIT_S) if full is None else ():
                    if isinstance(message, Episode):
                        episodes.ended(message)
                        for callback in callbacks:
                            callback.on_episode(progress.of_episode(message.reward, message.steps, episodes))
                    else:
                        segment = message.segment
                        store.add_segment(segment.packed, segment.dictionaries, td_error=message.td_error)
                        staleness.arrived(message)
                        arrived += segment.steps
            except ActorsDiedError as error:
                reason, failed = str(error), True
            progress.advance(arrived)
            if due:
                update(recipe, agent, feed, progress)
            counters.tell(progress.steps, (progress.updates - first_update) * recipe.batch_size)
            if recipe.target_tau == 0 and progress.passed(recipe.target_every):
                agent.update_target()
            if progress.passed(recipe.weights_every):
                staleness.published(weights.publish(policy(agent)))

            if state.evaluation_due(recipe):
                evaluate(agent, state, callbacks, keep)
            reason = reason or interrupted() or (None if due else full)
            saving = save is not None and (progress.checkpoint_due or reason is not None)
            if progress.passed(recipe.report_every) or saving or reason is not None:
                epsilon = linear_schedule(
                    progress.steps, recipe.epsilon_start, recipe.epsilon_end, recipe.epsilon_steps
                )
                metrics = progress.report(epsilon, episodes, store)
                metrics |= held_out.report() | staleness.report() | {"actor_restarts": crew.restarts}
                for callback in callbacks:
                    callback.on_report(metrics)
            if saving and save is not None:
                save(state, metrics)
    return {**metrics, "reason": reason, **({"failed": True} if failed else {})}
