"""Staged appending of small steps: arrays that fit the spec as they are are copied to one place, and appended by one
kernel. Everything else takes the way that validates, waits and reports (``sharpwave.store_writing``)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.log.append_kernels import FIRST_PLACE, FULL, any_set, append_staged, narrow, write_words
from sharpwave.log.step_log import StepLog
from sharpwave.memory.arena import rounded
from sharpwave.native.jit import is_cached
from sharpwave.spec import Field, Spec

Ints = npt.NDArray[np.int64]

MAX_BYTES = 1 << 20
"""Limit of a plan's bytes; larger steps gain nothing."""
MAX_PLANS = 4
"""Numbers of lanes written to at a time whose plans are kept."""
COLD_APPENDS = 1_000
"""Appends in a process that take the other way first, where the kernel would have to be compiled: that takes about a
second, which a newcomer waits for before a first batch, and the other way 16 us an append more."""
ALIGNMENT = 8
FLOAT32, FLOAT64, INT64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)


class _Rows:
    """Staged rows of one field.

    Attributes:
        shape, dtype: of the values that are copied as they are.
        block: where to. ``wide``: where values of float64 go that become float32; ``None``: other fields.
        scalars: types of a single value. ``limits``: of a Python integer.
    """

    __slots__ = ("block", "count", "dtype", "limits", "place", "scalars", "shape", "staged", "wide", "wide_place")

    def __init__(self, staged: npt.NDArray[np.uint8], place: int, wide_place: int, shape: Any, dtype: Any) -> None:
        self.staged, self.place, self.wide_place, self.shape, self.dtype = staged, place, wide_place, shape, dtype
        self.count = int(np.prod(shape, dtype=np.int64))
        self.block = staged[place : place + self.count * dtype.itemsize].view(dtype).reshape(shape)
        self.wide = None
        if wide_place:
            self.wide = staged[wide_place : wide_place + 8 * self.count].view(np.float64).reshape(shape)
        self.scalars = (dtype.type, *((bool,) if dtype.kind == "b" else ())) if shape == () else ()
        self.limits = (0, -1)
        if shape == () and dtype.kind in "iu":
            self.limits = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def take(self, value: Any) -> bool:
        """Copy a value that fits; return whether it did."""
        kind = type(value)
        if kind is np.ndarray:
            if value.shape != self.shape:
                return False
            if value.dtype is self.dtype:
                self.block[...] = value
                return True
            if value.dtype is FLOAT64 and self.wide is not None:
                self.wide[...] = value
                return bool(narrow(self.staged, self.wide_place, self.place, self.count))
            return False
        if kind in self.scalars or (kind is int and self.limits[0] <= value <= self.limits[1]):
            self.block[()] = value
            return True
        if kind is float or kind is np.float64:
            if self.wide is None or self.shape != ():
                return False
            self.wide[()] = value
            return bool(narrow(self.staged, self.wide_place, self.place, 1))
        return False


class _Process:
    """Of all stores of the process: how many appends went without the kernel."""

    appends = 0


