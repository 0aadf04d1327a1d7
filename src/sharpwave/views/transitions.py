"""N-step transitions: frame stacks, returns and next observations, computed from the log when they are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer, is_number
from sharpwave.native import core
from sharpwave.views import gather
from sharpwave.views.batch import Batch
from sharpwave.views.gather import FieldReader, FieldReaders, Read
from sharpwave.views.known_steps import KnownSteps, lost
from sharpwave.views.layout import Arrays, Column, Target
from sharpwave.views.log_arrays import LogArrays
from sharpwave.views.replay import Replay
from sharpwave.views.view import DividedView, errors_bytes, fills_at_once

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

MAX_N_STEP = 1_000_000
"""Limit of ``n_step``: evicting a segment looks back so many steps."""
HERE, NEXT, AFTER = "here", "next", ".."
"""Parts of a column: the value at a transition's first step, and the one after its last; where they do not overlap, the
latter has a column of its own, named with this suffix, in which no name of a field ends: a dot in a key is escaped."""


class NStep(DividedView[Batch]):
    """View of n-step transitions: an item is a step.

    Args:
        n_step: limit of the steps that ``reward`` sums.
        gamma: discount factor, 0 to 1.
        newest: a lane's last step can be sampled at once where it came with ``next_obs``; else once another follows.

    Attributes:
        stacks: whether a field of the observation has a stack.
        known: finder of the items. ``expected``: TD errors of steps that await being items, by slot.

    Raises:
        ValueError: naming the argument.
    """

    kind = "transitions"
    scratch_rows = 7
    places_arrays = True

    def __init__(self, n_step: int, gamma: float, newest: bool = False) -> None:
        if not is_integer(n_step) or not 1 <= n_step <= MAX_N_STEP:
            raise ValueError(f"transitions: n_step={n_step!r}, expected an integer from 1 to {MAX_N_STEP:,}")
        if not is_number(gamma) or not 0 <= gamma <= 1:
            raise ValueError(f"transitions: gamma={gamma!r}, expected a number from 0 to 1")
        self.n_step, self.gamma, self.newest = int(n_step), float(gamma), bool(newest)

    @property
    def waits_for(self) -> str:
        """What a step must wait for before it can be sampled."""
        return f"a step can be sampled once its episode has ended or {self.n_step} more steps were appended to its lane"

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.known.nbytes + errors_bytes(self.expected)

    def settings(self) -> dict[str, Any]:
        """Return ``n_step``, ``gamma``, and ``newest`` where it is set."""
        return {"n_step": self.n_step, "gamma": self.gamma} | ({"newest": True} if self.newest else {})

    def bind(self, log: StepLog) -> None:
        """Begin to serve ``log``."""
        self._log, self._spec = log, log.spec
        self.known = KnownSteps(log, self.n_step, self.newest)
        self.expected: dict[int, npt.NDArray[np.float32]] = {}
        self._readers, self._arrays = FieldReaders(log), LogArrays(log)
        self.stacks = any(log.spec.fields[name].frames > 1 for name in log.spec.obs_names)
        self._framed = {k for k, name in enumerate(log.spec.fields) if name in log.spec.obs_names}
        # Of a batch's windows of frames: column, number of its field, and whether it ends with the frame after.
        self._windows: list[tuple[str, int, bool]] = []
        for number, name in enumerate(log.spec.fields):
            if number not in self._framed:
                self._windows.append((name, number, False))
            elif self.n_step == 1:  # one window holds both stacks, which overlap by all but one frame
                self._windows.append((name, number, True))
            else:
                self._windows += [(name, number, False), (name + AFTER, number, True)]
        # Those with a row a step or a frame, with which rows each ends, and their columns as the core reads them.
        fields = list(log.spec.fields.values())
        self._dense = [window for window in self._windows if fields[window[1]].every is None]
        self._sparse = [window for window in self._windows if fields[window[1]].every is not None]
        endings = [
            core.OF_STEPS if number not in self._framed else core.OF_FRAMES_AFTER if after else core.OF_FRAMES
            for _, number, after in self._dense
        ]
        self._endings = np.array(endings, np.uint8)
        self._filling: tuple[list[FieldReader] | None, list[core.Column]] = None, []

    # items

    def find(self, spans: Int32s) -> Ints:
        """Find the steps whose n-step successor became known."""
        return self.known.find(spans)

    def lose(self, slot: int, spans: Int32s) -> Ints:
        """Find the steps whose returns reach into the segment, and move cursors past it."""
        self.expected.pop(slot, None)
        return lost(self.known, self._arrays.current(), slot, spans)

    def lost_by(self) -> tuple[core.Finder, dict[int, Any]] | None:
        """Return ``known``, unless a class has a ``lose`` of its own."""
        return (self.known, self.expected) if type(self).lose is NStep.lose else None

    def expect(self, slot: int, td_error: npt.NDArray[np.float32]) -> None:
        """Note TD errors [rows] of the steps in ``slot``."""
        self.expected[slot] = td_error

    def first_errors(self, runs: Ints) -> tuple[Ints, npt.NDArray[np.float64]] | None:
        """Return the steps of ``runs`` whose TD errors are known."""
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
            self._locate(items[crossing], {k: np.empty(len(crossing), kind) for k, kind in _NUMBERS.items()}, located)
            both[crossing, 1] = located[4]
        return both

    def columns(self) -> Mapping[str, Column]:
        """Return what is made of flags and rewards, and one or two windows of frames a field."""
        columns = {name: Column(kind) for name, kind in _NUMBERS.items()}
        fields = list(self._spec.fields.values())
        for name, number, after in self._windows:
            field = fields[number]
            shape = field.shape if field.stack is None else (field.frames, *field.shape)
            parts = [HERE, NEXT] if after and self.n_step == 1 else [NEXT] if after else [HERE]
            begins = {part: (field.dtype, shape, k * field.row_bytes) for k, part in enumerate(parts)}
            window = field.frames + len(parts) - 1, field.row_bytes
            apart = len(parts) == window[0] > 1  # nothing is shared
            columns[name] = Column(np.uint8, window, begins, number, apart)
        return columns

    def dense_columns(self) -> tuple[core.Log, list[core.Column], npt.NDArray[np.uint8]]:
        """Return the log's arrays, columns of fields with a row a step or a frame, and with which rows each window
        ends: valid until the log grows."""
        readers = self._readers.current()
        if readers is not self._filling[0]:
            self._filling = readers, [readers[number].arrays for _, number, _ in self._dense]
        return self._readers.log, self._filling[1], self._endings

    def fill(self, target: Target) -> None:
        """Compute returns and decode every field."""
        readers, columns = self._readers.current(), target.columns
        log, dense, endings = self.dense_columns()
        left_out = core.fill_transitions(
            log, target.draw.items, self.n_step, self.gamma, self.stacks, columns["reward"], columns["discount"],
            columns[".terminated"], columns[".truncated"], columns[".n"], columns[".lane"], columns[".step"],
            target.scratch, dense, endings, [columns[name] for name, _, _ in self._dense],
            gather.THREADS, gather.THREAD_BYTES, gather.CHUNK_BYTES,
        )  # fmt: skip
        for i in left_out:
            read = self._read(target, *self._dense[i])
            readers[read.field].read_left_out(read.slot, read.newest, read.first, columns[read.column])
        for window in self._sparse:
            read = self._read(target, *window)
            readers[read.field].read(read.slot, read.newest, read.first, columns[read.column])

    @property
    def filled_at_once(self) -> list[str] | None:
        """Columns of a batch in the core's order; ``None`` where the core does not fill them at once."""
        if not fills_at_once(self) or self._sparse or self.newest:
            return None
        return [*_NUMBERS, *(name for name, _, _ in self._dense)]

    def filler(self, spans: Int32s) -> tuple[core.Filler, Ints, list[tuple[object, str]]]:
        """Return what fills whole batches, its runs, and by object and name the arrays with which it is outdated."""
        log, columns, endings = self.dense_columns()
        known, settings = self.known, (self.n_step, self.gamma, self.stacks)
        filler = core.TransitionFiller(log, columns, endings, known, spans, known.runs, *settings, *gather.limits())
        return filler, known.runs, []

    def locate(self, target: Target) -> list[Read]:
        """Compute returns; return the windows of every field."""
        self._locate(target.draw.items, target.columns, target.scratch)
        return [self._read(target, *window) for window in self._windows]

    def _read(self, target: Target, name: str, number: int, after: bool) -> Read:
        """Return the rows of one of ``_windows`` for located items."""
        slot, row, frame, first, next_slot, next_frame, next_first = target.rows
        if number not in self._framed:
            there = self._readers.current()[number].rows(slot, row)
            return Read(name, number, slot, there, there)
        if after:
            return Read(name, number, next_slot, next_frame, next_first)
        return Read(name, number, slot, frame, first)

    def _locate(self, items: Ints, columns: Mapping[str, npt.NDArray[Any]], located: Ints) -> None:
        core.locate_transitions(
            self._arrays.current(), items, self.n_step, self.gamma, self.stacks, columns["reward"], columns["discount"],
            columns[".terminated"], columns[".truncated"], columns[".n"], columns[".lane"],
            columns[".step"], located,
        )  # fmt: skip

    def batch(self, arrays: Arrays) -> Batch:
        """Return a ``Batch``."""
        spec = self._spec
        after = "" if self.n_step == 1 else AFTER
        obs = {name: arrays[name, HERE] for name in spec.obs_names}
        next_obs = {name: arrays[name + after, NEXT] for name in spec.obs_names}
        return Batch(
            spec.join_obs(obs),
            spec.join_action({name: arrays[name, HERE] for name in spec.action_names}),
            arrays["reward"],
            spec.join_obs(next_obs),
            arrays["discount"],
            arrays["weights"],
            arrays["probabilities"],
            arrays["ids"],
            {name: arrays[name, HERE] for name in spec.extra_names},
            terminated=arrays[".terminated"],
            truncated=arrays[".truncated"],
            n=arrays[".n"],
            lane=arrays[".lane"],
            step=arrays[".step"],
        )


_NUMBERS = {
    "reward": np.float32,
    "discount": np.float32,
    ".terminated": np.bool_,
    ".truncated": np.bool_,
    ".n": np.int64,
    ".lane": np.int64,
    ".step": np.int64,
}
"""Columns of a batch that are made of flags and rewards; with a dot, as fields may have these names."""


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
