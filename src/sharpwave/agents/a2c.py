"""A2C: advantage actor-critic. Many environments step together; each window is learned from once, then dropped.

Nothing corrects for a policy that has moved since it acted, so it must not have moved far: a window is learned from as
soon as it is whole, and reuse is refused. Windows begin with their episodes rather than all at once, so that an update
may fall into the middle of one: its steps are of the present policy or of the one or two before it.

Source: Mnih et al. (2016), Asynchronous methods for deep reinforcement learning, algorithm S3, made synchronous. Adam
is in place of RMSProp, and the networks of policy and value are apart.

``A3C`` is A2C with actor processes that do not wait for each other, nor for the learner. Each has a copy of the policy
and environments of its own, acts by weights that may be ``--weights-every`` steps old and sends its steps when it has
``--segment-steps`` of them. The learner makes an update from each window that arrives, in the order of arrival,
uncorrected as in the paper: how often weights and steps are sent keeps actors near the learner. In the paper each
process computes gradients by its own stale copy and adds them, without locks (Hogwild), to parameters that all share.
Here actors send steps, and the one learner computes the gradient by the newest weights: only the policy that chose the
actions is old. Steps are smaller than gradients, may be stored, and come from other machines by the same way.

``ActorCritic`` is the part that PPO and IMPALA share: two networks, acting, and all of an update but its objectives.
The log-probabilities of the policy that acted are stored with the steps, so that a learner knows how far its own policy
has moved from that one. A window ends with its episode at the latest; the value of the observation after its last real
step, the true final one after a truncated episode, stands for the later rewards.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

import sharpwave as sw
from sharpwave.agents.actions import NumberedActions, legal_in, legal_rows, softmax_actions, with_legal, within
from sharpwave.agents.architectures import networks
from sharpwave.agents.learner import LearningRateSettings, NetworkAgent
from sharpwave.agents.losses import lambda_returns, window_ends
from sharpwave.agents.protocol import Acted, Learned, Obs, Spaces, ViewSettings
from sharpwave.agents.replay import LEARNING, NETWORK
from sharpwave.configuration import Checked, expect, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field

Chosen = tuple[npt.NDArray[Any], npt.NDArray[np.float32], Mapping[str, npt.NDArray[Any]]]
Objectives = tuple[Tensor, Tensor, Mapping[str, Tensor]]

RAW = "raw_action"
"""Step field of the actions that a Gaussian policy drew, before they were clipped to the environment's bounds."""


LOG_PROBABILITY = "log_probability"
"""Step field of the log-probability of the action by the policy that acted."""


@dataclass(frozen=True)
class RolloutSettings(Checked, ViewSettings):
    """Settings of a queue of windows, each learned from a fixed number of times and then no more: no replay."""

    batch_size: int = setting(8, "windows per update", LEARNING, at_least=1)
    length: int = setting(32, "steps of a window", LEARNING, at_least=1)
    gamma: float = setting(0.99, "discount factor per step", LEARNING, at_least=0, at_most=1)
    epochs: int = setting(2, "times that each window is learned from", LEARNING, at_least=1)

    @property
    def fewest(self) -> int:
        return self.batch_size

    @property
    def horizon(self) -> int:
        return self.length

    @property
    def most_samples(self) -> float:
        return self.epochs / self.length  # where windows have their full length

    def open(self, store: sw.Store, name: str | None, seed: int) -> Any:
        return store.sequences(
            self.length, gamma=self.gamma, name=name, sampler=sw.Fifo(), max_times_sampled=self.epochs, seed=seed
        )


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


class Categorical:
    """Policy of numbered actions: the softmax of a logit for each; that of an illegal one is -infinity.

    It has no state; the layers are the network's.
    """

    def __init__(self, actions: NumberedActions) -> None:
        self.actions = actions

    def head(self, features: int) -> nn.Module:
        """Make the last layer: features [..., n] -> predictions [..., k]."""
        from sharpwave.agents.actor_networks import small_layer

        return small_layer(features, self.actions.count)

    def step_fields(self) -> dict[str, Field]:
        """Return the fields of an action that are stored beside the action itself."""
        return {}

    def choose(self, predicted: Tensor, rng: np.random.Generator | None) -> Chosen:
        """Draw an action for each of predictions [N, k]; without ``rng`` take the likeliest.

        Returns:
            actions [N, *shape]; the logarithm of their probability or density, float32 [N]; values of ``step_fields``.
        """
        log_policy: npt.NDArray[np.float32] = predicted.log_softmax(dim=-1).cpu().numpy()
        if rng is None:
            number = log_policy.argmax(axis=1)
        else:
            number = softmax_actions(log_policy, np.ones(len(log_policy)), rng)
        taken = np.take_along_axis(log_policy, number[:, None], axis=1)[:, 0]
        return self.actions.actions(number), taken, {}

    def best(self, predicted: Tensor) -> Tensor:
        """Return the likeliest actions, [N, *shape], of predictions [N, k]: those of ``choose`` without ``rng``."""
        made: Tensor = self.actions.actions(predicted.argmax(dim=1))
        return made

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        """Return the logarithm of the probability of a batch's actions, [B, T], given predictions [B, T, k]."""
        number: Tensor = self.actions.numbers(batch.action)
        return predicted.log_softmax(dim=-1).gather(-1, number.unsqueeze(-1)).squeeze(-1)

    def entropy(self, predicted: Tensor) -> Tensor:
        """Return the entropy, [...], of predictions [..., k]."""
        log_policy = predicted.log_softmax(dim=-1)
        return -(log_policy.exp() * log_policy.masked_fill(log_policy == -math.inf, 0.0)).sum(dim=-1)


