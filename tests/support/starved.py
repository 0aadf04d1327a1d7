"""Memory that runs out at any chosen allocation of an array."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

SET_HANDLER = 304
"""Place of ``PyDataMem_SetHandler`` in numpy's table of functions, since numpy 1.22."""
AT, COUNT = range(2)
"""Numbers that the allocator works by."""

_libc = ctypes.CDLL(None)
_malloc, _calloc, _realloc, _free = _libc.malloc, _libc.calloc, _libc.realloc, _libc.free
_malloc.restype = _calloc.restype = _realloc.restype = ctypes.c_void_p
_malloc.argtypes, _calloc.argtypes = [ctypes.c_size_t], [ctypes.c_size_t, ctypes.c_size_t]
_realloc.argtypes, _free.argtypes, _free.restype = [ctypes.c_void_p, ctypes.c_size_t], [ctypes.c_void_p], None
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_numbers = types.CPointer(types.int64)


class Handler(ctypes.Structure):
    """``PyDataMem_Handler``."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        *((name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")),
    ]


@cache
def _functions() -> list[Any]:
    """Return malloc, calloc, realloc and free, compiled, as they are also called while an exception is on its way."""

    @numba.njit
    def fails(numbers: Any) -> bool:
        state = numba.carray(numbers, 2)  # type: ignore[attr-defined]
        if state[AT] == 0:
            return False
        state[COUNT] += 1
        if state[COUNT] < state[AT]:
            return False
        state[AT] = 0
        return True

    @numba.cfunc(types.uintp(_numbers, types.uintp))
    def malloc_or_not(numbers: Any, nbytes: int) -> int:
        return 0 if fails(numbers) else _malloc(nbytes)

    @numba.cfunc(types.uintp(_numbers, types.uintp, types.uintp))
    def calloc_or_not(numbers: Any, count: int, nbytes: int) -> int:
        return 0 if fails(numbers) else _calloc(count, nbytes)

    @numba.cfunc(types.uintp(_numbers, types.uintp, types.uintp))
    def realloc_or_not(numbers: Any, old: int, nbytes: int) -> int:
        return 0 if fails(numbers) else _realloc(old, nbytes)

    @numba.cfunc(types.void(_numbers, types.uintp, types.uintp))
    def free_it(numbers: Any, old: int, nbytes: int) -> None:
        _free(old)

    return [malloc_or_not, calloc_or_not, realloc_or_not, free_it]


class Memory:
    """Memory of arrays of this thread, of which one allocation fails, that which is asked for."""

    def __init__(self) -> None:
        self._numbers = np.zeros(2, np.int64)
        handler = Handler(b"starved", 1, self._numbers.ctypes.data, *(one.address for one in _functions()))
        _kept.append((handler, self._numbers))  # arrays that it made know it for as long as they live
        self.capsule = _new_capsule(ctypes.addressof(handler), b"mem_handler", None)

    def fail_at(self, at: int) -> None:
        """Let the ``at``-th allocation from now on fail (from 1), and none after it; 0: let none fail."""
        self._numbers[AT], self._numbers[COUNT] = at, 0


_kept: list[Any] = []


@contextlib.contextmanager
def starved() -> Iterator[Memory]:
    """Arrays in this block, of this thread, are made in the memory that is returned."""
    core: Any = np._core  # type: ignore[attr-defined]
    table = ctypes.cast(_capsule_pointer(core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
    memory = Memory()
    before = set_handler(memory.capsule)
    try:
        yield memory
    finally:
        set_handler(before)
