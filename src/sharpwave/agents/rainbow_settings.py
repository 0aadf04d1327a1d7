"""Settings of Rainbow: each part of it is a switch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sharpwave.agents.dqn import DQNSettings
from sharpwave.agents.replay import EXPLORATION, LEARNING, TransitionsSettings
from sharpwave.configuration import again, expect, setting

RETURNS = "Distribution of returns"


@dataclass(frozen=True)
class RainbowSettings(DQNSettings):
    """Settings of Rainbow; the defaults are those of Hessel et al. (2018) where they are given there."""

    kind: ClassVar[str] = "rainbow"
    OF_HEADS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("atoms", "lowest_return", "highest_return"), ("c51",)),
        "quantiles": ("qr", "iqn"),
        "late_fractions": ("iqn",),
        "loss": ("expected",),
        "huber_delta": ("qr", "iqn", "expected"),
    }
    """Heads that each setting has an effect with."""

    replay: TransitionsSettings = field(
        default_factory=lambda: TransitionsSettings(n_step=3, prioritized=True, priority_alpha=0.5)
    )
    dueling: bool = again(DQNSettings, dueling=True)
    lr: float = again(DQNSettings, lr=6.25e-5)

    head: str = setting(
        "c51",
        "what is predicted of the return: probabilities of atoms (c51), quantiles (qr, iqn) or the mean (expected)",
        RETURNS,
        choices=("c51", "qr", "iqn", "expected"),
    )
    atoms: int = setting(51, "c51: number of atoms", RETURNS, at_least=2)
    lowest_return: float = setting(-10.0, "c51: return of the first atom", RETURNS)
    highest_return: float = setting(10.0, "c51: return of the last atom", RETURNS)
    quantiles: int = setting(64, "qr: number of quantiles; iqn: fractions drawn for each item", RETURNS, at_least=1)
    late_fractions: bool = setting(
        False,
        "iqn: fractions are multiplied with the hidden layer instead of the torso's features: much less to compute",
        RETURNS,
    )

    noisy: bool = setting(True, "learned noise on the weights explores, instead of random actions", EXPLORATION)
    noisy_sigma: float = setting(0.5, "noisy: initial scale of the noise", EXPLORATION, at_least=0)
    noisy_epsilon: bool = setting(False, "noisy: random actions too, with probability epsilon", EXPLORATION)

    augmentations: int = setting(
        1,
        "augmented copies of each observation over which the loss is averaged; M in DrQ",
        LEARNING,
        at_least=1,
    )
    target_augmentations: int = setting(
        1,
        "augmented copies of each next observation over which the target is averaged; K in DrQ",
        LEARNING,
        at_least=1,
    )

    self_prediction: int = setting(
        0,
        "images: steps ahead whose features a model predicts from the actions, which trains the torso, too; 0: none; "
        "SPR: 5",
        LEARNING,
        at_least=0,
    )
    self_prediction_weight: float = setting(
        2.0, "self-prediction: weight of its loss, 1 minus the cosine, summed over the steps", LEARNING, above=0
    )

    reset_every: int = setting(
        0, "updates between resets of the agent, but for a share of its torso; 0: no resets", LEARNING, at_least=0
    )
    reset_until: int | None = setting(
        None, "reset-every: no reset after so many steps, so that the last has time to learn", LEARNING, at_least=1
    )
    reset_keeps: float = setting(
        0.8, "reset-every: share of the torso's weights that is kept", LEARNING, at_least=0, at_most=1
    )
    act_by_target: bool = setting(False, "the target network acts and is the policy, not the online one", LEARNING)

    munchausen: float = setting(
        0.0,
        "weight of the policy's log-probability in rewards, with a soft policy in targets (double is then not used); "
        "0: off; Munchausen RL: .9",
        LEARNING,
        at_least=0,
        at_most=1,
    )
    munchausen_temperature: float = setting(0.03, "munchausen: temperature of the soft policy", LEARNING, above=0)
    munchausen_lowest: float = setting(
        -1.0, "munchausen: lower bound of temperature times log-probability", LEARNING, at_most=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        lowest = self.lowest_return
        expect(self, "explore", not self.noisy or self.explore == "epsilon", "epsilon; softmax needs --no-noisy")
        expect(self, "highest_return", self.highest_return > lowest, f"above the {lowest} of --lowest-return")
        expect(self, "self_prediction", not self.self_prediction or self.novelty == "none", "0 with --novelty")

    @property
    def augmented(self) -> bool:
        """Whether images are augmented."""
        return self.random_shift > 0 or self.random_intensity > 0

    def unused(self) -> Iterator[tuple[str, str]]:
        for name, needs in super().unused():
            if name != "huber_delta":
                yield name, needs
        if self.noisy and not self.noisy_epsilon:
            yield "exploration", "--no-noisy or --noisy-epsilon"
        if not self.noisy:
            yield from dict.fromkeys(("noisy_sigma", "noisy_epsilon"), "--noisy").items()
        if not self.augmented:
            needs = "--random-shift or --random-intensity above 0"
            yield from dict.fromkeys(("augmentations", "target_augmentations"), needs).items()
        if not self.self_prediction:
            yield "self_prediction_weight", "--self-prediction above 0"
        if not self.reset_every:
            yield from dict.fromkeys(("reset_until", "reset_keeps"), "--reset-every above 0").items()
        if self.act_by_target:
            yield "average_decay", "--no-act-by-target"
        if self.munchausen == 0:
            yield from dict.fromkeys(("munchausen_temperature", "munchausen_lowest"), "--munchausen above 0").items()
        else:
            yield "double", "--munchausen 0"
        for name, heads in self.OF_HEADS.items():
            if self.head not in heads:
                yield name, " or ".join(f"--head {head}" for head in heads)
        if self.head == "expected" and self.loss != "huber":
            yield "huber_delta", "--loss huber"
