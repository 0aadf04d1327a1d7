"""Patches of codec delta beside plain twins, on the same random input."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharpwave.native import core
from sharpwave.testing.columns_in_memory import pictures
from tests.support.examples import examples

Array = np.ndarray[Any, Any]
EXAMPLES = settings(max_examples=examples(80))


@st.composite
def likely_patches(draw: Any, codes: int = -1) -> bytes:
    """Patches as an encoder writes them, coded where there are ``codes``; often with one wrong byte."""
    out = bytearray()
    for _ in range(draw(st.integers(0, 12))):
        skip = draw(st.one_of(st.integers(0, 20), st.integers(120, 140)))
        out += bytes([skip]) if skip < 128 else bytes([128 | skip >> 8, skip & 255])
        if codes > 0 and draw(st.booleans()):
            out.append(draw(st.integers(0, codes - 1)))
            continue
        shape = draw(st.sampled_from([0, 1, 0x12, 0x27, 0x82, 0x9F, 0xB8, 0x0F, 0x78]))
        literal = draw(st.binary(min_size=16, max_size=16))[: 1 if shape & 128 else (shape & 15) + 1]
        wrong = draw(st.sampled_from([0, 0, 0, 0, 0, -1, 1]))
        out += bytes([min(255, 239 + len(literal) + wrong)] * (codes >= 0) + [shape]) + literal
    if out and draw(st.booleans()):
        out[draw(st.integers(0, len(out) - 1))] = draw(st.integers(0, 255))
    return bytes(out) + b"\xff\xff" * draw(st.integers(0, 1))


def naive_paint(patches: Array, line: int, out: Array) -> bool:
    """The format's description, read aloud."""
    at, stream = 0, patches.tolist()
    while stream:
        skip = stream.pop(0)
        if skip & 128:
            if not stream:
                return False
            skip = (skip & 127) * 256 + stream.pop(0)
            if skip == 32767:
                at += skip
                continue
        if not stream:
            return False
        shape = stream.pop(0)
        width, height, fill = shape % 16 + 1, shape // 16 % 8 + 1, shape >= 128
        at += skip
        if at + (height - 1) * line + width > len(out):
            return False
        literals = 1 if fill else width
        if len(stream) < literals:
            return False
        literal = [stream.pop(0) for _ in range(literals)]
        for r in range(height):
            for k in range(width):
                out[at + r * line + k] = literal[0] if fill else literal[k]
        at += width
    return True


def payload_of(entries: list[bytes]) -> Array:
    """Return a payload of these entries."""
    offsets = np.cumsum([0, *map(len, entries)]).astype("<u4")
    return np.frombuffer(offsets.tobytes() + b"".join(entries), np.uint8)


def paint(patches: bytes, line: int, out: Array, behind: bytes = b"", table: bytes | None = None) -> bool:
    """Paint patches over ``out``, of codec patches where there is a ``table``; other bytes lie behind them."""
    coded = table is not None
    payload = payload_of([*([] if table is None else [table]), b"", patches, behind])
    damaged = core.decode_patches(payload, 2, out.copy(), line, coded, 0, out.reshape(1, -1))
    checked = core.check_patches(payload, 2, out.size, line, coded)
    assert damaged in (core.SOUND, 1) and (checked == 1) == (damaged == 1)
    return damaged == core.SOUND


def paint_plain(patches: Array, line: int, out: Array) -> bool:
    return paint(patches.tobytes(), line, out)


def patches_between(reference: Array, row: Array, line: int) -> Array | None:
    """Return the patches that turn ``reference`` into ``row``; none where many such rows are left raw."""
    payload = core.PatchEncoder(64, row.size, False).encode(np.tile(row, (64, 1)), reference, line)
    if payload is None:
        return None
    offsets = np.frombuffer(payload, "<u4", 66)
    assert (offsets[1:] == offsets[1]).all(), "all rows are the background"
    return np.frombuffer(payload[4 * 66 :], np.uint8)


@EXAMPLES
@given(picture=pictures(max_rows=2))
def test_a_frame_painted_over_any_other_is_the_frame(picture: tuple[Array, int]) -> None:
    rows, line = picture
    reference, frame = rows[0], rows[-1]
    patches = patches_between(reference, frame, line)
    if patches is None:
        return
    for painted in (paint_plain, naive_paint):
        again = reference.copy()
        assert painted(patches, line, again)
        np.testing.assert_array_equal(again, frame)
    if np.array_equal(reference, frame):
        assert not patches.size


@EXAMPLES
@given(gap=st.integers(32_700, 70_000), line=st.sampled_from([0, 84]))
def test_long_skips(gap: int, line: int) -> None:
    reference = np.zeros(gap + 3, np.uint8)
    frame = reference.copy()
    frame[[0, gap + 1]] = 9
    patches = patches_between(reference, frame, line)
    assert patches is not None
    for painted in (paint_plain, naive_paint):
        again = reference.copy()
        assert painted(patches, line, again)
        np.testing.assert_array_equal(again, frame)


@EXAMPLES
@given(
    patches=st.one_of(st.binary(max_size=60), likely_patches()),
    size=st.integers(1, 600),
    line=st.integers(0, 20),
    behind=st.integers(0, 60),
    other=st.sampled_from([0xAA, 0xFF]),
)
def test_any_bytes_are_painted_as_the_format_says_or_refused_and_nothing_outside_is_touched(
    patches: bytes, size: int, line: int, behind: int, other: int
) -> None:
    around = np.full(size + 200, 77, np.uint8)
    ours, theirs = around[100 : 100 + size], np.full(size, 77, np.uint8)
    # Other bytes may lie behind the patches: then words are read past their end, and must not count.
    taken = paint(patches, line, ours, bytes([other]) * behind)
    assert taken == naive_paint(np.frombuffer(patches, np.uint8), line, theirs)
    assert (around[:100] == 77).all() and (around[100 + size :] == 77).all()
    if taken:
        np.testing.assert_array_equal(ours, theirs)


@EXAMPLES
@given(patches=likely_patches(), size=st.integers(1, 1500), line=st.integers(0, 20))
def test_patches_may_end_anywhere(patches: bytes, size: int, line: int) -> None:
    for stop in range(len(patches) + 1):
        ours, theirs = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        taken = paint(patches[:stop], line, ours, patches[stop:] + b"\xff" * 40)
        assert taken == naive_paint(np.frombuffer(patches[:stop], np.uint8), line, theirs)
        if taken:
            np.testing.assert_array_equal(ours, theirs)


def naive_majority(rows: Array) -> Array:
    """Boyer and Moore's vote, a byte at a time."""
    found = rows[0].copy()
    for p in range(found.size):
        votes = 0
        for value in rows[:, p].tolist():
            if votes == 0:
                found[p] = value
            votes += 1 if value == found[p] else -1
    return found


@EXAMPLES
@given(picture=pictures(), repeats=st.sampled_from([1, 1, 1, 30, 300]))
def test_majority_is_the_value_that_more_than_half_hold(picture: tuple[Array, int], repeats: int) -> None:
    rows = np.tile(picture[0], (repeats, 1))
    found = np.frombuffer(core.majority(rows), np.uint8)
    np.testing.assert_array_equal(found, naive_majority(rows))
    for p in range(rows.shape[1]):
        values, counts = np.unique(rows[:, p], return_counts=True)
        assert found[p] in values
        if counts.max() * 2 > len(rows):
            assert found[p] == values[counts.argmax()]
