"""How full the first segments of lanes get, so that lanes written to together are not sealed in the same call."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.log.marks import WHOLE


def first_shares(lanes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return how full the first segment of each of ``lanes`` [n] gets: an eighth at least, spread evenly for any
    number of lanes (van der Corput's sequence). Lane 0 fills its whole segment."""
    reversed_bits = np.zeros(len(lanes), np.int64)
    for bit in range(16):
        reversed_bits |= (lanes >> bit & 1) << 15 - bit
    return (WHOLE - reversed_bits * 7 // 8).astype(np.int32)
