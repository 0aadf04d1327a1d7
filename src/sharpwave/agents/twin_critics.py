"""What agents of continuous actions share: an actor, two critics, how they are updated, and how they are saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.actions import BoxActions
from sharpwave.agents.architectures import networks
from sharpwave.agents.devices import PRECISIONS, autocast, pick_device, pick_precision
from sharpwave.agents.modules import load_optimizer, load_tensors, optimizer_tensors, tensors_of, to_tensors
from sharpwave.agents.protocol import Acted, Agent, Obs, Rows, Spaces
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.configuration import check, setting

if TYPE_CHECKING:
    import torch
    from gymnasium.spaces import Space
    from torch import Tensor, nn

LEARNING, NETWORK, EXPLORATION = "Learning", "Network", "Exploration"


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


class TwinCritics(Agent):
    """Agent of an actor and two critics. Actions are scaled to -1 ... 1; the actor's tanh bounds them.

    Attributes:
        OUTPUTS: numbers by which the actor describes each number of an action.
        BETAS: of Adam.
    """

    settings: Any
    OUTPUTS = 1
    BETAS = (0.9, 0.999)

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        from sharpwave.agents.inputs import inputs_for

        self.spaces, self.settings = spaces, settings or self.Settings()
        self.device = pick_device(device)
        self.actions = BoxActions(spaces, self.Settings.kind)
        self._precision = pick_precision(self.settings.precision, self.device)
        self._rng = np.random.default_rng(seed)
        self.inputs = inputs_for(spaces.observation, images=self.settings.network != "mlp").to(self.device)
        self.actor = self.actor_network().to(self.device)
        self.critics: Any = self.critic_network().to(self.device)

    @property
    def precision(self) -> str:
        return self._precision

    # networks

    def actor_network(self) -> nn.Module:
        """Make a fresh actor: what ``inputs`` give -> float32 [B, OUTPUTS * size of an action]."""
        from sharpwave.agents.continuous_networks import Actor

        return Actor(self.torso(), self.settings.hidden_units, self.OUTPUTS * self.actions.size)

    def critic_network(self) -> nn.Module:
        """Make fresh critics: features of their torso, and scaled actions -> Q [2, B]."""
        from sharpwave.agents.continuous_networks import Critics

        return Critics(self.torso(), self.actions.size, self.settings.hidden_units)

    def torso(self) -> Any:
        """Make a fresh torso for the observations, without layers for vectors."""
        from sharpwave.agents.torsos import torso_for

        return torso_for(self.spaces.observation, self.settings.network, units=0)

    def trained(self) -> dict[str, nn.Module]:
        """Return the modules that are trained, by the name they are saved under."""
        return {"critics": self.critics, "actor": self.actor}

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam for all that is trained; made on first use, because torch takes a second to import it.

        It leaves alone what had no gradient in an update, as the actor where it is updated less often.
        """
        import torch

        parameters = [one for module in self.trained().values() for one in module.parameters()]
        return torch.optim.Adam(parameters, lr=self.settings.lr, betas=self.BETAS, fused=True)

    def autocast(self) -> AbstractContextManager[Any]:
        """Let hidden layers compute in the settings' precision while inside."""
        return autocast(self.device, self._precision)

    # act

    def act(self, obs: Obs, state: None, step: int, explore: bool = True) -> Acted:
        if explore and step < self.settings.random_steps:
            lanes = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
            scaled: npt.NDArray[np.floating] = self._rng.uniform(-1.0, 1.0, (lanes, self.actions.size))
        else:
            scaled = self.choose(self.infer(obs)[0], self._rng if explore else None)
        return Acted(self.actions.actions(scaled), state)

    @property
    def inference_space(self) -> Space[Any] | None:
        return self.spaces.observation

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return the actor's output, float32 [N, OUTPUTS * size]."""
        import torch

        with torch.inference_mode():
            return (self.actor(self.inputs(to_tensors(obs, self.device))).cpu().numpy(),)

    @abstractmethod
    def choose(self, output: npt.NDArray[np.float32], rng: np.random.Generator | None) -> npt.NDArray[np.floating]:
        """Return scaled actions [N, size] by the actor's output [N, OUTPUTS * size]; without ``rng`` the best ones."""

    # learn

    def replay(self) -> TransitionsSettings:
        settings: TransitionsSettings = self.settings.replay
        return settings

    def value_gradient(self, inputs: Any, action: Tensor, members: int | None = None) -> Tensor:
        """Return the gradient by ``action`` [B, size] of the smaller of the critics' values, float32 [B, size].

        Args:
            members: only so many critics are asked; None: both.
        """
        import torch

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

    def minimize(self, loss: Tensor) -> None:
        """Make one step of the optimizer along the gradient of ``loss``."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def schedules(self, step: int) -> dict[str, float]:
        beta = self.settings.replay.beta(step)
        return {} if beta is None else {"beta": beta}

    # save

    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        tensors = tensors_of({"inputs": self.inputs, "policy": self.actor})
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        load_tensors({"inputs": self.inputs, "policy": self.actor}, tensors)

    def state(self) -> dict[str, Any]:
        return {
            "weights": tensors_of(self.modules()),
            "optimizer": optimizer_tensors(self.optimizer),
            "exploration": self._rng.bit_generator.state,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        load_tensors(self.modules(), state["weights"])
        load_optimizer(self.optimizer, state["optimizer"])
        self._rng.bit_generator.state = state["exploration"]

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules that are saved, by name."""
        return {"inputs": self.inputs, **self.trained()}
