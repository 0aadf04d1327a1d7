"""Distributions of actions, given what a policy's network predicts: categorical, and Gaussian within bounds.

They draw actions, and compute log-probabilities and entropies; the layers are the network's. Exploring noise may be a
function of the state that is held for several steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from sharpwave.agents.actions import NumberedActions, softmax_actions, within
from sharpwave.agents.protocol import Spaces
from sharpwave.extras import Tensor, nn, torch
from sharpwave.spec import Field

Chosen = tuple[npt.NDArray[Any], npt.NDArray[np.float32], Mapping[str, npt.NDArray[Any]]]

RAW = "raw_action"
"""Step field of the actions that a Gaussian policy drew, before they were clipped to the environment's bounds."""

BOUNDS = ("scaled", "clipped", "squashed")
"""Ways from a Gaussian policy's draws to actions within bounds."""


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
        self._squashed = np.asarray(bounded & (bounds == "squashed"))
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
        values: npt.NDArray[np.float32] = predicted.cpu().numpy()
        mean, log_std = values[:, : self.size], values[:, self.size : 2 * self.size]
        if rng is None:
            noise = np.zeros_like(mean)
        elif held is None:
            noise = np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        else:
            noise = (values[:, 2 * self.size :].reshape(held.noise.shape) * held.noise).sum(axis=1)
        raw = (mean + noise).astype(np.float32, copy=False)
        density = _log_density((raw - mean) * np.exp(-log_std), log_std)
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
    density: Tensor = _log_density((numbers - mean) * (-log_std).exp(), log_std)
    return density


def _log_density(distance: Any, log_std: Any) -> Any:
    """Return the log density [...] of numbers so many deviations from their means [..., n]: arrays or tensors."""
    return (-0.5 * distance * distance - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