class _Plan:
    """Places of the rows of so many steps in staging memory.

    Args:
        count: of the steps; ``None``: one, given without a leading axis.

    Attributes:
        places: for ``append_staged``; ``numbered``: the same, with lanes 0, 1, ...
    """

    def __init__(self, spec: Spec, count: int | None) -> None:
        lead, steps = (() if count is None else (count,)), 1 if count is None else count
        top = 0

        def place(nbytes: int) -> int:
            nonlocal top
            at, top = top, top + rounded(nbytes, ALIGNMENT)
            return at

        def both(field: Field) -> tuple[int, int]:
            at = place(steps * field.row_bytes)
            return at, place(2 * steps * field.row_bytes) if field.np_dtype == FLOAT32 else 0

        fixed = [place(steps), place(steps), place(4 * steps), place(8 * steps)]
        wide_reward, numbered = place(8 * steps), place(8 * steps)
        found = {
            name: [both(field) for _ in range(3 if name in spec.obs_names else 1)]
            for name, field in spec.fields.items()
        }
        self.nbytes = top
        self.staged = staged = np.zeros(top, np.uint8)
        places = [steps, *fixed]
        for name in spec.fields:
            places += [at for at, _ in found[name]] + [0] * (3 - len(found[name]))
        self.places = np.array(places, np.int64)
        self.numbered = self.places.copy()
        self.numbered[FIRST_PLACE - 1] = numbered
        self.numbers = staged[numbered : numbered + 8 * steps].view(np.int64)
        self.numbers[:] = np.arange(steps)

        def rows(name: str, which: int) -> _Rows:
            field = spec.fields[name]
            return _Rows(staged, *found[name][which], (*lead, *field.shape), field.np_dtype)

        self.terminated = _Rows(staged, fixed[0], 0, lead, np.dtype(np.bool_))
        self.truncated = _Rows(staged, fixed[1], 0, lead, np.dtype(np.bool_))
        self.reward = _Rows(staged, fixed[2], wide_reward, lead, FLOAT32)
        self.lanes = staged[fixed[3] : fixed[3] + 8 * steps].view(np.int64)
        self.ids = np.empty(steps, np.int64)
        self.obs, self.final, self.next = ([(name, rows(name, k)) for name in spec.obs_names] for k in range(3))
        self.fields = [(name, rows(name, 0)) for name in spec.step_names]
        self.frames = {name: one.block.reshape(steps, *spec.fields[name].shape) for name, one in self.obs}

    def take(
        self,
        lanes: Any,
        split: Callable[[Any], Mapping[str, Any]],
        obs: Any,
        given: Mapping[str, Any],
        reward: Any,
        terminated: Any,
        truncated: Any,
    ) -> bool:
        """Stage the steps; return whether all values fit."""
        if type(lanes) is int and self.reward.shape == ():
            self.lanes[0] = lanes
        elif lanes is not None:
            if type(lanes) is not np.ndarray or lanes.dtype is not INT64 or lanes.shape != self.lanes.shape:
                return False
            self.lanes[...] = lanes
        return (
            len(given) == len(self.fields)
            and _take(self.obs, split(obs))
            and _take(self.fields, given)
            and self.reward.take(reward)
            and self.terminated.take(terminated)
            and self.truncated.take(truncated)
        )

    def any_ended(self) -> bool:
        """Return whether any of the steps ends its episode."""
        return bool(any_set(self.staged, 0, self.reward.place))


def _take(fields: list[tuple[str, _Rows]], values: Mapping[str, Any]) -> bool:
    """Stage values by name; return whether all fit.  Raises: KeyError."""
    for name, rows in fields:  # all() takes 0.3 us more
        fits = rows.take(values[name])
        if not fits:
            return False
    return True


