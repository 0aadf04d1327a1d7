"""Numbers that a file of a run says, as what they must be: its checksum may hold whoever wrote it."""

from __future__ import annotations

import math
from typing import Any

MAX_COUNT = 1 << 62
"""Counts lie below it."""


def count(values: dict[str, Any], name: str) -> int:
    """A number of steps, episodes and the like.  Raises: KeyError, ValueError."""
    value = values[name]
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name} is {_shown(value)}, expected an integer from 0 below {MAX_COUNT}")
    return value


def number(value: Any, name: str) -> float:
    """A number that was measured, which may be none that is finite.  Raises: ValueError, OverflowError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {_shown(value)}, expected a number")
    return float(value)


def mean(values: dict[str, Any], name: str) -> float | None:
    """A number, or ``None`` before the first of those that it is the mean of.  Raises: KeyError, ValueError."""
    return None if values[name] is None else number(values[name], name)


def minutes(values: dict[str, Any], name: str = "minutes") -> float:
    """A time.  Raises: KeyError, ValueError."""
    value = number(values[name], name)
    if not (math.isfinite(value) and 0 <= value < MAX_COUNT):
        raise ValueError(f"{name} is {value:g}, expected a finite number from 0")
    return value


def scores(values: dict[str, Any], name: str) -> list[float]:
    """Scores of episodes.  Raises: KeyError, ValueError, OverflowError."""
    value = values[name]
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_shown(value)}, expected a list of numbers")
    return [number(one, name) for one in value]


def evaluation(values: dict[str, Any]) -> tuple[int, list[float]]:
    """When a policy was measured, and its scores.  Raises: KeyError, TypeError, ValueError, OverflowError."""
    found = scores(values, "scores")
    if not found:
        raise ValueError("scores of no episode")
    return count(values, "steps"), found


def summary(values: Any) -> dict[str, Any]:
    """A run's summary.  Raises: KeyError, TypeError, ValueError, OverflowError."""
    if not isinstance(report(values)["reason"], str):
        raise ValueError("the reason is no text")
    for name in ("held_out", "final"):
        if (one := values.get(name)) is not None:
            evaluation(one)
            number(one["mean"], "mean")
            number(one["min"], "min")
    return dict(values)


def report(values: Any) -> dict[str, Any]:
    """What was told of a run last, with all that is told at its end.  Raises: KeyError, ValueError, OverflowError."""
    if not isinstance(values, dict):
        raise ValueError(f"the report is {_shown(values)}, expected a dict")
    for name in ("steps", "episodes", "updates", "replay_steps", "replay_bytes"):
        count(values, name)
    for name in ("mean_reward", "bytes_per_step"):
        mean(values, name)
    minutes(values)
    return values


def _shown(value: Any) -> str:
    """Of anything, however long: an integer may have more digits than are ever written out."""
    kind = type(value).__name__
    return f"{kind} {str(value)[:40]!r}" if isinstance(value, (str, float)) else kind
