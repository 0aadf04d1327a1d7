"""Arrays of zeros that take no memory until they are written to.

``numpy.zeros`` promises this only for memory fresh from the system: in a process that has freed large arrays, the C
library reuses heap memory for them, and clears all of it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_BYTES = 1 << 16
"""Bytes below which arrays come from the heap: a mapping would save less than it costs."""
HUGE_BYTES = 4 << 20
"""Arrays from this size on request huge pages where asked to, as numpy's do."""
HUGE_PAGE = 2 << 20


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, huge_pages: bool = False) -> npt.NDArray[Any]:
    """Return zeros, C-contiguous, page by page untouched.

    Args:
        huge_pages: request them for large arrays: random reads take less time, and memory is committed 2 MiB at a time.

    Raises: MemoryError.
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * dtype.itemsize
    if nbytes < MIN_BYTES or not hasattr(mmap, "MAP_PRIVATE"):  # Windows commits no page before it is touched
        return np.zeros(shape, dtype)
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"store: the system has no {nbytes:,} bytes of address space ({error})") from error
    if huge_pages and nbytes >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
