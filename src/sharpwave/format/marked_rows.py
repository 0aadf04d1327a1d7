"""Marked steps as checkpoints and store folders have them, deleted ones or ones with a value: a bit a row of a slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sharpwave.arrays import Bools, Ints

DELETED, VALUED = "deleted", "written"
"""Names of the marks in a state."""


def packed(mark: str, generation: Ints, marked: Bools) -> dict[str, Any]:
    """Return the state for ``unpacked``.

    Args:
        generation: int64 [slots], of the slots' segments. ``marked``: bool [slots * stride].
    """
    return {"generation": generation.copy(), mark: np.packbits(marked)}


def unpacked(mark: str, state: Mapping[str, Any], stride: int) -> tuple[Ints, Ints]:
    """Return the slots' rows that are marked, slot times stride plus row, rising, and the generations of their ids.

    Raises: KeyError, TypeError, ValueError: not such a state.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"{mark} steps: {type(state).__name__}, expected a dict")
    generation, bits = state["generation"], state[mark]
    for array, dtype in ((generation, np.int64), (bits, np.uint8)):
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            raise ValueError(f"{mark} steps: expected arrays [n] of int64 generations and of bytes, got {array!r:.40}")
    steps = len(generation) * stride
    if len(bits) != -(-steps // 8):
        raise ValueError(f"{mark} steps: {len(bits):,} bytes for {steps:,} steps")
    leaves = np.flatnonzero(np.unpackbits(bits, count=steps))
    return leaves, generation[leaves // stride]
