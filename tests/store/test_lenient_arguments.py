"""What users write for flags and sizes is taken where it can mean only one thing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((), "int64"), action=sw.Field((), "int64"))


@pytest.mark.parametrize(
    "flags", [[0, 1, 0], [0.0, 1.0, 0.0], np.array([0, 1, 0], np.uint8), np.array([0, 1, 0], "f4")]
)
def test_flags_of_zeros_and_ones(flags: Any) -> None:
    store = sw.Store(SPEC, capacity=1e6)  # type: ignore[arg-type]
    assert store.capacity == 1_000_000 and isinstance(store.capacity, int)
    zeros = np.zeros_like(flags)
    for k in range(2):
        store.extend(obs=[k] * 3, action=[k] * 3, reward=[0.0] * 3, terminated=flags, truncated=zeros)
    store.append(lane=0, obs=2, action=2, reward=0.0, terminated=1, truncated=0)  # type: ignore[arg-type]
    batch = store.transitions().fetch(store.ids([0, 0, 0, 1], [0, 1, 2, 0]))
    assert batch.terminated.tolist() == [False, False, True, True] and not batch.truncated.any()


@pytest.mark.parametrize(
    "flags", [[0, 2, 0], [0.0, 0.5, 1.0], [0.0, np.nan, 0.0], ["0", "1", "0"], [None] * 3, [[0, 1, 0]]]
)
def test_flags_that_say_something_else(flags: Any) -> None:
    store = sw.Store(SPEC, capacity=10)
    with pytest.raises(ValueError, match=r"terminated: got .*expected shape \(3,\) bool \(or 0 and 1\)"):
        store.extend(obs=[0] * 3, action=[0] * 3, reward=[0.0] * 3, terminated=flags, truncated=[False] * 3)
    assert store.total_steps == 0


@pytest.mark.parametrize("capacity", [1.5, float("inf"), float("nan"), True, "1e6", 1.0, 1e10])
def test_capacities_that_make_no_sense(capacity: Any) -> None:
    with pytest.raises(ValueError, match="capacity="):
        sw.Store(SPEC, capacity=capacity)
