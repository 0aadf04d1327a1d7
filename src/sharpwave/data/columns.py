"""The D4RL layout: all steps in a few arrays, ``observations``, ``actions``, ``rewards``, ``terminals`` and others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data import doubts
from sharpwave.data.episode import (
    Array,
    Arrays,
    SourceEpisode,
    TextType,
    Totals,
    below,
    field_of,
    finite_sum,
    further_names,
    len_of,
    nested,
    with_tuples,
)
from sharpwave.data.opened_files import ReadBudget
from sharpwave.data.progress_bar import shown
from sharpwave.data.varying import differing, read_rows, row_kind, text_type_of, whole_texts, why_none
from sharpwave.log.same_values import TOLERANCE
from sharpwave.spec import Field, Spec

CHUNK_BYTES = 1 << 24
"""Bytes of a column that are read at a time while episodes are found."""
ONE_NAMES = {"obs": "observations", "action": "actions", "reward": "rewards", "next_obs": "next_observations"} | {
    **dict.fromkeys(
        ("terminated", "termination", "terminations", "terminateds", "is_terminated", "terminal", "is_terminal"),
        "terminals",
    ),
    **dict.fromkeys(("truncated", "truncation", "truncations", "truncateds", "is_truncated", "timeout"), "timeouts"),
}
"""Names of other projects, by which the layout's names are also known."""
LIMIT = "TimeLimit.truncated"
"""Gym's name of a timeout."""
DONES = ("dones", "done")
LASTS = (*DONES, "dones_float", "episode_terminals", "episode_ends", "is_last", "is_end")
"""Flags of an episode's last step, however it ended."""
FIRSTS = ("is_first", "is_start", "episode_start", "episode_starts")
"""Flags of an episode's first step."""
EPISODES = tuple(
    f"{one}{suffix}"
    for one in ("episode", "traj", "trajectory", "ep", "demo", "rollout")
    for suffix in ("", "s", "_id", "_ids", "_index", "_idx", "_number", "_num")
    if suffix not in ("", "s") or one not in ("ep", "demo", "rollout")  # eps is an epsilon, demo may be a flag
)
"""Numbers of episodes: a new episode begins where the value changes."""
STEPS = (
    *("step", "steps", "step_id", "step_ids", "step_index", "step_idx", "step_number", "step_num", "step_count"),
    *("elapsed_step", "elapsed_steps", "episode_step", "episode_steps", "episode_timestep"),
    *("timestep", "timesteps", "time_step", "frame_index", "t"),
)
"""Numbers that rise within an episode: a new episode begins where the value does not rise."""
ENDS = frozenset(("terminals", "timeouts", *ONE_NAMES, *LASTS)) - {"obs", "action", "reward", "next_obs"}
"""Names of flags that end episodes."""
KNOWN = {one.lower(): one for one in (*ONE_NAMES, *ONE_NAMES.values(), LIMIT, *LASTS, *FIRSTS, *EPISODES, *STEPS)}
"""Known names, by their lower case."""
JOINED = {one.replace("_", ""): known for one, known in KNOWN.items()}
"""Known names, by their lower case without separators: episodeId and episode-id are episode_id."""
NO_CHARACTERS = "texts with surrogates, or numbers above 0x10FFFF"
DOUBTFUL = re.compile("trunc|time_?out|done|term|end|last|first|start|reset|episode|traj", re.IGNORECASE)
"""Parts of names that flags of ends often have."""


