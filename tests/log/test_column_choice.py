"""The core's choices for lanes' columns beside a plain model of the rules, over many lanes, codecs and sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.codecs import codec_registry
from sharpwave.codecs.codec_protocol import Codec, Competition
from sharpwave.codecs.dictionaries import DictionaryTable, key_of
from sharpwave.codecs.raw import RAW
from sharpwave.format.segment import SegmentColumn
from sharpwave.log import column_encoder
from sharpwave.log.column_encoder import ColumnEncoder
from sharpwave.native import core
from tests.support.examples import examples

Array = np.ndarray[Any, Any]
FIELD = sw.Field((6, 10), "uint8")
SIZE = FIELD.row_bytes
LANES = 5


@dataclass
class Choice:
    """Model of a lane's choice."""

    codec: Codec | None = None
    place: int = 0
    bytes_per_row: float = math.inf
    segments: int = 0
    next_trial: int = 1


@dataclass
class Uses:
    """Model of a table of dictionaries: keys and counts, by place."""

    data: dict[int, bytes] = field(default_factory=lambda: {0: b""})
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, data: bytes) -> int | None:
        held = [place for place, one in self.data.items() if one == data]
        free = [place for place in range(1, 256) if place not in self.data]
        if not held and not free:
            return None
        place = held[0] if held else free[0]
        self.data[place] = data
        self.use(place)
        return place

    def use(self, place: int) -> None:
        if place:
            self.counts[place] = self.counts.get(place, 0) + 1

    def drop(self, place: int) -> None:
        if place:
            self.counts[place] -= 1
            if not self.counts[place]:
                del self.counts[place], self.data[place]


