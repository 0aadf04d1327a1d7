"""Store that takes whole transitions, with observations before and after each step, as other frameworks' buffers do.

Repeated data is stored once: the store gets each step's newest frame, and returns whole observations.
"""

from __future__ import annotations

import atexit
import gc
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Array, Bools, Ints
from sharpwave.errors import StoreInUseError
from sharpwave.integrations.frame_stacks import Stack, finders
from sharpwave.integrations.frame_writer import ONE, FrameWriter, LaneEnds, Named, stacks_in
from sharpwave.integrations.resets import Resets
from sharpwave.spec import Field, Spec
from sharpwave.store import Store

Obs = Any
"""An array, or a dict of arrays."""

_Rows = tuple[Named, Named, Array, Array, Bools, Bools, Ints]
MAX_PENDING = 512
"""Limit of transitions kept unstored until it is known whether observations are stacks of frames."""
LIMITS = ("capacity", "ram", "disk_limit", "on_full", "seed", "strict")
"""Settings of a store that may change when it is opened again."""
CHECKPOINT = "transitions.sharpwave"
MAX_GAPS = 1_000_000
"""Number of calls of ``add`` whose skipped rows are remembered, if the store has no capacity."""


class WholeTransitions:
    """Store that is made or opened at first need, once it is known whether observations are stacks of frames.

    Args:
        shapes: shape and dtype of an observation, as a ``Field`` takes them; for a dict observation, of each part by
            name. Texts and rows of any length are given as arrays of objects [rows].
        action: field of the actions.
        lanes: number of environments; each call of ``add`` has a transition of every one, unless it names lanes.
        frame_stack: as for ``StackFinder``.
        ends_are_true: the observation after a terminating step is the step's own successor.
        whole: keys of a dict observation that are stored whole, whatever ``frame_stack`` says.
        max_length: as for a ``Field``, of all rows of any length, up to what a field holds.
        settings: arguments of the store. If ``disk`` holds a store of the same fields, it is opened.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[Any, ...], Any]] | tuple[tuple[Any, ...], Any],
        action: Field,
        lanes: int,
        frame_stack: int | str | None,
        *,
        ends_are_true: bool = True,
        whole: Collection[str] = (),
        max_length: int | None = None,
        **settings: Any,
    ) -> None:
        self._single = ONE if isinstance(shapes, tuple) else None
        self._finders = finders({ONE: shapes} if isinstance(shapes, tuple) else shapes, frame_stack, whole)
        for finder in self._finders.values():
            finder.whole = finder.whole.limited(max_length)
        self._guessed, self._ends_are_true = frame_stack == "auto", ends_are_true
        self._action, self.lanes, self._settings = action, lanes, settings
        self._added = 0
        self._writer: FrameWriter | None = None
        self._pending: list[tuple[Any, ...]] = []
        self._pending_ends = LaneEnds(lanes)
        self.resets, self._passed_over = Resets(lanes), np.zeros(lanes, np.bool_)
        self._gaps: deque[tuple[int, int]] = deque()  # call of ``add`` and lane of skipped rows, newest last
        if settings.get("disk") is None:
            self._new_store({name: finder.whole for name, finder in self._finders.items()}).close()
        _ALL.add(self)

    @property
    def added(self) -> int:
        """Number of calls of ``add`` so far."""
        self._open_existing()
        return self._added

    @property
    def store(self) -> Store:
        """The store. If stacks of frames are not detected yet, observations are stored whole."""
        return self._opened.store

    @property
    def stored_last(self) -> Bools:
        """Lanes whose last transition was stored: bool [lanes]."""
        return ~self._passed_over if self._writer is None else self._writer.stored_last & ~self._passed_over

    @property
    def held(self) -> int:
        """Number of stored transitions."""
        self._open_existing()
        return len(self._writer.store) if self._writer else sum(len(rows[-1]) for rows in self._pending)

    @property
    def _opened(self) -> FrameWriter:
        self._open_existing()
        if self._writer is None:
            stacks = {name: finder.found or finder.whole for name, finder in self._finders.items()}
            self._writer = self._new_writer(self._new_store(stacks), stacks)
            pending, self._pending = self._pending, []
            for rows in pending:
                self._writer.write(*rows)
        return self._writer

    def _new_store(self, stacks: Mapping[str, Stack]) -> Store:
        fields = {name: stack.field() for name, stack in stacks.items()}
        obs = fields if self._single is None else fields[ONE]
        store = Store(Spec(obs=obs, action=self._action), **self._settings)
        store._log.boundaries.counted["dropped_resets"] = self.resets.dropped
        return store

    def _new_writer(self, store: Store, stacks: Mapping[str, Stack]) -> FrameWriter:
        return FrameWriter(store, stacks, self.lanes, self._single, self._ends_are_true, self._remade)

    def _remade(self, name: str, stacks: Mapping[str, Stack]) -> Store:
        """Make another store, after an observation turned out not to fit its guessed stack."""
        if not self._guessed or self._settings.get("disk") is not None:
            self._refuse(name)
        return self._new_store(stacks)

    def _refuse(self, name: str) -> NoReturn:
        frames = self._writer.stacks[name].frames if self._writer else "several"
        raise ValueError(
            f"add: {name or 'obs'} is not a stack of {frames} frames whose first stack in an episode repeats the first "
            "frame or begins with zeros; make the buffer with frame_stack=None"
        )

    def _open_existing(self) -> None:
        """Open the existing store on disk, only when needed, so that inspecting a model locks nothing."""
        disk = self._settings.get("disk")
        if self._writer is None and not self._pending and disk is not None and (Path(disk) / "store.json").exists():
            limits = {name: self._settings[name] for name in LIMITS if name in self._settings}
            try:
                store = Store.open(disk, **limits)
            except StoreInUseError:
                gc.collect()  # an unused model may hold it: its objects form cycles
                store = Store.open(disk, **limits)
            self.adopt(store, {})

    def state(self) -> dict[str, Any]:
        """Return the state that ``adopt`` needs to continue episodes, beside the store: arrays and numbers."""
        writer = self._opened
        last = None if writer.ends.last is None else {name: one.copy() for name, one in writer.ends.last.items()}
        ends = {"last": last, "ended": writer.ends.ended.copy(), "odd_start": writer.odd_start}
        return {"added": self._added, "gaps": list(self._gaps), **ends}

    def adopt(self, store: Store, state: Mapping[str, Any]) -> None:
        """Continue with an existing store of such transitions.

        If the next observations do not follow from the store's episodes, and are stacks of frames in mid-episode,
        transitions are skipped, with a warning, until an episode begins: the store could not restore such stacks.

        Args:
            state: return value of ``state``, or empty.

        Raises:
            ValueError: a store of other observations or actions, which is closed.
        """
        stacks = stacks_in(store.spec, {name: one.whole for name, one in self._finders.items()}, self._action)
        if stacks is None:
            store.close()
            raise ValueError(f"this store holds {store.spec}, expected observations and actions of this environment")
        store._log.boundaries.strict = bool(self._settings.get("strict", False))
        self._writer = writer = self._new_writer(store, stacks)
        self._added = state.get("added", store.total_steps // self.lanes)
        self._gaps = deque(state.get("gaps", ()))
        writer.ends.last, writer.ends.ended = state.get("last"), state.get("ended", writer.ends.ended)
        writer.waits[:], writer.odd_start = True, state.get("odd_start", True)

    def add(
        self,
        obs: Obs,
        next_obs: Obs,
        action: Array,
        reward: Array,
        terminated: Array,
        truncated: Array,
        lanes: npt.ArrayLike | None = None,
        tells_finals: Bools | None = None,
    ) -> Ints | None:
        """Add a transition of each lane, or of some.

        If an environment resets with the next step, the row of that step is no transition, and is skipped
        (``Resets``).

        Args:
            obs, next_obs: [rows, *shape], or dicts of those: whole observations before the step, and truly after it.
                If ``obs`` does not follow from the lane's last transition, and that ended nothing, its episode was
                broken off: it counts as truncated there.
            lanes: int [rows], all different; default: all, in order.
            tells_finals: bool [rows], for steps that ended their episode: the environment reported the final
                observation separately from ``next_obs``, as one that resets with the next step does not; ``None``: the
                environment is known to reset otherwise.

        Returns:
            int64 [rows], ids in the store, -1 for skipped rows; ``None``: the rows are not in a store yet. The call may
            have replaced ``store`` by another one with other ids.
        Raises:
            ValueError: observations were said to be stacks of frames, and these are not; nothing was changed.
        """
        self._open_existing()
        before, after = (
            {name: np.asarray(one if self._single is not None else one[name]) for name in self._finders}
            for one in (obs, next_obs)
        )
        ends = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        where = np.arange(self.lanes) if lanes is None else np.asarray(lanes, np.int64)
        rows: _Rows = (before, after, np.asarray(action), np.asarray(reward), *ends, where)
        stored = np.ones(len(where), np.bool_)
        resets, passed_over = self.resets.copy(), self._passed_over.copy()
        if tells_finals is not None:
            stored = ~self.resets.find(before, after, rows[3], ends[0] | ends[1], where)
            self.resets.remember(before, after, ends[0] | ends[1], tells_finals, where, ~stored)
        self._passed_over[where] = ~stored
        try:
            ids = self._add(rows) if stored.all() else self._add_some(rows, stored)
        except BaseException:
            self.resets, self._passed_over = resets, passed_over
            raise
        if self._writer is not None:
            self._writer.store._log.boundaries.counted["dropped_resets"] = self.resets.dropped
        self._gaps.extend((self._added, lane) for lane in where[~self.stored_last[where]].tolist())
        while self._gaps and self._gaps[0][0] < self._added - (self._settings.get("capacity") or MAX_GAPS):
            self._gaps.popleft()
        self._added += 1
        return ids

    def steps_back(self, back: Ints, lanes: Ints) -> Ints:
        """Return the lanes' numbers of steps that were added ``back`` calls of ``add`` before the last: int64 [n].

        Negative for rows that were skipped, or added before the store was made. ``back``, ``lanes``: int64 [n].
        """
        calls, found = self._added - 1 - back, self.store.lane_steps[lanes] - 1 - back
        passed = np.array(self._gaps, np.int64).reshape(-1, 2)
        for lane in np.unique(passed[:, 1]):
            gaps, mine = passed[passed[:, 1] == lane, 0], lanes == lane
            later = len(gaps) - np.searchsorted(gaps, calls[mine], side="right")
            found[mine] = np.where(np.isin(calls[mine], gaps), -1, found[mine] + later)
        return found

    def add_alone(
        self, obs: Obs, action: Array, reward: Array, terminated: Array, truncated: Array, lanes: Ints
    ) -> Ints:
        """Add a transition of each of some lanes, with the observation before the step only.

        A step's successor is its lane's next observation. At an episode's end it is unknown, and the episode's last
        observation stands in. Add all transitions of a buffer in this way, with ``frame_stack=None``.

        Args and Returns: as for ``add``.
        """
        self._added += 1
        return self._opened.store.extend(
            obs=obs,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_obs=obs,
            lanes=lanes,
        )

    def _add_some(self, rows: _Rows, stored: Bools) -> Ints | None:
        ids = np.full(len(stored), -1, np.int64)
        if stored.any():
            before, after, action, reward, terminated, truncated, where = rows
            now, then = ({name: one[stored] for name, one in part.items()} for part in (before, after))
            ends = terminated[stored], truncated[stored]
            found = self._add((now, then, action[stored], reward[stored], *ends, where[stored]))
            if found is None:
                return None
            ids[stored] = found
        return ids

    def _add(self, rows: _Rows) -> Ints | None:
        before, after, _, _, terminated, truncated, where = rows
        if self._writer is not None:
            return self._writer.write(*rows)
        for name, finder in self._finders.items():
            for part in (before, after):  # a value that the store would refuse must not wait for it
                finder.whole.field().rows(f"obs.{name}" if name else "obs", part[name], len(where))
        first, true = ~self._pending_ends.follows(before, where), ~terminated | self._ends_are_true
        for name, finder in self._finders.items():
            finder.look(before[name], after[name], first, true)
            if finder.told and not finder.stacked:
                self._refuse(name)
        copies = [{k: np.array(v) for k, v in one.items()} for one in (before, after)]
        self._pending.append((*copies, *(np.array(one) for one in rows[2:])))
        self._pending_ends.remember(after, terminated | truncated, where)
        most = min(MAX_PENDING, self._settings.get("capacity") or MAX_PENDING)
        if all(one.found for one in self._finders.values()) or self.held >= most:
            self._opened  # noqa: B018
        return None

    def end_episodes(self) -> bool:
        """Truncate unfinished episodes; the next transitions begin new ones. Return whether there were any."""
        writer = self._opened
        broken = [writer.store.break_episode(lane) for lane in range(self.lanes)]
        writer.ends.ended[:] = True
        return any(broken)

    def whole(self, obs: Obs) -> Obs:
        """Return a batch's whole observations [B, *shape], or a dict of those."""
        return self._opened.whole(obs)

    def flush(self) -> None:
        """Write pending transitions."""
        if self._writer is not None or self._pending:
            self.store.flush()

    def close(self) -> None:
        """Write pending transitions, and close the store."""
        if self._writer is not None or self._pending:
            self.store.close()

    def abandon(self) -> None:
        """Close the store without pending transitions, which were refused; delete it if it holds no others."""
        self._pending = []
        if self._writer is not None:
            self._writer.store.close()
            if self._settings.get("disk") is not None and not self._writer.store.total_steps:
                shutil.rmtree(self._settings["disk"])

    def __del__(self) -> None:
        if getattr(self, "_pending", None) and self._settings.get("disk") is not None:
            self.close()


def packed(store: Store) -> bytes:
    """Return the bytes of a store's checkpoint, for frameworks that pickle their buffers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CHECKPOINT
        store.checkpoint(path)
        return path.read_bytes()


def unpacked(content: bytes, **limits: Any) -> Store:
    """Return the store in the bytes of ``packed``.  Raises: as ``Store.open``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CHECKPOINT
        path.write_bytes(content)
        return Store.open(path, **limits)


_ALL: weakref.WeakSet[WholeTransitions] = weakref.WeakSet()


@atexit.register
def _write_pending() -> None:
    """Write pending transitions before the exiting interpreter closes the stores."""
    for one in list(_ALL):
        one.__del__()
