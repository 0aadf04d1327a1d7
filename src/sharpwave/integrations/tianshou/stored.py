"""Observations at the places of one or several ring buffers, in a store."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sharpwave.arrays import Array, Bools, Ints
from sharpwave.errors import EmptyError
from sharpwave.integrations.any_length import fitting, shape_of
from sharpwave.integrations.frame_stacks import same_bits
from sharpwave.integrations.tianshou.batches import BELOW, Obs, each, together
from sharpwave.integrations.whole_transitions import WholeTransitions, packed, unpacked
from sharpwave.spec import Field
from sharpwave.store import Store
from sharpwave.views.step_views import NStep
from sharpwave.views.view_replay import Replay

MOST_AT_ONCE, MOST_OF_RAM = 1024, 1 / 8
"""Limits, in transitions and as a part of ``ram``, of one decoding into the store's memory; more is copied in parts."""


NONE = -1


class Places:
    """Places of ring buffers, and the transitions at them.

    Attributes:
        ids: int64 [places], in the store last given to ``find``; -1: none, or not known yet.
        absent: bool [places], the place's transition is not in the store: evicted, or never written.
    """

    def __init__(self, count: int, lanes: int) -> None:
        self.ids = np.full(count, NONE)
        self.absent = np.zeros(count, np.bool_)
        self._numbers = np.full(count, NONE)  # number of each place's transition in its lane
        self._lanes = np.full(count, NONE)  # lane of each place's transition
        self._written = np.zeros(lanes, np.int64)  # number of transitions of each lane

    def write(self, lanes: Ints, stored: Bools) -> None:
        """Count transitions written to lanes of the store. ``stored``: bool [n], which rows were."""
        self._written[lanes] += stored

    def put(self, places: Ints, lanes: Ints, stored: Bools, ids: Ints | None) -> None:
        """Put the newest transitions of lanes at places. ``ids``: ``None``, not known yet."""
        self.ids[places] = NONE if ids is None else ids
        self._lanes[places], self._numbers[places] = lanes, self._written[lanes] - 1
        self.absent[places] = ~stored

    def find(self, store: Store) -> None:
        """Find all ids again, in a store with the same transitions."""
        places = np.flatnonzero((self._numbers >= 0) & ~self.absent)
        lanes = self._lanes[places]
        ends = np.zeros(len(self._written), np.int64)
        ends[: store.lanes] = store.lane_steps
        steps = ends[lanes] - self._written[lanes] + self._numbers[places]
        there = steps >= 0
        self.ids[:] = NONE
        self.ids[places[there]] = store.ids(lanes[there], steps[there], missing="mask")
        self.absent[places] = self.ids[places] < 0

    def lose(self, gone: Ints) -> Ints:
        """Mark transitions, and all older ones in their lanes, as evicted; return their places."""
        newest = np.full(len(self._written), NONE)
        np.maximum.at(newest, self._lanes[gone], self._numbers[gone])
        lost: Ints = np.flatnonzero(self.filled & (self._numbers <= newest[self._lanes]) & ~self.absent)
        self.absent[lost] = True
        return lost

    def copy(self, places: Ints, to: Ints) -> None:
        """Copy the transitions at some places to others."""
        for one in (self.ids, self.absent, self._numbers, self._lanes):
            one[to] = one[places]

    @property
    def filled(self) -> Bools:
        """Places that have or had a transition: bool [places]."""
        return self._numbers >= 0

    def clear(self, places: Ints | slice = slice(None)) -> None:
        """Forget the transitions at places."""
        self.ids[places], self._numbers[places], self.absent[places] = NONE, NONE, False


class EvictedError(KeyError):
    """Error for indices whose transitions the store has evicted.  ``places``: int64 [n], all now known ones."""

    def __init__(self, places: Ints, index: int) -> None:
        self.places = places
        super().__init__(f"the transition at index {index} was evicted; give the store more ram= or disk_limit=")


