"""How an agent explores: schedules of epsilon, a ladder over environments, and epsilon-greedy actions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LITTLE = 0.05
"""An epsilon that costs little of the score."""


def linear_schedule(step: int, start: float, end: float, over: int) -> float:
    """From ``start`` at step 0 straight to ``end`` at step ``over``, then ``end``. For epsilon and for beta.

    Args:
        step: environment steps so far.  over: environment steps of the way; 0: ``end`` at once.
    """
    if step >= over:
        return end
    return start + (end - start) * (step / over)


def epsilon_ladder(epsilon: float, lanes: int, exponent: float) -> npt.NDArray[np.float64]:
    """Each environment its own epsilon: epsilon ** (1 + exponent * i / (N - 1)), so that some explore and some play.

    Args:
        epsilon: the largest, of environment 0.  lanes: N, the number of environments.
        exponent: 7 in Ape-X (with epsilon .4); 0 gives every environment the same.
    Returns:
        float64 [N].
    Source: Horgan et al. (2018), Distributed prioritized experience replay, section 4.1.
    """
    rungs = np.arange(lanes) / max(lanes - 1, 1)
    return np.asarray(epsilon, np.float64) ** (1.0 + exponent * rungs)


def play_well(epsilon: float, lanes: int, exponent: float) -> npt.NDArray[np.bool_]:
    """Which environments of a ladder show by their scores what was learned: those that explore least, or little.

    Of eight with .4 and an exponent of 7 the first plays at random so often that it loses at Pong to the end; the last
    five explore with less than :data:`LITTLE`. Where all explore alike it is all.

    Args:
        epsilon, lanes, exponent: as for :func:`epsilon_ladder`.
    Returns:
        bool [N].
    """
    ladder = epsilon_ladder(epsilon, lanes, exponent)
    return np.less_equal(ladder, max(LITTLE, ladder.min()))


def epsilon_greedy(
    greedy: npt.NDArray[np.int64],
    num_actions: int,
    epsilon: float | npt.NDArray[np.float64],
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """With probability epsilon any action, all alike; else the greedy one.

    Args:
        greedy: int64 [N].  epsilon: one for all, or float [N].
    Returns:
        int64 [N]. Two draws of N from ``rng`` whatever happens, so that a run can be repeated.
    """
    explores = rng.random(len(greedy)) < epsilon
    random = rng.integers(0, num_actions, len(greedy))
    return np.where(explores, random, greedy)
