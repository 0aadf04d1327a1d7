"""The kernels of codec delta beside plain twins, on the same random input. Also run with NUMBA_DISABLE_JIT=1."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharpwave.codecs import delta_kernels as delta
from sharpwave.testing.columns import pictures

Array = np.ndarray[Any, Any]
EXAMPLES = settings(max_examples=80)


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


def paint_all(patches: Array, line: int, out: Array) -> bool:
    return delta.paint(patches, 0, patches.size, 0, -1, line, out)


@EXAMPLES
@given(picture=pictures(max_rows=2))
def test_a_frame_painted_over_any_other_is_the_frame(picture: tuple[Array, int]) -> None:
    rows, line = picture
    reference, frame = rows[0], rows[-1]
    canvas, out = reference.copy(), np.zeros(delta.largest_patch_bytes(frame.size), np.uint8)
    written = delta.encode_frame(frame, canvas, line, out)
    assert written <= out.size
    np.testing.assert_array_equal(canvas, frame)
    for paint in (paint_all, naive_paint):
        again = reference.copy()
        assert paint(out[:written], line, again)
        np.testing.assert_array_equal(again, frame)
    if np.array_equal(reference, frame):
        assert written == 0


@EXAMPLES
@given(gap=st.integers(32_700, 70_000), line=st.sampled_from([0, 84]))
def test_long_skips(gap: int, line: int) -> None:
    reference = np.zeros(gap + 3, np.uint8)
    frame = reference.copy()
    frame[[0, gap + 1]] = 9
    out = np.zeros(delta.largest_patch_bytes(frame.size), np.uint8)
    written = delta.encode_frame(frame, reference.copy(), line, out)
    for paint in (paint_all, naive_paint):
        again = reference.copy()
        assert paint(out[:written], line, again)
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
    data = np.frombuffer(patches + bytes([other]) * behind, np.uint8)
    taken = delta.paint(data, 0, len(patches), 0, -1, line, ours)
    assert taken == naive_paint(data[: len(patches)], line, theirs)
    assert (around[:100] == 77).all() and (around[100 + size :] == 77).all()
    if taken:
        np.testing.assert_array_equal(ours, theirs)


@EXAMPLES
@given(patches=likely_patches(), size=st.integers(1, 1500), line=st.integers(0, 20))
def test_patches_may_end_anywhere(patches: bytes, size: int, line: int) -> None:
    data = np.frombuffer(patches + b"\xff" * 40, np.uint8)
    for stop in range(len(patches) + 1):
        ours, theirs = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        taken = delta.paint(data, 0, stop, 0, -1, line, ours)
        assert taken == naive_paint(data[:stop], line, theirs)
        if taken:
            np.testing.assert_array_equal(ours, theirs)


@EXAMPLES
@given(picture=pictures())
def test_majority_is_the_value_that_more_than_half_hold(picture: tuple[Array, int]) -> None:
    rows, _ = picture
    found = delta.majority(rows)
    for p in range(rows.shape[1]):
        values, counts = np.unique(rows[:, p], return_counts=True)
        assert found[p] in values
        if counts.max() * 2 > len(rows):
            assert found[p] == values[counts.argmax()]
