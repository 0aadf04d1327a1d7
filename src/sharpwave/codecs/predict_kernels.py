"""The ``predict`` codec's kernels: an image's lines as differences from what their surroundings predict.

The filters are those of PNG, the predictor of LOCO-I (Weinberger, Seroussi, Sapiro 2000), and a reference row. All
arithmetic is modulo 256. A filtered row is

    head      1 byte: bits 0-5 the distance in bytes from a value to the one at its left; bit 7: of three channels, the
              first and the last have the middle one subtracted
    filters   1 byte a line
    residuals size bytes
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit

Bytes = npt.NDArray[np.uint8]

NONE, LEFT, UP, AVERAGE, MED, REFERENCE = range(6)
FILTERS = 6
DISTANCE, COLOURS = 63, 128
"""Bits of the head."""
TRIED = 16
"""Lines of a row that the distance and the colours are chosen by."""


@njit(nogil=True, cache=True)
def median_edge(left: Any, up: Any, corner: Any) -> Any:
    """Return the LOCO-I prediction: ``left``, ``up``, or at neither's edge their plane ``left + up - corner``."""
    low, high = min(left, up), max(left, up)
    return max(low, min(high, left + up - corner))


@njit(nogil=True, cache=True)
def filter_line(kind: int, line: Bytes, above: Bytes, reference: Bytes, distance: int, out: Bytes) -> int:
    """Write a line's differences from its prediction to ``out``; return the sum of their absolute values.

    Args:
        line, above, reference, out: uint8 [line_bytes]; ``above`` is zeros for an image's first line.
    """
    total = 0
    for x in range(line.size):
        left = above_left = np.int32(0)
        if x >= distance:
            left, above_left = np.int32(line[x - distance]), np.int32(above[x - distance])
        up = np.int32(above[x])
        guess: Any
        if kind == LEFT:
            guess = left
        elif kind == UP:
            guess = up
        elif kind == AVERAGE:
            guess = (left + up) >> 1
        elif kind == MED:
            guess = median_edge(left, up, above_left)
        elif kind == REFERENCE:
            guess = np.int32(reference[x])
        else:
            guess = np.int32(0)
        residual = (np.int32(line[x]) - guess) & 255
        out[x] = residual
        total += residual if residual < 128 else 256 - residual
    return total


@njit(nogil=True, cache=True)
def subtract_middle(row: Bytes, out: Bytes) -> None:
    """Write a row of three interleaved channels to ``out``, the middle one subtracted from both others."""
    for x in range(0, row.size, 3):
        middle = np.int32(row[x + 1])
        out[x], out[x + 1], out[x + 2] = (
            (np.int32(row[x]) - middle) & 255,
            middle,
            (np.int32(row[x + 2]) - middle) & 255,
        )


@njit(nogil=True, cache=True)
def add_middle(row: Bytes) -> None:
    """Undo ``subtract_middle`` in place."""
    for x in range(0, row.size, 3):
        middle = np.int32(row[x + 1])
        row[x], row[x + 2] = (np.int32(row[x]) + middle) & 255, (np.int32(row[x + 2]) + middle) & 255


