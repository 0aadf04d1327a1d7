"""Rungs of the ladder: the change that each makes, and its published results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

BOUND = 17.0
"""Mean reward at which Pong counts as solved."""

TEXTBOOK = "M. Lapan, Deep Reinforcement Learning Hands-On, chapter 'Ways to speed up RL' (i5-6600K, GTX 1080 Ti)"


@dataclass(frozen=True)
class Published:
    """Published run of the textbook: speed, and minutes until the running mean (alpha .98) of rewards passes 17."""

    steps_per_second: float
    minutes: float

    @property
    def frames(self) -> float:
        """Agent steps until then."""
        return self.steps_per_second * self.minutes * 60


@dataclass(frozen=True)
class Rung:
    """Configuration for training Pong.

    Attributes:
        change: description in a line.
        kind: training loop: "textbook", "parallel", "sharpwave" or "sb3".
        lanes: environments of this package's loops: "gymnasium", "cheap" or "vector" (see ``lanes.py``).
        envs: environments stepped together.
        no_grad: whether the target network's pass is made without gradients.
        times: factor of a slice's steps, for quick rungs.
        published: the textbook's results.
        frames_of: rung whose published frames also hold for this one, as both learn the same from the same.
        needs: modules that it imports beyond those of sharpwave[train].
        settings: changed settings of recipe pong-dqn; only of kind "sharpwave".
    """

    change: str
    kind: str = "textbook"
    lanes: str = "gymnasium"
    envs: int = 1
    no_grad: bool = True
    times: int = 1
    published: Published | None = None
    frames_of: str | None = None
    needs: tuple[str, ...] = ("cv2",)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def missing(self) -> str | None:
        """Return which packages are missing and how to install them; None: none."""
        absent = [name for name in self.needs if find_spec(name) is None]
        return f"{', '.join(absent)} not installed: pip install '.[bench]'" if absent else None


ENVS = (2, 3, 4, 5, 6)

RUNGS: dict[str, Rung] = {
    "baseline": Rung("one environment, an update of 32 a step", published=Published(159, 105)),
    "slow-grads": Rung("baseline with gradients in the target's pass", no_grad=False, published=Published(157, 115)),
    **{
        f"n-envs-{count}": Rung(
            f"{count} environments in turn, an update of {32 * count} for {count} steps",
            envs=count,
            published=Published(228, 44) if count == 3 else None,
        )
        for count in ENVS
    },
    "parallel": Rung("baseline played and trained in two processes", kind="parallel", published=Published(402, 59)),
    "wrappers": Rung(
        "n-envs-3 with cheaper wrappers, 2 frames", lanes="cheap", envs=3, published=Published(330, 40)
    ),
    "parallel-wrappers": Rung(
        "parallel with cheaper wrappers, 2 frames", kind="parallel", lanes="cheap", published=Published(409, 31)
    ),
    "vector-env": Rung(
        "n-envs-3 with ale-py's vector environment", lanes="vector", envs=3, frames_of="n-envs-3", needs=()
    ),
    "full": Rung("sharpwave train pong-dqn", kind="sharpwave", times=8, needs=()),
    "full-float32": Rung(
        "full without bfloat16", kind="sharpwave", times=8, needs=(), settings={"precision": "float32"}
    ),
    "sb3": Rung("stable-baselines3's DQN, settings of its zoo", kind="sb3", needs=("stable_baselines3", "cv2")),
}  # fmt: skip


def chosen(names: str) -> list[str]:
    """Parse names of rungs: "baseline,n-envs"; a name without its number means all of them; empty: every rung.

    Raises:
        ValueError: an unknown name.
    """
    found: list[str] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        some = [rung for rung in RUNGS if rung == name or rung.rpartition("-")[0] == name == "n-envs"]
        if not some:
            raise ValueError(f"--rungs: got {name!r}, expected some of {','.join(RUNGS)}, or n-envs for all of these")
        found += some
    return list(dict.fromkeys(found)) or list(RUNGS)
