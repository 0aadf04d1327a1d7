"""Preprocessing of stored observations into torsos' float inputs. Its statistics are measured, not learned."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from torch import Tensor, nn

from sharpwave.native import core

MIN_IMAGE_SIDE = 5
"""Pixels of an image's shorter side; smaller arrays are treated as vectors."""
LEAST_DEVIATION = 1 / 255
"""Least deviation by which standardized images are divided, as a share of the scale before: a grey level of uint8."""
SPARE_DEVIATION = 1e-3
"""Added to the deviation of each number of a vector, so that one that never changes is not divided by 0."""
MAX_SCALED_SPAN = 1 << 16
"""Largest range of integers that are scaled to 0 ... 1; wider ones are mere bounds of a dtype, and values small."""
ONE_PASS_STACK = 4
"""Frames of an observation that is standardized in one pass: four bfloat16 fill a 64-bit word."""


def channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether an image is [H, W, C], not [C, H, W]: the shorter axis is the channels, on a tie the last."""
    return shape[-1] <= shape[-3]


def image_shape(space: Space[Any]) -> tuple[int, int, int] | None:
    """Return channels, height and width of a space of images or stacks of images; None: another space.

    Images are [H, W], [C, H, W], [H, W, C] and [stack, H, W, C].
    """
    shape = space.shape
    if not isinstance(space, Box) or shape is None or len(shape) not in (2, 3, 4):
        return None
    if len(shape) == 2:
        channels, height, width = 1, *shape
    elif channels_last(shape):
        height, width, channels = shape[-3:]
        channels *= math.prod(shape[:-3])
    else:
        channels, height, width = math.prod(shape[:-2]), *shape[-2:]
    return (channels, height, width) if min(height, width) >= MIN_IMAGE_SIDE else None


class FrameInputs(nn.Module):
    """Preprocessing of stored images [B, ...] into float [B, channels, H, W], channels last in memory.

    It divides by ``scale`` until ``standardize`` has measured images; then it subtracts each pixel's mean and
    divides by the root mean square of the difference. A still background becomes zero and moving objects stand out,
    however small: the ball of Pong is two pixels.

    Args:
        shape: shape of one observation.
        scale: divisor before images are standardized.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], scale: float = 255.0) -> None:
        super().__init__()
        self._shape = shape
        self._moved = len(shape) > 2 and channels_last(shape)
        # Frames of a stack share a mean, channels of an image do not.
        channels = shape[-1:] if self._moved else ()
        self.register_buffer("mean", torch.zeros(channels + (shape[-3:-1] if self._moved else shape[-2:])))
        self.register_buffer("scale", torch.tensor(scale))

    @torch.no_grad()
    def standardize(self, obs: Tensor) -> None:
        """Measure mean and scale over ``obs`` [N, ...].

        The scale is at least ``LEAST_DEVIATION`` of the one before, so that noise on identical images stays small.
        """
        frames = self._frames(obs.to(self.mean.device)).float()
        self.mean.copy_(frames.mean(dim=tuple(range(frames.dim() - self.mean.dim()))))
        least = LEAST_DEVIATION * self.scale
        self.scale.copy_((frames - self.mean).square().mean().sqrt().clamp_(min=least))

    def forward(self, obs: Tensor) -> Tensor:
        """Map [B, ...] to float [B, channels, H, W], channels last in memory, where convolutions are fastest."""
        if not self._moved and fits_one_pass(obs):
            return in_one_pass(obs, self.mean, self.scale)
        x = self._frames(obs).to(torch.float32, copy=True).sub_(self.mean).mul_(self.scale.reciprocal())
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # converted here once instead of in each network
        return x.reshape(x.shape[0], -1, *x.shape[-2:]).contiguous(memory_format=torch.channels_last)

    def _frames(self, obs: Tensor) -> Tensor:
        """Return frames with channels before rows: [B, (stack), (C), H, W]."""
        return obs.movedim(-1, -3) if self._moved else obs


