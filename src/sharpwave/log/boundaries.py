"""Boundaries between episodes: notices transitions that never happened, by what is seen where episodes end.

An observation that comes twice, as the last of an episode and as the first of the next, is a sign of

- a row that is a reset and no step, in a loop that does not know that its vector resets with the next step (Gymnasium's
  ``NEXT_STEP``): the observation before it is the old episode's final one, and the reward 0; or
- a final observation that is the reset's, of an environment that writes its observations into one array.

Either may be true by chance, or in a constant or small world. What decides is which of two steps jumps: the one before
the observation, or the one after it.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import level_of_caller
from sharpwave.format.segment import FLAGS, REWARD
from sharpwave.log.marks import ENDED, LEFT_ALONE, MET, as_bytes
from sharpwave.log.open_segments import Lanes, Rows
from sharpwave.log.same_values import compare
from sharpwave.spec import TERMINATED, Spec

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Counts = tuple[int, ...]

NOTICED = ("broken_episodes", "unchained_steps", "rounded_breaks", "repeated_finals", "dropped_resets")
"""Names of the counts, in the order of ``Counts``."""

ENOUGH = 6
"""Boundaries of a lane that speak for something, more than speak against it, before it is said."""
UNCLEAR = 3
"""Weight of one that shows nothing: in a world that goes on after an episode's end, half of them look like resets."""
AGAINST = 4
"""Weight of an episode that begins with another observation than the one before it ended with."""
MIN_JUMP, RESET_JUMP = 2.0, 1.5
"""How many times as far a jump must go as the other step: where the environment may not have been reset at all, as
after a truncation that is only the program's; and where it was."""
ROUNDED = 4
"""Episodes that are broken off by rounding, before it is said."""
UNCHAINED = 16
"""Steps in a row none of which leads to the next one's observation, before it is said."""
MAX_UNDECIDED = 64
"""Boundaries of a lane that say nothing, as in a constant world, after which it is left alone."""
SHOWN = 4
"""Numbers of steps in a message."""


@dataclass
class _Found:
    """Steps of a lane that speak for something: how many, and the last ones' numbers."""

    count: int = 0
    last: deque[int] = field(default_factory=lambda: deque(maxlen=SHOWN))

    def add(self, step: int) -> None:
        self.count += 1
        self.last.append(step)


@dataclass
class _Lane:
    """What was seen of a lane.

    Attributes:
        first: hash of the first observation that this process appended to it.
        resets, finals: steps that are resets; steps after final observations that are the reset's.
        rounded: steps before which an episode was broken off, as they observe what it led to but for rounding.
        unclear: boundaries whose observations are equal, and that speak for neither. ``undecided``: that say nothing.
        broke, run: number of the step before which an episode was broken off last, and how many of one step each were
            broken off in a row.
        said: kinds of what was warned of.
    """

    first: int | None = None
    resets: _Found = field(default_factory=_Found)
    finals: _Found = field(default_factory=_Found)
    rounded: _Found = field(default_factory=_Found)
    unclear: int = 0
    undecided: int = 0
    broke: int = -1
    run: int = 0
    said: set[str] = field(default_factory=set)


def checked_counts(said: Any) -> Counts:
    """Return what a writer says that it counted, in the order of ``NOTICED``.  Raises: ValueError."""
    whole = isinstance(said, (list, tuple)) and all(type(one) is int and 0 <= one < 1 << 32 for one in said)
    if not whole or len(said) != len(NOTICED):
        raise ValueError(f"a writer's counts {said!r:.100}, expected one for each of {', '.join(NOTICED)}")
    return tuple(said)


