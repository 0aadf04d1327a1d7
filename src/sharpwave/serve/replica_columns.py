"""Columns added later that a shard and its replica exchange: which there are, and their values by lane and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sharpwave.log.late_columns import described, field_of
from sharpwave.serve.late_values import WRONG, Columns, add, drop, same_kind, value_requests
from sharpwave.serve.wire import Part, WireError
from sharpwave.store import Store

PIECE_BYTES = 1 << 19
"""Bytes of values and places of a message: less than clients send, so what one shard took its neighbor takes."""
PLACE_BYTES = 16
END = -1


def said(columns: Columns) -> dict[str, Any]:
    """Return columns as JSON values for ``checked_columns``."""
    return {name: described(field) for name, field in columns.items()}


def checked_columns(given: Any) -> Columns:
    """Return columns that were JSON values.  Raises: WireError."""
    try:
        return {name: field_of(about) for name, about in given.items()}
    except WRONG as error:
        raise WireError(f"columns {given!r:.100} of a replica: {error}") from error


def agree(store: Store, columns: Columns) -> None:
    """Let a store have these columns and no others; values of those that it has stay.

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
