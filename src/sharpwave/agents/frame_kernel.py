"""Stored frames -> standardized bfloat16 with the channels last, in one pass on the CPU.

torch takes five passes over a batch: to float, subtract, multiply, to bfloat16, channels last. In a small network's
update they are a considerable part of the time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sharpwave.native.jit import njit

STACK = 4
"""Frames of an observation: four bfloat16 fill a 64-bit word."""


def fits_one_pass(obs: Tensor) -> bool:
    """Return whether ``in_one_pass`` supports ``obs``, and autocast computes in bfloat16."""
    return bool(
        obs.device.type == "cpu"
        and obs.dtype == torch.uint8
        and obs.dim() == 4
        and obs.shape[1] == STACK
        and obs.is_contiguous()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
    )


def in_one_pass(obs: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Standardize frames: (obs - mean) * (1 / scale); a product is quicker than a division for each pixel.

    Args:
        obs: uint8 [B, 4, H, W].  mean: float32 [H, W].  scale: float32 [].
    Returns:
        bfloat16 [B, 4, H, W], channels last; bit by bit equal to torch's float32 result rounded to bfloat16.
    """
    count, _, height, width = obs.shape
    out = torch.empty((count, height, width, STACK), dtype=torch.bfloat16)
    words = out.view(torch.int16).numpy().view(np.uint64).reshape(count, height * width)
    _standardize(
        obs.numpy().reshape(count, STACK, height * width),
        mean.numpy().reshape(-1),
        np.float32(scale.reciprocal().item()),
        words,
    )
    return out.permute(0, 3, 1, 2)


@njit(nogil=True, cache=True)
def _standardize(
    obs: npt.NDArray[np.uint8], mean: npt.NDArray[np.float32], factor: np.float32, out: npt.NDArray[np.uint64]
) -> None:
    """Fill ``out`` [B, H * W] from obs [B, 4, H * W] and mean [H * W]: four bfloat16 a word, the first lowest."""
    count, stack, pixels = obs.shape
    halves = np.empty((stack, pixels), np.uint32)
    values = np.empty(pixels, np.float32)
    bits = values.view(np.uint32)
    for i in range(count):
        for k in range(stack):
            frame, half = obs[i, k], halves[k]
            for j in range(pixels):
                values[j] = (np.float32(frame[j]) - mean[j]) * factor
            for j in range(pixels):  # rounds to nearest, ties to even
                half[j] = (bits[j] + np.uint32(0x7FFF) + ((bits[j] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        for j in range(pixels):
            low = np.uint64(halves[0, j]) | (np.uint64(halves[1, j]) << np.uint64(16))
            high = np.uint64(halves[2, j]) | (np.uint64(halves[3, j]) << np.uint64(16))
            out[i, j] = low | (high << np.uint64(32))
