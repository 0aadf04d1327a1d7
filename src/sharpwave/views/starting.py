"""First priorities of items, from a column of their steps: ``Prioritized(by=...)``, ``RankPrioritized(by=...)``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from sharpwave.arrays import Floats, Int32s, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.sampling.mixture import Mixture
from sharpwave.sampling.sampler_protocol import MAX_TD_ERROR, Sampler
from sharpwave.sampling.starts_by_column import StartsByColumn
from sharpwave.spec import Field, Spec
from sharpwave.views.gather import UndecodableError
from sharpwave.views.steps import Steps
from sharpwave.views.view_protocol import View, items_of

REWARD = "reward"


class Starts:
    """First TD errors of a view's items, for each part of its sampler with ``by=``.

    The store's lock is held throughout.

    Attributes:
        at_once: samplers that start from a field of the steps, whose values came with them.
        at_draws: samplers that start from a column added later: values may be written until the next draw.

    Raises:
        ValueError, TypeError: there is no such column, or the view cannot tell its items' steps.
    """

    def __init__(self, log: StepLog, view: View[Any], sampler: Sampler) -> None:
        self._log, self._view, self._steps = log, view, Steps(log)
        samplers, late = _by_column(sampler), log.late.columns
        for one in samplers:
            check_by(one.by, log.spec, {name: column.field for name, column in late.items()}, type(one).__name__)
            if not hasattr(view, "expected"):
                raise ValueError(
                    f"{view.kind}: sampler has by={one.by!r}, but {type(view).__name__} does not tell the steps of an "
                    "item; leave by= out, or derive the view from NStep, Hindsight or Windows"
                )
        self.at_once = [one for one in samplers if one.by not in late]
        self.at_draws = [one for one in samplers if one.by in late]

    def __bool__(self) -> bool:
        return bool(self.at_once or self.at_draws)

    @property
    def pending(self) -> bool:
        """Whether items start at the next draw."""
        return any(one.unstarted_groups for one in self.at_draws)

    def unstarted(self, sampler: StartsByColumn, spans: Int32s) -> Ints:
        """Return runs [3, n] within ``spans`` that hold all unstarted items of a sampler, and others in between."""
        stride, runs = self._log.stride, []
        assert sampler.unstarted is not None
        for slot in sorted(sampler.unstarted_groups):
            begin, end = spans[slot].tolist()
            places = begin + np.flatnonzero(sampler.unstarted[slot * stride + begin : slot * stride + end])
            if len(places):
                runs.append((slot, int(places[0]), int(places[-1]) + 1))
        return np.array(runs, np.int64).reshape(-1, 3).T

    def errors(self, sampler: StartsByColumn, runs: Ints) -> tuple[Ints, Floats]:
        """Return the items of ``runs`` whose steps all have values in a sampler's column, and their TD errors.

        Raises: MemoryError: no room to read a segment.
        """
        expected = self._view.expected  # type: ignore[attr-defined]
        items, known, given = items_of(runs, self._log.stride), None, dict(expected)
        assert sampler.by is not None
        if len(items):
            expected.clear()
            try:
                expected.update(self._values(sampler.by, np.unique(self._view.segments(items))))
                known = self._view.first_errors(runs)
            finally:  # priorities that a writer gave with its segments stay
                expected.clear()
                expected.update(given)
        if known is None:
            return np.empty(0, np.int64), np.empty(0)
        there = ~np.isnan(known[1])
        return known[0][there], known[1][there]

    def _values(self, by: str, slots: Ints) -> dict[int, Floats]:
        """Return the values of the steps in ``slots``, by slot: NaN where there is none, or none that is finite."""
        log = self._log
        rows = dict(zip(slots.tolist(), log.index.rows[slots].tolist(), strict=True))
        values = {slot: np.full(count, np.nan) for slot, count in rows.items()}
        late = log.late.columns.get(by)
        if not _starts(by, log.spec, {} if late is None else {by: late.field}):  # the column was dropped since
            return values
        if late is not None:
            for slot, own in values.items():
                leaves = slice(slot * log.stride, slot * log.stride + len(own))
                written = late.written[leaves]
                own[written] = late.values[leaves].reshape(-1)[written]
        elif by == REWARD:
            values = {slot: self._steps.rewards(slot).astype(np.float64) for slot in rows}
        else:
            values |= self._decoded(by, slots)
        return {slot: np.where(np.abs(own) <= MAX_TD_ERROR, own, np.nan) for slot, own in values.items()}

    def _decoded(self, name: str, slots: Ints) -> dict[int, Floats]:
        """Decode a field of the steps in ``slots``, but of damaged segments: a draw that needs them tells of it."""
        log, field, found, begin = self._log, self._log.spec.fields[name], dict[int, Floats](), 0
        cache, bits = log.segment_cache, log.layout.bits([name])
        while begin < len(slots):
            ready = slots[begin:]
            if cache is not None:
                ready = ready[: cache.require(ready, bits)]
                if not len(ready):
                    raise MemoryError("sample: ram leaves no room to read a segment from disk; raise ram=")
            begin += len(ready)
            if cache is not None and cache.damaged:
                ready = ready[~np.isin(ready, list(cache.damaged))]
            rows = log.index.rows[ready].astype(np.int64)
            ends = np.cumsum(rows)
            places = np.arange(rows.sum()) - np.repeat(ends - rows, rows)
            out = np.empty((len(places), 1, field.row_bytes), np.uint8)
            try:
                self._steps.read(name, np.repeat(ready, rows), places, out)
            except UndecodableError as error:
                more = ready[~np.isin(ready, error.slots)]
                found |= self._decoded(name, more) if len(more) < len(ready) else {}
                continue
            values = out.reshape(-1).view(field.np_dtype).astype(np.float64)
            found |= dict(zip(ready.tolist(), np.split(values, ends[:-1]), strict=True))
        return found


def check_by(by: Any, spec: Spec, late: Mapping[str, Field], kind: str = "Prioritized") -> None:
    """Check the column that priorities start from.  Raises: ValueError, TypeError.

    Args:
        late: columns added later, by name. ``kind``: of the sampler.
    """
    if not isinstance(by, str):
        raise TypeError(f"{kind}: by={by!r}, expected the name of a field, of a column or {REWARD!r}")
    if not _starts(by, spec, late):
        there = ", ".join(repr(name) for name in [REWARD, *spec.fields, *late] if _starts(name, spec, late))
        raise ValueError(
            f"{kind}: by={by!r}, expected {REWARD!r}, a further field or a column added later, of one number "
            f"a step: {there}"
        )


def _starts(by: str, spec: Spec, late: Mapping[str, Field]) -> bool:
    """Return whether there is a column ``by``, of one number a step."""
    field = late[by] if by in late else spec.fields[by] if by in spec.extra_names else None
    if field is None:
        return by == REWARD
    single = not field.ragged and field.every is None and field.row_bytes == field.np_dtype.itemsize
    return single and field.np_dtype.kind in "biuf"


class Unfollowed:
    """Stand-in for a view's expected TD errors towards the core, which finds new items itself while these are empty:
    not empty while the view has to find or to start some."""

    def __init__(self, items: core.Items, starts: Starts, log: StepLog) -> None:
        self._items, self._starts, self._inventory = weakref.ref(items), starts, log.inventory

    def __len__(self) -> int:
        items = self._items()
        return int(items is not None and (items.seen != self._inventory.changes or self._starts.pending))


def _by_column(sampler: Any) -> list[StartsByColumn]:
    """Return the samplers with ``by=`` among a sampler and the parts of its mixtures."""
    if isinstance(sampler, Mixture):
        return [one for _, part in sampler.parts for one in _by_column(part)]
    return [sampler] if isinstance(sampler, StartsByColumn) and sampler.by is not None else []
