"""Schedules: numbers that change with the environment steps made."""

from __future__ import annotations


def linear(step: int, start: float, end: float, over: int) -> float:
    """Interpolate from ``start`` at step 0 to ``end`` at step ``over``; later ``end``.

    Args:
        step: environment steps so far.  over: environment steps of the change; 0: ``end`` at once.
    """
    if step >= over:
        return end
    return start + (end - start) * (step / over)


def held(step: int, start: float, end: float, over: int, hold: int) -> float:
    """Return ``start`` during the first ``hold`` steps, then go from it to ``end`` as :func:`linear` does.

    Source: Mnih et al. (2015), Human-level control: epsilon falls once the replay memory holds its first steps.
    """
    return start if step < hold else linear(step - hold, start, end, over)
