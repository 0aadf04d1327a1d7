"""Content that a shard and its replica exchange: segments, which of their steps were deleted, and later columns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Ints
from sharpwave.errors import NO_STATE, DuplicateError
from sharpwave.format.segment import parse
from sharpwave.log.late_columns import described, field_of
from sharpwave.log.remote_segments import Copy, sealed_after
from sharpwave.memory.segment_index import LEAF_MASK
from sharpwave.serve.cluster_folder import write_whole
from sharpwave.serve.late_values import Columns, add, drop, same_kind, value_requests
from sharpwave.serve.segment_parts import dictionaries_in, parts_of, segments_in
from sharpwave.serve.wire import Frame, Part, WireError, array_in
from sharpwave.store import Store

PART_BYTES = 4 << 20
"""Bytes of segments a request, while one store is brought up to another."""
RUNS = 1 << 14
"""Runs of deleted steps that are sent, or deleted, at a time."""
PIECE_BYTES = 1 << 19
"""Bytes of values and places of a message: less than clients send, so what one shard took its neighbor takes."""
PLACE_BYTES = 16
END = -1


def append_once(
    store: Store,
    packed: bytes,
    dictionaries: Mapping[int, bytes],
    td_error: npt.NDArray[np.float32] | None = None,
    noticed: Sequence[int] | None = None,
    timeout: float | None = None,
    is_gone: Callable[[], bool] = lambda: False,
) -> None:
    """Append a segment unless the store has had it; ``is_gone``: as for ``Writing.segment``."""
    with contextlib.suppress(DuplicateError):
        store._add_segment(packed, dictionaries, td_error, noticed, timeout, False, is_gone)


# deleted steps


def deleted_runs(store: Store, copies: Sequence[Copy] | None = None) -> Ints:
    """Return the deleted steps that a store holds, or those of some of its segments, as runs: int64 [n, 3], each a
    lane, the number of its first step there, and the number behind its last. The store's lock is held."""
    log = store._log
    found, index, deleted = [np.zeros((0, 3), np.int64)], log.index, log.late.deleted
    if deleted is None:
        return found[0]
    if copies is None:
        slots = sorted(log.late.marked)
    else:  # of a store's segments in many parts, each part looks at its own only
        headers = [parse(one.packed, store.spec) for one in copies]
        places = np.array([(one.lane, one.first_step) for one in headers], np.int64).reshape(-1, 2)
        ids = index.find(places[:, 0].copy(), places[:, 1].copy())
        slots = [slot for slot in ((ids[ids >= 0] & LEAF_MASK) // index.stride).tolist() if slot in log.late.marked]
    for slot in slots:
        lane, first, rows = int(index.lane[slot]), int(index.first_step[slot]), int(index.rows[slot])
        marks = deleted[slot * index.stride : slot * index.stride + rows]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8)))
        begins, ends = edges[::2] + first, edges[1::2] + first
        found.append(np.stack([np.full(len(begins), lane), begins, ends], 1))
    return np.concatenate(found)


def runs_in(parts: Mapping[str, Any]) -> Ints:
    """Return the runs of deleted steps of a message.  Raises: WireError."""
    return array_in(parts, "deleted", np.int64, -1, 3) if "deleted" in parts else np.zeros((0, 3), np.int64)


def delete_runs(store: Store, runs: Ints) -> None:
    """Delete runs of steps, as far as they are held. The store's lock and ``saving`` are held.  Raises: OSError."""
    lane_steps = store.lane_steps
    runs = runs[(runs[:, 0] >= 0) & (runs[:, 0] < len(lane_steps))]
    lanes, first = runs[:, 0], np.maximum(runs[:, 1], 0)
    lengths = np.maximum(np.minimum(runs[:, 2], lane_steps[lanes]) - first, 0)
    for begin in range(0, len(runs), RUNS):
        each = lengths[begin : begin + RUNS]
        ends = np.cumsum(each)
        steps = np.arange(each.sum()) + np.repeat(first[begin : begin + RUNS] - (ends - each), each)
        ids = store._log.index.find(np.repeat(lanes[begin : begin + RUNS], each), steps)
        if (held := ids[store._log.late.held(ids)[1]]).size:
            store._delete_steps(held)


