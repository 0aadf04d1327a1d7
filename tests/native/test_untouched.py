"""Zeros that take no memory until they are written to."""

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sharpwave.native.untouched import MIN_BYTES, zeros

GROWTH = """
import ctypes
import re
from pathlib import Path
import numpy as np
from sharpwave.native.untouched import zeros

def anonymous():
    ctypes.CDLL(None).malloc_trim(0)  # which takes back pages in the middle of the heap
    return int(re.search(r"RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

del [np.ones(8 << 20, np.uint8)][:]  # from now on the C library serves smaller requests from its heap
used = [np.ones(256 << 10, np.uint8) for _ in range(64)]
kept = used[1::2]
del used
before = anonymous()
made = [zeros(256 << 10, np.uint8) for _ in range(32)]
found = anonymous() - before
for one in made:
    one[::4096] = 1
print(found, anonymous() - before)
"""
"""Prints by how much memory grows with 8 MiB of zeros, and by how much once they are written to."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_freed_before_is_not_committed_for_them() -> None:
    ran = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    untouched, touched = map(int, ran.stdout.split())
    assert untouched < 1 << 20
    assert touched > 7 << 20


@pytest.mark.parametrize("shape", [0, 5, (0, 7), (3, MIN_BYTES), (2, 4 << 20), MIN_BYTES])
@pytest.mark.parametrize("dtype", [np.int64, np.bool_])
@pytest.mark.parametrize("huge_pages", [False, True])
def test_they_are_numpys_zeros(shape: int | tuple[int, ...], dtype: type, huge_pages: bool) -> None:
    made = zeros(shape, dtype, huge_pages=huge_pages)
    numpys: npt.NDArray[Any] = np.zeros(shape, dtype)
    assert (made.shape, made.dtype, made.flags.c_contiguous) == (numpys.shape, numpys.dtype, True)
    assert made.flags.writeable and made.flags.aligned
    assert not made.any()
    made[...] = 1
    assert made.all()


def test_no_address_space_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        zeros(1 << 60, np.uint8)
