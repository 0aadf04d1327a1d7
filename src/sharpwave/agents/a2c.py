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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from sharpwave.agents.actions import NumberedActions, legal_in, legal_rows, softmax_actions, with_legal, within
from sharpwave.agents.architectures import networks
from sharpwave.agents.learner import LearningRateSettings, NetworkAgent
from sharpwave.agents.losses import lambda_returns, window_ends
from sharpwave.agents.protocol import Acted, Learned, Obs, Spaces
from sharpwave.agents.replay import EXPLORATION, LEARNING, NETWORK
from sharpwave.agents.rollouts import LaneOrder, RolloutSettings
from sharpwave.configuration import expect, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field

Chosen = tuple[npt.NDArray[Any], npt.NDArray[np.float32], Mapping[str, npt.NDArray[Any]]]
Objectives = tuple[Tensor, Tensor, Mapping[str, Tensor]]

RAW = "raw_action"
"""Step field of the actions that a Gaussian policy drew, before they were clipped to the environment's bounds."""


BOUNDS = ("scaled", "clipped", "squashed")
"""Ways from a Gaussian policy's draws to actions within bounds."""

LOG_PROBABILITY = "log_probability"
"""Step field of the log-probability of the action by the policy that acted."""


@dataclass(frozen=True)
class ActorCriticSettings(LearningRateSettings):
    """Settings that all actor-critic agents have."""

    kind: ClassVar[str]

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(epochs=1))

    network: str = setting("auto", "torso of both networks; auto: by the observation", NETWORK, choices=networks)
    hidden_units: int = setting(128, "units of the hidden layer", NETWORK, at_least=1)
    activation: str = setting("relu", "function of layers over vectors", NETWORK, choices=("relu", "tanh"))
    orthogonal: bool = setting(
        False,
        "orthogonal initial weights: gain sqrt(2), .01 of the policy's last layer and 1 of the value's; biases 0",
        NETWORK,
    )
    normalize_obs: bool = setting(
        False, "vectors: subtract the running mean of observations and divide by their deviation", NETWORK
    )
    action_bounds: str = setting(
        "scaled",
        "continuous actions; scaled: draws of -1 ... 1 span the bounds, others are clipped; clipped: draws are the "
        "actions, within the bounds; squashed: the tanh of a draw, scaled to the bounds",
        NETWORK,
        choices=BOUNDS,
    )
    log_std_start: float = setting(0.0, "continuous actions: logarithm of the initial deviation of draws", NETWORK)
    sde_every: int = setting(
        0,
        "continuous actions: steps between draws of state-dependent exploration, whose noise is a function of the last "
        "hidden layer; 0: independent noise at every step",
        EXPLORATION,
        at_least=0,
    )

    normalize_reward: bool = setting(
        False, "divide rewards by the running deviation of discounted returns; clipped at 10", LEARNING
    )
    value_cost: float = setting(0.5, "weight of the value's squared error in the loss", LEARNING, at_least=0)
    entropy_cost: float = setting(
        0.01, "weight of the policy's entropy, which keeps it exploring", LEARNING, at_least=0
    )
    optimizer: str = setting("adam", "optimizer", LEARNING, choices=("adam", "rmsprop"))
    max_grad_norm: float = setting(
        0.5, "gradients of each network are clipped to this norm; 0: never", LEARNING, at_least=0
    )
    clip_together: bool = setting(False, "clip the gradients of both networks as one vector", LEARNING)