def take(store: Store, segments: Sequence[Copy], runs: Ints, pending: Path | None) -> None:
    """Append segments unless the store has had them, and delete ``runs`` of their steps.

    Deletions are noted in the file ``pending`` before the segments can be on disk, so that a process that is killed in
    between deletes them when it begins again (``finish_deletions``); ``None``: the store has no disk.
    """
    if not len(runs):
        for one in segments:
            append_once(store, *one)
        return
    if not segments:
        pending = None
    if pending is not None:
        write_whole(pending, json.dumps(runs.tolist()))
    with store._log.saving, store._lock:  # nothing samples a step before it is deleted
        try:
            for one in segments:
                append_once(store, *one)
        finally:
            delete_runs(store, runs)
    if pending is not None:
        pending.unlink()


def finish_deletions(store: Store, pending: Path | None) -> None:
    """Delete the steps that ``take`` did not delete, as the process was killed or the disk failed.  Raises: OSError."""
    if pending is not None and pending.exists():
        with store._log.saving, store._lock:
            delete_runs(store, np.array(json.loads(pending.read_text()), np.int64).reshape(-1, 3))
        pending.unlink()


# messages


def lacking(store: Store, lane_steps: Ints) -> tuple[list[Copy], Ints]:
    """Return the first of a store's segments that another lacks which has had ``lane_steps``, and the runs of deleted
    steps in them."""
    with store._lock:
        store._log.check_open()
        copies = sealed_after(store._log, lane_steps, PART_BYTES)
        return copies, deleted_runs(store, copies)


def message(segments: Sequence[Copy], deleted: Ints | None = None) -> tuple[dict[str, Any], dict[str, Part]]:
    """Return the head and the parts of a message of segments, and of runs of deleted steps."""
    head, parts = parts_of(segments)
    return head, parts | ({} if deleted is None or not len(deleted) else {"deleted": deleted})


def segments_of(frame: Frame) -> list[Copy]:
    """Return the segments of a message.  Raises: WireError."""
    try:
        return segments_in(frame.head, frame.parts, dictionaries_in(frame.parts))
    except NO_STATE as error:
        raise WireError(f"segments of a replica: {error!r} is missing or malformed") from error


# columns added later


def said(columns: Columns) -> dict[str, Any]:
    """Return columns as JSON values for ``checked_columns``."""
    return {name: described(field) for name, field in columns.items()}


def checked_columns(given: Any) -> Columns:
    """Return columns that were JSON values.  Raises: WireError."""
    try:
        return {name: field_of(about) for name, about in given.items()}
    except NO_STATE as error:
        raise WireError(f"columns {given!r:.100} of a replica: {error}") from error


def agree(store: Store, columns: Columns) -> None:
    """Give a store these columns and no others; columns that it already has keep their values.

    Raises: MemoryError: there is no room for one.  OSError; and as ``Store.add_column``.
    """
    with store._lock:
        for name, there in store.columns.items():
            if name not in columns or not same_kind(there, columns[name]):
                drop(store, name)
        for name, field in columns.items():
            add(store, name, field)


def values_after(store: Store, name: str, begin: int) -> tuple[int, dict[str, Part]]:
    """Return values of a column in the slots from ``begin`` on, as parts of a message, and the slot with which the next
    ones begin; ``END``: these are the last."""
    with store._lock:
        store._log.check_open()
        index, column = store._log.index, store._log.late.column("replica", name)
        stride, row_bytes = index.stride, column.field.row_bytes
        each = max(1, PIECE_BYTES // (stride * (row_bytes + PLACE_BYTES)))
        leaves = np.zeros(0, np.int64)
        while begin < index.highest and not len(leaves):
            leaves = np.flatnonzero(column.written[begin * stride : (begin + each) * stride]) + begin * stride
            begin += each
        slots = leaves // stride
        parts: dict[str, Part] = {
            "values": column.values[leaves].reshape(-1).view(np.uint8).reshape(len(leaves), row_bytes),
            "lanes": index.lane[slots].astype(np.int64),
            "steps": index.first_step[slots] + leaves % stride,
        }
        return (begin if begin < index.highest else END), parts


def placed(store: Store, parts: Mapping[str, Any]) -> Iterator[dict[str, Part]]:
    """Return the values of a client's request that names its steps by id, or by lane and step, with lanes and steps."""
    values = parts["values"]
    if "ids" in parts:
        with store._lock:
            leaves, held = store._log.late.held(parts["ids"])
            slots, index = leaves // store._log.index.stride, store._log.index
            lanes, steps = index.lane[slots].astype(np.int64), index.first_step[slots] + leaves % index.stride
        lanes, steps, values = lanes[held], steps[held], values[held]
    else:
        lanes, steps = parts["lanes"], parts["steps"]
    return value_requests(values, {"lanes": lanes, "steps": steps}, PIECE_BYTES)
