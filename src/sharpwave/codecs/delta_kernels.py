"""The ``delta`` codec's kernels: a frame as rectangles painted over a reference frame.

Game frames differ from a still background by a few sprites, and a sprite's rows repeat one another. So a frame is
written as patches, in reading order:

    skip    1 byte < 128, or 2 bytes big-endian with the top bit set (15 bits): bytes from the end of the last patch's
            first line to this one. ``0xFFFF`` is a bare advance by 32,767 with no patch behind it.
    shape   1 byte: bits 0-3 width - 1, bits 4-6 height - 1, bit 7: one literal fills the width
    literal ``width`` bytes, or one

A patch paints its literal on ``height`` consecutive lines. Reading order makes a frame's patches independent of any
other frame, so every frame decodes on its own: a copy of the reference (hot in cache), then some 5 to 40 patches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import inner_of, njit
from sharpwave.native.memory_ops import load_16, load_literal, load_word, overlay

Bytes = npt.NDArray[np.uint8]

MAX_WIDTH, MAX_HEIGHT, MAX_SKIP = 16, 8, 32767
INLINE = 240
"""First of the codes of patches whose shape and literal follow: this one where the literal has a byte, 255 where it has
16. So where the next patch begins is known before the shape is read, and processors read several at once."""
GAP = 2
"""Run of equal bytes that a patch includes rather than ends at (2: 49.7 bytes a frame of Pong, 3: 50.5)."""


EVERY_BYTE = np.uint64(0x0101010101010101)
NONE, LOW_8, LOW_16, LOW_32 = np.uint64(0), np.uint64(0xFF), np.uint64(0xFFFF), np.uint64(0xFFFFFFFF)
EDGE = np.repeat(np.array([255, 0], np.uint8), 16)
"""Its bytes from ``16 - width`` on are a mask of ``width`` bytes."""


@njit(nogil=True, cache=True)
def majority(frames: Bytes) -> Bytes:
    """Return, byte by byte, the value that most of ``frames`` [n, size] hold (Boyer-Moore vote).

    Exact where a value has a majority.

    Cost: one pass, 0.35 us a frame of 7 KB.
    """
    count, size = frames.shape
    candidate: Bytes = frames[0].copy()
    votes = np.zeros(size, np.int16)
    for i in range(count):
        for p in range(size):
            value = frames[i, p]
            vacant = votes[p] == 0
            agrees = value == candidate[p]
            candidate[p] = value if vacant else candidate[p]
            votes[p] += 1 if (agrees or vacant) else -1
    return candidate


@njit(nogil=True, cache=True)
def largest_patch_bytes(size: int) -> int:
    """Return an upper bound of a frame's encoded bytes: each patch covers a byte or more and costs up to 2 + 1 +
    width."""
    return 4 * size + 2 * (size // MAX_SKIP) + 16


@njit(nogil=True, cache=True)
def encode_frame(frame: Bytes, canvas: Bytes, line: int, out: Bytes) -> int:
    """Write the patches that turn ``canvas`` into ``frame`` to ``out``; return how many bytes.

    ``canvas`` [size] holds the reference and is painted until it equals ``frame`` [size]. ``line`` is the distance from
    a byte to the one below, 0 for none. Cost: 0.3 to 1 us for 7 KB.
    """
    size = frame.size
    position = cursor = written = 0
    while True:
        while position + 64 <= size:
            different = NONE
            for k in range(0, 64, 8):
                different |= load_word(frame, position + k) ^ load_word(canvas, position + k)
            if different != NONE:
                break
            position += 64
        while position + 8 <= size and load_word(frame, position) == load_word(canvas, position):
            position += 8
        while position < size and frame[position] == canvas[position]:
            position += 1
        if position >= size:
            return written
        end = probe = position + 1
        while probe < size and probe < position + MAX_WIDTH and probe - end < GAP:
            if frame[probe] != canvas[probe]:
                end = probe + 1
            probe += 1
        width = end - position
        fill = width > 1
        for k in range(1, width):
            if frame[position + k] != frame[position]:
                fill = False
                break
        height = 1
        below = position + line
        while line >= width and height < MAX_HEIGHT and below + width <= size:
            alike, helps = True, False
            for k in range(width):
                if frame[below + k] != frame[position + k]:
                    alike = False
                    break
                if canvas[below + k] != frame[below + k]:
                    helps = True
            if not (alike and helps):
                break
            height += 1
            below += line
        skip = position - cursor
        while skip >= MAX_SKIP:
            out[written] = 255
            out[written + 1] = 255
            written += 2
            skip -= MAX_SKIP
        if skip < 128:
            out[written] = skip
            written += 1
        else:
            out[written] = 128 | (skip >> 8)
            out[written + 1] = skip & 255
            written += 2
        out[written] = (width - 1) | ((height - 1) << 4) | (128 if fill else 0)
        written += 1
        literals = 1 if fill else width
        for k in range(literals):
            out[written + k] = frame[position + k]
        written += literals
        for r in range(height):
            for k in range(width):
                canvas[position + r * line + k] = frame[position + k]
        position += width
        cursor = position


@njit(nogil=True, cache=True, inner=True, forceinline=True)
def _load_bits(data: Bytes, at: int, mask: np.uint64) -> int:
    """Return the bits of a word in ``mask``, signed: numba makes floats of signed and unsigned integers together."""
    bits: int = np.int64(load_word(data, at) & mask)  # type: ignore[assignment]
    return bits


@njit(nogil=True, cache=True, inner=True, forceinline=True)
def _paint_words(data: Bytes, cursor: int, stop: int, table: int, codes: int, line: int, out: Bytes) -> tuple[int, int]:
    """Apply patches as ``paint`` does, up to one that is damaged or less than 16 bytes from the end of an array.

    Returns where that patch lies, ``stop`` or behind if there is none, and the position from which it skips.

    A mispredicted branch costs more than a patch's stores. So values are selected by arithmetic, a line of any width is
    16 bytes of which some are masked, and two lines are written even where there is one.
    """
    size, nbytes = out.size, data.size
    position = 0
    while cursor < min(stop, nbytes - 23):
        head = _load_bits(data, cursor, LOW_32)
        extended = (head >> 7) & 1
        skip = (head & 127) << 8 * extended | (head >> 8) & 255 & -extended
        at = cursor + 1 + extended  # behind the skip
        if skip == MAX_SKIP:
            if at > stop:
                break
            position += skip
            cursor = at
            continue
        if codes < 0:
            inline, shape_at, following = 0, at, at
        else:
            code = (head >> 8 + 8 * extended) & 255
            inline = (codes - 1 - code) >> 63  # -1: shape and literal follow; 0: they are in the table
            entry = table + _load_bits(data, table + (2 * code & ~inline), LOW_16)
            shape_at = entry + (at + 1 - entry & inline)
            following = at + 1 + (code - INLINE + 2 & inline)
        if shape_at + 17 > nbytes:
            break
        shape = _load_bits(data, shape_at, LOW_8)
        width, lower = (shape & 15) + 1, (shape >> 4) & 7  # lower: lines below the first
        literals = 1 if shape & 128 else width
        if codes < 0:
            following += 1 + literals
        elif inline & (following ^ at + 2 + literals):
            break
        begin = position + skip
        if (following > stop) | (begin + lower * line + 16 > size):
            break
        literal, mask = load_literal(data, shape_at + 1, shape & 128 != 0), load_16(EDGE, 16 - width)
        overlay(out, begin, literal, mask)
        start = begin + (line & -lower >> 63)
        overlay(out, start, literal, mask)
        while lower > 1:
            start += line
            overlay(out, start, literal, mask)
            lower -= 1
        position = begin + width
        cursor = following
    return cursor, position


@njit(nogil=True, cache=True)
def paint(data: Bytes, cursor: int, stop: int, table: int, codes: int, line: int, out: Bytes) -> bool:
    """Apply the patches ``data[cursor:stop]`` to ``out`` [size] in place; return False if they do not fit (damaged
    data).

    Args:
        table, codes: offset in ``data`` of the table of shapes and literals, before the patches, and number of its
            entries (``sharpwave.codecs.patch_tables``), which ``tabulated`` accepts; -1 codes: patches without codes.

    Cost: some 5 ns a patch.
    """
    size = out.size
    cursor, position = _paint_words(data, cursor, stop, table, codes, line, out)
    while cursor < stop:
        skip = int(data[cursor])
        cursor += 1
        if skip >= 128:
            if cursor >= stop:
                return False
            skip = ((skip & 127) << 8) | int(data[cursor])
            cursor += 1
            if skip == MAX_SKIP:
                position += skip
                continue
        if cursor >= stop:
            return False
        literal, end, inline = cursor, stop, True  # where the shape and its literal lie
        if codes >= 0:
            code = int(data[cursor])
            cursor += 1
            inline = code >= codes
            if inline and code < INLINE:
                return False
            if inline:
                literal = cursor
                cursor += code - INLINE + 2
            else:
                literal = table + (int(data[table + 2 * code]) | int(data[table + 2 * code + 1]) << 8)
                end = data.size
            if cursor > stop:
                return False
        shape = int(data[literal])
        literal += 1
        position += skip
        width = (shape & 15) + 1
        height = ((shape >> 4) & 7) + 1
        fill = shape & 128 != 0
        literals = 1 if fill else width
        last = position + (height - 1) * line
        if literal + literals > end or last + width > size:
            return False
        if codes < 0:
            cursor = literal + literals
        elif inline and cursor != literal + literals:
            return False
        for r in range(height):
            for k in range(width):
                out[position + r * line + k] = data[literal if fill else literal + k]
        position += width
    return True


@njit(nogil=True, cache=True)
def fits(data: Bytes, offsets: npt.NDArray[np.int64], codes: int, line: int, size: int) -> int:
    """Return the first entry ``data[offsets[i]:offsets[i + 1]]`` whose patches do not fit ``size`` bytes, or -1.

    ``offsets`` rise from 0 to at most ``data.size``. ``codes``: as for ``paint``; the table begins at 0. Agrees with
    ``paint``; cost: 4 ns a patch.
    """
    for entry in range(offsets.size - 1):
        if not entry_fits(data, offsets[entry], offsets[entry + 1], 0, codes, line, size):
            return entry
    return -1


@njit(nogil=True, cache=True, inner=True)
def entry_fits(data: Bytes, cursor: int, stop: int, table: int, codes: int, line: int, size: int) -> bool:
    """Return whether the patches ``data[cursor:stop]`` fit ``size`` bytes. Arguments as ``paint``'s."""
    position = 0
    while cursor < stop:
        skip = int(data[cursor])
        cursor += 1
        if skip >= 128:
            if cursor >= stop:
                return False
            skip = ((skip & 127) << 8) | int(data[cursor])
            cursor += 1
            if skip == MAX_SKIP:
                position += skip
                continue
        if cursor >= stop:
            return False
        at, inline = cursor, True
        code = INLINE
        if codes >= 0:
            code = int(data[cursor])
            cursor += 1
            inline = code >= codes
            if inline and (code < INLINE or cursor >= stop):
                return False
            entry = table + 2 * code
            at = cursor if inline else table + (int(data[entry]) | int(data[entry + 1]) << 8)
        shape = int(data[at])
        position += skip
        width, height = (shape & 15) + 1, ((shape >> 4) & 7) + 1
        if inline:
            literals = 1 if shape & 128 else width
            cursor += 1 + literals
            if codes >= 0 and literals != code - INLINE + 1:
                return False
        if cursor > stop or position + (height - 1) * line + width > size:
            return False
        position += width
    return True


_encode_frame = inner_of(encode_frame)


@njit(nogil=True, cache=True)
def encode_column(frames: Bytes, reference: Bytes, line: int, out: Bytes, offsets: npt.NDArray[np.uint32]) -> int:
    """Encode ``frames`` [n, size]: entry 0 patches ``reference`` into the column's own background, then n frames.

    ``offsets`` [n + 2] receives the offset of each entry in ``out``. Returns the bytes written, or -1 where ``out``
    would overflow (the column is not worth encoding).
    """
    count, size = frames.shape
    background = majority(frames)
    canvas = reference.copy()
    limit = out.size - largest_patch_bytes(size)
    if limit < 0:
        return -1
    total = _encode_frame(background, canvas, line, out)
    offsets[0] = 0
    offsets[1] = total
    for i in range(count):
        if total > limit:
            return -1
        for k in range(size):
            canvas[k] = background[k]
        total += _encode_frame(frames[i], canvas, line, out[total:])
        offsets[i + 2] = total
    return total
