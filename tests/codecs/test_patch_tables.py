"""Coded patches beside plain twins, on the same random input, and patches that are cut out of columns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharpwave.codecs.codec_protocol import Codec, Packed
from sharpwave.codecs.delta import Delta, Patches
from sharpwave.native import core
from sharpwave.testing.columns_in_memory import pictures
from tests.codecs.test_patches import likely_patches, naive_paint, paint, payload_of
from tests.support.examples import examples

Array = np.ndarray[Any, Any]
TABLE = bytes([4, 0, 6, 0, 128, 9, 2, 1, 2, 3])
"""Of two entries: a byte 9, and three bytes 1, 2, 3."""
EXAMPLES = settings(max_examples=examples(80), deadline=None)


def naive_entries(table: bytes) -> list[tuple[int, bytes]] | None:
    """The table read as the format says: shapes and literals; None if it is none."""
    if not table:
        return []
    if len(table) < 2:
        return None
    first = int.from_bytes(table[:2], "little")
    if first % 2 or not 1 <= first // 2 <= 240 or first > len(table):
        return None
    found = []
    for k in range(first // 2):
        start = int.from_bytes(table[2 * k : 2 * k + 2], "little")
        if not first <= start < len(table):
            return None
        shape = table[start]
        literal = table[start + 1 : start + 1 + (1 if shape >= 128 else shape % 16 + 1)]
        if len(literal) < (1 if shape >= 128 else shape % 16 + 1):
            return None
        found.append((shape, literal))
    return found


def naive_plain(coded: bytes, entries: list[tuple[int, bytes]]) -> bytes | None:
    """Write coded patches as delta's; None if they end early or have a code that is none."""
    out, stream = bytearray(), list(coded)
    while stream:
        skip = stream[:1] if stream[0] < 128 else stream[:2]
        if stream[0] >= 128 and len(stream) < 2:
            return None
        del stream[: len(skip)]
        out += bytes(skip)
        if skip == [255, 255]:
            continue
        if not stream:
            return None
        code = stream.pop(0)
        if code < len(entries):
            out += bytes([entries[code][0]]) + entries[code][1]
        elif code < 240 or not stream:
            return None
        else:
            size = 2 if stream[0] >= 128 else stream[0] % 16 + 2
            if len(stream) < size or size != code - 240 + 2:
                return None
            out += bytes(stream[:size])
            del stream[:size]
    return bytes(out)


@EXAMPLES
@given(picture=pictures(), repeats=st.integers(1, 6))
def test_a_table_and_its_codes_say_what_delta_says(picture: tuple[Array, int], repeats: int) -> None:
    rows, line = picture
    rows = np.concatenate([rows] * repeats)
    plain, coded = Delta().encode(rows, b"", line), Patches().encode(rows, b"", line)
    if plain is None or coded is None:
        return
    entries = len(rows) + 2
    starts = np.frombuffer(coded, np.uint32, entries + 1)
    body, known = coded[4 * (entries + 1) :], np.frombuffer(plain, np.uint32, entries)
    table = naive_entries(body[: starts[1]])
    assert table is not None
    for k in range(entries - 1):
        expected = plain[4 * entries :][known[k] : known[k + 1]]
        assert naive_plain(body[starts[k + 1] : starts[k + 2]], table) == expected
    assert len(set(table)) == len(table)
    column = Packed(coded, len(rows), rows.shape[1], b"", line)
    Patches().check(column)
    np.testing.assert_array_equal(Patches().decode(column), rows)


