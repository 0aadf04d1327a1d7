"""Functions that compiled code calls by address. Also run with NUMBA_DISABLE_JIT=1."""

from __future__ import annotations

import numpy as np

from sharpwave.native.function_pointers import address_of, call
from sharpwave.native.jit import njit


def _doubled(number: int) -> int:
    return 2 * number


def _negated(number: int) -> int:
    return -number


@njit(nogil=True)
def _call_all(addresses: np.ndarray, number: int) -> int:
    total = 0
    for address in addresses:
        total += call(address, number)
    return total


def test_a_compiled_loop_calls_functions_it_was_not_compiled_with() -> None:
    addresses = np.array([address_of(_doubled)])
    assert _call_all(addresses, 21) == 42
    addresses = np.array([address_of(_doubled), address_of(_negated), address_of(_negated)])
    assert _call_all(addresses, 2**40) == 0
    assert address_of(_doubled) == addresses[0], "compiled once"
