"""Choice of codec and dictionary for a field's columns: measured on the data, and again as the data changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sharpwave.codecs import registry as codecs
from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.codecs.protocol import Codec, Encoder
from sharpwave.codecs.raw import RAW
from sharpwave.format.segment import Column
from sharpwave.native import core
from sharpwave.spec import Field

Bytes = npt.NDArray[np.uint8]
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


@dataclass
class Trial:
    """Trial of codecs on a copy of a segment's rows, whose outcome is for later segments of the lane.

    Attributes:
        candidates: codecs to try. ``shared``: by codec, the latest dictionary of other lanes.
        found: codec, dictionary, payload and share of the dictionary's bytes of each try.
        finish: waits until it is made.
    """

    rows: Bytes
    line_bytes: int
    candidates: Sequence[Codec]
    shared: Mapping[int, bytes]
    found: list[tuple[int, bytes, bytes | None, int]] = field(default_factory=list)
    finish: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Try the codecs, in any thread."""
        rows, found = self.rows, list[tuple[int, bytes, bytes | None, int]]()
        for codec in self.candidates:
            if not _worth_trying(codec, rows, [payload for _, _, payload, _ in found]):
                continue
            shared = self.shared.get(codec.number, b"")
            found.append((codec.number, shared, codec.encode(rows, shared, self.line_bytes), 0))
            own = codec.train(rows[::2])
            if own:
                payload = codec.encode(rows, own, self.line_bytes)
                found.append((codec.number, own, payload, _share(codec, own, payload, len(rows))))
        self.found = found


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
        # Those that keep something for each dictionary; asking takes a time that grows with the lanes.
        self._keepers = [one for one in self._encoders.values() if type(one).keep_only is not Encoder.keep_only]
        self.lanes = core.LaneCodecs(field.line_bytes, self._auto, SLOW_BYTES, table.references, table.uses)
        for one in self.candidates:
            self.lanes.add_codec(one.number, one.slow, self._encoders[one.number].patches)
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
            shared = {number: self.table.data(place) for number, place in self._newest.items()}
            trial = Trial(rows.copy(), self.field.line_bytes, self.candidates, shared)
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
        found, added = list[tuple[int, int, bytes | None, int]](), list[int]()
        try:
            for number, dictionary, payload, share in trial.found:
                place = self.table.add(dictionary) if dictionary else 0
                if place is not None:
                    added += [place] if place else []
                    found.append((number, place, payload, share))
            self._take_best(state, trial.rows, found, added)
        finally:
            for place in added:
                self.table.drop(place)
        self.lanes.tried(lane)

    def pack(self, lane: int, rows: Bytes, may_try: bool | None = None) -> tuple[Column, int]:
        """Pack ``rows`` uint8 [n, row_bytes]; return the column and the place of its dictionary, with a reference to
        it.

        Args:
            may_try: from ``lanes.reserve_trial`` of the same arguments; ``None``: as ``lanes.trials_left`` has it.
        """
        if may_try is None:
            self.try_later(lane, rows)
        packed = self.lanes.encode(lane, rows, may_try) or self._pack(lane, rows, may_try)
        codec, payload, key, place = packed
        return Column(codec, len(rows), rows.tobytes() if payload is None else payload, key), place

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

    def _trial(self, state: core.LaneCodec, rows: Bytes, current: bytes | None) -> bytes | None:
        """Try every codec, with the latest dictionary and with a new one of this lane; keep the best."""
        tried: list[tuple[int, int, bytes | None, int]] = []  # codec, place, payload, share of the dictionary's bytes
        if state.codec:
            tried.append((state.codec, state.place, current, 0))
        added: list[int] = []
        try:
            return self._choose(state, rows, tried, added)
        finally:
            for place in added:
                self.table.drop(place)

    def _choose(
        self, state: core.LaneCodec, rows: Bytes, tried: list[tuple[int, int, bytes | None, int]], added: list[int]
    ) -> bytes | None:
        """Do as ``_trial``; new dictionaries, ``added``, count as used once more."""
        leading = self.lanes.leading
        for codec in self.candidates:
            if state.segments < ALL_AGAIN and leading not in (RAW, codec.number):
                continue
            payloads = [payload for _, _, payload, _ in tried]
            if codec.number != state.codec and not _worth_trying(codec, rows, payloads):
                continue
            shared = self._newest.get(codec.number, 0)
            tried.append((codec.number, shared, self._encode(codec.number, rows, shared), 0))
            own = codec.train(rows[::2])
            place = self.table.add(own) if own else None
            if place is not None:
                added.append(place)
                payload = self._encode(codec.number, rows, place)
                tried.append((codec.number, place, payload, _share(codec, own, payload, len(rows))))
        return self._take_best(state, rows, tried, added)

    def _take_best(
        self, state: core.LaneCodec, rows: Bytes, tried: list[tuple[int, int, bytes | None, int]], added: list[int]
    ) -> bytes | None:
        """Make the best of the ``tried`` codecs the lane's choice, and the leading one; return its payload."""
        best: tuple[float, int, int, bytes | None] = (np.inf, RAW, 0, None)
        for number, place, payload, share in tried:
            codec = self._codecs[number]
            if payload is not None and len(payload) + share <= self._max_bytes(codec, rows):
                rules = codec.competition if self._auto else None
                cost = (len(payload) + share) / (1.0 if rules is None else rules.preference)
                best = min(best, (cost, number, place, payload), key=lambda choice: choice[0])
        _, state.codec, place, payload = best
        self.lanes.leading = state.codec
        state.place = self._hold(place, instead_of=state.place)
        if state.codec and place in added:
            self._newest[state.codec] = self._hold(place, instead_of=self._newest.get(state.codec, 0))
        state.bytes_per_row = np.inf
        if self._keepers:
            used = {*self.lanes.places(), *self._newest.values()}
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
        self.table.uses.use(place)
        self.table.drop(instead_of)
        return place


def _worth_trying(codec: Codec, rows: Bytes, payloads: Sequence[bytes | None]) -> bool:
    """Return whether a codec is to be tried, beside the ``payloads`` of others."""
    least = min((len(payload) for payload in payloads if payload is not None), default=rows.nbytes)
    return codec.competition is None or least > codec.competition.tried_above * rows.nbytes


def _share(codec: Codec, dictionary: bytes, payload: bytes | None, count: int) -> int:
    """Return the bytes that a new dictionary costs each of the segments over which it must save them."""
    memorized = codec.memorized_bytes(payload, count) if payload else 0
    return (len(dictionary) + codec.decoder_bytes) // HORIZON + memorized
