"""Windows of consecutive steps of an episode, with burn-in and n-step returns, put together when they are sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array, is_integer, is_number
from sharpwave.arrays import Floats, Int32s, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.native.untouched import zeros
from sharpwave.ragged import Ragged
from sharpwave.spec import Field
from sharpwave.views import gather
from sharpwave.views.batch import SequenceBatch
from sharpwave.views.gather import PIECE_ROWS, Read, RowReader
from sharpwave.views.layout import Arrays, BatchTarget, Column
from sharpwave.views.step_views import STEP, StepView, empty_rows, numbers
from sharpwave.views.view_protocol import MAX_RUNS, fills_at_once, items_of
from sharpwave.views.view_replay import Replay, on_host

MAX_COLUMNS = 1_000_000
"""Columns of a window, the observations behind its last step included."""
VALUE = "value"
"""Part of a column that is handed out."""
NUMBERS = {
    ".step_reward": np.float32,
    "reward": np.float32,
    "discount": np.float32,
    ".bootstrap": np.int64,
    ".mask": np.bool_,
    ".first": np.bool_,
    ".terminated": np.bool_,
    ".truncated": np.bool_,
    ".n": np.int64,
}
"""Columns of a batch that are made of flags and rewards, a value a step, in the core's order; with a dot, as fields may
have these names."""
PLACE = (".lane", ".step")
"""Columns that locate a window in the log."""


class Windows(StepView[SequenceBatch]):
    """View of a store as windows of steps: an item is a window, identified by its first trained step.

    Args:
        length: maximum number of trained steps.
        burn_in: steps before them.
        stride: windows begin at steps whose number in their episode is a multiple of it; ``None``: ``length``.
        n_step: maximum number of steps that ``reward`` sums.
        gamma: discount factor, 0 to 1.
        eta: share of the largest TD error in a window's priority, 0 to 1 (Kapturowski et al. 2019, section 2.3).

    Raises:
        ValueError: naming the argument.
    """

    only_ended: bool | None = False
    kind = "sequences"
    scratch_rows = decode_rows = 2
    places_arrays = True

    def __init__(self, length: int, burn_in: int, stride: int | None, n_step: int, gamma: float, eta: float) -> None:
        stride = length if stride is None else stride
        for name, value, lowest in (("length", length, 1), ("burn_in", burn_in, 0), ("n_step", n_step, 1)):
            if not is_integer(value) or value < lowest:
                raise ValueError(f"sequences: {name}={value!r}, expected an integer of at least {lowest}")
        if length + burn_in + n_step > MAX_COLUMNS:
            raise ValueError(
                f"sequences: length={length}, burn_in={burn_in} and n_step={n_step} are {length + burn_in + n_step:,} "
                f"columns, expected at most {MAX_COLUMNS:,}"
            )
        if not is_integer(stride) or not 1 <= stride <= length:
            raise ValueError(
                f"sequences: stride={stride!r}, expected an integer from 1 to length={length}: with a larger one some "
                "steps would be in no window"
            )
        for name, share in (("gamma", gamma), ("eta", eta)):
            if not is_number(share) or not 0 <= share <= 1:
                raise ValueError(f"sequences: {name}={share!r}, expected a number from 0 to 1")
        self.length, self.burn_in, self.stride, self.n_step = int(length), int(burn_in), int(stride), int(n_step)
        self.reach_back = self.burn_in
        self.gamma, self.eta = float(gamma), float(eta)
        self.error_shape = (self.length,)
        self.id_space = f"windows of stride {self.stride}"

    @property
    def waits_for(self) -> str:
        return (
            f"a window can be sampled once its episode has ended or {self.length + self.n_step} steps from its first "
            "trained one on were appended to its lane"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory; of the arrays by slot only the used part, as pages are allocated on the first write."""
        work = self._found.nbytes + self._runs.nbytes + self._steps_read.nbytes
        return super().nbytes + work + 8 * self._log.index.highest

    def settings(self) -> dict[str, Any]:
        """Return all that it was constructed with."""
        names = ("length", "burn_in", "stride", "n_step", "gamma", "eta")
        return {name: getattr(self, name) for name in names}

    def bind(self, log: StepLog) -> None:
        """Serve ``log``."""
        reach = self.length + self.n_step - 1
        self.serve(log, core.EndedSteps(reach) if self.only_ended else core.KnownSteps(reach))
        self._steps = zeros((log.index.slots, 2), np.int32)  # of each segment's rows, which begin whole windows
        self._found = np.empty((3, MAX_RUNS), np.int64)
        self._runs = np.empty((core.RUN_ROWS, 0), np.int64)
        self._steps_read = np.empty((PIECE_ROWS, 0), np.int64)  # pieces of the latest batch with rows in no column
        self._columns = self.burn_in + self.length
        self.take_columns()

    def take_columns(self) -> None:
        """Read the columns that the log has now."""
        self._spec = spec = self.present()
        self._fields = {number: field for number, _, field in self.fields()}
        stacks = [field.frames if name in spec.obs_names else 0 for _, name, field in self.fields()]
        self._stacks = np.array(stacks, np.int64)

    def grow(self, slots: int) -> None:
        """Make room for so many slots."""
        if slots > len(self._steps):
            steps = zeros((slots, 2), np.int32)
            steps[: len(self._steps)] = self._steps
            self._steps = steps

    # items

    def find(self, spans: Int32s) -> Ints:
        """Find the windows that became whole."""
        steps = super().find(self._steps)
        # If there may be more, return as many runs as steps have, padded with empty ones: the caller then calls again.
        keep = steps.shape[1] == MAX_RUNS
        log, found = self._arrays.current(), steps.shape[1]
        count = core.windows_of_steps(log, self.runs, found, self.stride, self.burn_in, spans, self._found, keep)
        return self._found[:, :count]

    def finder(self) -> core.Finder:
        """Return the finder of lost windows: earlier windows for returns, later ones for their burn-in."""
        reach = self.length + self.n_step - 1
        return core.KnownWindows(self.known, self._steps, reach, self.burn_in, self.stride)

    def first_errors(self, runs: Ints) -> tuple[Ints, Floats] | None:
        """Return the windows of ``runs`` for which the TD errors of all trained steps are known."""
        if not self.expected:
            return None
        group, following, rows = self._log.stride, self._log.index.next, self._log.index.rows
        items = items_of(runs, group)
        begins, counts = self._trained(items)
        known, errors = [], []
        for item, begin, left in zip(items.tolist(), begins.tolist(), counts.tolist(), strict=True):
            slot, parts = item // group, []
            while left > 0 and slot in self.expected:
                part = self.expected[slot][begin : begin + left]
                parts.append(part)
                left -= len(part)
                slot, begin = int(following[slot]), 0
            if left == 0:
                known.append(item)
                errors.append(self._mixed(np.abs(np.concatenate(parts))))
        done = [slot for slot in self.expected if self._steps[slot, 1] == rows[slot]]
        for slot in done:  # all windows that begin in it or before it were found
            del self.expected[slot]
        return np.array(known, np.int64), np.array(errors, np.float64)

    def _mixed(self, errors: npt.NDArray[Any]) -> float:
        return self.eta * float(errors.max()) + (1 - self.eta) * float(errors.mean(dtype=np.float64))

    def item_errors(self, items: Ints, td_error: Floats) -> Floats:
        """Return ``eta max |e| + (1 - eta) mean |e|`` over the trained steps of each item."""
        _, counts = self._trained(items)
        errors = np.where(np.arange(self.length) < counts[:, None], np.abs(td_error), 0.0)
        mixed: Floats = self.eta * errors.max(axis=1) + (1 - self.eta) * errors.sum(axis=1) / counts
        return mixed

    def _trained(self, items: Ints) -> Ints:
        """Return the row of each item's first trained step, and how many there are: int64 [2, n]."""
        trained = np.empty((2, len(items)), np.int64)
        core.trained_steps(self._arrays.current(), items, self.stride, self.length, trained[0], trained[1])
        return trained

    # batches

    def first_steps(self, items: Ints) -> Ints:
        """Return the number of each window's first trained step."""
        steps = np.empty(len(items), np.int64)
        core.first_steps(self._arrays.current(), items, self.stride, steps)
        return steps

    def segments(self, items: Ints) -> Ints:
        """Return the segments that each window touches."""
        shape = len(items), self._columns
        columns: dict[str, Any] = {name: np.empty(shape, dtype) for name, dtype in NUMBERS.items()}
        columns |= {name: np.empty(len(items), np.int64) for name in PLACE}
        count = self._locate(items, columns, np.empty((2, len(items)), np.int64))
        runs = self._runs[:, :count]
        touched = np.bincount(runs[0], minlength=len(items))
        ends = np.cumsum(touched)
        slots: Ints = np.repeat(runs[1, ends - touched][:, None], touched.max(initial=1), axis=1)
        slots[runs[0], np.arange(count) - (ends - touched)[runs[0]]] = runs[1]
        return slots

    def columns(self) -> Mapping[str, Column]:
        """Return the columns of flags and rewards, and a window a field."""
        columns = {name: Column(dtype, (self._columns,)) for name, dtype in NUMBERS.items()}
        columns |= {name: Column(np.int64) for name in PLACE}
        for number, name, field in self.fields():
            rows, shape = self._shape(name, field)
            columns[name] = Column(np.uint8, (rows, field.row_bytes), {VALUE: (field.dtype, shape, 0)}, number)
        return columns

    def _shape(self, name: str, field: Field) -> tuple[int, tuple[int, ...]]:
        """Return the rows of a field that a window has, and the shape in which they are handed out."""
        if name in self._spec.obs_names:
            columns = self._columns + self.n_step
            stacked = (columns,) if field.stack is None else (columns, field.stack)
            return columns * field.frames, (*stacked, *field.shape)
        if field.every is not None:
            return 1, field.shape
        return self._columns, (self._columns, *field.shape)

    @property
    def filled_at_once(self) -> list[str] | None:
        """Columns of a batch in the core's order; ``None`` where the core does not fill them at once."""
        apart = any(field.every is not None or field.shared for field in self._fields.values())
        if not fills_at_once(self) or self.ragged or apart:
            return None
        return [*NUMBERS, *PLACE, *(name for _, name, _ in self.fields())]

    def filler(self, spans: Int32s) -> tuple[core.Filler, Ints, list[tuple[object, str]]]:
        """Return the filler of whole batches, its runs, and the arrays, by object and name, that can outdate it."""
        readers = self._arrays.readers()
        columns = [readers[number].arrays for number in self._fields]
        filler = core.WindowFiller(
            self._arrays.current(), columns, self._stacks, self.known, self._steps, self.runs, spans, self._found,
            self.length, self.burn_in, self.stride, self.n_step, self.gamma, self.eta, *gather.limits(),
        )  # fmt: skip
        return filler, self._found, [(self, "_steps")]

    def locate(self, target: BatchTarget) -> list[Read]:
        """Compute returns; return the pieces of every field, in the fields' order."""
        places = target.scratch
        count = self._locate(target.draw.items, target.columns, places)
        log, runs, steps = self._arrays.current(), self._runs, np.empty((PIECE_ROWS, count), np.int64)
        steps = steps[:, : core.step_pieces(runs, count, self._columns, steps)].copy()
        reads, frames = [], dict[int, Ints]()
        if self.ragged:
            self._steps_read, self._steps_found = steps, count
        for number, name, field in self.fields() + self.late_fields(target):
            if name in self._spec.obs_names:
                stack, window = field.frames, target.columns[name].shape[1]
                pieces = frames.get(stack)
                if pieces is None:
                    pieces = frames[stack] = np.empty((PIECE_ROWS, count), np.int64)
                    begin = window - window // stack - stack + 1
                    core.frame_pieces(log, runs, places, stack, window, begin, pieces)
                reads.append(Read(name, number, pieces[0], pieces[1], pieces[2], pieces))
            elif field.every is not None:
                first = np.flatnonzero(runs[4, :count] == places[0, runs[0, :count]])
                slot = runs[1, first]
                row = self._arrays.readers()[number].rows(slot, runs[2, first])
                reads.append(Read(name, number, slot, row, row))
            else:
                reads.append(Read(name, number, steps[0], steps[1], steps[2], steps))
        return reads

    def no_rows(self, count: int) -> dict[str, Ragged]:
        """Return empty rows of each column of windows."""
        return {name: empty_rows(self._spec.fields[name], count, self._width(name)) for name in self.ragged}

    def _width(self, name: str) -> int:
        """Return the rows that a window has of a field without a stack."""
        return self._columns + (self.n_step if name in self._spec.obs_names else 0)

    def places(self, target: BatchTarget, part: str = STEP) -> tuple[Ints, Ints, Ints | None, int]:
        """Return the steps of the windows that ``locate`` found, one by one, or the observations."""
        width, pieces = self._columns, self._steps_read
        if part != STEP:
            count = self._steps_found
            width, pieces = self._columns + self.n_step, np.empty((PIECE_ROWS, count), np.int64)
            core.frame_pieces(self._arrays.current(), self._runs, target.scratch, 1, width, 0, pieces)
        slot, newest, _, length, to = pieces
        piece = np.repeat(np.arange(len(slot)), length)
        within = np.arange(len(piece)) - np.repeat(np.cumsum(length) - length, length)
        places = to[piece] + within
        order = np.argsort(places, kind="stable")
        row = newest[piece] - length[piece] + 1 + within
        return slot[piece][order], row[order], places[order], width

    def decode(self, target: BatchTarget, reads: Sequence[Read], readers: Sequence[RowReader]) -> None:
        """Decode fields, spread stacks, and clear padding."""
        places = target.scratch
        for read, reader in zip(reads, readers, strict=True):
            out, field = target.columns[read.column], self._fields.get(read.field)
            reader.decode(read, out)
            if field is not None and read.column in self._spec.obs_names:
                if field.frames > 1:
                    core.spread_stacks(out, places, field.frames)
                core.clear_padding(out.reshape(len(out), -1, field.frames * field.row_bytes), places, 1)
            elif field is None or field.every is None:  # columns that only the target has are of every step
                core.clear_padding(out, places, 0)

    def _locate(self, items: Ints, columns: Mapping[str, npt.NDArray[Any]], places: Ints) -> int:
        """Compute the columns of flags and rewards, and the runs of steps; return the number of runs."""
        while True:
            settings = self.stride, self.burn_in, self.n_step, self.gamma
            filled: list[Any] = [columns[name] for name in (*NUMBERS, *PLACE)]
            count: int = core.locate_windows(self._arrays.current(), items, *settings, *filled, places, self._runs)  # type: ignore[call-arg]
            if count <= self._runs.shape[1]:
                return count
            self._runs = np.empty((core.RUN_ROWS, 2 * count), np.int64)

    def batch(self, arrays: Arrays) -> SequenceBatch:
        spec = self._spec
        return SequenceBatch(
            obs=self.joined(spec.join_obs, spec.obs_names, arrays, VALUE),
            action=self.joined(spec.join_action, spec.action_names, arrays, VALUE),
            fields=self.further(arrays, VALUE),
            burn_in=self.burn_in,
            **numbers(arrays, (*NUMBERS, *PLACE)),
        )


