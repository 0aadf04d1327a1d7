"""Kinds of arguments that Python or numpy would take for others."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt


def is_integer(value: Any) -> bool:
    """Return whether ``value`` is an integer; ``True`` and ``False``, which Python counts as 1 and 0, are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether ``value`` is an integer or a float."""
    return is_integer(value) or isinstance(value, (float, np.floating))


def as_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return ``value`` as an array, aligned as the core reads it.

    Raises: TypeError: it is masked; values under a mask are not meant.
    """
    # A masked array's owner has imported its module; another thread may be about to.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(value, masked):
        raise TypeError(
            f"{name}: got a masked array of shape {value.shape}, expected an array without a mask; pass "
            f"{name}.filled(value), with what stands for the masked elements"
        )
    array = np.asarray(value)
    return array if array.flags.aligned else array.copy()  # a buffer may hold other data before it
