"""Actor-critic agents: a stochastic policy and a value, learned from windows that are used up.

A2C, A3C, IMPALA and PPO share two networks, acting, and all of an update but its objectives. The
behaviour policy's log-probabilities are stored with the steps, so that a learner knows how far the policy that it
improves has moved from the one that acted. A window ends with its episode at the latest; the value of the observation
behind its last real step, the true final one after a truncated episode, stands for the later rewards.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from sharpwave.agents.actions import NumberedActions, legal_in, legal_rows, with_legal
from sharpwave.agents.architectures import networks
from sharpwave.agents.exploration import softmax_actions
from sharpwave.agents.lazy_torch import nn, torch
from sharpwave.agents.learner import LearningRateSettings, NetworkAgent
from sharpwave.agents.losses import window_ends
from sharpwave.agents.protocol import Acted, Learned, Obs, Spaces
from sharpwave.agents.replay import LEARNING, NETWORK, RolloutSettings
from sharpwave.configuration import setting
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field

if TYPE_CHECKING:
    from torch import Tensor

RAW = "raw_action"
"""Step field of the actions that a Gaussian policy drew, before they were clipped to the environment's bounds."""
LOG_PROBABILITY = "log_probability"
"""Step field of the log-probability of the action by the policy that acted."""


@dataclass(frozen=True)
class ActorCriticSettings(LearningRateSettings):
    """Settings that all actor-critic agents have."""

    kind: ClassVar[str]

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(epochs=1))

    network: str = setting("auto", "torso of both networks; auto: by the observation", NETWORK, choices=networks)
    hidden_units: int = setting(128, "units of the hidden layer", NETWORK, at_least=1)

    value_cost: float = setting(0.5, "weight of the value's squared error in the loss", LEARNING, at_least=0)
    entropy_cost: float = setting(
        0.01, "weight of the policy's entropy, which keeps it exploring", LEARNING, at_least=0
    )
    max_grad_norm: float = setting(
        0.5, "gradients of each network are clipped to this norm; 0: never", LEARNING, at_least=0
    )


class Seen(NamedTuple):
    """Steps of a batch as the networks see them now, [B, T] each.

    Attributes:
        log_probability: of the actions that were taken; ``ratio``: of their probability over the behaviour policy's;
            ``entropy``: of the policy. With gradients.
        value: v(s_t), with gradient. ``next_value``: v(s_{t+1}), without.
        ends: behind which returns are cut and bootstrap: an episode's last step, or the window's. ``mask``: real steps.
    """

    log_probability: Tensor
    ratio: Tensor
    entropy: Tensor
    value: Tensor
    next_value: Tensor
    ends: Tensor
    mask: Tensor


class Objectives(NamedTuple):
    """Objectives of an update.

    Attributes:
        policy: float [B, T], loss of the policy at each step, with gradient.
        target: float [B, T], targets of the values, without.
        metrics: scalars by name, for reports.
    """

    policy: Tensor
    target: Tensor
    metrics: Mapping[str, Tensor] = {}


class Chosen(NamedTuple):
    """Actions of a policy.

    Attributes:
        action: [N, *shape], for the environment.
        log_probability: float32 [N], the logarithm of their probability or density.
        fields: values of ``StochasticPolicy.step_fields`` by name, [N, ...].
    """

    action: npt.NDArray[Any]
    log_probability: npt.NDArray[np.float32]
    fields: Mapping[str, npt.NDArray[Any]]


class StochasticPolicy(Protocol):
    """Distribution of actions given a network's predictions. Policies have no state; the layers are the network's."""

    def head(self, features: int) -> nn.Module:
        """Make the last layer: features [..., n] -> predictions [..., k]."""

    def step_fields(self) -> dict[str, Field]:
        """Return the fields of an action that are stored beside the action itself."""

    def choose(self, predicted: Tensor, rng: np.random.Generator | None) -> Chosen:
        """Draw an action for each of predictions [N, k]; None: take the likeliest."""

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        """Return the logarithm of the probability of a batch's actions, [B, T], given predictions [B, T, k]."""

    def entropy(self, predicted: Tensor) -> Tensor:
        """Return the entropy, [...], of predictions [..., k]."""