class Sequences(Replay[SequenceBatch]):
    """A store's windows of steps, sampled. Made by ``sharpwave.Store.sequences``; ``view`` has its settings."""

    view: Windows


def window_values(
    name: str, field: Field, batch: SequenceBatch, given: Any
) -> tuple[Ints, Ints, npt.NDArray[Any], Ints]:
    """Return the lanes and numbers of the real steps of windows, their values, and each one's window.

    Args:
        given: [B, T, *shape], or of trained steps alone [B, length, *shape], of a ``field``.

    Raises: ValueError, TypeError: values that do not fit.
    """
    if batch.source is not None:
        raise ValueError("write_column: this batch is of a blend, whose items are of several views; pass one view's")
    values, mask, begin = as_array(name, given), on_host(batch.mask), 0
    size, columns = mask.shape
    if values.shape[:2] == (size, columns - batch.burn_in):
        begin = batch.burn_in
    elif values.shape[:2] != (size, columns):
        raise ValueError(
            f"{name}: got shape {values.shape} {values.dtype}, expected {(size, columns, *field.shape)} {field.dtype}, "
            f"or of trained steps alone {(size, columns - batch.burn_in, *field.shape)}"
        )
    window, column = np.nonzero(mask[:, begin:])
    lanes, trained = on_host(batch.lane)[window], on_host(batch.step)[window]
    rows = field.rows(name, values[window, column], len(window))
    return lanes, trained + column + (begin - batch.burn_in), rows, window
