"""Choice of codec and dictionary for a field's columns: measured on the data, and again as the data changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import registry as codecs
from sharpwave.codecs.dictionaries import DictionaryTable, key_of
from sharpwave.codecs.protocol import Codec, Encoder
from sharpwave.codecs.raw import RAW
from sharpwave.format.segment import Column
from sharpwave.spec import Field

Bytes = npt.NDArray[np.uint8]

MIN_AUTO_ROWS = 8
"""Fewer rows than this are too few to measure: they stay raw, and the choice waits."""
WORSE = 1.3
"""A dictionary is replaced when rows take this many times their bytes when it was chosen."""
ALL_AGAIN = 16
"""Segments of a lane from which on every codec is tried, not only the latest choice of other lanes."""
MAX_PAUSE = 64
"""Segments of all lanes between two trials of rows that stay raw, at most: a trial takes as long as sealing ten raw
segments."""
SLOW_BYTES = 1 << 16
"""Bytes of a column below which no encoding takes long: another thread begins some 50 us after it is asked."""
MAX_TRIALS = 2
"""Trials in one call, at most, of columns from ``SLOW_BYTES`` on: further lanes wait for later calls."""
HORIZON = 64
"""Segments over which a new dictionary must save its own bytes and its decoder's."""


@dataclass
class _LaneState:
    codec: Codec | None = None  # None: raw
    place: int = 0  # of the dictionary in use
    bytes_per_row: float = np.inf  # of the first segment after the one that the dictionary was trained on
    segments: int = 0
    next_trial: int = 1


