"""Some of the set-ups of `benchmarks/truth.py`, for a shorter time: nothing is stored that did not happen."""

from __future__ import annotations

import pytest

pytest.importorskip("gymnasium")

from tests.support.setups import SETUPS

SLOW = ("Pong", "Atari", "Async", "copy", "Taxi", "CartPole", "same buffers", "statistics")
QUICK = [name for name in SETUPS if not any(part in name for part in SLOW)]


@pytest.mark.parametrize("name", [*QUICK, "Async, NextStep, dicts, stacked"])
def test_what_is_stored_is_what_happened(name: str) -> None:
    steps, found = SETUPS[name].run(90)
    assert found.compared > steps > 60
    assert (found.wrong, found.missing) == (0, 0)
