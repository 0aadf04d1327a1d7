"""A log's state beside its sealed segments: flushed to its own files, or captured for a checkpoint, and restored."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.errors import NO_STATE, DamagedError
from sharpwave.format.region import MAX_GENERATION, MAX_ID, ROOM, SEGMENT, TAIL
from sharpwave.format.segment import FLAGS, MAX_NUMBER
from sharpwave.log.open_segments import WHOLE
from sharpwave.log.step_log import StepLog
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.persistence.recovery import Adoption, Recovery
from sharpwave.sampling.sampler_protocol import checked_array
from sharpwave.spec import TRUNCATED
from sharpwave.validation import MAX_LANES

COUNTS = ("total_steps", "evicted_steps", "evicted_segments", "dropped_steps")


def flush(log: StepLog, *, views: bool = True, evict: bool = True) -> None:
    """Sync everything appended so far to disk, including open segments and the states of ``views``.

    Args:
        evict: evict to fit the rows of open segments into the files' limit; otherwise exceed it, as opening does.

    Raises: OSError.
    """
    if log.disk is not None and not log.frozen:
        log.sealed.rewrite_left()
        _write_tails(log, log.disk, evict)
        if log.annotations.changed:
            before = {name: said for name, said in log.disk.described.items() if name != "annotations"}
            log.disk.describe(before | log.annotations.manifest())
            log.annotations.changed = False
        log.disk.flush()
        if log.late.writer is not None:  # after the steps: no value is on disk before its step
            log.late.writer.write()
        if views and log.keeping is not None:
            log.keeping.write()


def _write_tails(log: StepLog, disk: DiskTier, evict: bool) -> None:
    """Write every open segment to disk so far, and the end of each lane's step numbers.  Raises: OSError."""
    for lane in range(log.lanes):
        if log.index.rows[log.opened.slots[lane]]:
            id_, packed = log.opened.pack_so_far(lane)
            if disk.has_tail(id_, packed):
                continue  # no eviction for a tail
            if evict:
                log.admission.write_tail(id_, packed)
            else:
                disk.append_tail(id_, packed, log.index.latest_generation)
    disk.note_counts()  # and the evictions for these rows
    disk.note_ends(log.index.first_step[log.opened.slots])  # beyond the files' steps, where segments were evicted


def capture(log: StepLog) -> dict[str, Any]:
    """Return the state for ``restore`` beside the segments ``ids`` and ``tails``: 30 bytes a segment."""
    index, highest = log.index, log.index.highest
    order = log.retention.order()
    slots = order["slots"]
    return {
        "generation": index.generation[:highest].copy(),
        "first_generation": index.first_generation,
        "ids": index.ids(slots * log.stride),
        "last_flags": log.arena.memory[index.offset[FLAGS, slots] + index.rows[slots] - 1],
        "retention": order,
        "open_slots": log.opened.slots.astype(np.int64),
        "open_begins": index.begins[log.opened.slots],
        "open_episode_steps": index.episode_step[log.opened.slots],
        "lane_steps": log.opened.steps.copy(),
        "open_rows": index.rows[log.opened.slots].astype(np.int64),
        "open_shares": log.opened.shares.copy(),
        "open_staged": (log.opened.staging >= 0).astype(np.uint8),
        "columns": log.late.state(),
        **({} if log.late.deleted is None else {"deleted": log.late.deleted_state()}),
        **{name: getattr(log.inventory, name) for name in COUNTS},
    }


def tails(log: StepLog) -> list[tuple[int, bytes, dict[tuple[int, int], bytes]]]:
    """Return ids, bytes and shared values of the open segments with rows, frames of an episode under way, or
    annotations.

    Cost: packing every lane's open segment.
    """
    there = (log.index.frames[log.opened.slots] > 0) | (log.opened.successor_known > 0)
    there |= (log.index.sparse[:, log.opened.slots] > 0).any(axis=0)
    there |= np.array([log.opened.annotations.has(lane) for lane in range(log.lanes)], np.bool_)
    lanes = np.flatnonzero(there).tolist()
    return [(*log.opened.pack_so_far(lane), log.shared.of(int(log.opened.slots[lane]), whole=False)) for lane in lanes]


