"""The ``patches`` codec's kernels: patches whose shapes and literals are in a table of their column.

Sprites return in frame after frame. So of the patches that ``delta`` writes (``sharpwave.codecs.delta_kernels``), each
shape with its literal that a column has often is written once, in a table, and a patch is

    skip      as delta's
    code      1 byte: the number of an entry of the table; or 239 + the bytes of a literal: shape and literal follow, as
              delta's

The table holds, for each entry, a uint16 (little-endian): where in the table its shape lies, followed by its literal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.delta_kernels import INLINE, MAX_SKIP, MAX_WIDTH
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import load_word, store_word

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

BUCKETS = 1 << 12
"""Of the hash table in which patches are counted."""
MAX_UNIQUE = 3 * BUCKETS // 4
NOT_IN_TABLE = 255
MAX_PATCH_BYTES = 2 + 1 + MAX_WIDTH
GAINS = 1024
"""Entries that save more bytes than this count alike."""


@njit(nogil=True, cache=True)
def tabulated(table: Bytes) -> int:
    """Return the number of a table's entries; -1 if it is none: each must lie in it, behind all uint16s."""
    if not table.size:
        return 0
    if table.size < 2:
        return -1
    first = int(table[0]) + 256 * int(table[1])  # of bits, numba makes unsigned integers, and with -1 floats
    entries = first >> 1
    if first & 1 or not 0 < entries <= INLINE or first > table.size:
        return -1
    for entry in range(entries):
        start = int(table[2 * entry]) | int(table[2 * entry + 1]) << 8
        if start < first or start >= table.size:
            return -1
        shape = int(table[start])
        if start + 1 + (1 if shape & 128 else (shape & 15) + 1) > table.size:
            return -1
    return entries


@njit(nogil=True, cache=True, inner=True)
def _skipped(data: Bytes, cursor: int, stop: int) -> int:
    """Return where the shape of the patch at ``cursor`` lies, behind bare advances too; ``stop`` if none follows."""
    while cursor < stop:
        if data[cursor] < 128:
            return cursor + 1
        skip = (int(data[cursor]) & 127) << 8 | int(data[cursor + 1])
        cursor += 2
        if skip != MAX_SKIP:
            return cursor
    return stop


