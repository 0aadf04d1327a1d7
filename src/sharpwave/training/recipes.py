"""Recipes: every setting of a training run in one frozen dataclass, and the named ones that are known to learn.

Periods are in environment steps: what the agent decided, summed over all environments.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints


def setting(default: Any, help: str, group: str, choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field with what the command line says about it."""
    return dataclasses.field(default=default, metadata={"help": help, "group": group, "choices": choices})


RUN, EVALUATION, ENVIRONMENT, ACTORS, MEMORY, LEARNING, NETWORK, EXPLORATION = (
    "Run",
    "Evaluation",
    "Environment",
    "Actors",
    "Replay memory",
    "Learning",
    "Network",
    "Exploration",
)


@dataclass(frozen=True)
class Recipe:
    """A training run, whole. ``dataclasses.replace`` changes it; ``config.json`` of a run keeps it."""

    env: str = setting("pong", "Atari game (pong, breakout, ...) or Gymnasium id (CartPole-v1)", ENVIRONMENT)
    num_envs: int = setting(8, "environments stepped together", ENVIRONMENT)
    frame: str = setting("84x84", "Atari: height x width of a frame, after cropping", ENVIRONMENT)
    crop: str = setting("0:210", "Atari: first:last of the screen's 210 lines that are kept", ENVIRONMENT)
    stack: int = setting(4, "Atari: newest frames that an observation carries", ENVIRONMENT)
    actions: str = setting("", "Atari: the agent's actions, as NOOP,RIGHT,LEFT; empty: all of the game's", ENVIRONMENT)
    clip_rewards: bool = setting(True, "Atari: learn from the reward's sign only", ENVIRONMENT)
    frame_skip: int = setting(4, "Atari: emulator frames an agent step", ENVIRONMENT)
    sticky: float = setting(0.0, "Atari: probability that the last action is repeated", ENVIRONMENT)

    actors: int = setting(0, "processes that play while this one learns; 0: this one does both, repeatably", ACTORS)
    actor_restarts: int = setting(3, "times that each actor may die and is begun anew; then the run ends", ACTORS)
    weights_every: int = setting(400, "steps between copies of the weights to the actors", ACTORS)
    segment_steps: int = setting(32, "steps of an environment that an actor sends at a time", ACTORS)

    steps: int = setting(1_000_000, "environment steps at most", RUN)
    stop_reward: float | None = setting(
        None, "end when the mean score of 30 held-out episodes, played with fixed weights, reaches this", EVALUATION
    )
    stop_worst: float | None = setting(None, "and none of the 30 scores less than this", EVALUATION)
    evaluate_every: int = setting(
        50_000,
        "steps between held-out evaluations, each of 10 episodes or, if those promise it, 30; 0: none",
        EVALUATION,
    )
    evaluate_from: float | None = setting(
        None, "no evaluation before the mean score of the last 20 training episodes is this", EVALUATION
    )
    seed: int = setting(0, "of environments, exploration, network and sampling", RUN)
    device: str = setting("auto", "auto (CUDA where present), cpu, cuda, cuda:1", RUN)
    threads: int = setting(
        0, "torch threads of the learner on the CPU, as far as there are free processors; 0: torch decides", RUN
    )
    report_every: int = setting(1_000, "steps between reports on the display, in TensorBoard and metrics.jsonl", RUN)
    checkpoint_every: int = setting(
        50_000,
        "steps between checkpoints, to --resume from; each breaks off the running episodes, so make it many of them",
        RUN,
    )
    save_replay: bool = setting(
        True, "checkpoints hold the replay memory; without it a resumed run fills a new one before it learns", RUN
    )

    capacity: int = setting(1_000_000, "steps that the replay memory holds", MEMORY)
    ram: str = setting("", "limit of the replay memory's bytes, as 2GiB; empty: none", MEMORY)
    disk_limit: str = setting("", "keep it on disk, in the run's folder, in so many bytes, as 50GiB; empty: no", MEMORY)
    codec: str = setting("auto", "how frames are packed", MEMORY, ("auto", "zstd", "delta", "raw"))
    prioritized: bool = setting(False, "draw by temporal-difference error instead of uniformly", MEMORY)
    priority_alpha: float = setting(0.6, "prioritized: exponent of the priorities", MEMORY)
    beta_start: float = setting(0.4, "prioritized: exponent of the importance weights at the start", MEMORY)
    beta_end: float = setting(1.0, "prioritized: the same at the end of its way", MEMORY)
    beta_steps: int = setting(1_000_000, "prioritized: steps from beta-start to beta-end", MEMORY)

    warmup_steps: int = setting(10_000, "steps before learning begins", LEARNING)
    update_every: int = setting(4, "steps for every update", LEARNING)
    batch_size: int = setting(32, "transitions an update", LEARNING)
    n_step: int = setting(1, "rewards summed before the bootstrap", LEARNING)
    gamma: float = setting(0.99, "discount of a step", LEARNING)
    double: bool = setting(True, "double Q-learning", LEARNING)
    loss: str = setting("huber", "of the temporal-difference error", LEARNING, ("huber", "mse"))
    huber_delta: float = setting(1.0, "error where the Huber loss turns linear", LEARNING)
    learning_rate: float = setting(2.5e-4, "of Adam", LEARNING)
    learning_rate_end: float | None = setting(None, "the same at the end of its way; empty: it stays", LEARNING)
    learning_rate_steps: int = setting(0, "steps from learning-rate to learning-rate-end", LEARNING)
    average_decay: float = setting(
        0.0,
        "evaluations play, and best and last keep, the exponential mean of the network over updates of which each "
        "keeps this share; 0: the network itself",
        LEARNING,
    )
    adam_eps: float = setting(1.5e-4, "epsilon of Adam", LEARNING)
    max_grad_norm: float = setting(10.0, "gradients are scaled down to this norm; 0: never", LEARNING)
    target_every: int = setting(8_000, "steps between copies to the target network", LEARNING)
    target_tau: float = setting(0.0, "above 0: the target moves by this share at every update instead", LEARNING)
    precision: str = setting(
        "float32",
        "of the networks' arithmetic; auto: bfloat16 where the CPU multiplies it",
        LEARNING,
        ("auto", "float32", "bfloat16"),
    )

    network: str = setting("nature", "shape of the Q-network", NETWORK, ("nature", "efficient", "small", "mlp"))
    standardize: bool = setting(
        False,
        "Atari: give the network what differs from the mean frame of the warm-up, in units of its spread",
        NETWORK,
    )
    hidden_units: int = setting(512, "units of the hidden layer", NETWORK)
    dueling: bool = setting(False, "separate streams for value and advantage", NETWORK)

    epsilon_start: float = setting(1.0, "probability of a random action at the start", EXPLORATION)
    epsilon_end: float = setting(0.01, "the same at the end of its way", EXPLORATION)
    epsilon_steps: int = setting(250_000, "steps from epsilon-start to epsilon-end", EXPLORATION)
    epsilon_ladder: float = setting(
        0.0,
        "environment i of N explores with epsilon ** (1 + this * i / (N-1)); Ape-X: 7. Means of rewards are then of"
        " those that end at .05 or less",
        EXPLORATION,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            choices = field.metadata["choices"]
            if choices and value not in choices:
                raise ValueError(f"{flag(field.name)}: got {value!r}, expected one of {', '.join(choices)}")
        for name in ("num_envs", "stack", "steps", "capacity", "update_every", "batch_size", "n_step", "hidden_units"):
            self._expect(name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "report_every",
            "checkpoint_every",
            "target_every",
            "frame_skip",
            "weights_every",
            "segment_steps",
        ):
            self._expect(name, getattr(self, name) >= 1, "at least 1 step")
        for name in (
            "warmup_steps",
            "epsilon_steps",
            "beta_steps",
            "threads",
            "seed",
            "max_grad_norm",
            "epsilon_ladder",
            "actors",
            "actor_restarts",
            "evaluate_every",
            "learning_rate_steps",
        ):
            self._expect(name, getattr(self, name) >= 0, "at least 0")
        for name in ("gamma", "epsilon_start", "epsilon_end", "beta_start", "beta_end", "target_tau", "priority_alpha"):
            self._expect(name, 0.0 <= getattr(self, name) <= 1.0, "from 0 to 1")
        for name in ("learning_rate", "adam_eps", "huber_delta"):
            self._expect(name, getattr(self, name) > 0.0, "above 0")
        self._expect("learning_rate_end", self.learning_rate_end is None or self.learning_rate_end > 0.0, "above 0")
        self._expect("average_decay", 0.0 <= self.average_decay < 1.0, "at least 0 and below 1")
        self._expect(
            "evaluate_every", self.stop_reward is None or self.evaluate_every > 0, "above 0: --stop-reward needs it"
        )
        self._expect(
            "warmup_steps", self.warmup_steps <= self.capacity, f"at most the capacity of {self.capacity:,} steps"
        )
        self._expect("actors", self.actors <= self.num_envs, f"at most the {self.num_envs} of --num-envs")
        self._expect("standardize", not (self.standardize and self.network == "mlp"), "a network of frames with it")
        parse_size(self.frame, flag("frame"))
        parse_lines(self.crop, flag("crop"))

    def _expect(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"{flag(name)}: got {getattr(self, name)!r}, expected {expected}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """Inverse of :meth:`to_dict`.

        Raises:
            ValueError: a name that is no setting, or a value of another kind.
        """
        unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"unknown settings {', '.join(unknown)}: written by another version of sharpwave")
        hints = get_type_hints(cls)
        for name, value in values.items():
            kinds = tuple(get_args(hints[name])) or (hints[name],)  # of float | None: both
            if type(value) not in kinds and not (float in kinds and type(value) is int):
                raise ValueError(f"setting {name}: got {value!r}, expected {getattr(kinds[0], '__name__', kinds[0])}")
        return cls(**values)


RESUMABLE = (
    "steps",
    "stop_reward",
    "stop_worst",
    "evaluate_every",
    "evaluate_from",
    "report_every",
    "checkpoint_every",
    "threads",
    "device",
)
"""Settings that may be others in a run that is resumed: how long, where and how it is watched, not what it learns."""


def flag(name: str) -> str:
    """A field's name -> its name on the command line."""
    return "--" + name.replace("_", "-")


def parse_size(text: str, what: str) -> tuple[int, ...]:
    """ "84x84" -> (84, 84); "17" -> (17,).

    Raises:
        ValueError: not positive whole numbers joined by x, or for frames not two of them.
    """
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{what}: got {text!r}, expected positive whole numbers joined by x, as 84x84")
    size = tuple(int(part) for part in parts)
    if what == flag("frame") and len(size) != 2:
        raise ValueError(f"{what}: got {text!r}, expected height x width, as 84x84")
    return size


def parse_lines(text: str, what: str) -> tuple[int, int]:
    """ "34:194" -> (34, 194).

    Raises:
        ValueError: not two numbers with a colon between, or not in 0 <= first < last <= 210.
    """
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit()) or not 0 <= int(first) < int(last) <= 210:
        raise ValueError(f"{what}: got {text!r}, expected first:last lines of the screen within 0:210, as 34:194")
    return int(first), int(last)


PONG = Recipe(
    env="pong",
    frame="42x42",
    crop="34:194",
    actions="NOOP,RIGHT,LEFT",
    steps=1_500_000,
    checkpoint_every=250_000,  # halfway to playing well an episode takes 6,000 steps of each environment
    stop_reward=18.0,
    stop_worst=1.0,  # no game lost
    evaluate_every=20_000,  # an evaluation that is left at once takes as long as 5,000 steps
    evaluate_from=16.0,
    threads=2,
    capacity=20_000,  # with 100,000 it needed more steps to win: docs/pong.md
    update_every=8,
    batch_size=128,
    learning_rate=4e-4,
    average_decay=0.999,  # over some 8,000 steps
    n_step=5,
    target_every=2_000,
    precision="auto",
    network="small",
    standardize=True,
    hidden_units=256,
    dueling=True,
    epsilon_steps=50_000,
)

RECIPES: dict[str, tuple[str, Recipe]] = {
    "cartpole": (
        "CartPole-v1 to a held-out mean of 490, with room to 475: the quick look, about a minute.",
        Recipe(
            env="CartPole-v1",
            num_envs=4,
            steps=100_000,
            stop_reward=490.0,
            evaluate_every=2_000,
            evaluate_from=150.0,
            threads=1,
            capacity=50_000,
            codec="raw",
            warmup_steps=1_000,
            update_every=4,
            batch_size=128,
            n_step=5,
            learning_rate=2e-3,
            average_decay=0.99,
            adam_eps=1e-8,
            target_tau=0.01,
            network="mlp",
            hidden_units=128,
            epsilon_end=0.02,
            epsilon_steps=8_000,
            checkpoint_every=20_000,
        ),
    ),
    "pong": (
        "Atari Pong to a held-out mean of 18 with no game lost, sized for two CPU cores.",
        PONG,
    ),
    "apex": (
        "Pong as Ape-X does it: two actors with a ladder of epsilons give each step its first priority.",
        dataclasses.replace(
            PONG,
            checkpoint_every=50_000,  # actors' episodes go on
            capacity=100_000,
            actors=2,
            prioritized=True,
            beta_end=0.4,
            n_step=3,
            epsilon_start=0.4,
            epsilon_end=0.4,
            epsilon_ladder=7.0,
        ),
    ),
    "atari": (
        "Any Atari game, whole screen and all actions; name it with --env breakout.",
        Recipe(
            env="breakout",
            steps=10_000_000,
            evaluate_every=500_000,
            average_decay=0.999,
            checkpoint_every=500_000,  # an episode may take 27,000 steps of each environment
            threads=2,
            warmup_steps=20_000,
            update_every=16,
            batch_size=128,
            learning_rate=4e-4,
            n_step=5,
            target_every=2_000,
            precision="auto",
            network="efficient",  # half the time of an update with Nature's
            standardize=True,
            dueling=True,
            epsilon_steps=50_000,
        ),
    ),
}
"""Known recipes by name: what each is for, and its settings."""
