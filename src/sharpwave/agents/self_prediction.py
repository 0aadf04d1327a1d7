"""Self-prediction: a model predicts the features of the next steps from those of an observation and the actions after
it, so that a torso learns what actions change even where rewards are rare.

Features are kept between 0 and 1 by each item's least and largest. They are compared behind the first layer of the
Q-head, whose weights the loss trains, too. Targets are those of the target network.

Steps behind an episode's end have no loss, but the model's batch normalization counts them, as in the authors' code.

Source: Schwarzer et al. (2021), Data-efficient reinforcement learning with self-predictive representations (SPR).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sharpwave.agents.networks import ImageTorso, QHead
from sharpwave.nesting import map_leaves

SPARE_RANGE = 1e-5
"""Added to the range of an item's features, so that equal ones are not divided by 0."""


class Renormalized(nn.Module):
    """Torso whose features are renormalized.

    Attributes:
        features: n.  maps: channels, rows and columns of the last convolution.
    """

    def __init__(self, torso: ImageTorso) -> None:
        super().__init__()
        self.torso, self.features, self.maps = torso, torso.features, torso.maps

    def forward(self, frames: Tensor) -> Tensor:
        """Map float [B, channels, H, W] to [B, n], each item's from 0 to 1."""
        return renormalized(self.torso(frames))


class SelfPrediction(nn.Module):
    """Model of the next steps' features, and a layer that predicts their projections.

    Args:
        maps: channels, rows and columns that make up the features, channels last.
        actions: number of actions.
        units: of projections.
    """

    def __init__(self, maps: tuple[int, int, int], actions: int, units: int) -> None:
        super().__init__()
        channels, self._rows, self._columns = maps
        self._actions = actions
        self.transition = nn.Sequential(
            nn.Conv2d(channels + actions, channels, 3, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(channels, track_running_stats=False),  # never used but to learn: a batch's own statistics
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
        )
        self.transition.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.predictor = nn.Linear(units, units)

    def forward(self, features: Tensor, action: Tensor, head: QHead) -> Tensor:
        """Predict the projections of the next steps.

        Args:
            features: float [B, n], renormalized.
            action: int64 [B, K], numbers of the actions from those features on.
            head: of the network that the features are of.
        Returns:
            float [B, K, units].
        """
        reached = []
        for taken in action.T:
            features = self._next(features, taken)
            reached.append(features)
        predicted: Tensor = self.predictor(projected(head, torch.stack(reached, dim=1)))
        return predicted

    def _next(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the features after one action."""
        maps = features.unflatten(1, (self._rows, self._columns, -1)).permute(0, 3, 1, 2)
        planes = nn.functional.one_hot(action, self._actions).to(maps.dtype)[:, :, None, None]
        planes = planes.expand(-1, -1, self._rows, self._columns)
        found: Tensor = self.transition(torch.cat([maps, planes], dim=1))
        return renormalized(found.permute(0, 2, 3, 1).flatten(1))


def renormalized(features: Tensor) -> Tensor:
    """Scale features [B, n] to 0 ... 1, each item's by its least and largest.

    Source: Schrittwieser et al. (2020), MuZero, appendix G; Schwarzer et al. (2021), appendix.
    """
    least, largest = features.aminmax(dim=1, keepdim=True)
    return (features - least) / (largest - least + SPARE_RANGE)


def projected(head: QHead, features: Tensor) -> Tensor:
    """Return the first layer of a Q-head, float [..., units], before its ReLU and without noise on its weights."""
    layer: Any = head.hidden
    return nn.functional.linear(features, layer.weight, layer.bias)


def prediction_losses(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Compute the sum over steps of 1 - cos(predicted, target): 0 where all point the same way.

    Args:
        predicted, target: float [B, K, units].
        mask: bool [B, K], steps of the item's episode; others are not in the sum.
    Returns:
        float32 [B].
    Source: Schwarzer et al. (2021), eq. 4, plus the number of steps.
    """
    assert predicted.shape == target.shape and mask.shape == predicted.shape[:2], (predicted.shape, target.shape)
    alike = nn.functional.cosine_similarity(predicted.float(), target.float(), dim=2)
    return ((1 - alike) * mask).sum(dim=1)


def first_transitions(batch: Any) -> SimpleNamespace:
    """Return the transitions that windows begin with, as a batch of those.

    Args:
        batch: a ``SequenceBatch`` of tensors, without burn-in.
    """
    items = torch.arange(len(batch.ids), device=batch.bootstrap.device)
    return SimpleNamespace(
        obs=map_leaves(lambda one: one[:, 0].contiguous(), batch.obs),
        next_obs=map_leaves(lambda one: one[items, batch.bootstrap[:, 0]], batch.obs),
        action=map_leaves(lambda one: one[:, 0], batch.action),
        reward=batch.reward[:, 0],
        discount=batch.discount[:, 0],
        weights=batch.weights,
    )