def test_what_saves_most_is_in_a_full_table() -> None:
    """More kinds of patches than codes: those left out save no more than any that is in."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(1, 255, (600, 3)).astype(np.uint8)  # of three different bytes each: one patch
    kinds[:, 1] = kinds[:, 0] + 1
    often = np.minimum(1 + rng.zipf(1.5, 600), 40)
    rows = np.zeros((int(often.sum()), 60), np.uint8)
    for row, kind in zip(rows, rng.permutation(np.repeat(np.arange(600), often)), strict=True):
        row[20:23] = kinds[kind]
    coded = Patches().encode(rows)
    plain = Delta().encode(rows)
    assert coded is not None and plain is not None
    entries = len(rows) + 2
    starts = np.frombuffer(coded, np.uint32, entries + 1)
    table = naive_entries(coded[4 * (entries + 1) :][: starts[1]])
    assert table is not None and len(table) == 240 and len(coded) < len(plain)
    known = np.frombuffer(plain, np.uint32, entries)
    seen: Counter[bytes] = Counter()
    for k in range(1, entries - 1):
        patch = plain[4 * entries :][known[k] : known[k + 1]]
        if patch:
            seen[patch[1:]] += 1
    inside = {bytes([shape]) + literal for shape, literal in table}

    def saved(one: bytes) -> int:
        return seen[one] * len(one) - (2 + len(one))

    least = min(saved(one) for one in inside if one in seen)
    assert all(saved(one) <= least for one in seen if one not in inside)


@EXAMPLES
@given(
    table=st.one_of(st.binary(max_size=40), st.just(TABLE), st.just(TABLE)),
    patches=st.one_of(st.binary(max_size=60), likely_patches(2)),
    size=st.integers(1, 600),
    line=st.integers(0, 20),
    behind=st.integers(0, 60),
)
def test_any_bytes_are_painted_as_the_format_says_or_refused(
    table: bytes, patches: bytes, size: int, line: int, behind: int
) -> None:
    entries = naive_entries(table)
    checked = core.check_patches(payload_of([table, b""]), 0, size, line, True)
    assert checked == (core.DAMAGED_TABLE if entries is None else core.SOUND)
    if entries is None:
        return
    around = np.full(size + 200, 77, np.uint8)
    ours, theirs = around[100 : 100 + size], np.full(size, 77, np.uint8)
    taken = paint(patches, line, ours, b"\xaa" * behind, table)
    assert (around[:100] == 77).all() and (around[100 + size :] == 77).all()
    plain = naive_plain(patches, entries)
    if plain is None:
        assert not taken
        return
    assert naive_paint(np.frombuffer(plain, np.uint8), line, theirs) == taken
    if taken:
        np.testing.assert_array_equal(ours, theirs)


@EXAMPLES
@given(patches=likely_patches(2), size=st.integers(1, 1500), line=st.integers(0, 20))
def test_coded_patches_may_end_anywhere(patches: bytes, size: int, line: int) -> None:
    entries = naive_entries(TABLE)
    assert entries is not None
    for stop in range(len(patches) + 1):
        ours, theirs = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        taken = paint(patches[:stop], line, ours, patches[stop:] + b"\xff" * 40, TABLE)
        plain = naive_plain(patches[:stop], entries)
        assert taken == (plain is not None and naive_paint(np.frombuffer(plain, np.uint8), line, theirs))
        if taken:
            np.testing.assert_array_equal(ours, theirs)


def cut_rows(codec: Codec, payload: bytes, count: int, size: int, first: int, last: int) -> bytes:
    """Cut rows of a column out; any room smaller than they need is too small."""
    memory, zero, rows = np.frombuffer(payload, np.uint8), np.zeros(1, np.int64), np.array([count], np.int32)
    number, place, used = np.array([codec.number], np.uint8), np.zeros(1, np.int32), np.zeros(256, np.uint8)
    newest, length = np.array([last]), np.array([last - first + 1])
    references, decoded = np.zeros((256, size), np.uint8), np.ones(256, np.uint8)
    column = core.Column(memory, zero, number, place, rows, references, decoded, 0, False)

    def cut(out: Array) -> int:
        return core.cut_windows(column, zero, newest, zero, length, out, used, np.zeros(1, np.int64))

    out = np.full(len(payload) * 20 + 1000, 77, np.uint8)
    nbytes = cut(out[:-64])
    assert (out[-64:] == 77).all()
    for smaller in (0, 8, nbytes // 2, nbytes - 1):
        assert cut(np.full(smaller, 77, np.uint8)) == -1
    words = out[:8].view("<u4").tolist()
    assert words[1] == Delta.number and nbytes == 8 + -(-words[0] // 8) * 8 and not out[8 + words[0] : nbytes].any()
    return out[8 : 8 + words[0]].tobytes()


@EXAMPLES
@given(picture=pictures(), trained=st.booleans(), data=st.data())
def test_cut_patches_are_those_of_delta(picture: tuple[Array, int], trained: bool, data: st.DataObject) -> None:
    """All rows cut out of patches are delta's payload, byte for byte; some rows are its background and entries."""
    rows, line = picture
    dictionary = Delta().train(rows) if trained else b""
    coded, plain = (codec.encode(rows, dictionary, line) for codec in (Patches(), Delta()))
    if coded is None or plain is None:
        return
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first, len(rows) - 1))
    size = rows.shape[1]
    columns: list[tuple[Codec, bytes]] = [(Patches(), coded), (Delta(), plain)]
    written = [cut_rows(codec, payload, len(rows), size, first, last) for codec, payload in columns]
    assert written[0] == written[1]
    if (first, last) == (0, len(rows) - 1):
        assert written[0] == plain
    decoded = Delta().decode(Packed(written[0], last - first + 1, size, dictionary, line))
    np.testing.assert_array_equal(decoded, rows[first : last + 1])


@EXAMPLES
@given(seed=st.integers(0, 1 << 32), line=st.sampled_from([0, 36, 96, 288]), share=st.floats(0.005, 0.1))
def test_noise_of_single_bytes_is_painted_as_it_was(seed: int, line: int, share: float) -> None:
    """Bytes of one line and of two, at the edges too, between sprites and values that are not in the table."""
    rng = np.random.default_rng(seed)
    size = 288 * int(rng.integers(20, 97))
    still = np.repeat(rng.integers(0, 9, size // 32 + 1), 32)[:size].astype(np.uint8)
    rows = np.broadcast_to(still, (int(rng.integers(1, 9)), size)).copy()
    noisy = rng.random(rows.shape) < share
    rows[noisy] ^= 1
    for row in rows:
        begin = int(rng.integers(0, size - 40))
        row[begin : begin + 40] = rng.integers(0, 255, 40)
        if line:
            row[line:][noisy[0, :-line] & (rng.random(size - line) < 0.5)] ^= 2
    rows[:, [0, -1]] = 200
    coded = Patches().encode(rows, still.tobytes(), line)
    assert coded is not None
    column = Packed(coded, len(rows), size, still.tobytes(), line)
    Patches().check(column)
    np.testing.assert_array_equal(Patches().decode(column), rows)
    for row in rng.integers(0, len(rows), 3).tolist():
        np.testing.assert_array_equal(Patches().decode_row(column, row), rows[row])
