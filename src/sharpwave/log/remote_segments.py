"""Segments between logs: checks and enters segments that were sealed elsewhere; copies segments to another log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.codecs.dictionaries import key_of
from sharpwave.codecs.shared import IS_SHARED, checked, text_of
from sharpwave.errors import DamagedError, DuplicateError
from sharpwave.format import segment
from sharpwave.format.segment import FLAGS
from sharpwave.format.segment_header import Header
from sharpwave.log.open_columns import unshared_columns
from sharpwave.log.shared_values import Key
from sharpwave.log.step_log import StepLog
from sharpwave.spec import ENDED, START
from sharpwave.validation import MAX_LANES

NEW_WRITER = "a new SegmentWriter on a lane with steps takes first_steps=store.lane_steps + 1"
"""Remedy after a writer was replaced: its unsent steps are lost, which the skipped number shows."""


def take_in(log: StepLog, packed: bytes, dictionaries: Mapping[int, bytes]) -> tuple[int, Header]:
    """Append a sealed segment to its lane. If steps are missing in between, the episode is truncated at the last one
    held, with its successor's frame as the final observation.

    Args:
        dictionaries: of its columns, by key.

    Returns its slot, -1 if the retention does not keep it, and its header.

    Raises:
        DamagedError: not a segment of such a store, or not after the lane's last step.
        ValueError: the lane has steps of its own in an open segment, or the segment exceeds the capacity.
        MemoryError, OSError: no room.

    Cost: 0.1 ms for 32 steps of 42x42 frames (benchmarks/codec_sizes.py --segments).
    """
    header = segment.check(packed, log.spec, dictionaries.__getitem__)
    for column in header.placed:
        if column.dictionary and key_of(dictionaries[column.dictionary]) != column.dictionary:
            raise DamagedError(f"segment: dictionary {column.dictionary:016x}: its content has another key")
    too_many = any(column.rows > most for column, most in zip(header.placed, log.layout.limits, strict=True))
    if header.steps > log.stride or too_many or header.lane >= MAX_LANES:
        raise DamagedError(
            f"segment: {header.steps} steps, {header.frames} frames of lane {header.lane}; expected at most "
            f"{log.stride} (segment_steps=), {log.layout.max_frames} and {MAX_LANES - 1}"
        )
    capacity = log.admission.capacity
    if capacity is not None and header.steps > capacity:
        raise ValueError(f"segment: {header.steps} steps exceed the store's capacity of {capacity}; raise capacity=")
    values = shared_of(log, packed, header, dictionaries)
    log.open_lanes(header.lane + 1)
    episode_step = _check_order(log, header, packed)
    packed, header = segment.with_steps(packed, header, log.spec, packs=log.layout.spine_bytes > 0)
    places = log.sealed.take_dictionaries(header.placed, dictionaries.__getitem__)
    if places is None:
        packed = _unshared(packed, log, dictionaries.__getitem__)
        header, places = segment.parse(packed, log.spec), [0] * len(header.placed)
    return _enter(log, replace(header, episode_step=episode_step), packed, places, values), header


def _enter(log: StepLog, header: Header, packed: bytes, places: Sequence[int], values: Mapping[Key, bytes]) -> int:
    """Turn the lane's open segment, which is empty, into ``packed``, and open the next one.

    Args:
        places: of its columns' dictionaries, with references to them. ``values``: shared ones that it refers to.

    Returns its slot; -1 if the retention does not keep it.

    Raises:
        MemoryError: no room.  OSError: it cannot be written; then nothing changed but evictions.
    """
    index, opened, inventory, lane, rows = log.index, log.opened, log.inventory, header.lane, header.steps
    slot = int(opened.slots[lane])
    try:
        sparse_rows = np.array([header.placed[c].rows for c in log.layout.sparse_columns], np.int32)
        log.make_room_for_steps(rows)
        following, _ = log.sealing.prepare_next(lane)
        kept = log.admission.admits(slot)
        nbytes = log.shared.nbytes
        log.shared.hold(slot, values)
        if values:
            log.fit_values(log.shared.nbytes - nbytes)
    except BaseException:
        log.shared.release(slot)
        log.sealed.drop_dictionaries(places)
        raise
    try:
        if kept:
            begins = [column.offset for column in header.placed]
            kept = log.admission.keep(slot, rows, packed, begins, header.placed, places)
        else:
            log.sealed.drop_dictionaries(places)
    except BaseException as error:
        if not log.sealing.drops_for(error):
            log.shared.release(slot)
            index.give_back(following)
            raise
        kept = False
        inventory.dropped_steps += rows
    before = int(index.previous[slot])
    lost = header.first_step > opened.steps[lane] and before >= 0 and not index.gap[before]
    if lost and log.sealed.truncate(before):
        log.sealed.rewrite_truncated([before], release=True)  # its successors were lost on the way
    index.rows[slot], index.frames[slot], index.context[slot] = rows, header.frames, header.context
    index.sparse[:, slot] = sparse_rows
    index.first_step[slot], index.episode_step[slot] = header.first_step, header.episode_step
    opened.steps[lane] = header.first_step + rows
    inventory.append(rows)
    log.sealing.go_on(lane, following, kept, {}, going_on=False)
    return slot if kept else -1


def settle(log: StepLog) -> None:
    """End the episode of every lane whose last step came from elsewhere and whose successor may be missing.

    The next step begins a new episode. For a store that was opened, or a lane that is appended to from now on.
    """
    for lane in range(log.lanes):
        settle_lane(log, lane)


def settle_lane(log: StepLog, lane: int) -> bool:
    """End one lane's episode as ``settle`` does; return whether one was under way."""
    opened = int(log.opened.slots[lane])
    before = int(log.index.previous[opened])
    # Elsewhere, an empty open segment that begins an episode follows the end of one, or steps that were evicted.
    if before >= 0 and not log.index.gap[before] and not log.index.rows[opened] and log.index.begins[opened]:
        went_on = log.sealed.truncate(before)
        if went_on:
            log.sealed.rewrite_truncated([before], release=True)
        log.inventory.changes += 1
        return went_on
    return False


