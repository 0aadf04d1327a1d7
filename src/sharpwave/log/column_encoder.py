"""Encoding of segments: each column's codec and dictionary are measured on the data, and again as it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.codecs import codec_registry as codecs
from sharpwave.codecs.codec_protocol import Codec, Encoder
from sharpwave.codecs.codec_registry import RAGGED
from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.codecs.ragged_rows import RaggedRows
from sharpwave.codecs.raw import RAW
from sharpwave.format.segment import SegmentColumn, step_column
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.native import core
from sharpwave.spec import Field

Begin = Callable[[Callable[[], None]], Callable[[], None]]
"""Begins work elsewhere; returns a function that waits for its end and raises its error, however often called."""

ALL_AGAIN = 16
"""Segments of a lane from which on every codec is tried, not only the latest choice of other lanes."""
SLOW_BYTES = 1 << 16
"""Bytes of a column below which no encoding takes long: another thread begins some 50 us after it is asked."""
MAX_TRIALS = 2
"""Trials in one call, at most, of columns from ``SLOW_BYTES`` on: further lanes wait for later calls."""
HORIZON = 64
"""Segments over which a new dictionary must save its own bytes and its decoder's."""


class Try(NamedTuple):
    """Try of a codec with a dictionary: its payload, and the share of the dictionary's bytes that counts with it.

    ``trained``: the dictionary is a new one.
    """

    codec: int
    dictionary: bytes
    payload: bytes | None
    share: int = 0
    trained: bool = False


def try_each(
    candidates: Sequence[Codec],
    rows: Bytes,
    shared: Mapping[int, bytes],
    encode: Callable[[Codec, bytes], bytes | None],
    current: Try | None = None,
) -> list[Try]:
    """Try codecs on ``rows``, each with the latest dictionary of other lanes and with a new one of this lane.

    Args:
        shared: these dictionaries, by codec. ``current``: the lane's choice, which is tried in any case.
    """
    tried = [] if current is None else [current]
    for codec in candidates:
        least = min((len(one.payload) for one in tried if one.payload is not None), default=rows.nbytes)
        is_current = current is not None and codec.number == current.codec
        rules = codec.competition
        if not is_current and rules is not None and least <= rules.tried_above * rows.nbytes:
            continue
        dictionary = shared.get(codec.number, b"")
        tried.append(Try(codec.number, dictionary, encode(codec, dictionary)))
        if own := codec.train(rows[::2]):
            payload = encode(codec, own)
            memorized = codec.memorized_bytes(payload, len(rows)) if payload else 0
            share = (len(own) + codec.decoder_bytes) // HORIZON + memorized
            tried.append(Try(codec.number, own, payload, share, trained=True))
    return tried


