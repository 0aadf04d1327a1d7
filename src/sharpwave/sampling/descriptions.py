"""Samplers and retentions -> plain descriptions, and back: what a checkpoint keeps of their settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from sharpwave.sampling.mixture import Mixture
from sharpwave.sampling.ordered import Fifo, Lifo
from sharpwave.sampling.rank import RankPrioritized
from sharpwave.sampling.retention import LowestPriority, Reservoir
from sharpwave.sampling.samplers import Prioritized, Uniform

KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Fifo, Lifo, LowestPriority, Mixture, Prioritized, RankPrioritized, Reservoir, Uniform)
}


def describe(one: Any) -> dict[str, Any] | None:
    """Kind and settings, as JSON has them; ``None`` for a kind that is not known here."""
    name = type(one).__name__
    if KINDS.get(name) is not type(one):
        return None
    found: dict[str, Any] = {"kind": name}
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        if not field.init:
            continue
        if field.name == "parts":
            parts = [[float(share), describe(sampler)] for share, sampler in value]
            if any(part is None for _, part in parts):
                return None
            value = parts
        found[field.name] = value.item() if hasattr(value, "item") else value
    return found


def make(described: dict[str, Any]) -> Any:
    """Inverse of :func:`describe`.  Raises: KeyError, TypeError, ValueError: no such description."""
    settings = dict(described)
    kind = KINDS[settings.pop("kind")]
    if "parts" in settings:
        settings["parts"] = [(share, make(part)) for share, part in settings["parts"]]
    return kind(**settings)


def differences(was: dict[str, Any], now: dict[str, Any] | None, path: str = "sampler") -> list[str]:
    """What of the settings differs and matters: ``beta`` may change at any time."""
    if now is None or was["kind"] != now["kind"]:
        return [f"{path} was {was['kind']}, is {'of another kind' if now is None else now['kind']}"]
    found = []
    for name in was:
        if name == "parts" and len(was[name]) == len(now[name]):
            for k, ((share, part), (new_share, new_part)) in enumerate(zip(was[name], now[name], strict=True)):
                if share != new_share:
                    found.append(f"{path}: share {k} was {share}, is {new_share}")
                found += differences(part, new_part, f"{path} part {k}")
        elif name != "beta" and was[name] != now[name]:
            found.append(f"{path}: {name} was {was[name]}, is {now[name]}")
    return found
