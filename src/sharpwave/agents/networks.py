"""Networks of action values: a torso, layers for the actions, and for IQN an embedding of quantile fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sharpwave.agents.distributions import midpoints

ACTING_FRACTIONS = 32
"""Quantile fractions by which an implicit quantile network acts; K of Dabney et al. (2018)."""


def dueling_combine(value: Tensor, advantage: Tensor, baseline: str = "mean") -> Tensor:
    """Combine value and advantage: Q = V + A - baseline(A).

    Args:
        value: float [B, 1, ...].  advantage: float [B, A, ...].
        baseline: "mean" or "max" of the actions' advantages, or "naive": none, so that V and A are not identifiable.
    Returns:
        float [B, A, ...].
    Source: Wang et al. (2016), Dueling network architectures, eq. 7 (naive), 8 (max), 9 (mean).
    """
    assert value.shape == (advantage.shape[0], 1, *advantage.shape[2:]), (value.shape, advantage.shape)
    if baseline == "naive":
        return value + advantage
    if baseline == "max":
        return value + advantage - advantage.amax(dim=1, keepdim=True)
    return value + advantage - advantage.mean(dim=1, keepdim=True)


class QHead(nn.Module):
    """Hidden layer and output of action values; dueling: two hidden layers in parallel, one for V and one for A.

    The output layers are computed in float32 whatever autocast says: in bfloat16's 8 significant bits the values of
    two actions may become equal.

    Args:
        baseline: dueling: the ``baseline`` of :func:`dueling_combine`.
        outputs: shape of what is predicted of one action: () for its value, (51,) for 51 atoms.
        linear: function, inputs and outputs -> layer: ``nn.Linear`` or a noisy one.
    Attributes:
        units: of the hidden layer, both streams together.
    """

    def __init__(
        self,
        features: int,
        hidden_units: int,
        num_actions: int,
        dueling: bool,
        *,
        baseline: str = "mean",
        outputs: tuple[int, ...] = (),
        linear: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self._outputs, self._baseline, size = outputs, baseline, math.prod(outputs)
        self.units = hidden_units * (2 if dueling else 1)
        self.hidden = linear(features, self.units)  # one product for both streams
        self.advantage = linear(hidden_units, num_actions * size)
        self.value = linear(hidden_units, size) if dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """Map features, float [B, features], to predictions, float32 [B, A, *outputs]."""
        return self.predict(self.hide(features))

    def hide(self, features: Tensor) -> Tensor:
        """Map features to the hidden layer, float [B, hidden units, twice as many when dueling]."""
        hidden: Tensor = self.hidden(features).relu_()
        return hidden

    def predict(self, hidden: Tensor) -> Tensor:
        """Map the hidden layer to predictions."""
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            if self.value is None:
                return self._shaped(self.advantage(hidden))
            for_advantage, for_value = hidden.chunk(2, dim=1)
            value, advantage = self._shaped(self.value(for_value)), self._shaped(self.advantage(for_advantage))
            return dueling_combine(value, advantage, self._baseline)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.unflatten(1, (-1, *self._outputs)) if self._outputs else flat


class Heads(nn.Module):
    """Heads side by side: their predictions, concatenated in the last dimension."""

    def __init__(self, *heads: nn.Module) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, features: Tensor) -> Tensor:
        """Map features, float [B, features], to predictions, float32 [B, sum of the heads' outputs]."""
        return torch.cat([head(features) for head in self.heads], dim=-1)


class QNetwork(nn.Module):
    """Network of a torso and a Q-head on its features."""

    def __init__(self, torso: nn.Module, head: QHead) -> None:
        super().__init__()
        self.torso, self.head = torso, head

    def forward(self, inputs: Tensor | dict[str, Tensor]) -> Tensor:
        """Map the output of the agent's inputs to predictions, float32 [B, A, *outputs]."""
        predicted: Tensor = self.head(self.torso(inputs))
        return predicted


class ImplicitQNetwork(QNetwork):
    """Implicit quantile network: a torso, a Q-head, and between them a product with embedded quantile fractions.

    Args:
        size: of what the embedded fractions are multiplied with.
        behind_hidden: that is the head's hidden layer, which is then computed once for all fractions of an item; else
            it is the torso's features.
    Source: Dabney et al. (2018), Implicit quantile networks, eq. 4: 64 cosines, a linear layer, a ReLU.
    """

    COSINES = 64

    def __init__(self, torso: nn.Module, size: int, head: QHead, behind_hidden: bool = False) -> None:
        super().__init__(torso, head)
        self._behind_hidden = behind_hidden
        self.embedding = nn.Linear(self.COSINES, size)

    def forward(self, inputs: Tensor | dict[str, Tensor], fractions: Tensor | None = None) -> Tensor:
        """Map inputs to quantiles.

        Args:
            fractions: float32 [B, N] in 0 ... 1; None: midpoints of equal intervals, the same for every item.
        Returns:
            float32 [B, A, N].
        """
        features: Tensor = self.torso(inputs)
        if fractions is None:
            fractions = midpoints(ACTING_FRACTIONS, features.device)
        angles = math.pi * torch.arange(self.COSINES, device=features.device)
        embedded: Tensor = self.embedding((fractions.unsqueeze(2) * angles).cos()).relu_()  # [B or 1, N, size]
        product = (self.head.hide(features) if self._behind_hidden else features).unsqueeze(1) * embedded
        predict = self.head.predict if self._behind_hidden else self.head
        quantiles: Tensor = predict(product.flatten(0, 1)).unflatten(0, product.shape[:2])
        return quantiles.transpose(1, 2)


class ValueNetwork(nn.Module):
    """Network of a torso, a hidden layer and one output: V of an observation, or Q of it and an action's vector.

    Args:
        beside: length of the vector that goes in beside the torso's features; 0: none.
    """

    def __init__(self, torso: Any, beside: int, hidden_units: int) -> None:
        super().__init__()
        self.torso = torso
        self.head = nn.Sequential(
            nn.Linear(torso.features + beside, hidden_units), nn.ReLU(), nn.Linear(hidden_units, 1)
        )

    def forward(self, inputs: Tensor | dict[str, Tensor], *beside: Tensor) -> Tensor:
        """Map the output of the agent's inputs, and [B, beside], to float32 [B]."""
        value: Tensor = self.head(torch.cat([self.torso(inputs), *beside], dim=1))
        return value.squeeze(1)
