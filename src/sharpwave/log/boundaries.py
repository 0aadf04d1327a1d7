"""Boundaries between episodes: detects impossible transitions from the observations at the ends of episodes.

An observation that occurs twice, as an episode's last and as the next one's first, is a sign of

- a row that is a reset and no step, in a loop that ignores that its vector resets with the next step (Gymnasium's
  ``NEXT_STEP``): the observation before it is the old episode's final one, and the reward 0; or
- a final observation that belongs to the reset, in an environment that writes its observations into one array.

Either may happen by chance, or in a constant or small world. The jump decides: it is in the step before the
observation, or in the step after it. The core compares and counts (``boundaries.cpp``); this module reports.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharpwave.arrays import Bools, Bytes, Ints
from sharpwave.errors import level_of_caller
from sharpwave.log.open_segments import Lanes, Rows
from sharpwave.log.same_values import compare, equal_rows
from sharpwave.native import core
from sharpwave.spec import ENDED

Counts = tuple[int, ...]

NOTICED = ("broken_episodes", "unchained_steps", "rounded_breaks", "repeated_finals", "dropped_resets")
"""Names of the counts, in the order of ``Counts``."""

ROUNDED = 4
"""Number of episodes broken off by rounding that is reported."""
UNCHAINED = 16
"""Number of unconnected steps in a row, none leading to the next one's observation, that is reported."""
MAX_WARNED = 3
"""Number of lanes that each kind of warning names: nobody reads 1,024."""
SHOWN = 4
"""Numbers of steps in a message."""


@dataclass
class _Lane:
    """Counts of a lane's episodes that were broken off.

    Attributes:
        rounded: breaks by rounding only. ``last``: numbers of the last steps before such breaks.
        broke, run: number of the step before the latest break, and number of consecutive one-step episodes.
        said: kinds of warnings given.
    """

    rounded: int = 0
    last: deque[int] = field(default_factory=lambda: deque(maxlen=SHOWN))
    broke: int = -1
    run: int = 0
    said: set[str] = field(default_factory=set)


def checked_counts(said: Any) -> Counts:
    """Return a writer's counts, in the order of ``NOTICED``.  Raises: ValueError."""
    whole = isinstance(said, (list, tuple)) and all(type(one) is int and 0 <= one < 1 << 32 for one in said)
    if not whole or len(said) != len(NOTICED):
        raise ValueError(f"a writer's counts {said!r:.100}, expected one for each of {', '.join(NOTICED)}")
    return tuple(said)


