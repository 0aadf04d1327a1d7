"""Recipes: all settings of a training run, nested. Periods are in environment steps, summed over all environments."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from sharpwave.agents.registry import agent_settings
from sharpwave.agents.replay import OfflineSettings
from sharpwave.configuration import (
    IN_MEMORY,
    KINDS,
    Checked,
    again,
    alike,
    changed,
    check,
    checked,
    expect,
    expect_effects,
    from_table,
    leaves,
    setting,
    to_table,
)
from sharpwave.extras import imported
from sharpwave.serve.ray_cluster import is_ray

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from sharpwave.envs import AtariSettings

ENV, RUN, EVALUATION, ACTORS, MEMORY, LEARNING = (
    "Environment", "Run", "Evaluation", "Actors", "Replay memory", "Learning"
)  # fmt: skip
"""Headings of the settings in help texts."""


MAX_ENVIRONMENTS, MAX_STACK = 1 << 16, 64
"""Limits of settings that a run's ``config.json`` may hold: environments are made before anything else is checked."""
MIN_FRAME_SIDE = 8
"""Pixels of the shorter side of an Atari frame, at least."""


@dataclass(frozen=True)
class Atari:
    """Settings of an Atari game, stepped as a vector in C++."""

    kind: ClassVar[str] = "atari"
    max_seed: ClassVar[int] = 2**31 - 2**16
    """ale-py's seeds are int32; environment i has the run's seed + i."""

    name: str = setting("pong", "Atari game: pong, breakout, ...", ENV, flag="--env")
    num_envs: int = setting(8, "environments stepped together", ENV, at_least=1, at_most=MAX_ENVIRONMENTS)
    frame: str = setting("84x84", "height x width of a frame, after cropping", ENV)
    crop: str = setting("0:210", "first:last of the lines to keep, of the screen's 210", ENV)
    stack: int = setting(4, "newest frames in an observation", ENV, at_least=1, at_most=MAX_STACK)
    rgb: bool = setting(False, "frames in color, [H, W, 3]", ENV)
    max_pool: bool = setting(True, "a frame is the pixel-wise maximum of the emulator's last two", ENV)
    actions: str = setting("", "the agent's actions, for example NOOP,RIGHT,LEFT; empty: all of the game's", ENV)
    full_actions: bool = setting(False, "all 18 actions of the console instead of the game's", ENV)
    clip_rewards: bool = setting(True, "learn from the reward's sign only", ENV)
    frame_skip: int = setting(4, "emulator frames for each step of the agent", ENV, at_least=1)
    sticky: float = setting(0.0, "probability that the last action is repeated", ENV, at_least=0, below=1)
    noop_max: int = setting(30, "upper bound of the random number of no-ops that begin a game", ENV, at_least=0)
    fire_reset: bool = setting(True, "a game begins with FIRE if it has that action", ENV)
    life_loss_ends: bool = setting(
        False, "a lost life ends the episode for learning; the game continues, and scores are of whole games", ENV
    )
    max_episode_frames: int = setting(108_000, "largest number of emulator frames of a game", ENV, at_least=1)

    def __post_init__(self) -> None:
        check(self)
        if min(parse_size(self.frame, "--frame")) < MIN_FRAME_SIDE:
            raise ValueError(
                f"--frame: got {self.frame!r}, expected height x width of at least {MIN_FRAME_SIDE}x{MIN_FRAME_SIDE} "
                "pixels"
            )
        parse_lines(self.crop, "--crop")

    def make(self, num_envs: int | None = None, *, render: bool = False) -> VectorEnv[Any, Any, Any]:
        """Make ``num_envs`` environments; None: as many as the settings say.  Raises: ValueError: an unknown game."""
        from sharpwave.envs import games, make_env
        from sharpwave.envs.gym import known

        if self.name not in games() and known(self.name):
            raise ValueError(
                f"--env: {self.name!r} is a Gymnasium id, expected an Atari game such as pong; use sharpwave train "
                f"gymnasium --env {self.name}, which has no options of Atari games"
            )
        return make_env(self.name, self.num_envs if num_envs is None else num_envs, self.parsed(), render=render)

    def parsed(self) -> AtariSettings:
        """Return the settings of each environment."""
        from sharpwave.envs import AtariSettings

        height, width = parse_size(self.frame, "--frame")
        same = {one.name: getattr(self, one.name) for one in fields(AtariSettings) if hasattr(self, one.name)}
        parts = {"height": height, "width": width, "crop": parse_lines(self.crop, "--crop")}
        actions = tuple(name.strip().upper() for name in self.actions.split(",") if name.strip())
        return AtariSettings(**same | parts | {"actions": actions})


