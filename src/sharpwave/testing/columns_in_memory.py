"""Random columns of bytes, and columns in memory laid out as in a store, for tests of codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from sharpwave.arrays import Bytes, Ints
from sharpwave.codecs.codec_protocol import Codec
from sharpwave.codecs.dictionaries import PLACES, DictionaryTable
from sharpwave.format import segment
from sharpwave.memory.arena import Arena
from sharpwave.memory.segment_index import SegmentIndex
from sharpwave.spec import Field
from sharpwave.views.cutting import CutReader, CutRows
from sharpwave.views.gather import FieldReader

SIZES = (1, 7, 8, 24, 60, 200)


@st.composite
def pictures(draw: st.DrawFn, max_rows: int = 12, sizes: tuple[int, ...] = SIZES) -> tuple[Bytes, int]:
    """Draw rows uint8 [n, size] that resemble stored frames, and the bytes of an image line; 0: no lines.

    Frames are still, noisy, or in between.
    """
    count, size = draw(st.integers(1, max_rows)), draw(st.sampled_from(sizes))
    line = draw(st.sampled_from([0, 1, 4, 12, size]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    noise = draw(st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    colours = draw(st.sampled_from([2, 3, 256]))
    rows = np.tile(rng.integers(0, colours, size), (count, 1))
    changed = rng.random(rows.shape) < noise
    rows[changed] = rng.integers(0, colours, int(changed.sum()))
    return rows.astype(np.uint8), line


class ColumnsInMemory:
    """Columns of one field, each in a segment of its own, in memory laid out as in a store.

    Attributes:
        index, arena, table: the store's structures with the columns.
    """

    def __init__(self, field: Field, slots: int, max_rows: int, nbytes: int = 1 << 16) -> None:
        self.field = field
        self.index, self.table = SegmentIndex(slots, max_rows, 1), DictionaryTable(field.row_bytes)
        self.arena = Arena(nbytes, nbytes)

    def put(self, slot: int, codec: Codec, count: int, payload: bytes, dictionary: bytes = b"") -> None:
        """Write a column of ``count`` rows as the segment in ``slot``."""
        index, arena = self.index, self.arena
        packed, (begin,) = segment.pack(
            0, 0, 0, count, 0, 0, [segment.SegmentColumn(codec.number, count, payload)], episode_step=0
        )
        base, place = arena.allocate(len(packed)), self.table.add(dictionary) if dictionary else 0
        assert base is not None and place is not None
        arena.memory[base : base + len(packed)] = np.frombuffer(packed, np.uint8)
        index.base[slot], index.offset[0, slot], index.codec[0, slot] = base, base + begin, codec.number
        index.rows[slot], index.dictionary[0, slot] = count, place

    def read(self, slot: Ints, newest: Ints, first: Ints, window: int) -> Bytes:
        """Gather windows as a batch does: uint8 [B, window, size]. Bytes around the result are checked."""
        size, around = self.field.row_bytes, 256
        memory = np.full(2 * around + len(slot) * window * size, 77, np.uint8)
        out = memory[around:-around].reshape(len(slot), window, size)
        FieldReader(self.index, self.arena, 0, "rows", self.table, self.field).read(slot, newest, first, out)
        assert (memory[:around] == 77).all() and (memory[-around:] == 77).all(), "bytes written outside the batch"
        return out

    def cut(self, slot: Ints, newest: Ints, first: Ints, window: int) -> Bytes:
        """Cut encoded windows and decode them from those bytes alone, as a learner does; return as ``read``."""
        cut = CutRows(0, np.empty(64, np.uint8))
        length = np.full(len(slot), window)
        reader = FieldReader(self.index, self.arena, 0, "rows", self.table, self.field)
        cut.add(reader, slot, newest, first, length)
        received = CutReader(cut.rows.copy(), length, self.table, np.ones(PLACES, np.uint8), self.field)
        out = np.full((len(slot), window, self.field.row_bytes), 77, np.uint8)
        received.read(np.arange(len(slot)), received.counts.astype(np.int64) - 1, np.zeros(len(slot), np.int64), out)
        return out


def naive_window(rows: npt.NDArray[Any], newest: int, first: int, window: int, zeros: bool) -> npt.NDArray[Any]:
    """Return the ``window`` rows of ``rows`` that end with ``newest``, padded before ``first``."""
    out = []
    for wanted in range(newest - window + 1, newest + 1):
        out.append(np.zeros_like(rows[0]) if wanted < first and zeros else rows[max(wanted, first)])
    return np.stack(out)
