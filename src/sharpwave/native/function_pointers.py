"""Kernels called by address, so that a compiled loop can call functions it was not compiled with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sharpwave.native import jit
from sharpwave.native.memory_ops import INTERPRETED

_compiled: dict[Callable[[int], int], Any] = {}  # keeps the machine code
_interpreted: dict[int, Callable[[int], int]] = {}


@intrinsic
def _call(typing_context: Any, address: Any, argument: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        function = builder.inttoptr(arguments[0], ir.FunctionType(word, [word]).as_pointer())
        return builder.call(function, [arguments[1]])

    return types.int64(types.int64, types.int64), codegen


def _call_in_python(address: int, argument: int) -> int:
    return _interpreted[int(address)](argument)


call: Callable[[int, int], int] = _call_in_python if INTERPRETED else _call  # type: ignore[assignment]
"""Call the function at an address from ``address_of`` with one integer. Cost: 2 ns."""


def address_of(function: Callable[[int], int]) -> int:
    """Compile ``function``, which takes and returns an int64, and return its address, valid until the process ends.

    For more than one argument, the number is the address of an array that holds them.
    """
    if INTERPRETED:
        _interpreted[id(function)] = function
        return id(function)
    if function not in _compiled:
        signature = types.int64(types.int64)
        _compiled[function] = numba.cfunc(signature, cache=jit.CACHED)(function)
    return int(_compiled[function].address)
