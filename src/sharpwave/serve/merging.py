"""Merge of shards: one new store with the steps, writers' lanes and views of several checkpoints.

A cluster that is opened with fewer shards merges theirs. The merged store keeps every step, each lane in order. A
shard's lanes follow the lanes of the shards before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Ints
from sharpwave.format.segment import parse, readdressed
from sharpwave.log.remote_segments import Copy, sealed_after
from sharpwave.persistence.deletion import delete, free_deleted
from sharpwave.serve.replicas import Leases
from sharpwave.store import Store
from sharpwave.views.saved_view import SavedView

PART_BYTES = 4 << 20
"""Bytes of segments that are copied at a time."""
Segment = tuple[int, int, int, Copy]
"""Lane, first step and slot of a segment, and its content."""


def merge(store: Store, sources: Sequence[Path], leases: Sequence[Leases], scratch: Path | None) -> Leases:
    """Fill an empty store with the content of several checkpoints; return the lanes of their writers in it.

    Segments are interleaved by their share of each checkpoint: a full store evicts every shard's oldest first.

    Args:
        leases: leases of each checkpoint, by writer. ``scratch``: folder in which checkpoints of disk stores are
            opened.

    Raises: as ``Store.open`` and ``Store.add_segment``.
    """
    merged: Leases = {}
    slots: list[dict[int, int]] = [{} for _ in sources]  # of each checkpoint: the merged store's, by its own
    origins: dict[int, tuple[int, int]] = {}  # by the merged store's slot: where the last segment there was
    first_lanes: list[int] = []
    lanes = 0
    with ExitStack() as stack:
        opened: list[Store] = []
        for k, (source, own) in enumerate(zip(sources, leases, strict=True)):
            disk = None if scratch is None else scratch / str(k)
            opened.append(stack.enter_context(Store.open(source, disk=disk, writers_go_on=True)))
            merged |= {name: (first + lanes, count) for name, (first, count) in own.items() if name not in merged}
            first_lanes.append(lanes)
            lanes += max([opened[-1].lanes, *(first + count for first, count in own.values())])
        order = heapq.merge(*(_shares(k, one) for k, one in enumerate(opened)), key=lambda item: item[:2])
        for _, k, (lane, first_step, slot, copy) in order:
            lane += first_lanes[k]
            store.add_segment(readdressed(copy.packed, lane, first_step), copy.dictionaries)
            origins[int(store._log.index.previous[store._log.opened.slots[lane]])] = k, slot
        for place in store._log.admission.retention.order()["slots"].tolist():  # a full store has evicted some
            k, slot = origins[place]
            slots[k][slot] = place
        _carry(store, opened, slots)
        _carry_beside(store, opened, slots)
    return merged


def _shares(number: int, store: Store) -> Iterator[tuple[float, int, Segment]]:
    """Yield a store's segments, oldest first, each with the share of segments before it, and the store's number."""
    index = store._log.index
    held = store._log.admission.retention.order()["slots"]
    places = {(int(index.lane[slot]), int(index.first_step[slot])): int(slot) for slot in held}
    had, came = np.zeros(store.lanes, np.int64), 0
    while part := sealed_after(store._log, had, PART_BYTES):
        for copy in part:
            header = parse(copy.packed, store.spec)
            had[header.lane] = header.first_step + header.steps
            place = places[header.lane, header.first_step]
            yield came / len(held), number, (header.lane, header.first_step, place, copy)
            came += 1


def _carry(store: Store, sources: Sequence[Store], slots: Sequence[dict[int, int]]) -> None:
    """Carry annotations, counts and the state of each view over to the merged store."""
    log = store._log
    states: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for k, source in enumerate(sources):
        store.annotate(None, {**source.annotations(), **store.annotations()})
        evicted = source._log.inventory.evicted_steps
        log.inventory.evicted_steps += evicted
        log.inventory.total_steps += evicted
        log.inventory.evicted_segments += source._log.inventory.evicted_segments
        for state in source._views.states().values():
            states.setdefault(state["name"], []).append((k, state))
    saved: dict[str, dict[str, Any]] = {}
    for number, (name, several) in enumerate(states.items()):
        alike = [(k, one) for k, one in several if _settings(one) == _settings(several[0][1])]
        merged = _merged(store, alike, slots)
        store._views.restore(number, merged)
        saved[name] = SavedView.from_state(merged, log).state_in_folder(log)
    if store._views.keeping is not None:  # a crash before a learner asks for the views costs no priorities
        store._views.keeping.write(saved.items())


def _carry_beside(store: Store, sources: Sequence[Store], slots: Sequence[dict[int, int]]) -> None:
    """Carry columns added later, and which steps were deleted, over to the merged store.

    Raises: ValueError: the shards have different columns of one name.  MemoryError: there is no room for them.
    """
    log, stride = store._log, store._log.stride
    gone = list[Ints]()
    for k, source in enumerate(sources):
        there, now = (np.array([*one], np.int64) for one in (slots[k].keys(), slots[k].values()))
        old, new = (slot[:, None] * stride + np.arange(stride) for slot in (there, now))
        late = source._log.late
        for name, column in late.columns.items():
            known = log.late.columns.get(name)
            if known is None:
                store.add_column(name, column.field)
            elif (known.field.dtype, known.field.shape) != (column.field.dtype, column.field.shape):
                raise ValueError(
                    f"column {name!r} is {column.field.dtype} {list(column.field.shape)} in one shard, expected "
                    f"{known.field.dtype} {list(known.field.shape)} as in another; drop it in one before the checkpoint"
                )
            given = column.written[old]
            log.late.write(name, new[given], column.values[old[given]])
        if late.deleted is not None:
            gone.append(new[late.deleted[old]])
    if log.late.columns:  # from here on a killed shard loses no value
        store.flush(views=False)
    if gone:
        with store._lock:
            delete(log, log.index.ids(np.concatenate(gone)), store._require_deleted)
            free_deleted(log)


def _settings(state: dict[str, Any]) -> list[Any]:
    return [state[name] for name in ("settings", "sampler", "max_times_sampled")]


def _merged(store: Store, states: list[tuple[int, dict[str, Any]]], slots: Sequence[dict[int, int]]) -> dict[str, Any]:
    """Merge one view's states over the checkpoints into its state over the merged store: items move with their slots.

    Counts are summed, so a rate limiter resumes. The random state is the first checkpoint's.
    """
    index, stride = store._log.index, store._log.stride
    generation = np.full(index.highest, -1, np.int64)
    leaves: dict[str, npt.NDArray[Any]] = {}  # an entry for each item
    queues: list[tuple[float, int]] = []
    for k, state in states:
        there = np.array([slot for slot in slots[k] if slot < len(state["generation"])], np.int64)
        there = there[state["generation"][there] >= 0]
        now = np.array([slots[k][slot] for slot in there.tolist()], np.int64)
        generation[now] = index.generation[now]
        remembered = state["remembered"]
        for name, values in (
            ("values", remembered.get("values")),
            ("uses", state["uses"]),
            ("judged", state["judged"]),
        ):
            if values is not None:
                whole = np.zeros((max([index.highest, -(-len(values) // stride)]), stride), values.dtype)
                whole.reshape(-1)[: len(values)] = values
                target = leaves.setdefault(name, np.zeros((index.highest, stride), values.dtype))
                target[now] = whole[there]
        if "order" in remembered:
            moved = [slots[k].get(slot, -1) for slot in (remembered["order"] // stride).tolist()]
            items = np.array(moved, np.int64) * stride + remembered["order"] % stride
            queues += [(at / len(items), item) for at, item in enumerate(items.tolist()) if item >= 0]
    first = states[0][1]
    remembered = dict(first["remembered"])
    if "values" in leaves:
        largest = max(state["remembered"]["max_priority"] for _, state in states)
        remembered |= {"values": leaves["values"].reshape(-1), "max_priority": largest}
    if "order" in remembered:
        remembered = {"order": np.array([item for _, item in sorted(queues)], np.int64)}
    counts = {name: sum(state[name] for _, state in states) for name in ("samples", "inserts")}
    by_item = {name: None if first[name] is None else leaves[name].reshape(-1) for name in ("uses", "judged")}
    return {**first, **counts, **by_item, "remembered": remembered, "ahead": [], "generation": generation}
