"""Appending to a store: validate steps, wait for rate limiters, write under the lock, notify views."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.errors import StoreInUseError
from sharpwave.format import segment
from sharpwave.log.appending import Appending
from sharpwave.log.boundaries import checked_counts
from sharpwave.log.remote_segments import settle_lane, take_in
from sharpwave.log.step_blocks import StepBlock, block_of
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.native.interrupts import Lock
from sharpwave.sampling.limiters import Gate
from sharpwave.spec import Spec
from sharpwave.validation import (
    Missing,
    check_missing,
    checked_block,
    checked_episode,
    checked_final,
    checked_lane,
    checked_places,
    checked_rows,
    checked_steps,
)
from sharpwave.views.ids import Ids, Tag, tagged
from sharpwave.views.registry import Views
from sharpwave.views.replay import checked_errors
from sharpwave.views.view import STEPS

Ints = npt.NDArray[np.int64]
W = TypeVar("W")

MAX_BLOCK_S = 60.0
"""Time for which an append retries a failing disk with on_full="block"."""
RETRY_S = 0.05
OTHERWISE = core.OTHERWISE


class StoreWriting:
    """Writing half of a store: appends steps and annotations.

    Attributes:
        spec: schema of a step.
    """

    spec: Spec
    _log: StepLog
    _views: Views
    _lock: Lock
    _gate: Gate
    _fed: set[int]  # lanes whose last steps came with add_segment
    _appending: Appending
    _step_tag: Tag

    def extend(
        self,
        *,
        obs: Any,
        action: Any,
        reward: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        final_obs: Any = None,
        next_obs: Any = None,
        lanes: npt.ArrayLike | None = None,
        timeout: float | None = None,
        **extra: npt.ArrayLike,
    ) -> Ids:
        """Append one step to each of several lanes, or with a leading axis of time several. Everything is copied.

        Args:
            obs: [rows, *shape] (or dicts and tuples of those, as the spec has them): the newest frame of the
                observation the action was chosen for. All arguments but ``lanes`` may be [T, rows, *shape] instead, as
                a rollout is: then T steps a lane.
            action: [rows, *shape], or dicts and tuples of those.
            reward, terminated, truncated, extra: [rows, *shape]: the action's outcome, and further fields. Floats are
                rounded to the field's dtype (a reward's is float32); integers must be exact in it; no array is masked.
            final_obs: [rows, *shape], the true observation after the step; read in rows where an episode ended, and
                required where it was truncated. Where it terminated ``obs`` may stand in: the discount is 0.
            next_obs: [rows, *shape], the newest frame after the step; used as ``final_obs`` where that is absent. If a
                lane's next ``obs`` has another value anywhere, the episode was broken off: the earlier step becomes
                truncated, with this as its final observation, and the later one begins an episode
                (``stats()["broken_episodes"]``). NaN equals itself, -0.0 equals 0.0; values that were rounded differ,
                which is warned of. Without it, consecutive steps are assumed to follow each other.
            lanes: int [rows], all different. Default 0, 1, ...; new lanes are created.
            timeout: seconds to wait for the views' rate limiters; default 60.

        Returns:
            int64 [rows] or [T, rows], the steps' ids, as ``batch.ids`` has them.
        Raises:
            ValueError, TypeError, KeyError: an argument does not fit the spec; nothing was changed.
            LimiterTimeoutError: a rate limiter did not admit the steps in time; nothing was changed.
            MemoryError: ``ram`` is too small for so many lanes.
            With an axis of time, the latter two and OSError leave the steps appended by then, whose episodes are
            truncated there; a note at the error says how many.

        Cost: 2 to 3 us a row of 84x84 pixels, encoding included (benchmarks/store.py); 4 us for 8 rows of 17 floats,
        sealing included (benchmarks/vectors.py), and more where arrays are of dtypes that may not fit.
        """
        if timeout is None:
            extra["action"] = action
            with self._lock.interruptible:
                if self._takes_small_steps():
                    appending = self._appending
                    ids: Ids | int = appending.extend(
                        lanes, obs, extra, reward, terminated, truncated, final_obs, next_obs
                    )
                    if isinstance(ids, int) and ids != OTHERWISE:
                        others = extra, reward, terminated, truncated, final_obs, next_obs
                        ids = appending.again(ids, appending.extend, lanes, obs, *others)
                    if not isinstance(ids, int):
                        return ids
            del extra["action"]
        if np.ndim(reward) == 2:
            whole = checked_block(
                self.spec, lanes, obs, action, reward, terminated, truncated, final_obs, next_obs, extra
            )
            block = block_of(*whole, self.spec.obs_names)
            return self._write_block("extend", block, lambda: None, timeout)
        numbers, steps = checked_rows(
            self.spec, lanes, obs, action, reward, terminated, truncated, final_obs, next_obs, extra
        )
        return tagged(self._write(numbers, *steps, timeout), self._step_tag)

    def append(
        self,
        *,
        lane: int = 0,
        obs: Any,
        action: Any,
        reward: npt.ArrayLike,
        terminated: bool,
        truncated: bool,
        final_obs: Any = None,
        next_obs: Any = None,
        timeout: float | None = None,
        **extra: npt.ArrayLike,
    ) -> int:
        """Append one step to one lane, and return its id: as ``extend``, without the leading axis."""
        if timeout is None and type(lane) is int:
            extra["action"] = action
            with self._lock.interruptible:
                if self._takes_small_steps():
                    appending = self._appending
                    id_ = appending.append(lane, obs, extra, reward, terminated, truncated, final_obs, next_obs)
                    if id_ < OTHERWISE:
                        others = extra, reward, terminated, truncated, final_obs, next_obs
                        id_ = appending.again(id_, appending.append, lane, obs, *others)
                    if id_ >= 0:
                        return id_
            del extra["action"]
        number = checked_lane("append", lane)
        steps = checked_steps(self.spec, None, obs, action, reward, terminated, truncated, final_obs, next_obs, extra)
        return int(self._write(number, *steps, timeout)[0])

    def add_episode(
        self,
        *,
        lane: int = 0,
        obs: Any,
        action: Any,
        reward: npt.ArrayLike,
        terminated: bool,
        truncated: bool | None = None,
        whole: bool = False,
        timeout: float | None = None,
        **extra: npt.ArrayLike,
    ) -> Ids:
        """Append a whole episode of T steps to one lane, which has no unfinished one.

        Args:
            obs: [T + 1, *shape], or dicts and tuples of those: the newest frame of each observation, the final one
                last.
            action, extra: [T, *shape]. ``reward``: [T].
            terminated: whether the last step terminated the episode; else it was truncated there.
            truncated: whether it was truncated there, in case both hold; default: ``not terminated``.
            whole: leave nothing of it after an error. It begins in a segment of its own if it does not fit into the
                lane's open one, so that ``drop_steps`` can remove what a killed process left of it.
            timeout: as for ``extend``, for each of the parts in which it is appended.

        Returns:
            int64 [T], the steps' ids.
        Raises:
            ValueError, TypeError, KeyError: an argument does not fit the spec, or the lane's episode is unfinished;
                nothing was changed.
            LimiterTimeoutError, MemoryError, OSError: as for ``extend``. Unless ``whole``, what was appended by then
                remains, as an episode that was truncated there; a note at the error says how much.

        Cost: a copy of the arrays, and encoding: a tenth of ``append``'s time for vectors (benchmarks/episodes.py).
        """
        lanes = checked_lane("add_episode", lane)
        rows, flags, final = checked_episode(self.spec, obs, action, reward, terminated, truncated, extra)
        finals = {name: np.broadcast_to(values, (len(flags), *values.shape)) for name, values in final.items()}
        over_time = {name: values[:, None] for name, values in rows.items()}
        never = np.zeros((len(flags), 1), np.bool_)
        block = StepBlock(lanes, flags[:, None], over_time, finals, None, never, one_episode=True, whole=whole)

        def check() -> None:
            number = int(lanes[0])
            if number < self._log.lanes and not self._log.opened.ended(number):
                raise ValueError(
                    f"add_episode: lane {number} has an unfinished episode; end it with break_episode({number}), or "
                    "give another lane="
                )

        self._write_block("add_episode", block, check, timeout)
        return tagged(block.ids[:, 0], self._step_tag)

    def ids(self, lanes: npt.ArrayLike, steps: npt.ArrayLike, *, missing: Missing = "raise") -> Ids:
        """Find the ids of steps by where they are in the log, as ``batch.lane`` and ``batch.step`` say.

        Args:
            lanes, steps: integers [n], or one for all: the lane, and the step's number in it, counted from 0 over all
                its episodes (``lane_steps`` is the next one's).
            missing: "raise", or "mask": the id of a step that is not held is -1.

        Returns int64 [n]. Cost: sorting the segments held, and a search among them for each.

        Raises:
            KeyError: a step that was evicted, or not appended yet.
            ValueError, TypeError: an invalid argument.
        """
        check_missing("ids", missing)
        where = checked_places(lanes, steps)
        with self._lock:
            self._log.check_open()
            found = self._log.index.find(*where)
            tag = Tag(self._log.tag, STEPS)
        gone = np.flatnonzero(found < 0)
        if gone.size and missing == "raise":
            lane, step = where[0][gone[0]], where[1][gone[0]]
            raise KeyError(f"ids: step {step} of lane {lane} was evicted, or not appended yet; {gone.size} are missing")
        return tagged(found, tag)

    def add_segment(
        self,
        packed: bytes,
        dictionaries: Mapping[int, bytes],
        *,
        td_error: npt.ArrayLike | None = None,
        noticed: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Append a segment of a ``SegmentWriter``, in this process or another, without decoding it.

        The segment contains its lane and the number of its first step. A lane's segments must arrive in order; if some
        are missing, the episode is truncated there. Nothing else may append to the lane meanwhile.

        Args:
            packed: the segment, of at most ``segment_steps`` steps. It is validated before anything is changed.
            dictionaries: the dictionaries that it refers to, by key; others are ignored.
            td_error: [steps], the steps' initial priorities, applied once they can be sampled; default: the largest
                priority so far. A checkpoint taken before that does not contain them.
            noticed: the segment's, as the writer has it: it is counted in ``stats()``.
            timeout: as for ``extend``.

        Raises:
            DamagedError: the segment is damaged, of another spec, or not after its lane's last step; nothing was
                changed.
            ValueError: the lane has steps appended in another way, or an argument is invalid.
            LimiterTimeoutError, MemoryError, OSError: as for ``extend``.
        """
        steps = segment.parse(packed, self.spec).steps
        errors = None if td_error is None else checked_errors(td_error, (steps,), "add_segment").astype(np.float32)

        counts = None if noticed is None else checked_counts(noticed)

        def write() -> None:
            slot, header = take_in(self._log, packed, dictionaries)
            self._fed.add(header.lane)
            if counts is not None:
                self._log.boundaries.add(counts)
            if errors is not None and slot >= 0:
                self._views.expect(slot, errors)

        self._change(write, steps, timeout)

    def end_episode(self, lane: int, final_obs: Any) -> None:
        """Truncate the lane's episode after its last step.

        Args:
            final_obs: the observation after that step (one, without a leading axis).

        Raises:
            ValueError: the lane has no unfinished episode.
        """
        final = checked_final(self.spec, final_obs)
        with self._lock:
            self._log.check_open()
            if not is_integer(lane) or not 0 <= lane < self._log.lanes:
                raise ValueError(f"end_episode: lane {lane!r}, expected one of the {self._log.lanes} lanes written to")
            if self._settle(int(lane)):
                return
            if self._log.opened.ended(int(lane)):
                raise ValueError(f"end_episode: the last episode of lane {lane} has ended already")
            self._log.end_episode(int(lane), final)
            self._views.written()

    def break_episode(self, lane: int) -> bool:
        """Break off the lane's unfinished episode, if there is one; the next step begins another.

        The last step becomes truncated, with its ``next_obs`` as the final observation. If it was appended without
        one, it cannot be learned from and is dropped: its observation becomes the previous step's final one. Its id is
        stale, and the lane's next step begins another segment.

        Returns:
            whether the lane had an unfinished episode; one without steps has none.
        Raises:
            ValueError: ``lane`` is not a lane's number.
        """
        with self._lock.interruptible:  # nothing is changed where it has none, as at most resets: 2 us less
            self._log.check_open()
            if not is_integer(lane) or lane < 0:
                raise ValueError(f"break_episode: lane {lane!r}, expected an integer of at least 0")
            if lane >= self._log.lanes or (lane not in self._fed and self._log.opened.ended(lane)):
                return False
        with self._lock:
            self._log.check_open()
            if self._settle(lane):
                return True
            if self._log.opened.ended(lane):
                return False
            self._log.end_episode(lane, None)
            self._views.written()
            return True

    def _break_off(self, lane: int) -> None:
        """Do as ``break_episode``, where the lane's next step observes something else than the last one led to."""
        with self._lock:
            self._log.check_open()
            if lane < self._log.lanes and not self._settle(lane) and not self._log.opened.ended(lane):
                self._log.break_off(lane)
                self._views.written()

    def _write(
        self,
        lanes: npt.NDArray[np.int64],
        rows: dict[str, npt.NDArray[Any]],
        flags: npt.NDArray[np.uint8],
        finals: dict[str, npt.NDArray[Any]] | None,
        nexts: dict[str, npt.NDArray[Any]] | None,
        timeout: float | None,
    ) -> Ints:
        def write() -> Ints:
            if self._fed:
                for lane in self._fed.intersection(lanes.tolist()):
                    self._settle(lane)
            if len(lanes):
                self._log.open_lanes(core.highest(lanes) + 1, lanes)
                self._log.write(lanes, flags, rows, finals, nexts)
                self._log.write_last_ids(lanes, ids)
            return ids

        ids = np.empty(len(lanes), np.int64)  # before anything is written
        return self._change(write, len(lanes), timeout)

    def _write_block(self, call: str, block: StepBlock, check: Callable[[], None], timeout: float | None) -> Ids:
        """Append a block part by part; return ids [T, N]. ``check``: called first, under the lock; may raise."""

        def write() -> None:
            if self._fed:
                for lane in self._fed.intersection(block.lanes.tolist()):
                    self._settle(lane)
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
        return tagged(block.ids, self._step_tag)

    def _takes_small_steps(self) -> bool:
        """Return whether an append now has nothing to wait for, and nobody to tell."""
        log = self._log
        return (
            self._appending.serves
            and self._views.passive
            and not (
                log.closed
                or self._fed
                or log.copying is not None
                or log.opened.annotations.heavy
                or self._gate.waiting
                or (log.disk is not None and log.disk.forked)
            )
        )

    def _record(
        self, lane: int, before: Any, after: Any, obs: Any, given: dict[str, Any], reward: Any, terminated: Any,
        truncated: Any,
    ) -> int:  # fmt: skip
        """Append a step as ``Appending.record`` does; return its id, or less than 0 where ``append`` must do it."""
        with self._lock.interruptible:
            if not self._takes_small_steps():
                return OTHERWISE
            return self._appending.record(lane, before, after, obs, given, reward, terminated, truncated)

    def _settle(self, lane: int) -> bool:
        """Break off the episode of a lane whose steps arrive in segments; return whether it had an unfinished one."""
        if lane not in self._fed:
            return False
        self._fed.discard(lane)
        ended = settle_lane(self._log, lane)
        if ended:
            self._views.written()
        return ended

    def _change(self, write: Callable[[], W], steps: int, timeout: float | None) -> W:
        """Append ``steps`` steps by ``write`` once rate limiters admit them, then notify views; return what it does."""
        deadline: float | None = None
        while True:
            with self._lock:
                self._gate.wait("append", lambda: self._append_waits(steps), timeout)
                try:
                    written = write()
                    self._views.written()
                    return written
                except OSError as error:  # and nothing was appended
                    if self._log.admission.on_full != "block" or isinstance(error, StoreInUseError):
                        raise
                    now = time.monotonic()
                    deadline = now + MAX_BLOCK_S if deadline is None else deadline
                    if now > deadline:
                        raise OSError(error.errno, f"{error.strerror}, after {MAX_BLOCK_S:g} s of retries") from error
            time.sleep(RETRY_S)  # without the lock, so that other threads continue

    def _append_waits(self, steps: int) -> str | None:
        """Return what ``steps`` steps must wait for; ``None``: nothing. Raises if the store is closed."""
        self._log.check_open()
        if not steps:
            return None
        reason = self._views.append_waits(steps)
        return self._log.copying.waits() if reason is None and self._log.copying is not None else reason
