"""How long tests look where a number is their own: short by default, longer in GitHub's jobs, longest by night."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest

ASKED = os.environ.get("SHARPWAVE_HYPOTHESIS_EXAMPLES")
DEFAULT = 10
"""Examples of a test that states no number of its own, where the environment asks for none."""


def examples(count: int, most: int = 10_000) -> int:
    """Return how many examples hypothesis looks at, how many seeds a test has, or how many calls its random life.

    Args:
        count: the test's own number, which GitHub's jobs run; the default is a third of it.
        most: an upper bound of what ``SHARPWAVE_HYPOTHESIS_EXAMPLES`` may ask for.
    """
    return -(-count // 3) if ASKED is None else max(count, min(int(ASKED), most))


def stride(step: int) -> int:
    """Return the step from one operation to the next, for a test that breaks off at each of many.

    Args:
        step: of GitHub's jobs; the default is three times as long, and by night (1,000 examples or more) no operation
            is skipped.
    """
    return 3 * step if ASKED is None else step if int(ASKED) < 1000 else 1


def every_two(*parts: Iterable[Any]) -> list[Any]:
    """Return every choice of one of each of two parts or more, half of which are run by night alone.

    If each part has two or more, the other half has each of them too, and of three parts or more any two together.
    """
    chosen = [list(zip(*some, strict=True)) for some in itertools.product(*(list(enumerate(part)) for part in parts))]
    return [pytest.param(*one, marks=pytest.mark.nightly if sum(places) % 2 else ()) for places, one in chosen]


def by_day(first: Any, *others: Any) -> list[Any]:
    """Return values of a test's argument: the first in each run, the others by night alone."""
    return [first, *(pytest.param(one, marks=pytest.mark.nightly) for one in others)]
