"""Q-networks: observations as they are stored (uint8 frames or vectors) -> numbers -> one value an action."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sharpwave.agents.frames import fits_one_pass, in_one_pass
from sharpwave.agents.losses import dueling_combine

# Each convolution: channels, kernel, stride.
CONVOLUTIONS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. (2015); 84x84 -> 7x7x64
    "efficient": ((32, 5, 5), (64, 5, 5)),  # van Hasselt et al. (2019), data-efficient Rainbow; 84x84 -> 3x3x64
    "small": ((16, 6, 3), (32, 4, 2)),  # for frames of some 42x42; -> 5x5x32
}
NETWORKS = (*CONVOLUTIONS, "mlp")


class FrameInputs(nn.Module):
    """Stacked frames as they are stored, uint8 [B, stack, H, W], -> the float numbers that a network takes.

    Divides by 255 (as a product with the inverse) until :meth:`standardize` is given frames; then it subtracts each
    pixel's mean over them and divides by the root mean square of what is left. A still background becomes zero and what
    moves stands out, however few pixels it has: the ball of Pong is two pixels.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, frame_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(frame_shape))
        self.register_buffer("scale", torch.tensor(255.0))

    @torch.no_grad()
    def standardize(self, obs: Tensor) -> None:
        """Measure mean and scale over ``obs`` uint8 [N, stack, H, W]. Frames that are all alike keep a scale of 1."""
        frames = obs.to(self.mean.device).float()
        self.mean.copy_(frames.mean(dim=(0, 1)))
        self.scale.copy_((frames - self.mean).square().mean().sqrt().clamp_(min=1.0))

    def forward(self, obs: Tensor) -> Tensor:
        """uint8 [B, stack, H, W] -> float, the same shape, channels last (in which convolutions are fastest)."""
        if fits_one_pass(obs):
            return in_one_pass(obs, self.mean, self.scale)
        x = obs.to(torch.float32, copy=True).sub_(self.mean).mul_(self.scale.reciprocal())
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # here once, not once in every network
        return x.contiguous(memory_format=torch.channels_last)


class VectorInputs(nn.Module):
    """Vectors as they are stored -> float32 [B, n]."""

    def forward(self, obs: Tensor) -> Tensor:
        """[B, ...] -> float32 [B, n]."""
        return obs.float().flatten(1)


class Head(nn.Module):
    """A hidden layer and the values of the actions; dueling: two hidden layers side by side, one for V and one for A.

    The output layers are computed in float32 whatever autocast says: in bfloat16's 8 significant bits the values of
    two actions may become equal.
    """

    def __init__(self, features: int, hidden_units: int, num_actions: int, dueling: bool) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden_units * (2 if dueling else 1))  # one product for both streams
        self.advantage = nn.Linear(hidden_units, num_actions)
        self.value = nn.Linear(hidden_units, 1) if dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """float [B, features] -> Q float32 [B, A]."""
        hidden: Tensor = self.hidden(features).relu_()
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            if self.value is None:
                values: Tensor = self.advantage(hidden)
                return values
            for_advantage, for_value = hidden.chunk(2, dim=1)
            return dueling_combine(self.value(for_value), self.advantage(for_advantage))


class FrameNetwork(nn.Module):
    """Convolutions over what :class:`FrameInputs` gives."""

    def __init__(
        self, name: str, obs_shape: tuple[int, ...], num_actions: int, hidden_units: int, dueling: bool
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = obs_shape[0]
        for out_channels, kernel, stride in CONVOLUTIONS[name]:
            layers += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU(inplace=True)]
            channels = out_channels
        self.torso = nn.Sequential(*layers)
        try:
            with torch.no_grad():
                features = self.torso(torch.zeros(1, *obs_shape)).numel()
        except RuntimeError as error:
            raise ValueError(
                f"network {name!r} cannot take frames of {obs_shape[1]}x{obs_shape[2]}: a kernel is larger "
                "than what is left of the frame; use larger frames or another network"
            ) from error
        self.head = Head(features, hidden_units, num_actions, dueling)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, frames: Tensor) -> Tensor:
        """float [B, stack, H, W] -> Q float32 [B, A]."""
        # Flattened with the channels last, as they lie in memory: nothing is moved.
        q: Tensor = self.head(self.torso(frames).permute(0, 2, 3, 1).flatten(1))
        return q


class VectorNetwork(nn.Module):
    """One layer of ``hidden_units`` and the head over a flat vector."""

    def __init__(self, size: int, num_actions: int, hidden_units: int, dueling: bool) -> None:
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(size, hidden_units), nn.ReLU())
        self.head = Head(hidden_units, hidden_units, num_actions, dueling)

    def forward(self, vectors: Tensor) -> Tensor:
        """float [B, size] -> Q float32 [B, A]."""
        q: Tensor = self.head(self.torso(vectors))
        return q


def input_module(network: str, obs_shape: tuple[int, ...]) -> FrameInputs | VectorInputs:
    """What stands between stored observations and ``network``."""
    return VectorInputs() if network == "mlp" else FrameInputs(obs_shape[1:])


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
        return lambda: VectorNetwork(math.prod(obs_shape), num_actions, hidden_units, dueling)
    if len(obs_shape) != 3:
        raise ValueError(
            f"network {name!r} takes frames [stack, H, W], got observations of shape {obs_shape}; use 'mlp'"
        )
    return lambda: FrameNetwork(name, obs_shape, num_actions, hidden_units, dueling)