class Held(NamedTuple):
    """Acting state of a policy that holds its noise for several steps.

    Attributes:
        noise: float32 [lanes, features, n], standard normal.  age: actions that were chosen by it.
    """

    noise: npt.NDArray[np.float32]
    age: int


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

    def held(self, state: Held | None, lanes: int, rng: np.random.Generator) -> Held | None:
        """Return the noise of the next actions, given that of the last; None: it is drawn with each action."""
        return None

    def choose(self, predicted: Tensor, rng: np.random.Generator | None, held: Held | None = None) -> Chosen:
        """Draw an action for each of predictions [N, k]; without ``rng`` take the likeliest.

        Args:
            held: noise of ``held``, if it is not drawn here.
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

    It is over raw numbers, from which ``bounds`` says how actions between finite bounds are made; elsewhere they are
    the actions. The environment gets them within its bounds, but the density is that of the numbers before, so these
    are stored too. Ratios of densities are those of the actions, also of squashed ones, whose Jacobian cancels.

    Args:
        bounds: of ``BOUNDS``: -1 ... 1 is the range of actions; or the numbers are the actions; or their tanh is scaled
            to the range.
        log_std: initial logarithm of the deviations.
        sde_every: actions that share a draw of state-dependent noise, which is a random linear function of the last
            hidden layer (Raffin, Kober and Stulp 2021, Smooth exploration for robotic reinforcement learning); 0:
            independent noise.
    """

    def __init__(self, box: Box, bounds: str = "scaled", log_std: float = 0.0, sde_every: int = 0) -> None:
        self.box, self.size, self._log_std, self._sde_every = box, math.prod(box.shape), log_std, sde_every
        low, high = box.low.astype(np.float32), box.high.astype(np.float32)
        bounded = np.isfinite(low) & np.isfinite(high) & (bounds != "clipped")
        self._squashed = bounded & (bounds == "squashed")
        self._middle, self._half = np.zeros_like(low), np.ones_like(low)
        self._middle[bounded] = (low[bounded] + high[bounded]) / 2
        self._half[bounded] = (high[bounded] - low[bounded]) / 2

    def head(self, features: int) -> nn.Module:
        from sharpwave.agents.actor_networks import GaussianHead, StateNoiseHead

        self._features = features
        return (StateNoiseHead if self._sde_every else GaussianHead)(features, self.size, self._log_std)

    def step_fields(self) -> dict[str, Field]:
        return {RAW: Field((self.size,), "float32")}

    def held(self, state: Held | None, lanes: int, rng: np.random.Generator) -> Held | None:
        if not self._sde_every:
            return None
        if state is None or state.age == self._sde_every:
            state = Held(rng.standard_normal((lanes, self._features, self.size), np.float32), 0)
        return state._replace(age=state.age + 1)

    def choose(self, predicted: Tensor, rng: np.random.Generator | None, held: Held | None = None) -> Chosen:
        normal = predicted[:, : 2 * self.size]
        mean, log_std = (part.cpu().numpy() for part in normal.chunk(2, dim=-1))
        if rng is None:
            noise = np.zeros_like(mean)
        elif held is None:
            noise = np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        else:
            noise = (predicted[:, 2 * self.size :].cpu().numpy().reshape(held.noise.shape) * held.noise).sum(axis=1)
        raw = (mean + noise).astype(np.float32, copy=False)
        density = normal_log_density(normal, torch.from_numpy(raw).to(predicted.device)).cpu().numpy()
        numbers = raw.reshape(-1, *self.box.shape)
        if self._squashed.any():
            numbers = np.where(self._squashed, np.tanh(numbers), numbers)
        wide = self._middle + self._half * numbers
        action = wide.clip(self.box.low, self.box.high).astype(self.box.dtype, copy=False)
        return action, density, {RAW: raw}

    def best(self, predicted: Tensor) -> Tensor:
        mean = predicted[:, : self.size].reshape(-1, *self.box.shape)
        middle, half, squashed = (
            torch.from_numpy(one).to(mean.device) for one in (self._middle, self._half, self._squashed)
        )
        return within(middle + half * torch.where(squashed, mean.tanh(), mean), self.box)

    def log_probability(self, predicted: Tensor, batch: Any) -> Tensor:
        return normal_log_density(predicted[..., : 2 * self.size], batch[RAW])

    def entropy(self, predicted: Tensor) -> Tensor:
        log_std = predicted[..., self.size : 2 * self.size]
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)


def policy_for(spaces: Spaces, kind: str, **gaussian: Any) -> Categorical | Gaussian:
    """Return the policy for a space of actions: Gaussian for Box, categorical for numbered actions.

    Args:
        gaussian: arguments of a :class:`Gaussian` beside the space.

    Raises:
        ValueError: a space of another kind; ``kind`` is the agent's name in it.
    """
    if isinstance(spaces.action, Box):
        return Gaussian(spaces.action, **gaussian)
    return Categorical(NumberedActions(spaces, kind))


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


def flat(obs: Any) -> Any:
    """Return observations [B, T, ...] of windows as [B * T, ...]."""
    return map_leaves(lambda one: one.flatten(0, 1), obs)


