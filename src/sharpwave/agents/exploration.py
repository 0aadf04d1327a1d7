"""How an agent explores: schedules of epsilon, a ladder over environments, and epsilon-greedy actions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


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
