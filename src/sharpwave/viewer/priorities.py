"""Items of a checkpoint's views: their first steps, priorities, numbers of samples, and distributions of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Floats, Ints
from sharpwave.escaping import escaped
from sharpwave.format.checkpoint_state import STATE, read_state
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.offline.scan import Segment, part_of
from sharpwave.offline.surveys import Survey
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.rank import RankPrioritized
from sharpwave.spec import START
from sharpwave.views.conditions import MATCHES
from sharpwave.views.sequences import Windows

MAX_VIEWS = 16
BINS, AGES = 48, 64
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


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
    judged = _array(state.get("judged"), np.uint8)
    if judged is not None:
        matching = np.pad(judged, (0, max(0, int(items.max(initial=-1)) + 1 - len(judged))))[items] == MATCHES
        items, lane, step = items[matching], lane[matching], step[matching]
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
            raw = np.where(values > 0, np.maximum(values, 0) ** (1 / alpha), 0.0)
        return np.pad(raw, (0, max(0, items - len(raw)))), largest
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


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _array(value: Any, dtype: type) -> Any:
    return value if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == dtype else None


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def distributions(view: ViewItems, survey: Survey) -> dict[str, Any]:
    """Return histograms and quantiles of a view's items.

    An item that was never sampled has the largest priority at its insertion, not one of its own. Items with
    today's largest are counted, and left out of the distributions; older ones, inserted when the largest was
    smaller, cannot be recognized.
    """
    newest = {lane: chain.segments[-1].end for lane, chain in survey.lanes.items()}
    lanes, inverse = np.unique(view.lane, return_inverse=True)
    ends = np.array([newest.get(lane, 0) for lane in lanes.tolist()], np.int64)
    age = (ends[inverse] - view.step) * max(1, len(newest)) if len(view.lane) else np.empty(0, np.int64)
    found: dict[str, Any] = {
        "name": escaped(view.name),
        "sampler": escaped(str(view.sampler.get("kind", ""))),
        "items": len(view.lane),
        "samples": view.samples,
        "inserts": view.inserts,
        "span": view.span,
        "max_times_sampled": view.max_times_sampled,
    }
    if view.priority is not None and view.td_error is not None:
        new = np.zeros(len(view.priority), np.bool_)
        if view.largest is not None:
            new = np.isclose(view.priority, view.largest, rtol=1e-9, atol=0.0)
        own = ~new
        found["at_largest"] = int(new.sum())
        found["largest"] = view.largest
        found["priority"] = histogram(view.priority[own])
        found["td_error"] = against_age(age[own], view.td_error[own])
        found["share"] = share_of_largest(view)
    if view.uses is not None:
        counts = np.bincount(np.clip(view.uses, 0, BINS))
        found["times_sampled"] = {"edges": list(range(len(counts) + 1)), "counts": counts.tolist(), "log": False}
        found["uses_by_age"] = against_age(age, view.uses.astype(np.float64))
    return found


def numbers(values: Floats) -> list[float | None]:
    """Return numbers for JSON, with None for missing ones; six digits are more than a screen shows."""
    finite = np.isfinite(values)
    return [float(f"{one:.6g}") if ok else None for one, ok in zip(values.tolist(), finite.tolist(), strict=True)]


def histogram(values: Floats) -> dict[str, Any] | None:
    """Return ``edges`` [n + 1], in even logarithmic steps if the values spread far, and ``counts`` [n]."""
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    log = low > 0 and high > 20 * low
    if high <= low:
        return {"edges": [low, high], "counts": [len(values)], "log": False}
    edges = np.geomspace(low, high, BINS + 1) if log else np.linspace(low, high, BINS + 1)
    edges[0], edges[-1] = low, high
    counts = np.bincount(np.clip(np.searchsorted(edges, values, "right") - 1, 0, BINS - 1), minlength=BINS)
    return {"edges": numbers(edges), "counts": counts.tolist(), "log": log}


def against_age(age: npt.NDArray[np.int64], values: Floats) -> dict[str, Any] | None:
    """Return quantiles of values in ranges of age with equal numbers of items; ``None``: no values."""
    finite = np.isfinite(values)
    age, values = age[finite], values[finite]
    if not len(age):
        return None
    order = np.argsort(age, kind="stable")
    parts = [part for part in np.array_split(order, min(AGES, len(order))) if len(part)]
    quantiles = np.array([np.quantile(values[part], QUANTILES) for part in parts])
    return {
        "age": [float(np.median(age[part])) for part in parts],
        "quantiles": [numbers(column) for column in quantiles.T],
        "of": list(QUANTILES),
    }


def share_of_largest(view: ViewItems) -> dict[str, float] | None:
    """Return the share of draws that goes to the items with the largest 1 % and 10 % of priorities."""
    alpha = view.sampler.get("alpha")
    if view.priority is None or not isinstance(alpha, float) or not len(view.priority):
        return None
    with np.errstate(over="ignore"):
        mass = np.sort(view.priority**alpha)[::-1]
    total = float(mass.sum())
    if not np.isfinite(total) or total <= 0:
        return None
    return {f"{part:g}": float(mass[: max(1, round(len(mass) * part))].sum() / total) for part in (0.01, 0.1)}