class VectorInputs(nn.Module):
    """Preprocessing of stored numbers [B, ...] into float32 [B, n].

    Args:
        low, high: bounds of integers, which are scaled to 0 ... 1 where they are at most ``MAX_SCALED_SPAN`` apart;
            None: numbers are not scaled.
    """

    low: Tensor
    span: Tensor

    def __init__(self, low: np.ndarray[Any, Any] | None = None, high: np.ndarray[Any, Any] | None = None) -> None:
        super().__init__()
        self._scaled = low is not None and high is not None
        if low is not None and high is not None:
            low, high = low.astype(np.float64).reshape(-1), high.astype(np.float64).reshape(-1)
            scaled = high - low <= MAX_SCALED_SPAN
            span = np.where(scaled, np.maximum(high - low, 1.0), 1.0)
            self.register_buffer("low", torch.from_numpy(np.where(scaled, low, 0.0).astype(np.float32)))
            self.register_buffer("span", torch.from_numpy(span.astype(np.float32)))

    def forward(self, obs: Tensor) -> Tensor:
        """Map [B, ...] to float32 [B, n]."""
        x = obs.float().reshape(obs.shape[0], -1)
        return (x - self.low) / self.span if self._scaled else x


class MeasuredInputs(VectorInputs):
    """Preprocessing of stored numbers into float32 [B, n], each of mean 0 and deviation 1 once they are measured.

    Args:
        size: n.  low, high: as of ``VectorInputs``.
    Source: Fujimoto and Gu (2021), A minimalist approach to offline reinforcement learning, section 5.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, size: int, low: np.ndarray[Any, Any] | None = None, high: np.ndarray[Any, Any] | None = None
    ) -> None:
        super().__init__(low, high)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))

    @torch.no_grad()
    def standardize(self, obs: Tensor) -> None:
        """Measure means and deviations over ``obs`` [N, ...]."""
        x = super().forward(obs.to(self.mean.device))
        self.mean.copy_(x.mean(dim=0))
        self.deviation.copy_(x.std(dim=0, correction=0) + SPARE_DEVIATION)

    def forward(self, obs: Tensor) -> Tensor:
        """Map [B, ...] to float32 [B, n]."""
        return (super().forward(obs) - self.mean) / self.deviation


class RunningInputs(MeasuredInputs):
    """Preprocessing of stored numbers into float32 [B, n], each of mean 0 and deviation 1 over all that were measured.

    A number further than ``MOST_DEVIATIONS`` from its mean counts as that far. Statistics are float64: after a billion
    numbers the next ones still move them.

    Source: Lee et al. (2024), SimBa: simplicity bias for scaling up parameters in deep reinforcement learning, section
        4.1, running statistics normalization; measurements are merged as in Chan, Golub and LeVeque (1983), eq. 2.1.
    """

    MOST_DEVIATIONS = 10.0
    SPARE_VARIANCE = 1e-8
    count: Tensor
    exact_mean: Tensor
    squares: Tensor

    def __init__(
        self, size: int, low: np.ndarray[Any, Any] | None = None, high: np.ndarray[Any, Any] | None = None
    ) -> None:
        super().__init__(size, low, high)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("exact_mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))  # of differences from the mean, summed

    @torch.no_grad()
    def standardize(self, obs: Tensor) -> None:
        """Measure ``obs`` [N, ...] beside all that were measured before."""
        x = VectorInputs.forward(self, obs.to(self.mean.device)).double()
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        share = len(x) / (self.count + len(x))
        off = mean - self.exact_mean
        self.squares += len(x) * (variance + off.square() * (1 - share))
        self.exact_mean += off * share
        self.count += len(x)
        self.mean.copy_(self.exact_mean)
        self.deviation.copy_((self.squares / self.count + self.SPARE_VARIANCE).sqrt())

    def forward(self, obs: Tensor) -> Tensor:
        """Map [B, ...] to float32 [B, n]."""
        return super().forward(obs).clamp(-self.MOST_DEVIATIONS, self.MOST_DEVIATIONS)


class RewardScale(nn.Module):
    """Factor of rewards, 1 until it is measured: it spreads the returns of the data's episodes over ``SPAN``.

    Source: Kostrikov, Nair and Levine (2021), Offline reinforcement learning with implicit Q-learning, appendix B.
    """

    SPAN = 1000.0
    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()))

    def measure(self, returns: Tensor) -> None:
        """Measure the factor by returns of episodes [N], N at least 0; equal ones leave it as it is."""
        if len(returns) and (span := float(returns.max() - returns.min())) > 0:
            self.factor.fill_(self.SPAN / span)

    def forward(self, rewards: Tensor) -> Tensor:
        return rewards * self.factor


class OneHotInputs(nn.Module):
    """Preprocessing of categories [B, ...] into one-hot vectors, float32 [B, sum of categories].

    Args:
        counts: number of categories of each element.
        starts: number of each element's first category.
    """

    starts: Tensor

    def __init__(self, counts: list[int], starts: list[int]) -> None:
        super().__init__()
        self._counts = counts
        self.register_buffer("starts", torch.tensor(starts))
        self._padded = [not start <= 0 < start + count for count, start in zip(counts, starts, strict=True)]

    def forward(self, obs: Tensor) -> Tensor:
        """Map int [B, ...] to float32 [B, n]. Zeros, which pad windows, may be no category: then they are the first."""
        given = obs.long().reshape(obs.shape[0], -1)
        chosen = given - self.starts
        if any(self._padded):
            chosen.masked_fill_((given == 0) & torch.tensor(self._padded, device=given.device), 0)
        parts = [nn.functional.one_hot(chosen[:, i], count) for i, count in enumerate(self._counts)]
        return torch.cat(parts, dim=1).float()


class DictInputs(nn.Module):
    """Preprocessing of a dict of observations, each by inputs of its own."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.names = tuple(parts)  # modules are numbered instead: torch allows no dots in their names
        self.parts = nn.ModuleList(parts.values())

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map each observation by its own inputs, by key."""
        return {name: part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)}


def has(inputs: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether any observation is preprocessed by a ``kind``, such as ``FrameInputs`` or ``MeasuredInputs``."""
    return any(isinstance(part, kind) for part in inputs.modules())


