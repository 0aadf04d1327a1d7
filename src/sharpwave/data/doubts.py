"""Evidence against the split of a data set into episodes, in words: flags and numbers that disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Ints


def of_next_observations(breaks: Ints, flagged: Ints, count: int) -> list[str]:
    """Describe doubts about next observations.

    Args:
        breaks: numbers of rows after which the next observation differs from the following one.
        flagged: numbers of rows after which a flag ends an episode. ``count``: number of all rows.
    """
    found: list[str] = []
    unflagged = np.setdiff1d(breaks, flagged)
    if len(unflagged):
        found.append(
            f"next_observations: {len(unflagged):,} rows lead to an observation other than the following one where no "
            f"flag ends an episode (the first is row {unflagged[0] - 1:,}); an episode ends after each"
        )
    chained = np.setdiff1d(flagged, np.append(breaks, count))
    if len(chained):
        found.append(
            f"next_observations: {len(chained):,} rows lead to the following observation though a flag ends an episode "
            f"there (the first is row {chained[0] - 1:,}); are flags in another row, or final observations of resets?"
        )
    return found


def of_ends(name: str, found: Ints, known: Ints, count: int) -> list[str]:
    """Describe doubts about an array that marks ends of episodes.

    Args:
        found: numbers of rows after which the array ends an episode. ``known``: after which flags end one.
    """
    missed = np.setdiff1d(known, np.append(found, count))
    if not len(missed):
        return []
    return [f"{name}: continues after {len(missed):,} of the episodes that ended, the first in row {missed[0] - 1:,}"]


def of_steps(name: str, values: npt.NDArray[Any], starts: Ints) -> list[str]:
    """Describe doubts about numbers of steps [N] in episodes that begin at ``starts``."""
    found: list[str] = []
    firsts, counts = np.unique(values[starts], return_counts=True)
    usual = firsts[np.argmax(counts)]
    if 1 < len(firsts) <= len(starts) // 2 + 1:
        at = starts[values[starts] != usual]
        found.append(
            f"{name}: {len(at):,} episodes begin with another number than {usual}, the first in row {at[0]:,}; are "
            "their first rows missing?"
        )
    return found


def of_unnamed(name: str, values: npt.NDArray[Any], starts: Ints) -> list[str]:
    """Describe a further field [N] that looks like numbers of episodes or steps and contradicts ``starts``.

    Numbers of episodes stay, and rise by one at least twice; numbers of steps rise by one, and restart at one value.
    """
    if len(values) < 3 or not np.isfinite(values).all():
        return []
    rises = np.diff(values.astype(np.float64))
    changes, restarts = 1 + np.flatnonzero(rises), 1 + np.flatnonzero(rises <= 0)
    if 2 <= len(changes) <= len(values) // 2 and (rises[changes - 1] == 1).all():
        found, what, known = changes, "rises by one now and then as numbers of episodes do", "episode_id"
    elif (
        1 <= len(restarts) <= len(values) // 2
        and (values[restarts] == values[0]).all()
        and (rises[rises > 0] == 1).all()
    ):
        found, what, known = restarts, "restarts as numbers of steps do", "step"
    else:
        return []
    if not len(found := np.setdiff1d(found, starts)):
        return []
    return [
        f"{name}: a further field, but it {what}, before {len(found):,} rows where no episode begins, the first is row "
        f"{found[0]:,}; if it tells episodes apart, rename it to {known}"
    ]


def gaps(values: npt.NDArray[Any]) -> Ints:
    """Return the numbers of rows after which steadily rising integers skip some."""
    if values.dtype.kind not in "ui" or len(values) < 3:
        return np.zeros(0, np.int64)
    wide = values.astype(np.int64)
    rises = np.diff(wide)
    up = rises[rises > 0]
    if not len(up):
        return np.zeros(0, np.int64)
    usual, counts = np.unique(up, return_counts=True)
    step = usual[np.argmax(counts)]
    if 4 * counts.max() < 3 * len(up):
        return np.zeros(0, np.int64)
    return (1 + np.flatnonzero(rises > step)).astype(np.int64)


def of_episodes(name: str, values: npt.NDArray[Any]) -> list[str]:
    """Describe doubts about numbers of episodes [N]."""
    found: list[str] = []
    runs = values[np.append(True, values[1:] != values[:-1])]
    different = np.unique(runs)
    if again := len(runs) - len(different):
        found.append(f"{name}: {again:,} numbers come again later; each run of equal numbers counts as an episode")
    if different.dtype.kind in "ui" and 1 < len(different) < (span := int(different[-1]) - int(different[0]) + 1):
        found.append(
            f"{name}: {span - len(different):,} numbers between {different[0]} and {different[-1]} are missing"
        )
    return found