@dataclass(frozen=True)
class Gymnasium(Checked):
    """Settings of any environment that Gymnasium knows by an id."""

    kind: ClassVar[str] = "gymnasium"
    max_seed: ClassVar[int] = 2**63 - 1
    """Torch takes no larger ones."""

    name: str = setting("CartPole-v1", "Gymnasium id: CartPole-v1, ALE/Pong-v5, module:Name-v0, ...", ENV, flag="--env")
    num_envs: int = setting(4, "environments stepped together", ENV, at_least=1, at_most=MAX_ENVIRONMENTS)
    stack: int = setting(1, "newest observations that the agent sees together", ENV, at_least=1, at_most=MAX_STACK)
    action_masks: bool = setting(
        True, "act and learn by legal actions only, if the environment declares them (Discrete actions)", ENV
    )

    def make(self, num_envs: int | None = None, *, render: bool = False) -> VectorEnv[Any, Any, Any]:
        """Make ``num_envs`` environments; None: as many as the settings say.  Raises: ValueError: an unknown id."""
        from sharpwave.envs import games, make_env

        if self.name in games():
            raise ValueError(
                f"--env: {self.name!r} is an Atari game; use sharpwave train atari --env {self.name}, or give its "
                "Gymnasium id, for example ALE/Pong-v5"
            )
        lanes = self.num_envs if num_envs is None else num_envs
        return make_env(self.name, lanes, render=render, stack=self.stack, action_masks=self.action_masks)


@dataclass(frozen=True)
class OwnEnvironment(Checked):
    """Settings of an environment that a program gives: an object, or a function that makes one.

    Attributes:
        given: a ``sharpwave.envs.given.Given``, of the object or function; ``None`` where the settings were read from
            a file, which has an import path at most.
    """

    kind: ClassVar[str] = "own"
    max_seed: ClassVar[int] = Atari.max_seed

    name: str = setting("", "name of the environment", ENV, flag="--env")
    num_envs: int = again(Gymnasium, num_envs=1)
    stack: int = again(Gymnasium, stack=1)
    action_masks: bool = again(Gymnasium, action_masks=True)
    factory: str = setting("", "function that makes the environment, module:function; empty: none", ENV)
    given: Any = field(default=None, compare=False, repr=False, metadata={IN_MEMORY: True})

    def make(self, num_envs: int | None = None, *, render: bool = False) -> VectorEnv[Any, Any, Any]:
        """Make ``num_envs`` environments; None: return the given vector, or as many as the settings say.

        A function of whole vectors decides by itself how many it makes, and a vector has copies of its own size.

        Raises:
            ValueError: the environment is not at hand, cannot be copied, or makes no pictures to render.
        """
        from sharpwave.envs.given import Given

        given: Given | None = self.given
        if given is None and self.factory:
            if os.getcwd() not in sys.path:  # last, as for module:Name-v0 of Gymnasium
                sys.path.append(os.getcwd())
            given = Given(imported(self.factory))
        if given is None:
            raise ValueError(
                f"env: {self.name!r} was an object of the program that began the run; give it again, as "
                "TrainingRun.open(folder).resume(env=...)"
            )
        return given.make(self.num_envs, num_envs, self.stack, self.action_masks, render=render)


ENVIRONMENTS = {settings.kind: settings for settings in (Atari, Gymnasium, OwnEnvironment)}
Environment = Atari | Gymnasium | OwnEnvironment