class Gaussian:
    """Policy of continuous actions: independent normal distributions, whose deviations are parameters. It has the
    methods of :class:`Categorical`.

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
        return action, density, {RAW: raw}

    def best(self, predicted: Tensor) -> Tensor:
        mean, _ = predicted.chunk(2, dim=-1)
        middle, half = (torch.from_numpy(one).to(mean.device) for one in (self._middle, self._half))
        return within(middle + half * mean.reshape(-1, *self.box.shape), self.box)

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        return normal_log_density(predicted, batch[RAW])

    def entropy(self, predicted: Tensor) -> Tensor:
        _, log_std = predicted.chunk(2, dim=-1)
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)


def policy_for(spaces: Spaces, kind: str) -> Categorical | Gaussian:
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


class Seen(NamedTuple):
    """Steps of a batch as the networks see them now, [B, T] each.

    Attributes:
        log_probability: of the actions that were taken; ``ratio``: of their probability over the behaviour policy's;
            ``entropy``: of the policy. With gradients.
        value: v(s_t), with gradient. ``next_value``: v(s_{t+1}), without.
        ends: after which returns are cut and bootstrap: an episode's last step, or the window's. ``mask``: real steps.
    """

    log_probability: Tensor
    ratio: Tensor
    entropy: Tensor
    value: Tensor
    next_value: Tensor
    ends: Tensor
    mask: Tensor


class ActorCritic(NetworkAgent):
    """Base of actor-critic agents; a subclass computes the ``objectives`` of its policy and its value.

    The two networks share nothing, so that actors are sent the policy alone.
    """

    def build(self) -> None:
        self.distribution = policy_for(self.spaces, self.Settings.kind)
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
            action, log_probability, fields = self.distribution.choose(predicted, self._rng if explore else None)
        return Acted(action, state, {LOG_PROBABILITY: log_probability, **fields})

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        return self.distribution.best(with_legal(predicted, legal_in(self.spaces, obs)))

    # learn

    def see(self, batch: Any) -> Seen:
        """Look at a batch of windows with the present networks."""
        mask: Tensor = batch.mask
        inputs = self.inputs(map_leaves(lambda obs: obs.flatten(0, 1), batch.obs))  # T + 1: the one after the last too
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
        """Compute an update's objectives.

        Returns:
            loss of the policy at each step, with gradient, and targets of the values, without, both float [B, T];
            metrics, scalars by name.
        """

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean over real steps of all that is minimized, and metrics."""
        settings, seen = self.settings, self.see(batch)
        mask, steps = seen.mask, seen.mask.sum()
        policy, target, further = self.objectives(batch, seen)
        value_loss = 0.5 * ((target - seen.value).square() * mask).sum() / steps
        entropy = (seen.entropy * mask).sum() / steps
        policy_loss = (policy * mask).sum() / steps
        loss = policy_loss + settings.value_cost * value_loss - settings.entropy_cost * entropy
        # The mean of ratio - 1 - log ratio estimates the divergence of the policy from the one that acted, and is >= 0.
        moved = ((seen.ratio - 1 - seen.ratio.log()) * mask).sum() / steps
        metrics = {"value_loss": value_loss, "entropy": entropy, "divergence": moved, **further}
        return loss, {name: value.detach() for name, value in metrics.items()}

    def learn(self, batch: Any, step: int) -> Learned:
        self.optimizer.param_groups[0]["lr"] = self.learning_rate(step)
        loss, metrics = self.loss(batch)
        self.minimize(loss, self.policy, self.value)  # clipped apart: a value's errors are of another size
        return Learned(None, {"loss": loss.detach(), **metrics})


@dataclass(frozen=True)
class A2CSettings(ActorCriticSettings):
    kind: ClassVar[str] = "a2c"

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(batch_size=8, length=16, epochs=1))

    trace: float = setting(
        1.0, "lambda of the returns: 0: of one step, 1: of the whole window", LEARNING, at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        once = f"1: {self.kind} does not correct for a policy that has moved on; impala and ppo do"
        expect(self.replay, "epochs", self.replay.epochs == 1, once)


class A2C(ActorCritic):
    """A2C agent: the policy gradient with advantages of n-step returns, or of lambda-returns."""

    Settings = A2CSettings

    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        returns = lambda_returns(batch.step_reward, batch.discount, seen.next_value, seen.ends, self.settings.trace)
        return policy_gradient(seen.log_probability, returns - seen.value), returns, {}


@dataclass(frozen=True)
class A3CSettings(A2CSettings):
    """Settings of A3C: each update is made from one window of one actor."""

    kind: ClassVar[str] = "a3c"

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(batch_size=1, length=32, epochs=1))


class A3C(A2C):
    """A3C agent: learns as A2C, from one window at a time; use it with ``--actors``."""

    Settings = A3CSettings


def policy_gradient(log_probability: Tensor, advantage: Tensor) -> Tensor:
    """Compute the loss -A log pi(a_t | s_t) of each step, whose gradient is the policy gradient. Any shape.

    Source: Williams (1992), Simple statistical gradient-following algorithms, with an advantage in place of the return.
    """
    assert log_probability.shape == advantage.shape, (log_probability.shape, advantage.shape)
    return -advantage.detach() * log_probability
