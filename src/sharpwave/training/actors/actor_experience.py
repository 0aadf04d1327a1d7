"""Experience from actors: stores their segments, publishes the learner's progress and weights to them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Self

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.training.actor_callbacks import CallbackError, MakeActorCallback
from sharpwave.training.actors.hub import Hub
from sharpwave.training.actors.pool import ActorPool, central_inference
from sharpwave.training.actors.ray_nodes import RayHub
from sharpwave.training.actors.shared import Counters, shared_weights
from sharpwave.training.actors.staleness import Staleness, ratio_limiter, used_up
from sharpwave.training.actors.worker import ShardPlace
from sharpwave.training.experience import Arrived, Experience
from sharpwave.training.progress import Progress
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeScore


class ActorExperience(Experience):
    """Source of steps from ``recipe.actors.count`` actor processes. A step counts once it is in the store.

    Episodes continue across checkpoints; steps that actors have not sent yet are not part of a checkpoint.

    Args:
        view: view of the store, from which the learner samples. progress: the run's progress, read only.
        say: called with a message about each silent or replaced actor.
        callbacks: factories of actor callbacks, called in each actor's process.
    """

    max_updates: int | None = 1  # actors are polled between any two updates

    def __init__(
        self,
        recipe: Recipe,
        agent: Agent,
        store: sw.Store | sw.Cluster,
        view: Any,
        progress: Progress,
        say: Callable[[str], None] = lambda text: None,
        callbacks: Sequence[MakeActorCallback] = (),
    ) -> None:
        self._recipe, self._agent, self._store, self._progress = recipe, agent, store, progress
        self._batch_size = agent.replay().batch_size
        self._staleness = Staleness(progress, self._batch_size)
        self._published_at = progress.steps
        self._died: RuntimeError | None = None
        self._name = uuid.uuid4().hex
        self._first_step, _ = progress.ratio_since
        self._ratio = ratio_limiter(recipe, agent.replay()).ratio
        self._queue = view if used_up(recipe, agent.replay()) else None
        inserts = progress.steps - self._first_step
        self._actors: ActorPool | Hub
        if isinstance(store, sw.Cluster) and recipe.replay.ray and not recipe.actors.hub:
            self._actors = RayHub(recipe, agent, store, progress.steps, inserts, say)
        elif isinstance(store, sw.Cluster) and recipe.actors.hub:
            self._actors = Hub(recipe, agent, store, progress.steps, inserts, say, listen=recipe.actors.hub)
        else:
            self._actors = ActorPool(
                recipe,
                Counters(recipe.actors.count + recipe.actors.central),
                shared_weights(agent),
                self._first_steps,
                progress.steps,
                inserts,
                say=say,
                callbacks=callbacks,
                shards=self._shard,
                inference=central_inference(recipe, agent),
            )

    @property
    def failure(self) -> RuntimeError | None:
        return self._died or self._actors.callback_failure

    def __enter__(self) -> Self:
        self._tell()
        self._publish()
        self._actors.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._actors.close()

    def request(self) -> None:
        """Publish the learner's progress and, every ``weights_every`` steps, its weights to the actors."""
        self._tell()
        every = self._recipe.actors.weights_every
        if self._progress.steps // every > self._published_at // every:
            self._publish()

    def receive(self, timeout_s: float) -> Arrived:
        """Write arrived segments into the store, waiting up to ``timeout_s`` for the first."""
        steps, episodes = 0, []
        try:
            for message in self._actors.receive(timeout_s):
                if isinstance(message, EpisodeScore):
                    episodes.append(message)
                    continue
                if (segment := message.segment) is not None:
                    assert isinstance(self._store, sw.Store)
                    self._store.add_segment(
                        segment.packed, segment.dictionaries, td_error=message.td_error, noticed=segment.noticed
                    )
                self._staleness.arrived(message.steps, message.version)
                steps += message.steps
        except (ProcessDiedError, CallbackError) as error:
            self._died = error
        return Arrived(steps, episodes)

    def break_off(self) -> None:
        """Do nothing: runs with actors do not repeat exactly."""

    def report(self) -> dict[str, Any]:
        """Return the staleness of the actors' weights and the number of actor restarts."""
        return self._staleness.report() | {"actor_restarts": self._actors.restarts}

    def _tell(self) -> None:
        self._actors.tell(
            self._progress.steps, self._samples() if self._queue is None else self._not_waiting(self._queue)
        )

    def _samples(self) -> int:
        """Return how often items were sampled."""
        first_step, first_update = self._progress.ratio_since
        samples = (self._progress.updates - first_update) * self._batch_size
        # Actors count from the run's first step: so steps that shards have lost count as fully sampled.
        return samples + math.ceil((first_step - self._first_step) * self._ratio)

    def _not_waiting(self, queue: Any) -> int:
        """Return the number of samples due for the arrived steps.

        Samples of windows that wait behind the next batch are subtracted. The number of drawn samples is no substitute:
        an episode's last window is short, so that steps make more windows than their number divided by a window's
        length, and actors that followed it would fill the queue without end.
        """
        arrived = self._progress.steps - self._first_step
        waiting = max(0, len(queue) - self._batch_size)
        return math.floor(self._ratio * (arrived - waiting * self._agent.replay().horizon))

    def _publish(self) -> None:
        self._published_at = self._progress.steps
        tensors = self._agent.policy_tensors(explore=True)
        self._staleness.published(self._actors.publish([*tensors.values()]))

    def _first_steps(self, lane: int, lanes: int) -> list[int]:
        """Return the number of each lane's next step.

        A lane that has steps skips one number, which marks a gap: unsent steps of its previous actor may be lost.
        """
        if isinstance(self._store, sw.Cluster):
            return [0] * lanes  # the shard knows them
        known = [*self._store.lane_steps[lane : lane + lanes].tolist(), *[0] * lanes][:lanes]
        return [step + (step > 0) for step in known]

    def _shard(self, actor: int) -> ShardPlace | None:
        """Return where an actor's steps go."""
        if not isinstance(self._store, sw.Cluster):
            return None
        addresses = [link.address for link in self._store.links if link is not None]
        return ShardPlace.of(actor, self._name, addresses, self._store.directory)