def environment_settings(kind: str) -> type[Environment]:
    """Return the settings class of a kind of environments.  Raises: ValueError: an unknown kind."""
    if kind not in ENVIRONMENTS:
        raise ValueError(f"env: got kind {kind!r}, expected one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[kind]


def parse_size(text: str, what: str) -> tuple[int, ...]:
    """Parse a size: "84x84" -> (84, 84); "17" -> (17,).

    Raises:
        ValueError: the text is not positive integers joined by x, or for frames not two of them.
    """
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{what}: got {text!r}, expected positive integers joined by x, such as 84x84")
    size = tuple(int(part) for part in parts)
    if what == "--frame" and len(size) != 2:
        raise ValueError(f"{what}: got {text!r}, expected height x width, such as 84x84")
    return size


def parse_lines(text: str, what: str) -> tuple[int, int]:
    """Parse a range of screen lines: "34:194" -> (34, 194).

    Raises:
        ValueError: the text is not two integers joined by a colon, or not in 0 <= first < last <= 210.
    """
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit()) or not 0 <= int(first) < int(last) <= 210:
        raise ValueError(f"{what}: got {text!r}, expected first:last lines of the screen within 0:210, such as 34:194")
    return int(first), int(last)


@dataclass(frozen=True)
class ReplaySettings:
    capacity: int = setting(1_000_000, "steps that the replay memory holds", MEMORY, at_least=1)
    ram: str = setting("", "RAM limit of the replay memory, for example 2GiB; empty: none", MEMORY)
    disk_limit: str = setting(
        "", "keep the replay memory on disk, in the run's folder, up to this size; empty: no", MEMORY
    )
    codec: str = setting(
        "auto", "codec that compresses frames", MEMORY, choices=("auto", "patches", "delta", "zstd", "raw")
    )
    connect: str = setting(
        "", "HOST:PORT of the `sharpwave serve` that keeps the replay memory; empty: this process keeps it", MEMORY
    )
    ray: str = setting(
        "",
        "Ray that runs the actors and the shards of the replay memory: auto (started by `ray start`), ray (started by "
        "this program), ray://HOST:PORT; empty: none",
        MEMORY,
    )
    shards: int = setting(1, "shards of the replay memory, with --ray", MEMORY, at_least=1)
    save_replay: bool = setting(
        True, "checkpoints hold the replay memory; otherwise a resumed run fills a new one before it learns", RUN
    )

    def __post_init__(self) -> None:
        check(self)
        named = not self.ray or is_ray(self.ray)
        expect(self, "ray", named, "auto, ray or ray://HOST:PORT")
        expect(self, "connect", not (self.ray and self.connect), "none beside --ray, which runs the shards itself")

    def unused(self) -> Iterator[tuple[str, str]]:
        if not self.ray:
            yield "shards", "--ray"

    @property
    def served(self) -> bool:
        """Whether other processes keep the replay memory."""
        return bool(self.connect or self.ray)


@dataclass(frozen=True)
class TrainingSettings(Checked):
    """Settings of the loop: how long, how often, where."""

    steps: int = setting(1_000_000, "largest number of environment steps", RUN, at_least=1)
    max_minutes: float | None = setting(None, "largest number of minutes of training, over all resumes", RUN, above=0)
    seed: int = setting(0, "seed of environments, exploration, network and sampling", RUN, at_least=0)
    device: str = setting("auto", "auto (CUDA if present), cpu, cuda, cuda:1", RUN)
    threads: int = setting(
        0,
        "torch threads of the learner on the CPU, at most one per free processor; 0: torch's default",
        RUN,
        at_least=0,
    )
    report_every: int = setting(
        1_000, "steps between reports on the display, in TensorBoard and metrics.jsonl", RUN, at_least=1
    )
    track: bool = setting(False, "log to Weights & Biases too; needs the extra wandb", RUN)
    checkpoint_every: int = setting(
        50_000,
        "steps between checkpoints; each breaks off the current episodes, so choose the length of many episodes",
        RUN,
        at_least=1,
    )
    keep_every: int = setting(
        0,
        "steps between checkpoints that are kept for good, without replay memory; 0: keep only the newest two",
        RUN,
        at_least=0,
    )
    warmup_steps: int = setting(10_000, "steps before learning begins", LEARNING, at_least=0)
    update_every: int = setting(4, "steps per update", LEARNING, at_least=1)