def checked(state: Any, stride: int) -> dict[str, Any]:
    """Check a log's state from a file: every number is within a log's bounds.

    Raises:
        ValueError: not from ``capture``.
    """
    if not isinstance(state, dict) or not isinstance(state.get("retention"), dict):
        raise ValueError(f"log: {type(state).__name__}, expected a dict with one for the retention")
    limits = {"generation": MAX_GENERATION + ROOM, "open_rows": stride + 1, "lane_steps": MAX_NUMBER, "ids": MAX_ID}
    for name in ("generation", "ids", "open_slots", "open_rows", "lane_steps"):
        array = checked_array(state, name, np.int64)
        if array.size and not 0 <= array.min() <= array.max() < limits.get(name, LEAF_MASK):
            raise ValueError(f"{name} from {array.min()} to {array.max()}, expected from 0 below {limits.get(name)}")
    numbers = {"first_generation": MAX_GENERATION + ROOM, **dict.fromkeys(COUNTS, MAX_NUMBER)}
    for name, limit in numbers.items():
        if type(state.get(name)) is not int or not 0 <= state[name] < limit:
            raise ValueError(f"{name} {state.get(name)!r}, expected an integer from 0 below {limit}")
    if len(state["open_slots"]) > MAX_LANES or len(state["generation"]) > LEAF_MASK // stride:
        raise ValueError(
            f"{len(state['open_slots']):,} lanes, {len(state['generation']):,} slots: beyond the limits of a store"
        )
    return state


def restore(adoption: Adoption, state: dict[str, Any]) -> Recovery:
    """Restore everything into the empty log: with a disk the segments stay there, otherwise they are read into memory.

    Segments that are missing, damaged, or no longer fit into memory are lost: the first to be evicted are the first to
    be dropped.

    Raises:
        KeyError, TypeError, ValueError, DamagedError: not a result of ``capture``.
    """
    log, report = adoption.log, adoption.report
    index, inventory, stride = log.index, log.inventory, log.stride
    generation, ids = checked_array(state, "generation", np.int64), checked_array(state, "ids", np.int64)
    slots, last_flags = (ids & LEAF_MASK) // stride, checked_array(state, "last_flags", np.uint8)
    opened = checked_array(state, "open_slots", np.int64)
    taken = np.concatenate([slots, opened])
    if len(np.unique(taken)) < len(taken) or (taken.size and not 0 <= taken.min() <= taken.max() < len(generation)):
        raise ValueError("ids: expected distinct slots of segments")
    if (generation[slots] != ids >> LEAF_BITS).any() or (slots * stride != ids & LEAF_MASK).any():
        raise ValueError("ids: generations differ from those of the slots")
    if not np.array_equal(checked_array(state["retention"], "slots", np.int64), slots):
        raise ValueError("retention: its segments differ from those of the log")
    index.highest = len(generation)
    index.generation[: index.highest] = generation
    _open_lanes(adoption, state, opened)
    log.admission.fit_memory()
    at = {record.id: record for record in adoption.scan.records if record.kind == SEGMENT}
    kept = np.zeros(len(slots), np.bool_)
    # The last to be evicted first: where memory is too small the others are not kept.
    for k in reversed(range(len(slots))):
        if int(ids[k]) not in at:
            report.damages.append(f"segment {ids[k]}: in no file of the checkpoint")
            continue
        kept[k] = adoption.try_adopt(at[int(ids[k])])
        if kept[k] and last_flags[k] & TRUNCATED and log.sealed.truncate(int(slots[k])):
            adoption.broken.add(int(slots[k]))
        if adoption.full:
            break
    order = state["retention"]
    log.retention.restore_order(
        {name: value[kept] if isinstance(value, np.ndarray) else value for name, value in order.items()}
    )
    generation = generation.copy()
    _renew(generation, slots[~kept], state)
    index.restore({*slots[kept].tolist(), *opened.tolist()}, int(state["first_generation"]), generation)
    adoption.link_lanes()
    for name in COUNTS:
        setattr(inventory, name, int(state[name]))
    lost = int((~kept).sum())
    inventory.evicted_segments += lost
    inventory.evicted_steps = inventory.total_steps - inventory.held_steps
    inventory.changes += 1
    try:
        if "deleted" in state:
            log.late.restore_deleted(state["deleted"])
    except NO_STATE as error:
        report.damages.append(f"deleted: {error}; steps that were deleted are there again")
    report.steps = log.steps
    try:
        log.late.restore(state.get("columns", {}))
    except NO_STATE as error:
        report.damages.append(f"columns: {error}; values of columns added later are lost")
    return report


