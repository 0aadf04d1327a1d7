"""Memory access that numba lacks, for kernels: words at any alignment, copies, prefetches, atomics."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]


@intrinsic
def _load(typing_context: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, arguments), align=1)

    return types.uint64(array, types.intp), codegen


@intrinsic
def _store(typing_context: Any, array: Any, index: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _pointer(context, builder, signature, arguments), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


@intrinsic
def _copy(typing_context: Any, target: Any, at: Any, source: Any, begin: Any, nbytes: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ends = []
        for i in (0, 2):
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            ends.append(builder.gep(array.data, [arguments[i + 1]]))
        cgutils.raw_memcpy(builder, ends[0], ends[1], arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), codegen


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(prefetch, [place, number(0), number(3), number(1)])  # to read, into every cache, data
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def _fetch_add(typing_context: Any, array: Any, index: Any, amount: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def _exchange(typing_context: Any, array: Any, index: Any, expected: Any, desired: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(context, builder, signature, arguments)
        return builder.extract_value(builder.cmpxchg(place, arguments[2], arguments[3], "seq_cst"), 1)

    return types.boolean(array, types.intp, types.int64, types.int64), codegen


@intrinsic
def _pointer_to(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


def _load_in_python(array: Bytes, index: int) -> np.uint64:
    return np.uint64(int.from_bytes(array[index : index + 8].tobytes(), "little"))


def _store_in_python(array: Bytes, index: int, word: np.uint64) -> None:
    array[index : index + 8] = np.frombuffer(int(word).to_bytes(8, "little"), np.uint8)


def _copy_in_python(target: Bytes, at: int, source: Bytes, begin: int, nbytes: int) -> None:
    target[at : at + nbytes] = source[begin : begin + nbytes]


def _prefetch_in_python(array: Any, index: int) -> None:
    pass


_one_at_a_time = threading.Lock()


def _fetch_add_in_python(array: Words, index: int, amount: int) -> int:
    with _one_at_a_time:
        before = int(array[index])
        array[index] += amount
        return before


def _exchange_in_python(array: Words, index: int, expected: int, desired: int) -> bool:
    with _one_at_a_time:
        if array[index] != expected:
            return False
        array[index] = desired
        return True


def _pointer_to_in_python(address: int) -> Any:
    return ctypes.c_void_p(int(address))


INTERPRETED: bool = config.DISABLE_JIT  # type: ignore[attr-defined]
"""Whether kernels run as plain Python (NUMBA_DISABLE_JIT=1)."""

load_word: Callable[[Bytes, int], np.uint64] = _load_in_python if INTERPRETED else _load  # type: ignore[assignment]
"""Load the word at byte ``index``. Nothing is checked: ``index + 8 <= array.size``."""

store_word: Callable[[Bytes, int, np.uint64], None] = _store_in_python if INTERPRETED else _store  # type: ignore[assignment]
"""Store a word at byte ``index``. Nothing is checked, as above."""

copy: Callable[[Bytes, int, Bytes, int, int], None] = _copy_in_python if INTERPRETED else _copy  # type: ignore[assignment]
"""Copy: ``target[at : at + nbytes] = source[begin : begin + nbytes]``, which must not overlap. As fast as the
system's ``memcpy``, where numba copies a slice byte by byte. Nothing is checked."""

prefetch: Callable[[npt.NDArray[Any], int], None] = _prefetch_in_python if INTERPRETED else _prefetch  # type: ignore[assignment]
"""Prefetch the cache line of item ``index`` without waiting. Any index will do: nothing is read."""

fetch_add: Callable[[Words, int, int], int] = _fetch_add_in_python if INTERPRETED else _fetch_add  # type: ignore[assignment]
"""Add to item ``index`` of int64s that threads share; return its value before. Orders all memory access."""

exchange: Callable[[Words, int, int, int], bool] = _exchange_in_python if INTERPRETED else _exchange  # type: ignore[assignment]
"""Set item ``index`` to ``desired`` if it is ``expected``; return whether it was. Orders all memory access."""

pointer_to: Callable[[int], Any] = _pointer_to_in_python if INTERPRETED else _pointer_to  # type: ignore[assignment]
"""Convert an address to a pointer, for ``numba.carray`` and C functions."""