class ColumnSource:
    """Episodes of a data set in the D4RL layout.

    ``observations`` [N, ...] (or ``observations/KEY``, ...), ``actions`` [N, ...] (likewise), ``rewards`` [N],
    ``terminals`` [N]; optionally ``timeouts`` [N] and ``next_observations``, shaped as ``observations``; ``infos/*``
    and other arrays [N, ...] become further fields. One number a step may also be [N, 1]. Other names of these arrays
    are known, too (``ONE_NAMES``).

    An episode ends after a terminal, after a timeout, and where a step's next observation differs from the following
    observation by more than rounding (``TOLERANCE``). If timeouts or next observations are missing, it also ends where
    ``LASTS``, ``FIRSTS``, ``EPISODES`` and ``STEPS`` say; if both are there, these are ordinary further fields. Without
    ``next_observations`` the observation after a timeout, and after the last step of all, is unknown: such a step
    cannot be learned from, and its observation becomes the final one of the step before.

    Raises:
        ValueError: arrays are missing, or do not fit each other.
    """

    def __init__(self, name: str, arrays: Arrays, budget: ReadBudget) -> None:
        self.name, self._arrays, self._budget = name, arrays, budget
        self.left_out: list[str] = []
        self.notes: list[str] = []
        self.left = Totals()
        found: dict[str, str] = {}
        for one, array in arrays.items():
            if not array.shape:  # a setting, as steps=1000
                self.left_out.append(f"{one} (() {array.dtype}): not one value a step")
                continue
            if (standard := self.standard(one)) in found:
                raise ValueError(f"{name}: has both {found[standard]} and {one}, which are the same; expected one")
            found[standard] = one
        self._obs = below(found, "observations")
        self._nexts = below(found, "next_observations")
        self._actions = below(found, "actions")
        self._reward = self._needed(found, "rewards")
        self._find_timeouts(found)
        self._timeouts = found.get("timeouts")
        self._dones: str | None = None
        if "terminals" not in found:
            self._dones = self._done(found)
        self._terminals = self._dones or self._needed(found, "terminals")
        if not self._obs or not self._actions:
            raise ValueError(
                f"{name}: has {sorted(found)[:12]}, expected observations, actions, rewards and terminals (and "
                "timeouts, next_observations, infos/*)"
            )
        if self._nexts and self._nexts.keys() != self._obs.keys():
            raise ValueError(f"{name}: next_observations {sorted(self._nexts)}, expected those of {sorted(self._obs)}")
        self._count = len_of(self._arrays[self._reward])
        used = {*self._obs.values(), *self._actions.values(), *self._nexts.values()}
        for one in used | {self._reward, self._terminals, self._timeouts or self._reward}:
            if len_of(self._arrays[one]) != self._count:
                raise ValueError(
                    f"{name}: {one} has {len_of(self._arrays[one]):,} rows, expected {self._count:,}, as {self._reward}"
                )
        budget.check_steps(name, self._count)
        self._check_flags()
        self._marks = {} if self._nexts and self._timeouts else self._found_marks(found, used)
        self._find_restarts(found, used)
        self._fields = self._further(found, used)
        self.spec = self._spec()
        budget.check_total(name, self._count, self.spec.fields)
        self._episodes = self._find()
        budget.check_count(name, len(self._episodes), "episodes")
        self.steps = int((self._episodes[:, 1] - self._episodes[:, 0]).sum())

    @staticmethod
    def standard(name: str) -> str:
        """Return the layout's name of an array, by which it is known, too."""
        first, slash, rest = name.partition("/")
        known = _known(first)
        if known in (*EPISODES, *STEPS):  # further fields, so they keep their names
            return name
        return ONE_NAMES.get(known, known) + slash + rest

    def _find_timeouts(self, found: dict[str, str]) -> None:
        """Find flags of timeouts by Gym's name, or in a group such as infos, if there are no others."""
        if "timeouts" in found:
            return
        data = ("observations", "next_observations", "actions")
        paths = [one for one in found if one.partition("/")[0] not in data and _mark_of(one) in (LIMIT, "timeouts")]
        for path in sorted(paths, key=lambda one: _mark_of(one) != LIMIT):
            if _mark_of(path) == LIMIT or self._is_flag(found[path]):
                found["timeouts"] = found.pop(path)
                if _mark_of(path) != LIMIT:
                    self.notes.append(f"{found['timeouts']}: taken for timeouts, as there are no others")
                return

    def _is_flag(self, name: str) -> bool:
        array = self._arrays[name]
        if len_of(array) != len_of(self._arrays[self._reward]) or not _is_number(array):
            return False
        values = self._numbers(name, 0, len_of(array))
        return bool(((values == 0) | (values == 1)).all())

    def _needed(self, found: dict[str, str], name: str) -> str:
        if name not in found:
            raise ValueError(f"{self.name}: has {sorted(found)[:12]}, expected {name} as well")
        return found[name]

    def _done(self, found: dict[str, str]) -> str | None:
        """Return the flag ``dones`` if it marks terminals.  Raises: ValueError: it may mark any end."""
        name = next((found[one] for one in DONES if one in found), None)
        if name is not None and self._timeouts is None:
            raise ValueError(
                f"{self.name}: has {name}, but no terminals: rename it to terminals if it is true only where the "
                "environment ended an episode; if it is true at time limits, too, write terminals, and rename it to "
                "episode_ends"
            )
        return name

    def _found_marks(self, found: dict[str, str], used: set[str]) -> dict[str, str]:
        """Return the arrays that mark episodes, also in groups such as infos: their names in the layout, by their own.

        Raises: ValueError: they are not one number a step.
        """
        marks: dict[str, str] = {}
        for path, name in found.items():
            group, one = path.rpartition("/")[0], _mark_of(path)
            if one == "timeouts":
                one = LIMIT if self._is_flag(name) else path
            if (
                name == self._timeouts
                or one not in (LIMIT, *LASTS, *FIRSTS, *EPISODES, *STEPS)
                or name == self._terminals
                or (name in used and not self._observed_mark(name, one))
            ):
                continue
            shape, dtype = self._arrays[name].shape, self._arrays[name].dtype
            if len_of(self._arrays[name]) != self._count or not _is_number(self._arrays[name]):
                if shape == (1,) or (group and one in (LIMIT, *EPISODES, *STEPS)):  # a setting, or unrelated
                    continue
                raise ValueError(
                    f"{self.name}: {name} is {shape} {dtype}, expected one number a step, {(self._count,)}, as the "
                    "name marks episodes; rename it if it means something else"
                )
            if one in STEPS and group and not _counts(self._numbers(name, 0, self._count)):
                self.notes.append(f"{name}: a further field; its numbers stay or fall too often to number steps")
                continue
            marks[name] = one
            said = "is true at the last step of an episode"
            if one in FIRSTS:
                said = "is true at the first step of an episode"
            elif one in EPISODES:
                said = "changes with the episode"
            elif one in STEPS:
                said = "rises within an episode"
            self.notes.append(f"{name}: taken to tell episodes apart; it {said}")
        return marks

    def _observed_mark(self, name: str, one: str) -> bool:
        """Return whether the observation ``one`` marks episodes: it marks few rows, so it is no feature."""
        if name not in self._obs.values() or self._arrays[name].shape[1:] not in ((), (1,)) or one in (LIMIT, *DONES):
            return False
        values = self._numbers(name, 0, self._count)
        if one in (*LASTS, *FIRSTS):
            return self._is_flag(name) and bool(2 * np.count_nonzero(values) <= self._count)
        begins = values[1:] <= values[:-1] if one in STEPS else values[1:] != values[:-1]
        return values.dtype.kind in "ui" and bool(4 * np.count_nonzero(begins) <= self._count)

    def _find_restarts(self, found: dict[str, str], used: set[str]) -> None:
        """Add flags of any name that are true exactly where numbers of steps restart, or one row before."""
        steps = next((name for name, one in self._marks.items() if one in STEPS), None)
        if steps is None:
            return
        values = self._numbers(steps, 0, self._count)
        restarts = values[1:] <= values[:-1]
        taken = {*used, *self._marks, self._reward, self._terminals, self._timeouts}
        for name in found.values() if restarts.any() else ():
            if name in taken or self._arrays[name].dtype.kind != "b" or self._arrays[name].shape != (self._count,):
                continue
            flags = self._flag(name, 0, self._count)
            for one, which, part in ((LASTS[0], "before", flags[:-1]), (FIRSTS[0], "where", flags[1:])):
                if np.array_equal(part, restarts):
                    self._marks[name] = one
                    self.notes.append(
                        f"{name}: taken to tell episodes apart; it is true exactly {which} {steps} restarts"
                    )

    def _check_flags(self) -> None:
        for name in (self._reward, self._terminals, self._timeouts):
            if name is not None and not _is_number(self._arrays[name]):
                raise ValueError(
                    f"{self.name}: {name} is {self._arrays[name].shape} {self._arrays[name].dtype}, expected one "
                    "number a step"
                )
        if not self._count:
            raise ValueError(f"{self.name}: no steps, expected at least one")

    def _further(self, found: dict[str, str], used: set[str]) -> dict[str, str]:
        """Return the arrays' names of further fields, by the fields' names."""
        self._text_types: dict[str, TextType] = {}
        fields: dict[str, str] = {}  # by their names in the layout
        taken = {*used, self._reward, self._terminals, self._timeouts}
        taken |= {name for name, one in self._marks.items() if one not in (*EPISODES, *STEPS)}
        for standard, name in found.items():
            if name in taken:
                continue
            shape, dtype = self._arrays[name].shape, self._arrays[name].dtype
            if not shape or shape[0] != self._count or 0 in shape or row_kind(self._arrays[name]) is None:
                self.left_out.append(f"{name} ({shape} {dtype}): {why_none(self._arrays[name])}")
                continue
            if dtype.kind in "OSU" and row_kind(self._arrays[name]) == ((), str):
                if (kind := text_type_of(self._arrays[name])) is None:
                    self.left_out.append(f"{name} ({shape} {dtype}): {NO_CHARACTERS}")
                    continue
                self._text_types[name] = kind
            fields[standard] = name
        texts = {standard: self._arrays[name].dtype.kind in "OSU" for standard, name in fields.items()}
        return {name: fields[standard] for name, standard in further_names(texts, self.left_out).items()}

    def _spec(self) -> Spec:
        def one(name: str, beside: bool = False) -> Field:
            array = self._arrays[name]
            shape, dtype = row_kind(array) or (array.shape[1:], array.dtype)
            kind = (self._text_types.get(name) or text_type_of(array)) if dtype is str else dtype
            if kind is None:
                raise ValueError(f"{self.name}: {name}: {NO_CHARACTERS}, expected characters; write them as UTF-8")
            return field_of(f"{self.name}: {name}", shape, kind, beside=beside)

        self._compared: dict[str, np.dtype[Any]] = {}  # dtypes of numbers of any length
        for key, name in self._nexts.items():
            texts = [each for each in (name, self._obs[key]) if row_kind(self._arrays[each]) == ((), str)]
            if any(text_type_of(self._arrays[each]) is bytes for each in texts):
                self._text_types |= dict.fromkeys(texts, bytes)  # the last next observation may be the only such one
            after, there = one(name), one(self._obs[key])
            if after.ragged and not after.text and not there.text:
                self._compared[key] = _common(after.np_dtype, there.np_dtype)
            if after.shape != there.shape:
                raise ValueError(f"{self.name}: {name} is {after}, expected {there}")
            if after.dtype != there.dtype:
                self.notes.append(
                    f"{name}: {after.dtype}, where {self._obs[key]} is {there.dtype}; compared as "
                    f"{_common(after.np_dtype, there.np_dtype)}, and stored as {there.dtype}"
                )
        self._by_array = {name: one(name) for name in [*self._obs.values(), *self._actions.values()]}
        self._by_array |= {name: one(name, beside=True) for name in self._fields.values()}
        further: dict[str, Any] = {key: self._by_array[name] for key, name in self._fields.items()}
        return Spec(
            obs=self._tree({key: self._by_array[name] for key, name in self._obs.items()}),
            action=self._tree({key: self._by_array[name] for key, name in self._actions.items()}),
            **further,
        )

    def _tree(self, values: dict[str, Any]) -> Any:
        return with_tuples(nested(self.name, values, "/"))

    def _chunks(self) -> Iterator[tuple[int, int]]:
        names = [*self._obs.values(), *self._nexts.values()] if self._nexts else [self._reward]
        row = max(math.prod(self._arrays[name].shape[1:]) * self._arrays[name].dtype.itemsize for name in names)
        size = max(2, CHUNK_BYTES // max(1, row))
        return ((begin, min(begin + size, self._count)) for begin in range(0, self._count, size))

    def _find(self) -> npt.NDArray[np.int64]:
        """Return the begin and end of each episode with steps, and the end of its rows, int64 [n, 3].

        Raises: ValueError.
        """
        ends: list[npt.NDArray[np.int64]] = []
        breaks: list[npt.NDArray[np.int64]] = []
        terminal: list[npt.NDArray[np.int64]] = []
        last: dict[str, npt.NDArray[Any]] = {}
        rounded = 0
        with shown(self._budget.progress, f"{self.name}: episodes", self._count) as report:
            for begin, end in self._chunks():
                cut = self._terminal(begin, end)
                terminal.append(begin + 1 + np.flatnonzero(cut))
                if self._timeouts is not None:
                    cut = cut | self._flag(self._timeouts, begin, end)
                if self._nexts:
                    broken = np.zeros(end - begin + 1, np.bool_)  # after the step before each, and after the last
                    inexact = np.zeros(end - begin + 1, np.bool_)
                    for key, name in self._nexts.items():
                        after = self._arrays[name].rows(begin, end)
                        there = self._arrays[self._obs[key]].rows(begin, end)
                        if after.dtype != there.dtype and there.dtype.kind in "buif":
                            with np.errstate(over="ignore"):
                                after, there = (x.astype(_common(after.dtype, there.dtype)) for x in (after, there))
                        before = np.concatenate([last[key] if key in last else there[:1], after[:-1]])
                        differ, beyond = differing(before, there, self._compared.get(key))
                        inexact[:-1] |= differ
                        broken[:-1] |= beyond
                        last[key] = after[-1:].copy()
                    rounded += int((inexact & ~broken).sum())
                    breaks.append(begin + np.flatnonzero(broken))
                ends.append(begin + 1 + np.flatnonzero(cut))
                report(end - begin)
        if self._dones is not None and self._timeouts is not None:
            self._check_dones(self._dones, self._timeouts)
        if rounded:
            self.notes.append(
                f"next_observations: {rounded:,} differ from the following observation by rounding (at most "
                f"{TOLERANCE:g} of it, or of 16 times the median); the following observation is stored"
            )
        flagged = np.unique(np.concatenate(ends))
        if self._nexts:
            ends += breaks
            self.notes += doubts.of_next_observations(np.concatenate(breaks), flagged, self._count)
        for name, one in self._marks.items():
            ends.append(found := self._marked(one, name, ends))
            if one != LIMIT:
                self.notes += doubts.of_ends(name, found, flagged, self._count)
        stops = np.unique(np.concatenate([*ends, [self._count]])).astype(np.int64)
        if not self._nexts and len(np.setdiff1d(stops, [*flagged, self._count])) == 0 and self._timeouts is None:
            self.notes.append(f"{self._terminals}: nothing else ends an episode; truncated ones are joined")
            if doubtful := [one for one in self._fields.values() if DOUBTFUL.search(one) and self._is_flag(one)]:
                self.notes.append(
                    f"{', '.join(doubtful[:8])}: a further field; if it says where episodes end, rename it to timeouts "
                    "or to episode_ends"
                )
        self._doubt_numbers(np.concatenate([[0], stops[:-1]]))
        starts, rows = np.concatenate([[0], stops[:-1]]), stops
        if not self._nexts:  # drop the step before an unknown observation, unless it terminated
            unknown = ~np.isin(stops, np.concatenate(terminal))
            stops = stops - unknown
            if unknown.any():
                self._leave(rows[unknown], rows[stops == starts])
        kept = stops > starts
        return np.stack([starts, stops, rows], axis=1)[kept].astype(np.int64)

    def _doubt_numbers(self, starts: npt.NDArray[np.int64]) -> None:
        """Note where numbers of episodes and steps contradict episodes that begin at ``starts``."""
        for name in () if self._nexts and self._timeouts else self._fields.values():
            numbered = _mark_of(name) in (*EPISODES, *STEPS)
            if not numbered and _is_number(self._arrays[name], "uif"):
                self.notes += doubts.of_unnamed(name, self._numbers(name, 0, self._count), starts)
        for name in self._numbered():
            one, values = _mark_of(name), self._numbers(name, 0, self._count)
            self.notes += doubts.of_episodes(name, values) if one in EPISODES else doubts.of_steps(name, values, starts)
            if one in STEPS and len(found := np.setdiff1d(doubts.gaps(values), starts)):
                self.notes.append(f"{name}: skips numbers within episodes, the first before row {found[0]:,}")

    def _numbered(self) -> list[str]:
        """Return the names of the fields that number episodes or steps."""
        return [
            name
            for name in self._fields.values()
            if _mark_of(name) in (*EPISODES, *STEPS) and _is_number(self._arrays[name], "ui")
        ]

    def _leave(self, unknown: npt.NDArray[np.int64], lost: npt.NDArray[np.int64]) -> None:
        """Note that the steps before ``unknown`` rows, and the episodes that end before ``lost`` rows, are left out."""
        left = self.left
        rewards = self._numbers(self._reward, 0, self._count)[unknown - 1]
        left.steps, left.reward, left.episodes = len(unknown), finite_sum(rewards), len(lost)
        if self._timeouts is not None:
            left.truncated = int(self._flag(self._timeouts, 0, self._count)[lost - 1].sum())
        left.unmarked = left.episodes - left.truncated
        self.left_out += left.said()

    def _check_dones(self, dones: str, timeouts: str) -> None:
        """Check that ``dones`` marks terminals only, or every end.  Raises: ValueError: it marks some timeouts only."""
        at = self._flag(dones, 0, self._count)[self._flag(timeouts, 0, self._count)]
        if at.any() and not at.all():
            raise ValueError(
                f"{self.name}: {dones} is true at {int(at.sum()):,} of {len(at):,} {timeouts}, expected all or none; "
                f"rename {dones} to terminals if the environment ended episodes there, else to episode_ends, and write "
                "terminals"
            )
        self.notes.append(f"{dones}: taken for terminals where {timeouts} is false, as there are no terminals")

    def _marked(self, one: str, name: str, ends: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        """Return the numbers of steps after which an array that marks episodes ends one.  Raises: ValueError."""
        if one in (LIMIT, *LASTS):
            found = 1 + np.flatnonzero(self._flag(name, 0, self._count))
            return self._not_all(name, found[found < self._count], ends)
        if one in FIRSTS:
            found = np.flatnonzero(self._flag(name, 0, self._count))
            return self._not_all(name, found[found > 0], ends)
        values = self._numbers(name, 0, self._count)
        found = 1 + np.flatnonzero(values[1:] <= values[:-1] if one in STEPS else values[1:] != values[:-1])
        if one in STEPS and len(skipped := np.setdiff1d(doubts.gaps(values), found)):
            self.notes.append(
                f"{name}: skips numbers {len(skipped):,} times, first before row {skipped[0]:,}; are rows missing? An "
                "episode ends there"
            )
            found = np.union1d(found, skipped)
        return self._not_all(name, found, ends)

    def _not_all(
        self, name: str, found: npt.NDArray[np.int64], ends: list[npt.NDArray[np.int64]]
    ) -> npt.NDArray[np.int64]:
        """Return the ends ``found``.  Raises: ValueError: most follow single steps, unlike the known ends."""
        others = len(np.setdiff1d(found, np.concatenate(ends)))
        every = len(found) == self._count - 1
        if self._count > 2 and others and (every or 2 * others > self._count):
            which = "each step" if every else f"{others:,} of {self._count:,} steps where nothing else does"
            raise ValueError(
                f"{self.name}: {name}, by which episodes are told apart, would end one after {which}; rename it if "
                "it means something else"
            )
        return found

    def _terminal(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Return which steps terminated; if the flags mark every end, without the timeouts."""
        found = self._flag(self._terminals, begin, end)
        if self._dones is not None and self._timeouts is not None:
            found = found & ~self._flag(self._timeouts, begin, end)
        return found

    def _check_rewards(self, what: str, begin: int, end: int) -> None:
        rewards = self._numbers(self._reward, begin, end)
        with np.errstate(over="ignore"):
            finite = np.isfinite(rewards.astype(np.float32, copy=False))
        if not finite.all():
            row = int(np.argmin(finite))
            raise ValueError(f"{what}: {self._reward}[{begin + row}] is {rewards[row]}, expected finite float32")

    def _numbers(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Read rows of an array with one number a row, [end - begin]."""
        return self._arrays[name].rows(begin, end).reshape(-1)

    def _flag(self, name: str, begin: int, end: int) -> npt.NDArray[np.bool_]:
        values = self._numbers(name, begin, end)
        if values.dtype != np.bool_ and not ((values == 0) | (values == 1)).all():
            raise ValueError(f"{self.name}: {name} has {values[(values != 0) & (values != 1)][0]}, expected 0 and 1")
        marked: npt.NDArray[np.bool_] = values != 0
        return marked

    def __len__(self) -> int:
        return len(self._episodes)

    def read(self, number: int) -> SourceEpisode:
        begin, end, rows = self._episodes[number].tolist()
        self._check_rewards(self.place(number), begin, end)
        self._budget.check_episode(self.place(number), end - begin + 1, self.spec.fields)
        terminated = bool(self._terminal(end - 1, end)[0])
        truncated = self._timeouts is not None and bool(self._flag(self._timeouts, rows - 1, rows)[0])

        def observed(key: str) -> npt.NDArray[Any]:
            name, field = self._obs[key], self._by_array[self._obs[key]]
            if self._nexts:
                before = read_rows(name, self._arrays[name], begin, end, field)
                after = read_rows(name, self._arrays[self._nexts[key]], end - 1, end, field)
                with np.errstate(over="ignore", invalid="ignore"):
                    final = after.astype(before.dtype, copy=False)
                if before.dtype.kind in "bui" and (final != after).any():
                    raise ValueError(
                        f"{self.place(number)}: {self._nexts[key]}[{end - 1}] has {after[final != after][0]}, which "
                        f"does not fit {before.dtype}, as {self._obs[key]} has"
                    )
                return np.concatenate([before, final])
            if terminated:  # the row after a terminal step belongs to the next episode
                before = read_rows(name, self._arrays[name], begin, end, field)
                return np.concatenate([before, before[-1:]])
            return read_rows(name, self._arrays[name], begin, end + 1, field)

        def taken(names: dict[str, str]) -> dict[str, npt.NDArray[Any]]:
            return {
                key: read_rows(one, self._arrays[one], begin, end, self._by_array[one]) for key, one in names.items()
            }

        obs, action = self._tree({key: observed(key) for key in self._obs}), self._tree(taken(self._actions))
        further = taken(self._fields)
        return SourceEpisode(
            obs,
            action,
            self._numbers(self._reward, begin, end),
            terminated,
            truncated,
            further,
            texts=whole_texts(self.spec, obs, action, further),
        )

    def length(self, number: int) -> int:
        return int(self._episodes[number, 1] - self._episodes[number, 0])

    def place(self, number: int) -> str:
        begin, _, rows = self._episodes[number].tolist()
        return f"{self.name}: episode {number} (rows {begin:,} to {rows - 1:,})"


def _mark_of(path: str) -> str:
    """Return an array's name in the layout, in any group; if the layout has none, its own name."""
    one = _known(path.rpartition("/")[2])
    return ONE_NAMES.get(one, one)


def ends_within(path: str, values: npt.NDArray[Any]) -> bool:
    """Return whether an array's name marks ends of episodes, or its values [N] mark one before the last row."""
    one = _mark_of(path)
    if one in EPISODES:
        return bool((values[1:] != values[:-1]).any())
    if one in STEPS:
        return bool((values[1:] <= values[:-1]).any())
    if one in FIRSTS:
        return bool((values[1:] != 0).any())
    return one in (LIMIT, *ENDS)


def _counts(values: npt.NDArray[Any]) -> bool:
    """Return whether numbers [N] may number steps: they nearly always rise, or rise by the same amount."""
    rises = np.diff(values.astype(np.float64))
    up, stays, restarts = rises[rises > 0], np.count_nonzero(rises == 0), np.count_nonzero(rises <= 0)
    if 4 * restarts <= len(values):
        return True
    usual = np.unique(up, return_counts=True)[1].max(initial=0)
    return bool(len(up) and 4 * usual >= 3 * len(up) and 4 * stays <= restarts)


def _known(name: str) -> str:
    """Return a name as the layout spells it; a single letter must match in case, too."""
    lower = name.lower()
    joined = lower.replace("_", "").replace("-", "")
    return KNOWN.get(lower) or JOINED.get(joined, name) if len(joined) > 1 else name


def _common(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which two arrays are compared: of floats the coarser one, since the other was rounded."""
    if one.kind == other.kind == "f":
        return min(one, other, key=lambda dtype: dtype.itemsize)
    return np.promote_types(one, other)


def _is_number(array: Array, kinds: str = "buif") -> bool:
    """Return whether each row is one number, of a dtype of one of some kinds."""
    return array.shape[1:] in ((), (1,)) and array.dtype.kind in kinds
