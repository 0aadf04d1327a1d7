"""Arrays that grow at their end, as lanes do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def appended(array: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``array`` with ``values`` appended. Memory grows by doubling; pass the latest result in again to reuse
    it."""
    count, total = len(array), len(array) + len(values)
    memory = array.base if isinstance(array.base, np.ndarray) else array
    if len(memory) < total:
        memory = np.zeros(max(16, 2 * total), array.dtype)
        memory[:count] = array
    memory[count:total] = values
    return memory[:total]
