"""Base of agents of continuous actions: scaled actions, an actor and two critics, and their updates."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from sharpwave.agents.architectures import networks
from sharpwave.agents.lazy_torch import nn, torch
from sharpwave.agents.learner import PRECISIONS, NetworkAgent
from sharpwave.agents.protocol import Acted, Obs, Spaces, space_text
from sharpwave.agents.replay import EXPLORATION, LEARNING, NETWORK, TransitionsSettings
from sharpwave.configuration import check, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TwinCriticsSettings:
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

    def __post_init__(self) -> None:
        check(self)


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

    def actions(self, scaled: npt.NDArray[np.floating]) -> npt.NDArray[Any]:
        """Return the environment's actions [N, *shape] for float [N, size] in -1 ... 1."""
        wide = scaled.reshape(len(scaled), *self._space.shape)
        if not self._unscaled:
            wide = self._centre + self._half * wide
        # Rounding may lead past a bound.
        return wide.astype(self._space.dtype).clip(self._space.low, self._space.high)

    def scaled(self, actions: Tensor) -> Tensor:
        """Return float32 [B, size] in -1 ... 1 for actions [B, *shape] of the environment: the inverse."""
        if self._unscaled:
            return actions.flatten(1).float()
        centre, half = (
            torch.from_numpy(self._centre).to(actions.device),
            torch.from_numpy(self._half).to(actions.device),
        )
        return ((actions - centre) / half).flatten(1).float()


class TwinCritics(NetworkAgent):
    """Agent of an actor and two critics. Actions are scaled to -1 ... 1; the actor's tanh bounds them.

    Attributes:
        OUTPUTS: numbers by which the actor describes each number of an action.
        BETAS: of Adam.
    """

    OUTPUTS = 1
    BETAS = (0.9, 0.999)

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        super().__init__(spaces, settings, device, seed)
        self.actions = BoxActions(spaces, self.Settings.kind)
        self.inputs = self.make_inputs()
        self.actor = self.actor_network().to(self.device)
        self.critics: Any = self.critic_network().to(self.device)

    # networks

    def actor_network(self) -> nn.Module:
        """Make a fresh actor: outputs of ``inputs`` -> float32 [B, OUTPUTS * size of an action]."""
        from sharpwave.agents.actor_networks import ActorNetwork

        return ActorNetwork(self.make_torso(units=0), self.settings.hidden_units, self.OUTPUTS * self.actions.size)

    def critic_network(self) -> nn.Module:
        """Make fresh critics: features of their torso, and scaled actions -> Q [2, B]."""
        from sharpwave.agents.actor_networks import Critics

        return Critics(self.make_torso(units=0), self.actions.size, self.settings.hidden_units)

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
