"""Where steps come from: one protocol for environments in this process, actor processes, and whatever is to come."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self

import sharpwave as sw
from sharpwave.agents.protocol import Acted, Agent
from sharpwave.training.progress import Progress, episode_seed
from sharpwave.training.scores import Episode, EpisodeSums


class Arrived(NamedTuple):
    """What a source has brought since it was last asked.

    Attributes:
        steps: environment steps that are in the store now.
        episodes: those that ended.
        failure: why no more will come; "" as long as they do.
    """

    steps: int
    episodes: list[Episode]
    failure: str = ""


class Experience(Protocol):
    """A source of steps, which it writes into the store. A context manager: nothing of it is left afterwards.

    A turn of the training loop is :meth:`request`, then updates, then :meth:`receive`: so a source that steps
    in other threads or processes does it while the agent learns.

    Attributes:
        max_updates: in a turn; None: as many as are due.
    """

    max_updates: int | None

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def request(self) -> None:
        """Have the next steps made; returns without waiting for them."""

    def receive(self, timeout_s: float) -> Arrived:
        """Write what was made into the store. A source that makes steps on its own waits up to ``timeout_s`` for it."""

    def break_off(self) -> None:
        """Prepare a checkpoint: what follows may depend on nothing but what the checkpoint holds. A source that never
        repeats itself does nothing."""

    def report(self) -> dict[str, Any]:
        """Return figures about the source, for reports."""


class LocalExperience:
    """Steps of a vector of environments in this process: repeatable.

    No environment here can be saved in mid-episode, so at a checkpoint all of them begin new ones.

    Args:
        seed: of the environments.
        progress: the run's, read only.
    """

    max_updates: int | None = None

    def __init__(self, env: Any, agent: Agent, store: sw.Store, seed: int, progress: Progress) -> None:
        self._recorded, self._agent = sw.Recorder(env, store), agent
        self._seed, self._progress = seed, progress
        self._lanes = int(env.num_envs)
        self._sums = EpisodeSums(self._lanes)
        self._obs: Any = None
        self._acted: Acted | None = None
        self._state: Any = None

    def __enter__(self) -> Self:
        self.break_off()
        return self

    def __exit__(self, *_: object) -> None:
        pass  # the environments are the caller's

    def request(self) -> None:
        """Act, and let the environments begin to step."""
        self._acted = self._agent.act(self._obs, self._state, self._progress.steps)
        self._recorded.step_async(self._acted.action, **self._acted.fields)

    def receive(self, timeout_s: float) -> Arrived:
        """Wait for the environments; the step is in the store then."""
        assert self._acted is not None
        self._obs, reward, terminated, truncated, infos = self._recorded.step_wait()
        ended = terminated | truncated
        self._state = self._agent.observe(self._acted.state, reward, ended)
        return Arrived(self._lanes, self._sums.add(infos.get("unclipped_reward", reward), ended))

    def break_off(self) -> None:
        """Begin new episodes in all environments."""
        self._obs, _ = self._recorded.reset(seed=episode_seed(self._seed, self._progress.steps))
        self._state = self._agent.begin(self._lanes)
        self._sums.break_off()

    def report(self) -> dict[str, Any]:
        """Nothing beside what the loop reports."""
        return {}