class ActorCritic(NetworkAgent):
    """Base of actor-critic agents; a subclass computes the ``objectives`` of its policy and its value.

    The two networks share nothing, so that actors are sent the policy alone.
    """

    def build(self) -> None:
        settings = self.settings
        self.distribution = policy_for(
            self.spaces,
            settings.kind,
            bounds=settings.action_bounds,
            log_std=settings.log_std_start,
            sde_every=settings.sde_every,
        )
        self.inputs = self.running_inputs() if settings.normalize_obs else self.make_inputs()
        self.reward_scale: Any = None
        if settings.normalize_reward:
            from sharpwave.agents.normalization import ReturnScale

            self.reward_scale = ReturnScale(settings.replay.gamma).to(self.device)
        self.policy, self.value = (network.to(self.device) for network in self.networks())

    # networks

    def networks(self) -> tuple[nn.Module, nn.Module]:
        """Make fresh networks over ``inputs``: predictions of the policy [B, k], and values [B, 1]."""
        from sharpwave.agents.actor_networks import SMALL

        return self.network_of(self.distribution.head, SMALL), self.network_of(lambda units: nn.Linear(units, 1), 1.0)

    def network_of(self, head: Callable[[int], nn.Module], gain: float) -> nn.Module:
        """Make a fresh network: a torso, a hidden layer, and a head over so many units.

        Args:
            gain: of the head's weights, where they begin orthogonal.
        """
        from sharpwave.agents.networks import orthogonal, with_tanh

        settings, units = self.settings, self.settings.hidden_units
        last, torso = head(units), self.make_torso(units)
        network = nn.Sequential(torso, nn.Linear(torso.features, units), nn.ReLU(), last)
        if settings.activation == "tanh":
            with_tanh(network)
        if settings.orthogonal:
            network[:-1].apply(partial(orthogonal, gain=math.sqrt(2)))
            last.apply(partial(orthogonal, gain=gain))
        return network

    def trained(self) -> dict[str, nn.Module]:
        return {"policy": self.policy, "value": self.value}

    def acting(self, explore: bool) -> nn.Module:
        return self.policy

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.settings.optimizer == "rmsprop":  # with the constants of Mnih et al. (2016), section 8
            return torch.optim.RMSprop(parameters, lr=self.settings.lr, alpha=0.99, eps=1e-5)
        return torch.optim.Adam(parameters, lr=self.settings.lr, eps=1e-5)

    # act

    def step_fields(self) -> dict[str, Field]:
        return {LOG_PROBABILITY: Field((), "float32"), **self.distribution.step_fields()}

    def act(self, obs: Obs, state: Held | None, step: int, explore: bool = True) -> Acted:
        with torch.inference_mode():
            predicted = torch.from_numpy(legal_rows(self.infer(obs)[0], legal_in(self.spaces, obs)))
            if explore:
                state = self.distribution.held(state, len(predicted), self._rng)
            action, log_probability, fields = self.distribution.choose(predicted, self._rng if explore else None, state)
        return Acted(action, state, {LOG_PROBABILITY: log_probability, **fields})

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        return self.distribution.best(with_legal(predicted, legal_in(self.spaces, obs)))

    # learn

    def clipped(self) -> list[nn.Module]:
        """Return the modules whose gradients are clipped: apart, as a value's errors are of another size, or as one."""
        networks = [self.policy, self.value]
        return [nn.ModuleList(networks)] if self.settings.clip_together else networks

    def see(self, batch: Any) -> Seen:
        """Look at a batch of windows with the present networks."""
        mask: Tensor = batch.mask
        inputs = self.inputs(flat(batch.obs))  # T + 1: the one after the last too
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
        if self.reward_scale is not None:
            ended = (batch.terminated | batch.truncated).any(dim=1).cpu().numpy()
            reward = batch.step_reward.double().cpu().numpy()
            self.reward_scale.observe(LaneOrder.of_batch(batch), reward, ended)
        metrics = self.update(batch)
        if self.settings.normalize_obs:  # afterwards: until now the policy was the one that acted
            self.measure(map_leaves(lambda obs: obs[:, :-1][batch.mask], batch.obs))
        return Learned(None, metrics)

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Make the steps of the optimizer from a batch; return metrics."""
        loss, metrics = self.loss(batch)
        self.minimize(loss, *self.clipped())
        return {"loss": loss.detach(), **metrics}

    def rewards(self, batch: Any) -> Tensor:
        """Return the rewards that are learned from, float [B, T]."""
        reward: Tensor = batch.step_reward
        return reward if self.reward_scale is None else self.reward_scale(reward)

    # save

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | ({} if self.reward_scale is None else {"reward_scale": self.reward_scale})

    def state(self) -> dict[str, Any]:
        return super().state() | ({} if self.reward_scale is None else {"returns": self.reward_scale.carried()})

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        if self.reward_scale is not None:
            self.reward_scale.carry(state["returns"])


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
        returns = lambda_returns(self.rewards(batch), batch.discount, seen.next_value, seen.ends, self.settings.trace)
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
