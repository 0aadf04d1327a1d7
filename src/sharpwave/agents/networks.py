"""Q-networks: observations as they are stored (uint8 frames or vectors) -> one value an action."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sharpwave.agents.losses import dueling_combine

# Each convolution: channels, kernel, stride.
CONVOLUTIONS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. (2015); 84x84 -> 7x7x64
    "efficient": ((32, 5, 5), (64, 5, 5)),  # van Hasselt et al. (2019), data-efficient Rainbow; 84x84 -> 3x3x64
    "small": ((16, 6, 3), (32, 4, 2)),  # for frames of some 42x42; -> 5x5x32
}
NETWORKS = (*CONVOLUTIONS, "mlp")


class Stream(nn.Module):
    """A hidden layer and an output layer. The output is computed in float32 whatever autocast says: in bfloat16's 8
    significant bits the values of two actions may become equal."""

    def __init__(self, features: int, hidden_units: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(features, hidden_units), nn.ReLU())
        self.output = nn.Linear(hidden_units, outputs)

    def forward(self, features: Tensor) -> Tensor:
        """float [B, features] -> float32 [B, outputs]."""
        hidden: Tensor = self.hidden(features)
        with torch.autocast(hidden.device.type, enabled=False):
            output: Tensor = self.output(hidden.float())
        return output


class Head(nn.Module):
    """The values of the actions from one stream; dueling: from one for V and one for A."""

    def __init__(self, features: int, hidden_units: int, num_actions: int, dueling: bool) -> None:
        super().__init__()

        self.advantage = Stream(features, hidden_units, num_actions)
        self.value = Stream(features, hidden_units, 1) if dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """float [B, features] -> Q float [B, A]."""
        advantage: Tensor = self.advantage(features)
        return advantage if self.value is None else dueling_combine(self.value(features), advantage)


class FrameNetwork(nn.Module):
    """Convolutions over stacked frames. Takes uint8 [B, stack, H, W] and scales to [0, 1] itself."""

    def __init__(
        self, name: str, obs_shape: tuple[int, ...], num_actions: int, hidden_units: int, dueling: bool
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = obs_shape[0]
        for out_channels, kernel, stride in CONVOLUTIONS[name]:
            layers += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU()]
            channels = out_channels
        self.torso = nn.Sequential(*layers, nn.Flatten())
        try:
            with torch.no_grad():
                features = self.torso(torch.zeros(1, *obs_shape)).shape[1]
        except RuntimeError as error:
            raise ValueError(
                f"network {name!r} cannot take frames of {obs_shape[1]}x{obs_shape[2]}: a kernel is larger "
                "than what is left of the frame; use larger frames or another network"
            ) from error
        self.head = Head(features, hidden_units, num_actions, dueling)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, obs: Tensor) -> Tensor:
        """uint8 [B, stack, H, W] -> Q float [B, A]."""
        # Multiplying is cheaper than dividing; the product is the layer's input in [0, 1].
        q: Tensor = self.head(self.torso(obs.float().mul_(1.0 / 255.0)))
        return q


class VectorNetwork(nn.Module):
    """One layer of ``hidden_units`` and the head over a flat vector."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int, hidden_units: int, dueling: bool) -> None:
        super().__init__()
        features = 1
        for n in obs_shape:
            features *= n
        self.torso = nn.Sequential(nn.Flatten(), nn.Linear(features, hidden_units), nn.ReLU())
        self.head = Head(hidden_units, hidden_units, num_actions, dueling)

    def forward(self, obs: Tensor) -> Tensor:
        """float [B, ...] -> Q float [B, A]."""
        q: Tensor = self.head(self.torso(obs.float()))
        return q


def network_builder(
    name: str, obs_shape: tuple[int, ...], num_actions: int, hidden_units: int, dueling: bool
) -> Callable[[], nn.Module]:
    """A function that makes a fresh network; the agent calls it for the online and for the target network.

    Args:
        name: one of ``NETWORKS``.  obs_shape: of one observation, with the stack: (4, 84, 84) or (4,).
    Raises:
        ValueError: an unknown name, or a network that does not suit the observation.
    """
    if name not in NETWORKS:
        raise ValueError(f"network: got {name!r}, expected one of {', '.join(NETWORKS)}")
    if name == "mlp":
        return lambda: VectorNetwork(obs_shape, num_actions, hidden_units, dueling)
    if len(obs_shape) != 3:
        raise ValueError(
            f"network {name!r} takes frames [stack, H, W], got observations of shape {obs_shape}; use 'mlp'"
        )
    return lambda: FrameNetwork(name, obs_shape, num_actions, hidden_units, dueling)