class Trial:
    """Trial of codecs on a copy of a segment's rows, for later segments of the lane.

    Attributes:
        found: the tries, once made. ``finish``: waits for them.
    """

    def __init__(self, candidates: Sequence[Codec], rows: Bytes, line_bytes: int, shared: Mapping[int, bytes]) -> None:
        self.rows = rows.copy()
        self._candidates, self._line_bytes, self._shared = candidates, line_bytes, shared
        self.found: list[Try] = []
        self.finish: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Try the codecs, in any thread."""

        def encode(codec: Codec, dictionary: bytes) -> bytes | None:
            return codec.encode(self.rows, dictionary, self._line_bytes)  # in memory of its own: encoders are in use

        self.found = try_each(self._candidates, self.rows, self._shared, encode)


class ColumnEncoder:
    """Encoder of one field's columns, lane by lane.

    With codec "auto" the first segment of at least 8 rows is packed with every competing codec; the smallest result
    wins, though a codec that decodes faster may take more bytes (``Competition``). Rows
    stay raw where no codec saves enough. Other lanes begin with the last winner. Codec and dictionary are tried again
    after 4, 16, 64, then every 256 segments, and as soon as rows take 1.3 times their bytes after the last trial; a new
    dictionary must save its own bytes. While rows stay raw, lanes are tried in turn, up to 256 segments apart; and no
    call makes more than two trials of large columns: a lane that has to wait takes the last winner untried, or stays as
    it is. For a codec given by name only dictionaries are chosen.

    After ``try_elsewhere``, a trial of a lane whose rows are raw, after one that left rows raw, is made behind the
    caller: the segment is raw, and the outcome counts from the lane's next one on, or 256 segments of all lanes later.
    Until then there is no other such trial.

    Attributes:
        lanes: each lane's codec and dictionary, and when they are tried again.
    """

    def __init__(self, field: Field, codec: str, table: DictionaryTable, max_rows: int) -> None:
        self.field = field
        self.table = table
        self._auto = codec == "auto"
        named = () if self._auto or codecs.by_name(codec).number == RAW else (codecs.by_name(codec),)
        self.candidates: tuple[Codec, ...] = (
            codecs.candidates(field.row_bytes, field.line_bytes) if self._auto else named
        )
        self._codecs = {one.number: one for one in self.candidates}
        self._encoders: dict[int, Encoder] = {
            one.number: one.encoder(field.row_bytes, field.line_bytes, max_rows) for one in self.candidates
        }
        # Encoders that keep state for each dictionary; asking takes time in proportion to the lanes.
        self._keepers = [one for one in self._encoders.values() if type(one).keep_only is not Encoder.keep_only]
        self.lanes = core.LaneCodecs(
            field.line_bytes,
            self._auto,
            self._auto and field.row_bytes < codecs.MIN_AUTO_BYTES,
            SLOW_BYTES,
            table.references,
            table.uses,
        )
        for one in self.candidates:
            self.lanes.add_codec(one.number, one.slow, self._encoders[one.number].core)
        self._newest: dict[int, int] = {}  # by codec, place of the latest dictionary, tried by lanes without one
        self._begin: Begin | None = None
        self._trying: Trial | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of working memory."""
        trying = 0 if self._trying is None else self._trying.rows.nbytes
        return sum(encoder.nbytes for encoder in self._encoders.values()) + trying

    def try_elsewhere(self, begin: Begin | None) -> None:
        """Have trials for later segments made by ``begin``; ``None``: make every trial at once again."""
        self._begin, self.lanes.later = begin, begin is not None

    def try_later(self, lane: int, rows: Bytes) -> bool:
        """Before the lane's next segment is packed, take the outcome of a trial that is due, and begin one that is.

        Args:
            rows: uint8 [n, row_bytes] of the segment, with or without the next step's.

        Returns whether either was done. An error of the trial is raised, and forgotten with it.
        """
        ends = self.lanes.ends_trial(lane, len(rows))
        if ends:
            self._end_trial()
        begins = self._begin is not None and self.lanes.begins_trial(lane, len(rows))
        if begins:
            assert self._begin is not None
            trial = Trial(self.candidates, rows, self.field.line_bytes, self._shared())
            trial.finish = self._begin(trial.run)
            self.lanes.begin_trial(lane)
            self._trying = trial
        return ends or begins

    def _end_trial(self) -> None:
        """Take the outcome of the trial under way: the lane's choice from now on, unless it has made another."""
        trial = self._trying
        assert trial is not None
        try:
            trial.finish()
        except BaseException:  # an interrupt, too: a caller that waits may make the trial itself
            self._trying = None
            self.lanes.end_trial()
            raise
        self._trying, lane = None, self.lanes.end_trial()
        state = self.lanes.at(lane)
        if state.codec:
            return
        self._take_best(state, trial.rows, trial.found, {one.dictionary for one in trial.found})
        self.lanes.tried(lane)

    def pack(self, lane: int, rows: Bytes, may_try: bool | None = None) -> tuple[SegmentColumn, int]:
        """Pack ``rows`` uint8 [n, row_bytes]; return the column and the place of its dictionary, with a reference to
        it.

        Args:
            may_try: from ``lanes.reserve_trial`` of the same arguments; ``None``: as ``lanes.trials_left`` has it.
        """
        if may_try is None:
            self.try_later(lane, rows)
        packed = self.lanes.encode(lane, rows, may_try) or self._pack(lane, rows, may_try)
        codec, payload, key, place = packed
        return SegmentColumn(codec, len(rows), rows.tobytes() if payload is None else payload, key), place

    def _pack(self, lane: int, rows: Bytes, may_try: bool | None) -> tuple[int, bytes | None, int, int]:
        """Pack as ``lanes.encode`` does, by a codec that is not the core's, or with a trial."""
        lanes = self.lanes
        state = lanes.at(lane)
        payload = self._encode(state.codec, rows, state.place) if state.codec else None
        step = lanes.count_encoded(lane, len(rows), len(payload or b""), may_try)
        if step == core.Next.TRIES:
            payload = self._trial(state, rows, payload)
            lanes.tried(lane)
        elif step == core.Next.FOLLOWS:
            state.codec = lanes.leading
            state.place = self._hold(self._newest.get(state.codec, 0), instead_of=0)
            payload = self._encode(state.codec, rows, state.place)
        if payload is None or not state.codec:
            return RAW, None, 0, 0
        self.table.uses.use(state.place)
        return state.codec, payload, self.table.uses.key(state.place), state.place

    def _encode(self, codec: int, rows: Bytes, place: int) -> bytes | None:
        return self._encoders[codec].encode(rows, self.table.data(place))

    def _shared(self) -> dict[int, bytes]:
        return {number: self.table.data(place) for number, place in self._newest.items()}

    def _trial(self, state: core.LaneCodec, rows: Bytes, payload: bytes | None) -> bytes | None:
        """Try every codec; keep the best. ``payload``: by the lane's current choice."""
        leading = self.lanes.leading
        most = [one for one in self.candidates if state.segments >= ALL_AGAIN or leading in (RAW, one.number)]
        current = Try(state.codec, self.table.data(state.place), payload) if state.codec else None

        def encode(codec: Codec, dictionary: bytes) -> bytes | None:
            return self._encoders[codec.number].encode(rows, dictionary)

        tried = try_each(most, rows, self._shared(), encode, current)
        return self._take_best(state, rows, tried, {one.dictionary for one in tried if one.trained})

    def _take_best(self, state: core.LaneCodec, rows: Bytes, tried: Sequence[Try], new: set[bytes]) -> bytes | None:
        """Choose the best try whose dictionary has a place, for its lane and as the leader; return its payload.

        Args:
            new: dictionaries that become the latest of other lanes if they win.
        """
        best, chosen, cost, places = Try(RAW, b"", None), 0, np.inf, list[int]()
        try:
            for one in tried:
                place = self.table.add(one.dictionary) if one.dictionary else 0
                if place is None:
                    continue
                places.append(place)
                codec = self._codecs[one.codec]
                if one.payload is None or len(one.payload) + one.share > self._max_bytes(codec, rows):
                    continue
                rules = codec.competition if self._auto else None
                its = (len(one.payload) + one.share) / (1.0 if rules is None else rules.preference)
                if its < cost:
                    best, chosen, cost = one, place, its
            self.lanes.leading = state.codec = best.codec
            state.place = self._hold(chosen, instead_of=state.place)
            if best.codec and chosen and best.dictionary in new:
                self._newest[best.codec] = self._hold(chosen, instead_of=self._newest.get(best.codec, 0))
        finally:
            for place in places:
                self.table.drop(place)
        state.bytes_per_row = np.inf
        if self._keepers:
            used = {*self.lanes.places(), *self._newest.values()}
            for encoder in self._keepers:
                encoder.keep_only([self.table.data(place) for place in used])
        return best.payload

    def _max_bytes(self, codec: Codec, rows: Bytes) -> float:
        """Return the bytes beyond which ``rows`` stay raw."""
        rules = codec.competition
        if not self._auto or rules is None:
            return rows.nbytes
        return min(rows.nbytes * rules.max_share, rows.nbytes - rules.min_saved_bytes * len(rows))

    def _hold(self, place: int, instead_of: int) -> int:
        self.table.uses.use(place)
        self.table.drop(instead_of)
        return place


