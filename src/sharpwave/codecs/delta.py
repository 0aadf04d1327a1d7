"""Codec ``delta``: frames as patches over a background common to the column's frames.

Payload: uint32 offsets [n + 2], then patches (``sharpwave.codecs.delta_kernels``): first those that turn the
reference row, which is the dictionary, into the column's background, then those that turn the background into each row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import delta_kernels as kernels
from sharpwave.codecs.fused import Fused, Window, read_window
from sharpwave.codecs.offsets import read_offsets
from sharpwave.codecs.protocol import Codec, Competition, Encoder, Packed
from sharpwave.errors import DamagedError
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import prefetch

Bytes = npt.NDArray[np.uint8]


@njit(nogil=True, cache=True)
def _gather(window: Window) -> None:
    """Decode a window's rows, in ascending order.

    Cost: 0.2 us a row of 7 KB of Pong where the batch stays in the cache, of which 0.1 us writes it. Sequences took 1.9
    times as long with the background in the batch's memory and rows in descending order.
    """
    length, size = window.out.shape
    table, packed = window.begin >> 2, window.begin + 4 * (window.rows + 2)
    memory, words, line, out = window.memory, window.words, window.line, window.out
    # The only row of a window is painted over its own background, which spares a copy.
    background, dictionary = window.scratch if length > 1 else out[0], window.dictionary
    for k in range(size):
        background[k] = dictionary[k]
    kernels.paint(memory, packed, packed + int(words[table + 1]), line, background)
    for j in range(length):
        wanted = window.newest - length + 1 + j
        target = out[j]
        if wanted < window.first and window.zeros:
            target[:] = 0
            continue
        if length > 1:
            for k in range(size):
                target[k] = background[k]
        entry = table + 1 + max(wanted, window.first)
        kernels.paint(memory, packed + int(words[entry]), packed + int(words[entry + 1]), line, target)


@njit(nogil=True, cache=True)
def _prefetch(window: Window) -> None:
    """Prefetch a window's patches. Its offsets must be in cache already, or this call waits for them."""
    memory, words = window.memory, window.words
    entries = (window.begin >> 2) + 1
    packed = window.begin + 4 * (window.rows + 2)
    for at in range(packed, packed + int(words[entries]), 64):
        prefetch(memory, at)
    lowest = max(window.newest - window.length + 1, window.first)
    for at in range(packed + int(words[entries + lowest]), packed + int(words[entries + window.newest + 1]), 64):
        prefetch(memory, at)


def _gather_at(address: int) -> int:
    _gather(read_window(address))
    return 0


def _prefetch_at(address: int) -> int:
    _prefetch(read_window(address))
    return 0


class Delta(Codec):
    """Codec of patches over a background.

    ``auto`` takes it where it leaves at most half of a row: a byte of patches takes some 8 ns to paint, so larger
    payloads slow batches down several times for little gain (``counts`` in benchmarks/codec_sizes.py). It decodes
    several times faster than zstd, so it may take three times the bytes.
    """

    name, number = "delta", 2
    competition = Competition(max_share=0.5, preference=3.0)
    fused = Fused(_gather_at, _prefetch_at)

    def max_dictionary_bytes(self, size: int) -> int:
        """Return the size of a row: the dictionary is one row."""
        return size

    def train(self, rows: Bytes) -> bytes:
        """Return a reference row: at each byte, the value of most rows."""
        return kernels.majority(rows).tobytes()

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        """Encode the background and each row as patches. Without a dictionary the reference is zeros.

        Cost: 1 to 3 us for 7 KB.
        """
        return _encode(rows, dictionary, line_bytes, _scratch(*rows.shape))

    def check(self, column: Packed) -> None:
        """Check the offsets, and that patches stay within rows. Cost: 5 us a column, and 20 ns a row of a game."""
        offsets, packed = self._offsets(column)
        wrong = kernels.fits(packed, offsets, column.line_bytes, column.size)
        if wrong >= 0:
            raise DamagedError(f"delta column, row {wrong - 1}: a patch reaches outside the row")

    def verify(self, column: Packed) -> None:
        """Check the patches: any that stay within the row can be painted."""
        self.check(column)

    def decode_row(self, column: Packed, row: int) -> Bytes:
        """Paint the background, and the row over it."""
        offsets, packed = self._offsets(column)
        canvas = self._background(column, packed, int(offsets[1]))
        if not kernels.paint(packed, int(offsets[row + 1]), int(offsets[row + 2]), column.line_bytes, canvas):
            raise DamagedError(f"delta column, row {row}: a patch reaches outside the row")
        return canvas

    def decode(self, column: Packed) -> Bytes:
        """Paint the background once, and the rows over it."""
        offsets, packed = self._offsets(column)
        rows = np.empty((column.count, column.size), np.uint8)
        background = self._background(column, packed, int(offsets[1]))
        for i in range(column.count):
            rows[i] = background
            if not kernels.paint(packed, int(offsets[i + 1]), int(offsets[i + 2]), column.line_bytes, rows[i]):
                raise DamagedError(f"delta column, row {i}: a patch reaches outside the row")
        return rows

    def encoder(self, size: int, line_bytes: int, max_rows: int) -> Encoder:
        """Make an encoder that keeps its working memory."""
        return _Encoder(self, size, line_bytes, max_rows)

    def _offsets(self, column: Packed) -> tuple[npt.NDArray[np.int64], Bytes]:
        nbytes = len(column.dictionary)
        if nbytes not in (0, column.size):
            raise DamagedError(f"delta column: the reference has {nbytes} bytes, expected {column.size}")
        return read_offsets(self.name, column.payload, column.count + 2)

    def _background(self, column: Packed, packed: Bytes, stop: int) -> Bytes:
        canvas = _reference(column.dictionary, column.size).copy()
        if not kernels.paint(packed, 0, stop, column.line_bytes, canvas):
            raise DamagedError("delta column, background: a patch reaches outside the row")
        return canvas


class _Encoder(Encoder):
    def __init__(self, codec: Codec, size: int, line_bytes: int, max_rows: int) -> None:
        super().__init__(codec, line_bytes)
        self._scratch = _scratch(max_rows, size)

    @property
    def nbytes(self) -> int:
        return self._scratch.nbytes

    def encode(self, rows: Bytes, dictionary: bytes) -> bytes | None:
        return _encode(rows, dictionary, self._line_bytes, self._scratch)


def _scratch(count: int, size: int) -> Bytes:
    return np.empty((count + 4) * size + 64, np.uint8)


def _reference(dictionary: bytes, size: int) -> Bytes:
    return np.frombuffer(dictionary, np.uint8) if dictionary else np.zeros(size, np.uint8)


def _encode(rows: Bytes, dictionary: bytes, line_bytes: int, scratch: Bytes) -> bytes | None:
    count, size = rows.shape
    offsets = np.empty(count + 2, np.uint32)
    written = kernels.encode_column(rows, _reference(dictionary, size), line_bytes, scratch, offsets)
    if written < 0 or offsets.nbytes + written >= rows.nbytes:
        return None
    return offsets.tobytes() + scratch[:written].tobytes()
