"""Writing of whole transitions to a store frame by frame, with checks of episodes and stacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sharpwave.arrays import Array, Bools, Ints
from sharpwave.integrations.any_length import plain_rows
from sharpwave.integrations.frame_stacks import Stack, same_bits
from sharpwave.spec import Field, Spec
from sharpwave.store import Store
from sharpwave.views.step_views import NStep

Named = dict[str, Array]

ONE = ""
"""Name of an observation that is a single array."""
MOVED = 256
"""Transitions that are decoded at a time to be moved to another store."""


class LaneEnds:
    """Last observations and ends of each lane's episode.

    Attributes:
        last: observations [lanes, ...] by name after each lane's last step, which the next ones equal if an episode
            continues; ``None``: none yet. ``ended``: bool [lanes], the episode has ended.
    """

    def __init__(self, lanes: int) -> None:
        self.last: Named | None = None
        self.ended = np.ones(lanes, np.bool_)

    def follows(self, before: Named, lanes: Ints) -> Bools:
        """Return the rows in which an episode continues: bool [rows]."""
        goes_on = ~self.ended[lanes]
        for name, last in (self.last or {}).items():
            goes_on &= same_bits(last if _are_all(lanes, len(last)) else last[lanes], before[name])
        return goes_on

    def remember(self, after: Named, ended: Bools, lanes: Ints) -> None:
        """Record the observations after the lanes' last steps."""
        self.ended[lanes] = ended
        if self.last is None:
            self.last = {name: np.zeros((len(self.ended), *one.shape[1:]), one.dtype) for name, one in after.items()}
        for name, one in after.items():
            self.last[name][lanes] = one


class FrameWriter:
    """Store, and the stacks by which its observations are stored.

    Args:
        store: stores observations by ``stacks``, which has their names.
        lanes: number of lanes.
        single: name of the observation, if it is no dict.
        ends_are_true: as for ``WholeTransitions``.
        remake: makes another store if an observation turns out not to fit ``stacks``; or raises an error.

    Attributes:
        store, stacks: as given, or their replacements.
        stored_last: bool [lanes], lanes whose last transition was stored.
        ends: last observations of episodes, as stacks.
        waits: bool [lanes], the lane may be within an episode that began elsewhere.
        odd_start: an episode has begun whose first stack shows the padding.
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
        """Append a transition to each of some lanes, and return their ids: int64 [rows], -1 for skipped ones."""
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
        self.ends.remember(after, terminated | truncated | odd, lanes)  # no episode continues after an odd one
        self.stored_last = self.stored_last.copy()
        self.stored_last[lanes] = ~odd
        self.waits[lanes] &= odd
        if not passed_over:
            return stored
        ids = np.full(len(lanes), -1)
        ids[~odd] = stored
        return ids

    def _check(self, before: Named, after: Named, follows: Bools, true: Bools, lanes: Ints) -> Bools | None:
        """Return which rows are of episodes that began elsewhere; ``None``: stacks changed, so check again."""
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
                "add: the environments' unfinished episodes are not those that were saved with this buffer; their "
                "transitions are skipped until new episodes begin",
                RuntimeWarning,
                stacklevel=6,
            )
        return odd

    def _restack(self, name: str, stack: Stack) -> None:
        """Store observations by another stack from now on; move stored transitions to a new store if possible."""
        old, stacks = self.store, self.stacks
        self.store = self._remake(name, stacks | {name: stack})
        self.stacks = stacks | {name: stack}
        self._expect_true_ends()
        if stack.frames == 1:
            warnings.warn(
                f"add: {name or 'obs'} looked like stacks of {stacks[name].frames} frames, but is none; it is stored "
                "whole from here on, which takes more memory, and priorities begin anew. Set frame_stack=None",
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
        """Return a batch's whole observations [B, *shape], or a dict of those; rows of any length as objects [B]."""
        if self._single is not None:
            return self.stacks[self._single].join(plain_rows(obs))
        return {name: stack.join(plain_rows(obs[name])) for name, stack in self.stacks.items()}


def move(old: Store, new: Store, single: str | None, changed: Callable[[Named], Named]) -> None:
    """Append all transitions of ``old`` to ``new``, lane by lane, in order; unfinished episodes stay unfinished.

    Args:
        single: name of the observation, if it is no dict.
        changed: converts observations of ``old``, [n, *shape] by name, to the form of ``new``.

    Cost: decoding and encoding all steps.
    """
    view = old.view(NStep(1, 1.0, newest=True), name="move")
    steps = old.lane_steps.tolist()
    lanes = [old.ids(lane, np.arange(max(0, end - len(old)), end), missing="mask") for lane, end in enumerate(steps)]
    ids = np.concatenate([found[found >= 0] for found in lanes]) if lanes else np.empty(0, np.int64)
    for begin in range(0, len(ids), MOVED):
        batch = view.fetch(ids[begin : begin + MOVED])
        parts = ((one if single is None else {single: one}) for one in (batch.obs, batch.next_obs))
        before, after = (changed({name: plain_rows(one) for name, one in part.items()}) for part in parts)
        for row, lane in enumerate(batch.lane.tolist()):
            obs, next_obs = ({k: v[row] for k, v in part.items()} for part in (before, after))
            new.append(
                lane=lane,
                obs=obs if single is None else obs[single],
                next_obs=next_obs if single is None else next_obs[single],
                action=batch.action[row],
                reward=batch.reward[row],
                terminated=bool(batch.terminated[row]),
                truncated=bool(batch.truncated[row]),
            )


def stacks_in(spec: Spec, whole: Mapping[str, Stack], action: Field) -> dict[str, Stack] | None:
    """Return a store's stacks, by name; ``None``: it holds other observations or actions.

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