class Model:
    """Model of ``ColumnEncoder``, with every rule in Python, and codecs that keep nothing."""

    def __init__(self, codec: str, slow_bytes: int) -> None:
        self.table, self.auto, self.slow_bytes = Uses(), codec == "auto", slow_bytes
        self.candidates = (
            codec_registry.candidates(SIZE, FIELD.line_bytes) if self.auto else (codec_registry.by_name(codec),)
        )
        self.candidates = tuple(one for one in self.candidates if one.number != RAW)
        self.lanes: dict[int, Choice] = {}
        self.newest: dict[Codec, int] = {}
        self.leading: Codec | None = None
        self.trials_left = math.inf
        self.raw = self.pause = self.until = 0
        self.later = False
        self.trying: tuple[int, Array, dict[Codec, bytes]] | None = None  # lane, rows, latest dictionaries

    def tries_later(self, state: Choice) -> bool:
        return self.later and self.raw > 0 and state.codec is None

    def begins(self, lane: int, rows: int) -> bool:
        state = self.lanes.get(lane, Choice())
        wanted = state.segments + 1 >= state.next_trial and self.pause <= 1
        return self.trying is None and self.tries_later(state) and wanted and not self.few(rows)

    def ends(self, lane: int, rows: int) -> bool:
        if self.trying is None or self.few(rows):
            return False
        return self.until <= 0 or (lane == self.trying[0] and self.until < 256)

    def look(self, lane: int, rows: Array) -> None:
        if self.trying is not None and self.ends(lane, len(rows)):
            tried, copy, shared = self.trying
            self.trying = None
            state = self.lanes[tried]
            if state.codec is None:
                self.tried(state, copy, None, shared)
        if self.begins(lane, len(rows)):
            shared = {codec: self.table.data[place] for codec, place in self.newest.items()}
            self.trying, self.until = (lane, rows.copy(), shared), 256

    def large(self, rows: int) -> bool:
        return rows * SIZE >= self.slow_bytes

    def few(self, rows: int) -> bool:
        return not self.candidates or rows < (8 if self.auto else 1)

    def due(self, state: Choice) -> bool:
        wanted = state.segments + 1 >= state.next_trial and (state.codec is not None or self.pause <= 1)
        return wanted and not self.tries_later(state)

    def takes_long(self, lane: int, rows: int) -> bool:
        state = self.lanes.get(lane, Choice())
        slow = state.codec is not None and state.codec.slow
        return self.large(rows) and not self.few(rows) and (slow or (self.due(state) and self.trials_left > 0))

    def depends_on_others(self, lane: int, rows: int) -> bool:
        state = self.lanes.get(lane, Choice())
        wanted = state.codec is None and state.segments + 1 >= state.next_trial and (self.later or self.large(rows))
        return not self.few(rows) and (self.trying is not None or wanted)

    def reserve_trial(self, lane: int, rows: int) -> bool:
        allowed = self.trials_left > 0
        if allowed and self.large(rows) and not self.few(rows) and self.due(self.lanes.get(lane, Choice())):
            self.trials_left -= 1
        return allowed

    def pack(self, lane: int, rows: Array, may_try: bool | None) -> tuple[SegmentColumn, int]:
        raw = SegmentColumn(RAW, len(rows), rows.tobytes())
        if may_try is None:
            self.look(lane, rows)
        state = self.lanes.setdefault(lane, Choice())
        if self.few(len(rows)):
            return raw, 0
        state.segments += 1
        if self.pause:
            self.pause -= 1
        if self.until:
            self.until -= 1
        payload = self.encode(state.codec, rows, state.place)
        worse = state.codec is not None and (not payload or len(payload) / len(rows) > 1.3 * state.bytes_per_row)
        if payload and state.bytes_per_row == math.inf:
            state.bytes_per_row = len(payload) / len(rows)
        due = state.segments >= state.next_trial and (state.codec is not None or self.pause == 0)
        due = due and not self.tries_later(state)
        if due or (worse and state.segments >= state.next_trial // 4 + 8):
            if not self.large(len(rows)):
                payload = self.tried(state, rows, payload)
            elif self.trials_left > 0 if may_try is None else may_try:
                self.trials_left -= may_try is None
                payload = self.tried(state, rows, payload)
            elif state.codec is None and self.leading is not None:
                state.codec, state.place = self.leading, self.newest.get(self.leading, 0)
                self.table.use(state.place)
                payload = self.encode(state.codec, rows, state.place)
        if payload is None or state.codec is None:
            return raw, 0
        self.table.use(state.place)
        key = key_of(self.table.data[state.place])
        return SegmentColumn(state.codec.number, len(rows), payload, key), state.place

    def encode(self, codec: Codec | None, rows: Array, place: int) -> bytes | None:
        return None if codec is None else codec.encode(rows, self.table.data[place], FIELD.line_bytes)

    def tried(
        self, state: Choice, rows: Array, payload: bytes | None, latest: dict[Codec, bytes] | None = None
    ) -> bytes | None:
        payload = self.trial(state, rows, payload, latest)
        state.next_trial = state.segments + min(256, 3 * state.segments)
        self.raw = self.raw + 1 if state.codec is None and self.auto else 0
        self.pause = min(self.raw, 256)
        return payload

    def trial(
        self, state: Choice, rows: Array, current: bytes | None, latest: dict[Codec, bytes] | None
    ) -> bytes | None:
        found = [(state.codec, state.place, current, 0)] if state.codec else []
        added = []
        leads = None if latest is not None or state.segments >= 16 else self.leading
        for codec in self.candidates if leads is None else (leads,):
            least = min([len(one[2]) for one in found if one[2] is not None], default=rows.nbytes)
            rules = codec.competition
            if codec is not state.codec and rules and least <= rules.tried_above * rows.nbytes:
                continue
            shared = self.newest.get(codec, 0)
            if latest and codec in latest:
                again = self.table.add(latest[codec])
                if again is None:
                    continue
                shared = again
                added.append(again)
            found.append((codec, shared, self.encode(codec, rows, shared), 0))
            own = codec.train(rows[::2])
            place = self.table.add(own) if own else None
            if place is not None:
                added.append(place)
                payload = self.encode(codec, rows, place)
                share = (len(own) + codec.decoder_bytes) // 64
                share += codec.memorized_bytes(payload, len(rows)) if payload else 0
                found.append((codec, place, payload, share))
        best: tuple[float, Codec | None, int, bytes | None] = (math.inf, None, 0, None)
        for one, place, payload, share in found:
            rules, limit = one.competition if self.auto else None, float(rows.nbytes)
            if rules is not None:
                limit = min(rows.nbytes * rules.max_share, rows.nbytes - rules.min_saved_bytes * len(rows))
            if payload is not None and len(payload) + share <= limit:
                cost = (len(payload) + share) / (1.0 if rules is None else rules.preference)
                best = best if best[0] <= cost else (cost, one, place, payload)
        self.leading = best[1]
        self.table.use(best[2])
        self.table.drop(state.place)
        _, state.codec, state.place, payload = best
        if state.codec is not None and state.place in added:
            self.table.use(state.place)
            self.table.drop(self.newest.get(state.codec, 0))
            self.newest[state.codec] = state.place
        for place in added:
            self.table.drop(place)
        state.bytes_per_row = math.inf
        return payload


class Slow(Codec):
    """Codec of Python's that takes long: which of a background's bytes differ, and what they are."""

    name, number, slow = "slow", 210, True
    competition: ClassVar[Competition] = Competition(max_share=0.6)

    def max_dictionary_bytes(self, size: int) -> int:
        return size

    def train(self, rows: Array) -> bytes:
        return rows[0].tobytes()

    def encode(self, rows: Array, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        background = np.frombuffer(dictionary, np.uint8) if dictionary else np.zeros(rows.shape[1], np.uint8)
        different = rows != background
        payload = np.packbits(different).tobytes() + rows[different].tobytes()
        return payload if len(payload) < rows.nbytes else None

    def check(self, column: Any) -> None:
        raise NotImplementedError

    def decode_row(self, column: Any, row: int) -> bytes:
        raise NotImplementedError


@pytest.fixture(scope="module", autouse=True)
def slow() -> Any:
    codec_registry.register(Slow())
    yield
    codec_registry.unregister("slow")


def rows_of(kind: int, count: int, seed: int) -> Array:
    """Frames like those of one of four scenes, half of a scene and half noise, or noise."""
    rng = np.random.default_rng(seed)
    rows = np.tile(np.random.default_rng(kind).integers(0, 256, SIZE).astype(np.uint8), (count, 1))
    noisy = {4: SIZE // 2, 5: SIZE}.get(kind, 2)
    rows[:, rng.permutation(SIZE)[:noisy]] = rng.integers(0, 256, (count, noisy))
    return rows


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["pack", "pack", "pack", "pack", "behind", "trials", "release"]),
        st.integers(0, LANES - 1),
        st.integers(0, 5),  # which rows
        st.sampled_from([1, 7, 8, 9, 15, 16, 17, 24]),  # how many
        st.sampled_from([1, 2, 3, 5, 9, 40]),  # how often
    ),
    min_size=8,
    max_size=30,
)