def standardize(inputs: nn.Module, obs: Any, kind: type[nn.Module]) -> None:
    """Measure, over ``obs``, the statistics of all ``inputs`` that are a ``kind``."""
    if isinstance(inputs, DictInputs):
        for name, part in zip(inputs.names, inputs.parts, strict=True):
            standardize(part, obs[name], kind)
    elif isinstance(inputs, FrameInputs | MeasuredInputs) and isinstance(inputs, kind):
        inputs.standardize(obs)


def inputs_for(
    space: Space[Any], images: bool = True, standardize: bool = False, vectors: type[MeasuredInputs] = MeasuredInputs
) -> nn.Module:
    """Make the inputs for a space of arrays, of categories, or a dict of those.

    Args:
        images: whether images remain images or become flat vectors.
        standardize: vectors of numbers are standardized once ``standardize`` has measured some.
        vectors: how: by the last measurement, or by all (``RunningInputs``).
    Raises:
        ValueError: a space of another kind.
    """
    if isinstance(space, Dict):
        return DictInputs({name: inputs_for(one, images, standardize, vectors) for name, one in space.spaces.items()})
    if isinstance(space, Discrete):
        return OneHotInputs([int(space.n)], [int(space.start)])
    if isinstance(space, MultiDiscrete):
        return OneHotInputs(space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist())
    if isinstance(space, MultiBinary):
        return VectorInputs()
    if not isinstance(space, Box):
        raise ValueError(f"observations: got {space}, expected Box, Discrete, MultiDiscrete, MultiBinary or Dict")
    if images and image_shape(space) is not None:
        return FrameInputs(space.shape, 255.0 if space.dtype == np.uint8 else 1.0)
    bounds = (space.low, space.high) if space.dtype.kind in "iu" else ()
    return vectors(math.prod(space.shape), *bounds) if standardize else VectorInputs(*bounds)


def input_size(space: Space[Any]) -> int:
    """Return the length of the flat vector for a space."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    return math.prod(space.shape or ())


def fits_one_pass(obs: Tensor) -> bool:
    """Return whether ``in_one_pass`` supports ``obs``, and autocast computes in bfloat16."""
    return bool(
        obs.device.type == "cpu"
        and obs.dtype == torch.uint8
        and obs.dim() == 4
        and obs.shape[1] == ONE_PASS_STACK
        and obs.is_contiguous()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
    )


def in_one_pass(obs: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Standardize frames: (obs - mean) * (1 / scale); a product is quicker than a division for each pixel.

    torch takes five passes over a batch: to float, subtract, multiply, to bfloat16, channels last. In a small network's
    update they are a considerable part of the time.

    Args:
        obs: uint8 [B, 4, H, W].  mean: float32 [H, W].  scale: float32 [].
    Returns:
        bfloat16 [B, 4, H, W], channels last; bit by bit equal to torch's float32 result rounded to bfloat16.
    """
    count, _, height, width = obs.shape
    out = torch.empty((count, height, width, ONE_PASS_STACK), dtype=torch.bfloat16)
    words = out.view(torch.int16).numpy().view(np.uint64).reshape(count, height * width)
    core.standardize(
        obs.numpy().reshape(count, ONE_PASS_STACK, height * width),
        mean.numpy().reshape(-1),
        scale.reciprocal().item(),
        words,
    )
    return out.permute(0, 3, 1, 2)