def tabulate(data: Bytes, offsets: npt.NDArray[np.uint32], out: Bytes, coded: npt.NDArray[np.uint32]) -> int:
    """Write delta's patches again, with a table; return how many bytes.

    Args:
        data, offsets: what ``delta_kernels.encode_column`` wrote: patches, and uint32 [entries + 1].
        out: at least ``data.size`` and a third of it more, and 16 bytes.
        coded: uint32 [entries + 2], receives offsets: of the table, and of every entry.

    Cost: some 20 ns a patch.
    """
    counted, buckets = np.zeros((4, BUCKETS), np.int32), np.empty(int(offsets[-1]) // 3 + 1, np.int16)
    return int(_tabulate(data, offsets, out, coded, counted, buckets))


@njit(nogil=True, cache=True)
def _tabulate(
    data: Bytes,
    offsets: npt.NDArray[np.uint32],
    out: Bytes,
    coded: npt.NDArray[np.uint32],
    counted: Int32s,
    buckets: npt.NDArray[np.int16],
) -> int:
    """Write the patches of ``tabulate``.

    Args:
        counted: int32 [4, BUCKETS] of zeros, working memory by bucket, which takes long to compile here: 1 + where in
            the data the first of its kind lies, 0 for none; how often it occurs, later its code; and of ``_choose``.
        buckets: int16 [patches] or more: of each patch; -1: not counted.
    """
    first, times = counted[0], counted[1]
    patches = unique = 0
    for entry in range(offsets.size - 1):
        cursor, stop = int(offsets[entry]), int(offsets[entry + 1])
        while True:
            at = _skipped(data, cursor, stop)
            if at >= stop:
                break
            shape = int(data[at])
            cursor = at + 1 + (1 if shape & 128 else (shape & 15) + 1)
            mixed = np.uint64(shape)
            for k in range(at + 1, cursor):
                mixed = (mixed ^ np.uint64(data[k])) * np.uint64(0x9E3779B97F4A7C15)
            bucket: Any = np.int64(mixed >> np.uint64(52)) & (BUCKETS - 1)
            while first[bucket]:
                other, alike = first[bucket] - 1, True
                for k in range(cursor - at):
                    if data[other + k] != data[at + k]:
                        alike = False
                        break
                if alike:
                    break
                bucket = (bucket + 1) & (BUCKETS - 1)
            if not first[bucket]:
                if unique == MAX_UNIQUE:
                    bucket = -1
                else:
                    first[bucket] = at + 1
                    unique += 1
            if bucket >= 0:
                times[bucket] += 1
            buckets[patches] = bucket
            patches += 1
    _choose(data, first, times, counted[2], counted[3])
    codes = times
    written = _write_table(data, first, codes, out)
    coded[0] = 0
    patches = 0
    for entry in range(offsets.size - 1):
        coded[entry + 1] = written
        cursor, stop = int(offsets[entry]), int(offsets[entry + 1])
        while cursor < stop:
            at = _skipped(data, cursor, stop)
            for k in range(cursor, at):
                out[written] = data[k]
                written += 1
            cursor = at
            if at >= stop:
                break
            shape = int(data[at])
            cursor = at + 1 + (1 if shape & 128 else (shape & 15) + 1)
            bucket = buckets[patches]
            patches += 1
            code = NOT_IN_TABLE if bucket < 0 else int(codes[bucket])
            out[written] = INLINE + (cursor - at - 2) if code == NOT_IN_TABLE else code
            written += 1
            if code == NOT_IN_TABLE:
                for k in range(at, cursor):
                    out[written] = data[k]
                    written += 1
    coded[offsets.size] = written
    return written


@njit(nogil=True, cache=True, inner=True)
def _choose(data: Bytes, first: Int32s, times: Int32s, gains: Int32s, histogram: Int32s) -> None:
    """Replace ``times`` by the code of each bucket [BUCKETS]: of the entries that save most; NOT_IN_TABLE for others.

    ``gains`` and ``histogram`` are zeros, for working.
    """
    for bucket in range(BUCKETS):
        if times[bucket] > 1:
            shape = int(data[first[bucket] - 1])
            literals = 1 if shape & 128 else (shape & 15) + 1
            gain = times[bucket] * (1 + literals) - (3 + literals)
            gains[bucket] = gain if gain < GAINS else GAINS
            if gain > 0:
                histogram[gains[bucket]] += 1
    least, taken = GAINS + 1, 0
    while least > 1 and taken + histogram[least - 1] <= INLINE:
        least -= 1
        taken += histogram[least]
    spare = INLINE - taken  # of those that save one byte less
    entries = 0
    for bucket in range(BUCKETS):
        kept = gains[bucket]
        times[bucket] = NOT_IN_TABLE
        if kept >= least or (kept == least - 1 and kept > 0 and spare > 0):
            spare -= kept < least
            times[bucket] = entries
            entries += 1


@njit(nogil=True, cache=True, inner=True)
def _write_table(data: Bytes, first: Int32s, codes: Int32s, out: Bytes) -> int:
    """Write the table; return how many bytes."""
    entries = 0
    for bucket in range(BUCKETS):
        entries += codes[bucket] != NOT_IN_TABLE
    written = 2 * entries
    for bucket in range(BUCKETS):
        code = int(codes[bucket])
        if code == NOT_IN_TABLE:
            continue
        out[2 * code], out[2 * code + 1] = written & 255, written >> 8
        at = first[bucket] - 1
        shape = int(data[at])
        for k in range(at, at + 1 + (1 if shape & 128 else (shape & 15) + 1)):
            out[written] = data[k]
            written += 1
    return written


@njit(nogil=True, cache=True, inner=True)
def write_plain(data: Bytes, cursor: int, stop: int, table: int, codes: int, out: Bytes, written: int) -> int:
    """Write the patches ``data[cursor:stop]`` again as delta's, without a table, to ``out`` from ``written`` on.

    Args:
        table, codes: as of ``delta_kernels.paint``.

    Returns where they end in ``out``; -1 if it may be too small.  Cost: some 5 ns a patch.
    """
    while cursor < stop:
        if written + MAX_PATCH_BYTES > out.size:
            return -1
        skip = int(data[cursor])
        out[written] = skip
        cursor += 1
        written += 1
        if skip >= 128:
            low = int(data[cursor])
            out[written] = low
            cursor += 1
            written += 1
            if (skip & 127) << 8 | low == MAX_SKIP:
                continue
        code = int(data[cursor])
        cursor += 1
        if code < codes:
            at = table + (int(data[table + 2 * code]) | int(data[table + 2 * code + 1]) << 8)
            shape = int(data[at])
            nbytes = 2 if shape & 128 else (shape & 15) + 2
        else:
            at, nbytes = cursor, code - INLINE + 2
            cursor += nbytes
        if at + 17 <= data.size:  # whole words: a loop over few bytes costs several times their stores
            out[written] = data[at]
            store_word(out, written + 1, load_word(data, at + 1))
            store_word(out, written + 9, load_word(data, at + 9))
        else:
            for k in range(nbytes):
                out[written + k] = data[at + k]
        written += nbytes
    return written


def coded_bytes(nbytes: int) -> int:
    """Return an upper bound of what ``tabulate`` writes of ``nbytes``: each patch has three or more, and gains one."""
    return nbytes + nbytes // 3 + INLINE * (3 + MAX_WIDTH) + 16
