"""Soft actor-critic: a stochastic policy that maximizes return and entropy, learned off-policy from two critics.

The weight of the entropy, the temperature, is learned too, so that the policy keeps a given entropy. ``TwinCritics``
is the part that TD3 and CrossQ share: scaled actions, an actor and two critics, and losses of these.

Source: Haarnoja et al. (2018), Soft actor-critic algorithms and applications, algorithm 1.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from sharpwave.agents.actions import within
from sharpwave.agents.architectures import networks
from sharpwave.agents.learner import PRECISIONS, NetworkAgent, move_towards
from sharpwave.agents.protocol import Acted, Learned, Obs, Spaces, space_text
from sharpwave.agents.replay import EXPLORATION, LEARNING, NETWORK, TransitionsSettings, UpdateSettings
from sharpwave.configuration import Checked, setting
from sharpwave.extras import Tensor, nn, torch

LOG_STD = (-20.0, 2.0)
"""Bounds of a policy's logarithmic standard deviation, those of Haarnoja et al.'s own code."""


@dataclass(frozen=True)
class TwinCriticsSettings(Checked, UpdateSettings):
    """Settings that agents of continuous actions share; the defaults are those of Haarnoja et al. (2018)."""

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=256))

    network: str = setting(
        "auto", "torso of actor and critics; auto: convolutions over images, none over vectors", NETWORK,
        choices=networks,
    )  # fmt: skip
    hidden_units: int = setting(256, "units of each of the two hidden layers", NETWORK, at_least=1)
    precision: str = setting(
        "float32", "precision of hidden layers; auto: bfloat16 if the CPU supports it", LEARNING, choices=PRECISIONS
    )

    random_steps: int = setting(10_000, "first steps, whose actions are uniformly random", EXPLORATION, at_least=0)

    lr: float = setting(3e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)


class BoxActions:
    """Scaling of continuous actions between the bounds of their space and -1 ... 1, in which agents compute.

    Args:
        spaces: those of the agent: actions that are a Box of floats with bounds.
        kind: the agent's name, for errors.

    Attributes:
        size: numbers of an action.
    Raises:
        ValueError: a space of another kind, or one without bounds.
    """

    def __init__(self, spaces: Spaces, kind: str) -> None:
        space = spaces.action
        if not isinstance(space, Box) or space.dtype.kind != "f":
            raise ValueError(
                f"{kind} needs continuous actions; {spaces.env} has {space_text(space)}; expected a Box of floats. "
                "Discrete actions are learned by dqn and others: sharpwave train gymnasium --env ID"
            )
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ValueError(
                f"{kind}: {spaces.env} has actions from {space.low.tolist()} to {space.high.tolist()}, expected finite "
                "bounds, the lower below the upper; wrap the environment with gymnasium.wrappers.RescaleAction"
            )
        self.size = math.prod(space.shape)
        self._space = space
        self._unscaled = bool((low == -1).all() and (high == 1).all())
        self._centre, self._half = (low + high) / 2, (high - low) / 2

    def actions(self, scaled: Any) -> Any:
        """Return the environment's actions [N, *shape] for float [N, size] in -1 ... 1, an array or a tensor."""
        if not isinstance(scaled, np.ndarray):
            return self._tensor(scaled)
        wide = scaled.reshape(len(scaled), *self._space.shape)
        if not self._unscaled:
            wide = self._centre + self._half * wide
        # Rounding may lead past a bound.
        return wide.astype(self._space.dtype).clip(self._space.low, self._space.high)

    def _tensor(self, scaled: Tensor) -> Tensor:
        wide = scaled.reshape(-1, *self._space.shape)
        if not self._unscaled:
            centre, half = (torch.from_numpy(one).to(scaled.device) for one in (self._centre, self._half))
            wide = centre + half * wide
        return within(wide.to(torch.from_numpy(self._space.low).dtype), self._space)

    def scaled(self, actions: Tensor) -> Tensor:
        """Return float32 [B, size] in -1 ... 1 for actions [B, *shape] of the environment: the inverse."""
        if self._unscaled:
            return actions.flatten(1).float()
        centre, half = (torch.from_numpy(one).to(actions.device) for one in (self._centre, self._half))
        return ((actions - centre) / half).flatten(1).float()