def _check_order(log: StepLog, header: Header, packed: bytes) -> int:
    """Return the number of its first step in its episode.  Raises: DamagedError: it does not continue its lane."""
    opened, expected = int(log.opened.slots[header.lane]), int(log.opened.steps[header.lane])
    if log.index.rows[opened]:
        raise ValueError(
            f"segment: lane {header.lane} is being appended to by this process; a lane has one writer: use another"
        )
    if header.first_step < expected:
        kind = DuplicateError if header.first_step + header.steps <= expected else DamagedError
        raise kind(
            f"segment: begins with step {header.first_step} of lane {header.lane}, expected {expected} or later: each "
            f"segment once, in order; {NEW_WRITER}"
        )
    before = int(log.index.previous[opened])
    starts = segment.step_rows(packed, header, FLAGS)[0, 0] & START
    if before < 0 or header.first_step > expected or log.index.gap[before]:
        return header.episode_step
    last = log.arena.memory[log.index.offset[FLAGS, before] + log.index.rows[before] - 1]
    if bool(last & ENDED) != bool(starts):
        raise DamagedError(
            f"segment: step {header.first_step} of lane {header.lane} {'begins' if starts else 'goes on with'} an "
            f"episode, but the one before {'ended' if last & ENDED else 'did not end'} one; {NEW_WRITER}"
        )
    number = 0 if starts else log.opened.columns.next_episode_step(before)
    if header.episode_step != number:
        raise DamagedError(
            f"segment: step {header.first_step} of lane {header.lane} is step {header.episode_step} of its episode, "
            f"expected {number}"
        )
    return number


def shared_of(log: StepLog, packed: bytes, header: Header, dictionaries: Mapping[int, bytes]) -> dict[Key, bytes]:
    """Return the shared values that a checked segment refers to.  Raises: DamagedError: one is damaged or missing.

    Args:
        dictionaries: shared values by key, among others.
    """
    found: dict[Key, bytes] = {}
    for c, key in segment.shared_keys(packed, header, log.spec):
        if key not in dictionaries:
            raise DamagedError(
                f"segment: {log.layout.names[c]} refers to shared value {text_of(key)}, which is missing"
            )
        found[c, key] = checked(dictionaries[key], log.shared.kinds[c], key)
    return found


def _unshared(packed: bytes, log: StepLog, dictionary: Callable[[int], bytes]) -> bytes:
    """Return the same segment without dictionaries, where a table has no place for its own."""
    header, arrays = segment.unpack(packed, log.spec, dictionary, limit=2 * log.layout.chunk_bytes)
    return segment.pack_again(header, header.steps, header.frames, unshared_columns(log.spec, arrays))


class Copy(NamedTuple):
    """Segment as ``take_in`` takes it: its bytes, and its dictionaries by key, among others."""

    packed: bytes
    dictionaries: dict[int, bytes]


def sealed_after(log: StepLog, lane_steps: Ints, max_bytes: int) -> list[Copy]:
    """Return the oldest segments that begin at or after ``lane_steps``, in the order in which they were appended.

    Unreadable segments are left out. The store's lock is held.

    Args:
        log: with ``Fifo`` retention.
        lane_steps: int64 [lanes], the other log's number of steps of each lane; 0 for further lanes.
        max_bytes: limit of the returned segments, exceeded by the last one.

    Cost: O(segments held), and a copy of the returned segments.
    """
    index = log.index
    slots = log.admission.retention.order()["slots"]
    had = np.zeros(max(log.lanes, len(lane_steps)), np.int64)
    had[: len(lane_steps)] = lane_steps
    found: list[Copy] = []
    total = 0
    for slot in slots[index.first_step[slots] >= had[index.lane[slots]]].tolist():
        with suppress(DamagedError):
            _, packed, shared = log.sealed.packed(slot)
            found.append(Copy(packed, {key: data for (_, key), data in shared.items()}))
            total += len(packed) + sum(len(data) for (_, key), data in shared.items() if key & IS_SHARED)
        if total >= max_bytes:
            break
    return found
