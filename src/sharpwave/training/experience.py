"""Sources of experience: their base class, and that of environments in this process."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import sharpwave as sw
from sharpwave.agents.protocol import Acted, Agent
from sharpwave.training.actor_callbacks import Actor, ActorHooks, Stepped
from sharpwave.training.progress import Progress, episode_seed
from sharpwave.training.scores import EpisodeScore, EpisodeSums, game_result


class Arrived(NamedTuple):
    """Steps that arrived from a source since it was last polled.

    Attributes:
        steps: environment steps that were added to the store.
        episodes: episodes that ended.
    """

    steps: int
    episodes: list[EpisodeScore]


class Experience:
    """Source of steps, which it writes into the store. A context manager: on exit it stops its processes.

    A turn of the training loop is ``request``, then updates, then ``receive``: so a source that steps
    in other threads or processes does it while the agent learns.

    Attributes:
        max_updates: updates in a turn at most; None: as many as are due.
    """

    max_updates: int | None = None

    @property
    def failure(self) -> RuntimeError | None:
        """Error by which the source has failed for good, or with which it stopped; None: none."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the source."""

    def request(self) -> None:
        """Begin the next steps without waiting for them."""

    def receive(self, timeout_s: float) -> Arrived:
        """Write finished steps into the store; a source of its own pace waits up to ``timeout_s`` for the first."""
        raise NotImplementedError

    def break_off(self) -> None:
        """Prepare for a checkpoint: from here on, steps may depend only on the content of the checkpoint.

        A source that is not repeatable does nothing.
        """

    def report(self) -> dict[str, Any]:
        """Return figures about the source, for reports."""
        return {}


class LocalExperience(Experience):
    """Repeatable source of steps: a vector of environments in this process.

    Environments cannot be saved in mid-episode, so at a checkpoint all of them begin new episodes.

    Args:
        seed: seed of the environments.
        progress: the run's progress, read only.
        hooks: actor callbacks.
    """

    def __init__(
        self,
        env: Any,
        agent: Agent,
        store: sw.Store | sw.Cluster,
        seed: int,
        progress: Progress,
        hooks: ActorHooks | None = None,
    ) -> None:
        self._writer = store.writer(env.num_envs) if isinstance(store, sw.Cluster) else None
        target: Any = store if self._writer is None else self._writer
        self._recorded, self._agent = sw.Recorder(env, target), agent
        self._seed, self._progress = seed, progress
        self._lanes = int(env.num_envs)
        self._sums = EpisodeSums(self._lanes)
        self._hooks = ActorHooks(()) if hooks is None else hooks
        self._obs: Any = None
        self._acted: Acted | None = None
        self._state: Any = None

    @property
    def failure(self) -> RuntimeError | None:
        return self._hooks.failure

    def __enter__(self) -> Self:
        self._hooks.begin(Actor(0, range(self._lanes), self._agent))
        self.break_off()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.end()  # the environments are the caller's
        if self._writer is not None:
            self._writer.close()

    def request(self) -> None:
        """Choose actions and begin to step the environments."""
        self._hooks.step_begins(self._obs)
        self._acted = self._agent.act(self._obs, self._state, self._progress.steps)
        self._recorded.step_async(self._acted.action, **self._acted.fields)

    def receive(self, timeout_s: float) -> Arrived:
        """Wait for the environments' step and write it into the store."""
        assert self._acted is not None
        self._obs, reward, terminated, truncated, infos = self._recorded.step_wait()
        ended = terminated | truncated
        self._state = self._agent.observe(self._acted.state, reward, ended)
        episodes = self._sums.add(*game_result(reward, ended, infos))
        if self._hooks:
            stepped = Stepped(self._obs, self._acted, reward, terminated, truncated, infos)
            episodes = self._hooks.stepped(stepped, episodes)
        return Arrived(self._lanes, episodes)

    def break_off(self) -> None:
        """Begin new episodes in all environments."""
        self._obs, _ = self._recorded.reset(seed=episode_seed(self._seed, self._progress.steps))
        self._state = self._agent.begin(self._lanes)
        self._sums.break_off()
        self._hooks.episodes_begin(range(self._lanes))


class NoExperience(Experience):
    """Source of an offline run, in which no environment is stepped: a step of the run is a turn of the loop, with one
    update from the data that the store holds."""

    def receive(self, timeout_s: float) -> Arrived:
        """Count a step; its update follows."""
        return Arrived(1, [])