def _renew(generation: Ints, lost: Ints, state: dict[str, Any]) -> None:
    """Give the slots ``lost`` [n] new generations: so ids of lost steps are never ids of later ones."""
    generation[lost] = np.maximum(generation[lost] + 1, int(state["first_generation"]))


def _open_lanes(adoption: Adoption, state: dict[str, Any], opened: Ints) -> None:
    log, count = adoption.log, len(opened)
    steps, begins = checked_array(state, "lane_steps", np.int64), checked_array(state, "open_begins", np.uint8)
    rows, numbers = checked_array(state, "open_rows", np.int64), checked_array(state, "open_episode_steps", np.int64)
    shares = checked_array(state, "open_shares", np.int32)
    staged = np.ones(count, np.uint8)  # as in checkpoints that do not record it
    if "open_staged" in state:
        staged = checked_array(state, "open_staged", np.uint8)
    if not count == len(steps) == len(rows) == len(begins) == len(shares) == len(numbers) == len(staged):
        raise ValueError(f"{len(shares):,} shares, {len(staged):,} marks for {count:,} lanes, expected one a lane")
    if count and not 0 < shares.min() <= shares.max() <= WHOLE:
        raise ValueError(f"open_shares from {shares.min()} to {shares.max()}, expected 1 to {WHOLE}")
    if count and not 0 <= numbers.min() <= numbers.max() < MAX_NUMBER:
        raise ValueError(f"open_episode_steps from {numbers.min()} to {numbers.max()}, expected 0 to {MAX_NUMBER}")
    if not count:
        return
    numbers = np.where(begins, 0, numbers)
    log.reopen_lanes(opened, steps, begins, numbers, shares, staged)
    at = {record.id: record for record in adoption.scan.records if record.kind == TAIL}
    for lane, id_ in enumerate(log.index.ids(opened * log.stride).tolist()):
        header, arrays, values = adoption.open_rows(at[id_]) if id_ in at else (None, {}, {})
        first = int(steps[lane] - rows[lane])
        if header is not None and header.steps and not rows[lane]:
            header = None  # of rows that were flushed, and dropped with the episode that was broken off
        if header is not None and (header.lane, header.steps, header.first_step) != (lane, rows[lane], first):
            raise DamagedError(f"lane {lane}: rows of lane {header.lane} from step {header.first_step} on")
        if header is not None:
            log.refill_lane(lane, header, arrays, values)
            continue
        # Without these frames the rest of the episode would be stacked as if it began here: so it does.
        needs_more = log.spec.context > 0 or any(int(numbers[lane]) % every for every in log.layout.every)
        if rows[lane]:
            _renew(log.index.generation, opened[lane : lane + 1], state)
        if rows[lane] or (not begins[lane] and needs_more):
            what = f"the {rows[lane]} steps of its open segment" if rows[lane] else "the last frames of its episode"
            adoption.report.damages.append(f"lane {lane}: {what} are lost; its next step begins an episode")
            log.index.begins[opened[lane]], log.index.episode_step[opened[lane]] = True, 0
