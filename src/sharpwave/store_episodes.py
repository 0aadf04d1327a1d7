"""Episodes of a store: found in order, decoded when asked for; and the removal of one that was not written whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharpwave.arguments import is_integer
from sharpwave.log import whole_episodes
from sharpwave.log.step_log import StepLog
from sharpwave.native.interrupts import Lock
from sharpwave.persistence.lifetime import Life
from sharpwave.validation import checked_lane
from sharpwave.views.episodes import EpisodeReader, Episodes, Order, checked_lanes, checked_order, find, ordered
from sharpwave.views.registry import Views


class StoreEpisodes:
    """The part of a store that deals with whole episodes."""

    _log: StepLog
    _lock: Lock
    _life: Life
    _views: Views

    def episodes(self, *, order: Order = "oldest", lanes: Any = None) -> Episodes:
        """Find the episodes of which steps are held, those under way included.

        Args:
            order: "return" (the highest first), "length" (the longest first), "newest" (the fewest steps of its lane
                since its last one first) or "oldest".
            lanes: number of a lane, or several; default all.

        Returns:
            a sequence of ``StoredEpisode``, of what was there at the time of the call. Finding them reads flags and
            rewards, which are always in memory; observations and fields are decoded when they are asked for.
        Raises:
            ValueError, TypeError: an invalid argument.

        Cost: some 12 us a segment held, under the store's lock.
        """
        checked = checked_order(order)
        with self._lock:
            self._log.check_open()
            table = find(self._log, checked_lanes(lanes, self._log.lanes))
            table = ordered(table, checked, self._log.opened.steps)
        return Episodes(table, EpisodeReader(self._log, self._lock, self._life))

    def export(
        self,
        target: str,
        *,
        order: Order = "oldest",
        lanes: Any = None,
        progress: bool | Callable[[int, int], None] | None = None,
    ) -> int:
        """Write the whole episodes as a data set; those without their first or last step are left out.

        Args:
            target: format and place: ``"minari:NAME"`` (a new local data set), ``"npz:FILE"`` and ``"hdf5:FILE"`` (the
                D4RL layout, with ``next_observations``), ``"parquet:FILE"`` (a row a step, and one for the final
                observation). Nothing that exists is overwritten, and nothing has the name before it is complete.
            order, lanes: as for ``episodes``.
            progress: show it; default: in a terminal, if rich is installed. A function receives steps done and in
                total.

        Returns:
            how many episodes were written.
        Raises:
            FileExistsError: there is something of that name.
            ValueError: an unknown format, or there are no whole episodes.
            KeyError: an episode was evicted meanwhile.
            ModuleNotFoundError, OSError: naming what is missing or fails. Then nothing was written.

        Cost: an episode is in memory at a time.
        """
        from sharpwave.data.exporting import export  # formats of data sets, which few programs write

        return export(self, target, order, lanes, progress)

    def drop_steps(self, lane: int, first: int, end: int) -> int:
        """Evict the lane's steps ``first`` to ``end - 1``: an episode that is not whole.

        They lie in segments of their own, as those of ``add_episode(whole=True)`` do. If the lane's last step is among
        them, its next begins an episode; its number goes on counting.

        Returns:
            how many of the steps were held.
        Raises:
            ValueError: an invalid argument, or other steps share a segment with these; nothing was changed.
            OSError: the disk is full or fails; the steps may be back when the store is opened after a crash.
        """
        number = int(checked_lane("drop_steps", lane)[0])
        if not all(is_integer(one) for one in (first, end)):
            raise ValueError(
                f"drop_steps: first={first!r}, end={end!r}, expected integers: numbers of the lane's steps"
            )
        with self._lock:
            self._log.check_open()
            if number >= self._log.lanes:
                raise ValueError(f"drop_steps: lane {lane}, expected one of the {self._log.lanes} lanes written to")
            try:
                return whole_episodes.drop(self._log, number, int(first), int(end))
            finally:
                self._views.written()
