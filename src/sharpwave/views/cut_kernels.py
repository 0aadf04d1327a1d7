"""Kernels that cut the rows which a batch needs out of their segments, and that check what was cut elsewhere.

Cut rows are windows one after another, each at a multiple of 8 bytes: a word uint32, the bytes of its payload; a word
with the codec's number (bits 0 to 7), the dictionary's place (8 to 15) and how many rows the window lacks before its
episode's first (16 to 31); the payload; and zeros up to the next. All numbers are little-endian.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import cut
from sharpwave.codecs.raw import RAW
from sharpwave.codecs.registry import BECOMES, CHECK, WRITE
from sharpwave.native.function_pointers import call
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import copy, prefetch
from sharpwave.views.gather_kernels import read_column

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

HEAD_BYTES = 8
MAX_MISSING = (1 << 16) - 1
AHEAD = 4
"""Windows between a prefetch and its use, on each of three levels."""


@njit(nogil=True, cache=True)
def cut_windows(
    column_words: Ints, cuts: Ints, slot: Ints, newest: Ints, first: Ints, length: Ints, out: Bytes, used: Bytes,
    left: Ints,
) -> int:  # fmt: skip
    """Write the rows ``newest - length + 1`` to ``newest`` of n columns, from ``first`` on, to ``out``.

    Rows whose codec has no kernel get room, for raw ones.

    Args:
        column_words: from ``gather_kernels.write_column``. ``cuts``: from ``registry.cuts``.
        out: memory at a multiple of 8.
        used: uint8 [places], set where a dictionary is referred to.
        left: int64 [n], receives where in ``out`` rows without a kernel go; 0 for others.

    Returns the bytes written, or -1 where ``out`` is too small.
    """
    column = read_column(column_words)
    memory, size = column.memory, column.references.shape[1]
    words, out_words = np.empty(cut.CUT_WORDS, np.int64), out.view(np.uint32)
    words[cut.MEMORY], words[cut.MEMORY_BYTES] = memory.ctypes.data, memory.size
    words[cut.SIZE], words[cut.LINE], words[cut.END] = size, column.line, 0
    written = 0
    for i in range(slot.size):
        if i + 3 * AHEAD < slot.size:
            s = slot[i + 3 * AHEAD]
            prefetch(column.offset, s)
            prefetch(column.codec, s)
            prefetch(column.counts, s)
            prefetch(column.dictionary, s)
        if i + 2 * AHEAD < slot.size:
            s = slot[i + 2 * AHEAD]
            prefetch(column.words, column.offset[s] >> 2)
            prefetch(column.words, (column.offset[s] >> 2) + newest[i + 2 * AHEAD])
        if i + AHEAD < slot.size:
            s = slot[i + AHEAD]
            entry = (column.offset[s] >> 2) + newest[i + AHEAD]
            if column.codec[s] != RAW and entry < column.words.size:
                at = column.offset[s] + 4 * column.counts[s] + int(column.words[entry])
                for line in range(-256, 128, 64):
                    prefetch(memory, at + line)
        s = slot[i]
        oldest = newest[i] - length[i] + 1
        lowest = max(oldest, first[i])
        begin = written + HEAD_BYTES
        codec, place, becomes = int(column.codec[s]), int(column.dictionary[s]), RAW
        left[i] = 0
        if begin > out.size:
            return -1
        if codec != RAW and cuts[WRITE, codec]:
            words[cut.BEGIN], words[cut.ROWS] = column.offset[s], column.counts[s]
            words[cut.FIRST], words[cut.LAST] = lowest, newest[i]
            words[cut.OUT], words[cut.OUT_BYTES] = out.ctypes.data + begin, out.size - begin
            nbytes = call(cuts[WRITE, codec], words.ctypes.data)
            becomes = int(cuts[BECOMES, codec])
            used[place] = 1
        else:
            nbytes, place = (newest[i] - lowest + 1) * size, 0
            if begin + nbytes > out.size:
                nbytes = -1
            elif codec == RAW:
                copy(out, begin, memory, column.offset[s] + lowest * size, nbytes)
            else:
                left[i] = begin
        end = (begin + nbytes + 7) & -8
        if nbytes < 0 or end > out.size:
            return -1
        for k in range(begin + nbytes, end):
            out[k] = 0
        out_words[written >> 2] = nbytes
        out_words[(written >> 2) + 1] = becomes | place << 8 | (lowest - oldest) << 16
        written = end
    return written


@njit(nogil=True, cache=True)
def index_windows(
    memory: Bytes, words: npt.NDArray[np.uint32], cuts: Ints, length: Ints, size: int, line: int, known: Bytes,
    offset: Ints, end: Ints, codec: Bytes, dictionary: Int32s, counts: Int32s,
) -> int:  # fmt: skip
    """Check n windows of ``length`` [n] rows in ``memory``, and index them as columns.

    Args:
        memory, words: a stranger's bytes, as uint8 and as uint32.
        size, line: bytes of a row, and from a pixel to the one below.
        known: uint8 [places], whether there is a dictionary.
        offset, end, codec, dictionary, counts: [n], receive where each payload lies, its codec, its dictionary's
            place, and its rows.

    Returns n; or the number of the first window that is none; -1 where more bytes follow the last.
    """
    about = np.empty(cut.CUT_WORDS, np.int64)
    about[cut.MEMORY], about[cut.MEMORY_BYTES] = memory.ctypes.data, memory.size
    about[cut.SIZE], about[cut.LINE], about[cut.OUT_BYTES] = size, line, 0
    about[cut.OUT] = memory.ctypes.data
    at = 0
    for i in range(length.size):
        if at + HEAD_BYTES > memory.size:
            return i
        nbytes, what = np.int64(words[at >> 2]), np.int64(words[(at >> 2) + 1])
        offset[i], end[i] = at + HEAD_BYTES, at + HEAD_BYTES + nbytes
        codec[i], dictionary[i] = what & 255, what >> 8 & 255
        rows = length[i] - (what >> 16)
        if rows < 1 or end[i] > memory.size or not known[dictionary[i]]:
            return i
        counts[i] = rows
        if codec[i] == RAW:
            if nbytes != rows * size:
                return i
        elif not cuts[CHECK, codec[i]]:
            return i
        else:
            about[cut.BEGIN], about[cut.END], about[cut.ROWS] = offset[i], end[i], rows
            if call(cuts[CHECK, codec[i]], about.ctypes.data) != 1:
                return i
        at = (end[i] + 7) & -8
    return length.size if at == memory.size else -1
