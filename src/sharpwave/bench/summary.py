"""Figures that follow from measured rounds. A ratio is the median of the rounds' ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Results = dict[str, Any]

BATCHES = (32, 256)
MEASURES = ("add", *(f"{what} {batch}" for what in ("uniform", "prioritized") for batch in BATCHES))


def rates(results: Results, name: str, what: str) -> list[float]:
    """Return steps added or transitions sampled a second, by round."""
    return [one["calls"] * one["rows"] for one in results["contenders"][name]["rounds"].get(what, ())]


def ratios(results: Results, name: str, other: str, what: str) -> list[float]:
    """Return how many times as fast as ``other`` ``name`` is, by round."""
    # An interrupted round lacks some contenders.
    return [a / b for a, b in zip(rates(results, name, what), rates(results, other, what), strict=False)]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return median, lowest and highest; ``None`` of nothing."""
    if not values:
        return None
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summary(results: Results) -> Results:
    """Return bytes a step, rates and ratios of the first contender to each other one, and the trainer's rates."""
    names = list(results["contenders"])
    told: Results = {"contenders": {}, "ratios": {}, "limit": spread(results["limit"])}
    for name in names:
        fill = results["contenders"][name]["fill"]
        told["contenders"][name] = {
            "bytes_per_step": fill["filled_bytes"] / fill["steps"],
            **{what: spread(rates(results, name, what)) for what in MEASURES},
        }
    for name in names[1:]:
        mine, other = (told["contenders"][one]["bytes_per_step"] for one in (names[0], name))
        told["ratios"][name] = {
            "bytes_per_step": mine / other if other > 0 else None,
            **{what: spread(ratios(results, names[0], name, what)) for what in MEASURES},
        }
    slices = results.get("trainer", {}).get("slices", [])
    if slices:
        seconds = sum(one["seconds"] for one in slices)
        told["trainer"] = {
            "steps_per_second": spread([one["steps"] / one["seconds"] for one in slices]),
            "updates_per_second": spread([one["updates"] / one["seconds"] for one in slices]),
            "shares": {part: sum(one["parts"][part] for one in slices) / seconds for part in slices[0]["parts"]},
        }
    return told
