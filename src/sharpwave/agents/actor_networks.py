"""Networks of policies and of their values: actors, critics Q(s, a) that are computed together, and V.

Output layers are computed in float32 whatever autocast says, as in ``QHead``. Networks that normalize over the batch,
CrossQ's, are made in evaluation mode.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sharpwave.agents.hidden_layers import BatchRenorm, EnsembleLinear, LayerStyle, first, orthogonal

ACTOR_BLOCKS, CRITIC_BLOCKS = 1, 2
"""Residual blocks of an actor and of a critic, those of Lee et al. (2024), SimBa, table 3."""
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
        held, deviation = features.detach(), self.log_std.exp()
        log_deviation = 0.5 * (held.square() @ deviation.square() + 1e-6).log()
        parts = held.unsqueeze(-1) * deviation.detach()  # for acting, which takes no gradient
        return torch.cat([self.mean(features), log_deviation, parts.flatten(-2)], dim=-1)


def small_layer(features: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(features, outputs)
    with torch.no_grad():
        layer.weight.mul_(SMALL)
        layer.bias.zero_()
    return layer


class ActorNetwork(nn.Module):
    """Policy network: a torso, hidden layers, and the output.

    Args:
        torso: outputs of the agent's inputs -> features [B, torso.features].
        outputs: numbers that describe the policy's action.
    """

    def __init__(self, torso: Any, units: int, outputs: int, style: LayerStyle | None = None) -> None:
        super().__init__()
        style = style or LayerStyle()
        by_batch = style.normalized == "batch"
        joint = [BatchRenorm(torso.features)] if by_batch else []
        self.hidden = nn.Sequential(torso, *joint, *style.layers(torso.features, units, ACTOR_BLOCKS))
        self.output = nn.Linear(units, outputs)
        if style.blocks == "simba":
            orthogonal(self.output)
        if by_batch:
            self.eval()

    def forward(self, inputs: Any) -> Tensor:
        """Map the output of the agent's inputs to float32 [B, outputs]."""
        hidden = self.hidden(inputs)
        with torch.autocast(hidden.device.type, enabled=False):
            output: Tensor = self.output(hidden.float())
        return output


class Critics(nn.Module):
    """K critics: a torso for observations that all share, then hidden layers and an output of each one's own.

    Args:
        torso: outputs of the agent's inputs -> features [B, torso.features].
        actions: numbers of an action.
        members: K.
        quantiles: N, quantiles of the return that each critic predicts; 0: its mean.
    """

    def __init__(
        self,
        torso: Any,
        actions: int,
        units: int,
        style: LayerStyle | None = None,
        members: int = 2,
        quantiles: int = 0,
    ) -> None:
        super().__init__()
        style = style or LayerStyle()
        self.torso, self.members = torso, members
        size = torso.features + actions
        self.hidden = nn.Sequential(*style.layers(size, units, CRITIC_BLOCKS, members))
        self.quantiles = EnsembleLinear(members, units, quantiles) if quantiles else None
        if self.quantiles is not None:
            if style.blocks == "simba":
                orthogonal(self.quantiles)
        else:
            self.output = nn.Parameter(torch.empty(members, 1, units).uniform_(-1, 1) / math.sqrt(units))
            self.output_bias = nn.Parameter(torch.empty(members, 1).uniform_(-1, 1) / math.sqrt(units))
            if style.blocks == "simba":
                for weights in self.output:
                    nn.init.orthogonal_(weights)
                nn.init.zeros_(self.output_bias)
        self.joint: nn.Module = nn.Identity()  # of features and actions, the same for all
        if style.normalized == "batch":
            self.joint = BatchRenorm(size)
            self.eval()

    def forward(self, features: Tensor, action: Tensor, members: int | None = None) -> Tensor:
        """Map features of the torso [B, n] and scaled actions [B, actions] to values, float32 [K, B] or [K, B, N].

        Args:
            members: only the values of so many critics, the first ones; None: of all.
        """
        count = members or self.members
        joint = self.joint(torch.cat([features, action], dim=1))
        hidden = self.hidden(joint.expand(count, -1, -1))
        if self.quantiles is not None:
            with torch.autocast(hidden.device.type, enabled=False):
                predicted: Tensor = self.quantiles(hidden.float())
            return predicted
        # Five times as fast as a product of matrices that are one column wide.
        weighted: Tensor = (hidden * first(self.output, count)).sum(dim=2, dtype=torch.float32)
        return weighted + first(self.output_bias, count)

    def some(self, features: Tensor, action: Tensor, chosen: Tensor) -> Tensor:
        """Return, as ``forward``, the values of the critics numbered ``chosen``, int64 [M]: [M, B] or [M, B, N].

        No gradient reaches the parameters. Critics that normalize over the batch are not supported.
        """
        own = {name: one.detach()[chosen] for name, one in self.named_parameters() if not name.startswith("torso.")}
        values: Tensor = functional_call(self, own, (features, action, len(chosen)))
        return values
