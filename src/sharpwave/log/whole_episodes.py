"""Episodes that are stored whole or not at all: in segments of their own, so that a part of one can be evicted."""

from __future__ import annotations

from sharpwave.log.step_log import StepLog


def begin_apart(log: StepLog, lane: int, steps: int, at_once: bool) -> None:
    """Seal the lane's open segment, which ends an episode, unless the next episode fits into it and is written at once.

    Args:
        steps: of the next episode.
        at_once: whether its steps are written in one call, as far as a segment has room.

    Raises:
        MemoryError, OSError: there is no room; nothing changed.
    """
    if not log.index.rows[log.opened.slots[lane]]:
        return
    capacity = log.admission.capacity
    at_once = at_once and not log.opened.sparse and (capacity is None or steps <= max(1, capacity // 2))
    if not at_once or log.room(lane) < steps:
        log.rollover.seal_open(lane)


def drop(log: StepLog, lane: int, first: int, end: int) -> int:
    """Evict the lane's steps ``first`` to ``end - 1``, which lie in segments of their own.

    If the lane's last step is among them, its next begins an episode.

    Returns how many were held.

    Raises:
        ValueError: they share a segment with others; nothing changed.
        OSError: the eviction could not be written to disk: steps may be back when the store is opened after a crash.

    Cost: O(segments of the lane).
    """
    index, opened = log.index, int(log.opened.slots[lane])
    slots: list[int] = []
    slot = int(log.inventory.oldest[lane])
    while slot >= 0:
        begins, ends = int(index.first_step[slot]), int(index.first_step[slot] + index.rows[slot])
        if begins < end and ends > first and ends > begins:
            if begins < first or ends > end:
                raise ValueError(
                    f"drop_steps: steps {begins} to {ends - 1} of lane {lane} share a segment; expected first and end "
                    "of an episode that add_episode(whole=True) appended"
                )
            slots.append(slot)
        slot = int(index.next[slot])
    steps = sum(int(index.rows[slot]) for slot in slots)
    if opened in slots:
        slots.remove(opened)
        log.rollover.abandon(lane)
    if first < log.opened.steps[lane] <= end and not log.opened.ended(lane):
        log.opened.begin_episode(lane)  # not where another is under way, which this would empty
    for slot in slots:
        log.admission.evict_one(slot)
    if log.disk is not None:
        log.disk.note()
    return steps
