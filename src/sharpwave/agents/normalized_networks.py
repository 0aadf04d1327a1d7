"""Actor and critics whose layers' inputs are normalized over the batch, for CrossQ.

Networks are made in evaluation mode, and learn their statistics only where they are asked to: see ``learning``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sharpwave.agents.continuous_networks import Actor, Critics


class BatchRenorm(nn.Module):
    """Batch renormalization: each feature, over the batch, to mean 0 and deviation 1, then a learned scale and shift.

    In training it is batch normalization until ``WARMUP`` batches were seen. After that what is computed is as by the
    running statistics, within ``MAX_RATIO`` and ``MAX_SHIFT``, and gradients are those of the batch's statistics.

    Args:
        shape: of the statistics: (features,), or (K, 1, features) for K networks that are computed together.
    Source: Ioffe (2017), Batch renormalization, algorithm 1; constants of Bhatt et al. (2024).
    """

    WARMUP, MOMENTUM, EPS, MAX_RATIO, MAX_SHIFT = 100_000, 0.01, 1e-3, 3.0, 5.0
    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [..., B, features] over B."""
        running = (self.variance + self.EPS).sqrt()
        if not self.training:
            return torch.addcmul(self.shift, x - self.mean, self.scale / running)
        variance, mean = torch.var_mean(x, dim=-2, correction=0, keepdim=True)
        deviation = (variance + self.EPS).sqrt()
        scale: Tensor = self.scale
        shift: Tensor = self.shift
        if self.batches >= self.WARMUP:
            ratio = (deviation.detach() / running).clamp(1 / self.MAX_RATIO, self.MAX_RATIO)
            offset = ((mean.detach() - self.mean) / running).clamp(-self.MAX_SHIFT, self.MAX_SHIFT)
            scale, shift = scale * ratio, shift + scale * offset
        with torch.no_grad():
            self.mean.lerp_(mean.view_as(self.mean), self.MOMENTUM)
            self.variance.lerp_(variance.view_as(self.variance), self.MOMENTUM)
            self.batches += 1
        return torch.addcmul(shift, x - mean, scale / deviation)


class NormalizedActor(Actor):
    """Actor that normalizes its features, and what each hidden layer gives."""

    def __init__(self, torso: Any, units: int, outputs: int) -> None:
        super().__init__(torso, units, outputs)
        _, first, relu, second, _ = self.hidden
        norms = (BatchRenorm(torso.features), BatchRenorm(units), BatchRenorm(units))
        self.hidden = nn.Sequential(torso, norms[0], first, relu, norms[1], second, relu, norms[2])
        self.eval()


class NormalizedCritics(Critics):
    """Critics that normalize features and actions, and what each hidden layer gives."""

    def __init__(self, torso: Any, actions: int, units: int) -> None:
        super().__init__(torso, actions, units)
        self.norms = nn.ModuleList(
            [BatchRenorm(torso.features + actions), *(BatchRenorm(self.MEMBERS, 1, units) for _ in range(2))]
        )
        self.eval()

    def forward(self, features: Tensor, action: Tensor, members: int | None = None) -> Tensor:
        """Map features of the torso [B, n] and scaled actions [B, actions] to values, float32 [2, B]."""
        assert members is None, "both critics' statistics are computed together"
        joint, after_first, after_second = self.norms
        x = joint(torch.cat([features, action], dim=1))
        x = after_first(self.first(x).relu_())
        x = after_second(self.second(x).relu_())
        q: Tensor = (x * self.output).sum(dim=2, dtype=torch.float32) + self.output_bias
        return q


@contextmanager
def learning(network: nn.Module) -> Iterator[None]:
    """Let batch statistics normalize what ``network`` computes inside, and be learned."""
    network.train()
    try:
        yield
    finally:
        network.eval()
