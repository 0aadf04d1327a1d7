"""Contents of a source's replay memory at one moment: episodes, their order, their steps, and their priorities."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Floats, Ints
from sharpwave.data.queries import episodes_of
from sharpwave.data.tables import rows_where
from sharpwave.offline.surveys import EpisodeSpan, Stretch, Survey
from sharpwave.viewer.priorities import ViewItems

if TYPE_CHECKING:
    import pyarrow


ENDS = ("terminated", "truncated", "unfinished")
SORTS = ("written", "return", "length", "age", "priority", "lane")
MAX_DECODED_BYTES = 256 << 20
"""Limit of the decoded rows of one segment's columns; larger ones are not shown."""
MAX_READ_STEPS = 200_000
"""Limit of the steps in one request."""
FILTER_S = 10.0
"""Time limit of a filter."""
FILTER_SETTINGS = {
    "threads": 1, "memory_limit": "512MB", "lock_configuration": "true", "python_enable_replacements": "false",
}  # fmt: skip
"""Settings of DuckDB for filters: a link to the page may have one."""
MAX_MATCHES = 16
"""Number of filters whose episodes are kept."""


@dataclass(frozen=True)
class Snapshot:
    """Contents at one moment.

    Attributes:
        number: rises with every snapshot of a source.
        taken: time, in seconds since the epoch.
        views: views in the newest checkpoint; those with priorities first.
        checkpoint: time of that checkpoint, in seconds since the epoch; ``None``: no checkpoint.
        trouble: why the checkpoint's priorities cannot be shown; "" if they can.
    """

    number: int
    taken: float
    survey: Survey
    views: list[ViewItems] = field(default_factory=list)
    checkpoint: float | None = None
    trouble: str = ""
    _matches: dict[str, Ints] = field(default_factory=dict, repr=False)

    @property
    def episodes(self) -> list[EpisodeSpan]:
        """Episodes, in the order of their ends."""
        return self.survey.episodes

    def read(self, episode: EpisodeSpan, names: Sequence[str], begin: int, end: int) -> Iterator[Stretch]:
        """Yield columns of the steps ``begin <= step < end`` of an episode.

        Raises:
            DamagedError, TooLargeError: as ``Survey.read``, beyond ``MAX_DECODED_BYTES``.
        """
        return self.survey.read(episode, names, begin, end, limit=MAX_DECODED_BYTES)

    @cached_property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Columns for sorting: arrays [episodes] by name of ``SORTS``, and ``whole``, which episodes are whole."""
        episodes = self.episodes
        lane = np.array([one.lane for one in episodes], np.int64)
        first = np.array([one.first_step for one in episodes], np.int64)
        length = np.array([one.steps for one in episodes], np.int64)
        newest = {lane: chain.segments[-1].end for lane, chain in self.survey.lanes.items()}
        ends = np.array([newest[one.lane] for one in episodes], np.int64)
        return {
            "written": np.arange(len(episodes)),
            "return": np.array([one.total for one in episodes], np.float64),
            "length": length,
            "age": (ends - first - length) * max(1, len(newest)),
            "priority": self._mean_priority(lane, first, length),
            "lane": lane,
            "whole": np.array([one.whole for one in episodes], np.bool_),
        }

    def _mean_priority(self, lane: Ints, first: Ints, length: Ints) -> Floats:
        """Return the mean priority of each episode's items, NaN for none."""
        means = np.full(len(lane), np.nan)
        if not self.views or (priority := self.views[0].priority) is None:
            return means
        view = self.views[0]
        sums = np.concatenate([[0.0], np.cumsum(priority)])
        for one in np.unique(lane).tolist():
            begin, end = np.searchsorted(view.lane, [one, one + 1])
            mine = np.flatnonzero(lane == one)
            steps = view.step[begin:end]
            low = begin + np.searchsorted(steps, first[mine])
            high = begin + np.searchsorted(steps, first[mine] + length[mine])
            some = high > low
            means[mine[some]] = (sums[high[some]] - sums[low[some]]) / (high - low)[some]
        return means

    @cached_property
    def table(self) -> pyarrow.Table:
        """Episodes as the table that filters are evaluated over."""
        return episodes_of(self.episodes)

    def matching(self, where: str) -> Ints:
        """Return numbers of the episodes for which a condition in SQL holds, as ``Store.episodes(where=)``, ascending.

        Raises:
            ValueError: it cannot be evaluated, or takes longer than ``FILTER_S``.
            ModuleNotFoundError: the extra ``sql`` is not installed.
        """
        if (found := self._matches.get(where)) is None:
            begun = time.monotonic()
            try:
                found = rows_where(self.table, where, FILTER_S, **FILTER_SETTINGS)
            except ValueError as error:
                if time.monotonic() - begun >= FILTER_S:
                    raise ValueError(f"where={where!r}: took longer than {FILTER_S:g} s") from error
                raise
            if len(self._matches) >= MAX_MATCHES:
                self._matches.clear()
            self._matches[where] = found
        return found

    def order(self, sort: str, descending: bool, whole: bool = False, lane: int | None = None, where: str = "") -> Ints:
        """Return numbers of episodes, sorted by a column; those without a value come last.

        Args:
            where: only those that match this condition; "": all.

        Raises: ValueError, ModuleNotFoundError: as ``matching``.
        """
        columns = self.columns
        chosen = np.ones(len(self.episodes), np.bool_)
        if where:
            chosen[:] = False
            chosen[self.matching(where)] = True
        if whole:
            chosen &= columns["whole"]
        if lane is not None:
            chosen &= columns["lane"] == lane
        numbers: Ints = np.flatnonzero(chosen)
        values = columns[sort][numbers].astype(np.float64)
        keys = np.where(np.isnan(values), np.inf, -values if descending else values)
        return numbers[np.argsort(keys, kind="stable")]

    def number_of(self, lane: int, step: int) -> int:
        """Return the number of the episode that holds a lane's step.  Raises: KeyError: the store does not hold it."""
        at = bisect_right(self._by_lane.get(lane, []), step, key=itemgetter(0)) - 1
        if at < 0:
            raise KeyError(f"step {step} of lane {lane} is not in the store: it was evicted, or never written")
        number = self._by_lane[lane][at][1]
        if step >= self.episodes[number].first_step + self.episodes[number].steps:
            raise KeyError(f"step {step} of lane {lane} is not in the store")
        return number

    @cached_property
    def _by_lane(self) -> dict[int, list[tuple[int, int]]]:
        lanes: dict[int, list[tuple[int, int]]] = {}
        for number, one in enumerate(self.episodes):
            lanes.setdefault(one.lane, []).append((one.first_step, number))
        return {lane: sorted(found) for lane, found in lanes.items()}
