"""Torsos of networks: outputs of ``sharpwave.agents.inputs`` -> features [B, n]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Dict, Space
from torch import Tensor, nn

from sharpwave.agents.architectures import CONVOLUTIONS, MIN_SIDES, NETWORKS
from sharpwave.agents.inputs import image_shape, input_size


class ConvTorso(nn.Sequential):
    """Convolutional torso for images.

    Args:
        name: key of ``CONVOLUTIONS``.
        shape: channels, height, width.
        normalized: normalize each layer's outputs over an item before its ReLU (layer norm).
    Attributes:
        features: n.
    """

    def __init__(self, name: str, shape: tuple[int, int, int], normalized: bool = False) -> None:
        layers: list[nn.Module] = []
        channels = shape[0]
        for out_channels, kernel, stride in CONVOLUTIONS[name]:
            layers.append(nn.Conv2d(channels, out_channels, kernel, stride))
            if normalized:
                layers.append(nn.GroupNorm(1, out_channels))
            layers.append(nn.ReLU(inplace=True))
            channels = out_channels
        super().__init__(*layers)
        try:
            with torch.no_grad():
                self.features = int(self(torch.zeros(1, *shape)).numel())
        except RuntimeError as error:
            raise ValueError(
                f"network {name!r} cannot take frames of {shape[1]}x{shape[2]}: a kernel is larger than what is left "
                "of the frame; use larger frames, another network or 'auto'"
            ) from error
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, frames: Tensor) -> Tensor:
        """Map float [B, channels, H, W] to [B, n]."""
        # Flattened with channels last, as in memory, so that nothing is copied.
        features: Tensor = super().forward(frames)  # type: ignore[no-untyped-call]
        return features.permute(0, 2, 3, 1).flatten(1)


class VectorTorso(nn.Sequential):
    """Torso of one layer for flat vectors."""

    def __init__(self, size: int, units: int, normalized: bool = False) -> None:
        norm = [nn.LayerNorm(units)] if normalized else []
        super().__init__(nn.Linear(size, units), *norm, nn.ReLU())
        self.features = units


class DictTorso(nn.Module):
    """Torso for a dict: one torso for each part, their features concatenated."""

    def __init__(self, parts: Mapping[str, ConvTorso | VectorTorso]) -> None:
        super().__init__()
        self.names, self.parts = tuple(parts), nn.ModuleList(parts.values())
        self.features = sum(part.features for part in parts.values())

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Map a dict of inputs to [B, n]."""
        features = [part(inputs[name]).float() for name, part in zip(self.names, self.parts, strict=True)]
        return torch.cat(features, dim=1)


def torso_for(
    space: Space[Any], network: str, units: int, normalized: bool = False
) -> ConvTorso | VectorTorso | DictTorso:
    """Make a fresh torso for observations of ``space``.

    Args:
        network: one of ``NETWORKS``: convolutions for images, with vectors beside them in a dict through one layer;
            "mlp": everything through one layer; "auto": the convolutions that suit an image's size.
        units: units of layers over vectors.
        normalized: normalize each layer's outputs over an item before its ReLU (layer norm).
    Raises:
        ValueError: an unknown network, or one that does not support the observations.
    """
    if network not in NETWORKS:
        raise ValueError(f"network: got {network!r}, expected one of {', '.join(NETWORKS)}")
    parts = space.spaces if isinstance(space, Dict) else {"": space}
    if network in CONVOLUTIONS and all(image_shape(part) is None for part in parts.values()):
        shapes = space.shape if not isinstance(space, Dict) else {name: part.shape for name, part in parts.items()}
        raise ValueError(
            f"network {network!r} takes images, [H, W], [C, H, W] or [H, W, C], got observations of shape {shapes}; "
            "use 'mlp' or 'auto'"
        )
    torsos = {name: _torso(part, network, units, normalized) for name, part in parts.items()}
    return DictTorso(torsos) if isinstance(space, Dict) else torsos[""]


def _torso(space: Space[Any], network: str, units: int, normalized: bool) -> ConvTorso | VectorTorso:
    shape = image_shape(space)
    if shape is None or network == "mlp":
        return VectorTorso(input_size(space), units, normalized)
    if network == "auto":
        network = next(name for name, side in MIN_SIDES.items() if min(shape[1:]) >= side)
    return ConvTorso(network, shape, normalized)
