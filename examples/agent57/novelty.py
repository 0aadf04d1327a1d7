"""Novelty of observations as NGU has it: within the episode, and over all of training.

Within an episode an observation is novel if it is far, in the space of an embedding, from those before it. The
embedding is trained to tell which action led from one observation to the next, so that it keeps the part that actions
control. Over all of training an observation is novel if a predictor has not learned its random features yet.

Source: Badia et al. (2020), Never give up: learning directed exploration strategies, section 2; the predictor: Burda
et al. (2019), Exploration by random network distillation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sharpwave.agents.losses import action_cross_entropy
from sharpwave.agents.networks import orthogonal

Floats = npt.NDArray[np.float32]

KERNEL_EPS, CONSTANT, CLUSTER_DISTANCE, MAX_SIMILARITY = 1e-4, 1e-3, 8e-3, 8.0
"""Constants of the episodic reward in Badia et al. (2020), table 3."""


def episodic_reward(
    distance: npt.NDArray[np.floating], mean: npt.NDArray[np.floating], constant: float = CONSTANT
) -> Floats:
    """Compute how novel embeddings are beside their nearest neighbours: 1 / (sqrt(sum K) + c), K = eps / (rate + eps).

    Args:
        distance: float [N, k], squared distances to the neighbours.
        mean: float [N], mean of such distances, by which they are divided; a quotient below ``CLUSTER_DISTANCE``
            counts as 0.
        constant: c; it also keeps the division by the mean finite.
    Returns:
        float32 [N]; 0 for embeddings that are more similar to others than ``MAX_SIMILARITY``.
    Source: Badia et al. (2020), algorithm 1.
    """
    rate = np.maximum(distance / (mean[:, None] + constant) - CLUSTER_DISTANCE, 0.0)
    similarity = np.sqrt((KERNEL_EPS / (rate + KERNEL_EPS)).sum(axis=1)) + constant
    return np.where(similarity > MAX_SIMILARITY, 0.0, 1.0 / similarity).astype(np.float32)


class EpisodicMemory(NamedTuple):
    """Embeddings of each lane's episode so far; the newest ones, where they are more than it holds.

    Attributes:
        embeddings: float32 [lanes, capacity + 1, n], which all states of the memory share. An added embedding goes
            to a row that it does not count, so that a state can be gone on from again.
        added: int64 [lanes], embeddings of the episode.
        distances: float64 [lanes, 2], sum and number of the distances to neighbours so far.
    """

    embeddings: Floats
    added: npt.NDArray[np.int64]
    distances: npt.NDArray[np.float64]

    @classmethod
    def empty(cls, lanes: int, capacity: int, size: int) -> EpisodicMemory:
        """Return the memory of lanes at an episode's start."""
        zeros = np.zeros((lanes, capacity + 1, size), np.float32)
        return cls(zeros, np.zeros(lanes, np.int64), np.zeros((lanes, 2)))

    def add(self, embedding: Floats, neighbours: int, constant: float = CONSTANT) -> tuple[Floats, EpisodicMemory]:
        """Return the reward of each lane's next embedding, float32 [lanes], and the memory with it.

        While an episode has fewer embeddings than ``neighbours``, as many zeros stand for those that are missing.
        """
        lanes, places, _ = self.embeddings.shape
        next_place = self.added % places
        row = np.arange(min(max(int(self.added.max()), neighbours), places))
        rows = np.where((row < self.added[:, None])[..., None], self.embeddings[:, : len(row)], 0.0)
        distance = np.square(rows - embedding[:, None]).sum(axis=2, dtype=np.float64)
        missing = row >= np.maximum(self.added, neighbours)[:, None]
        distance[missing | ((self.added >= places)[:, None] & (row == next_place[:, None]))] = np.inf
        nearest = np.partition(distance, neighbours - 1, axis=1)[:, :neighbours]
        distances = self.distances + np.stack([nearest.sum(axis=1), np.full(lanes, neighbours)], axis=1)
        reward = episodic_reward(nearest, distances[:, 0] / distances[:, 1], constant)
        self.embeddings[np.arange(lanes), next_place] = embedding
        return reward, self._replace(added=self.added + 1, distances=distances)

    def without(self, ended: npt.NDArray[np.bool_]) -> EpisodicMemory:
        """Return the memory with those lanes at an episode's start."""
        return self._replace(
            added=np.where(ended, 0, self.added), distances=np.where(ended[:, None], 0.0, self.distances)
        )


class Novelty(nn.Module):
    """Networks that tell novelty: embedding and inverse model, and random features with their predictor.

    Args:
        torso: makes a fresh torso, outputs of the agent's inputs -> features.
        size: length of an embedding, and of the random features.
        decay: of the exponential means by which the predictor's errors are standardized.
    """

    error_mean: Tensor
    error_square: Tensor

    def __init__(self, torso: Callable[[], Any], size: int, num_actions: int, decay: float = 0.99) -> None:
        super().__init__()
        self._decay = decay

        def features() -> nn.Module:
            made = torso()
            return nn.Sequential(made, nn.Linear(made.features, size))

        self.embedding, self.predictor = features(), features()
        self.random = features().requires_grad_(False)
        for network in (self.predictor, self.random):
            # As in the code published with Burda et al. (2019): what observations share is then in no feature.
            network.apply(partial(orthogonal, gain=math.sqrt(2)))
        self.inverse = nn.Sequential(nn.Linear(2 * size, 4 * size), nn.ReLU(), nn.Linear(4 * size, num_actions))
        self.register_buffer("error_mean", torch.zeros(()))
        self.register_buffer("error_square", torch.zeros(()))

    def errors(self, inputs: Any) -> Tensor:
        """Return the predictor's mean squared errors, float [B]."""
        error: Tensor = (self.predictor(inputs) - self.random(inputs)).square().mean(dim=1)
        return error

    def modulators(self, inputs: Any, largest: float) -> Tensor:
        """Return how novel observations are over all of training, float [B] in 1 ... ``largest``: 1 plus the
        predictor's error in standard deviations above its mean; 1 while no errors were counted."""
        deviation = (self.error_square - self.error_mean.square()).clamp(min=1e-12).sqrt()
        above = (self.errors(inputs) - self.error_mean) / deviation
        return (1.0 + above * (self.error_square > 0)).clamp(1.0, largest)

    def loss(self, inputs: Any, next_inputs: Any, action: Tensor, weights: Tensor) -> Tensor:
        """Return the mean loss of inverse model and predictor, and count the predictor's errors.

        Args:
            inputs, next_inputs: of observations before and after a step.  action: int64 [B], numbers of its actions.
            weights: float [B], importance weights. By these the predictor learns, and its errors are counted, as if all
                observations were replayed equally often: those with a high priority do not get known sooner.
        """
        both = torch.cat([self.embedding(inputs), self.embedding(next_inputs)], dim=1)
        errors, shares = self.errors(inputs), weights / weights.sum()
        mean = (shares * errors).sum()
        with torch.no_grad():
            first = float(self.error_square) == 0.0
            share = 1.0 if first else 1.0 - self._decay
            self.error_mean.lerp_(mean, share)
            self.error_square.lerp_((shares * errors.square()).sum(), share)
        return action_cross_entropy(self.inverse(both), action).mean() + mean