class ColumnEncoder:
    """Encoder of one field's columns, lane by lane.

    With codec "auto" the first segment of at least 8 rows is packed with every competing codec; the smallest result
    wins, though a codec that decodes faster may take more bytes (``Competition``). Rows
    stay raw where no codec saves enough. Other lanes begin with the last winner. Codec and dictionary are tried again
    after 4, 16, 64, then every 256 segments, and as soon as rows take 1.3 times their bytes after the last trial; a new
    dictionary must save its own bytes. While rows stay raw, lanes are tried in turn, up to 64 segments apart; and no
    call makes more than two trials of large columns: a lane that has to wait takes the last winner untried, or stays as
    it is. For a codec given by name only dictionaries are chosen.

    Attributes:
        trials_left: trials that the present call may make still.
    """

    def __init__(self, field: Field, codec: str, table: DictionaryTable, max_rows: int) -> None:
        self.field = field
        self.table = table
        self._auto = codec == "auto"
        named = () if self._auto or codecs.by_name(codec).number == RAW else (codecs.by_name(codec),)
        self.candidates: tuple[Codec, ...] = (
            codecs.candidates(field.row_bytes, field.line_bytes) if self._auto else named
        )
        self._encoders: dict[Codec, Encoder] = {
            one: one.encoder(field.row_bytes, field.line_bytes, max_rows) for one in self.candidates
        }
        # Those that keep something for each dictionary; asking takes a time that grows with the lanes.
        self._keepers = [one for one in self._encoders.values() if type(one).keep_only is not Encoder.keep_only]
        self._lanes: dict[int, _LaneState] = {}
        self._newest: dict[Codec, int] = {}  # place of the latest dictionary, tried by lanes without one
        self._leading: Codec | None = None  # the latest choice of any lane
        self.trials_left = math.inf
        self._raw = 0  # trials in a row, of any lane, after which rows stayed raw
        self._pause = 0  # segments before the next trial of a lane whose rows are raw

    @property
    def nbytes(self) -> int:
        """Bytes of working memory."""
        return sum(encoder.nbytes for encoder in self._encoders.values())

    def takes_long(self, lane: int, rows: Bytes) -> bool:
        """Return whether ``pack`` of the same arguments takes long: a slow codec, or a trial."""
        state = self._state_of(lane, rows)
        if state is None:
            return False
        return (state.codec is not None and state.codec.slow) or (self._is_due(state) and self.trials_left > 0)

    def depends_on_others(self, lane: int, rows: Bytes) -> bool:
        """Return whether what ``takes_long`` says depends on other lanes' segments: on trials of rows that stayed
        raw."""
        state = self._state_of(lane, rows)
        return state is not None and state.codec is None and state.segments + 1 >= state.next_trial

    def reserve_trial(self, lane: int, rows: Bytes) -> bool:
        """Return whether ``pack`` of the same arguments may make a trial, later; one that is due counts from now on."""
        state, allowed = self._state_of(lane, rows), self.trials_left > 0
        if state is not None and allowed and self._is_due(state):
            self.trials_left -= 1
        return allowed

    def _state_of(self, lane: int, rows: Bytes) -> _LaneState | None:
        """Return the lane's state, if its ``rows`` can take long to encode."""
        if not self.candidates or rows.nbytes < SLOW_BYTES or len(rows) < (MIN_AUTO_ROWS if self._auto else 1):
            return None
        return self._lanes.get(lane) or _LaneState()

    def _is_due(self, state: _LaneState) -> bool:
        """Return whether codecs are to be tried on the lane's next segment."""
        return state.segments + 1 >= state.next_trial and (state.codec is not None or self._pause <= 1)

    def pack(self, lane: int, rows: Bytes, may_try: bool | None = None) -> tuple[Column, int]:
        """Pack ``rows`` uint8 [n, row_bytes]; return the column and the place of its dictionary, with a reference to
        it.

        Args:
            may_try: from ``reserve_trial`` of the same arguments; ``None``: as ``trials_left`` has it.
        """
        state = self._lanes.setdefault(lane, _LaneState())
        if not self.candidates or len(rows) < (MIN_AUTO_ROWS if self._auto else 1):
            return Column(RAW, len(rows), rows.tobytes()), 0
        state.segments += 1
        self._pause -= self._pause > 0
        payload = None if state.codec is None else self._encode(state.codec, rows, state.place)
        worse = len(payload) / len(rows) > WORSE * state.bytes_per_row if payload else state.codec is not None
        if payload and state.bytes_per_row == np.inf:
            state.bytes_per_row = len(payload) / len(rows)
        due = state.segments >= state.next_trial and (state.codec is not None or not self._pause)
        if due or (worse and state.segments >= state.next_trial // 4 + 8):
            counts = rows.nbytes >= SLOW_BYTES
            if not counts or (self.trials_left > 0 if may_try is None else may_try):
                self.trials_left -= counts and may_try is None
                payload = self._tried(state, rows, payload)
            elif state.codec is None and self._leading is not None:
                state.codec, state.place = self._leading, self._hold(self._newest.get(self._leading, 0), instead_of=0)
                payload = self._encode(state.codec, rows, state.place)
        if payload is None or state.codec is None:
            return Column(RAW, len(rows), rows.tobytes()), 0
        self.table.use(state.place)
        return Column(state.codec.number, len(rows), payload, key_of(self.table.data(state.place))), state.place

    def _tried(self, state: _LaneState, rows: Bytes, payload: bytes | None) -> bytes | None:
        """Try every codec, and set when to do so next."""
        payload = self._trial(state, rows, payload)
        state.next_trial = state.segments + min(256, 3 * state.segments)
        self._raw = self._raw + 1 if state.codec is None and self._auto else 0
        self._pause = min(self._raw, MAX_PAUSE)
        return payload

    def stays_raw(self, lane: int, rows: int, read: Callable[[], Bytes]) -> bool:
        """Return whether ``rows`` rows of the lane stay raw; where codecs are to be tried on a small column, they are.

        Args:
            read: returns the rows.
        """
        if not self.candidates or rows < (MIN_AUTO_ROWS if self._auto else 1):
            return True
        state = self._lanes.get(lane)
        if state is None:
            state = self._lanes[lane] = _LaneState()
        if state.codec is not None:
            return False
        if not self._is_due(state):
            return True
        if rows * self.field.row_bytes >= SLOW_BYTES:
            return self.trials_left <= 0 and self._leading is None
        state.segments += 1  # as ``pack``
        self._tried(state, read(), None)
        state.segments -= 1
        return state.codec is None

    def count(self, lane: int) -> None:
        """Count a segment of the lane's that was left raw without ``pack``."""
        if lane in self._lanes:
            self._lanes[lane].segments += 1
            self._pause -= self._pause > 0

    def _encode(self, codec: Codec, rows: Bytes, place: int) -> bytes | None:
        return self._encoders[codec].encode(rows, self.table.data(place))

    def _trial(self, state: _LaneState, rows: Bytes, current: bytes | None) -> bytes | None:
        """Try every codec, with the latest dictionary and with a new one of this lane; keep the best."""
        tried: list[tuple[Codec, int, bytes | None, int]] = []  # codec, place, payload, share of the dictionary's bytes
        if state.codec is not None:
            tried.append((state.codec, state.place, current, 0))
        added: list[int] = []
        try:
            return self._choose(state, rows, tried, added)
        finally:
            for place in added:
                self.table.drop(place)

    def _choose(
        self, state: _LaneState, rows: Bytes, tried: list[tuple[Codec, int, bytes | None, int]], added: list[int]
    ) -> bytes | None:
        """Do as ``_trial``; new dictionaries, ``added``, count as used once more."""
        for codec in self.candidates if state.segments >= ALL_AGAIN or self._leading is None else (self._leading,):
            least = min((len(payload) for _, _, payload, _ in tried if payload is not None), default=rows.nbytes)
            if codec is not state.codec and codec.competition and least <= codec.competition.tried_above * rows.nbytes:
                continue
            shared = self._newest.get(codec, 0)
            tried.append((codec, shared, self._encode(codec, rows, shared), 0))
            own = codec.train(rows[::2])
            place = self.table.add(own) if own else None
            if place is not None:
                added.append(place)
                payload = self._encode(codec, rows, place)
                memorized = codec.memorized_bytes(payload, len(rows)) if payload else 0
                tried.append((codec, place, payload, (len(own) + codec.decoder_bytes) // HORIZON + memorized))
        best: tuple[float, Codec | None, int, bytes | None] = (np.inf, None, 0, None)
        for codec, place, payload, share in tried:
            if payload is not None and len(payload) + share <= self._max_bytes(codec, rows):
                rules = codec.competition if self._auto else None
                cost = (len(payload) + share) / (1.0 if rules is None else rules.preference)
                best = min(best, (cost, codec, place, payload), key=lambda choice: choice[0])
        _, state.codec, place, payload = best
        self._leading = state.codec
        state.place = self._hold(place, instead_of=state.place)
        if state.codec is not None and place in added:
            self._newest[state.codec] = self._hold(place, instead_of=self._newest.get(state.codec, 0))
        state.bytes_per_row = np.inf
        if self._keepers:
            used = {lane.place for lane in self._lanes.values()} | set(self._newest.values())
            for encoder in self._keepers:
                encoder.keep_only([self.table.data(place) for place in used])
        return payload

    def _max_bytes(self, codec: Codec, rows: Bytes) -> float:
        """Return the bytes beyond which ``rows`` stay raw."""
        rules = codec.competition
        if not self._auto or rules is None:
            return rows.nbytes
        return min(rows.nbytes * rules.max_share, rows.nbytes - rules.min_saved_bytes * len(rows))

    def _hold(self, place: int, instead_of: int) -> int:
        self.table.use(place)
        self.table.drop(instead_of)
        return place
