"""Memory access that numba lacks, for kernels: words at any alignment, copies, prefetches, atomics."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, config, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

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


# Sixteen bytes: in kernels a tuple of two words, since numba has no type for them, which LLVM makes one register again.
_BYTES, _WORDS = ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.IntType(64), 2)
_PAIR = types.UniTuple(types.uint64, 2)


@intrinsic
def _load_16(typing_context: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(_pointer_16(context, builder, signature, arguments), align=1)
        return _as_pair(context, builder, loaded)

    return _PAIR(array, types.intp), codegen


@intrinsic
def _load_literal(typing_context: Any, array: Any, index: Any, fill: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(_pointer_16(context, builder, signature, arguments), align=1)
        first = builder.extract_element(loaded, ir.IntType(32)(0))
        mask = _repeated(builder, builder.sext(arguments[2], ir.IntType(8)))
        return _as_pair(context, builder, _merged(builder, mask, _repeated(builder, first), loaded))

    return _PAIR(array, types.intp, types.boolean), codegen


@intrinsic
def _overlay(typing_context: Any, array: Any, index: Any, pair: Any, mask: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer_16(context, builder, signature, arguments)
        new, chosen = (_as_bytes(builder, argument) for argument in arguments[2:])
        builder.store(_merged(builder, chosen, new, builder.load(place, align=1)), place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, _PAIR, _PAIR), codegen


def _pointer_16(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.bitcast(_pointer(context, builder, signature, arguments), _BYTES.as_pointer())


def _merged(builder: Any, mask: Any, new: Any, old: Any) -> Any:
    return builder.or_(builder.and_(mask, new), builder.and_(builder.not_(mask), old))


def _repeated(builder: Any, byte: Any) -> Any:
    none = ir.Constant(_BYTES, ir.Undefined)
    first = ir.Constant(ir.VectorType(ir.IntType(32), 16), [0] * 16)
    return builder.shuffle_vector(builder.insert_element(none, byte, ir.IntType(32)(0)), none, first)


def _as_pair(context: Any, builder: Any, loaded: Any) -> Any:
    words = builder.bitcast(loaded, _WORDS)
    return context.make_tuple(builder, _PAIR, [builder.extract_element(words, ir.IntType(32)(i)) for i in (0, 1)])


def _as_bytes(builder: Any, pair: Any) -> Any:
    words = ir.Constant(_WORDS, ir.Undefined)
    for i in (0, 1):
        words = builder.insert_element(words, builder.extract_value(pair, i), ir.IntType(32)(i))
    return builder.bitcast(words, _BYTES)


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


@intrinsic
def _array_at(typing_context: Any, address: Any, shape: Any, dtype: Any) -> Any:
    kind = types.Array(dtype.dtype, len(shape), "C")

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        item = context.get_data_type(kind.dtype)
        item_bytes = context.get_abi_sizeof(item)
        lengths = cgutils.unpack_tuple(builder, arguments[1])
        strides: list[Any] = []
        stride = context.get_constant(types.intp, item_bytes)
        for length in reversed(lengths):
            strides.insert(0, stride)
            stride = builder.mul(stride, length)
        array = context.make_array(kind)(context, builder)
        data = builder.inttoptr(arguments[0], item.as_pointer())
        populate_array(array, data, lengths, strides, item_bytes, None)
        return array._getvalue()

    return kind(types.int64, types.UniTuple(types.int64, len(shape)), dtype), codegen


def _load_in_python(array: Bytes, index: int) -> np.uint64:
    return np.uint64(int.from_bytes(array[index : index + 8].tobytes(), "little"))


def _store_in_python(array: Bytes, index: int, word: np.uint64) -> None:
    array[index : index + 8] = np.frombuffer(int(word).to_bytes(8, "little"), np.uint8)


def _load_16_in_python(array: Bytes, index: int) -> Bytes:
    assert index >= 0 and index + 16 <= array.size
    return array[index : index + 16].copy()


def _load_literal_in_python(array: Bytes, index: int, fill: bool) -> Bytes:
    loaded = _load_16_in_python(array, index)
    return np.full(16, loaded[0], np.uint8) if fill else loaded


def _overlay_in_python(array: Bytes, index: int, new: Bytes, mask: Bytes) -> None:
    array[index : index + 16] = _load_16_in_python(array, index) & ~mask | new & mask


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


def _array_at_in_python(address: int, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    return carray(ctypes.c_void_p(int(address)), shape, dtype)


def _pointer_to_in_python(address: int) -> Any:
    return ctypes.c_void_p(int(address))


INTERPRETED: bool = config.DISABLE_JIT  # type: ignore[attr-defined]
"""Whether kernels run as plain Python (NUMBA_DISABLE_JIT=1)."""

load_word: Callable[[Bytes, int], np.uint64] = _load_in_python if INTERPRETED else _load  # type: ignore[assignment]
"""Load the word at byte ``index``. Nothing is checked: ``index + 8 <= array.size``."""

store_word: Callable[[Bytes, int, np.uint64], None] = _store_in_python if INTERPRETED else _store  # type: ignore[assignment]
"""Store a word at byte ``index``. Nothing is checked, as above."""

load_16: Callable[[Bytes, int], Any] = _load_16_in_python if INTERPRETED else _load_16  # type: ignore[assignment]
"""Load 16 bytes, from byte ``index`` on. Nothing is checked, as above."""

load_literal: Callable[[Bytes, int, bool], Any] = _load_literal_in_python if INTERPRETED else _load_literal  # type: ignore[assignment]
"""Load 16 bytes, or with ``fill`` the first of them 16 times, without a branch."""

overlay: Callable[[Bytes, int, Any, Any], None] = _overlay_in_python if INTERPRETED else _overlay  # type: ignore[assignment]
"""Store those of 16 bytes that are 255 in a mask, both from ``load_16``; the others are written as they were."""

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
"""Convert an address to a pointer, for C functions."""

array_at: Callable[[int, tuple[int, ...], Any], npt.NDArray[Any]] = _array_at_in_python if INTERPRETED else _array_at  # type: ignore[assignment]
"""Return the array of this shape and dtype at an address, which must outlive it. What ``numba.carray`` does; that is
compiled anew for each dtype and number of axes, 15 to 30 ms each."""
