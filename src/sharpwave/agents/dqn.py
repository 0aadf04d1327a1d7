"""Deep Q-network with double, dueling, n-step and prioritized learning as options (the last two live in the batch)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sharpwave.agents.averaging import move_towards
from sharpwave.agents.exploration import epsilon_greedy
from sharpwave.agents.losses import double_q_targets, huber, q_targets, squared


class TensorBatch(Protocol):
    """What the agent learns from; :meth:`sharpwave.Batch.torch` returns one.

    Attributes:
        obs, next_obs: [B, ...].  action: int64 [B].  reward: float32 [B], the n-step return.
        discount: float32 [B], gamma^n * (1 - terminated).  weights: float32 [B], importance weights.
    """

    @property
    def obs(self) -> Any: ...
    @property
    def next_obs(self) -> Any: ...
    @property
    def action(self) -> Any: ...
    @property
    def reward(self) -> Any: ...
    @property
    def discount(self) -> Any: ...
    @property
    def weights(self) -> Any: ...


@dataclass(frozen=True)
class DQNSettings:
    """What the update is made of. ``target_tau`` 0: the target is replaced by the caller's :meth:`DQN.update_target`;
    above 0: it moves by that share of the way after every update. ``average_decay`` above 0: the policy that is kept is
    an exponential mean of the online network, of which every update keeps so much."""

    double: bool = True
    loss: str = "huber"
    huber_delta: float = 1.0
    learning_rate: float = 2.5e-4
    adam_eps: float = 1.5e-4
    max_grad_norm: float = 10.0
    target_tau: float = 0.0
    average_decay: float = 0.0
    precision: str = "float32"


@dataclass(frozen=True)
class Learned:
    """Of one update. td_errors: float32 [B], target minus value, signed. loss: float32 [], weighted mean."""

    td_errors: Tensor
    loss: Tensor


def pick_device(name: str) -> torch.device:
    """ "auto" -> CUDA where there is a device, else the CPU; any other name as torch knows it.

    Raises:
        ValueError: a name torch does not know, or CUDA asked for where there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: got {name!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:0'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: got {name!r}, but torch sees no CUDA device here; use 'auto' or 'cpu'")
    return device


class DQN:
    """Online and target network and the optimizer: acts, learns, and can be saved.

    The online network explores and learns. The *policy*, which is measured and kept, is its exponential mean where
    there is one: single networks on the way differ in what they have just forgotten.

    Args:
        build: makes a fresh network; called twice.
        num_actions: A.
        device: where the networks live.
        inputs: turns stored observations into what the networks take; nothing in it learns.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        num_actions: int,
        settings: DQNSettings | None = None,
        device: torch.device | str = "cpu",
        inputs: nn.Module | None = None,
    ) -> None:
        self.settings = settings or DQNSettings()
        self.device = torch.device(device)
        self.num_actions = num_actions
        self.inputs = (inputs or nn.Identity()).to(self.device)
        self.online = build().to(self.device)
        self.target = build().to(self.device)
        self.target.requires_grad_(False)
        self.update_target()
        self.average = copy.deepcopy(self.target) if self.settings.average_decay > 0 else None
        if self.settings.loss not in ("huber", "mse"):
            raise ValueError(f"loss: got {self.settings.loss!r}, expected 'huber' or 'mse'")

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam over the online network; made when it is needed, because torch takes a second to load what it uses."""
        return torch.optim.Adam(
            self.online.parameters(), lr=self.settings.learning_rate, eps=self.settings.adam_eps, fused=True
        )

    @torch.inference_mode()
    def act(
        self, obs: npt.NDArray[Any], epsilon: float | npt.NDArray[np.float64], rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """Epsilon-greedy actions int64 [N] for observations [N, ...]."""
        if np.min(epsilon) >= 1.0:  # the network's opinion would not be asked for
            return epsilon_greedy(np.zeros(len(obs), np.int64), self.num_actions, epsilon, rng)
        with self._autocast():
            q = self.online(self.inputs(torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)))
        return epsilon_greedy(q.argmax(dim=1).cpu().numpy(), self.num_actions, epsilon, rng)

    @torch.inference_mode()
    def values(self, obs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Q of the online network, float32 [N, A], for observations [N, ...]."""
        with self._autocast():
            q = self.online(self.inputs(torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)))
        values: npt.NDArray[np.float32] = q.float().cpu().numpy()
        return values

    def learn(self, batch: TensorBatch) -> Learned:
        """One gradient step on the weighted mean of the items' losses.

        Args:
            batch: tensors on the agent's device.
        Returns:
            the temporal-difference errors, unweighted, in the batch's order.
        """
        settings = self.settings
        with self._autocast():
            # First: autocast may reuse weights it rounded in a pass without gradient, and those carry none.
            q = self.online(self.inputs(batch.obs)).float()
            with torch.no_grad():
                # A pass of its own for s': joined with s it is carried through the backward pass.
                next_inputs = self.inputs(batch.next_obs)
                next_q_online = self.online(next_inputs).float() if settings.double else None
                next_q = self.target(next_inputs).float()
        if next_q_online is not None:
            targets = double_q_targets(next_q, next_q_online, batch.reward, batch.discount)
        else:
            targets = q_targets(next_q, batch.reward, batch.discount)
        td_errors = targets - q.gather(1, batch.action.view(-1, 1)).squeeze(1)
        losses = huber(td_errors, settings.huber_delta) if settings.loss == "huber" else squared(td_errors)
        loss = (batch.weights * losses).mean()

        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if settings.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(self.online.parameters(), settings.max_grad_norm)
        self.optimizer.step()
        if settings.target_tau > 0:
            self.update_target(settings.target_tau)
        if self.average is not None:
            move_towards(self.average, self.online, 1.0 - settings.average_decay)
        return Learned(td_errors.detach(), loss.detach())

    def update_target(self, tau: float = 1.0) -> None:
        """target <- target + tau * (online - target); 1 copies."""
        move_towards(self.target, self.online, tau)

    def set_learning_rate(self, rate: float) -> None:
        """Of the updates from now on."""
        self.optimizer.param_groups[0]["lr"] = rate

    def policy_weights(self) -> dict[str, Tensor]:
        """A copy of what playing takes, by name ("inputs.*", "policy.*"): of the mean network where there is one."""
        modules = {"inputs": self.inputs, "policy": self.online if self.average is None else self.average}
        return {
            f"{part}.{name}": tensor.detach().cpu().clone()
            for part, module in modules.items()
            for name, tensor in module.state_dict().items()
        }

    def player(self, weights: Mapping[str, Tensor]) -> DQN:
        """An agent of its own that acts by ``weights``, which :meth:`policy_weights` gave; not meant to learn.

        Raises:
            ValueError: names or shapes of another network.
        """
        player = copy.copy(self)
        player.inputs, player.online, player.average = copy.deepcopy(self.inputs), copy.deepcopy(self.online), None
        _load(player.inputs, "inputs", weights)
        _load(player.online, "policy", weights)
        return player

    def weights(self) -> dict[str, Tensor]:
        """Tensors of the inputs and the networks by name ("inputs.*", "online.*", "target.*", "average.*")."""
        return {
            f"{part}.{name}": tensor for part, module in self._parts() for name, tensor in module.state_dict().items()
        }

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Inverse of :meth:`weights`.

        Raises:
            ValueError: names or shapes of another network.
        """
        for part, module in self._parts():
            _load(module, part, weights)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Adam's moments and step counts by name ("<parameter's index>.<name>")."""
        state = self.optimizer.state_dict()["state"]
        return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}

    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of :meth:`optimizer_tensors`."""
        parameters = list(self.online.parameters())
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            index, name = key.split(".", 1)
            parameter = parameters[int(index)]
            # Laid out as the parameter (channels last): Adam's fused kernel pairs elements by where they lie.
            copy = torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor.clone()
            state.setdefault(int(index), {})[name] = copy
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _parts(self) -> tuple[tuple[str, nn.Module], ...]:
        parts = ("inputs", self.inputs), ("online", self.online), ("target", self.target)
        return parts if self.average is None else (*parts, ("average", self.average))

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def _load(module: nn.Module, part: str, weights: Mapping[str, Tensor]) -> None:
    """Into ``module`` the tensors whose names begin with ``part`` and a dot."""
    own = {name.removeprefix(f"{part}."): tensor for name, tensor in weights.items() if name.startswith(f"{part}.")}
    try:
        module.load_state_dict(own)
    except RuntimeError as error:
        raise ValueError(f"weights do not fit the agent's {part} module: {error}") from error
