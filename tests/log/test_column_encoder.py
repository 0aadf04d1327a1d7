"""Codec "auto" measures: what it chooses for which data, when it waits, and that it changes its mind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.codec_registry import by_number
from sharpwave.codecs.delta import Patches
from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.codecs.raw import RAW
from sharpwave.codecs.zstd import Zstd
from sharpwave.log import column_encoder
from sharpwave.log.column_encoder import ColumnEncoder

Array = np.ndarray[Any, Any]
PATCHES, ZSTD = Patches.number, Zstd.number
FIELD = sw.Field((20, 30), "uint8")


def still(seed: int, count: int = 32) -> Array:
    """A background with a sprite that moves."""
    rng = np.random.default_rng(seed)
    rows = np.tile(rng.integers(0, 256, (20, 30)).astype(np.uint8), (count, 1, 1))
    for i in range(count):
        rows[i, 5:8, i % 25 : i % 25 + 4] = 200
    return rows.reshape(count, -1)


def noise(seed: int, count: int = 32) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, 600)).astype(np.uint8)


def encoder(codec: str = "auto", field: sw.Field = FIELD) -> tuple[ColumnEncoder, DictionaryTable]:
    table = DictionaryTable(field.row_bytes)
    return ColumnEncoder(field, codec, table, 64), table


def decoded(column: Any, place: int, table: DictionaryTable, field: sw.Field = FIELD) -> Array:
    packed = Packed(column.payload, column.rows, field.row_bytes, table.data(place), field.line_bytes)
    return by_number(column.codec).decode(packed)


def test_sprites_on_a_still_background_are_kept_as_differences() -> None:
    one, table = encoder()
    rows = still(1)
    column, place = one.pack(0, rows)
    assert column.codec == PATCHES and len(column.payload) < rows.nbytes / 10
    np.testing.assert_array_equal(decoded(column, place, table), rows)


def test_noise_costs_little_more_than_raw() -> None:
    """A dictionary may learn one segment's noise by heart; with the dictionary counted, that must not cost much."""
    one, table = encoder()
    packed = [one.pack(0, noise(seed))[0] for seed in range(60)]
    taken = sum(len(column.payload) for column in packed) + table.nbytes
    assert taken <= 1.05 * 60 * noise(0).nbytes
    assert sum(column.codec == RAW for column in packed) >= 50


def test_too_few_rows_are_no_measure() -> None:
    one, _ = encoder()
    assert one.pack(0, still(1, 7))[0].codec == RAW
    assert one.pack(0, still(1, 32))[0].codec == PATCHES


def test_small_rows_are_packed_where_that_saves_a_tenth() -> None:
    """Without a trial: a lane of noise stays raw, and is tried again after as many segments as it has."""
    field = sw.Field((7,), "float32")
    one, _ = encoder(field=field)
    assert one.pack(0, np.zeros((64, 28), np.uint8))[0].codec == PackedNumbers.number
    noise = np.random.default_rng(0).integers(0, 256, (64, 28), np.uint8)
    assert one.pack(1, noise)[0].codec == RAW
    chosen = [one.pack(1, np.zeros((64, 28), np.uint8) if k else noise)[0].codec for k in range(4)]
    assert chosen == [RAW, RAW, PackedNumbers.number, PackedNumbers.number]
    assert one.pack(2, np.zeros((7, 28), np.uint8))[0].codec == RAW  # too few rows to measure


@pytest.mark.parametrize(("size", "chosen"), [(64, RAW), (128, RAW), (1024, ZSTD)])
def test_zstd_is_taken_only_where_it_saves_much(size: int, chosen: int) -> None:
    """Of small whole numbers it leaves less than a third, however many there are; decompressing a row has its price."""
    field = sw.Field((size,), "float32")
    rows = np.random.default_rng(0).integers(0, 8, (64, size)).astype(np.float32).view(np.uint8)
    assert len(encoder("zstd", field)[0].pack(0, rows)[0].payload) < 0.4 * rows.nbytes
    one, _ = encoder(field=field)
    assert {one.pack(k % 3, rows)[0].codec for k in range(40)} == {chosen}


def test_patches_are_taken_only_where_they_leave_little() -> None:
    field = sw.Field((128,), "float32")
    rng = np.random.default_rng(0)
    for share, chosen in ((0.05, PATCHES), (0.3, RAW)):
        rows = (rng.normal(size=(64, 128)) * rng.binomial(1, share, (64, 128))).astype(np.float32).view(np.uint8)
        assert encoder(field=field)[0].pack(0, rows)[0].codec == chosen