class TwinCritics(NetworkAgent):
    """Agent of an actor and two critics. Actions are scaled to -1 ... 1; the actor's tanh bounds them.

    Attributes:
        OUTPUTS: numbers by which the actor describes each number of an action.
        BETAS: of Adam.
        NORMALIZED: whether networks normalize the inputs of their layers.
    """

    OUTPUTS = 1
    BETAS = (0.9, 0.999)
    NORMALIZED = False

    def build(self) -> None:
        self.actions = BoxActions(self.spaces, self.Settings.kind)
        self.inputs = self.make_inputs()
        self.actor = self.actor_network().to(self.device)
        self.critics: Any = self.critic_network().to(self.device)

    # networks

    def actor_network(self) -> nn.Module:
        """Make a fresh actor: outputs of ``inputs`` -> float32 [B, OUTPUTS * size of an action]."""
        from sharpwave.agents.actor_networks import ActorNetwork

        outputs = self.OUTPUTS * self.actions.size
        return ActorNetwork(self.make_torso(units=0), self.settings.hidden_units, outputs, self.NORMALIZED)

    def critic_network(self) -> nn.Module:
        """Make fresh critics: features of their torso, and scaled actions -> Q [2, B]."""
        from sharpwave.agents.actor_networks import Critics

        units = getattr(self.settings, "critic_units", self.settings.hidden_units)
        return Critics(self.make_torso(units=0), self.actions.size, units, self.NORMALIZED)

    def trained(self) -> dict[str, nn.Module]:
        return {"critics": self.critics, "actor": self.actor}

    def acting(self, explore: bool) -> nn.Module:
        return self.actor

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        # It leaves alone parameters without a gradient, as the actor's where it is updated less often.
        return torch.optim.Adam(parameters, lr=self.settings.lr, betas=self.BETAS, fused=True)

    # act

    def act(self, obs: Obs, state: None, step: int, explore: bool = True) -> Acted:
        if explore and step < self.settings.random_steps:
            lanes = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
            scaled: npt.NDArray[np.floating] = self._rng.uniform(-1.0, 1.0, (lanes, self.actions.size))
        else:
            scaled = self.choose(self.infer(obs)[0], self._rng if explore else None)
        return Acted(self.actions.actions(scaled), state)

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        made: Tensor = self.actions.actions(predicted.chunk(self.OUTPUTS, dim=1)[0].tanh())
        return made

    @abstractmethod
    def choose(self, output: npt.NDArray[np.float32], rng: np.random.Generator | None) -> npt.NDArray[np.floating]:
        """Return scaled actions [N, size] by the actor's output [N, OUTPUTS * size]; without ``rng`` the best ones."""

    # learn

    def value_gradient(self, inputs: Any, action: Tensor, members: int | None = None) -> Tensor:
        """Return the gradient by ``action`` [B, size] of the smaller of the critics' values, float32 [B, size].

        Args:
            members: only so many critics are asked; None: both.
        """
        with torch.no_grad():
            features = self.critics.torso(inputs)
        at = action.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.critics(features, at, members).amin(dim=0).sum(), at)
        return gradient

    def critic_loss(self, q: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over items of both critics' half squared errors, and the mean errors, unweighted, float [B].

        Args:
            q: float [2, B].  targets: float [B].  weights: importance weights, float [B].
        """
        error = targets - q
        loss = (0.5 * weights * error.square()).sum(dim=0).mean()
        return loss, error.detach().mean(dim=0)


@dataclass(frozen=True)
class SACSettings(TwinCriticsSettings):
    """Settings of soft actor-critic; the defaults are those of Haarnoja et al. (2018), table 1."""

    kind: ClassVar[str] = "sac"

    temperature: float | None = setting(
        None, "weight of the entropy beside the reward; empty: it is learned", LEARNING, at_least=0
    )
    target_entropy: float | None = setting(
        None, "entropy, of actions scaled to -1 ... 1, that the temperature keeps up; empty: -1 for each number of an "
        "action", LEARNING,
    )  # fmt: skip
    target_tau: float = setting(
        0.005, "share by which each update moves the target critics", LEARNING, above=0, at_most=1
    )

    def unused(self) -> Iterator[tuple[str, str]]:
        if self.temperature is not None:
            yield "target_entropy", "--set agent.temperature=null"


class SAC(TwinCritics):
    """Soft actor-critic agent. The policy explores by its own noise, and is evaluated without: tanh of the mean."""

    Settings: type[SACSettings] = SACSettings
    OUTPUTS = 2  # mean and logarithm of the standard deviation

    def build(self) -> None:
        super().build()
        self.target: Any = self.target_network()
        self.log_temperature = nn.ParameterList([torch.zeros(1, device=self.device)])
        given = self.settings.target_entropy
        self._target_entropy = -float(self.actions.size) if given is None else given

    def target_network(self) -> nn.Module | None:
        """Make the critics' target network; None: the agent has none."""
        target: nn.Module = self.follower("target", self.critic_network(), self.critics)
        return target

    # act

    def choose(self, output: npt.NDArray[np.float32], rng: np.random.Generator | None) -> npt.NDArray[np.floating]:
        mean, log_std = np.split(output, 2, axis=1)
        if rng is not None:
            mean = mean + np.exp(log_std.clip(*LOG_STD)) * rng.standard_normal(mean.shape, np.float32)
        action: npt.NDArray[np.floating] = np.tanh(mean)
        return action

    # learn

    def draw(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Draw an action of the policy for each item: scaled actions [B, size], and log pi of them [B]."""
        mean, log_std = self.actor(inputs).chunk(2, dim=1)
        return squash(mean, log_std.clamp(*LOG_STD), torch.randn_like(mean))

    def temperature(self) -> Tensor:
        """Return the weight of the entropy, a constant, float32 [1]."""
        given = self.settings.temperature
        return self.log_temperature[0].detach().exp() if given is None else torch.tensor([given], device=self.device)

    def targets(self, batch: Any) -> Tensor:
        assert self.target is not None
        with torch.no_grad():
            inputs = self.inputs(batch.next_obs)
            action, log_prob = self.draw(inputs)
            next_q = self.target(self.target.torso(inputs), action)
            return twin_targets(next_q, -self.temperature() * log_prob, batch.reward, batch.discount)

    def policy_loss(self, action: Tensor, log_prob: Tensor, gradient: Tensor) -> Tensor:
        """Return the loss of the policy, and of the temperature if it is learned.

        Args:
            action, log_prob: of ``draw``, with gradient.  gradient: of the action's value, float [B, size].
        """
        loss = (self.temperature() * log_prob + dpg_loss(action, gradient)).mean()
        if self.settings.temperature is not None:
            return loss
        return loss + temperature_loss(self.log_temperature[0], log_prob, self._target_entropy).mean()

    def learn(self, batch: Any, step: int) -> Learned:
        """Make one update. Critics, policy and temperature move together, each along its gradient at the same weights,
        as in the authors' code."""
        inputs = self.inputs(batch.obs)
        with self.autocast():
            q = self.critics(self.critics.torso(inputs), self.actions.scaled(batch.action))
            action, log_prob = self.draw(inputs)
        with self.autocast():  # of its own: autocast caches rounded weights, and these carry no gradient
            targets = self.targets(batch)
            gradient = self.value_gradient(inputs, action)
        loss, td_error = self.critic_loss(q, targets, batch.weights)
        metrics = {"loss": loss.detach(), **self.policy_metrics(log_prob)}
        self.minimize(loss + self.policy_loss(action, log_prob, gradient))
        assert self.target is not None
        move_towards(self.target, self.critics, self.settings.target_tau)
        return Learned(td_error, metrics)

    def policy_metrics(self, log_prob: Tensor) -> dict[str, Tensor]:
        return {"entropy": -log_prob.detach().mean(), "temperature": self.temperature()}

    # save

    def trained(self) -> dict[str, nn.Module]:
        return {**super().trained(), "log_temperature": self.log_temperature}


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw actions of a Gaussian policy squashed by tanh, and compute their logarithmic densities.

    Args:
        mean, log_std: float [B, n], of the Gaussian, log_std within ``LOG_STD``.
        noise: float [B, n], standard normal.
    Returns:
        actions, float [B, n] in -1 ... 1: a = tanh(u) with u = mean + exp(log_std) * noise; and log pi(a), float [B].
    Source: Haarnoja et al. (2018), Soft actor-critic, appendix C, eq. 21. Of log(1 - tanh(u)^2) this is the form
        2 * (log 2 - u - softplus(-2u)), which is exact where tanh(u) rounds to 1.
    """
    assert mean.ndim == 2 and mean.shape == log_std.shape == noise.shape, (mean.shape, log_std.shape, noise.shape)
    u = mean + log_std.exp() * noise
    each = -0.5 * noise.square() - log_std + 2.0 * (u + nn.functional.softplus(-2.0 * u))
    constant = mean.shape[1] * (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0))
    return u.tanh(), each.sum(dim=1) - constant


def twin_targets(next_q: Tensor, entropy_bonus: Tensor | float, reward: Tensor, discount: Tensor) -> Tensor:
    """Compute the targets of clipped double Q-learning: of all critics' values the smallest, plus an entropy bonus.

    Args:
        next_q: float [K, B], Q_k(s_{t+n}, a') for an action a' of the policy.
        entropy_bonus: float [B], -temperature * log pi(a'); 0: none.
        reward, discount: float [B], the n-step return from t and gamma^n * (1 - terminated).
    Returns:
        float [B].
    Source: Fujimoto et al. (2018), eq. 10; with the bonus Haarnoja et al. (2018), Soft actor-critic algorithms and
        applications, eq. 2-3.
    """
    assert next_q.ndim == 2 and reward.shape == discount.shape == next_q.shape[1:], (next_q.shape, reward.shape)
    return reward + discount * (next_q.amin(dim=0) + entropy_bonus)


def dpg_loss(action: Tensor, dq_da: Tensor) -> Tensor:
    """Compute a loss whose gradient by the action is -dq/da: ascent of the action's value through the action alone.

    So the critics' own gradients, which the policy's update does not need, are never computed.

    Args:
        action: float [B, n], of the policy, with gradient.
        dq_da: float [B, n], gradient of the action's value, a constant.
    Returns:
        float [B]: half the squared distance between the action and the action moved by dq_da.
    Source: Silver et al. (2014), Deterministic policy gradient algorithms, eq. 9; the form is rlax's.
    """
    assert action.ndim == 2 and action.shape == dq_da.shape, (action.shape, dq_da.shape)
    return 0.5 * ((action + dq_da).detach() - action).square().sum(dim=1)


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Compute the loss that raises the temperature where the policy's entropy is below its target.

    Args:
        log_temperature: float, with gradient.
        log_prob: float [B], log pi(a), a constant.
    Returns:
        float [B]: -log_temperature * (log pi(a) + target_entropy).
    Source: Haarnoja et al. (2018), Soft actor-critic algorithms and applications, eq. 18, with the logarithm in place
        of the temperature as in its authors' code: gradients then do not vanish with it.
    """
    return -log_temperature * (log_prob.detach() + target_entropy)
