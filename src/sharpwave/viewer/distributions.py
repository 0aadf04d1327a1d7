"""Distributions of a view's items: priorities, TD errors against age, times sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.escaping import escaped
from sharpwave.viewer.memory import Snapshot
from sharpwave.viewer.priorities import ViewItems
from sharpwave.viewer.step_curves import numbers

Floats = npt.NDArray[np.float64]

BINS, AGES = 48, 64
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def of_view(view: ViewItems, snapshot: Snapshot) -> dict[str, Any]:
    """Return histograms and quantiles of a view's items.

    An item that was never sampled has the largest priority at its insertion, not one of its own. Items with
    today's largest are counted, and left out of the distributions; older ones, inserted when the largest was
    smaller, cannot be recognized.
    """
    newest = {lane: chain.segments[-1].end for lane, chain in snapshot.survey.lanes.items()}
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