class Categorical(StochasticPolicy):
    """Softmax of a logit for each of numbered actions; of an illegal one it is -infinity."""

    def __init__(self, actions: NumberedActions) -> None:
        self.actions = actions

    def head(self, features: int) -> nn.Module:
        from sharpwave.agents.actor_networks import small_layer

        return small_layer(features, self.actions.count)

    def step_fields(self) -> dict[str, Field]:
        return {}

    def choose(self, predicted: Tensor, rng: np.random.Generator | None) -> Chosen:
        log_policy: npt.NDArray[np.float32] = predicted.log_softmax(dim=-1).cpu().numpy()
        if rng is None:
            number = log_policy.argmax(axis=1)
        else:
            number = softmax_actions(log_policy, np.ones(len(log_policy)), rng)
        taken = np.take_along_axis(log_policy, number[:, None], axis=1)[:, 0]
        return Chosen(self.actions.actions(number), taken, {})

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        number: Tensor = self.actions.numbers(batch.action)
        return predicted.log_softmax(dim=-1).gather(-1, number.unsqueeze(-1)).squeeze(-1)

    def entropy(self, predicted: Tensor) -> Tensor:
        log_policy = predicted.log_softmax(dim=-1)
        return -(log_policy.exp() * log_policy.masked_fill(log_policy == -math.inf, 0.0)).sum(dim=-1)


class Gaussian(StochasticPolicy):
    """Independent normal distributions, whose deviations are parameters and do not depend on the observation.

    It is over raw numbers of which -1 ... 1 are the range of actions between finite bounds; elsewhere they are the
    actions. The environment gets them within its bounds, but the density is that of the numbers before, so these are
    stored too.
    """

    def __init__(self, box: Box) -> None:
        self.box, self.size = box, math.prod(box.shape)
        low, high = box.low.astype(np.float32), box.high.astype(np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        self._middle, self._half = np.zeros_like(low), np.ones_like(low)
        self._middle[bounded] = (low[bounded] + high[bounded]) / 2
        self._half[bounded] = (high[bounded] - low[bounded]) / 2

    def head(self, features: int) -> nn.Module:
        from sharpwave.agents.actor_networks import GaussianHead

        return GaussianHead(features, self.size)

    def step_fields(self) -> dict[str, Field]:
        return {RAW: Field((self.size,), "float32")}

    def choose(self, predicted: Tensor, rng: np.random.Generator | None) -> Chosen:
        mean, log_std = (part.cpu().numpy() for part in predicted.chunk(2, dim=-1))
        noise = 0.0 if rng is None else rng.standard_normal(mean.shape, np.float32)
        raw = (mean + np.exp(log_std) * noise).astype(np.float32, copy=False)
        density = normal_log_density(predicted, torch.from_numpy(raw).to(predicted.device)).cpu().numpy()
        wide = self._middle + self._half * raw.reshape(-1, *self.box.shape)
        action = wide.clip(self.box.low, self.box.high).astype(self.box.dtype, copy=False)
        return Chosen(action, density, {RAW: raw})

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        return normal_log_density(predicted, batch[RAW])

    def entropy(self, predicted: Tensor) -> Tensor:
        _, log_std = predicted.chunk(2, dim=-1)
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)


def policy_for(spaces: Spaces, kind: str) -> StochasticPolicy:
    """Return the policy for a space of actions: Gaussian for Box, categorical for numbered actions.

    Raises:
        ValueError: a space of another kind; ``kind`` is the agent's name in it.
    """
    return Gaussian(spaces.action) if isinstance(spaces.action, Box) else Categorical(NumberedActions(spaces, kind))


def normal_log_density(predicted: Tensor, numbers: Tensor) -> Tensor:
    """Return the log density [...] of numbers [..., n] by normal distributions of (mean, log deviation) [..., 2n]."""
    mean, log_std = predicted.chunk(2, dim=-1)
    assert mean.shape == numbers.shape, (mean.shape, numbers.shape)
    distance = (numbers - mean) * (-log_std).exp()
    return (-0.5 * distance * distance - log_std - 0.5 * math.log(2 * math.pi)).sum(dim=-1)


