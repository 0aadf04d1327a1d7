"""Networks: torsos map outputs of ``sharpwave.agents.inputs`` to features [B, n], heads features to values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium.spaces import Dict, Space
from torch import Tensor, nn

from sharpwave.agents.architectures import CONVOLUTIONS, MIN_SIDES, RESIDUAL, ImageModel, image_model, networks
from sharpwave.agents.inputs import MIN_IMAGE_SIDE, image_shape, input_size


def orthogonal(module: nn.Module, gain: float) -> None:
    """Begin a layer by an orthogonal matrix times ``gain``, and by biases of 0; leave other modules as they are.

    Source: Saxe, McClelland and Ganguli (2014), Exact solutions to the nonlinear dynamics of learning.
    """
    if isinstance(module, nn.Linear | nn.Conv2d):
        begun = nn.init.orthogonal_(torch.empty(module.weight.shape), gain)
        module.weight.data.copy_(begun)  # a convolution's weights are channels last, which orthogonal_ cannot fill
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def with_tanh(network: nn.Sequential) -> None:
    """Put tanh in the place of the ReLU of a network's own layers and of its torsos for vectors."""
    for part in (network, *(one for one in network.modules() if isinstance(one, VectorTorso))):
        for name, layer in part.named_children():
            if isinstance(layer, nn.ReLU):
                setattr(part, name, nn.Tanh())


class ImageTorso(nn.Sequential):
    """Torso of convolutional layers for images.

    Args:
        name: the network's, for errors.
        layers: those that map images to features [B, channels, rows, columns].
        shape: channels, height, width.
    Attributes:
        features: n.  maps: channels, rows and columns that they are, with channels last.
    """

    def __init__(self, name: str, layers: list[nn.Module], shape: tuple[int, int, int]) -> None:
        super().__init__(*layers)
        self.features = _features(self, name, shape)
        with torch.no_grad():
            _, *maps = super().forward(torch.zeros(1, *shape)).shape  # type: ignore[no-untyped-call]
        self.maps: tuple[int, int, int] = tuple(maps)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, frames: Tensor) -> Tensor:
        """Map float [B, channels, H, W] to [B, n]."""
        # Flattened with channels last, as in memory, so that nothing is copied.
        features: Tensor = super().forward(frames)  # type: ignore[no-untyped-call]
        return features.permute(0, 2, 3, 1).flatten(1)


def _convolutions(name: str, channels: int, normalized: bool) -> list[nn.Module]:
    """Return the layers of a key of ``CONVOLUTIONS``."""
    layers: list[nn.Module] = []
    for out_channels, kernel, stride in CONVOLUTIONS[name]:
        norm = [nn.GroupNorm(1, out_channels)] if normalized else []
        layers += [nn.Conv2d(channels, out_channels, kernel, stride), *norm, nn.ReLU(inplace=True)]
        channels = out_channels
    return layers


