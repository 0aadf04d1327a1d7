"""Short way of appending: steps whose arrays fit the spec as they are are checked, written and counted by one call of
the core. Everything else takes the way that validates, waits and reports (``sharpwave.writing``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sharpwave.log.open_segments import Rows
from sharpwave.log.step_log import StepLog
from sharpwave.native import core


class Appending(core.Appender):
    """Appender of steps. The plain lock is held throughout (``Lock.interruptible``).

    Its ``append`` and ``extend`` are one call of the core each; ``again`` removes what hindered one.

    Args:
        lock: the store's. ``ids_type``, ``tag``: of arrays of ids.

    Attributes:
        serves: False where every step takes the other way: with sparse fields, whose columns may be full, and where a
            failing disk is waited for.
    """

    def __init__(self, log: StepLog, lock: Any, ids_type: type, tag: object) -> None:
        spec = log.spec
        rows = [np.empty(field.shape, field.np_dtype) for field in spec.fields.values()]
        split = None if spec.array_obs else spec.split_obs
        super().__init__(log.opened.fields, log.boundaries, rows, split, ids_type, tag)
        self._log, self._lock = log, lock
        self.serves = not log.opened.sparse and log.admission.on_full != "block"

    def again(self, hindrance: int, call: Callable[..., Any], lanes: Any, obs: Any, *others: Any) -> Any:
        """Remove what hindered a ``call`` of ``append`` or ``extend``, and call it again; return what it does.

        Args:
            lanes: of ``append`` one, of ``extend`` int64 [n] or ``None`` for 0, 1, ... ``others``: from ``given`` on.

        Raises: MemoryError, OSError: nothing was appended.
        """
        log = self._log
        changes, found = log.inventory.changes, hindrance  # first: what a handler changes from here on is seen
        if found == core.OUTDATED and not log.closed:
            self._bind(changes)
            found = call(lanes, obs, *others)
        if type(found) is int and found == core.FULL:
            with self._lock:
                self._make_room(lanes, obs, others[1])
                self._bind(log.inventory.changes)
                found = call(lanes, obs, *others)
        return found

    def _make_room(self, lanes: Any, obs: Any, rewards: Any) -> None:
        """Seal and evict for steps whose values fit."""
        spec, count = self._log.spec, np.size(rewards)

        def observed() -> Rows:
            given = {spec.obs_names[0]: obs} if spec.array_obs else spec.split_obs(obs)
            return {
                name: np.ascontiguousarray(given[name], field.np_dtype).reshape(count, *field.shape)
                for name, field in ((name, spec.fields[name]) for name in spec.obs_names)
            }

        numbers = np.arange(count) if lanes is None else np.array(lanes, np.int64, ndmin=1)
        # Unless another thread has written to the caller's array since the core checked it, which does so again.
        ordered = bool(np.all(numbers[1:] > numbers[:-1]))
        if not len(numbers) or (ordered and numbers[0] >= 0 and numbers[-1] < len(self._log.opened)):
            self._log.make_room(numbers, observed)

    def _bind(self, changes: int) -> None:
        """Give the core the log's arrays, which are what they are until it has had more ``changes``."""
        log, turnover = self._log, self._log.turnover
        index, opened, capacity = log.index, log.opened, log.admission.capacity
        pending = log.behind is not None and log.behind.pending
        opened.any_known = True  # a step may come with its successor, unseen here
        self.bind(
            log.arena.memory, index.arrays, opened.arrays, log.inventory.counts, log.stride,
            log.max_rows(len(opened)), log.layout.max_frames - 3, -1 if capacity is None else capacity, changes,
            turnover.core if turnover is not None and turnover.seals and not pending else None,
            None if turnover is None else turnover.followers, log.inventory.oldest, opened.first_lane,
        )  # fmt: skip