def agree(model: Model, one: ColumnEncoder, lanes_used: int = LANES) -> None:
    lanes, uses = one.lanes, one.table.uses
    for lane in range(lanes_used):
        mine, its = model.lanes.get(lane), lanes.find(lane)
        assert (mine is None) == (its is None)
        if mine is not None and its is not None:
            number = RAW if mine.codec is None else mine.codec.number
            expected = (number, mine.place, mine.bytes_per_row, mine.segments, mine.next_trial)
            assert (its.codec, its.place, its.bytes_per_row, its.segments, its.next_trial) == expected
        for rows in (1, 7, 8, 15, 16, 24):
            assert lanes.takes_long(lane, rows) == model.takes_long(lane, rows)
            assert lanes.depends_on_others(lane, rows) == model.depends_on_others(lane, rows)
            assert lanes.begins_trial(lane, rows) == model.begins(lane, rows)
            assert lanes.ends_trial(lane, rows) == model.ends(lane, rows)
    assert lanes.trials_left == model.trials_left
    assert lanes.leading == (RAW if model.leading is None else model.leading.number)
    assert set(lanes.places()) == {state.place for state in model.lanes.values()}
    for place in range(256):
        data = model.table.data.get(place, b"")
        assert one.table.data(place) == data
        assert uses.count(place) == model.table.counts.get(place, 0)
        if place in model.table.data:
            assert uses.key(place) == key_of(data)