def _residual_layers(channels: int, normalized: bool) -> list[nn.Module]:
    """Return three sections, each of a convolution, pooling and two residual blocks.

    Source: Espeholt et al. (2018), IMPALA, figure 3, right.
    """
    layers: list[nn.Module] = []
    for out_channels in (16, 32, 32):
        layers += [*_convolution(channels, out_channels, normalized), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [_ResidualBlock(out_channels, normalized) for _ in range(2)]
        channels = out_channels
    return [*layers, nn.ReLU()]


class _ResidualBlock(nn.Sequential):
    """x + convolution(relu(convolution(relu(x))))."""

    def __init__(self, channels: int, normalized: bool) -> None:
        first, second = (_convolution(channels, channels, normalized) for _ in range(2))
        super().__init__(nn.ReLU(), *first, nn.ReLU(), *second)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + super().forward(x)  # type: ignore[no-untyped-call]
        return found


def _convolution(channels: int, out_channels: int, normalized: bool) -> list[nn.Module]:
    """Return the layers of a 3x3 convolution that keeps the size."""
    layers: list[nn.Module] = [nn.Conv2d(channels, out_channels, 3, padding=1)]
    return [*layers, nn.GroupNorm(1, out_channels)] if normalized else layers


class OwnTorso(nn.Module):
    """Torso for images by a registered image model.

    The model is in training mode where gradients are recorded, and in evaluation mode everywhere else: while acting,
    and in target networks. So batch normalization learns its statistics from batches, not from actors.

    Args:
        name: the name it is registered by.
        shape: channels, height, width.
    Attributes:
        features: n.
        learns: False: evaluation mode also where gradients are recorded, as for maps of saliency.
    """

    learns = True

    def __init__(self, name: str, model: ImageModel, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.model = model(shape).eval()
        self.features = _features(self.model, name, shape)

    def forward(self, frames: Tensor) -> Tensor:
        """Map float [B, channels, H, W] to [B, n]."""
        learning = self.learns and torch.is_grad_enabled()
        if self.model.training != learning:
            self.model.train(learning)
        features: Tensor = self.model(frames)
        return features.flatten(1)


def _features(model: nn.Module, name: str, shape: tuple[int, int, int]) -> int:
    """Return how many features ``model`` makes of an image.  Raises: ValueError: it cannot take the image."""
    try:
        with torch.no_grad():
            features = model(torch.zeros(1, *shape))
    except RuntimeError as error:
        least = 1
        for _, kernel, stride in reversed(CONVOLUTIONS.get(name, ())):
            least = (least - 1) * stride + kernel
        expected = f"at least {least}x{least}" if least > 1 else "a size that the model accepts"
        raise ValueError(
            f"network {name!r} cannot take frames of {shape[1]}x{shape[2]} with {shape[0]} channels, expected "
            f"{expected} ({error}); use larger frames (--frame of Atari games), another --network or --network auto"
        ) from error
    if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != 1:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"network {name!r}: its model returned {got} for a batch of one, expected features [1, ...]")
    return features.numel()


class VectorTorso(nn.Sequential):
    """Torso of one layer for flat vectors; of 0 units it passes them on, where the later layers suffice."""

    def __init__(self, size: int, units: int, normalized: bool = False) -> None:
        norm = [nn.LayerNorm(units)] if normalized else []
        super().__init__(*([nn.Linear(size, units), *norm, nn.ReLU()] if units else []))
        self.features = units or size


Torso = ImageTorso | OwnTorso | VectorTorso


class DictTorso(nn.Module):
    """Torso for a dict: one torso for each part, their features concatenated."""

    def __init__(self, parts: Mapping[str, Torso]) -> None:
        super().__init__()
        self.names, self.parts = tuple(parts), nn.ModuleList(parts.values())
        self.features = sum(part.features for part in parts.values())

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Map a dict of inputs to [B, n]."""
        features = [part(inputs[name]).float() for name, part in zip(self.names, self.parts, strict=True)]
        return torch.cat(features, dim=1)


def torso_for(space: Space[Any], network: str, units: int, normalized: bool = False) -> Torso | DictTorso:
    """Make a fresh torso for observations of ``space``.

    Args:
        network: one of ``networks()``: a network for images, with vectors beside them in a dict through one layer;
            "mlp": everything through one layer; "auto": the convolutions that suit an image's size.
        units: units of layers over vectors; 0: vectors are passed on as they are.
        normalized: normalize each layer's outputs over an item before its ReLU (layer norm); registered image models
            stay as they are.
    Raises:
        ValueError: an unknown network, or one that does not support the observations.
    """
    if network not in networks():
        raise ValueError(f"--network: got {network!r}, expected one of {', '.join(networks())}")
    parts = space.spaces if isinstance(space, Dict) else {"": space}
    if network not in ("auto", "mlp") and all(image_shape(part) is None for part in parts.values()):
        shapes = space.shape if not isinstance(space, Dict) else {name: part.shape for name, part in parts.items()}
        raise ValueError(
            f"network {network!r} takes images, [H, W], [C, H, W] or [H, W, C], of at least "
            f"{MIN_IMAGE_SIDE}x{MIN_IMAGE_SIDE} pixels, got observations of shape {shapes}; "
            "use --network mlp or --network auto"
        )
    torsos: dict[str, Torso] = {}
    for name, part in parts.items():
        try:
            torsos[name] = _torso(part, network, units, normalized)
        except ValueError as error:
            raise ValueError(f"observation {name!r}: {error}" if name else str(error)) from error
    return DictTorso(torsos) if isinstance(space, Dict) else torsos[""]


def _torso(space: Space[Any], network: str, units: int, normalized: bool) -> Torso:
    shape = image_shape(space)
    if shape is None or network == "mlp":
        return VectorTorso(input_size(space), units, normalized)
    if network == "auto":
        network = next(name for name, side in MIN_SIDES.items() if min(shape[1:]) >= side)
    if network in CONVOLUTIONS:
        return ImageTorso(network, _convolutions(network, shape[0], normalized), shape)
    if network == RESIDUAL:
        return ImageTorso(network, _residual_layers(shape[0], normalized), shape)
    return OwnTorso(network, image_model(network), shape)


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
        outputs: shape of the predictions for one action: () for its value, (51,) for 51 atoms.
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


class QNetwork(nn.Module):
    """Network of a torso and a Q-head on its features."""

    def __init__(self, torso: nn.Module, head: QHead) -> None:
        super().__init__()
        self.torso, self.head = torso, head

    def forward(self, inputs: Tensor | dict[str, Tensor]) -> Tensor:
        """Map the output of the agent's inputs to predictions, float32 [B, A, *outputs]."""
        return self.predict(self.torso(inputs))

    def predict(self, features: Tensor) -> Tensor:
        """Map the torso's features to predictions."""
        predicted: Tensor = self.head(features)
        return predicted
