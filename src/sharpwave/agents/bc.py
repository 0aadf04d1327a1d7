"""Behaviour cloning: a policy that is trained to do what the data did, and the baseline of learning offline.

It needs no rewards and asks for no better actions than the data have. Numbered actions are learned by their
probabilities and the likeliest is made; continuous ones by their mean.

Source: Pomerleau (1991), Efficient training of artificial neural networks for autonomous navigation.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium.spaces import Box

from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.architectures import networks
from sharpwave.agents.averaging import move_towards
from sharpwave.agents.devices import pick_device
from sharpwave.agents.legal import legal_in, legal_rows, with_legal
from sharpwave.agents.losses import action_cross_entropy, imitation_error
from sharpwave.agents.modules import load_optimizer, load_tensors, optimizer_tensors, tensors_of, to_tensors
from sharpwave.agents.offline import OfflineSettings
from sharpwave.agents.protocol import Acted, Agent, Learned, Obs, Spaces
from sharpwave.agents.replay import PairsSettings, TransitionsSettings
from sharpwave.configuration import check, setting

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import Tensor, nn

LEARNING, NETWORK = "Learning", "Network"


@dataclass(frozen=True)
class BCSettings(OfflineSettings):
    """Settings of behaviour cloning."""

    kind: ClassVar[str] = "bc"

    replay: PairsSettings | TransitionsSettings = field(default_factory=PairsSettings)

    network: str = setting("auto", "torso of the policy; auto: by the observation", NETWORK, choices=networks)
    hidden_units: int = setting(128, "units of each hidden layer", NETWORK, at_least=1)
    standardize: bool = setting(
        False, "vectors of observations: subtract their mean in the data and divide by their deviation", NETWORK
    )

    lr: float = setting(1e-3, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    weight_decay: float = setting(0.0, "decay of the weights, as of AdamW", LEARNING, at_least=0)
    average_decay: float = setting(
        0.0,
        "decay of the exponential mean of the policy's weights over updates, which acts; 0: the weights themselves",
        LEARNING,
        at_least=0,
        below=1,
    )

    def __post_init__(self) -> None:
        check(self)


class BC(Agent):
    """Behaviour cloning agent: one network, the mean of its weights that acts, and the optimizer. It never explores.

    Where a small error grows from step to step until the episode ends, policies that are a few updates apart may play
    very differently. The mean of their weights varies less.
    """

    Settings: type[BCSettings] = BCSettings
    FIRST_LOOK = 4096
    """Items of the data by which vectors are standardized."""

    def __init__(
        self, spaces: Spaces, settings: BCSettings | None = None, device: torch.device | str = "cpu", seed: Any = 0
    ) -> None:
        from sharpwave.agents.inputs import inputs_for

        self.spaces, self.settings = spaces, settings or self.Settings()
        self.device = pick_device(device)
        self.box = spaces.action if isinstance(spaces.action, Box) else None
        self.numbered = None if self.box is not None else NumberedActions(spaces, self.Settings.kind)
        images, standardize = self.settings.network != "mlp", self.settings.standardize
        self.inputs = inputs_for(spaces.seen, images, standardize).to(self.device)
        self.policy = self.network().to(self.device)
        self.average = copy.deepcopy(self.policy).requires_grad_(False)

    # network

    def network(self) -> nn.Module:
        """Make a fresh network: what ``inputs`` give -> logits [B, A], or the mean of continuous actions [B, size]."""
        from torch import nn

        from sharpwave.agents.torsos import torso_for

        units = self.settings.hidden_units
        torso = torso_for(self.spaces.seen, self.settings.network, units)
        outputs = math.prod(self.box.shape) if self.numbered is None else self.numbered.count  # type: ignore[union-attr]
        return nn.Sequential(torso, nn.Linear(torso.features, units), nn.ReLU(), nn.Linear(units, outputs))

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW for the network; made on first use, because torch takes a second to import it."""
        import torch

        settings = self.settings
        return torch.optim.AdamW(
            self.policy.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True
        )

    # act

    def act(self, obs: Obs, state: None, step: int, explore: bool = True) -> Acted:
        import torch

        with torch.inference_mode():
            predicted: npt.NDArray[np.float32] = self.average(self.inputs(to_tensors(obs, self.device))).cpu().numpy()
        if self.numbered is not None:
            predicted = legal_rows(predicted, legal_in(self.spaces, obs))
            return Acted(self.numbered.actions(predicted.argmax(axis=1)), state)
        assert self.box is not None
        action = predicted.reshape(len(predicted), *self.box.shape).clip(self.box.low, self.box.high)
        return Acted(action.astype(self.box.dtype, copy=False), state)

    # learn

    def replay(self) -> PairsSettings | TransitionsSettings:
        return self.settings.replay

    @property
    def first_look(self) -> int:
        from sharpwave.agents.inputs import measured

        return self.FIRST_LOOK if measured(self.inputs) else 0

    def prepare(self, batch: Any) -> None:
        from sharpwave.agents.inputs import measure_vectors

        measure_vectors(self.inputs, batch.obs)

    def imitation(self, inputs: Any, batch: Any) -> Tensor:
        """Compute the loss of each item, float [B]: cross entropy of numbered actions, squared error of others.

        Args:
            inputs: of the batch's observations.
        """
        predicted = self.policy(inputs)
        if self.numbered is not None:
            action = self.numbered.numbers(batch.action)
            return action_cross_entropy(with_legal(predicted, legal_in(self.spaces, batch.obs), action), action)
        return imitation_error(predicted, batch.action.flatten(1).to(predicted.dtype))

    def learn(self, batch: Any, step: int) -> Learned:
        loss = self.imitation(self.inputs(batch.obs), batch).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.follow(step)
        return Learned(None, {"loss": loss.detach()})

    def follow(self, step: int) -> None:
        """Move the mean that acts: of all updates so far while they are few."""
        move_towards(self.average, self.policy, max(1.0 - self.settings.average_decay, 1.0 / (1.0 + step)))

    # save

    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        tensors = tensors_of({"inputs": self.inputs, "policy": self.average})
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        load_tensors({"inputs": self.inputs, "policy": self.average}, tensors)

    def state(self) -> dict[str, Any]:
        return {"weights": tensors_of(self.modules()), "optimizer": optimizer_tensors(self.optimizer)}

    def load(self, state: Mapping[str, Any]) -> None:
        load_tensors(self.modules(), state["weights"])
        load_optimizer(self.optimizer, state["optimizer"])

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules that are saved, by name."""
        return {"inputs": self.inputs, "policy": self.policy, "average": self.average}
