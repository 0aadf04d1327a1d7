"""Scores of several seeds as one figure: their interquartile mean, and its interval.

Source: Agarwal et al. (2021), Deep reinforcement learning at the edge of the statistical precipice; the definitions are
those of their library rliable (``metrics.aggregate_iqm``, ``library.get_interval_estimates``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000


def interquartile_mean(scores: Sequence[float] | Sequence[Sequence[float]]) -> float:
    """Return the mean of the middle half of all scores, of all tasks and seeds together.

    Args:
        scores: of the seeds, or of the seeds by task.
    """
    return float(_trimmed(np.concatenate([np.atleast_1d(one) for one in scores])))


def interval(scores: Sequence[Sequence[float]], resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile interval of the IQM: seeds are resampled within each task.

    Args:
        scores: by task, of its seeds.
    """
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(np.asarray(one), (resamples, len(one))) for one in scores]
    low, high = np.percentile(_trimmed(np.concatenate(drawn, axis=1)), [2.5, 97.5])
    return float(low), float(high)


def _trimmed(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean over the last axis, without a quarter at each end: scipy's ``trim_mean(x, .25)``."""
    cut = scores.shape[-1] // 4
    mean: npt.NDArray[np.float64] = np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(axis=-1)
    return mean
