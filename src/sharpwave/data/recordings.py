"""Episodes in arrays of their own, or in parts of longer ones: layouts of robomimic, ManiSkill, ALOHA and d3rlpy."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import (
    Array,
    Arrays,
    SourceEpisode,
    Totals,
    field_of,
    finite_sum,
    further_names,
    len_of,
    nameless,
    nested,
    with_tuples,
)
from sharpwave.data.opened_files import ReadBudget, explained
from sharpwave.data.progress_bar import shown
from sharpwave.data.varying import differing, empty_texts, read_rows, row_kind, text_type_of, whole_texts, why_none
from sharpwave.log.same_values import TOLERANCE
from sharpwave.spec import Field, Spec

MAX_TRIED = 16
"""Limit of episodes that are read to find the fields: the fields of most of them."""
FLAGS = ("terminated", "truncated")
OBS, NEXT_OBS, ACTION, FURTHER = "obs", "next_obs", "action", "further"


@dataclass(frozen=True)
class EpisodeRecording:
    """Episode of T steps in a data set, before it is read.

    Attributes:
        obs: [T + 1, ...], the final observation last; or [T, ...], if that is in ``next_obs``, or unknown.
        next_obs: observations after each step [T, ...], or none.
        action: [T, ...].
        reward, terminated, truncated: [T] or [T, 1]; None: not in the data. A bool applies to the last step.
        further: other arrays.
        info: the data set's description of the episode.
    """

    obs: Arrays
    action: Arrays
    next_obs: Arrays = field(default_factory=dict)
    reward: Array | None = None
    terminated: Array | bool | None = None
    truncated: Array | bool | None = None
    further: Arrays = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


class RecordingLayout:
    """Mapping from the files of a format to their episodes, at ``places`` that are described in words.

    Attributes:
        left_out, notes: as those of ``Source``. ``about``: description of all episodes, which an import notes.
        final: whether observations have one row more than steps, the final observation.
    """

    final = False

    def __init__(self, places: Sequence[str], *notes: str) -> None:
        self.places, self.notes = places, list(notes)
        self.left_out, self.about = list[str](), dict[str, Any]()

    def recording(self, number: int) -> EpisodeRecording:
        """Find the arrays of an episode.  Raises: ValueError: it is damaged."""
        raise NotImplementedError

    def surveyed(self, rows: int) -> list[str]:
        """Return remarks on the number of rows of all sound episodes, once they were read, in words."""
        return []

    def named(self, name: str) -> list[int] | None:
        """Return the numbers of the episodes with a name; ``None``: they have no names.  Raises: ValueError."""
        return None


class _Size(NamedTuple):
    """Size of an episode before it is read: the steps that can be learned from."""

    number: int
    steps: int


class RecordingSource:
    """Episodes of a layout.

    Dicts of arrays stay dicts, arrays of one number a step and others become further fields. Fields have the shapes
    and dtypes of most of the first episodes; an episode with others is damaged. If an episode did not terminate and its
    final observation is not in the data, it ends one step earlier; its last step's observation is the final one.
    If ``next_obs`` differ from the following observations by more than rounding, the episode is damaged.

    Raises: ValueError: no episode can be read.
    """

    def __init__(self, name: str, layout: RecordingLayout, budget: ReadBudget) -> None:
        self.name, self._layout, self._budget = name, layout, budget
        self.left_out, self.notes, self.left = list(layout.left_out), list(layout.notes), Totals()
        self.about = layout.about
        budget.check_count(name, len(layout.places), "episodes")
        self._fields, self._further = self._found_fields()
        budget.check_total(name, 0, {path: one for group in self._fields.values() for path, one in group.items()})
        self.spec = Spec(
            obs=self._tree(self._fields[OBS]),
            action=self._tree(self._fields[ACTION]),
            **{name: self._fields[FURTHER][path] for name, path in self._further.items()},
        )
        self._sizes = self._survey()
        self.steps = sum(one.steps for one in self._sizes)

    def _tree(self, values: Mapping[str, Any]) -> Any:
        return with_tuples(nested(self.name, values, "/"))

    def _found_fields(self) -> tuple[dict[str, dict[str, Field]], dict[str, str]]:
        """Return the fields by kind and path, and the paths of further ones by their names in the spec."""
        counts: collections.Counter[tuple[str, str, tuple[int | None, ...], Any]] = collections.Counter()
        binary: set[tuple[str, str]] = set()  # texts that are no UTF-8
        damage: ValueError | None = None
        tried = 0
        for number in range(min(len(self._layout.places), MAX_TRIED)):
            try:
                with explained(self._where(number), self.name):
                    one = self._layout.recording(number)
                    rows = self._rows(one)
            except ValueError as error:  # ``read`` refuses or skips it
                damage = damage or error
                continue
            tried += 1
            for kind, path, array in _all(one):
                said = row_kind(array) if kind != FURTHER or _by_step(array, rows) else None
                if said is None and (kind == ACTION or (kind == OBS and array.dtype.kind not in "OS")):
                    said = tuple(array.shape[1:]), array.dtype  # which is refused by name
                if said is not None:
                    counts[kind, path, *said] += 1
                    if said[1] is str and text_type_of(array) is bytes:
                        binary.add((OBS if kind == NEXT_OBS else kind, path))
        if not tried:
            raise damage or ValueError(f"{self.name}: no episodes with steps to import")
        found: dict[str, dict[str, Field]] = {OBS: {}, ACTION: {}, FURTHER: {}}
        for (kind, path, shape, dtype), count in counts.items():
            if 2 * count > tried and kind in found:
                dtype = bytes if (kind, path) in binary else dtype
                found[kind][path] = field_of(f"{self.name}: {kind} {path}", shape, dtype, beside=kind == FURTHER)
        for kind in (OBS, ACTION):
            if not found[kind]:
                raise ValueError(f"{self.name}: its episodes have no {kind} in common, expected the same in each")
        names = further_names({path: one.ragged for path, one in found[FURTHER].items()}, self.left_out)
        return found, names

    def _rows(self, one: EpisodeRecording) -> int:
        """Return the number of an episode's steps.  Raises: ValueError: its arrays do not fit each other."""
        if not one.obs or not one.action:
            raise ValueError(f"has no {'actions' if one.obs else 'observations'}, expected both")
        rows = min(len_of(array) for array in one.action.values())
        if rows < 1:
            raise ValueError("has no steps, expected at least one")
        expected = {OBS: rows + self._layout.final, NEXT_OBS: rows, ACTION: rows, "": rows}
        flags = [(name, getattr(one, name)) for name in ("reward", *FLAGS)]
        arrays = [("", name, array) for name, array in flags if not isinstance(array, bool | None)]
        for kind, path, array in [*_all(one), *arrays]:
            if kind != FURTHER and len_of(array) != expected[kind]:
                what = " ".join(filter(None, (kind, path)))
                which = "one more than" if expected[kind] > rows else "as"
                raise ValueError(
                    f"{what} has {len_of(array):,} rows, expected {expected[kind]:,}, {which} the shortest actions"
                )
            if kind == "" and (array.shape[1:] not in ((), (1,)) or array.dtype.kind not in "buif"):
                raise ValueError(f"{path} is {array.shape} {array.dtype}, expected one number a step")
        if one.next_obs and one.next_obs.keys() != one.obs.keys():
            raise ValueError(f"next_obs has {sorted(one.next_obs)[:8]}, expected those of obs: {sorted(one.obs)[:8]}")
        return rows

    def _survey(self) -> list[_Size]:
        """Return the sizes of the episodes with steps, and of damaged ones, which count no steps."""
        sizes: list[_Size] = []
        others: collections.Counter[tuple[str, str]] = collections.Counter()
        seen: collections.Counter[str] = collections.Counter()  # sound episodes by their fields
        known = {(kind, path) for kind, paths in self._fields.items() for path in paths}
        with shown(self._budget.progress, f"{self.name}: episodes", len(self._layout.places)) as report:
            for number in range(len(self._layout.places)):
                report(1)
                try:
                    with explained(self._where(number), self.name):
                        one = self._layout.recording(number)
                        rows = self._rows(one)
                        ends = {name: self._flags(one, name, rows, self._where(number)) for name in FLAGS}
                        terminated, truncated = (bool(flags[-1]) for flags in ends.values())
                        known_final = terminated or bool(one.next_obs) or self._layout.final
                        if not known_final:
                            self._leave(one, rows, truncated)
                except ValueError:
                    sizes.append(_Size(number, 0))
                    continue
                for kind, path, array in _all(one):
                    if (kind, path) not in known and kind != NEXT_OBS:
                        others[f"{path} ({array.dtype})", why_none(array)] += 1
                    seen["kept"] += kind == FURTHER and (kind, path) in known and len_of(array) > rows
                seen.update(name for name, flags in ends.items() if flags[:-1].any())
                seen["episodes"] += 1
                seen["rows"] += rows
                seen["rewarded"] += one.reward is not None
                seen["followed"] += bool(one.next_obs)
                seen["marked"] += one.terminated is not None or one.truncated is not None
                seen["halved"] += one.terminated is None and one.truncated is not None
                if rows - (not known_final):
                    sizes.append(_Size(number, rows - (not known_final)))
        self._say(others, seen)
        self.left_out += self._layout.surveyed(seen["rows"])
        return sizes

    def _leave(self, one: EpisodeRecording, rows: int, truncated: bool) -> None:
        self.left.steps += 1
        if one.reward is not None:
            self.left.reward += finite_sum(one.reward.rows(rows - 1, rows))
        if rows == 1:
            self.left.episodes += 1
            self.left.truncated += truncated
            self.left.unmarked += not truncated

    def _say(self, others: Mapping[tuple[str, str], int], seen: Mapping[str, int]) -> None:
        """Note omissions, and how the data are read."""
        sound = seen["episodes"]
        if 0 < seen["followed"] < sound:
            self.notes.append(f"next_obs: none in {sound - seen['followed']:,} episodes")
        if halved := seen["halved"]:
            self.notes.append(f"terminated: missing in {halved:,} episodes with truncated; none of them terminated")
        for (what, why), count in sorted(others.items()):
            self.left_out.append(f"{what}, in {count:,} episodes: {why} in most of them")
        self.left_out += self.left.said()
        if seen["kept"]:
            self.left_out.append("the last row of further fields that have one more than there are steps")
        if lacking := sound - seen["rewarded"]:
            where = "the data" if lacking == sound else f"{lacking:,} episodes"
            self.notes.append(f"rewards: none in {where}; 0 is stored")
        if lacking := sound - seen["marked"]:
            what = "an episode ended; all" if lacking == sound else f"{lacking:,} episodes ended; they"
            self.notes.append(f"nothing says how {what} count as truncated")
        for name in FLAGS:
            if count := seen[name]:
                self.notes.append(f"{name}: true before the last step in {count:,} episodes, which do not end there")

    def _flags(self, one: EpisodeRecording, name: str, rows: int, what: str) -> npt.NDArray[np.bool_]:
        """Return flags of each step, bool [T].  Raises: ValueError."""
        flags = getattr(one, name)
        if isinstance(flags, bool | None):
            marked: npt.NDArray[np.bool_] = np.arange(rows) == (rows - 1 if flags else rows)
            return marked
        self._budget.check_bytes(f"{what}: {name}", rows * flags.dtype.itemsize)
        values = flags.rows(0, rows).reshape(-1)
        if values.dtype != np.bool_ and (wrong := values[(values != 0) & (values != 1)]).size:
            raise ValueError(f"{name} has {wrong[0]}, expected 0 and 1")
        marked = values != 0
        return marked

    def __len__(self) -> int:
        return len(self._sizes)

    def read(self, number: int) -> SourceEpisode:
        what = self.place(number)
        with explained(what, self.name):
            one = self._layout.recording(self._sizes[number].number)
            rows = self._rows(one)
            lacking = self._lacking(one, rows)
            self._check_fields(one, rows, lacking)
            self._budget.check_episode(what, rows + 1, self.spec.fields)
            terminated, truncated = (bool(self._flags(one, name, rows, what)[-1]) for name in FLAGS)
            steps, rounded = rows, 0

            def read(kind: str, path: str, end: int) -> npt.NDArray[Any]:
                if path in lacking[kind]:
                    return empty_texts(self._fields[OBS if kind == NEXT_OBS else kind][path], end)
                field = self._fields[OBS if kind == NEXT_OBS else kind][path]
                return read_rows(f"{kind} {path}".strip(), getattr(one, kind)[path], 0, end, field)

            obs = {path: read(OBS, path, rows + self._layout.final) for path in self._fields[OBS]}
            for path in obs if one.next_obs else ():
                after = read(NEXT_OBS, path, rows)
                rounded += _compared(path, after, obs[path])
                if len(obs[path]) == rows:
                    obs[path] = np.concatenate([obs[path], after[-1:]])
            if len(next(iter(obs.values()))) == rows:  # the observation after a terminal step is never learned from
                if terminated:
                    obs = {path: np.concatenate([values, values[-1:]]) for path, values in obs.items()}
                else:
                    steps -= 1
            action = {path: read(ACTION, path, steps) for path in self._fields[ACTION]}
            further = {name: read(FURTHER, path, steps) for name, path in self._further.items()}
            reward = one.reward.rows(0, steps).reshape(-1) if one.reward else np.zeros(steps, np.float32)
        info = dict(one.info) | ({"next_obs_rounded": rounded} if rounded else {})
        made = self._tree(obs), self._tree(action)
        texts = whole_texts(self.spec, *made, further)
        missing = [path if kind == FURTHER else f"{kind} {path}" for kind in (OBS, FURTHER) for path in lacking[kind]]
        doubts = [f"{path}: a text that is missing; stored as empty texts" for path in missing]
        return SourceEpisode(*made, reward, terminated, truncated, further, info, texts, doubts)

    def _lacking(self, one: EpisodeRecording, rows: int) -> dict[str, list[str]]:
        """Return the paths by kind of text fields that an episode has no texts for, but for actions."""

        def lacks(kind: str, path: str, field: Field) -> bool:
            array = getattr(one, kind).get(path)
            return array is None or not _has(array, field) or (kind == FURTHER and not _by_step(array, rows))

        texts = {kind: {path: x for path, x in self._fields[kind].items() if x.text} for kind in (OBS, FURTHER)}
        found = {kind: [path for path, x in fields.items() if lacks(kind, path, x)] for kind, fields in texts.items()}
        if one.next_obs:
            found[OBS] = [path for path, x in texts[OBS].items() if lacks(OBS, path, x) or lacks(NEXT_OBS, path, x)]
        return found | {NEXT_OBS: found[OBS], ACTION: []}

    def _check_fields(self, one: EpisodeRecording, rows: int, lacking: Mapping[str, list[str]]) -> None:
        """Check that an episode has the fields of the data set, but for lacking texts.  Raises: ValueError."""
        for kind, arrays in ((OBS, one.obs), (NEXT_OBS, one.next_obs), (ACTION, one.action), (FURTHER, one.further)):
            for path, expected in self._fields[OBS if kind == NEXT_OBS else kind].items():
                if (kind == NEXT_OBS and not arrays) or path in lacking[kind]:
                    continue
                what = path if kind == FURTHER else f"{kind} {path}".strip()
                if path not in arrays:
                    raise ValueError(f"{what} is missing; most episodes have it")
                array = arrays[path]
                if not _has(array, expected):
                    raise ValueError(
                        f"{what} has rows of {array.shape[1:]} {array.dtype}, expected {expected.shape} "
                        f"{expected.dtype}, as in most episodes"
                    )
                if kind == FURTHER and not _by_step(array, rows):
                    raise ValueError(f"{what} has {len_of(array):,} rows, expected {rows:,}, as actions")

    def length(self, number: int) -> int:
        return self._sizes[number].steps

    def place(self, number: int) -> str:
        return self._where(self._sizes[number].number)

    def _where(self, number: int) -> str:
        return f"{self.name}: {self._layout.places[number]}"

    def named(self, name: str) -> list[int]:
        """Return the numbers of the episodes with a name in the layout.  Raises: ValueError."""
        if (wanted := self._layout.named(name)) is None:
            raise nameless(self.name, name)
        return [number for number, one in enumerate(self._sizes) if one.number in set(wanted)]


