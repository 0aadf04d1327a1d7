"""From places in the log to batches: a field's windows decoded into the batch, by one thread or several."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.codecs.registry import ZSTD
from sharpwave.errors import DamagedError
from sharpwave.views.decode_threads import team
from sharpwave.views.kernels import LEFT_OUT, Bytes, Int32s, Ints, gather_alone

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREAD_BYTES = 2 << 20
"""Bytes to decode for which another thread is worth waking (some 0.15 ms)."""
CHUNK_BYTES = 1 << 18
"""Bytes that a thread decodes before it asks for more."""


class UndecodableError(DamagedError):
    """Segments in memory whose zstd frames hold no rows: what is not looked at before it is decoded.

    Attributes:
        slots: where they lie.
    """

    def __init__(self, slots: list[int], why: str) -> None:
        super().__init__(f"sample: zstd frames that hold no rows ({why}); see `sharpwave verify`")
        self.slots = slots


def gather(
    memory: Bytes,
    words: npt.NDArray[np.uint32],
    column: tuple[Ints, Bytes, Int32s],
    counts: Int32s,
    table: DictionaryTable,
    line: int,
    zeros: bool,
    slot: Ints,
    newest: Ints,
    first: Ints,
    out: Bytes,
) -> None:
    """Decode a field's windows into ``out``, a large batch on several threads.

    ``column``: the offset, codec and dictionary arrays of the index.  Raises: UndecodableError.
    """
    threads = min(THREADS, out.nbytes // THREAD_BYTES)
    helpers = team(THREADS) if threads > 1 else None
    if helpers is None:
        left_out = gather_alone(memory, words, *column, counts, table.references, line, zeros, slot, newest, first, out)
    else:
        turns = np.zeros(32, np.int64)
        chunk = max(1, CHUNK_BYTES * len(slot) // out.nbytes)
        helpers.gather_items(
            threads - 1, turns, chunk, memory, words, *column, counts, table.references, line, zeros,
            slot, newest, first, out,
        )  # fmt: skip
        left_out = int(turns[LEFT_OUT])
    if left_out:
        _gather_zstd(memory, words, column, counts, table, zeros, slot, newest, first, out)


def _gather_zstd(
    memory: Bytes,
    words: npt.NDArray[np.uint32],
    column: tuple[Ints, Bytes, Int32s],
    counts: Int32s,
    table: DictionaryTable,
    zeros: bool,
    slot: Ints,
    newest: Ints,
    first: Ints,
    out: Bytes,
) -> None:
    """The items of a batch that lie in zstd columns. Cost: 2.5 us a row of 7 KB, and 1 us of Python."""
    offset, codec, dictionary = column
    window, size = out.shape[1:]
    items = np.flatnonzero(codec[slot] == ZSTD)
    wanted = newest[items, None] - np.arange(window - 1, -1, -1)
    row = np.maximum(wanted, first[items, None])
    places = dictionary[slot[items]]
    for place in np.unique(places):
        mine = places == place
        if not _decodable(table, int(place)):
            raise UndecodableError(np.unique(slot[items[mine]]).tolist(), "no zstd dictionary")
        begins = offset[slot[items[mine]]]
        entries = (begins >> 2)[:, None] + row[mine]
        packed = begins + 4 * (counts[slot[items[mine]]].astype(np.int64) + 1)
        ranges = np.empty((entries.size, 2), np.uint64)
        ranges[:, 0] = (packed[:, None] + words[entries]).reshape(-1)
        ranges[:, 1] = (words[entries + 1] - words[entries]).reshape(-1)
        decompressor = table.decompressor(int(place))
        try:
            unpacked = _decompressed(memory, ranges, size, decompressor)
        except zstandard.ZstdError as error:
            owner = np.repeat(slot[items[mine]], window)
            whole = _whole(memory, ((one, ranges[owner == one]) for one in np.unique(owner)), size, decompressor)
            raise UndecodableError(sorted({*owner.tolist()} - whole), str(error)) from error
        for i, item in enumerate(items[mine]):
            for j in range(window):
                out[item, j] = np.frombuffer(unpacked[i * window + j], np.uint8)
    if zeros:
        for i, item in enumerate(items):
            out[item, wanted[i] < first[item]] = 0


def _decompressed(memory: Bytes, ranges: npt.NDArray[np.uint64], size: int, decompressor: Any) -> Any:
    """Rows of ``size`` bytes from the zstd frames in ``ranges`` [n, (begin, bytes)].  Raises: zstandard.ZstdError."""
    sizes = np.full(len(ranges), size, np.uint64)
    source = zstandard.BufferWithSegments(memory.data, ranges.tobytes())
    return decompressor.multi_decompress_to_buffer(source, decompressed_sizes=sizes.tobytes(), threads=-1)


def _decodable(table: DictionaryTable, place: int) -> bool:
    try:
        table.decompressor(place)
    except zstandard.ZstdError:
        return False
    return True


def _whole(
    memory: Bytes, ranges: Iterable[tuple[int, npt.NDArray[np.uint64]]], size: int, decompressor: Any
) -> set[int]:
    """Those slots whose frames hold rows."""
    found = set()
    for slot, mine in ranges:
        with contextlib.suppress(zstandard.ZstdError):
            _decompressed(memory, mine, size, decompressor)
            found.add(int(slot))
    return found
