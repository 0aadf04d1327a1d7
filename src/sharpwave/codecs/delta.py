"""Codecs ``delta`` and ``patches``: frames as patches over a background common to the column's frames.

Payload of delta: uint32 offsets [n + 2], then patches (``sharpwave.codecs.delta_kernels``): first those that turn the
reference row, which is the dictionary, into the column's background, then those that turn the background into each row.

That of patches: uint32 offsets [n + 3], then a table of patches that return (``sharpwave.codecs.patch_tables``), then
the same entries with codes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import delta_kernels as kernels
from sharpwave.codecs.cut import TOO_SMALL, Cut, offsets_rise, read_rows, write_entries
from sharpwave.codecs.fused import Fused, Window, read_window
from sharpwave.codecs.offsets import read_offsets
from sharpwave.codecs.patch_tables import coded_bytes, tabulate, tabulated, write_plain
from sharpwave.codecs.protocol import Codec, Competition, Encoder, Packed
from sharpwave.errors import DamagedError
from sharpwave.native.jit import inner_of, njit
from sharpwave.native.memory_ops import prefetch

Bytes = npt.NDArray[np.uint8]


_paint = inner_of(kernels.paint)


@njit(nogil=True, cache=True, inner=True)
def gather(window: Window, codes: int) -> None:
    """Decode a window's rows, in ascending order.

    Args:
        codes: entries of the column's table; -1: patches without codes, and no table before them.

    Cost: 0.2 us a row of 7 KB of Pong where the batch stays in the cache, of which 0.1 us writes it. Sequences took 1.9
    times as long with the background in the batch's memory and rows in descending order.
    """
    length, size = window.out.shape
    behind = codes >= 0  # the background's entry lies behind the table's
    table = (window.begin >> 2) + behind
    packed = window.begin + 4 * (window.rows + 2 + behind)
    memory, words, line, out = window.memory, window.words, window.line, window.out
    # The only row of a window is painted over its own background, which spares a copy.
    background, dictionary = window.scratch if length > 1 else out[0], window.dictionary
    for k in range(size):
        background[k] = dictionary[k]
    begin = packed + int(words[table])
    _paint(memory, begin, packed + int(words[table + 1]), packed, codes, line, background)
    for j in range(length):
        wanted = window.newest - length + 1 + j
        target = out[j]
        if wanted < window.first and window.zeros:
            target[:] = 0
            continue
        if length > 1:
            for k in range(size):
                target[k] = background[k]
        entry = table + 1 + (wanted if wanted > window.first else window.first)
        begin, end = packed + int(words[entry]), packed + int(words[entry + 1])
        _paint(memory, begin, end, packed, codes, line, target)


@njit(nogil=True, cache=True, inner=True)
def prefetch_patches(window: Window, behind: int) -> None:
    """Prefetch a window's patches. Its offsets must be in cache already, or this call waits for them.

    Args:
        behind: entries before the background's: 1 for a table.
    """
    memory, words = window.memory, window.words
    entries = (window.begin >> 2) + 1 + behind
    packed = window.begin + 4 * (window.rows + 2 + behind)
    for at in range(packed, packed + int(words[entries]), 64):
        prefetch(memory, at)
    lowest = max(window.newest - window.length + 1, window.first)
    for at in range(packed + int(words[entries + lowest]), packed + int(words[entries + window.newest + 1]), 64):
        prefetch(memory, at)


def _gather_plain(address: int) -> int:
    gather(read_window(address), -1)
    return 0


def _prefetch_plain(address: int) -> int:
    prefetch_patches(read_window(address), 0)
    return 0


def _gather_coded(address: int) -> int:
    window = read_window(address)
    memory, begin = window.memory, window.begin + 4 * (window.rows + 3)
    entries = int(memory[begin]) // 2 + int(memory[begin + 1]) * 128 if window.words[(window.begin >> 2) + 1] else 0
    gather(window, entries)
    return 0


def _prefetch_coded(address: int) -> int:
    prefetch_patches(read_window(address), 1)
    return 0


def _write_plain(address: int) -> int:
    return write_entries(read_rows(address), 1)


def _check_plain(address: int) -> int:
    rows = read_rows(address)
    if not offsets_rise(rows, rows.rows + 1):
        return 0
    table, packed = rows.begin >> 2, rows.begin + 4 * (rows.rows + 2)
    for entry in range(table, table + rows.rows + 1):
        begin, end = packed + int(rows.words[entry]), packed + int(rows.words[entry + 1])
        if not kernels.entry_fits(rows.memory, begin, end, 0, -1, rows.line, rows.size):
            return 0
    return 1


def _write_without_table(address: int) -> int:
    rows = read_rows(address)
    table, packed = (rows.begin >> 2) + 1, rows.begin + 4 * (rows.rows + 3)
    memory, words = rows.memory, rows.words
    codes = (int(memory[packed]) | int(memory[packed + 1]) << 8) >> 1 if words[table] else 0
    head = 4 * (rows.last - rows.first + 3)
    written = head
    if head > rows.out.size:
        return TOO_SMALL
    rows.out_words[0] = 0
    for k in range(rows.last - rows.first + 2):
        entry = table if k == 0 else table + rows.first + k
        begin, end = packed + int(words[entry]), packed + int(words[entry + 1])
        written = write_plain(memory, begin, end, packed, codes, rows.out, written)
        if written < 0:
            return TOO_SMALL
        rows.out_words[k + 1] = written - head
    return written


class _Painted(Codec):
    """Codec of patches over a background.

    Attributes:
        coded: whether a table of shapes and literals is before the patches.
    """

    coded: ClassVar[bool]

    def max_dictionary_bytes(self, size: int) -> int:
        """Return the size of a row: the dictionary is one row."""
        return size

    def train(self, rows: Bytes) -> bytes:
        """Return a reference row: at each byte, the value of most rows."""
        return kernels.majority(np.ascontiguousarray(rows)).tobytes()  # compiled for such rows only

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        """Encode the background and each row as patches. Without a dictionary the reference is zeros.

        Cost: 0.6 to 1.7 us for 7 KB (benchmarks/codec_sizes.py).
        """
        return _encode(rows, dictionary, line_bytes, _scratch(*rows.shape), self.coded)

    def check(self, column: Packed) -> None:
        """Check the offsets, and that patches stay within rows. Cost: 5 us a column, and 20 ns a row of a game."""
        offsets, packed, codes = self._entries(column)
        wrong = kernels.fits(packed, offsets, codes, column.line_bytes, column.size)
        if wrong >= 0:
            raise DamagedError(f"{self.name} column, row {wrong - 1}: a patch reaches outside the row")

    def verify(self, column: Packed) -> None:
        """Check the patches: any that stay within the row can be painted."""
        self.check(column)

    def decode_row(self, column: Packed, row: int) -> Bytes:
        """Paint the background, and the row over it."""
        entries = self._entries(column)
        canvas = _reference(column.dictionary, column.size).copy()
        self._paint(column, entries, -1, canvas)
        self._paint(column, entries, row, canvas)
        return canvas

    def decode(self, column: Packed) -> Bytes:
        """Paint the background once, and the rows over it."""
        entries = self._entries(column)
        background = _reference(column.dictionary, column.size).copy()
        self._paint(column, entries, -1, background)
        rows = np.empty((column.count, column.size), np.uint8)
        rows[:] = background
        for i in range(column.count):
            self._paint(column, entries, i, rows[i])
        return rows

    def encoder(self, size: int, line_bytes: int, max_rows: int) -> Encoder:
        """Make an encoder that keeps its working memory."""
        return _Encoder(self, size, line_bytes, max_rows)

    def _entries(self, column: Packed) -> tuple[npt.NDArray[np.int64], Bytes, int]:
        """Return the offsets of the background's patches and of each row's, what they count in, and the table's entries
        (-1: none).  Raises: DamagedError.
        """
        nbytes = len(column.dictionary)
        if nbytes not in (0, column.size):
            raise DamagedError(f"{self.name} column: the reference has {nbytes} bytes, expected {column.size}")
        offsets, packed = read_offsets(self.name, column.payload, column.count + 2 + self.coded)
        if not self.coded:
            return offsets, packed, -1
        codes = tabulated(packed[: offsets[1]])
        if codes < 0:
            raise DamagedError(f"{self.name} column: its table of {offsets[1]:,} bytes is none")
        return offsets[1:], packed, codes

    def _paint(
        self, column: Packed, entries: tuple[npt.NDArray[np.int64], Bytes, int], row: int, canvas: Bytes
    ) -> None:
        """Paint a row's patches, or for row -1 the background's.  Raises: DamagedError."""
        offsets, packed, codes = entries
        begin, end = int(offsets[row + 1]), int(offsets[row + 2])
        if not kernels.paint(packed, begin, end, 0, codes, column.line_bytes, canvas):
            raise DamagedError(f"{self.name} column, row {row}: a patch reaches outside the row")


class Delta(_Painted):
    """Codec of patches over a background. ``auto`` takes ``patches`` instead, which is smaller."""

    name, number, coded = "delta", 2, False
    fused = Fused(_gather_plain, _prefetch_plain)
    cut = Cut(_write_plain, _check_plain)


class Patches(_Painted):
    """Codec of patches over a background, those that return coded by a table.

    ``auto`` takes it where it leaves at most 35 % of a row: a patch has some two bytes and takes 5 ns to paint,
    so larger payloads slow batches down several times for little gain (``counts`` in benchmarks/codec_sizes.py). It
    decodes several times faster than zstd, so it may take three times the bytes.
    """

    name, number, coded = "patches", 4, True
    competition = Competition(max_share=0.35, preference=3.0)
    fused = Fused(_gather_coded, _prefetch_coded)
    cut = Cut(_write_without_table, number=Delta.number)  # few rows use little of the table


class _Encoder(Encoder):
    def __init__(self, codec: _Painted, size: int, line_bytes: int, max_rows: int) -> None:
        super().__init__(codec, line_bytes)
        self._scratch, self._coded = _scratch(max_rows, size), codec.coded

    @property
    def nbytes(self) -> int:
        return self._scratch.nbytes

    def encode(self, rows: Bytes, dictionary: bytes) -> bytes | None:
        return _encode(rows, dictionary, self._line_bytes, self._scratch, self._coded)


def _scratch(count: int, size: int) -> Bytes:
    return np.empty((count + 4) * size + 64, np.uint8)


def _reference(dictionary: bytes, size: int) -> Bytes:
    return np.frombuffer(dictionary, np.uint8) if dictionary else np.zeros(size, np.uint8)


def _encode(rows: Bytes, dictionary: bytes, line_bytes: int, scratch: Bytes, coded: bool) -> bytes | None:
    count, size = rows.shape
    offsets = np.empty(count + 2, np.uint32)
    reference = _reference(dictionary, size).copy()  # writable: the kernel is compiled once
    written, packed = kernels.encode_column(rows, reference, line_bytes, scratch, offsets), scratch
    if written < 0 or offsets.nbytes + written >= rows.nbytes:
        return None
    if coded:
        packed, table_too = np.empty(coded_bytes(written), np.uint8), np.empty(count + 3, np.uint32)
        written, offsets = tabulate(scratch, offsets, packed, table_too), table_too
    payload = offsets.tobytes() + packed[:written].tobytes()
    return payload if len(payload) < rows.nbytes else None