@dataclass(frozen=True)
class EvaluationSettings(Checked):
    """Settings of held-out evaluations, by which a run may end."""

    stop_reward: float | None = setting(
        None,
        "end when the mean of 30 held-out episodes with fixed weights reaches this, and the mean of 30 fresh episodes "
        "confirms it",
        EVALUATION,
    )
    stop_worst: float | None = setting(
        None, "with --stop-reward: lowest score allowed in these 60 episodes", EVALUATION
    )
    evaluate_every: int = setting(
        50_000,
        "steps between held-out evaluations of 30 episodes, or of 10 if their mean is too low; 0: none",
        EVALUATION,
        at_least=0,
    )
    evaluate_from: float | None = setting(
        None, "mean score of the last 20 training episodes at which evaluations begin", EVALUATION
    )
    evaluate_beside: bool = setting(
        False, "evaluate in another process while the learner continues; such runs do not repeat exactly", EVALUATION
    )
    video_every: int = setting(
        0,
        "evaluations between videos of a held-out episode, in the run's folder; 0: no videos",
        EVALUATION,
        at_least=0,
    )
    saliency_every: int = setting(
        0, "steps between films of saliency maps, in the run's folder; 0: never", EVALUATION, at_least=0
    )
    patience: int = setting(
        0,
        "end after this many evaluations in a row without a new best; 0: never",
        EVALUATION,
        at_least=0,
    )

    def __post_init__(self) -> None:
        check(self)
        solvable = self.stop_reward is None or self.evaluate_every > 0
        remedy = "--set evaluation.stop_reward=null turns it off"
        expect(self, "evaluate_every", solvable, f"above 0: --stop-reward needs it ({remedy})")
        expect(self, "evaluate_every", not self.patience or self.evaluate_every > 0, "above 0: --patience needs it")

    def unused(self) -> Iterator[tuple[str, str]]:
        if self.stop_reward is None:
            yield "stop_worst", "--stop-reward"
        if not self.evaluate_every:
            yield from dict.fromkeys(("evaluate_from", "evaluate_beside", "video_every"), "--evaluate-every").items()


@dataclass(frozen=True)
class ActorSettings(Checked):
    count: int = setting(
        0,
        "processes that act while this one learns; 0: one process does both, repeatably",
        ACTORS,
        flag="--actors",
        at_least=0,
    )
    restarts: int = setting(
        3,
        "restarts of each actor that dies; after one more death the run ends",
        ACTORS,
        flag="--actor-restarts",
        at_least=0,
    )
    hub: str = setting(
        "",
        "where `sharpwave actors --hub` joins, HOST:PORT: such nodes run all actors, so that --connect is needed; "
        "empty: this machine runs them, or Ray with --ray",
        ACTORS,
        flag="--hub-listen",
    )
    inference: str = setting(
        "local",
        "where the actors' networks are computed: local, by each actor; central, by one process for all of them",
        ACTORS,
        choices=("local", "central"),
    )
    weights_every: int = setting(400, "steps between updates of the actors' weights", ACTORS, at_least=1)
    segment_steps: int = setting(32, "steps of an environment that an actor sends at once", ACTORS, at_least=1)

    def unused(self) -> Iterator[tuple[str, str]]:
        if not self.count:
            names = ("restarts", "hub", "inference", "weights_every", "segment_steps")
            yield from dict.fromkeys(names, "--actors").items()

    @property
    def central(self) -> bool:
        """Whether one process computes the networks of all actors."""
        return self.inference == "central"


