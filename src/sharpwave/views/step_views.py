"""Views whose items the core finds among a log's steps, and n-step transitions: frame stacks, returns and next
observations, computed from the log when they are sampled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer, is_number
from sharpwave.arrays import Bytes, Floats, Int32s, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.ragged import Ragged
from sharpwave.spec import Field, Spec
from sharpwave.views import gather
from sharpwave.views.batch import Batch
from sharpwave.views.gather import LogArrays, Read, RowReader
from sharpwave.views.layout import Arrays, BatchTarget, Column
from sharpwave.views.view_protocol import MAX_RUNS, View, fills_at_once
from sharpwave.views.view_replay import Replay

B = TypeVar("B")

ARRAY_BYTES = 160
"""Bytes of a numpy array and of its place in a dictionary, beside its values."""
MAX_N_STEP = 1_000_000
"""Limit of ``n_step``: evicting a segment looks back so many steps."""
STEP, HERE, NEXT, AFTER = "step", "here", "next", ".."
"""Parts of a column: the value at a transition's first step, and the one after its last; where they do not overlap, the
latter has a column of its own, named with this suffix, in which no name of a field ends: a dot in a key is escaped."""
OF_FIELDS = {
    "wanted", "ragged", "stacks", "_spec", "_sparse", "_windows", "_endings", "_fields", "_stacks", "_runs",
    "_steps_read",
}  # fmt: skip
"""Attributes of a view that depend on which fields its batches have, or are its own working memory."""
NUMBERS = {
    "reward": np.float32,
    "discount": np.float32,
    ".terminated": np.bool_,
    ".truncated": np.bool_,
    ".n": np.int64,
    ".lane": np.int64,
    ".step": np.int64,
}
"""Columns of a batch that are made of flags and rewards, in the core's order; with a dot, as fields may have these
names."""


class StepView(View[B], Generic[B]):
    """View whose items the core finds among a log's known steps.

    Its ``fill`` has two steps, for shards: ``locate`` runs in the shard, ``decode`` in the learner.

    Attributes:
        decode_rows: rows of ``BatchTarget.scratch`` that ``decode`` reads, the first ones.
        foresees: the ``next_obs`` of a lane's last step makes it known before any later step is appended.
        wanted: flat names of the fields that batches have; ``None``: all.
        known: finder of the steps. ``runs``: int64 [3, MAX_RUNS]; it finds the first ones.
        expected: TD errors of steps that await being items, by slot.
        ragged: names of the fields with rows of any length, which are in no column.
        late: whether columns added later are columns of batches.
    """

    places_arrays = True
    decode_rows: int = 0
    ragged: tuple[str, ...] = ()
    wanted: frozenset[str] | None = None
    late: bool = True

    def serve(self, log: StepLog, known: core.StepFinder, *, foresees: bool = False) -> None:
        """Begin to serve a log, whose steps ``known`` finds."""
        self._log, self._spec, self._arrays = log, log.late.spec, LogArrays(log)
        self.ragged = log.spec.ragged_names
        self.known, self.foresees = known, foresees
        self.runs = np.empty((3, MAX_RUNS), np.int64)
        self._unforeseen = np.zeros(0, np.uint8)
        self.expected: dict[int, npt.NDArray[np.float32]] = {}

    def only(self, names: frozenset[str]) -> Self:
        """Return a view of the same items whose batches have these fields only."""
        view = copy.copy(self)
        view.wanted, view.ragged = names, tuple(name for name in self._log.spec.ragged_names if name in names)
        view.take_columns()
        return view

    def follow(self, whole: View[Any]) -> None:
        """Take over whatever the whole view has replaced, but its fields."""
        mine = vars(self)
        mine.update((name, value) for name, value in vars(whole).items() if name not in OF_FIELDS)

    def present(self) -> Spec:
        """Return the fields that batches may have now."""
        return self._log.late.spec if self.late else self._log.spec

    def fields(self) -> list[tuple[int, str, Field]]:
        """Return the fields that batches have, but ragged ones: each one's number, name and field."""
        wanted = self._spec.fields.keys() if self.wanted is None else self.wanted
        numbered = enumerate(self._spec.fields.items())
        return [(k, name, field) for k, (name, field) in numbered if name in wanted and not field.ragged]

    def late_fields(self, target: BatchTarget) -> list[tuple[int, str, Field]]:
        """Return the columns added later that only ``target`` has, as ``fields``."""
        numbered = enumerate(self._log.late.spec.fields.items()) if target.late else ()
        return [(k, name, field) for k, (name, field) in numbered if name in target.late]

    @property
    def read_columns(self) -> int:
        return 0 if self.wanted is None else self._log.layout.bits(self.wanted)

    def drawn_segments(self, items: Ints, uniforms: Floats) -> Ints:
        """Return ``segments`` of items; none where all that their batches have is in memory."""
        if self.wanted is not None and not self.wanted & self._log.spec.fields.keys():
            return np.empty((len(items), 0), np.int64)
        return self.segments(items)

    def joined(
        self, join: Callable[[Any], Any], names: Sequence[str], arrays: Arrays, part: str, suffix: str = ""
    ) -> Any:
        """Return an observation or action of a batch; ``None`` for parts that it does not have."""
        found: dict[str, Any] = {name: arrays.get((name + suffix, part)) for name in names}
        found |= {name: arrays[name + AFTER if part == NEXT else name] for name in names if name in self.ragged}
        return None if all(one is None for one in found.values()) else join(found)

    @property
    def nbytes(self) -> int:
        noted = sum(errors.nbytes + ARRAY_BYTES for errors in self.expected.values())
        return 4 * self.known.lanes + self.runs.nbytes + noted

    def find(self, spans: Int32s) -> Ints:
        """Find the steps that became known since the last call."""
        log = self._log
        if self.known.lanes < log.lanes:
            self.known.follow(log.inventory.oldest)
        foreseen = log.opened.successor_known if self.foresees else self._unforeseen
        self._spans = spans
        return self.runs[:, : self.known.find(self._arrays.current(), foreseen, spans, self.runs)]

    def finder(self) -> core.Finder:
        """Return the finder of items that are lost with a segment."""
        return self.known

    def lose(self, slot: int, spans: Int32s) -> Ints:
        """Find the items that need a step of the segment."""
        self.expected.pop(slot, None)
        log, finder = self._arrays.current(), self.finder()
        items = np.empty(finder.most_lost(log, slot), np.int64)
        return items[: finder.lose(log, slot, spans, items)]

    def lost_by(self) -> tuple[core.Finder, dict[int, Any]] | None:
        """Return the finder, unless a class has a ``lose`` of its own."""
        return (self.finder(), self.expected) if type(self).lose is StepView.lose else None

    def expect(self, slot: int, td_error: npt.NDArray[np.float32]) -> None:
        """Note TD errors [rows] of the steps in ``slot``."""
        self.expected[slot] = td_error

    def fill(self, target: BatchTarget) -> None:
        """Compute returns and decode every field."""
        reads, readers = self.locate(target), self._arrays.readers()
        self.decode(target, reads, [readers[read.field] for read in reads])
        self.fill_apart(target)

    def locate(self, target: BatchTarget) -> list[Read]:
        """Fill the columns of flags and rewards, and return the rows to decode for the others."""
        raise NotImplementedError

    def decode(self, target: BatchTarget, reads: Sequence[Read], readers: Sequence[RowReader]) -> None:
        """Decode some of the ``reads`` of ``locate``, each with a reader of its own, into the columns."""
        for read, reader in zip(reads, readers, strict=True):
            reader.decode(read, target.columns[read.column])

    def places(self, target: BatchTarget, part: str = STEP) -> tuple[Ints, Ints, Ints | None, int]:
        """Return where rows that are in no column are, after ``locate``: their slots and their rows there [n], the rows
        of the batch for them (``None``: in order), and how many rows an item has.

        Args:
            part: ``STEP``: values of steps; ``HERE``: of their observations; ``NEXT``: of those after them.
        """
        raise NotImplementedError

    def fill_apart(self, target: BatchTarget) -> None:
        """Read ragged rows, which are in no column, into the batch."""
        if not target.ragged:
            return
        readers, numbers = self._arrays.readers(), {name: k for k, name in enumerate(self._spec.fields)}
        found_places = dict[str, tuple[Ints, Ints, Ints | None, int]]()
        for name, rows in target.ragged.items():
            field_name = name.removesuffix(AFTER)
            part = STEP if field_name not in self._spec.obs_names else HERE if field_name == name else NEXT
            if part not in found_places:
                found_places[part] = self.places(target, part)
            slot, row, places, each = found_places[part]
            reader: Any = readers[numbers[field_name]]
            values, found = reader.take(slot, row)
            if target.grow is not None:
                target.grow(values.nbytes + found.nbytes)
            lengths = found
            if places is not None:
                lengths = np.zeros(each * len(target.ids), np.int64)
                lengths[places] = found
            rows.take_part(target.begin * each, values, lengths, reader.lend)

    def further(self, arrays: Arrays, part: str) -> dict[str, Any]:
        """Return the further fields of a batch."""
        found = {name: arrays.get(name if name in self.ragged else (name, part)) for name in self._spec.extra_names}
        return {name: values for name, values in found.items() if values is not None}

    def no_rows(self, count: int) -> dict[str, Ragged]:
        """Return empty rows for ``take_part`` by the fields' names, of observations after a step with ``AFTER``."""
        after = [name + AFTER for name in self.ragged if name in self._spec.obs_names]
        return {name: empty_rows(self._spec.fields[name.removesuffix(AFTER)], count) for name in (*self.ragged, *after)}