def begun(seed: int) -> Any:
    """Return what makes trials at once, or not before they are waited for."""
    rng = np.random.default_rng(seed)

    def begin(work: Any) -> Any:
        if rng.integers(2):
            return work
        work()
        return lambda: None

    return begin


@given(
    st.sampled_from(["auto", "auto", "auto", "patches", "delta", "zstd", "slow", "raw"]),
    st.booleans(),
    ACTIONS,
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=examples(100), deadline=None)
def test_choices_are_those_of_the_model(
    codec: str, later: bool, actions: list[tuple[str, int, int, int, int]], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_encoder, "SLOW_BYTES", 16 * SIZE)
        one = ColumnEncoder(FIELD, codec, DictionaryTable(SIZE), 24)
    model = Model(codec, 16 * SIZE)
    if later:
        one.try_elsewhere(begun(seed))
        model.later = True
    held: list[int] = []
    for k, (action, lane, kind, count, times) in enumerate(actions):
        for turn in range(times if action == "pack" else 1):
            rows = rows_of(kind, count, seed + 100 * k + turn)
            may_try = None
            if action == "trials":
                one.lanes.trials_left = model.trials_left = {15: 1, 16: 2, 17: 4, 24: math.inf}.get(count, 0)
                break
            if action == "release":
                for place in held[::2]:
                    one.table.drop(place)
                    model.table.drop(place)
                held = held[1::2]
                break
            if action == "behind":
                model.look(lane, rows)  # as the caller does before
                one.try_later(lane, rows)
                may_try = model.reserve_trial(lane, count)
                assert one.lanes.reserve_trial(lane, count) == may_try
            before = one.lanes.find(lane)
            expected = model.pack(lane, rows, may_try)
            assert one.pack(lane, rows, may_try) == expected
            assert before is None or before is one.lanes.find(lane), "a choice stays where it is"
            held.append(expected[1])
        agree(model, one)


def test_lanes_of_noise_are_tried_ever_more_rarely_but_no_less() -> None:
    """The pause between two trials grows by one with each, up to 256 segments."""
    one, model, noise = (
        ColumnEncoder(FIELD, "auto", DictionaryTable(SIZE), 24),
        Model("auto", 1 << 16),
        rows_of(5, 8, 0),
    )
    for k in range(36_000):
        assert one.pack(k % 500, noise) == model.pack(k % 500, noise, None)
    assert model.raw > 260 and model.pause <= 256
    agree(model, one, 500)


@pytest.mark.parametrize(
    "lanes", [1, 5, pytest.param(40, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.nightly)]
)
def test_a_trial_for_later_segments_counts_from_the_lanes_next_one(lanes: int) -> None:
    """Noise, and much later a scene: each lane has a codec in the end. Two encoders, one with trials made late."""
    both = [ColumnEncoder(FIELD, "auto", DictionaryTable(SIZE), 24) for _ in range(2)]
    model, noise, trials = Model("auto", 1 << 16), rows_of(5, 8, 0), 0

    def at_once(work: Any) -> Any:
        nonlocal trials
        trials += 1
        work()
        return lambda: None

    for one, begin in zip(both, (at_once, lambda work: work), strict=True):
        one.try_elsewhere(begin)
    model.later = True
    before = -1
    for k in range(1000 + 400 * lanes):
        rows = noise if k < 1000 else rows_of(0, 8, k % 7)
        expected = model.pack(k % lanes, rows, None)
        assert [one.pack(k % lanes, rows) for one in both] == [expected, expected]
        if trials and before < 0:
            before = k
            assert expected[0].codec == RAW
        assert k >= 1000 or expected[0].codec == RAW
    assert 0 < trials < 1000 / min(lanes, 256) + 2 and before >= 0
    assert all(model.lanes[lane].codec is not None for lane in range(lanes))
    for one in both:
        agree(model, one, lanes)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_error_of_a_trial_is_raised_once_and_the_trial_made_anew(error: type[BaseException]) -> None:
    one, noise = ColumnEncoder(FIELD, "auto", DictionaryTable(SIZE), 24), rows_of(5, 8, 0)

    def fails(work: Any) -> Any:
        def finish() -> None:
            raise error("no room")

        return finish

    one.try_elsewhere(fails)
    for _ in range(4):  # trials with the first, and at the fourth
        one.pack(0, noise)
    assert one.nbytes > noise.nbytes and one.lanes.ends_trial(0, 8)
    with pytest.raises(error, match="no room"):
        one.pack(0, noise)
    assert not one.lanes.ends_trial(0, 8) and one.lanes.begins_trial(0, 8) and one.lanes.at(0).segments == 4
    one.try_elsewhere(lambda work: work)
    for _ in range(2):
        assert one.pack(0, noise)[0].codec == RAW
    assert one.lanes.at(0).next_trial > 16


