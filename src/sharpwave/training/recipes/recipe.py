"""A training run, whole, as nested settings. Periods are in environment steps, summed over all environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sharpwave.agents.registry import agent_settings
from sharpwave.configuration import KINDS, changed, check, checked, expect, from_table, leaves, setting, to_table
from sharpwave.training.recipes.environments import Atari, Gymnasium, environment_settings

RUN, EVALUATION, ACTORS, MEMORY, LEARNING = "Run", "Evaluation", "Actors", "Replay memory", "Learning"


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of the replay memory."""

    capacity: int = setting(1_000_000, "steps that the replay memory holds", MEMORY, at_least=1)
    ram: str = setting("", "limit of the replay memory's bytes, as 2GiB; empty: none", MEMORY)
    disk_limit: str = setting("", "keep it on disk, in the run's folder, in so many bytes, as 50GiB; empty: no", MEMORY)
    codec: str = setting("auto", "how frames are packed", MEMORY, choices=("auto", "zstd", "delta", "raw"))
    save_replay: bool = setting(
        True, "checkpoints hold the replay memory; without it a resumed run fills a new one before it learns", RUN
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the loop: how long, how often, where."""

    steps: int = setting(1_000_000, "environment steps at most", RUN, at_least=1)
    seed: int = setting(0, "of environments, exploration, network and sampling", RUN, at_least=0)
    device: str = setting("auto", "auto (CUDA where present), cpu, cuda, cuda:1", RUN)
    threads: int = setting(
        0,
        "torch threads of the learner on the CPU, as far as there are free processors; 0: torch decides",
        RUN,
        at_least=0,
    )
    report_every: int = setting(
        1_000, "steps between reports on the display, in TensorBoard and metrics.jsonl", RUN, at_least=1
    )
    checkpoint_every: int = setting(
        50_000,
        "steps between checkpoints, to --resume from; each breaks off the running episodes, so make it many of them",
        RUN,
        at_least=1,
    )
    warmup_steps: int = setting(10_000, "steps before learning begins", LEARNING, at_least=0)
    update_every: int = setting(4, "steps for every update", LEARNING, at_least=1)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of held-out evaluations, by which a run may end."""

    stop_reward: float | None = setting(
        None, "end when the mean score of 30 held-out episodes, played with fixed weights, reaches this", EVALUATION
    )
    stop_worst: float | None = setting(None, "and none of the 30 scores less than this", EVALUATION)
    evaluate_every: int = setting(
        50_000,
        "steps between held-out evaluations, each of 10 episodes or, if those promise it, 30; 0: none",
        EVALUATION,
        at_least=0,
    )
    evaluate_from: float | None = setting(
        None, "no evaluation before the mean score of the last 20 training episodes is this", EVALUATION
    )

    def __post_init__(self) -> None:
        check(self)
        solvable = self.stop_reward is None or self.evaluate_every > 0
        expect(self, "evaluate_every", solvable, "above 0: --stop-reward needs it")


@dataclass(frozen=True)
class ActorSettings:
    """Settings of actor processes."""

    count: int = setting(
        0,
        "processes that play while this one learns; 0: this one does both, repeatably",
        ACTORS,
        flag="--actors",
        at_least=0,
    )
    restarts: int = setting(
        3,
        "times that each actor may die and is restarted; then the run ends",
        ACTORS,
        flag="--actor-restarts",
        at_least=0,
    )
    weights_every: int = setting(400, "steps between copies of the weights to the actors", ACTORS, at_least=1)
    segment_steps: int = setting(32, "steps of an environment that an actor sends at a time", ACTORS, at_least=1)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Recipe:
    """A training run, whole. :meth:`override` changes it; ``config.json`` of a run keeps it.

    Attributes:
        agent: settings of a registered algorithm, such as ``DQN.Settings(...)``.
    """

    env: Atari | Gymnasium = field(default_factory=Atari, metadata={KINDS: environment_settings})
    agent: Any = field(default_factory=lambda: agent_settings("dqn")(), metadata={KINDS: agent_settings})
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    actors: ActorSettings = field(default_factory=ActorSettings)

    def __post_init__(self) -> None:
        capacity, lanes = self.replay.capacity, self.env.num_envs
        fits = self.training.warmup_steps <= capacity
        expect(self.training, "warmup_steps", fits, f"at most the capacity of {capacity:,} steps")
        expect(self.actors, "count", self.actors.count <= lanes, f"at most the {lanes} of --num-envs")

    def override(self, **values: Any) -> Recipe:
        """Change settings by the names of their options: ``n_step=3`` for ``--n-step 3``.

        Raises:
            ValueError: a name that is no setting, or a value that does not fit.
        """
        return changed(self, self.paths(values))

    def paths(self, values: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
        """Return values by their settings' paths, given by the names of their options.

        Raises:
            ValueError: a name that is no setting, or a value of another kind.
        """
        known = {leaf.name: leaf for leaf in leaves(self)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(f"unknown settings {', '.join(unknown)}; there are {', '.join(known)}")
        return {known[name].path: checked(name, known[name].hint, value) for name, value in values.items()}

    def to_table(self) -> dict[str, Any]:
        """Plain nested values by name, for JSON."""
        return to_table(self)

    @classmethod
    def from_table(cls, table: Any) -> Recipe:
        """Make the recipe of :meth:`to_table`; what the table does not name has its default.

        Raises:
            ValueError: a name that is no setting, or a value of another kind.
        """
        return from_table(cls(), table)


def default_recipe(kind: str) -> Recipe:
    """Make a recipe of an algorithm's own defaults."""
    return Recipe(env=Gymnasium(), agent=agent_settings(kind)())


RESUMABLE = (
    "training.steps",
    "evaluation.stop_reward",
    "evaluation.stop_worst",
    "evaluation.evaluate_every",
    "evaluation.evaluate_from",
    "training.report_every",
    "training.checkpoint_every",
    "training.threads",
    "training.device",
)
"""Settings that may be others in a run that is resumed: how long, where and how it is watched, not what it learns."""


def resumable() -> dict[str, Any]:
    """Return the settings of :data:`RESUMABLE` by the names of their options."""
    sections = {"training": TrainingSettings(), "evaluation": EvaluationSettings()}
    found = {f"{section}.{leaf.key}": leaf for section, one in sections.items() for leaf in leaves(one)}
    return {found[key].name: found[key] for key in RESUMABLE}