@dataclass(frozen=True)
class Recipe:
    """All settings of a training run. ``override`` changes them; a run stores them in ``config.json``.

    Attributes:
        agent: settings of a registered algorithm, such as ``DQN.Settings(...)``.
    """

    env: Environment = field(default_factory=Atari, metadata={KINDS: environment_settings})
    agent: Any = field(default_factory=lambda: agent_settings("dqn")(), metadata={KINDS: agent_settings})
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    actors: ActorSettings = field(default_factory=ActorSettings)

    def __post_init__(self) -> None:
        capacity, lanes = self.replay.capacity, self.env.num_envs
        fits = self.training.warmup_steps <= capacity
        expect(self.training, "warmup_steps", fits, f"at most the capacity of {capacity:,} steps")
        seeded = self.training.seed <= self.env.max_seed
        expect(self.training, "seed", seeded, f"at most {self.env.max_seed} for {self.env.kind} environments")
        expect(self.actors, "count", self.actors.count <= lanes, f"at most the {lanes} of --num-envs")
        alone = not self.actors.hub or self.replay.served
        expect(self.actors, "hub", alone, "none without --connect: actors of other machines send their steps to shards")
        here = not (self.actors.central and (self.actors.hub or self.replay.ray))
        expect(self.actors, "inference", here, "local with --hub-listen or --ray: central is for actors of one machine")
        if self.offline:
            why = "an offline run steps no environment, and each of its steps is an update"
            expect(self.actors, "count", not self.actors.count, f"0: {why}")
            expect(self.training, "warmup_steps", not self.training.warmup_steps, f"0: {why}")
            expect(self.training, "update_every", self.training.update_every == 1, f"1: {why}")
            expect(self.evaluation, "evaluate_from", self.evaluation.evaluate_from is None, f"none: {why}")
            alone = getattr(self.agent, "online_after", None) is None
            kept = alone or self.replay.save_replay
            expect(self.replay, "save_replay", kept, "True with --online-after: a resumed run would lack its own steps")
            if self._utd is not None:
                expect(self.agent, "utd", False, f"none: {why}")

    def unused(self) -> Iterator[tuple[str, str]]:
        if self._utd is not None:
            yield "training.update_every", "--set agent.utd=null"

    @property
    def offline(self) -> bool:
        """Whether the agent learns from data that are there before, and no environment is stepped but to evaluate."""
        return isinstance(self.agent, OfflineSettings)

    @property
    def _utd(self) -> float | None:
        given: float | None = getattr(self.agent, "utd", None)
        return given

    @property
    def update_ratio(self) -> Fraction:
        """Updates per environment step: the agent's ``utd``, or one every ``update_every`` steps.

        The ratio is exact, so that no number of steps gains or loses an update: that of .3 is 3/10, that of 1/3 is 1/3.
        """
        if self._utd is None:
            return Fraction(1, self.training.update_every)
        return Fraction(self._utd).limit_denominator(10**9)

    @property
    def update_ratio_text(self) -> str:
        """The update ratio in words, with the option that gives it."""
        if self._utd is None:
            return f"once in {self.training.update_every:,} (--update-every)"
        return f"{self._utd:g} times a step (--utd)"

    def override(self, **values: Any) -> Recipe:
        """Change settings by the names of their options: ``n_step=3`` for ``--n-step 3``.

        Raises:
            ValueError: an unknown setting, an invalid value, or one that has no effect beside the other settings.
        """
        return self.change(self.paths(values))

    def change(self, values: Mapping[tuple[str, ...], Any]) -> Recipe:
        """Change settings by path.  Raises: ValueError: as ``override``."""
        recipe = changed(self, values)
        expect_effects(self, recipe, values)
        return recipe

    def paths(self, values: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
        """Map values by option name to values by the setting's path; offline, ``updates`` is another name of ``steps``.

        Raises:
            ValueError: an unknown setting, or a value of another type.
        """
        known = {leaf.name: leaf for leaf in leaves(self)}
        if self.offline:
            known["updates"] = known["steps"]
        unknown = sorted(set(values) - set(known))
        if unknown:
            close = {one.name: None for name in unknown for one in alike(name, list(known.values()))}
            meant = f" (did you mean {' or '.join(close)}?)" if close else ""
            raise ValueError(f"unknown settings {', '.join(unknown)}{meant}, expected some of {', '.join(known)}")
        return {known[name].path: checked(name, known[name].hint, value) for name, value in values.items()}

    def to_table(self) -> dict[str, Any]:
        return to_table(self)

    @classmethod
    def from_table(cls, table: Any) -> Recipe:
        """Make a recipe from the values of ``to_table``; settings that they do not name have their defaults.

        Raises:
            ValueError: an unknown setting, or a value of another type.
        """
        return from_table(cls(), table)


def resumable() -> dict[str, Any]:
    """Return the settings, by option name, that a resumed run may change: duration, device and monitoring, but not what
    it learns."""
    training = {leaf.key: leaf for leaf in leaves(TrainingSettings())}
    names = ("steps", "max_minutes"), ("report_every", "track", "checkpoint_every", "keep_every", "threads", "device")
    first, last = ([training[name] for name in some] for some in names)
    return {leaf.name: leaf for leaf in (*first, *leaves(EvaluationSettings()), *last)}