def _all(one: EpisodeRecording) -> Iterator[tuple[str, str, Array]]:
    for kind in (OBS, NEXT_OBS, ACTION, FURTHER):
        for path, array in getattr(one, kind).items():
            yield kind, path, array


def _has(array: Array, field: Field) -> bool:
    """Return whether an array's rows may be those of a field."""
    shape, dtype = row_kind(array) or (array.shape[1:], array.dtype)
    if isinstance(dtype, type):
        return field.text is not None
    return (shape, dtype.newbyteorder("=").name) == (field.shape, field.dtype)


def _by_step(array: Array, rows: int) -> bool:
    return len_of(array) in (rows, rows + 1) and 0 not in array.shape


def _compared(path: str, after: npt.NDArray[Any], obs: npt.NDArray[Any]) -> int:
    """Count next observations that differ from the following ones by rounding.  Raises: ValueError: by more."""
    following = obs[1:]
    differ, beyond = differing(after[: len(following)], following) if len(following) else (np.zeros(0), np.zeros(0))
    if beyond.any():
        raise ValueError(
            f"row {int(np.argmax(beyond))}: next_obs {path}".rstrip()
            + f" is not the observation of the next row, expected it, but for {TOLERANCE:g} of it or of 16 times the "
            "median; are these several episodes? Split them, or remove next_obs"
        )
    return int(differ.sum())
