"""Items of a checkpoint's views: their first steps, priorities, and numbers of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.format.checkpoint_state import STATE, read_state
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.offline.scan import Segment, part_of
from sharpwave.offline.surveys import Survey
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.rank import RankPrioritized
from sharpwave.spec import START
from sharpwave.views.sequences import Windows

MAX_VIEWS = 16
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ViewItems:
    """Items of one view that are still in the store, by lane and step.

    Attributes:
        lane, step: int64 [n], each item's lane, and the lane's number of its first (trained) step.
        priority: float64 [n], before the power alpha; ``None``: the sampler has none.
        td_error: float64 [n], the absolute error behind each priority; ``None`` as above.
        largest: the largest priority so far, which new items get.
        uses: int64 [n], number of samples of each; ``None``: counted only with ``max_times_sampled``.
        samples, inserts: items sampled and steps appended since the view was made.
        span: steps from an item's first one to the next item's.
    """

    name: str
    kind: str
    settings: dict[str, Any]
    sampler: dict[str, Any]
    samples: int
    inserts: int
    span: int
    lane: Ints
    step: Ints
    priority: Floats | None = None
    td_error: Floats | None = None
    largest: float | None = None
    uses: Ints | None = None
    max_times_sampled: int | None = None


def read_views(checkpoint: Path, survey: Survey) -> list[ViewItems]:
    """Return the views in a checkpoint's state, over the segments of ``survey`` that they knew.

    Raises:
        DamagedError: not a checkpoint's state.  OSError.
    """
    state = read_state(part_of(checkpoint) / STATE)
    views = state.get("views")
    found = []
    for view in list(views.values())[:MAX_VIEWS] if isinstance(views, dict) else []:
        if isinstance(view, dict):
            found.append(_view(view, survey))
    return found


def _view(state: Mapping[str, Any], survey: Survey) -> ViewItems:
    settings, sampler = _dict(state.get("settings")), _dict(state.get("sampler"))
    kind = str(settings.get("kind", "transitions"))
    stride = survey.described.segment_steps
    segments = [one for one in survey.segments if one.header.steps]
    slots = np.array([(one.record.id & LEAF_MASK) // stride for one in segments], np.int64)
    generation = _array(state.get("generation"), np.int64)
    if generation is not None and len(segments):
        wanted = np.array([one.record.id >> LEAF_BITS for one in segments], np.int64)
        there = slots < len(generation)
        there[there] = generation[slots[there]] == wanted[there]
        segments = [one for one, keep in zip(segments, there.tolist(), strict=True) if keep]
        slots = slots[there]
    span = settings.get("stride", 1) if kind == Windows.kind else 1
    span = span if type(span) is int and 0 < span < 1 << 31 else 1
    if kind == Windows.kind:
        items, lane, step = _windows(segments, slots, stride, span, survey)
    else:
        items, lane, step = _steps(segments, slots, stride)
    values, largest = _priorities(sampler, _dict(state.get("remembered")), int(items.max(initial=-1)) + 1)
    priority: Any = None
    td_error: Any = None
    uses: Any = None
    if values is not None:
        known = values[items] > 0  # other items cannot be sampled yet, or were used up
        items, lane, step = items[known], lane[known], step[known]
        priority = values[items]
        eps = _settings_of(sampler).get("eps", 0.0)
        td_error = np.maximum(priority - (eps if isinstance(eps, float) else 0.0), 0.0)
    given = _array(state.get("uses"), np.int32)
    if given is not None:
        uses = np.pad(given, (0, max(0, int(items.max(initial=-1)) + 1 - len(given))))[items].astype(np.int64)
    order = np.lexsort((step, lane))
    lane, step = lane[order], step[order]
    priority, td_error, uses = (None if one is None else one[order] for one in (priority, td_error, uses))
    return ViewItems(
        str(state.get("name", kind)), kind, settings, sampler, _count(state, "samples"), _count(state, "inserts"), span,
        lane, step, priority, td_error, largest, uses,
        _count(state, "max_times_sampled") if given is not None else None,
    )  # fmt: skip


def _steps(segments: list[Segment], slots: Ints, stride: int) -> tuple[Ints, Ints, Ints]:
    """Return item, lane and step of every step."""
    rows = np.array([one.header.steps for one in segments], np.int64)
    row = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    lanes = np.array([one.header.lane for one in segments], np.int64)
    first = np.array([one.header.first_step for one in segments], np.int64)
    return np.repeat(slots * stride, rows) + row, np.repeat(lanes, rows), np.repeat(first, rows) + row


def _windows(segments: list[Segment], slots: Ints, stride: int, span: int, survey: Survey) -> tuple[Ints, Ints, Ints]:
    """Return item, lane and first trained step of every window: item k of a segment is the k-th that begins in it."""
    parts: list[tuple[Ints, Ints, Ints]] = [(np.empty(0, np.int64),) * 3]
    for one, slot in zip(segments, slots.tolist(), strict=True):
        flags = survey.unpack(one, ("flags",))["flags"]
        number = episode_numbers(flags, one.header.episode_step)
        rows = np.flatnonzero((number >= 0) & (number % span == 0))
        lanes = np.full(len(rows), one.header.lane, np.int64)
        parts.append((slot * stride + np.arange(len(rows)), lanes, one.header.first_step + rows))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def episode_numbers(flags: npt.NDArray[np.uint8], first: int) -> Ints:
    """Return each step's number in its episode, -1 if unknown, from the first step's (< 0: unknown)."""
    begins = flags & START != 0
    at = np.arange(len(flags))
    last = np.maximum.accumulate(np.where(begins, at, -1))
    return np.where(last >= 0, at - last, first + at if first >= 0 else -1)


def _priorities(sampler: Mapping[str, Any], state: Mapping[str, Any], items: int) -> tuple[Floats | None, float | None]:
    """Return priorities float64 [at least items], 0 for absent ones, and the largest so far; ``None``: none."""
    parts = state.get("parts")
    if isinstance(parts, list):  # of a mixture, the first part with priorities
        shares = sampler.get("parts")
        for share, part in zip(shares if isinstance(shares, list) else [], parts, strict=False):
            inner = share[1] if isinstance(share, list) and len(share) == 2 else None
            found = _priorities(_dict(inner), _dict(part), items)
            if found[0] is not None:
                return found
        return None, None
    kind, largest = sampler.get("kind"), state.get("max_priority")
    largest = largest if isinstance(largest, float) and np.isfinite(largest) else None
    if kind == Prioritized.__name__:
        values, alpha = _array(state.get("values"), np.float64), sampler.get("alpha")
        if values is None or not isinstance(alpha, float) or not 0 < alpha <= 1:
            return None, None
        with np.errstate(over="ignore", invalid="ignore"):
            return _padded(np.where(values > 0, np.maximum(values, 0) ** (1 / alpha), 0.0), items), largest
    if kind == RankPrioritized.__name__:
        heap, priorities = _array(state.get("heap"), np.int64), _array(state.get("priorities"), np.float64)
        if heap is None or priorities is None or len(heap) != len(priorities):
            return None, None
        values = np.zeros(items)
        inside = (heap >= 0) & (heap < items)
        values[heap[inside]] = np.maximum(priorities[inside], np.finfo(np.float64).tiny)
        return values, largest
    return None, None


def _settings_of(sampler: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = sampler.get("parts")
    inner = (
        [_dict(one[1]) for one in parts if isinstance(one, list) and len(one) == 2] if isinstance(parts, list) else []
    )
    return next((one for one in inner if "eps" in one), sampler)


def _padded(values: Floats, items: int) -> Floats:
    return np.pad(values, (0, max(0, items - len(values))))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _array(value: Any, dtype: type) -> Any:
    return value if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == dtype else None


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
