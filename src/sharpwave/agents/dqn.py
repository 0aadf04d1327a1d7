"""Deep Q-network: double, dueling, n-step and prioritized learning as options. The model for every algorithm here:
settings, network, loss, act, learn, from top to bottom; shared pieces lie in the modules beside it.

Torch is imported where it computes, so that help and the checks of settings need not wait for it, nor have it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.architectures import networks
from sharpwave.agents.averaging import move_towards
from sharpwave.agents.devices import PRECISIONS, autocast, pick_device, pick_precision
from sharpwave.agents.exploration import ExplorationSettings
from sharpwave.agents.legal import legal_in, legal_rows, with_legal
from sharpwave.agents.losses import double_q_targets, huber, q_targets, squared
from sharpwave.agents.modules import load_optimizer, load_tensors, optimizer_tensors, tensors_of, to_tensors
from sharpwave.agents.priorities import NStepErrors
from sharpwave.agents.protocol import Acted, Agent, Learned, Obs, Rows, Spaces, Valued
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.agents.schedules import linear
from sharpwave.configuration import check, expect, setting

if TYPE_CHECKING:
    import torch
    from gymnasium.spaces import Space
    from torch import Tensor, nn

LEARNING, NETWORK = "Learning", "Network"


@dataclass(frozen=True)
class DQNSettings(ExplorationSettings):
    """Settings of a deep Q-network; the defaults are those of Mnih et al. (2015) where they are given there."""

    kind: ClassVar[str] = "dqn"

    replay: TransitionsSettings = field(default_factory=TransitionsSettings)

    network: str = setting("auto", "torso of the Q-network; auto: by the observation", NETWORK, choices=networks)
    hidden_units: int = setting(512, "units of the hidden layer", NETWORK, at_least=1)
    dueling: bool = setting(False, "separate streams for value and advantage", NETWORK)
    dueling_baseline: str = setting(
        "mean",
        "dueling: what is subtracted from the advantages, their mean or maximum; naive: nothing",
        NETWORK,
        choices=("mean", "max", "naive"),
    )
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

    double: bool = setting(True, "double Q-learning", LEARNING)
    loss: str = setting("huber", "loss of the temporal-difference error", LEARNING, choices=("huber", "mse"))
    huber_delta: float = setting(1.0, "error above which the Huber loss is linear", LEARNING, above=0)
    lr: float = setting(2.5e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    lr_end: float | None = setting(
        None, "final learning rate; empty: constant", LEARNING, flag="--learning-rate-end", above=0
    )
    lr_steps: int = setting(
        0, "steps from learning-rate to learning-rate-end", LEARNING, flag="--learning-rate-steps", at_least=0
    )
    adam_eps: float = setting(1.5e-4, "epsilon of Adam", LEARNING, above=0)
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm; 0: never", LEARNING, at_least=0)
    target_every: int = setting(8_000, "steps between copies to the target network", LEARNING, at_least=1)
    target_tau: float = setting(
        0.0, "share by which each update moves the target instead of copies; 0: copies", LEARNING, at_least=0, at_most=1
    )
    average_decay: float = setting(
        0.0,
        "decay of the exponential mean of the network over updates, which is evaluated and saved as best and last; "
        "0: the network itself",
        LEARNING,
        at_least=0,
        below=1,
    )

    def __post_init__(self) -> None:
        check(self)
        for name in ("standardize", "random_shift"):
            expect(self, name, not (getattr(self, name) and self.network == "mlp"), "a network for images with it")
        expect(self, "lr_steps", self.lr_end is None or self.lr_steps > 0, "at least 1 with --learning-rate-end")

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        if not self.dueling:
            yield "dueling_baseline", "--dueling"
        if self.loss != "huber":
            yield "huber_delta", "--loss huber"
        if self.lr_end is None:
            yield "lr_steps", "--learning-rate-end"
        if self.target_tau > 0:
            yield "target_every", "--target-tau 0"


class DQNState(NamedTuple):
    """Acting state.

    Attributes:
        lanes: which of the run's ``of`` lanes these are.
        chosen: int64 [lanes], numbers of the last actions.
        values: Q of the last observations [lanes, A], where initial priorities are computed.
    """

    lanes: slice
    of: int
    chosen: npt.NDArray[np.int64] | None = None
    values: npt.NDArray[np.float32] | None = None


class DQN(Agent):
    """Deep Q-network agent: online and target network, and the optimizer.

    The online network explores and learns. The *policy*, which is evaluated and saved, is its exponential mean if
    ``average_decay`` is set: the mean forgets less than single networks along the way.
    """

    Settings: type[DQNSettings] = DQNSettings
    FIRST_LOOK = 2048
    """Transitions of the warm-up by which images are standardized."""

    def __init__(
        self, spaces: Spaces, settings: DQNSettings | None = None, device: torch.device | str = "cpu", seed: Any = 0
    ) -> None:
        from sharpwave.agents.inputs import inputs_for, with_images

        self.spaces, self.settings = spaces, settings or self.Settings()
        self.exploration = self.settings.strategy
        self.device = pick_device(device)
        self.actions = NumberedActions(spaces, self.Settings.kind)
        self.num_actions = self.actions.count
        self._precision = pick_precision(self.settings.precision, self.device)
        self._rng = np.random.default_rng(seed)
        self._targets_copied = 0  # periods of ``target_every`` steps whose copy to the target was made
        self._keeps_values = False
        self.inputs = inputs_for(spaces.seen, images=self.settings.network != "mlp").to(self.device)
        for name, off in (("standardize", "--no-standardize"), ("random_shift", "0")):
            needless = getattr(self.settings, name) and not with_images(self.inputs)
            expect(self.settings, name, not needless, f"{off}: no observation is an image")
        self.online = self.network().to(self.device)
        self.target = self.network().to(self.device).requires_grad_(False)
        move_towards(self.target, self.online, 1.0)
        self.average = copy.deepcopy(self.target) if self.settings.average_decay > 0 else None

    @property
    def precision(self) -> str:
        return self._precision

    # network

    def network(self) -> nn.Module:
        """Make a fresh network: what ``inputs`` give -> Q [B, A]."""
        from sharpwave.agents.networks import QHead, QNetwork
        from sharpwave.agents.torsos import torso_for

        settings = self.settings
        torso = torso_for(self.spaces.seen, settings.network, settings.hidden_units)
        units, dueling, baseline = settings.hidden_units, settings.dueling, settings.dueling_baseline
        return QNetwork(torso, QHead(torso.features, units, self.num_actions, dueling, baseline=baseline))

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam for the online network; made on first use, because torch takes a second to import it."""
        import torch

        return torch.optim.Adam(self.online.parameters(), lr=self.settings.lr, eps=self.settings.adam_eps, fused=True)

    # act

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> DQNState:
        return DQNState(slice(first_lane, first_lane + lanes), of_lanes or first_lane + lanes)

    def act(self, obs: Obs, state: DQNState, step: int, explore: bool = True) -> Acted:
        lanes, of = state.lanes, state.of
        if explore and not self._keeps_values and self.exploration.ignores_values(step, lanes, of):
            values = np.zeros((lanes.stop - lanes.start, self.num_actions), np.float32)
            values = legal_rows(values, legal_in(self.spaces, obs))
        else:
            values = self.values(obs)
        chosen = self.exploration.choose(values, step, lanes, of, self._rng) if explore else values.argmax(axis=1)
        state = state._replace(chosen=chosen, values=values if self._keeps_values else None)
        return Acted(self.actions.actions(chosen), state)

    @property
    def inference_space(self) -> Space[Any] | None:
        return self.spaces.observation

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return Q of the online network, float32 [N, A]."""
        return (self._q(obs).float().cpu().numpy(),)

    def values(self, obs: Obs) -> npt.NDArray[np.float32]:
        """Return Q, float32 [N, A], for observations [N, ...]; -infinity for illegal actions."""
        return legal_rows(self.infer(obs)[0], legal_in(self.spaces, obs))

    def values_along(self, obs: Obs, action: npt.NDArray[Any], reward: npt.NDArray[Any], state: DQNState) -> Valued:
        return Valued(self.values(obs), self.actions.numbers(action), state)

    def _q(self, obs: Obs) -> Tensor:
        import torch

        with torch.inference_mode(), self.autocast():
            predicted: Tensor = self.online(self.inputs(to_tensors(obs, self.device)))
        return self.q_of(predicted)

    def q_of(self, predicted: Tensor) -> Tensor:
        """Return Q [B, A] of what the network predicts."""
        return predicted

    def differentiable_q(self, inputs: Any, state: DQNState) -> Tensor:
        """Return Q [B, A] of the output of ``inputs``, for gradients."""
        return self.q_of(self.online(inputs))

    def scored_lanes(self, lanes: int) -> npt.NDArray[np.bool_]:
        return self.exploration.scored(lanes)

    def initial_errors(self, lanes: int, kept: int) -> NStepErrors | None:
        replay = self.settings.replay
        if not replay.prioritized:
            return None
        self._keeps_values = True
        return NStepErrors(lanes, replay.n_step, replay.gamma, kept, lambda obs, acted, reward: self.values(obs))

    # learn

    def replay(self) -> TransitionsSettings:
        return self.settings.replay

    @property
    def first_look(self) -> int:
        return self.FIRST_LOOK if self.settings.standardize else 0

    def prepare(self, batch: Any) -> None:
        from sharpwave.agents.inputs import DictInputs, FrameInputs

        if isinstance(self.inputs, (FrameInputs, DictInputs)):
            self.inputs.standardize(batch.obs)

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the weighted mean of the items' losses, and their TD errors, unweighted, float32 [B]."""
        import torch

        settings = self.settings
        with self.autocast():
            # First: autocast caches rounded weights, and those of a pass without gradient would carry none.
            q = self.online(self.training_inputs(batch.obs)).float()
            with torch.no_grad():
                # A separate pass for s': joined with s it would take part in the backward pass.
                next_inputs = self.training_inputs(batch.next_obs)
                next_q_online = self.online(next_inputs).float() if settings.double else None
                next_q = self.target(next_inputs).float()
        legal = legal_in(self.spaces, batch.next_obs)
        if next_q_online is not None:
            targets = double_q_targets(next_q, with_legal(next_q_online, legal), batch.reward, batch.discount)
        else:
            targets = q_targets(with_legal(next_q, legal), batch.reward, batch.discount)
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
        from sharpwave.agents.augmentation import random_shift

        inputs, pixels = self.inputs(obs), self.settings.random_shift
        return random_shift(inputs, pixels, self._rng) if pixels else inputs

    def learn(self, batch: Any, step: int) -> Learned:
        from torch.nn.utils import clip_grad_norm_

        settings = self.settings
        if settings.target_tau == 0 and step // settings.target_every > self._targets_copied:
            self._targets_copied = step // settings.target_every
            move_towards(self.target, self.online, 1.0)
        if settings.lr_end is not None:
            self.optimizer.param_groups[0]["lr"] = self._learning_rate(step)
        loss, td_error = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if settings.max_grad_norm > 0:
            clip_grad_norm_(self.online.parameters(), settings.max_grad_norm)
        self.optimizer.step()
        if settings.target_tau > 0:
            move_towards(self.target, self.online, settings.target_tau)
        if self.average is not None:
            move_towards(self.average, self.online, 1.0 - settings.average_decay)
        return Learned(td_error, {"loss": loss.detach()})

    def schedules(self, step: int) -> dict[str, float]:
        beta = self.settings.replay.beta(step)
        own = {"learning_rate": self._learning_rate(step)} | ({} if beta is None else {"beta": beta})
        return self.exploration.schedules(step) | own

    def _learning_rate(self, step: int) -> float:
        settings = self.settings
        return settings.lr if settings.lr_end is None else linear(step, settings.lr, settings.lr_end, settings.lr_steps)

    # save

    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        policy = self.online if explore or self.average is None else self.average
        tensors = tensors_of({"inputs": self.inputs, "policy": policy})
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        load_tensors({"inputs": self.inputs, "policy": self.online}, tensors)

    def state(self) -> dict[str, Any]:
        return {
            "weights": tensors_of(self._modules()),
            "optimizer": optimizer_tensors(self.optimizer),
            "exploration": self._rng.bit_generator.state,
            "targets_copied": self._targets_copied,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        load_tensors(self._modules(), state["weights"])
        load_optimizer(self.optimizer, state["optimizer"])
        self._rng.bit_generator.state = state["exploration"]
        self._targets_copied = int(state["targets_copied"])

    def _modules(self) -> dict[str, nn.Module]:
        modules = {"inputs": self.inputs, "online": self.online, "target": self.target}
        return modules if self.average is None else {**modules, "average": self.average}

    def autocast(self) -> AbstractContextManager[Any]:
        """Let networks compute in the settings' precision while inside."""
        return autocast(self.device, self._precision)
