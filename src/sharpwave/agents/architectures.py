"""Names of the networks that an agent can have, and their convolutions: a table, which settings read without torch."""

from __future__ import annotations

# Each convolution: channels, kernel, stride.
CONVOLUTIONS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. (2015); 84x84 -> 7x7x64
    "efficient": ((32, 5, 5), (64, 5, 5)),  # van Hasselt et al. (2019), data-efficient Rainbow; 84x84 -> 3x3x64
    "small": ((16, 6, 3), (32, 4, 2)),  # for frames of some 42x42; -> 5x5x32
    "tiny": ((16, 3, 1),),  # Young and Tian (2019), MinAtar; 10x10 -> 8x8x16
}
NETWORKS = ("auto", *CONVOLUTIONS, "mlp")
MIN_SIDES = {"nature": 64, "small": 30, "tiny": 5}
"""Smallest shorter side of frames for which "auto" chooses each network."""
