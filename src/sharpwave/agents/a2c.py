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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from gymnasium.spaces import Box

from sharpwave.agents.action_distributions import BOUNDS, Held, policy_for
from sharpwave.agents.actions import legal_in, legal_rows, with_legal
from sharpwave.agents.architectures import networks
from sharpwave.agents.learner import LearningRateSettings, NetworkAgent
from sharpwave.agents.losses import lambda_returns, window_ends
from sharpwave.agents.protocol import Acted, Learned, Obs
from sharpwave.agents.replay import EXPLORATION, LEARNING, NETWORK
from sharpwave.agents.rollouts import LaneOrder, RolloutSettings, WindowUses
from sharpwave.configuration import expect, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field

Objectives = tuple[Tensor, Tensor, Mapping[str, Tensor]]

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

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        if not self.max_grad_norm:
            yield "clip_together", "--max-grad-norm above 0"


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
        if not isinstance(self.spaces.action, Box):
            usual = {one.name: one.default for one in fields(settings)}
            for name in ("action_bounds", "log_std_start", "sde_every"):
                needless = getattr(settings, name) != usual[name]
                expect(settings, name, not needless, f"{usual[name]}: actions are not continuous")
        self.distribution = policy_for(
            self.spaces,
            settings.kind,
            bounds=settings.action_bounds,
            log_std=settings.log_std_start,
            sde_every=settings.sde_every,
        )
        self.inputs = self.running_inputs() if settings.normalize_obs else self.make_inputs()
        self.uses = WindowUses(settings.replay.times_sampled) if settings.normalize_obs else None
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
        return torch.optim.Adam(parameters, lr=self.settings.lr, eps=1e-5, fused=True)

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

    @cached_property
    def clipped(self) -> list[list[nn.Parameter]]:
        """Parameters whose gradients are clipped: each network's, as a value's errors are of another size, or all."""
        networks = [[*network.parameters()] for network in self.trained().values()]
        return [[*chain(*networks)]] if self.settings.clip_together else networks

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
        if self.uses is not None:
            # Only after a window's last epoch: until then its inputs are those of the policy that acted.
            last = torch.from_numpy(self.uses.last(LaneOrder.of_batch(batch))).to(batch.mask.device)
            measured = batch.mask & last.unsqueeze(1)
            if measured.any():
                self.measure(map_leaves(lambda obs: obs[:, :-1][measured], batch.obs))
        return Learned(None, metrics)

    def update(self, batch: Any) -> dict[str, Tensor]:
        """Make the steps of the optimizer from a batch; return metrics."""
        loss, metrics = self.loss(batch)
        self.minimize(loss, *self.clipped)
        return {"loss": loss.detach(), **metrics}

    def rewards(self, batch: Any) -> Tensor:
        """Return the rewards that are learned from, float [B, T]."""
        reward: Tensor = batch.step_reward
        return reward if self.reward_scale is None else self.reward_scale(reward)

    # save

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | ({} if self.reward_scale is None else {"reward_scale": self.reward_scale})

    def state(self) -> dict[str, Any]:
        scaled = {} if self.reward_scale is None else {"returns": self.reward_scale.carried()}
        return super().state() | scaled | ({} if self.uses is None else {"uses": self.uses.carried()})

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        if self.reward_scale is not None:
            self.reward_scale.carry(state["returns"])
        if self.uses is not None:
            self.uses.carry(state["uses"])


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
