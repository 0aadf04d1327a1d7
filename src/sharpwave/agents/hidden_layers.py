"""Hidden layers of actors and critics: of one network, or of K networks that are computed together.

Networks that are computed together are an *ensemble*: each of its layers is one batched product of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

WIDENING = 4
"""Units inside a residual block, in those of its ends."""


@dataclass(frozen=True)
class LayerStyle:
    """What hidden layers consist of.

    Attributes:
        blocks: "plain": linear layers and ReLU; "simba": residual blocks, of Lee et al. (2024), SimBa, section 4.
        normalized: normalize each hidden layer: "layer": before its ReLU, over an item, as in Ball et al. (2023),
            Efficient online reinforcement learning with offline data; "batch": after it, over the batch, as in Bhatt et
            al. (2024), CrossQ; "": not. Plain layers only.
        dropout: probability that an output of a linear layer is 0, as in Hiraoka et al. (2022), Dropout Q-functions for
            doubly efficient reinforcement learning. Plain layers only.
        depth: number of plain layers.
    """

    blocks: str = "plain"
    normalized: str = ""
    dropout: float = 0.0
    depth: int = 2

    def layers(self, inputs: int, units: int, blocks: int, members: int | None = None) -> list[nn.Module]:
        """Make layers that map [..., B, inputs] to [..., B, units].

        Args:
            blocks: number of residual blocks, if they are that.
            members: K, of an ensemble, which maps [K, B, ...]; None: one network.
        """
        linear: Callable[[int, int], nn.Module] = nn.Linear
        norm: Callable[[int], nn.Module] = nn.LayerNorm
        if members is not None:
            linear, norm = partial(EnsembleLinear, members), partial(EnsembleNorm, members)
        if self.blocks == "simba":
            embedding = orthogonal(linear(inputs, units))
            return [embedding, *(Residual(units, linear, norm) for _ in range(blocks)), norm(units)]
        made: list[nn.Module] = []
        for size in [inputs] + [units] * (self.depth - 1):
            made.append(linear(size, units))
            if self.dropout:
                made.append(Dropout(self.dropout))
            if self.normalized == "layer":
                made.append(norm(units))
            made.append(nn.ReLU(inplace=True))
            if self.normalized == "batch":
                made.append(BatchRenorm(units) if members is None else BatchRenorm(members, 1, units))
        return made


class Dropout(nn.Dropout):
    """Dropout of every pass, in evaluation mode too, in which networks are that normalize over the batch: the policy
    ascends critics with dropout (Hiraoka et al. 2022, DroQ, algorithm 2). Networks with it are used only to learn."""

    def train(self, mode: bool = True) -> Dropout:
        """Stay in training mode."""
        return super().train(True)


class Residual(nn.Module):
    """Block x + linear(relu(linear(norm(x)))), wider inside.

    Source: Lee et al. (2024), SimBa: simplicity bias for scaling up parameters in deep reinforcement learning, eq. 4.
    """

    def __init__(self, units: int, linear: Callable[[int, int], nn.Module], norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        inside = WIDENING * units
        self.layers = nn.Sequential(
            norm(units), kaiming(linear(units, inside), units), nn.ReLU(inplace=True),
            kaiming(linear(inside, units), inside),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.layers(x)
        return found


class EnsembleLinear(nn.Module):
    """Linear layers of several networks as one product of matrices, each initialized as ``nn.Linear`` is.

    Args:
        members: K, number of networks.
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map [K, B, inputs] to [K, B, outputs]; inputs of fewer networks are those of the first ones."""
        return torch.baddbmm(first(self.bias, len(x)), x, first(self.weight, len(x)))


class EnsembleNorm(nn.Module):
    """Layer norms of several networks: over the last dimension, then a learned scale and shift of each network."""

    def __init__(self, members: int, units: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, units))
        self.shift = nn.Parameter(torch.zeros(members, 1, units))

    def forward(self, x: Tensor) -> Tensor:
        """Map [K, B, units] to [K, B, units]; inputs of fewer networks are those of the first ones."""
        normal = nn.functional.layer_norm(x, x.shape[-1:])
        return torch.addcmul(first(self.shift, len(x)), normal, first(self.scale, len(x)))


def first(parameters: Tensor, count: int) -> Tensor:
    """Return the parameters of the first ``count`` networks; all as they are: a slice copies its whole gradient."""
    return parameters if len(parameters) == count else parameters[:count]


class BatchRenorm(nn.Module):
    """Normalization over the batch, to mean 0 and deviation 1, then a learned scale and shift.

    In training it is batch normalization until ``WARMUP`` batches were seen. After that results are those of the
    running statistics, within ``MAX_RATIO`` and ``MAX_SHIFT``, and gradients are those of the batch's statistics.
    Networks that hold one are made in evaluation mode, and learn their statistics only inside ``learning``.

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
        x = x.to(self.mean.dtype)  # statistics of bfloat16 would be rounded
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


@contextmanager
def learning(network: nn.Module) -> Iterator[None]:
    """Normalize by the batch's statistics while inside, and let ``network`` learn them."""
    network.train()
    try:
        yield
    finally:
        network.eval()


# First weights


@torch.no_grad()
def orthogonal(layer: nn.Module) -> nn.Module:
    """Begin a linear layer, of one network or an ensemble, by orthogonal matrices and biases of 0."""
    assert isinstance(layer, nn.Linear | EnsembleLinear)
    for matrix in [layer.weight] if isinstance(layer, nn.Linear) else layer.weight:
        nn.init.orthogonal_(matrix)
    layer.bias.zero_()
    return layer


@torch.no_grad()
def kaiming(layer: nn.Module, inputs: int) -> nn.Module:
    """Begin a linear layer, of one network or an ensemble, by He et al. (2015), eq. 10, and biases of 0."""
    assert isinstance(layer, nn.Linear | EnsembleLinear)
    layer.weight.normal_(0.0, math.sqrt(2.0 / inputs))
    layer.bias.zero_()
    return layer
