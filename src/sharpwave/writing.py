"""Writing: changes of a store's log, made under its lock once rate limiters admit them; then views are notified.

Small steps that wait for nothing take a fast path through the core; all others are validated before, and reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes, Ints
from sharpwave.errors import StoreInUseError
from sharpwave.log.open_segments import REFERENCE, Rows
from sharpwave.log.remote_segments import settle_lane, take_in
from sharpwave.log.step_blocks import StepBlock
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.native.interrupts import InterruptLock
from sharpwave.sampling.limiters import Gate
from sharpwave.views.ids import Ids, Tag, tagged
from sharpwave.views.store_views import Views

W = TypeVar("W")

MAX_BLOCK_S = 60.0
"""Time for which an append retries a failing disk with on_full="block"."""
RETRY_S = 0.05
OTHERWISE = core.OTHERWISE
GONE = "append: the connection of the segment's writer has ended"


class SmallSteps(core.Appender):
    """Appender of small steps.

    One call of the core checks, writes and counts steps whose arrays fit the spec unchanged. The plain lock is held
    throughout (``Lock.interruptible``).

    ``append``, ``extend`` and ``record`` are one call of the core each; ``again`` removes the hindrance of one.

    Args:
        lock: the store's. ``ids_type``, ``tag``: of arrays of ids.

    Attributes:
        serves: False if every step takes the other path: with sparse or ragged fields, whose columns may be full,
            with shared values, and if appends wait for a failing disk.
    """

    def __init__(self, log: StepLog, lock: Any, ids_type: type, tag: object) -> None:
        spec = log.spec
        rows = [
            np.empty((), REFERENCE) if field.ragged else np.empty(field.shape, field.np_dtype)
            for field in spec.columns.values()
        ]
        split = None if spec.array_obs else spec.split_obs
        super().__init__(log.opened.fields, log.boundaries, rows, split, ids_type, tag)
        self._log, self._lock = log, lock
        apart = log.opened.sparse or spec.ragged_names or spec.shared_names
        self.serves = not apart and log.admission.on_full != "block"

    def again(self, hindrance: int, call: Callable[..., Any], lanes: Any, obs: Any, *others: Any) -> Any:
        """Remove the hindrance of a ``call`` of ``append`` or ``extend``, and call it again; return its result.

        Args:
            lanes: for ``append`` one, for ``extend`` int64 [n] or ``None`` for 0, 1, ... ``others``: arguments from
                ``given`` on.

        Raises: MemoryError, OSError: nothing was appended.
        """
        log = self._log
        changes, found = log.inventory.changes, hindrance  # first: so a signal handler's later change is noticed
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
        """Give the core the log's arrays, which are valid until the log has had more ``changes``."""
        log = self._log
        index, opened, capacity = log.index, log.opened, log.admission.capacity
        opened.any_known = True  # a step may have its successor, which is not checked here
        self.bind(
            log.arena.memory, index.arrays, opened.arrays, log.inventory.counts, log.stride,
            log.max_rows(len(opened)), log.layout.max_frames - 3, -1 if capacity is None else capacity, changes,
            *log.sealing.in_core(), log.inventory.oldest, opened.first_lane,
        )  # fmt: skip


