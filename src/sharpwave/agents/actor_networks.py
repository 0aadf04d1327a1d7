"""Networks of policies and of their values: actors, critics Q(s, a) that are computed together, and V.

Output layers are computed in float32 whatever autocast says, as in ``QHead``. Normalized networks, CrossQ's, normalize
the inputs of their layers over the batch. They are made in evaluation mode, and learn their statistics only inside
``learning``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

SMALL = 0.01
"""Factor of a policy's last weights, so that at first all actions are alike (Andrychowicz et al. 2021, section 3.2)."""


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


class GaussianHead(nn.Module):
    """Means of a layer, and logarithms of deviations that are parameters: features [..., n] -> [..., 2 * size]."""

    def __init__(self, features: int, size: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.mean, self.log_std = small_layer(features, size), nn.Parameter(torch.full((size,), log_std))

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


class StateNoiseHead(GaussianHead):
    """Head of a policy whose noise is a random linear function of the features.

    It maps features [..., n] to means, logarithms of the noise's deviations, and each feature's part in the noise,
    [..., (2 + n) * size]. The weights of the noise have deviations that are parameters; features are held fixed in it.

    Source: Raffin, Kober and Stulp (2021), Smooth exploration for robotic reinforcement learning, section 3.2.
    """

    def __init__(self, features: int, size: int, log_std: float = 0.0) -> None:
        super().__init__(features, size, log_std)
        self.log_std = nn.Parameter(torch.full((features, size), log_std))

    def forward(self, features: Tensor) -> Tensor:
        parts = features.detach().unsqueeze(-1) * self.log_std.exp()
        deviation = (parts.square().sum(dim=-2) + 1e-6).sqrt()
        return torch.cat([self.mean(features), deviation.log(), parts.flatten(-2)], dim=-1)


def small_layer(features: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(features, outputs)
    with torch.no_grad():
        layer.weight.mul_(SMALL)
        layer.bias.zero_()
    return layer


class ActorNetwork(nn.Module):
    """Policy network: a torso, two hidden layers, and the output.

    Args:
        torso: outputs of the agent's inputs -> features [B, torso.features].
        outputs: numbers that describe the policy's action.
        normalized: normalize the features, and the outputs of each hidden layer.
    """

    def __init__(self, torso: Any, units: int, outputs: int, normalized: bool = False) -> None:
        super().__init__()
        layers = [torso]
        for size in (torso.features, units):
            norm = [BatchRenorm(size)] if normalized else []
            layers += [*norm, nn.Linear(size, units), nn.ReLU()]
        self.hidden = nn.Sequential(*layers, *([BatchRenorm(units)] if normalized else []))
        self.output = nn.Linear(units, outputs)
        if normalized:
            self.eval()

    def forward(self, inputs: Any) -> Tensor:
        """Map the output of the agent's inputs to float32 [B, outputs]."""
        hidden = self.hidden(inputs)
        with torch.autocast(hidden.device.type, enabled=False):
            output: Tensor = self.output(hidden.float())
        return output


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

    def forward(self, x: Tensor, members: int | None = None) -> Tensor:
        """Map [B, inputs], the same for all, or [K, B, inputs] to [K, B, outputs].

        Args:
            members: K, only so many of the first networks; None: all.
        """
        weight = self.weight[:members]
        return torch.baddbmm(self.bias[:members], x.expand(len(weight), -1, -1), weight)


class Critics(nn.Module):
    """Two critics: a torso for observations that both share, then two hidden layers and an output of each one's own.

    Args:
        torso: outputs of the agent's inputs -> features [B, torso.features].
        actions: numbers of an action.
        normalized: normalize features and actions, and the outputs of each hidden layer, always of both critics.
    """

    MEMBERS = 2

    def __init__(self, torso: Any, actions: int, units: int, normalized: bool = False) -> None:
        super().__init__()
        self.torso = torso
        self.first = EnsembleLinear(self.MEMBERS, torso.features + actions, units)
        self.second = EnsembleLinear(self.MEMBERS, units, units)
        self.output = nn.Parameter(torch.empty(self.MEMBERS, 1, units).uniform_(-1, 1) / math.sqrt(units))
        self.output_bias = nn.Parameter(torch.empty(self.MEMBERS, 1).uniform_(-1, 1) / math.sqrt(units))
        # Of features and actions, and of the outputs of each hidden layer; where there are none, in no state.
        self.norms: Iterable[nn.Module] = (nn.Identity(),) * 3
        if normalized:
            of_hidden = (BatchRenorm(self.MEMBERS, 1, units) for _ in range(2))
            self.norms = nn.ModuleList([BatchRenorm(torso.features + actions), *of_hidden])
            self.eval()

    def forward(self, features: Tensor, action: Tensor, members: int | None = None) -> Tensor:
        """Map features of the torso [B, n] and scaled actions [B, actions] to values, float32 [2, B].

        Args:
            members: only the values of so many critics; None: of both.
        """
        joint, after_first, after_second = self.norms
        hidden = after_first(self.first(joint(torch.cat([features, action], dim=1)), members).relu_())
        hidden = after_second(self.second(hidden, members).relu_())
        # Five times as fast as a product of matrices that are one column wide.
        q: Tensor = (hidden * self.output[:members]).sum(dim=2, dtype=torch.float32) + self.output_bias[:members]
        return q


class BatchRenorm(nn.Module):
    """Batch renormalization: each feature, over the batch, to mean 0 and deviation 1, then a learned scale and shift.

    In training it is batch normalization until ``WARMUP`` batches were seen. After that results are those of the
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
