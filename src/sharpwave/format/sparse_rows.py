"""How many rows the column of a sparse field has."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.spec import START


def sparse_rows(flags: npt.NDArray[np.uint8], episode_step: int, every: int) -> int:
    """Return the rows of a column that keeps every ``every``-th step of each episode.

    Beside those of the segment's own steps that is the last one kept before its first step, where that is not kept
    itself. So the row of a step is the last one up to it, and no step needs another segment.

    Args:
        flags: uint8 [steps], of the segment.
        episode_step: number of its first step in its episode.
    """
    if not len(flags):
        return int(episode_step % every != 0)
    begins = np.flatnonzero(flags & START)
    begins = begins if begins.size and begins[0] == 0 else np.concatenate([[0], begins])
    first = np.zeros(len(begins), np.int64)
    first[0] = 0 if flags[0] & START else episode_step
    lengths = np.diff(np.concatenate([begins, [len(flags)]]))
    return int(((first + lengths - 1) // every - first // every + 1).sum())