def choose_head(row: Bytes, line_bytes: int) -> int:
    """Return the head, of those that fit, with which the median edge predictor comes closest to the middle lines.

    Args:
        row: uint8 [size].
    """
    lines = row.size // line_bytes
    begin = max(0, (lines - TRIED) // 2) * line_bytes
    middle = row[begin : begin + min(lines, TRIED) * line_bytes]
    heads = [d for d in range(1, 9) if line_bytes % d == 0 and d < line_bytes] or [1]
    heads += [3 | COLOURS] if line_bytes % 3 == 0 and line_bytes > 3 else []
    return min(heads, key=lambda head: _distance_from_prediction(middle, line_bytes, head))


@njit(nogil=True, cache=True)
def _distance_from_prediction(row: Bytes, line_bytes: int, head: int) -> int:
    image, out = row.copy(), np.empty(line_bytes, np.uint8)
    if head & COLOURS:
        subtract_middle(row, image)
    total, above = 0, np.zeros(line_bytes, np.uint8)
    for begin in range(0, row.size, line_bytes):
        line = image[begin : begin + line_bytes]
        total += filter_line(MED, line, above, above, head & DISTANCE, out)
        above = line
    return total


@njit(nogil=True, cache=True)
def filter_rows(rows: Bytes, reference: Bytes, line_bytes: int, head: int, out: Bytes) -> None:
    """Write rows [n, size], filtered, to ``out`` uint8 [n, 1 + lines + size]: each line by the filter of the least sum.

    Args:
        reference: uint8 [size]. ``line_bytes``: divides the size. ``head``: as in a filtered row.

    Cost: some 10 ns a byte.
    """
    count, size = rows.shape
    lines, distance = size // line_bytes, head & DISTANCE
    nothing, tried = np.zeros(line_bytes, np.uint8), np.empty(line_bytes, np.uint8)
    row, background = np.empty(size, np.uint8), reference.copy()
    if head & COLOURS:
        subtract_middle(reference, background)
    for i in range(count):
        row[:] = rows[i]
        if head & COLOURS:
            subtract_middle(rows[i], row)
        target = out[i]
        target[0] = head
        for y in range(lines):
            begin = y * line_bytes
            line, behind = row[begin : begin + line_bytes], background[begin : begin + line_bytes]
            above = row[begin - line_bytes : begin] if y else nothing
            written = target[1 + lines + begin : 1 + lines + begin + line_bytes]
            best, least = -1, 0
            for kind in range(FILTERS):
                total = filter_line(kind, line, above, behind, distance, tried)
                if best < 0 or total < least:
                    best, least = kind, total
                    written[:] = tried
            target[1 + y] = best


@njit(nogil=True, cache=True)
def restore_row(filtered: Bytes, reference: Bytes, line_bytes: int, out: Bytes) -> bool:
    """Write to ``out`` [size] the row that was ``filtered`` [1 + lines + size]; return False if it is no filtered row.

    Cost: some 2 ns a byte.
    """
    size = out.size
    head = np.int64(filtered[0])
    lines, distance, colours = size // line_bytes, head & DISTANCE, head & COLOURS
    first = distance if distance < line_bytes else line_bytes
    if not distance or head & 64 or (colours and (size % 3 or line_bytes % 3)):
        return False
    nothing = np.zeros(line_bytes, np.uint8)
    background = reference
    if colours:
        background = np.empty(size, np.uint8)
        subtract_middle(reference, background)
    for y in range(lines):
        begin, kind = y * line_bytes, filtered[1 + y]
        residuals = filtered[1 + lines + begin : 1 + lines + begin + line_bytes]
        line = out[begin : begin + line_bytes]
        above = out[begin - line_bytes : begin] if y else nothing
        if kind == NONE:
            line[:] = residuals
        elif kind == UP:
            for x in range(line_bytes):
                line[x] = (np.int32(residuals[x]) + np.int32(above[x])) & 255
        elif kind == REFERENCE:
            behind = background[begin : begin + line_bytes]
            for x in range(line_bytes):
                line[x] = (np.int32(residuals[x]) + np.int32(behind[x])) & 255
        elif kind == LEFT:
            for x in range(first):
                line[x] = residuals[x]
            for x in range(distance, line_bytes):
                line[x] = (np.int32(residuals[x]) + np.int32(line[x - distance])) & 255
        elif kind == AVERAGE:
            for x in range(first):
                line[x] = (np.int32(residuals[x]) + (np.int32(above[x]) >> 1)) & 255
            for x in range(distance, line_bytes):
                average = (np.int32(line[x - distance]) + np.int32(above[x])) >> 1
                line[x] = (np.int32(residuals[x]) + average) & 255
        elif kind == MED:
            for x in range(first):
                line[x] = (np.int32(residuals[x]) + np.int32(above[x])) & 255  # median_edge(0, up, 0)
            for x in range(distance, line_bytes):
                left, up, corner = np.int32(line[x - distance]), np.int32(above[x]), np.int32(above[x - distance])
                line[x] = (np.int32(residuals[x]) + median_edge(left, up, corner)) & 255
        else:
            return False
    if colours:
        add_middle(out)
    return True
