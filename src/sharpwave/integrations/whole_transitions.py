"""A store that is given whole transitions, observations before and after each step, as other frameworks' buffers are.

What comes twice is stored once: the store gets each step's newest frame, and returns whole observations.
"""

from __future__ import annotations

import atexit
import gc
import warnings
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import StoreInUseError
from sharpwave.integrations.frame_stacks import Stack, StackFinder
from sharpwave.integrations.moving import move
from sharpwave.spec import Field, Spec
from sharpwave.store import Store

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Obs = Any
"""An array, or a dict of arrays."""
Named = dict[str, Array]

ONE = ""
"""Name of an observation that is a single array."""
MAX_PENDING = 512
"""Transitions that are kept as they came, at most, until it is known whether observations are stacks of frames."""


class WholeTransitions:
    """A store, made or opened when it is first needed, and once it is known whether observations are stacks of frames.

    Args:
        shapes: shape and dtype of an observation; of a dict observation those by name.
        action: field of the actions.
        lanes: environments, each of which adds a transition with every call of ``add`` that does not say otherwise.
        frame_stack: as for ``StackFinder``.
        ends_are_true: whether the observation after a step that terminated its episode is what that step led to.
        whole: keys of a dict observation that are stored as they are, whatever ``frame_stack`` says.
        settings: of the store. A ``disk`` that holds a store of the same fields already is opened.

    Attributes:
        stored_last: bool [lanes], of which lanes the transition added last was not passed over.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], Any]] | tuple[tuple[int, ...], Any],
        action: Field,
        lanes: int,
        frame_stack: int | str | None,
        *,
        ends_are_true: bool = True,
        whole: Collection[str] = (),
        **settings: Any,
    ) -> None:
        self._single = isinstance(shapes, tuple)
        named = {ONE: shapes} if isinstance(shapes, tuple) else shapes
        self._finders = {name: StackFinder(*one, None if name in whole else frame_stack) for name, one in named.items()}
        if frame_stack not in (None, 1, "auto") and not any(one.stacked for one in self._finders.values()):
            shapes_told = [one.whole.shape for one in self._finders.values()]
            raise ValueError(
                f"frame_stack={frame_stack}: observations of shape {shapes_told} are not made of {frame_stack} images, "
                "[C, H, W] or [H, W, C] with C a multiple of that; expected frame_stack=None, or 'auto'"
            )
        self._guessed = frame_stack == "auto"
        self._action, self.lanes, self._settings = action, lanes, settings
        self._ends_are_true = ends_are_true
        self._added = 0
        self.stored_last = np.ones(lanes, np.bool_)
        self._store: Store | None = None
        self._stacks: dict[str, Stack] = {}
        self._pending: list[tuple[Any, ...]] = []
        self._last: Named | None = None  # observations that the next ones equal, where an episode goes on
        self._ended = np.ones(lanes, np.bool_)
        self._waits = np.zeros(lanes, np.bool_)  # an episode may be under way that began elsewhere
        self._odd_start = False  # an episode began that tells how stacks are padded
        if settings.get("disk") is None:
            Store(self._spec({name: finder.whole for name, finder in self._finders.items()}), **settings).close()
        _ALL.add(self)

    @property
    def added(self) -> int:
        """Calls of ``add`` so far."""
        self._open_existing()
        return self._added

    @property
    def store(self) -> Store:
        """The store. Where it is not known yet whether observations are stacks of frames, they are stored whole."""
        self._open_existing()
        if self._store is None:
            self._stacks = {name: finder.found or finder.whole for name, finder in self._finders.items()}
            self._store = Store(self._spec(self._stacks), **self._settings)
            pending, self._pending = self._pending, []
            self._last, self._ended = None, np.ones(self.lanes, np.bool_)
            for rows in pending:
                self._write(*rows)
        return self._store

    def _spec(self, stacks: Mapping[str, Stack]) -> Spec:
        fields = {name: stack.field() for name, stack in stacks.items()}
        return Spec(obs=fields[ONE] if self._single else fields, action=self._action)

    def _open_existing(self) -> None:
        """Open the store that is on disk already, not before it is needed: who only looks at a model locks nothing."""
        disk = self._settings.get("disk")
        if self._store is None and not self._pending and disk is not None and (Path(disk) / "store.json").exists():
            names = ("capacity", "ram", "disk_limit", "on_full", "seed")
            limits = {name: self._settings[name] for name in names if name in self._settings}
            try:
                store = Store.open(disk, **limits)
            except StoreInUseError:
                gc.collect()  # a model that nothing uses any more may have it: its objects refer to each other
                store = Store.open(disk, **limits)
            self.adopt(store, {})

    @property
    def held(self) -> int:
        """Transitions held."""
        self._open_existing()
        return sum(len(rows[-1]) for rows in self._pending) if self._store is None else len(self._store)

    def state(self) -> dict[str, Any]:
        """Return what ``adopt`` needs, beside the store, for episodes to go on: copies of arrays, and numbers."""
        last = None if self._last is None else {name: one.copy() for name, one in self._last.items()}
        return {"added": self._added, "last": last, "ended": self._ended.copy(), "odd_start": self._odd_start}

    def adopt(self, store: Store, state: Mapping[str, Any]) -> None:
        """Go on with a store of such transitions that was there before.

        Where the next observations are not what its episodes led to, and are stacks of frames in mid-episode,
        transitions are passed over, with a warning, until an episode begins: the store could not give them back.

        Args:
            state: of ``state``, or empty.

        Raises:
            ValueError: a store of other observations or actions, which is closed.
        """
        spec, stacks = store.spec, {}
        declared = spec.join_obs(spec.fields)
        fields = {ONE: declared} if spec.array_obs else declared if isinstance(declared, dict) else {}
        known = fields.keys() == self._finders.keys() and all(isinstance(field, Field) for field in fields.values())
        if known and spec.step_names == ("action",):
            stacks = {name: finder.whole.as_stored(fields[name]) for name, finder in self._finders.items()}
        if not stacks or None in stacks.values() or spec.fields["action"] != self._action:
            store.close()
            raise ValueError(f"this store holds {spec}, expected observations and actions of this environment")
        self._store, self._stacks = store, {name: stack for name, stack in stacks.items() if stack is not None}
        self._added = state.get("added", store.total_steps // self.lanes)
        self._last, self._ended = state.get("last"), state.get("ended", np.ones(self.lanes, np.bool_))
        self._waits[:], self._odd_start = True, state.get("odd_start", True)

    def add(
        self,
        obs: Obs,
        next_obs: Obs,
        action: Array,
        reward: Array,
        terminated: Array,
        truncated: Array,
        lanes: npt.ArrayLike | None = None,
    ) -> Ints | None:
        """Add a transition of each lane, or of some.

        Args:
            obs, next_obs: [rows, *shape], or dicts of those: whole observations before the step, and truly after it.
                Where ``obs`` is not what the lane's last transition led to, and that ended nothing, its episode was
                broken off: it counts as truncated there.
            lanes: int [rows], all different; default: all, in order.

        Returns:
            int64 [rows], their ids in the store, -1 of those passed over; ``None``: they are not in a store yet, or
            were not before. ``store`` may be another than before the call, with other ids.
        Raises:
            ValueError: observations were said to be stacks of frames, and these are not.
        """
        self._open_existing()
        before, after = self._named(obs), self._named(next_obs)
        ends = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        where = np.arange(self.lanes) if lanes is None else np.asarray(lanes, np.int64)
        rows = (before, after, np.asarray(action), np.asarray(reward), *ends, where)
        ids = None
        if self._store is None:
            self._look(before, after, ends[0], where)  # before they are kept: they may be refused
            copies = [{k: np.array(v) for k, v in one.items()} for one in (before, after)]
            self._pending.append((*copies, *(np.array(one) for one in rows[2:])))
            self._remember(after, *ends, where)
            most = min(MAX_PENDING, self._settings.get("capacity") or MAX_PENDING)
            if all(one.found for one in self._finders.values()) or self.held >= most:
                self.store  # noqa: B018
        else:
            ids = self._write(*rows)
        self._added += 1
        return ids

    def end_episodes(self) -> bool:
        """End the episodes under way as time limits do: the next transitions begin others. Return if there were any."""
        broken = [self.store.break_episode(lane) for lane in range(self.lanes)]
        self._ended[:] = True
        return any(broken)

    def _named(self, obs: Obs) -> Named:
        return {ONE: np.asarray(obs)} if self._single else {name: np.asarray(obs[name]) for name in self._finders}

    def _look(self, before: Named, after: Named, terminated: Bools, lanes: Ints) -> None:
        first, true = ~self._follows(before, lanes), ~terminated | self._ends_are_true
        for name, finder in self._finders.items():
            finder.look(before[name], after[name], first, true)
            if finder.told and not finder.stacked:
                self._refuse(name)

    def _follows(self, before: Named, lanes: Ints) -> Bools:
        """Return in which rows an episode goes on: bool [rows]."""
        if self._last is None:
            return np.zeros(len(lanes), np.bool_)
        follows = ~self._ended[lanes]
        for row in np.flatnonzero(follows).tolist():
            follows[row] = all(_equal(before[name][row], last[lanes[row]]) for name, last in self._last.items())
        return follows

    def _remember(self, after: Named, terminated: Bools, truncated: Bools, lanes: Ints) -> None:
        self._ended[lanes] = terminated | truncated
        if self._last is None:
            self._last = {name: np.zeros((self.lanes, *one.shape[1:]), one.dtype) for name, one in after.items()}
        for name, one in after.items():
            self._last[name][lanes] = one

    def _write(
        self,
        before: Named,
        after: Named,
        action: Array,
        reward: Array,
        terminated: Bools,
        truncated: Bools,
        lanes: Ints,
    ) -> Ints:
        assert self._store is not None
        follows, true = self._follows(before, lanes), ~terminated | self._ends_are_true
        odd = self._check(before, after, follows, true, lanes)
        for lane in lanes[~follows & ~self._ended[lanes]].tolist():
            self._store.break_episode(lane)
        frames = [{name: stack.split(one[name]) for name, stack in self._stacks.items()} for one in (before, after)]
        rows: dict[str, Any] = {
            "action": action, "reward": reward, "terminated": terminated, "truncated": truncated
        }  # fmt: skip
        kept, ids = np.flatnonzero(~odd), np.full(len(lanes), -1)
        if odd.any():
            frames = [{name: one[kept] for name, one in part.items()} for part in frames]
            rows = {name: values[kept] for name, values in rows.items()}
        obs, next_obs = (one[ONE] if self._single else one for one in frames)
        ids[kept] = self._store.extend(obs=obs, next_obs=next_obs, lanes=lanes[kept], **rows)
        self._remember(after, terminated, truncated, lanes)
        self.stored_last = self.stored_last.copy()
        self.stored_last[lanes] = ~odd
        self._ended[lanes] |= odd  # what follows is not known to go on from anything
        self._waits[lanes] &= odd
        return ids

    def _check(self, before: Named, after: Named, follows: Bools, true: Bools, lanes: Ints) -> Bools:
        """Return which rows are in an episode that began elsewhere; store otherwise what is no stack after all."""
        odd, waits = np.zeros(len(lanes), np.bool_), self._waits[lanes]
        for name, stack in list(self._stacks.items()):
            if stack.frames == 1:
                continue
            begins, other = stack.begins(before[name]), stack.otherwise.begins(before[name])
            starts = ~follows & ~(waits & ~begins)
            if not (stack.goes_on(before[name], after[name]) | ~true).all() or (starts & ~begins).any():
                repadded = not self._odd_start and (other | ~starts).all()
                self._restack(name, stack.otherwise if repadded else self._finders[name].whole)
                return self._check(before, after, follows, true, lanes)
            self._odd_start |= bool((starts & (begins != other)).any())
            odd |= waits & ~follows & ~begins
        if odd.any():
            warnings.warn(
                "add: the episodes under way in the environments are not those that this buffer was saved in; their "
                "transitions are passed over until others begin",
                RuntimeWarning,
                stacklevel=5,
            )
        return odd

    def _restack(self, name: str, stack: Stack) -> None:
        """Store observations in another way from now on: move what is held to another store, if that was a guess."""
        assert self._store is not None
        if not self._guessed or self._settings.get("disk") is not None:
            self._refuse(name)
        old, stacks = self._store, self._stacks
        self._stacks = stacks | {name: stack}
        self._store = Store(self._spec(self._stacks), **self._settings)
        if stack.frames == 1:
            warnings.warn(
                f"add: {name or 'obs'} looked like stacks of {stacks[name].frames} frames, and is none; it is stored "
                "whole from here on, which takes more memory, and priorities begin anew. Say so with frame_stack=None",
                RuntimeWarning,
                stacklevel=6,
            )

        def changed(frames: Named) -> Named:
            return {key: self._stacks[key].split(stacks[key].join(one)) for key, one in frames.items()}

        move(old, self._store, ONE if self._single else None, changed)
        old.close()

    def _refuse(self, name: str) -> None:
        frames = self._stacks[name].frames if self._stacks else "several"
        raise ValueError(
            f"add: {name or 'obs'} is not, or not any more, a stack of {frames} frames that an episode begins with its "
            "first one, repeated or after zeros; make the buffer with frame_stack=None"
        )

    def whole(self, obs: Obs) -> Obs:
        """Return whole observations [B, *shape], or a dict of those, of a batch's."""
        if self._single:
            return self._stacks[ONE].join(obs)
        return {name: stack.join(obs[name]) for name, stack in self._stacks.items()}

    def flush(self) -> None:
        """Write what waits to be written."""
        if self._store is not None or self._pending:
            self.store.flush()

    def close(self) -> None:
        """Write what waits to be written, and close the store."""
        if self._store is not None or self._pending:
            self.store.close()

    def __del__(self) -> None:
        if getattr(self, "_pending", None) and self._settings.get("disk") is not None:
            self.close()


_ALL: weakref.WeakSet[WholeTransitions] = weakref.WeakSet()


@atexit.register
def _write_pending() -> None:
    """Write what waits, before the stores are closed as the interpreter exits."""
    for one in list(_ALL):
        one.__del__()


def _equal(one: Array, other: Array) -> bool:
    """Whether two arrays are equal bit by bit: a NaN is itself."""
    return np.array_equal(one, other) or one.tobytes() == other.tobytes()
