"""Ids: never given out twice, and with room for a shard's number as long as there is any."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharpwave.memory.segment_index import GENERATION_BITS, LEAF_BITS, SegmentIndex

LIMIT = 1 << GENERATION_BITS


def test_a_slot_whose_generations_leave_no_room_for_a_shard_is_used_last() -> None:
    index = SegmentIndex(4, 8, 3)
    slots = [index.take() for _ in range(3)]
    assert slots == [0, 1, 2]
    index.generation[:2] = LIMIT - 1, 5
    index.give_back(0)
    index.give_back(1)
    assert [index.take() for _ in range(3)] == [1, 3, 0], "0 has had its 2^21 generations"
    assert index.take() is None
    assert index.segment_id(0) == LIMIT << LEAF_BITS == 1 << 53
    assert [index.segment_id(slot) >> 53 for slot in (1, 2, 3)] == [0, 0, 0]


def test_no_id_comes_twice_whatever_their_generations() -> None:
    index = SegmentIndex(3, 8, 3)
    index.free.first = LIMIT - 3
    given: set[int] = set()
    for _ in range(40):
        slot = index.take()
        assert slot is not None and index.segment_id(slot) not in given
        given.add(index.segment_id(slot))
        index.give_back(slot)
    assert sum(one < 1 << 53 for one in given) == 9, "three of each slot, before any other"


def test_an_opening_sorts_its_free_slots_the_same_way() -> None:
    index = SegmentIndex(6, 8, 3)
    index.highest = 4
    index.generation[:4] = 7, LIMIT + 2, LIMIT, 9
    index.restore({3}, 8, index.generation[:4].copy())
    assert [index.take() for _ in range(5)] == [0, 4, 5, 1, 2]
    index.restore({3}, LIMIT + 3)  # above all that were given out: none has room
    assert [index.take() for _ in range(3)] == [0, 1, 2]


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=200), st.integers(LIMIT - 6, LIMIT))
def test_the_lowest_free_slot_is_taken_and_worn_ones_last(choices: list[int | None], first: int) -> None:
    index = SegmentIndex(12, 8, 3)
    index.free.first = first
    used: list[int] = []
    free: set[int] = set()
    generation = [first] * 12
    fresh = 0
    for choice in choices:
        if choice is None:
            worn = {slot for slot in free if generation[slot] >= LIMIT > first}
            untouched = {fresh} if fresh < 12 else set[int]()
            expected = min(free - worn or untouched or worn, default=None)
            slot = index.take()
            assert slot == expected
            if slot is not None:
                fresh += slot == fresh
                free.discard(slot)
                used.append(slot)
                assert index.segment_id(slot) == generation[slot] << LEAF_BITS | slot * 8
                index.rows[slot], index.sealed[slot], index.next[slot] = 5, 1, 3
        elif used:
            slot = used.pop(choice % len(used))
            index.give_back(slot)
            free.add(slot)
            generation[slot] += 1
        assert sorted(index.free.slots()) == sorted(free) and len(index.free) == len(free) and index.highest == fresh
    for slot in free:
        assert not index.rows[slot]
