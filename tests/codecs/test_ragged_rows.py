"""Codec ragged: payloads of any rows round trip, and payloads of any bytes are decoded or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sharpwave.codecs import ragged_rows
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.codec_registry import RAGGED, by_number, name_of, register
from sharpwave.codecs.ragged_rows import HEAD, Kind, RaggedRows
from sharpwave.codecs.zstd import Zstd
from sharpwave.errors import DamagedError, UnknownCodecError
from sharpwave.native import core

LIMIT = 1 << 20
KINDS = {
    "int32": Kind(np.dtype("int32"), (), None, 1 << 18, LIMIT),
    "int64": Kind(np.dtype("int64"), (2,), None, 1 << 16, LIMIT),
    "int16": Kind(np.dtype("int16"), (20,), None, 1 << 14, LIMIT),
    "float16": Kind(np.dtype("float16"), (40,), None, 1 << 13, LIMIT),
    "bool": Kind(np.dtype("bool"), (), None, LIMIT, LIMIT),
    "str": Kind(np.dtype("uint8"), (), "str", LIMIT, LIMIT),
    "bytes": Kind(np.dtype("uint8"), (), "bytes", LIMIT, LIMIT),
}


def rows_of(kind: Kind, lengths: list[int], seed: int, repeat: int = 1) -> npt.NDArray[Any]:
    rng = np.random.default_rng(seed)
    made: list[npt.NDArray[Any]] = []
    for length in lengths:
        if kind.text == "str":
            row: Any = np.frombuffer("".join(rng.choice([*"ab é\U0001f600"], length)).encode(), np.uint8)
        elif kind.dtype.kind == "f":
            row = rng.standard_normal((length, *kind.inner)).astype(kind.dtype)
        else:
            row = rng.integers(0, 2 if kind.dtype.kind == "b" else 100, (length, *kind.inner)).astype(kind.dtype)
        made += [row] * repeat
    rows = np.empty(len(made), object)
    for i, row in enumerate(made):
        rows[i] = row
    return rows


def equal(some: Any, others: Any) -> bool:
    return len(some) == len(others) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(some, others, strict=True)
    )


@given(
    name=st.sampled_from(list(KINDS)), lengths=st.lists(st.integers(0, 300), max_size=12), seed=st.integers(0, 99),
    repeat=st.integers(1, 3),
)  # fmt: skip
def test_rows_round_trip(name: str, lengths: list[int], seed: int, repeat: int) -> None:
    kind = KINDS[name]
    rows = rows_of(kind, lengths, seed, repeat)
    column = Packed(RaggedRows.of(kind, rows).pack(), len(rows), 8)
    ragged_rows.check(column, kind)
    ragged_rows.verify(column, kind)
    assert equal(ragged_rows.decode(column, kind, LIMIT), rows)


def test_tokens_below_50000_take_two_bytes_each() -> None:
    kind = KINDS["int32"]
    rng = np.random.default_rng(0)
    rows = np.empty(64, object)
    for i in range(64):
        rows[i] = rng.integers(0, 50_000, rng.integers(200, 2000)).astype(np.int32)
    payload = RaggedRows.of(kind, rows).pack()
    assert len(payload) < 2.01 * sum(map(len, rows)) + 400


def test_equal_neighbors_are_stored_once() -> None:
    kind, text = KINDS["str"], np.frombuffer(b"push the red block into the corner", np.uint8)
    begins = np.zeros(64, np.int64)
    payload = RaggedRows(kind, text, begins, np.full(64, len(text))).pack()
    assert len(payload) < 150
    assert all(row.tobytes() == text.tobytes() for row in ragged_rows.decode(Packed(payload, 64, 8), kind, LIMIT))


@given(
    name=st.sampled_from(list(KINDS)),
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=5),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 5),
    count=st.integers(0, 7),
)
def test_damaged_payloads_are_decoded_or_refused(
    name: str, lengths: list[int], changes: list[tuple[float, int]], cut: int, count: int
) -> None:
    kind = KINDS[name]
    payload = bytearray(RaggedRows.of(kind, rows_of(kind, lengths, 1)).pack())
    for i, (place, value) in enumerate(changes):
        within = min(len(payload), 2 * HEAD.size) if i % 2 else len(payload)
        payload[int(place * (within - 1))] = value
    column = Packed(bytes(payload[: len(payload) - cut]), count, 8)
    calls: list[Any] = [
        ragged_rows.check,
        ragged_rows.verify,
        lambda column, kind: ragged_rows.decode(column, kind, LIMIT),
    ]
    for call in calls:
        try:
            found = call(column, kind)
        except DamagedError as error:
            assert "ragged column" in str(error) or "packed column" in str(error)
            continue
        if found is not None:
            assert len(found) == count and sum(row.nbytes for row in found) <= count * LIMIT


@given(
    name=st.sampled_from(list(KINDS)),
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=5),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    repeat=st.integers(1, 2),
    order=st.randoms(use_true_random=False),
)
def test_the_core_reads_what_decode_does(
    name: str, lengths: list[int], changes: list[tuple[float, int]], repeat: int, order: Any
) -> None:
    """Also of a changed payload, if it passes the check on which the core relies."""
    kind = KINDS[name]
    rows = rows_of(kind, lengths, 2, repeat)
    payload = bytearray(RaggedRows.of(kind, rows).pack())
    for place, value in changes:
        payload[int(place * (len(payload) - 1))] = value
    column = Packed(bytes(payload), len(rows), 8)
    try:
        ragged_rows.check(column, kind)
        expected = ragged_rows.decode(column, kind, LIMIT)
    except DamagedError:
        assert changes
        return
    memory = np.frombuffer(bytes(8) + bytes(payload) + bytes(8), np.uint8)
    wanted = np.array(order.choices(range(len(rows)), k=7))
    slots = np.zeros(7, np.int64)
    where = memory, np.array([8]), np.array([RAGGED], np.uint8)
    begins, sizes = np.empty((2, 7), np.int64)
    core.locate_ragged(*where, slots, wanted, begins, sizes)
    assert sizes.tolist() == [len(expected[i]) for i in wanted]
    out, left = np.zeros(int(sizes.sum()) * kind.item_bytes, np.uint8), np.empty((2, 7), np.int64)
    no = np.zeros(1, np.int64)
    count = core.read_ragged(*where, no, slots, begins, sizes, kind.item_bytes, out, left)
    ends = np.cumsum(sizes) * kind.item_bytes
    assert count == np.count_nonzero(left[0] >= 0)
    for k, i in enumerate(wanted.tolist()):
        row = expected[i].tobytes()
        if left[0, k] >= 0:
            assert (
                bytes(ragged_rows.unpack_frames(memory, left[0, k : k + 1], left[1, k : k + 1], sizes[k : k + 1])[0])
                == row
            )
        else:
            assert out[ends[k] - len(row) : ends[k]].tobytes() == row


@given(st.sampled_from(list(KINDS)), st.binary(max_size=200), st.integers(0, 9))
@example("str", b"", 0)
def test_any_bytes_are_decoded_or_refused(name: str, payload: bytes, count: int) -> None:
    column = Packed(payload, count, 8)
    with pytest.raises(DamagedError) if len(payload) < HEAD.size else _decoded_or_refused():
        ragged_rows.decode(column, KINDS[name], LIMIT)


class _decoded_or_refused:
    def __enter__(self) -> None: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return isinstance(error, DamagedError)


def head(how: int, kinds: tuple[int, int, int], distinct: int, tables: list[bytes], unit: int = 0) -> bytes:
    return HEAD.pack(how, *kinds, distinct, *map(len, tables), unit) + b"".join(tables)


def words(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def test_a_bomb_is_refused() -> None:
    kind = KINDS["bytes"]
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    payload = head(2, (0, 1, 1), 1, [b"", words(0, len(bomb) + 100), words(0, len(bomb))]) + bomb
    column = Packed(payload, 1, 8)
    ragged_rows.check(column, kind)  # frames are looked at when they are decoded
    with pytest.raises(DamagedError, match="frame of another size"):
        ragged_rows.verify(column, kind)
    with pytest.raises(DamagedError, match="frame of another size"):
        ragged_rows.decode(column, kind, LIMIT)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (head(0, (0, 1, 0), 1, [b"", words(0, 1 << 31), b""]), "rise from 0 by at most"),
        (head(0, (0, 1, 0), 1, [b"", words(1, 1), b""]), "rise from 0"),
        (head(0, (0, 1, 0), 1, [b"", words(0, 3), b""]) + b"ab", "2 bytes of values, expected 3"),
        (head(0, (1, 1, 0), 1, [words(1), words(0, 0), b""]), "beyond the 1 distinct"),
        (head(0, (0, 1, 0), 1, [b"", words(0), b""]), "does not hold 2 numbers"),
        (head(0, (0, 1, 0), 1, [b"", words(0, 2), b""]) + b"\xc3\x28", "no UTF-8"),
        (head(7, (0, 1, 0), 1, [b"", words(0, 0), b""]), "kind 7 of values"),
        (head(0, (0, 1, 0), 2, [b"", words(0, 0, 0), b""]), "2 distinct rows of 1"),
        (head(1, (0, 1, 0), 1, [b"", words(0, 3), b""], 1) + b"abc", "packed numbers of 1 bytes"),
    ],
)
def test_hostile_payloads_are_refused_by_name(payload: bytes, why: str) -> None:
    with pytest.raises(DamagedError, match=why):
        ragged_rows.check(Packed(payload, 1, 8), KINDS["str"])


def test_the_number_is_for_ragged_fields_only() -> None:
    assert name_of(RAGGED) == "ragged"
    with pytest.raises(UnknownCodecError):
        by_number(RAGGED)
    mine = type("Mine", (Zstd,), {"name": "mine", "number": RAGGED})()
    with pytest.raises(ValueError, match="taken by 'ragged'"):
        register(mine)