class Stored:
    """Observations before and after the steps at places.

    Args:
        places: the transition at each place, with its id in ``places.ids``.
        lanes: number of lanes.
        stack: number of frames in an observation that is read. ``last_only``: observations arrive as stacks,
            [n, stack, ...], and only the last frame is new.
        frame_stack: with a ``stack`` of 1, as for ``WholeTransitions``; with more, ``None``: the padding of stacks is
            unknown, so they are made of the frames of several transitions.
        settings: arguments of the store.

    Attributes:
        places: as given.
        whole: whether reads return observations as they arrived, not stacks made of several steps.
        alone: whether transitions lack the observation after the step; ``None`` before the first.
        transitions: the store and its writer; ``None`` before the first transition, which defines the observations.
    """

    def __init__(
        self,
        places: Places,
        lanes: int,
        stack: int,
        last_only: bool,
        frame_stack: int | str | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.places, self._lanes, self._stack, self._last_only = places, lanes, stack, last_only
        self._frame_stack, self._settings = frame_stack, settings
        self.transitions: WholeTransitions | None = None
        self._viewed: tuple[Store, Replay[Any]] | None = None
        self._found = False  # ids are valid in the next store
        self.alone: bool | None = None
        self._heads: dict[int, tuple[int, Obs]] = {}  # by lane, a step without a successor, missing in views

    def add(
        self,
        obs: Obs,
        after: Obs | None,
        action: Array,
        reward: Array,
        terminated: Array,
        truncated: Array,
        lanes: Ints,
    ) -> tuple[Ints | None, Bools]:
        """Add a transition to each of some lanes.

        Args:
            after: ``None``: unknown, in this and in all other calls.

        Returns:
            ids int64 [n], or ``None`` while they are not known; stored bool [n].
        Raises:
            ValueError, TypeError: observations or actions that a store cannot hold; nothing was changed.
        """
        first = self.transitions is None
        try:
            if first:
                self._make(obs, after, action)
            assert self.transitions is not None
            if self._found:
                self.view  # noqa: B018  # before adding: saved ids are valid, and new ones follow
            obs = self._as_made(self._newest(obs), "add: obs")
            rest = action, reward, terminated, truncated, lanes
            ids: Ints | None
            if after is not None:
                after, untold = self._as_made(self._newest(after), "add: obs_next"), np.zeros(len(lanes), np.bool_)
                ids = self.transitions.add(obs, after, *rest, tells_finals=untold)
            else:
                ids = alone = self.transitions.add_alone(obs, *rest)
                for row, lane in enumerate(lanes.tolist()):
                    self._heads.pop(lane, None)
                    if not (terminated[row] or truncated[row]):
                        self._heads[lane] = int(alone[row]), each(obs, lambda one, row=row: copy.copy(one[row]))  # type: ignore[misc]
        except Exception:
            if first:  # the next transitions are the first
                refused, self.transitions, self.alone = self.transitions, None, None
                if refused is not None:
                    refused.abandon()
            raise
        stored = self.transitions.stored_last[lanes]
        self.places.write(lanes, stored)
        known = ids is not None and self._viewed is not None and self._viewed[0] is self.transitions.store
        return ids if known else None, stored

    def leave(self) -> None:
        """End the unfinished episodes: the next transitions begin new ones."""
        if self._heads and self.transitions is not None:
            self.view  # noqa: B018  # ids are found while the store has all steps
            self.transitions.end_episodes()
            self._heads.clear()

    def _make(self, obs: Obs, after: Obs | None, action: Array) -> None:
        if after is None and self._settings.get("disk") is not None:
            raise ValueError(
                "add: got no obs_next, but disk= keeps a step once its successor is known; give obs_next, as "
                "Tianshou's collector does, or leave disk= out"
            )
        self.alone = after is None
        single, frames = isinstance(obs, np.ndarray), None if self.alone else self._frame_stack
        if self._stack > 1 or self._last_only:
            images = self._last_only and single and obs.ndim == 4 and obs.shape[1] == self._stack
            goes_on = images and after is not None and same_bits(obs[:, 1:], after[:, :-1]).all()
            frames = self._stack if goes_on and frames is not None else None
        self.whole = frames is not None or not (self._last_only or self._stack > 1)
        shapes = each(self._newest(obs), lambda one: shape_of("add: obs", one))
        self._layout = shapes, Field(action.shape[1:], action.dtype.name), self._lanes, frames
        self._connect()

    def _connect(self) -> None:
        self.transitions = WholeTransitions(*self._layout, **self._settings)

    def _newest(self, obs: Obs) -> Obs:
        return obs if self.whole or not self._last_only else each(obs, lambda one: one[:, -1])

    def _as_made(self, obs: Obs, what: str) -> Obs:
        """Return rows of any length as objects.  Raises: ValueError, TypeError: as ``fitting``."""
        shapes: Any = self._layout[0]
        if isinstance(obs, dict) != isinstance(shapes, dict):
            return obs  # which the store refuses
        if not isinstance(obs, dict):
            return fitting(what, obs, shapes)
        return {
            part: fitting(f"{what}{BELOW}{part}", one, shapes[part]) if part in shapes else one
            for part, one in obs.items()
        }

    @property
    def view(self) -> Replay[Any]:
        """The store's transitions, by id.  Raises: EmptyError: the buffer is empty."""
        if self.transitions is None:
            raise EmptyError("nothing was added yet")
        store = self.transitions.store
        if self._viewed is None or self._viewed[0] is not store:  # replaced if frame stacks were misjudged
            self._viewed = store, store.view(NStep(1, 1.0, newest=True), name="transitions")
            if not self._found:
                self.places.find(store)
            self._found = False
        return self._viewed[1]

    def read(self, places: Ints, stack: int, before: Callable[[Ints], Ints]) -> tuple[Obs, Obs]:
        """Return observations before and after the steps at places [n].

        Args:
            stack: number of frames of each, [n, stack, ...]; 1: without that axis.
            before: returns the places of the steps before those at places; an episode's first step is its own.

        Raises:
            EvictedError: the store has evicted some; they are marked absent.
        """
        view = self.view
        if not self.whole or stack > self._stack == 1:
            return self._stacks(view, places, stack, before)
        obs, after = self._fetch(view, places)
        if stack == self._stack:
            return obs, after
        if stack > self._stack:
            raise ValueError(f"get: stack_num={stack}, expected at most {self._stack}, the stored frames")
        return each(obs, lambda one: _last(one, stack)), each(after, lambda one: _last(one, stack))

    def _stacks(self, view: Replay[Any], places: Ints, stack: int, before: Callable[[Ints], Ints]) -> tuple[Obs, Obs]:
        while True:
            steps = [places]
            for _ in range(stack - 1):
                earlier = before(steps[0])
                steps.insert(0, np.where(self.places.absent[earlier], steps[0], earlier))
            try:
                obs, after = self._fetch(view, np.stack(steps, axis=1).reshape(-1))
                break
            except EvictedError:
                if self.places.absent[places].any():
                    raise
        if stack == 1:
            return obs, after
        obs, after = (each(one, lambda a: a.reshape(-1, stack, *a.shape[1:])) for one in (obs, after))
        return obs, after

    def _fetch(self, view: Replay[Any], places: Ints) -> tuple[Obs, Obs]:
        """Decode observations; zeros at places that never had a transition, or None in arrays of objects."""
        assert self.transitions is not None
        ids, absent, parts = self.places.ids[places], self.places.absent[places], []
        most = self._most_at_once()
        for begin in range(0, max(len(ids), 1), most):
            part = slice(begin, begin + most)
            batch = view.fetch(ids[part], missing="mask")
            absent[part] |= (ids[part] >= 0) & (batch.ids < 0)
            found = [self.transitions.whole(one) for one in (batch.obs, batch.next_obs)]
            for one in (leaf for obs in found for leaf in (obs.values() if isinstance(obs, dict) else [obs])):
                if one.dtype == object:
                    one[ids[part] < 0] = None
            for row in np.flatnonzero(absent[part]).tolist() if self._heads else ():
                for head, obs in self._heads.values():
                    if head == ids[begin + row]:
                        absent[begin + row] = False
                        _put(found[0], row, obs)
            parts.append(found if len(ids) <= most else [each(one, np.array) for one in found])
        if absent.any():
            raise EvictedError(self.places.lose(places[absent]), int(places[absent][0]))
        if len(parts) > 1:
            return together([obs for obs, _ in parts]), together([after for _, after in parts])
        return parts[0][0], parts[0][1]

    def _most_at_once(self) -> int:
        assert self._viewed is not None
        store = self._viewed[0]
        if store.ram is None:
            return MOST_AT_ONCE
        fields = [store.spec.fields[name] for name in store.spec.obs_names]
        each_bytes = sum(field.typical_bytes * (field.frames + 1) for field in fields)
        return max(1, min(MOST_AT_ONCE, int(store.ram * MOST_OF_RAM) // each_bytes))

    # saving

    def __getstate__(self) -> dict[str, Any]:
        """Return a checkpoint of the store as bytes, and the rest; for a store on disk, only its folder."""
        state = self.__dict__ | {"transitions": None, "_viewed": None, "rows": None, "content": None}
        if self.transitions is not None:
            self.view  # noqa: B018  # makes ids known
            state["rows"], state["_found"] = self.transitions.state(), True
            if self._settings.get("disk") is None:
                state["content"] = packed(self.transitions.store)
            else:
                self.transitions.flush()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the store again. A store on disk is opened at first need."""
        rows, content = state.pop("rows"), state.pop("content")
        self.__dict__.update(state)
        if rows is not None:
            self._connect()
        if content is not None:
            assert self.transitions is not None
            self.transitions.adopt(unpacked(content), rows)


def _put(obs: Obs, row: int, one: Obs) -> None:
    if isinstance(obs, dict):
        for name, values in obs.items():
            values[row] = one[name]
    else:
        obs[row] = one


def _last(obs: Array, stack: int) -> Array:
    last: Array = obs[:, -1] if stack == 1 else obs[:, -stack:]
    return last
