"""Sources of experience: environments in this process, or actors in other ones, here or elsewhere; or none."""

from __future__ import annotations

import math
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Self

import sharpwave as sw
from sharpwave.agents.protocol import Acted, Agent
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.training.actors.channels import Counters, shared_weights
from sharpwave.training.actors.hub import Hub
from sharpwave.training.actors.pool import ActorPool, central_inference
from sharpwave.training.actors.ray_nodes import RayHub
from sharpwave.training.actors.worker import ShardPlace, ratio_limiter, used_up
from sharpwave.training.callbacks import (
    RAISED,
    Actor,
    ActorHooks,
    Arrived,
    AtOnce,
    CallbackError,
    Experience,
    MakeActorCallback,
    Stepped,
)
from sharpwave.training.progress import Metrics, Progress, episode_seed, where_raised
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeScore, EpisodeSums, game_result

MAX_VERSIONS = 4096
"""Number of versions whose steps are remembered; older weights count as the oldest of these."""


class LocalExperience(Experience):
    """Repeatable source of steps: a vector of environments in this process.

    Environments cannot be saved in mid-episode, so at a checkpoint all of them begin new episodes. Where one raises
    an error after updates were made, the source has failed: its store is whole, and holds the steps before.

    Args:
        seed: seed of the environments.
        progress: the run's progress, read only.
        name: of the environment, for errors.
    """

    def __init__(
        self,
        env: Any,
        agent: Agent,
        store: sw.Store | sw.Cluster,
        seed: int,
        progress: Progress,
        hooks: ActorHooks | None = None,
        name: str = "the environment",
    ) -> None:
        self._name = name
        self._writer = store.writer(env.num_envs) if isinstance(store, sw.Cluster) else None
        target: Any = store if self._writer is None else self._writer
        self._recorded, self._agent, self._store = sw.Recorder(env, target), agent, store
        self._seed, self._progress = seed, progress
        self._lanes = int(env.num_envs)
        self._sums = EpisodeSums(self._lanes)
        self._hooks = ActorHooks(()) if hooks is None else hooks
        self._obs: Any = None
        self._acted: Acted | None = None
        self._state: Any = None
        self._updates = progress.updates  # those that are saved
        self._broken: BaseException | None = None
        self._begun = (progress.steps, seed)  # steps of the run at the last reset of all environments, and its seed

    @property
    def failure(self) -> BaseException | None:
        return self._broken or self._hooks.failure

    def __enter__(self) -> Self:
        self._hooks.begin(Actor(0, range(self._lanes), self._agent))
        self.break_off()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.end()  # the environments are the caller's
        if self._writer is not None:
            self._writer.close()

    def request(self) -> None:
        if self._broken is not None:
            return
        self._hooks.step_begins(self._obs)
        self._acted = self._agent.act(self._obs, self._state, self._progress.steps)
        self._recorded.step_async(self._acted.action, **self._acted.fields)

    def receive(self, timeout_s: float) -> Arrived:
        if self._broken is not None:
            return Arrived(0, [])
        assert self._acted is not None
        try:
            self._obs, reward, terminated, truncated, infos = self._recorded.step_wait()
        except AtOnce:
            raise
        except (*RAISED, KeyboardInterrupt) as error:
            self._fail(error, 1 + (self._progress.steps - self._begun[0]) // self._lanes)
            return Arrived(0, [])
        ended = terminated | truncated
        self._state = self._agent.observe(self._acted.state, reward, ended)
        episodes = self._sums.add(*game_result(reward, ended, infos))
        if self._hooks:
            stepped = Stepped(self._obs, self._acted, reward, terminated, truncated, infos)
            episodes = self._hooks.stepped(stepped, episodes)
        return Arrived(self._lanes, episodes)

    def break_off(self) -> None:
        if self._broken is not None:  # which has broken all episodes off
            return
        if isinstance(self._store, sw.Store):
            for lane in range(self._lanes):
                self._recorded.break_off(lane)
        seed = episode_seed(self._seed, self._progress.steps)
        self._begun = self._progress.steps, seed
        try:
            self._obs, _ = self._recorded.reset(seed=seed)
        except AtOnce:
            raise
        except (*RAISED, KeyboardInterrupt) as error:
            self._fail(error, 0)
            return
        self._state = self._agent.begin(self._lanes)
        self._sums.break_off()
        self._hooks.episodes_begin(range(self._lanes))

    def _fail(self, error: BaseException, step: int) -> None:
        """Keep an error for the end of the run; raise it at once where no update would be lost."""
        said = where_raised(self._name, range(self._lanes), step, self._begun[1])
        error.add_note(said[0].upper() + said[1:])
        if self._progress.updates == self._updates:
            raise error
        self._broken = error


class NoExperience(Experience):
    """Source of an offline run, in which no environment is stepped: a step of the run is a turn of the loop, with one
    update from the data that the store holds."""

    def receive(self, timeout_s: float) -> Arrived:
        return Arrived(1, [])


class LaterExperience(NoExperience):
    """Source of a run that learns offline first: from its step ``after`` on it plays, beside the data.

    Args:
        after: steps of the run that are updates only.
        complete: called with nothing once episodes have ended.
    """

    def __init__(self, after: int, playing: LocalExperience, progress: Progress, complete: Callable[[], None]) -> None:
        self._after, self._playing, self._progress, self._complete = after, playing, progress, complete
        self._begun = self._plays = False

    @property
    def failure(self) -> BaseException | None:
        return self._playing.failure

    def __exit__(self, *raised: object) -> None:
        if self._begun:
            self._playing.__exit__(*raised)

    def request(self) -> None:
        self._plays = self._progress.steps >= self._after
        if not self._plays:
            return
        if not self._begun:
            self._begun = True
            self._playing.__enter__()
        self._playing.request()

    def receive(self, timeout_s: float) -> Arrived:
        if not self._plays:
            return super().receive(timeout_s)
        arrived = self._playing.receive(timeout_s)
        if arrived.episodes:
            self._complete()
        return arrived

    def break_off(self) -> None:
        if self._begun:
            self._playing.break_off()
            self._complete()


class ActorExperience(Experience):
    """Source of steps from ``recipe.actors.count`` actor processes. A step counts once it is in the store.

    Episodes continue across checkpoints; steps that actors have not sent yet are not part of a checkpoint, and runs
    with actors do not repeat exactly.

    Args:
        progress: the run's progress, read only.
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

    def report(self) -> dict[str, Any]:
        return self._staleness.report() | {"actor_restarts": self._actors.restarts}

    def _tell(self) -> None:
        self._actors.tell(
            self._progress.steps, self._samples() if self._queue is None else self._not_waiting(self._queue)
        )

    def _samples(self) -> int:
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
        if self._progress.updates >= self._progress.updates_due:
            return math.floor(self._ratio * arrived)  # the learner waits for steps, however short their windows are
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
        if not isinstance(self._store, sw.Cluster):
            return None
        addresses = [link.address for link in self._store.links if link is not None]
        return ShardPlace.of(actor, self._name, addresses, self._store.directory)


class Staleness:
    """Mean age of actors' weights since the last report, measured when steps arrive in the replay memory."""

    def __init__(self, progress: Progress, batch_size: int) -> None:
        self._progress, self._batch_size = progress, batch_size
        self._published: OrderedDict[int, int] = OrderedDict()  # version -> the run's steps at that time
        self._latest = 0
        self._last: Metrics = dict.fromkeys(("stale_versions", "stale_steps", "replay_ratio"))
        self._start_again()

    def _start_again(self) -> None:
        self._count = self._versions = self._steps = 0
        self._steps_then, self._updates_then = self._progress.steps, self._progress.updates

    def published(self, version: int) -> None:
        """Note that weights of ``version`` are the newest from now on."""
        self._latest = version
        self._published[version] = self._progress.steps
        if len(self._published) > MAX_VERSIONS:
            self._published.popitem(last=False)

    def arrived(self, steps: int, version: int) -> None:
        """Count the steps of a segment that has arrived, which weights of ``version`` made."""
        then = self._published.get(version, next(iter(self._published.values())))
        self._count += steps
        self._versions += steps * (self._latest - version)
        self._steps += steps * (self._progress.steps - then)

    def report(self) -> Metrics:
        """Return means since the last report; if no steps arrived since, the last report's means, at first ``None``.

        ``stale_versions``, ``stale_steps``: age of the weights that made a step, in versions and in steps of the run.
        ``replay_ratio``: transitions sampled for each step that arrived.
        """
        progress = self._progress
        steps = progress.steps - self._steps_then
        if self._count and steps:
            self._last = {
                "stale_versions": self._versions / self._count,
                "stale_steps": self._steps / self._count,
                "replay_ratio": (progress.updates - self._updates_then) * self._batch_size / steps,
            }
            self._start_again()
        return self._last