@pytest.mark.parametrize("codec", ["raw", "zstd", "delta", "auto"])
@pytest.mark.parametrize("lanes", [1, 3])
def test_whatever_comes_comes_back(codec: str, lanes: int) -> None:
    """Scenes change, noise comes and goes, segments are of any length; what refers to a dictionary keeps it alive."""
    one, table = encoder(codec)
    rng = np.random.default_rng(5)
    kept: list[tuple[Any, int, Array]] = []
    for k in range(150):
        make = noise if k % 11 == 7 else still
        rows = make(k // 20, int(rng.integers(1, 33)))
        column, place = one.pack(k % lanes, rows)
        kept.append((column, place, rows))
        for old, at, original in kept[:: max(1, len(kept) // 5)]:
            np.testing.assert_array_equal(decoded(old, at, table), original)
        if len(kept) > 20:
            _, gone, _ = kept.pop(0)
            table.drop(gone)
    for old, at, original in kept:
        np.testing.assert_array_equal(decoded(old, at, table), original)


def test_a_new_scene_gets_a_new_dictionary_in_time() -> None:
    one, _ = encoder()
    for _ in range(30):
        one.pack(0, still(1))
    sizes = [len(one.pack(0, still(2))[0].payload) for _ in range(60)]
    assert min(sizes[-20:]) <= len(encoder()[0].pack(0, still(2))[0].payload) * 1.3


def test_dictionaries_that_nothing_refers_to_go() -> None:
    one, table = encoder()
    places = []
    for k in range(300):
        places.append(one.pack(0, still(k // 10))[1])
        if len(places) > 10:
            table.drop(places.pop(0))
    live = {place for place in places if place}
    assert table.nbytes <= (len(live) + 4) * (600 + 600) + 64 * 1024


def test_rows_that_stay_raw_are_tried_now_and_then_and_a_lane_that_encodes_is_found() -> None:
    """64 lanes of noise, and one of zeros among them: each trial takes as long as sealing ten segments."""
    field, trials = sw.Field((10,), "float32"), 0
    one, table = encoder(field=field)
    choose = one._trial

    def counted(*args: Any) -> Any:
        nonlocal trials
        trials += 1
        return choose(*args)

    one._trial = counted  # type: ignore[method-assign, assignment]
    rng, found = np.random.default_rng(0), 0
    for turn in range(100):
        for lane in range(64):
            rows = np.zeros((32, 40), np.uint8) if lane == 50 else rng.integers(0, 256, (32, 40)).astype(np.uint8)
            column, place = one.pack(lane, rows)
            if column.codec != RAW:
                assert lane == 50
                np.testing.assert_array_equal(decoded(column, place, table, field), rows)
                found = found or turn
    assert found > 0 and trials < 0.06 * 100 * 64


def test_a_lane_that_has_to_wait_takes_the_last_winner_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_encoder, "SLOW_BYTES", 0)
    one, table = encoder()
    one.lanes.trials_left = 2
    packed = [one.pack(lane, still(lane)) for lane in range(6)]
    assert one.lanes.trials_left == 0
    for lane, (column, place) in enumerate(packed):
        assert column.codec == PATCHES
        np.testing.assert_array_equal(decoded(column, place, table), still(lane))
    assert packed[0][1] != packed[1][1] == packed[2][1] == packed[5][1], "the second lane's dictionary is the latest"
    one.lanes.trials_left = 4
    own = [one.pack(lane, still(lane)) for lane in range(2, 6)]
    assert one.lanes.trials_left == 0, "their turn has come"
    assert sum(len(c.payload) for c, _ in own) < sum(len(c.payload) for c, _ in packed[2:])


def test_one_call_makes_two_trials_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, choose = 0, ColumnEncoder._trial

    def counted(*args: Any) -> Any:
        nonlocal trials
        trials += 1
        return choose(*args)

    monkeypatch.setattr(column_encoder, "SLOW_BYTES", 8 * 600)
    monkeypatch.setattr(ColumnEncoder, "_trial", counted)
    lanes, noisy = 32, np.random.default_rng(0)
    spec = sw.Spec(obs=sw.Field((20, 30), "uint8"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100_000, segment_steps=16) as store:
        store._log.opened.staggered = False  # all are full in the same call
        most, no, zeros = 0, np.zeros(lanes, np.bool_), np.zeros(lanes, np.int64)
        for step in range(100):
            obs = np.tile(still(0, 25)[step % 25].reshape(20, 30), (lanes, 1, 1))
            obs[::2] = noisy.integers(0, 256, (lanes // 2, 20, 30))
            before = trials
            store.extend(obs=obs, action=zeros, reward=zeros, terminated=no, truncated=no)
            most = max(most, trials - before)
        assert most == 2 and trials >= 7  # and others are made behind the caller, one at a time
        batch = store.transitions(seed=0).sample(64)
        assert len(batch.obs) == 64
