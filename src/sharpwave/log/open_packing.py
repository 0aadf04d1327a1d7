"""Packing of a lane's open segment: as the sealed segment that it becomes, or its rows so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.raw import RAW
from sharpwave.codecs.registry import MIN_AUTO_BYTES
from sharpwave.codecs.zstd import Zstd
from sharpwave.format import segment
from sharpwave.format.features import features_of
from sharpwave.format.segment import Column
from sharpwave.log.open_segments import Lanes

Bytes = npt.NDArray[np.uint8]


def pack(
    opened: Lanes, lane: int, slot: int, columns: Sequence[Column], *, sealed: bool = True
) -> tuple[bytes, list[int]]:
    """Return the bytes of the segment in ``slot``, with its columns encoded as ``columns``, and the offset of each.

    Args:
        sealed: as a sealed segment, without annotations of the episode that begins after it.
    """
    index, spec = opened.index, opened.layout.spec
    first, rows, notes = int(index.first_step[slot]), int(index.rows[slot]), opened.annotations
    return segment.pack(
        spec.schema_hash,
        opened.first_lane + lane,
        first,
        rows,
        int(index.frames[slot]),
        int(index.context[slot]),
        columns,
        features=features_of(spec),
        episode_step=int(index.episode_step[slot]),
        metadata=notes.pack(lane, first, rows, with_next=not sealed) if notes else b"",
    )


def pack_raw(opened: Lanes, lane: int) -> tuple[int, bytes]:
    """Return the id and the bytes of a lane's open segment so far, without dictionaries.

    A known successor of its last step is its last frame, as in a sealed segment.
    """
    frames, slot = opened.index.frames, int(opened.slots[lane])
    frames[slot] += opened.successor_known[lane]
    try:
        columns = [unshared_column(data) for data in opened.columns.all_so_far(slot)]
        return opened.index.segment_id(slot), pack(opened, lane, slot, columns, sealed=False)[0]
    finally:
        frames[slot] -= opened.successor_known[lane]


def unshared_column(rows: Bytes) -> Column:
    """Return a column of ``rows`` uint8 [n, bytes of a row], encoded without a dictionary."""
    packed = Zstd().encode(rows) if len(rows) and rows[0].nbytes >= MIN_AUTO_BYTES else None
    return Column(RAW if packed is None else Zstd.number, len(rows), packed or rows.tobytes())
