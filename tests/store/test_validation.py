"""Kernels of validation against numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sharpwave.native import core
from sharpwave.spec import MAX_REWARD, TERMINATED, TRUNCATED


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20))
def test_flags_are_joined_and_the_first_truncated_row_found(rows: list[tuple[bool, bool]]) -> None:
    terminated, truncated = np.array(rows, np.bool_).reshape(-1, 2).T.copy()
    flags = np.full(len(rows), 255, np.uint8)
    found = core.join_flags(terminated, truncated, flags)
    assert flags.tolist() == [a * TERMINATED | b * TRUNCATED for a, b in rows]
    only = np.flatnonzero(truncated & ~terminated)
    assert found == (only[0] if only.size else -1)


@given(st.lists(st.integers(0, 1 << 20), max_size=20))
def test_the_highest_lane(lanes: list[int]) -> None:
    assert core.highest(np.array(lanes, np.int64)) == max(lanes, default=-1)


@given(st.lists(st.floats(width=32), max_size=20))
def test_numbers_within_bounds(values: list[float]) -> None:
    array = np.array(values, np.float32)
    assert core.all_within(array, MAX_REWARD) == bool(np.isfinite(array).all())
