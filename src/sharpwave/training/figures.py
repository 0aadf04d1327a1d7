"""Validation of numbers read from a run's files: a valid checksum does not say that a run wrote them."""

from __future__ import annotations

import math
from typing import Any

MAX_COUNT = 1 << 62
"""Exclusive limit of counts."""


def count(values: dict[str, Any], name: str) -> int:
    """Return a count, as of steps or episodes.  Raises: KeyError, ValueError."""
    value = values[name]
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name} is {_shown(value)}, expected an integer from 0 below {MAX_COUNT}")
    return value


def number(value: Any, name: str) -> float:
    """Return a measured number, which may be infinite or NaN.  Raises: ValueError, OverflowError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {_shown(value)}, expected a number")
    return float(value)


def mean(values: dict[str, Any], name: str) -> float | None:
    """Return a mean, ``None`` before the first value.  Raises: KeyError, ValueError."""
    return None if values[name] is None else number(values[name], name)


def minutes(values: dict[str, Any], name: str = "minutes") -> float:
    """Return a time in minutes.  Raises: KeyError, ValueError."""
    value = number(values[name], name)
    if not (math.isfinite(value) and 0 <= value < MAX_COUNT):
        raise ValueError(f"{name} is {value:g}, expected a finite number from 0")
    return value


def scores(values: dict[str, Any], name: str) -> list[float]:
    """Return the scores of episodes.  Raises: KeyError, ValueError, OverflowError."""
    value = values[name]
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_shown(value)}, expected a list of numbers")
    return [number(one, name) for one in value]


def evaluation(values: dict[str, Any]) -> tuple[int, list[float], list[float]]:
    """Return an evaluation's step, its scores and those that confirm it.

    Raises: KeyError, TypeError, ValueError, OverflowError.
    """
    found = scores(values, "scores")
    if not found:
        raise ValueError("scores is empty, expected the score of at least one episode")
    return count(values, "steps"), found, scores(values, "fresh")


def summary(values: Any) -> dict[str, Any]:
    """Return a run's summary.  Raises: KeyError, TypeError, ValueError, OverflowError."""
    if not isinstance(report(values)["reason"], str):
        raise ValueError(f"reason is {_shown(values['reason'])}, expected text")
    for name in ("held_out", "final"):
        if (one := values.get(name)) is not None:
            evaluation(one)
            number(one["mean"], "mean")
            number(one["min"], "min")
    return dict(values)


def report(values: Any) -> dict[str, Any]:
    """Return a run's last report, with all that a summary needs.  Raises: KeyError, ValueError, OverflowError."""
    if not isinstance(values, dict):
        raise ValueError(f"the report is {_shown(values)}, expected a dict")
    for name in ("steps", "episodes", "updates", "replay_steps", "replay_bytes"):
        count(values, name)
    for name in ("mean_reward", "bytes_per_step"):
        mean(values, name)
    count(values, "fixed_bytes")
    mean(values, "encoded_bytes_per_step")
    minutes(values)
    return values


def _shown(value: Any) -> str:
    """Return a short representation of any value; an integer may have more digits than Python prints."""
    kind = type(value).__name__
    return f"{kind} {str(value)[:40]!r}" if isinstance(value, (str, float)) else kind