class Boundaries:
    """Detector of transitions that never happened.

    Args:
        opened: the lanes' open segments. ``spec``: schema of a step.

    Attributes:
        strict: whether they are an error; else a warning, one a lane and kind.
        true_finals: lanes whose environments reset in the step that ends an episode, and say what it led to. Elsewhere
            nothing is said of what a terminated episode ended with: programs give anything there, as its discount is 0.
        counted: by name of ``NOTICED``, episodes that were broken off, as their next step observes something else;
            such episodes of one step; those broken off by rounding only; steps that are resets, or follow a final
            observation that is the reset's; and rows in which an environment only resets, which the writer left out.
    """

    def __init__(self, opened: Lanes, spec: Spec) -> None:
        self._opened, self._spec = opened, spec
        self.strict = False
        self.true_finals: set[int] = set()
        self.counted = dict.fromkeys(NOTICED, 0)
        self._lanes: dict[int, _Lane] = {}

    @property
    def counts(self) -> Counts:
        """Counts so far, in the order of ``NOTICED``."""
        return tuple(self.counted.values())

    def add(self, counts: Counts) -> None:
        """Count what a writer elsewhere did, whose steps come encoded."""
        for name, more in zip(NOTICED, counts, strict=True):
            self.counted[name] += more

    def look(self, lanes: Ints, flags: Bytes, rows: Rows, nexts: Rows | None) -> None:
        """Look at steps that are about to be appended, as to ``Lanes.write``, where ``any_to_look_at`` says so.

        Raises: ValueError: if ``strict``; nothing was appended.
        """
        opened, layout = self._opened, self._opened.layout
        for i in np.flatnonzero(opened.watch[lanes] != MET).tolist():
            lane = int(lanes[i])
            obs = {c: as_bytes(rows[layout.names[c]][i : i + 1], 1)[0] for c in layout.obs_columns}
            watch = int(opened.watch[lane])
            if not watch & MET:
                self._lanes.setdefault(lane, _Lane()).first = _hash(obs)
                opened.watch[lane] |= MET
            elif watch & LEFT_ALONE:
                continue
            elif any(not np.array_equal(obs[c], final) for c, final in opened.final(lane).items()):
                opened.fresh[lane] += 1
            else:
                slot = int(opened.slots[lane])
                row, frame = int(opened.index.rows[slot]) - 1, int(opened.index.frames[slot]) - 2
                before = {c: opened.columns.of(c, slot)[frame] for c in layout.obs_columns}
                after = None
                if nexts is not None:
                    after = {c: as_bytes(nexts[layout.names[c]][i : i + 1], 1)[0] for c in layout.obs_columns}
                end = int(opened.columns.of(FLAGS, slot)[row, 0])
                earned = float(opened.arena.floats[(int(opened.index.offset[REWARD, slot]) >> 2) + row])
                step = int(opened.steps[lane])
                self._judge(lane, step, (before, obs, after), end, earned, int(flags[i]), float(rows["reward"][i]))

    def look_within(
        self, lanes: Ints, flags: Bytes, rows: Rows, finals: Rows | None, broken: npt.NDArray[np.bool_]
    ) -> None:
        """Look at the steps [T, N] of a block that is about to be appended, but the first.

        Args: as ``StepBlock`` has them.

        Raises: ValueError: if ``strict``; nothing was appended.
        """
        opened, layout = self._opened, self._opened.layout
        names = {c: layout.names[c] for c in layout.obs_columns}

        def at(source: Rows, t: int, j: int) -> dict[int, Bytes]:
            return {c: as_bytes(np.ascontiguousarray(source[name][t, j][None]), 1)[0] for c, name in names.items()}

        first_steps = [int(opened.steps[lane]) for lane in lanes.tolist()]
        if finals is not None:
            ended = (flags[:-1] & ENDED != 0) & ~broken[:-1]
            for t, j in np.argwhere(ended).tolist():
                lane = int(lanes[j])
                if opened.watch[lane] & LEFT_ALONE:
                    continue
                obs = at(rows, t + 1, j)
                if any(not np.array_equal(obs[c], one) for c, one in at(finals, t, j).items()):
                    opened.fresh[lane] += 1
                    continue
                after = None
                if not flags[t + 1, j] & ENDED and t + 2 < len(flags):
                    after = at(rows, t + 2, j)
                elif broken[t + 1, j]:
                    after = at(finals, t + 1, j)
                end, flag = int(flags[t, j]), int(flags[t + 1, j]) if not broken[t + 1, j] else 0
                earned, reward = float(rows["reward"][t, j]), float(rows["reward"][t + 1, j])
                self._judge(lane, first_steps[j] + t + 1, (at(rows, t, j), obs, after), end, earned, flag, reward)
        places = np.argwhere(broken[:-1])
        nearly = np.zeros(broken.shape, np.bool_)
        if finals is not None and len(places):
            times, on = places.T
            pairs = [(finals[name][times, on], rows[name][times + 1, on]) for name in names.values()]
            nearly[times, on] = ~np.any([compare(*pair)[1] for pair in pairs], axis=0)
        for t, j in np.argwhere(broken[1:]).tolist():
            self.broke(int(lanes[j]), first_steps[j] + t + 2, bool(flags[t, j] & ENDED), bool(nearly[t + 1, j]))

    def nearly_equal(self, known: Mapping[int, Bytes], observed: Rows) -> bool:
        """Return whether what a step led to, [size] by column, is what the next one observes, [1, *shape] by field, but
        for rounding."""
        names = self._opened.layout.names
        pairs = ((one, observed[names[c]]) for c, one in known.items())
        return not any(compare(one.view(row.dtype).reshape(row.shape), row)[1][0] for one, row in pairs)

    def broke(self, lane: int, step: int, one_step: bool, nearly: bool) -> None:
        """Take note that the lane's episode is about to be broken off before a step, as that observes something else
        than the one before it led to.

        Args:
            one_step: whether the episode has one step so far. ``nearly``: whether the observations differ by rounding.

        Raises: ValueError: if ``strict``.
        """
        seen = self._lanes.setdefault(lane, _Lane())
        in_a_row = step - seen.broke <= 2  # between two such steps one may have ended its episode
        seen.run = (seen.run + 1 if in_a_row else 1) if one_step else 0
        seen.broke = step
        self.counted["unchained_steps"] += one_step
        self.counted["rounded_breaks"] += nearly
        if nearly:
            seen.rounded.add(step)
            if seen.rounded.count >= ROUNDED:
                numbers = ", ".join(map(str, seen.rounded.last))
                self._say(lane, "rounded", _SAID["rounded"].format(count=seen.rounded.count, numbers=numbers))
        elif seen.run >= UNCHAINED:
            self._say(
                lane,
                "chains",
                f"none of the last {seen.run} steps before step {step} led to the next one's observation: each "
                "next_obs differs from the next obs, so every step is an episode of its own, and neither n-step "
                "returns nor sequences cross it. Give both from the same arrays, as the environment returned them (not "
                "one of them normalized, rounded or cast); or leave next_obs out where steps follow one another",
            )

    def _judge(
        self,
        lane: int,
        step: int,
        observed: tuple[Mapping[int, Bytes], Mapping[int, Bytes], Mapping[int, Bytes] | None],
        end: int,
        earned: float,
        flags: int,
        reward: float,
    ) -> None:
        """Decide what a step is that observes what its lane's last episode ended with.

        Args:
            observed: before the last step of that episode, after it (and again by this step), and after this step.
            end, earned: flags and reward of that last step. ``flags``, ``reward``: of this one.
        """
        before, obs, after = observed
        seen = self._lanes.setdefault(lane, _Lane())
        if flags & ENDED:
            after = None
        same = after is not None and all(np.array_equal(obs[c], one) for c, one in after.items())
        if flags & ENDED or same or _hash(obs) == seen.first:
            # An episode of one step; nothing moves; or the world's first observation: reset states may be final ones.
            seen.undecided += 1
            self._leave_alone(lane)
            return
        came, went = self._distance(before, obs), None if after is None else self._distance(obs, after)
        terminated = bool(end & TERMINATED)
        if reward == 0 and (earned != 0 if went is None else went > came * (1.0 if terminated else MIN_JUMP)):
            seen.resets.add(step)
            about, kind = seen.resets, "resets"
        elif went is not None and (
            came > RESET_JUMP * went if lane in self.true_finals else came > MIN_JUMP * went and not terminated
        ):
            if lane not in self.true_finals and earned != 0 and reward == 0:
                # One or the other: a step goes farther than a reset, as in CartPole, and this one has no reward.
                self.counted["repeated_finals"] += 1
                seen.undecided += 1
                self._leave_alone(lane)
                return
            seen.finals.add(step - 1)
            about, kind = seen.finals, "finals"
        else:
            seen.unclear += 1
            self._leave_alone(lane)
            return
        self.counted["repeated_finals"] += 1
        if about.count - UNCLEAR * seen.unclear - AGAINST * int(self._opened.fresh[lane]) >= ENOUGH:
            numbers = ", ".join(map(str, about.last))
            self._say(lane, kind, _SAID[kind].format(count=about.count, numbers=numbers))

    def _leave_alone(self, lane: int) -> None:
        """Watch the lane no longer if most of what was seen of it says nothing: looking takes some 80 us each time."""
        seen = self._lanes[lane]
        nothing = seen.undecided + seen.unclear
        if nothing >= MAX_UNDECIDED and 2 * (seen.resets.count + seen.finals.count) < nothing:
            self._opened.watch[lane] |= LEFT_ALONE

    def _say(self, lane: int, kind: str, text: str) -> None:
        text = f"extend: lane {lane}: {text}. stats() counts them; strict=True makes them errors"
        if self.strict:
            self._opened.forget_end(lane)  # what comes after the step that is refused begins an episode
            raise ValueError(text.replace("; strict=True makes them errors", ""))
        said = self._lanes[lane].said
        if kind not in said:
            said.add(kind)
            warnings.warn(text, RuntimeWarning, stacklevel=level_of_caller())

    def _distance(self, some: Mapping[int, Bytes], others: Mapping[int, Bytes]) -> float:
        total = 0.0
        for c, one in some.items():
            dtype = self._spec.fields[self._opened.layout.names[c]].np_dtype
            a, b = (np.ascontiguousarray(x).view(dtype).astype(np.float64) for x in (one, others[c]))
            with np.errstate(invalid="ignore"):
                total += float(np.nansum(np.abs(a - b)))
        return total


