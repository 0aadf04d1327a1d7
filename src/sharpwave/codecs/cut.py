"""Cutting: a codec writes some of a column's rows as a small payload, encoded, for a process that decodes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import array_at, copy

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

CUT_WORDS = 11
MEMORY, MEMORY_BYTES, BEGIN, END, ROWS, SIZE, LINE, FIRST, LAST, OUT, OUT_BYTES = range(CUT_WORDS)
"""Words at the address that a kernel receives: numbers, and addresses of arrays."""
TOO_SMALL = -1


@dataclass(frozen=True)
class Cut:
    """Kernels of a codec whose rows are sent encoded. Each takes the address of the words that ``read_rows`` reads.

    They are plain functions, compiled for the first batch that needs them.

    Attributes:
        write: writes rows ``first`` to ``last`` of a column that passed ``Codec.check`` to ``out`` as a payload with
            the same dictionary; returns its bytes, or ``TOO_SMALL`` if ``out`` is. It reads no ``end``.
        number: of the codec that this payload is of, if it is another one.
        check: returns 1 if the payload ``memory[begin:end]``, a stranger's, holds ``rows`` rows as
            ``Codec.check`` has it, else 0. ``None``: no payloads of this codec are sent, as ``number`` is another's.
    """

    write: Callable[[int], int]
    check: Callable[[int], int] | None = None
    number: int | None = None


class Rows(NamedTuple):
    """Rows of one column, and memory to write to.

    Attributes:
        memory, words: bytes that hold the payload, as uint8 and as uint32.
        begin, end: of the payload in ``memory``; ``begin`` is a multiple of 8.
        rows, size: number of rows in it, and bytes of each.
        line: bytes from a pixel to the one below, 0 for none.
        first, last: rows to write.
        out, out_words: memory to write to, as uint8 and as uint32.
    """

    memory: Bytes
    words: npt.NDArray[np.uint32]
    begin: int
    end: int
    rows: int
    size: int
    line: int
    first: int
    last: int
    out: Bytes
    out_words: npt.NDArray[np.uint32]


@njit(nogil=True, cache=True, inner=True)
def read_rows(address: int) -> Rows:
    """Return the rows whose words lie at ``address``."""
    words = array_at(address, (CUT_WORDS,), np.int64)
    memory, nbytes, out, room = words[MEMORY], words[MEMORY_BYTES], words[OUT], words[OUT_BYTES]
    return Rows(
        array_at(memory, (nbytes,), np.uint8),
        array_at(memory, (nbytes >> 2,), np.uint32),
        words[BEGIN],
        words[END],
        words[ROWS],
        words[SIZE],
        words[LINE],
        words[FIRST],
        words[LAST],
        array_at(out, (room,), np.uint8),
        array_at(out, (room >> 2,), np.uint32),
    )


@njit(nogil=True, cache=True, inner=True)
def write_entries(rows: Rows, common: int) -> int:
    """Write some entries of a payload of offsets and entries, as ``Cut.write`` does.

    Args:
        common: entries before the first row's, which are written too.
    """
    table, packed, count = rows.begin >> 2, rows.begin + 4 * (rows.rows + common + 1), rows.last - rows.first + 1
    words, out = rows.words, rows.out_words
    shared = int(words[table + common])
    begin, end = int(words[table + common + rows.first]), int(words[table + common + rows.last + 1])
    head = 4 * (count + common + 1)
    written = head + shared + end - begin
    if written > rows.out.size:
        return TOO_SMALL
    for k in range(common):
        out[k] = words[table + k]
    for k in range(count + 1):
        out[common + k] = shared + int(words[table + common + rows.first + k]) - begin
    copy(rows.out, head, rows.memory, packed, shared)
    copy(rows.out, head + shared, rows.memory, packed + begin, end - begin)
    return written


@njit(nogil=True, cache=True, inner=True)
def offsets_rise(rows: Rows, entries: int) -> bool:
    """Return whether a payload begins with offsets of so many entries that fill it, as ``offsets.read_offsets``
    requires."""
    nbytes = rows.end - rows.begin - 4 * (entries + 1)
    table = rows.begin >> 2
    if nbytes < 0 or rows.words[table] != 0:
        return False
    for entry in range(entries):
        if rows.words[table + entry] > rows.words[table + entry + 1]:
            return False
    return int(rows.words[table + entries]) == nbytes


def write_frames(address: int) -> int:
    """Write rows of a payload that has an offset and an entry for each row."""
    return write_entries(read_rows(address), 0)


def check_frames(address: int) -> int:
    """Check the offsets of such a payload."""
    rows = read_rows(address)
    return 1 if offsets_rise(rows, rows.rows) else 0


FRAMES = Cut(write_frames, check_frames)
"""Of codecs whose payload has an offset and an entry for each row, which decoding checks."""
