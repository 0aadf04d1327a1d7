"""From places in the log to batches: a field's windows decoded into the batch, by one thread or several."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from ..codecs import ZSTD, DamagedError
from ..tiers.dictionaries import DictionaryTable
from .kernels import LEFT_OUT, Bytes, Int32s, Ints, gather_items
from .team import team

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREAD_BYTES = 2 << 20
"""Bytes to decode for which another thread is worth waking (some 0.15 ms)."""
CHUNK_BYTES = 1 << 18
"""Bytes that a thread decodes before it asks for more."""


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

    ``column``: the offset, codec and dictionary arrays of the index.
    """
    count = len(slot)
    threads = min(THREADS, out.nbytes // THREAD_BYTES)
    turns = np.zeros(32, np.int64)
    helpers = team(THREADS) if threads > 1 else None
    if helpers is None:
        gather_items(
            0, turns, count, memory, words, *column, counts, table.references, line, zeros, slot, newest, first, out
        )
    else:
        chunk = max(1, CHUNK_BYTES * count // out.nbytes)
        helpers.gather_items(
            threads - 1, turns, chunk, memory, words, *column, counts, table.references, line, zeros,
            slot, newest, first, out,
        )  # fmt: skip
    if turns[LEFT_OUT]:
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
        begins = offset[slot[items[mine]]]
        entries = (begins >> 2)[:, None] + row[mine]
        packed = begins + 4 * (counts[slot[items[mine]]].astype(np.int64) + 1)
        ranges = np.empty((entries.size, 2), np.uint64)
        ranges[:, 0] = (packed[:, None] + words[entries]).reshape(-1)
        ranges[:, 1] = (words[entries + 1] - words[entries]).reshape(-1)
        sizes = np.full(entries.size, size, np.uint64)
        source = zstandard.BufferWithSegments(memory.data, ranges.tobytes())
        try:
            unpacked: Any = table.decompressor(int(place)).multi_decompress_to_buffer(
                source, decompressed_sizes=sizes.tobytes(), threads=-1
            )
        except zstandard.ZstdError as error:
            raise DamagedError(f"sample: zstd frames that hold no rows ({error}); see `sharpwave verify`") from error
        for i, item in enumerate(items[mine]):
            for j in range(window):
                out[item, j] = np.frombuffer(unpacked[i * window + j], np.uint8)
    if zeros:
        for i, item in enumerate(items):
            out[item, wanted[i] < first[item]] = 0