class ActorCritic(NetworkAgent):
    """Base of actor-critic agents; a subclass computes the ``objectives`` of its policy and its value.

    The two networks share nothing, so that actors are sent the policy alone.
    """

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        super().__init__(spaces, settings, device, seed)
        self.distribution = policy_for(spaces, self.Settings.kind)
        self.inputs = self.make_inputs()
        self.policy, self.value = (network.to(self.device) for network in self.networks())

    # networks

    def networks(self) -> tuple[nn.Module, nn.Module]:
        """Make fresh networks over ``inputs``: predictions of the policy [B, k], and values [B, 1]."""
        units = self.settings.hidden_units

        def network(last: nn.Module) -> nn.Module:
            torso = self.make_torso(units)
            return nn.Sequential(torso, nn.Linear(torso.features, units), nn.ReLU(), last)

        return network(self.distribution.head(units)), network(nn.Linear(units, 1))

    def trained(self) -> dict[str, nn.Module]:
        return {"policy": self.policy, "value": self.value}

    def acting(self, explore: bool) -> nn.Module:
        return self.policy

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.settings.lr, eps=1e-5)

    # act

    def step_fields(self) -> dict[str, Field]:
        return {LOG_PROBABILITY: Field((), "float32"), **self.distribution.step_fields()}

    def act(self, obs: Obs, state: None, step: int, explore: bool = True) -> Acted:
        with torch.inference_mode():
            predicted = torch.from_numpy(legal_rows(self.infer(obs)[0], legal_in(self.spaces, obs)))
            chosen = self.distribution.choose(predicted, self._rng if explore else None)
        return Acted(chosen.action, state, {LOG_PROBABILITY: chosen.log_probability, **chosen.fields})

    # learn

    def see(self, batch: Any) -> Seen:
        """Look at a batch of windows with the present networks."""
        mask: Tensor = batch.mask
        inputs = self.inputs(map_leaves(lambda obs: obs.flatten(0, 1), batch.obs))  # T + 1: the one behind the last too
        value = self.value(inputs).view(len(mask), -1)
        predicted = with_legal(self.policy(inputs).unflatten(0, value.shape), legal_in(self.spaces, batch.obs))[:, :-1]
        log_probability = self.distribution.log_probability(predicted, batch)
        if self.spaces.masked:  # a window's padding follows its final observation, where action 0 may be illegal
            log_probability = log_probability.masked_fill(~mask, 0.0)
        return Seen(
            log_probability,
            (log_probability - batch[LOG_PROBABILITY]).masked_fill(~mask, 0.0).exp(),
            self.distribution.entropy(predicted),
            value[:, :-1],
            value[:, 1:].detach(),
            window_ends(mask),
            mask,
        )

    @abstractmethod
    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        """Compute the objectives of the policy and the value from a batch."""

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean over real steps of all that is minimized, and metrics."""
        settings, seen = self.settings, self.see(batch)
        mask, steps = seen.mask, seen.mask.sum()
        aims = self.objectives(batch, seen)
        value_loss = 0.5 * ((aims.target - seen.value).square() * mask).sum() / steps
        entropy = (seen.entropy * mask).sum() / steps
        policy_loss = (aims.policy * mask).sum() / steps
        loss = policy_loss + settings.value_cost * value_loss - settings.entropy_cost * entropy
        # The mean of ratio - 1 - log ratio estimates the divergence of the policy from the one that acted, and is >= 0.
        moved = ((seen.ratio - 1 - seen.ratio.log()) * mask).sum() / steps
        metrics = {"value_loss": value_loss, "entropy": entropy, "divergence": moved, **aims.metrics}
        return loss, {name: value.detach() for name, value in metrics.items()}

    def learn(self, batch: Any, step: int) -> Learned:
        self.optimizer.param_groups[0]["lr"] = self.learning_rate(step)
        loss, metrics = self.loss(batch)
        self.minimize(loss, self.policy, self.value)  # clipped apart: a value's errors are of another size
        return Learned(None, {"loss": loss.detach(), **metrics})
