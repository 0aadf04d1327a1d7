"""Marks of steps and lanes, as ``steps.hpp`` of the core has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.spec import TERMINATED, TRUNCATED

Bytes = npt.NDArray[np.uint8]

ENDED = TERMINATED | TRUNCATED
WHOLE = 1 << 16
"""Share of a segment's steps after which it is sealed, but for a lane's first: all of them."""
JUST_ENDED = 1
"""Bit of ``Lanes.watch``: the last frame of the lane's open segment is an observation after an episode's end that was
given, and that the lane's next step is not compared with yet."""
SEALED_NEXT = 1
"""Share of a segment that is sealed before its lane's next step, however few steps it has, unless it has none."""


def as_bytes(rows: npt.NDArray[Any], count: int) -> Bytes:
    """Return C-contiguous rows [count, *shape] as uint8 [count, size], without a copy."""
    data: Bytes = rows.reshape(count, -1).view(np.uint8)
    return data