class Writing:
    """Writing half of a store.

    Args:
        tag: of the ids of steps.

    Attributes:
        appending: appends small steps by one call of the core each, if ``takes_small_steps``.
        fed: lanes whose last steps arrived by ``segment``.
        lent: first lane, and number of lanes, of each writer elsewhere, by its name.
    """

    def __init__(self, log: StepLog, lock: InterruptLock, gate: Gate, views: Views, tag: Tag) -> None:
        self._log, self._lock, self._gate, self._views, self._tag = log, lock, gate, views, tag
        self.appending = SmallSteps(log, lock, Ids, tag)
        self.fed = set[int]()
        self.lent: dict[str, tuple[int, int]] = {}

    def takes_small_steps(self) -> bool:
        """Return whether an append now has nothing to wait for, and nobody to tell."""
        log = self._log
        return (
            self.appending.serves
            and self._views.passive
            and not (
                log.closed
                or log.frozen
                or self.fed
                or self.lent
                or log.copying is not None
                or log.opened.annotations.heavy
                or self._gate.waiting
                or (log.disk is not None and log.disk.forked)
            )
        )

    def record(
        self, lane: int, before: Any, after: Any, obs: Any, given: dict[str, Any], reward: Any, terminated: Any,
        truncated: Any,
    ) -> int:  # fmt: skip
        """Append a step as ``SmallSteps.record`` does; return its id, or less than 0 where ``append`` must do it."""
        with self._lock.interruptible:
            if not self.takes_small_steps():
                return OTHERWISE
            return self.appending.record(lane, before, after, obs, given, reward, terminated, truncated)

    def rows(
        self,
        lanes: Ints,
        rows: dict[str, npt.NDArray[Any]],
        flags: Bytes,
        finals: dict[str, npt.NDArray[Any]] | None,
        nexts: dict[str, npt.NDArray[Any]] | None,
        timeout: float | None,
    ) -> Ids:
        """Append a validated step to each of ``lanes`` [n]; return ids [n]."""

        def write() -> None:
            self._settle_all(lanes)
            if len(lanes):
                self._log.open_lanes(core.highest(lanes) + 1, lanes)
                self._log.write(lanes, flags, rows, finals, nexts)
                self._log.write_last_ids(lanes, ids)

        ids = np.empty(len(lanes), np.int64)  # before anything is written
        self._change(write, len(lanes), timeout)
        return tagged(ids, self._tag)

    def block(self, call: str, block: StepBlock, check: Callable[[], None], timeout: float | None) -> Ids:
        """Append a block part by part; return ids [T, N]. ``check``: called first, under the lock; may raise."""

        def write() -> None:
            self._settle_all(block.lanes)
            if not block.done.any():
                check()
            block.write(self._log, most)

        most = 1 if self._views.limited else self._log.stride
        try:
            while not block.over:
                self._change(write, block.part(most), timeout)
        except BaseException as error:
            if block.done.any() and not block.over:
                with self._lock:
                    if not self._log.closed:
                        block.end_unfinished(self._log)
                        self._views.written()
                if not block.whole:
                    what = "a truncated episode" if len(block.lanes) == 1 else "episodes that are truncated there"
                    error.add_note(f"{call}: {block.done.sum()} of {block.ids.size} steps were appended, as {what}")
            raise
        return tagged(block.ids, self._tag)

    def segment(
        self,
        packed: bytes,
        dictionaries: Mapping[int, bytes],
        steps: int,
        errors: npt.NDArray[np.float32] | None,
        noticed: tuple[int, ...] | None,
        timeout: float | None,
        own_lane: int | None = None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Append a segment of ``steps`` steps that another writer encoded.

        Args:
            own_lane: its lane, if this process appends it; ``None``: a writer elsewhere does.
            is_gone: returns whether that writer is gone, so that nothing is to wait for a limiter any longer.

        Raises: ConnectionError: it is.
        """

        def write() -> None:
            if own_lane is not None:  # under the lock, as are leases
                self.check_own("add_segment", np.array([own_lane]))
            slot, header = take_in(self._log, packed, dictionaries)
            self.fed.add(header.lane)
            if noticed is not None:
                self._log.boundaries.add(noticed)
            if errors is not None and slot >= 0:
                self._views.expect(slot, errors)

        self._change(write, steps, timeout, is_gone)

    def end_episode(self, lane: int, final: dict[str, npt.NDArray[Any]] | None) -> bool:
        """End a lane's unfinished episode, by its final observation or like ``break_episode``, with the lock held.

        Returns whether it had one. With a final observation, an episode that arrives in segments is broken off all the
        same.
        """
        if self.settle(lane):
            return True
        if self._log.opened.ended(lane):
            return False
        self._log.end_episode(lane, final)
        self._views.written()
        return True

    def break_off(self, lane: int) -> None:
        """Act as ``break_episode``, when the lane's next step's observation differs from the last step's next one."""
        with self._lock:
            self._log.check_open()
            if lane < self._log.lanes and not self.settle(lane) and not self._log.opened.ended(lane):
                self._log.break_off(lane)
                self._views.written()

    def settle(self, lane: int) -> bool:
        """Break off the episode of a lane whose steps arrive in segments; return whether it had an unfinished one."""
        if lane not in self.fed:
            return False
        self.fed.discard(lane)
        ended = settle_lane(self._log, lane)
        if ended:
            self._views.written()
        return ended

    def check_own(self, call: str, lanes: Ints) -> None:
        """Refuse lanes of writers elsewhere.  Raises: ValueError."""
        for name, (first, count) in list(self.lent.items()):
            if len(taken := lanes[(lanes >= first) & (lanes < first + count)]):
                raise ValueError(
                    f"{call}: lane {taken[0]} is that of writer {name!r:.50} of another process; give StoreServer "
                    "own_lanes=, the number of lanes that this process writes to"
                )

    def _settle_all(self, lanes: Ints) -> None:
        self.check_own("extend", lanes)
        if self.fed:
            for lane in self.fed.intersection(lanes.tolist()):
                self.settle(lane)

    def _change(
        self,
        write: Callable[[], None],
        steps: int,
        timeout: float | None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Append ``steps`` steps by ``write`` once rate limiters admit them, then notify views."""
        deadline: float | None = None
        while True:
            with self._lock:
                self._gate.wait("append", lambda: self._waits(steps, is_gone), timeout)
                try:
                    write()
                    self._views.written()
                    return
                except OSError as error:  # and nothing was appended
                    if self._log.admission.on_full != "block" or isinstance(error, StoreInUseError):
                        raise
                    now = time.monotonic()
                    deadline = now + MAX_BLOCK_S if deadline is None else deadline
                    if now > deadline:
                        raise OSError(error.errno, f"{error.strerror}, after {MAX_BLOCK_S:g} s of retries") from error
            time.sleep(RETRY_S)  # without the lock, so that other threads continue
            if is_gone():
                raise ConnectionError(GONE)

    def _waits(self, steps: int, is_gone: Callable[[], bool]) -> str | None:
        """Return the reason why ``steps`` steps must wait; ``None``: they need not. Raises if none may be appended."""
        self._log.check_writable("append")
        if not steps:
            return None
        reason = self._views.append_waits(steps)
        if reason is None and self._log.copying is not None:
            reason = self._log.copying.waits()
        if reason is not None and is_gone():
            raise ConnectionError(GONE)
        return reason