def empty_rows(field: Field, *shape: int) -> Ragged:
    """Return rows of a ragged field, all of them empty."""
    empty = np.empty((0, *field.inner), field.np_dtype)
    return Ragged(empty, np.zeros(int(np.prod(shape)) + 1, np.int64), shape, field.text)


def numbers(arrays: Arrays, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the arrays of a draw, and the arrays with ``names``, by their attribute of a batch."""
    return {name.removeprefix("."): arrays[name] for name in ("weights", "probabilities", "ids", *names)}


class NStep(StepView[Batch]):
    """View of n-step transitions: an item is a step.

    Args:
        n_step: limit of the steps that ``reward`` sums.
        gamma: discount factor, 0 to 1.
        newest: whether a lane's last step can be sampled at once if it has ``next_obs``; otherwise after the next step.

    Attributes:
        stacks: whether a field of the observation has a stack.

    Raises:
        ValueError: naming the argument.
    """

    kind = "transitions"
    scratch_rows = 7
    only_ended: bool | None = False
    places_arrays = True

    def __init__(self, n_step: int, gamma: float, newest: bool = False) -> None:
        if not is_integer(n_step) or not 1 <= n_step <= MAX_N_STEP:
            raise ValueError(f"transitions: n_step={n_step!r}, expected an integer from 1 to {MAX_N_STEP:,}")
        if not is_number(gamma) or not 0 <= gamma <= 1:
            raise ValueError(f"transitions: gamma={gamma!r}, expected a number from 0 to 1")
        self.n_step, self.gamma, self.newest = int(n_step), float(gamma), bool(newest)

    @property
    def waits_for(self) -> str:
        return f"a step can be sampled once its episode has ended or {self.n_step} more steps were appended to its lane"

    def settings(self) -> dict[str, Any]:
        """Return ``n_step``, ``gamma``, and ``newest`` where it is set."""
        return {"n_step": self.n_step, "gamma": self.gamma} | ({"newest": True} if self.newest else {})

    def bind(self, log: StepLog) -> None:
        """Begin to serve ``log``."""
        known = core.EndedSteps(self.n_step) if self.only_ended else core.KnownSteps(self.n_step)
        self.serve(log, known, foresees=self.newest and not self.only_ended)
        self.take_columns()

    def take_columns(self) -> None:
        """Read the columns that the log has now."""
        self._spec = spec = self.present()
        fields = self.fields()
        self._sparse = any(field.every is not None or field.shared for _, _, field in fields)
        self.stacks = any(spec.fields[name].frames > 1 for name in spec.obs_names)
        # Windows of rows: column, number of its field, and with which rows each ends.
        self._windows: list[tuple[str, int, int]] = []
        for number, name, _ in fields:
            if name not in spec.obs_names:
                self._windows.append((name, number, core.OF_STEPS))
            elif self.n_step == 1:  # one window holds both stacks, which overlap by all but one frame
                self._windows.append((name, number, core.OF_FRAMES_AFTER))
            else:
                self._windows += [(name, number, core.OF_FRAMES), (name + AFTER, number, core.OF_FRAMES_AFTER)]
        self._endings = np.array([ending for _, _, ending in self._windows], np.uint8)  # its memory outlives fillers

    # items

    def first_errors(self, runs: Ints) -> tuple[Ints, Floats] | None:
        """Return the steps of ``runs`` with known TD errors."""
        if not self.expected:
            return None
        items, errors = [np.empty(0, np.int64)], [np.empty(0, np.float64)]
        for slot, begin, end in runs.T.tolist():
            expected = self.expected.get(slot)
            if expected is not None:
                items.append(np.arange(begin, end) + slot * self._log.stride)
                errors.append(expected[begin:end].astype(np.float64))
                if end == len(expected):
                    del self.expected[slot]
        return np.concatenate(items), np.concatenate(errors)

    # batches

    def segments(self, items: Ints) -> Ints:
        """Return the segment of each step, and the one in which its return ends."""
        log = self._log
        slots = items // log.stride
        if self.n_step == 1:
            return slots[:, None]
        both = np.stack([slots, slots], axis=1)
        crossing = np.flatnonzero(items - slots * log.stride + self.n_step >= log.index.rows[slots])
        if len(crossing):
            located = np.empty((self.scratch_rows, len(crossing)), np.int64)
            self._locate(items[crossing], {k: np.empty(len(crossing), kind) for k, kind in NUMBERS.items()}, located)
            both[crossing, 1] = located[4]
        return both

    def columns(self) -> Mapping[str, Column]:
        """Return the columns of flags and rewards, and one or two windows of frames a field."""
        columns = {name: Column(kind) for name, kind in NUMBERS.items()}
        fields = list(self._spec.fields.values())
        for name, number, ending in self._windows:
            field, after = fields[number], ending == core.OF_FRAMES_AFTER
            shape = field.shape if field.stack is None else (field.frames, *field.shape)
            parts = [HERE, NEXT] if after and self.n_step == 1 else [NEXT] if after else [HERE]
            begins = {part: (field.dtype, shape, k * field.row_bytes) for k, part in enumerate(parts)}
            window = field.frames + len(parts) - 1, field.row_bytes
            apart = len(parts) == window[0] > 1  # nothing is shared
            columns[name] = Column(np.uint8, window, begins, number, apart)
        return columns

    def locate(self, target: BatchTarget) -> list[Read]:
        """Compute returns; return the windows of every field."""
        self._locate(target.draw.items, target.columns, target.scratch)
        slot, row, frame, first, next_slot, next_frame, next_first = target.rows
        readers, reads = self._arrays.readers(), []
        late = [(name, number, core.OF_STEPS) for number, name, _ in self.late_fields(target)]
        for name, number, ending in self._windows + late:
            if ending == core.OF_STEPS:
                there = readers[number].rows(slot, row)
                reads.append(Read(name, number, slot, there, there))
            elif ending == core.OF_FRAMES:
                reads.append(Read(name, number, slot, frame, first))
            else:
                reads.append(Read(name, number, next_slot, next_frame, next_first))
        return reads

    def places(self, target: BatchTarget, part: str = STEP) -> tuple[Ints, Ints, Ints | None, int]:
        """Return the steps themselves, or their observations."""
        slot, row, frame, _, next_slot, next_frame, _ = target.rows
        if part == NEXT:
            return next_slot, next_frame, None, 1
        return slot, row if part == STEP else frame, None, 1

    def _locate(self, items: Ints, columns: Mapping[str, npt.NDArray[Any]], located: Ints) -> None:
        filled: list[Any] = [columns[name] for name in NUMBERS]
        settings = self.n_step, self.gamma, self.stacks
        core.locate_transitions(self._arrays.current(), items, *settings, *filled, located)  # type: ignore[call-arg]

    @property
    def filled_at_once(self) -> list[str] | None:
        """Columns of a batch in the core's order; ``None`` where the core does not fill them at once."""
        if not fills_at_once(self) or self._sparse or self.ragged:
            return None
        return [*NUMBERS, *(name for name, _, _ in self._windows)]

    def filler(self, spans: Int32s) -> tuple[core.Filler, Ints, list[tuple[object, str]]]:
        """Return the filler of whole batches, its runs, and the arrays, by object and name, that can outdate it."""
        settings = self.n_step, self.gamma, self.stacks
        filler = core.TransitionFiller(*self.windows(), self.known, spans, self.runs, *settings, *gather.limits())
        return filler, self.runs, []

    def windows(self) -> tuple[core.Log, list[core.Column], Bytes]:
        """Return the log's arrays, the column of each window's field, and with which rows each ends."""
        readers = self._arrays.readers()
        return self._arrays.current(), [readers[number].arrays for _, number, _ in self._windows], self._endings

    def batch(self, arrays: Arrays) -> Batch:
        spec, after = self._spec, "" if self.n_step == 1 else AFTER
        return Batch(
            obs=self.joined(spec.join_obs, spec.obs_names, arrays, HERE),
            action=self.joined(spec.join_action, spec.action_names, arrays, HERE),
            next_obs=self.joined(spec.join_obs, spec.obs_names, arrays, NEXT, after),
            fields=self.further(arrays, HERE),
            **numbers(arrays, tuple(NUMBERS)),
        )


class Transitions(Replay[Batch]):
    """Replay of a store's n-step transitions. Made by ``sharpwave.Store.transitions``.

    Attributes:
        n_step, gamma: settings of the view.
    """

    view: NStep

    @property
    def n_step(self) -> int:
        """Limit of the steps that ``reward`` sums."""
        return self.view.n_step

    @property
    def gamma(self) -> float:
        """Discount factor."""
        return self.view.gamma
