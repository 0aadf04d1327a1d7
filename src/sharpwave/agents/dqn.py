"""Deep Q-network: double, dueling, n-step and prioritized learning as options. The model for every algorithm here:
settings, network, act, loss. ``q_agent.py`` holds the part that other agents of action values share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from sharpwave.agents.actions import legal_in, with_legal
from sharpwave.agents.lazy_torch import nn, torch
from sharpwave.agents.learner import PRECISIONS, to_tensors
from sharpwave.agents.losses import double_q_targets, huber, squared
from sharpwave.agents.protocol import Obs, Rows
from sharpwave.agents.q_agent import NStepErrors, QSettings, TargetQAgent
from sharpwave.agents.replay import LEARNING, NETWORK, TransitionsSettings
from sharpwave.configuration import expect, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DQNSettings(QSettings):
    """Settings of a deep Q-network; the defaults are those of Mnih et al. (2015) where they are given there."""

    kind: ClassVar[str] = "dqn"

    replay: TransitionsSettings = field(default_factory=TransitionsSettings)

    standardize: bool = setting(
        False, "images: subtract the mean image of the warm-up and divide by the deviation from it", NETWORK
    )
    random_shift: int = setting(
        0,
        "images: largest shift, in pixels down and right, by which each image of a batch is moved at random; 0: none",
        LEARNING,
        at_least=0,
    )
    precision: str = setting(
        "float32", "precision of networks; auto: bfloat16 if the CPU supports it", LEARNING, choices=PRECISIONS
    )

    loss: str = setting("huber", "loss of the temporal-difference error", LEARNING, choices=("huber", "mse"))
    huber_delta: float = setting(1.0, "error above which the Huber loss is linear", LEARNING, above=0)
    lr: float = setting(2.5e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("standardize", "random_shift"):
            expect(self, name, not (getattr(self, name) and self.network == "mlp"), "a network for images with it")

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        if self.loss != "huber":
            yield "huber_delta", "--loss huber"


class DQN(TargetQAgent):
    """Deep Q-network agent: online and target network, and the optimizer."""

    Settings: type[DQNSettings] = DQNSettings
    FIRST_LOOK = 2048
    """Transitions of the warm-up by which images are standardized."""

    # network

    def make_inputs(self, standardize: bool = False) -> nn.Module:
        from sharpwave.agents.inputs import FrameInputs, has

        inputs = super().make_inputs(standardize)
        for name, off in (("standardize", "--no-standardize"), ("random_shift", "0")):
            needless = getattr(self.settings, name) and not has(inputs, FrameInputs)
            expect(self.settings, name, not needless, f"{off}: no observation is an image")
        return inputs

    def network(self) -> nn.Module:
        from sharpwave.agents.networks import QHead, QNetwork

        settings, units = self.settings, self.settings.hidden_units
        torso = self.make_torso(units)
        head = QHead(torso.features, units, self.num_actions, settings.dueling, baseline=settings.dueling_baseline)
        return QNetwork(torso, head)

    # act

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return Q of the online network, float32 [N, A], that of illegal actions included."""
        with torch.inference_mode(), self.autocast():
            predicted = self.online(self.inputs(to_tensors(obs, self.device)))
        return (self.q_of(predicted).float().cpu().numpy(),)

    def q_of(self, predicted: Tensor) -> Tensor:
        """Return Q [B, A] of the network's predictions."""
        return predicted

    def differentiable_q(self, inputs: Any, state: Any) -> Tensor:
        return self.q_of(super().differentiable_q(inputs, state))

    def initial_errors(self, lanes: int, kept: int) -> NStepErrors | None:
        replay = self.settings.replay
        if not replay.prioritized:
            return None
        self._keeps_values = True
        return NStepErrors(lanes, replay.n_step, replay.gamma, kept, lambda obs, acted, reward: self.values(obs))

    # learn

    @property
    def first_look(self) -> int:
        return self.FIRST_LOOK if self.settings.standardize else 0

    def prepare(self, batch: Any) -> None:
        from sharpwave.agents.inputs import FrameInputs, standardize

        standardize(self.inputs, batch.obs, FrameInputs)

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        with self.autocast():
            # First: autocast caches rounded weights, and those of a pass without gradient would carry none.
            q = self.online(self.training_inputs(batch.obs)).float()
            with torch.no_grad():
                # A separate pass for s': joined with s it would take part in the backward pass.
                next_inputs = self.training_inputs(batch.next_obs)
                chooses = self.online(next_inputs).float() if self.settings.double else None
                next_q = self.target(next_inputs).float()
        chooses = with_legal(next_q if chooses is None else chooses, legal_in(self.spaces, batch.next_obs))
        targets = double_q_targets(next_q, chooses, batch.reward, batch.discount)
        action = self.actions.numbers(batch.action)
        td_error = targets - q.gather(1, action.view(-1, 1)).squeeze(1)
        q = with_legal(q, legal_in(self.spaces, batch.obs), action)
        return (batch.weights * self.losses(q, action, td_error)).mean(), td_error.detach()

    def losses(self, q: Tensor, action: Tensor, td_error: Tensor) -> Tensor:
        """Compute the loss of each item, float [B], of values [B, A], -infinity for illegal actions, the numbers of the
        actions and TD errors [B]."""
        settings = self.settings
        return huber(td_error, settings.huber_delta) if settings.loss == "huber" else squared(td_error)

    def training_inputs(self, obs: Any) -> Any:
        """Preprocess a batch's observations for an update."""
        from sharpwave.agents.inputs import random_shift

        inputs, pixels = self.inputs(obs), self.settings.random_shift
        return random_shift(inputs, pixels, self._rng) if pixels else inputs