_SAID = {
    "resets": (
        "{count} steps observe what the step before them, which ended its episode, led to, and jump to a new one "
        "without a reward (the last are steps {numbers}): they are resets and no steps. A vector that resets with the "
        "next step (Gymnasium's default, AutoresetMode.NEXT_STEP) ignores the action of that row. Leave such rows out; "
        "or record with sharpwave.Recorder, which does; or make the vector with "
        "autoreset_mode=AutoresetMode.SAME_STEP and give infos['final_obs']"
    ),
    "finals": (
        "{count} steps that ended their episode led to the observation that the next one begins with (the last are "
        "steps {numbers}): the true final observation is lost. If the environment writes its observations into the "
        "same array every time, let it copy, below the vector: gymnasium.wrappers.TransformObservation(env, np.copy, "
        "env.observation_space); else give the observation from before the reset as final_obs"
    ),
    "rounded": (
        "{count} steps observe what the step before them led to but for rounding (the last are steps {numbers}): each "
        "next_obs that differs from the next obs ends an episode, and neither n-step returns nor sequences cross it. "
        "Give both from the same arrays, as the environment returned them (not one of them normalized, rounded or "
        "cast); or leave next_obs out where steps follow one another"
    ),
}


def _hash(obs: Mapping[int, Bytes]) -> int:
    return hash(b"".join(one.tobytes() for one in obs.values()))
