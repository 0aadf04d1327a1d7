"""A store that is given whole transitions, observations before and after each step, as other frameworks' buffers are.

What comes twice is stored once: the store gets each step's newest frame, and returns whole observations.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.integrations.frame_stacks import Stack, StackFinder
from sharpwave.spec import Field, Spec
from sharpwave.store import Store

Array = npt.NDArray[Any]
Obs = Any
"""An array, or a dict of arrays."""

ONE = ""
"""Name of an observation that is a single array."""
MAX_PENDING = 512
"""Rows that are kept as they came, at most, until it is known whether observations are stacks of frames."""


class WholeTransitions:
    """A store, made when it is known whether observations are stacks of frames; transitions come before that too.

    Args:
        shapes: shape and dtype of an observation; of a dict observation those by name.
        action: field of the actions.
        lanes: environments, each of which adds a transition with every call of ``add``.
        frame_stack: as for ``StackFinder``.
        settings: of the store. A ``disk`` that holds a store of the same fields already is opened.

    Attributes:
        added: rows added so far, of ``lanes`` transitions each.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], Any]] | tuple[tuple[int, ...], Any],
        action: Field,
        lanes: int,
        frame_stack: int | str | None,
        **settings: Any,
    ) -> None:
        self._single = not isinstance(shapes, Mapping)
        named = {ONE: shapes} if isinstance(shapes, tuple) else shapes
        self._finders = {name: StackFinder(name or "obs", *one, frame_stack) for name, one in named.items()}
        self._action, self.lanes, self._settings = action, lanes, settings
        self.added = 0
        self._store: Store | None = None
        self._stacks: dict[str, Stack] = {}
        self._pending: list[tuple[Any, ...]] = []
        self._last: dict[str, Array] | None = None  # observations that the next ones equal, where an episode goes on
        self._ended = np.ones(lanes, np.bool_)
        self._waits = np.zeros(lanes, np.bool_)  # for an episode's beginning: the one under way began elsewhere
        disk = settings.get("disk")
        if disk is not None and (Path(disk) / "store.json").exists():
            limits = {name: settings[name] for name in ("capacity", "ram", "disk_limit", "on_full") if name in settings}
            self.adopt(Store.open(disk, **limits), {})
        elif self._known():
            self.store  # noqa: B018

    @property
    def store(self) -> Store:
        """The store. Where it is not known yet whether observations are stacks of frames, they are stored whole."""
        if self._store is None:
            self._stacks = {name: finder.found or finder.whole for name, finder in self._finders.items()}
            fields = {name: stack.field() for name, stack in self._stacks.items()}
            spec = Spec(obs=fields[ONE] if self._single else fields, action=self._action)
            self._store = Store(spec, **self._settings)
            pending, self._pending = self._pending, []
            self._last, self._ended = None, np.ones(self.lanes, np.bool_)
            for rows in pending:
                self._write(*rows)
        return self._store

    @property
    def held(self) -> int:
        """Transitions held."""
        return self.added * self.lanes if self._store is None else len(self._store)

    def state(self) -> dict[str, Any]:
        """Return what ``adopt`` needs, beside the store, for episodes to go on: copies of arrays, and numbers."""
        last = None if self._last is None else {name: one.copy() for name, one in self._last.items()}
        return {"added": self.added, "last": last, "ended": self._ended.copy()}

    def adopt(self, store: Store, state: Mapping[str, Any]) -> None:
        """Go on with a store of such transitions that was there before.

        Args:
            state: of ``state``. Without one, lanes begin new episodes; where observations are stacks of frames that
                are not an episode's first, transitions are passed over, with a warning, until one begins: the store
                could not give them back.

        Raises:
            ValueError: a store of other observations or actions, which is closed.
        """
        spec, stacks = store.spec, {}
        keys = [name.removeprefix("obs.") for name in spec.obs_names] if spec.dict_obs else [ONE]
        fields = {key: spec.fields[name] for key, name in zip(keys, spec.obs_names, strict=True)}
        if fields.keys() == self._finders.keys():
            stacks = {name: finder.whole.as_stored(fields[name]) for name, finder in self._finders.items()}
        if not stacks or None in stacks.values() or store.spec.fields["action"] != self._action:
            store.close()
            raise ValueError(f"this store holds {store.spec}, expected observations and actions of this environment")
        self._store, self._stacks = store, {name: stack for name, stack in stacks.items() if stack is not None}
        self.added = state.get("added", store.total_steps // self.lanes)
        self._last, self._ended = state.get("last"), state.get("ended", np.ones(self.lanes, np.bool_))
        self._waits[:] = not state

    def add(self, obs: Obs, next_obs: Obs, action: Array, reward: Array, terminated: Array, truncated: Array) -> None:
        """Add a transition of each lane.

        Args:
            obs, next_obs: [lanes, *shape], or dicts of those: whole observations before the step, and truly after it
                (where it terminated the episode, any: nothing is learned from those). Where ``obs`` is not what the
                lane's last transition led to, and that ended nothing, its episode was broken off: it counts as
                truncated there.

        Raises:
            ValueError: observations were stacks of frames, and this one is not.
        """
        before, after = self._named(obs), self._named(next_obs)
        if self._store is None:
            rows = [{k: np.array(v) for k, v in one.items()} for one in (before, after)]
            self._pending.append((*rows, *(np.array(one) for one in (action, reward, terminated, truncated))))
            self._look(before, after, np.asarray(terminated, np.bool_))
            self._remember(after, terminated, truncated)
            if self._pending and (self._known() or len(self._pending) * self.lanes >= MAX_PENDING):
                self.store  # noqa: B018
        else:
            self._write(before, after, action, reward, terminated, truncated)
        self.added += 1

    def _known(self) -> bool:
        return all(finder.found is not None for finder in self._finders.values())

    def _named(self, obs: Obs) -> dict[str, Array]:
        return {ONE: np.asarray(obs)} if self._single else {name: np.asarray(obs[name]) for name in self._finders}

    def _look(self, before: dict[str, Array], after: dict[str, Array], last: npt.NDArray[np.bool_]) -> None:
        first = ~self._follows(before)
        for name, finder in self._finders.items():
            finder.look(before[name], after[name], first, last)

    def _follows(self, before: dict[str, Array]) -> npt.NDArray[np.bool_]:
        """Return where an episode goes on: bool [lanes]."""
        if self._last is None:
            return np.zeros(self.lanes, np.bool_)
        follows = ~self._ended
        for lane in np.flatnonzero(follows).tolist():
            follows[lane] = all(_equal(before[name][lane], last[lane]) for name, last in self._last.items())
        return follows

    def _remember(self, after: dict[str, Array], terminated: Array, truncated: Array) -> None:
        self._ended = np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        if self._last is None:
            self._last = {name: np.array(one) for name, one in after.items()}
        for name, one in after.items():
            np.copyto(self._last[name], one)

    def _write(
        self,
        before: dict[str, Array],
        after: dict[str, Array],
        action: Array,
        reward: Array,
        terminated: Array,
        truncated: Array,
    ) -> None:
        assert self._store is not None
        follows = self._follows(before)
        odd, last = np.zeros(self.lanes, np.bool_), np.asarray(terminated, np.bool_)
        for name, stack in self._stacks.items():
            odd |= ~follows & ~stack.begins(before[name])
            if not (stack.goes_on(before[name], after[name]) | last).all() or (odd & ~self._waits).any():
                raise ValueError(
                    f"add: {name or 'obs'} was stacks of {stack.frames} frames so far, with pad={stack.pad!r} where an "
                    "episode begins, and this one is not; make the buffer with frame_stack=None"
                )
        for lane in np.flatnonzero(~follows & ~self._ended & ~self._waits).tolist():
            self._store.break_episode(lane)
        frames = [{name: stack.split(one[name]) for name, stack in self._stacks.items()} for one in (before, after)]
        ends = {"terminated": np.asarray(terminated), "truncated": np.asarray(truncated)}
        rows: dict[str, Any] = {"action": np.asarray(action), "reward": np.asarray(reward), **ends}
        lanes = np.arange(self.lanes)
        if odd.any():
            warnings.warn(
                "add: the episodes under way in the environments began before this buffer was opened again; their "
                "transitions are passed over until others begin",
                RuntimeWarning,
                stacklevel=4,
            )
            lanes = np.flatnonzero(~odd)
            frames = [{name: one[lanes] for name, one in part.items()} for part in frames]
            rows = {name: values[lanes] for name, values in rows.items()}
        obs, next_obs = (one[ONE] if self._single else one for one in frames)
        self._store.extend(obs=obs, next_obs=next_obs, lanes=lanes, **rows)
        self._remember(after, terminated, truncated)
        self._ended |= odd  # what follows is not known to go on from anything
        self._waits &= odd

    def whole(self, obs: Obs) -> Obs:
        """Return whole observations [B, *shape], or a dict of those, of a batch's."""
        if self._single:
            return self._stacks[ONE].join(obs)
        return {name: stack.join(obs[name]) for name, stack in self._stacks.items()}

    def close(self) -> None:
        """Close the store, if there is one."""
        if self._store is not None:
            self._store.close()


def _equal(one: Array, other: Array) -> bool:
    """Whether two arrays are equal bit by bit: a NaN is itself."""
    return np.array_equal(one, other) or one.tobytes() == other.tobytes()