def test_codecs_are_tried_again_after_256_segments_at_most() -> None:
    one, model = ColumnEncoder(FIELD, "auto", DictionaryTable(SIZE), 24), Model("auto", 1 << 16)
    for k in range(300):
        rows = rows_of(0, 16, k)
        assert one.pack(0, rows) == model.pack(0, rows, None)
    assert model.lanes[0].next_trial == 512
    agree(model, one)


def test_a_trial_that_was_reserved_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_encoder, "SLOW_BYTES", 16 * SIZE)
    one, model = ColumnEncoder(FIELD, "auto", DictionaryTable(SIZE), 24), Model("auto", 16 * SIZE)
    one.lanes.trials_left = model.trials_left = 1
    rows = rows_of(0, 16, 0)
    assert one.lanes.reserve_trial(0, 16) and model.reserve_trial(0, 16)
    assert one.pack(0, rows, True) == model.pack(0, rows, True)
    assert one.lanes.trials_left == 0 and one.lanes.leading, "and a codec leads, so that no lane stays raw"
    assert not one.lanes.reserve_trial(1, 16) and not model.reserve_trial(1, 16)
    assert one.pack(1, rows, False) == model.pack(1, rows, False)
    agree(model, one)


def test_a_call_that_python_must_make_changes_nothing() -> None:
    """Rows of another scene are encoded, and found to be so much worse that codecs are to be tried."""
    one = ColumnEncoder(FIELD, "patches", DictionaryTable(SIZE), 24)
    for turn in range(9):
        one.pack(0, rows_of(0, 24, turn))
    state = one.lanes.at(0)
    place = state.place
    state.next_trial = 256
    made = one.lanes.encode(0, rows_of(4, 24, 0), None)
    assert made is not None and state.segments == 10, "too early: it is taken as it is"
    state.segments = 71
    before = [state.codec, state.place, state.bytes_per_row, state.segments, one.table.uses.count(place)]
    assert one.lanes.encode(0, rows_of(4, 24, 0), None) is None
    assert one.lanes.encode(1, rows_of(4, 24, 0), None) is None, "the first one of a lane is tried"
    assert [state.codec, state.place, state.bytes_per_row, state.segments, one.table.uses.count(place)] == before
    assert one.lanes.find(1) is None


def test_places_of_dictionaries_are_counted_and_found_again() -> None:
    uses = core.DictionaryUses(4)
    assert uses.first_free() == 1 and uses.key(0) == 0 and not uses.drop(0)
    for place in (1, 2, 3):
        uses.put(place, 2**63 + place)
        uses.use(place)
    uses.use(2)
    uses.use(0)
    assert uses.first_free() is None and [uses.count(place) for place in range(4)] == [0, 1, 2, 1]
    assert not uses.drop(2) and uses.drop(2) and uses.first_free() == 2 and uses.key(2) == 2**63 + 2