class Boundaries(core.Boundaries):
    """Detector of impossible transitions.

    Args:
        opened: the lanes' open segments.

    Attributes:
        strict: whether they are an error; otherwise a warning: one a lane of each kind, for ``MAX_WARNED`` lanes.
        true_finals: lanes whose environments reset in the step that ends an episode, and give its final observation. In
            other lanes a terminated episode's final observation is not judged: as its discount is 0, programs pass
            anything.
        counted: by name of ``NOTICED``: episodes broken off, as their next step observes something else; such episodes
            of one step; breaks by rounding only; steps that are resets, or follow a reset's observation as the final
            one; and rows in which an environment only resets, which the writer left out.
    """

    def __init__(self, opened: Lanes) -> None:
        self.true_finals: set[int] = set()
        self.counted = dict.fromkeys(NOTICED, 0)
        super().__init__(self.counted, self.true_finals)
        self._opened = opened
        self._lanes: dict[int, _Lane] = {}
        self._warned: Counter[str] = Counter()

    @property
    def counts(self) -> Counts:
        """Counts so far, in the order of ``NOTICED``."""
        return tuple(self.counted.values())

    def add(self, counts: Counts) -> None:
        """Add the counts of a remote writer, whose steps arrive encoded."""
        for name, more in zip(NOTICED, counts, strict=True):
            self.counted[name] += more

    def look(self, lanes: Ints, flags: Bytes, rows: Rows, nexts: Rows | None) -> None:
        """Look at steps that are about to be appended, as to ``Lanes.write``: the first of lanes and of episodes.

        Raises: ValueError: if ``strict``; nothing was appended.
        """
        opened = self._opened
        if opened.framed_values:  # how far does a text jump?
            return
        where = opened.fields, opened.index.arrays, opened.arrays, opened.arena.memory
        while (found := self.find(*where, lanes, flags, rows, nexts)) is not None:
            self._say_found(*found)

    def look_within(self, lanes: Ints, flags: Bytes, rows: Rows, finals: Rows | None, broken: Bools) -> None:
        """Look at the steps [T, N] of a block that is about to be appended, but the first.

        Args: as ``StepBlock`` has them.

        Raises: ValueError: if ``strict``; nothing was appended.
        """
        opened, layout = self._opened, self._opened.layout
        names = [layout.names[c] for c in layout.obs_columns]
        begin = 0 if finals is not None and not opened.framed_values else flags.size
        while begin < flags.size and (
            found := self.find_within(opened.fields, opened.arrays, lanes, flags, broken, rows, finals, begin)
        ):
            begin = found[0]
            self._say_found(*found[1])
        places = np.argwhere(broken[:-1])
        nearly = np.zeros(broken.shape, np.bool_)
        if finals is not None and len(places):
            times, on = places.T
            pairs = [(finals[name][times, on], rows[name][times + 1, on]) for name in names]
            nearly[times, on] = ~np.any([compare(*pair)[1] for pair in pairs], axis=0)
        for t, j in np.argwhere(broken[1:]).tolist():
            self.broke(
                int(lanes[j]), int(opened.steps[lanes[j]]) + t + 2, bool(flags[t, j] & ENDED), bool(nearly[t + 1, j])
            )

    def nearly_equal(self, known: Mapping[int, Bytes], observed: Rows) -> bool:
        """Return whether a step's next observation equals the next step's observation, up to rounding.

        The former is [size] by column, the latter [1, *shape] by field.
        """
        names = self._opened.layout.names
        for c, one in known.items():
            row = observed[names[c]]
            if row.dtype == object:
                if not equal_rows(one, row[0])[1]:
                    return False
            elif compare(one.view(row.dtype).reshape(row.shape), row)[1][0]:
                return False
        return True

    def broke(self, lane: int, step: int, one_step: bool, nearly: bool) -> None:
        """Note that the lane's episode is about to be broken off before a step.

        The step's observation differs from the next observation of the step before.

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
            seen.rounded += 1
            seen.last.append(step)
            if seen.rounded >= ROUNDED:
                self._say_once(lane, "rounded", _numbered("rounded", seen.rounded, seen.last))
        elif seen.run >= UNCHAINED:
            self._say_once(
                lane,
                "chains",
                f"none of the last {seen.run} steps before step {step} led to the next one's observation: each "
                "next_obs differs from the next obs, so every step is an episode of its own, and neither n-step "
                "returns nor sequences cross it. Give both from the same arrays, as the environment returned them (not "
                "one of them normalized, rounded or cast); or leave next_obs out where steps follow one another",
            )

    def _say_found(self, lane: int, resets: bool, count: int, last: list[int]) -> None:
        kind = "resets" if resets else "finals"
        self._say(lane, kind, _numbered(kind, count, last))

    def _say_once(self, lane: int, kind: str, text: str) -> None:
        said = self._lanes[lane].said
        if self.strict:
            self._say(lane, kind, text)
        elif kind not in said:
            said.add(kind)
            self._say(lane, kind, text)

    def _say(self, lane: int, kind: str, text: str) -> None:
        text = f"extend: lane {lane}: {text}. stats() counts them; strict=True makes them errors"
        if self.strict:
            self._opened.forget_end(lane)  # the step after the refused one begins an episode
            raise ValueError(text.replace("; strict=True makes them errors", ""))
        self._warned[kind] += 1
        if self._warned[kind] == MAX_WARNED:
            text += f". {MAX_WARNED} lanes do: further ones are only counted"
        if self._warned[kind] <= MAX_WARNED:
            warnings.warn(text, RuntimeWarning, stacklevel=level_of_caller())


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


def _numbered(kind: str, count: int, last: Iterable[int]) -> str:
    return _SAID[kind].format(count=count, numbers=", ".join(map(str, last)))