class Staging:
    """Appender of small steps. The plain lock is held throughout (``Lock.interruptible``).

    Args:
        lock: the store's.
    """

    def __init__(self, log: StepLog, lock: Any) -> None:
        self._log, self._lock = log, lock
        self._plans: dict[int | None, _Plan | None] = {}
        self._words = np.empty(0, np.int64)
        self._memory: Callable[[], Any] = lambda: None
        self._offset: Callable[[], Any] = lambda: None
        self._slots: Any = None
        self._capacity: int | None = -1
        self._columns = [(name in log.spec.obs_names, field.row_bytes) for name, field in log.spec.fields.items()]
        self._cold = not is_cached(append_staged)
        self._busy = log.opened.sparse.__bool__()  # for good: sparse columns have kernels of their own
        log.ledger.enter("staging", lambda: self.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(plan.nbytes for plan in list(self._plans.values()) if plan is not None)

    def compile_now(self) -> None:
        """Stage from the next append on, though the kernel is compiled for it first."""
        self._cold = False

    def _stays_cold(self) -> bool:
        """Count an append, and return whether the kernel is not worth compiling yet."""
        _Process.appends += 1
        self._cold = _Process.appends <= COLD_APPENDS and not append_staged.overloads  # type: ignore[attr-defined]
        return self._cold

    def append(
        self,
        count: int | None,
        lanes: Any,
        obs: Any,
        given: dict[str, Any],
        reward: Any,
        terminated: Any,
        truncated: Any,
        final_obs: Any,
        next_obs: Any,
        ids: Ints | None,
    ) -> int | None:
        """Append ``count`` steps, as ``StoreWriting.extend`` and ``append`` take them.

        Args:
            count: ``None``: one step without a leading axis, to the lane ``lanes``.
            lanes: ``None``: 0, 1, ...
            ids: int64 [count], receives the steps' ids.

        Returns the last id; ``None``: nothing was appended.  Raises: MemoryError, OSError: likewise.

        Cost: 3 us, and 0.1 a lane of 17 floats; sealing apart.
        """
        log = self._log
        if self._busy:
            return None  # a signal handler's steps that come in the midst of others
        if self._cold and self._stays_cold():
            return None
        try:
            self._busy = True
            changes = log.inventory.changes  # first: what a handler changes from here on is seen by the kernel
            plan = self._plans.get(count) or self._plan(count)
            if plan is None:
                return None
            try:
                staged = plan.take(lanes, log.spec.split_obs, obs, given, reward, terminated, truncated)
                has_final = staged and final_obs is not None and plan.any_ended()
                has_next = next_obs is not None
                if has_final:
                    staged = _take(plan.final, log.spec.split_obs(final_obs, "final_obs"))
                if staged and has_next:
                    staged = _take(plan.next, log.spec.split_obs(next_obs, "next_obs"))
            except (KeyError, ValueError, TypeError, OverflowError):
                return None
            if not staged:
                return None
            if has_next:
                log.opened.any_known = True
            places, ids = plan.numbered if lanes is None else plan.places, plan.ids if ids is None else ids
            last = append_staged(self._current(), places, plan.staged, has_final, has_next, changes, ids)
            if last == FULL:
                with self._lock:
                    log.make_room(plan.numbers if lanes is None else plan.lanes, plan.frames)
                    changes = log.inventory.changes
                    last = append_staged(self._current(), places, plan.staged, has_final, has_next, changes, ids)
            return last if last >= 0 else None
        finally:
            self._busy = False

    def _plan(self, count: int | None) -> _Plan | None:
        """Make the plan for so many steps, if they are small."""
        if count in self._plans:
            return self._plans[count]
        spec, ram = self._log.spec, self._log.ledger.ram
        nbytes = 8 * (count or 1) * sum(field.row_bytes for field in spec.fields.values())
        plan = _Plan(spec, count) if nbytes <= (MAX_BYTES if ram is None else min(MAX_BYTES, ram // 256)) else None
        while len(self._plans) >= MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[count] = plan
        return plan

    def _current(self) -> Ints:
        """Return the words for the kernel, new ones where the log has grown since the last call."""
        log = self._log
        index, memory, opened = log.index, log.arena.memory, log.opened
        if (
            self._memory() is memory
            and self._offset() is index.offset
            and self._slots is opened.slots
            and self._capacity == log.admission.capacity
        ):
            return self._words
        arrays: dict[str, npt.NDArray[Any]] = {name: getattr(index, name) for name in ("offset", "rows", "frames")}
        arrays |= {"memory": memory, "begins": index.begins, "generation": index.generation}
        arrays |= {
            name: getattr(opened, name)
            for name in ("slots", "steps", "shares", "successor_known", "staging", "watch", "fresh")
        }
        self._words = write_words(
            arrays | {"counts": log.inventory.counts},
            self._columns,
            stride=log.stride,
            max_rows=log.max_rows(len(opened)),
            max_frames=log.layout.max_frames - 3,
            capacity=log.admission.capacity,
        )
        # Arrays that a store replaces when it grows, which outdates words; weak, so that they can be freed.
        self._memory, self._offset = weakref.ref(memory), weakref.ref(index.offset)
        self._slots, self._capacity = opened.slots, log.admission.capacity
        return self._words
