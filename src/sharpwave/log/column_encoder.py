"""Which codec and which dictionary a field's columns are packed with: measured on the data, and measured again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zstandard

from sharpwave.codecs import registry as codecs
from sharpwave.codecs.dictionaries import DECOMPRESSOR_BYTES, DictionaryTable, key_of
from sharpwave.codecs.registry import DELTA, RAW, ZSTD
from sharpwave.format.segment import Column
from sharpwave.spec import Field

Bytes = npt.NDArray[np.uint8]

AUTO_MIN_ROWS = 8
"""Fewer rows than this are no measure: they are kept raw and the choice waits."""
AUTO_MIN_BYTES = 32
"""Rows smaller than this are kept raw: an offset and a frame header would eat the gain."""
WORTH = {ZSTD: 0.7, DELTA: 0.5}
"""Encode only where it leaves at most this share of the raw bytes. A byte of patches takes some 8 ns to paint: where
delta leaves more than half of a row, batches take several times as long for little (``counts`` in
benchmarks/codecs.py)."""
ZSTD_MIN_SAVED_BYTES = 512
"""Take zstd only where it saves so much a row. A row takes 2 us to decompress, however small, and about 3 more for each
KiB; one that is kept raw is copied in a tenth of that (``counts`` in benchmarks/codecs.py)."""
DELTA_PREFERENCE = 3.0
"""Delta decodes several times faster than zstd (benchmarks/codecs.py), so it may take this many times its bytes."""
WORSE = 1.3
"""A dictionary stops paying when rows take this many times the bytes they took when it was chosen."""
ALL_AGAIN = 16
"""Segments of a lane from which on every codec is tried, not only the one that other lanes were packed with last."""
HORIZON = 64
"""Segments over which a new dictionary must earn its own bytes, and those of what decodes with it."""


@dataclass
class _LaneState:
    place: int = 0  # of the dictionary in use
    codec: int = RAW
    bytes_per_row: float = np.inf  # of the first segment after the one that dictionary was chosen by, and may know well
    segments: int = 0
    next_trial: int = 1


class ColumnEncoder:
    """Packs one field's columns, lane by lane.

    With codec "auto" the first segment of at least 8 rows is packed with every codec; the smallest wins, but delta wins
    up to three times zstd's bytes. Rows stay raw where delta leaves more than half of them, and zstd more than 70 % or
    saves less than 512 bytes a row. Other lanes begin with what won. Choice and dictionary are tried anew after 4, 16,
    64, then every 256 segments, and as soon as rows take 1.3 times what they took after the last trial; a new
    dictionary must earn its bytes.
    """

    def __init__(self, field: Field, codec: str, table: DictionaryTable, max_rows: int) -> None:
        self.field = field
        self.table = table
        self.candidates: tuple[int, ...] = (RAW, ZSTD, DELTA) if codec == "auto" else (codecs.CODECS[codec],)
        if codec == "auto" and field.row_bytes < AUTO_MIN_BYTES:
            self.candidates = (RAW,)
        elif codec == "auto" and field.row_bytes <= ZSTD_MIN_SAVED_BYTES:
            self.candidates = (RAW, DELTA)
        self._min_rows = AUTO_MIN_ROWS if codec == "auto" else 1
        self._lanes: dict[int, _LaneState] = {}
        self._newest: dict[int, int] = {}  # codec -> place of the dictionary made last, tried by lanes that have none
        self._leading: int | None = None  # the codec that was chosen last, by any lane
        self._compressors: dict[int, tuple[int, zstandard.ZstdCompressor]] = {}
        self._scratch = np.empty((max_rows + 4) * field.row_bytes + 64 if DELTA in self.candidates else 0, np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of working memory."""
        compressors = sum(c.memory_size() for _, c in self._compressors.values())
        return self._scratch.nbytes + compressors

    def pack(self, lane: int, rows: Bytes) -> tuple[Column, int]:
        """Pack ``rows`` uint8 [n, row_bytes]; returns the column and the place of its dictionary, counted as used."""
        state = self._lanes.setdefault(lane, _LaneState())
        if self.candidates == (RAW,) or len(rows) < self._min_rows:
            return Column(RAW, len(rows), rows.tobytes()), 0
        state.segments += 1
        payload = self._encode(state.codec, rows, state.place)
        worse = len(payload) / len(rows) > WORSE * state.bytes_per_row if payload else state.codec != RAW
        if payload and state.bytes_per_row == np.inf:
            state.bytes_per_row = len(payload) / len(rows)
        if state.segments >= state.next_trial or (worse and state.segments >= state.next_trial // 4 + 8):
            payload = self._trial(state, rows, payload)
            state.next_trial = state.segments + min(256, 3 * state.segments)
        if payload is None:
            return Column(RAW, len(rows), rows.tobytes()), 0
        self.table.use(state.place)
        return Column(state.codec, len(rows), payload, key_of(self.table.data(state.place))), state.place

    def _encode(self, codec: int, rows: Bytes, place: int) -> bytes | None:
        if codec == RAW:
            return None
        dictionary = self.table.data(place)
        if codec == ZSTD:
            key = key_of(dictionary)
            if self._compressors.get(place, (None,))[0] != key:
                self._compressors[place] = (key, codecs.zstd_compressor(dictionary))
            return codecs.encode(codec, rows, dictionary, compressor=self._compressors[place][1])
        return codecs.encode(codec, rows, dictionary, self.field.line_bytes, scratch=self._scratch)

    def _trial(self, state: _LaneState, rows: Bytes, current: bytes | None) -> bytes | None:
        """Try every codec, with the newest dictionary and with one of this lane's own; keep what pays."""
        tried = [(state.codec, state.place, current, 0)]
        added = []
        for codec in self.candidates if state.segments >= ALL_AGAIN or self._leading is None else (self._leading,):
            if codec == RAW:
                continue
            shared = self._newest.get(codec, 0)
            tried.append((codec, shared, self._encode(codec, rows, shared), 0))
            own = codecs.train(codec, rows[::2])
            place = self.table.add(own) if own else None
            if place is not None:
                added.append(place)
                payload = self._encode(codec, rows, place)
                share = (len(own) + (DECOMPRESSOR_BYTES if codec == ZSTD else 0)) // HORIZON
                tried.append((codec, place, payload, share + _by_heart(codec, payload, len(rows))))
        best: tuple[float, int, int, bytes | None] = (np.inf, RAW, 0, None)
        for codec, place, payload, share in tried:
            if payload is not None and len(payload) + share <= self._most_bytes(codec, rows):
                cost = (len(payload) + share) / (DELTA_PREFERENCE if codec == DELTA else 1.0)
                best = min(best, (cost, codec, place, payload), key=lambda choice: choice[0])
        _, state.codec, place, payload = best
        self._leading = state.codec if payload is not None else None
        state.place = self._hold(place, instead_of=state.place)
        if place in added:
            self._newest[state.codec] = self._hold(place, instead_of=self._newest.get(state.codec, 0))
        for place in added:
            self.table.drop(place)
        state.bytes_per_row = np.inf
        used = {lane.place for lane in self._lanes.values()} | set(self._newest.values())
        self._compressors = {place: kept for place, kept in self._compressors.items() if place in used}
        return payload

    def _most_bytes(self, codec: int, rows: Bytes) -> float:
        """Bytes from which on ``rows`` are better kept raw."""
        if len(self.candidates) == 1:
            return rows.nbytes
        saved = ZSTD_MIN_SAVED_BYTES * len(rows) if codec == ZSTD else 0
        return min(rows.nbytes * WORTH[codec], rows.nbytes - saved)

    def _hold(self, place: int, instead_of: int) -> int:
        self.table.use(place)
        self.table.drop(instead_of)
        return place


def _by_heart(codec: int, payload: bytes | None, count: int) -> int:
    """Bytes that a zstd payload lacks because its dictionary was trained on every other of its rows."""
    if codec != ZSTD or payload is None:
        return 0
    sizes = np.diff(np.frombuffer(payload, np.uint32, count + 1).astype(np.int64))
    return max(0, int(sizes[1::2].sum()) - int(sizes[::2].sum()))
