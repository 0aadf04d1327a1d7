"""Writing of whole transitions to a store frame by frame: episodes are followed, and stacks checked, as they come."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.integrations.frame_stacks import Stack, same_bits
from sharpwave.integrations.moving import move
from sharpwave.spec import Field, Spec
from sharpwave.store import Store

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Named = dict[str, Array]

ONE = ""
"""Name of an observation that is a single array."""


class LaneEnds:
    """What the episodes of each lane led to last.

    Attributes:
        last: observations [lanes, ...] by name, which the next ones equal where an episode goes on; ``None``: there are
            none yet. ``ended``: bool [lanes], the episode has ended.
    """

    def __init__(self, lanes: int) -> None:
        self.last: Named | None = None
        self.ended = np.ones(lanes, np.bool_)

    def follows(self, before: Named, lanes: Ints) -> Bools:
        """Return in which rows an episode goes on: bool [rows]."""
        goes_on = ~self.ended[lanes]
        for name, last in (self.last or {}).items():
            goes_on &= same_bits(last if _are_all(lanes, len(last)) else last[lanes], before[name])
        return goes_on

    def remember(self, after: Named, ended: Bools, lanes: Ints) -> None:
        """Take observations after steps as what lanes led to last."""
        self.ended[lanes] = ended
        if self.last is None:
            self.last = {name: np.zeros((len(self.ended), *one.shape[1:]), one.dtype) for name, one in after.items()}
        for name, one in after.items():
            self.last[name][lanes] = one


class FrameWriter:
    """A store, and how observations are stored in it.

    Args:
        store: of observations that are stored as ``stacks`` say, by name.
        lanes: number of lanes.
        single: name of the observation where it is no dict.
        ends_are_true: as for ``WholeTransitions``.
        remake: makes another store, as the observation of a name is not stored as ``stacks`` said; or raises an error.

    Attributes:
        store, stacks: as given, or those that they were replaced by.
        stored_last: bool [lanes], of which lanes the transition added last was not passed over.
        ends: what episodes led to, as stacks.
        waits: bool [lanes], an episode may be under way that began elsewhere.
        odd_start: an episode began that tells how stacks are padded.
    """

    def __init__(
        self,
        store: Store,
        stacks: Mapping[str, Stack],
        lanes: int,
        single: str | None,
        ends_are_true: bool,
        remake: Callable[[str, Mapping[str, Stack]], Store],
    ) -> None:
        self.store, self.stacks = store, dict(stacks)
        self.ends, self.stored_last = LaneEnds(lanes), np.ones(lanes, np.bool_)
        self.waits, self.odd_start = np.zeros(lanes, np.bool_), False
        self._ends_are_true, self._single, self._remake = ends_are_true, single, remake
        self._expect_true_ends()

    def _expect_true_ends(self) -> None:
        if self._ends_are_true:
            self.store._log.boundaries.true_finals.update(range(len(self.waits)))

    def write(
        self,
        obs: Named,
        next_obs: Named,
        action: Array,
        reward: Array,
        terminated: Bools,
        truncated: Bools,
        lanes: Ints,
    ) -> Ints:
        """Append a transition to each of some lanes, and return their ids: int64 [rows], -1 of those passed over."""
        true = ~terminated | self._ends_are_true
        while True:
            before, after = (
                {name: stack.stacks(one[name]) for name, stack in self.stacks.items()} for one in (obs, next_obs)
            )
            follows = self.ends.follows(before, lanes)
            odd = self._check(before, after, follows, true, lanes)
            if odd is not None:
                break
        for lane in lanes[~follows & ~self.ends.ended[lanes]].tolist():
            self.store._writing.break_off(lane)
        frames = [{name: stack.newest(one[name]) for name, stack in self.stacks.items()} for one in (before, after)]
        rows: dict[str, Any] = {
            "action": action, "reward": reward, "terminated": terminated, "truncated": truncated, "lanes": lanes
        }  # fmt: skip
        passed_over = odd.any()
        if passed_over:
            frames = [{name: one[~odd] for name, one in part.items()} for part in frames]
            rows = {name: values[~odd] for name, values in rows.items()}
        now, then = frames if self._single is None else (part[self._single] for part in frames)
        stored = self.store.extend(obs=now, next_obs=then, **rows)
        self.ends.remember(after, terminated | truncated | odd, lanes)  # what follows an odd one goes on from nothing
        self.stored_last = self.stored_last.copy()
        self.stored_last[lanes] = ~odd
        self.waits[lanes] &= odd
        if not passed_over:
            return stored
        ids = np.full(len(lanes), -1)
        ids[~odd] = stored
        return ids

    def _check(self, before: Named, after: Named, follows: Bools, true: Bools, lanes: Ints) -> Bools | None:
        """Return which rows are of episodes that began elsewhere; ``None``: all is stored otherwise now: look again."""
        odd, first = np.zeros(len(lanes), np.bool_), np.flatnonzero(~follows)
        waits = self.waits[lanes[first]]
        for name, stack in self.stacks.items():
            if stack.frames == 1:
                continue
            wrong = not (stack.goes_on(before[name], after[name]) | ~true).all()
            if not (len(first) or wrong):
                continue
            begins, other = (one.begins(before[name][first]) for one in (stack, stack.otherwise))
            starts = ~(waits & ~begins)
            if wrong or (starts & ~begins).any():
                repadded = not self.odd_start and (other | ~starts).all()
                self._restack(name, stack.otherwise if repadded else Stack(stack.shape, stack.dtype))
                return None
            self.odd_start |= bool((starts & (begins != other)).any())
            odd[first] |= waits & ~begins
        if odd.any():
            warnings.warn(
                "add: the episodes under way in the environments are not those that this buffer was saved in; their "
                "transitions are passed over until others begin",
                RuntimeWarning,
                stacklevel=6,
            )
        return odd

    def _restack(self, name: str, stack: Stack) -> None:
        """Store observations in another way from now on: move what is held to another store, if that can be."""
        old, stacks = self.store, self.stacks
        self.store = self._remake(name, stacks | {name: stack})
        self.stacks = stacks | {name: stack}
        self._expect_true_ends()
        if stack.frames == 1:
            warnings.warn(
                f"add: {name or 'obs'} looked like stacks of {stacks[name].frames} frames, and is none; it is stored "
                "whole from here on, which takes more memory, and priorities begin anew. Say so with frame_stack=None",
                RuntimeWarning,
                stacklevel=7,
            )

        def whole(part: Named) -> Named:
            return {key: self.stacks[key].stacks(stacks[key].join(one)) for key, one in part.items()}

        def changed(part: Named) -> Named:
            return {key: self.stacks[key].newest(one) for key, one in whole(part).items()}

        move(old, self.store, self._single, changed)
        if self.ends.last is not None:
            self.ends.last = whole(self.ends.last)
        old.close()

    def whole(self, obs: Any) -> Any:
        """Return whole observations [B, *shape], or a dict of those, of a batch's."""
        if self._single is not None:
            return self.stacks[self._single].join(obs)
        return {name: stack.join(obs[name]) for name, stack in self.stacks.items()}


def stacks_in(spec: Spec, whole: Mapping[str, Stack], action: Field) -> dict[str, Stack] | None:
    """Return how a store's observations are stored, by name; ``None``: it holds others, or other actions.

    Args:
        whole: shapes and dtypes of the observations by name.
    """
    declared = spec.join_obs(spec.fields)
    fields = {ONE: declared} if spec.array_obs else declared if isinstance(declared, dict) else {}
    known = fields.keys() == whole.keys() and all(isinstance(field, Field) for field in fields.values())
    if not known or spec.step_names != ("action",) or spec.fields["action"] != action:
        return None
    found = {name: stack.as_stored(fields[name]) for name, stack in whole.items()}
    stacks = {name: stack for name, stack in found.items() if stack is not None}
    return stacks if len(stacks) == len(whole) else None


def _are_all(lanes: Ints, count: int) -> bool:
    return len(lanes) == count and bool((lanes == np.arange(count)).all())
