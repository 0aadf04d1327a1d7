"""Kernels that only kernels call, and arrays at an address. Also run with NUMBA_DISABLE_JIT=1."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from sharpwave.native.jit import inner_of, njit
from sharpwave.native.memory_ops import INTERPRETED, array_at


@njit(nogil=True, inner=True)
def _largest(values: np.ndarray) -> int:
    found = values[0]
    for value in values:
        if value > found:
            found = value
    return found


@njit(nogil=True, inner=True)
def _spread(values: np.ndarray) -> int:
    return _largest(values) + _largest(-values)


@njit(nogil=True)
def _sum_of_spreads(rows: np.ndarray) -> int:
    total = 0
    for i in range(len(rows)):
        total += _spread(rows[i]) * _largest(rows[i])
    return total


@njit(nogil=True)
def _twice(value: int) -> int:
    return 2 * value


_twice_within = inner_of(_twice)


@njit(nogil=True)
def _four_times(value: int) -> int:
    return _twice_within(_twice_within(value))


@njit(nogil=True)
def _halves(address: int, count: int) -> float:
    """Of float32 [2, count // 2] and of the same memory as uint8 [count * 4], element by element, mixed."""
    floats = array_at(address, (2, count // 2), np.float32)
    same = array_at(address, (count * 4,), np.uint8)
    total = 0.0
    for i in range(floats.shape[0]):
        for k in range(floats.shape[1]):
            total += (i + 1) * floats[i, k]
    same[0] = 0
    return total + same.size + floats[1, 0]


def test_inner_kernels_call_each_other_and_are_called_by_several() -> None:
    rows = np.array([[1, 5, -2], [4, 4, 4], [-3, 0, 9]])
    assert _sum_of_spreads(rows) == 7 * 5 + 0 * 4 + 12 * 9
    assert _sum_of_spreads(rows.astype(np.int32)) == 7 * 5 + 0 * 4 + 12 * 9, "other types, other code"


def test_an_inner_kernel_has_no_machine_code_of_its_own() -> None:
    _sum_of_spreads(np.ones((1, 1), np.int64))
    if not INTERPRETED:
        with pytest.raises((TypeError, ValueError)):
            _largest(np.ones(1, np.int64))


def test_a_kernel_that_python_calls_too_is_compiled_for_python_only_there() -> None:
    assert _four_times(3) == 12
    if not INTERPRETED:
        assert not _twice.overloads and _twice_within.overloads  # type: ignore[attr-defined]
    assert _twice(3) == 6


def test_arrays_at_an_address_share_its_memory() -> None:
    values = np.array([1, 2, 3, 4], np.float32)
    assert _halves(values.ctypes.data, 4) == 1 + 2 + 2 * (3 + 4) + 16 + 3
    assert values[0] == np.float32(np.frombuffer(b"\0\0\x80\x3f", np.float32)[0]), "its lowest byte was 0 before"
    values[0] = np.frombuffer(b"\1\0\x80\x3f", np.float32)[0]
    _halves(values.ctypes.data, 4)
    assert values[0] == 1


@pytest.mark.slow
def test_their_machine_code_comes_from_the_cache_with_their_callers(tmp_path) -> None:
    """The second process compiles nothing; the code that the first one left gives the same."""
    if INTERPRETED:
        pytest.skip("there is no machine code")
    program = (
        "import numpy as np, sharpwave as sw\n"
        "from sharpwave.native.jit import COMPILING\n"
        "store = sw.Store(sw.Spec(obs=sw.Field((3,), 'float32'), action=sw.Field((), 'int64')), capacity=100, seed=0)\n"
        "replay = store.transitions(seed=0)\n"
        "no = np.zeros(1, bool)\n"
        "for k in range(20):\n"
        "    store.extend(obs=np.full((1, 3), k, np.float32), action=np.ones(1, int), reward=np.full(1, k),\n"
        "                 terminated=no, truncated=no)\n"
        "print(replay.sample(8).obs.tolist(), len(COMPILING.names) > 0)\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True, text=True, check=True, timeout=280,
        ).stdout.rsplit(maxsplit=1)
        for _ in range(2)
    ]  # fmt: skip
    assert [compiled for _, compiled in runs] == ["True", "False"]
    assert runs[0][0] == runs[1][0]