class SegmentEncoder:
    """Encoder of a segment's columns: of each field one after the other.

    Attributes:
        columns: encoders by column. Flags and rewards have none: without a disk they stay raw, as they are read in
            place. Ragged fields have their own codec.
    """

    def __init__(self, layout: SegmentLayout, codecs: Mapping[str, str], tables: Sequence[DictionaryTable]) -> None:
        self.columns = {
            c: ColumnEncoder(layout.spec.columns[name], codecs[name], tables[c], layout.limits[c])
            for c, name in enumerate(layout.names)
            if name in layout.spec.columns and not layout.spec.columns[name].ragged
        }
        self._packs_steps = layout.spine_bytes > 0

    @property
    def nbytes(self) -> int:
        """Bytes of working memory."""
        return sum(encoder.nbytes for encoder in self.columns.values())

    def takes_long(self, lane: int, rows: Sequence[Any]) -> bool:
        """Return whether ``encode`` of the same arguments takes long."""
        if any(isinstance(one, RaggedRows) and one.nbytes >= SLOW_BYTES for one in rows):
            return True
        return any(one.lanes.takes_long(lane, len(rows[c])) for c, one in self.columns.items())

    def depends_on_others(self, lane: int, rows: Sequence[Any]) -> bool:
        """Return whether the encoding of the lane's next segment depends on segments of other lanes."""
        return any(one.lanes.depends_on_others(lane, len(rows[c])) for c, one in self.columns.items())

    def try_later(self, lane: int, rows: Sequence[Any]) -> bool:
        """Take and begin trials as ``ColumnEncoder.try_later`` does; return whether there were any."""
        done = [one.try_later(lane, rows[c]) for c, one in self.columns.items()]
        return any(done)

    def try_elsewhere(self, begin: Begin | None) -> None:
        """Have trials for later segments made by ``begin``; ``None``: make every trial at once."""
        for encoder in self.columns.values():
            encoder.try_elsewhere(begin)

    def reserve_trials(self, lane: int, rows: Sequence[Any]) -> list[bool]:
        """Return ``may_try`` for a later ``encode`` of the same arguments."""
        columns = self.columns
        return [c in columns and columns[c].lanes.reserve_trial(lane, len(data)) for c, data in enumerate(rows)]

    def limit_trials(self, count: float) -> None:
        """Let each column's encoder make at most so many trials of codecs from now on."""
        for encoder in self.columns.values():
            encoder.lanes.trials_left = count

    def encode(
        self,
        lane: int,
        rows: Sequence[Any],
        columns: list[SegmentColumn],
        places: list[int],
        may_try: Sequence[bool] | None = None,
    ) -> None:
        """Encode a segment's ``rows``, column by column; append to ``columns`` and ``places`` (of dictionaries), with
        references to these, also where this raises.

        Args:
            may_try: by column, from ``reserve_trials``; ``None``: the trials of the present call.
        """
        for c, data in enumerate(rows):
            if isinstance(data, RaggedRows):
                column, place = SegmentColumn(RAGGED, len(data), data.pack()), 0
            elif c not in self.columns:
                column, place = step_column(data, packs=self._packs_steps), 0
            else:
                column, place = self.columns[c].pack(lane, data, None if may_try is None else may_try[c])
            columns.append(column)
            places.append(place)
