"""Overview of a source: its contents, its size, and its run's results."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from sharpwave.escaping import escaped
from sharpwave.viewer import frame_pictures
from sharpwave.viewer.snapshots import Snapshot
from sharpwave.viewer.watching import Watched

MAX_DAMAGES, MAX_LANES, MAX_REGIONS, MAX_FIELDS = 50, 64, 100, 128
EXTREMES = 3
"""Number of best, and of worst, episodes that are shown."""


def overview(one: Watched) -> dict[str, Any]:
    """Return all data of a source except its steps."""
    snapshot = one.snapshot
    log = one.log
    run = None if log is None else {"settings": log.settings(), "summary": log.summary()}
    return {"memory": None if snapshot is None else _memory(snapshot), "run": run}


def _memory(snapshot: Snapshot) -> dict[str, Any]:
    survey = snapshot.survey
    described, episodes = survey.described, survey.episodes
    whole = snapshot.columns["whole"]
    returns, lengths = snapshot.columns["return"][whole], snapshot.columns["length"][whole]
    best = snapshot.order("return", True, whole=True)
    return {
        "version": snapshot.number,
        "taken": snapshot.taken,
        "store": described.identity.store.hex(),
        "steps": survey.steps,
        "deleted_steps": survey.deleted_steps,
        "segments": len(survey.segments),
        "segment_steps": described.segment_steps,
        "limits": described.limits,
        "episodes": len(episodes),
        "whole": int(whole.sum()),
        "ends": {end: sum(one.end == end for one in episodes) for end in ("terminated", "truncated", "unfinished")},
        "returns": spread(returns),
        "lengths": spread(lengths),
        "fields": field_rows(snapshot),
        "columns": [
            {"name": escaped(name), "shape": list(field.shape), "dtype": field.dtype}
            for name, field in list(snapshot.survey.late.fields.items())[:MAX_FIELDS]
        ],
        "columns_trouble": escaped(snapshot.survey.late.damage)[:500],
        "fields_hidden": max(0, len(described.spec.fields) - MAX_FIELDS),
        "annotations": described.annotations.store,
        "lanes": [
            {
                "lane": lane,
                **chain.described(),
                "missing": sum(end - begin for begin, end in chain.gaps),
                "annotations": described.annotations.of(lane),
            }
            for lane, chain in list(survey.lanes.items())[:MAX_LANES]
        ],
        "lane_count": len(survey.lanes),
        "bytes": survey.sizes() | {"used": sum(one.used or 0 for one in survey.regions)},
        "packed": [
            {
                "name": escaped(name),
                "codec": codec,
                "steps": packed.steps,
                "bytes": packed.bytes,
                **({"raw_bytes": packed.raw_bytes} if packed.raw_bytes else {}),
            }
            for name, codecs in list(survey.packed.items())[:MAX_FIELDS]
            for codec, packed in codecs.items()
        ],
        "regions": [{"name": escaped(one.path.name), **one.described()} for one in survey.regions[-MAX_REGIONS:]],
        "region_count": len(survey.regions),
        "damages": [
            escaped(f"{one.path.name}: byte {one.offset:,}: {one.what}")[:500] for one in survey.damages[:MAX_DAMAGES]
        ],
        "damage_count": len(survey.damages),
        "views": [
            {
                "name": escaped(view.name),
                "kind": escaped(view.kind),
                "sampler": escaped(str(view.sampler.get("kind", ""))),
                "settings": {
                    escaped(key)[:100]: escaped(value)[:200]
                    for key, value in list(view.settings.items())[:32]
                    if value is not None
                },
                "samples": view.samples,
                "inserts": view.inserts,
                "has_priorities": view.priority is not None,
                "max_times_sampled": view.max_times_sampled,
            }
            for view in snapshot.views
        ],
        "checkpoint_age_s": None if snapshot.checkpoint is None else max(0.0, time.time() - snapshot.checkpoint),
        "checkpoint_trouble": escaped(snapshot.trouble),
        "best": [episode_row(snapshot, number) for number in best[:EXTREMES].tolist()],
        "worst": [episode_row(snapshot, number) for number in best[::-1][:EXTREMES].tolist()],
        "history": _history(snapshot),
    }


def episode_row(snapshot: Snapshot, number: int) -> dict[str, Any]:
    """Return an episode as JSON."""
    one, columns = snapshot.episodes[number], snapshot.columns
    priority = float(columns["priority"][number])
    return {
        "number": number,
        "lane": one.lane,
        "first": one.first_step,
        "length": one.steps,
        "return": one.total if math.isfinite(one.total) else None,
        "end": one.end,
        "begun": one.begun,
        "age": int(columns["age"][number]),
        "priority": priority if math.isfinite(priority) else None,
        "annotated": bool(one.annotations),
    }


def field_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the fields as JSON; for pictures, with their drawn size."""
    rows = []
    spec, told = snapshot.survey.described.spec, snapshot.survey.described.fields()
    for number, (name, field) in enumerate(list(spec.fields.items())[:MAX_FIELDS]):
        picture = None
        if name in spec.obs_names and frame_pictures.is_picture(field):
            height, width, every = frame_pictures.shown_size(field)
            count = frame_pictures.frames_in_one(field)
            picture = {
                "height": height, "width": width, "count": count, "columns": frame_pictures.COLUMNS, "every": every,
            }  # fmt: skip
        rows.append({"number": number, "name": escaped(name), **told[name], "picture": picture})
    return rows


def spread(values: Any) -> dict[str, Any] | None:
    """Return mean, median, smallest and largest of the finite values; ``None``: no finite values."""
    found = np.asarray(values, np.float64)
    found = found[np.isfinite(found)]
    if not found.size:
        return None
    with np.errstate(over="ignore"):
        numbers = {"mean": found.mean(), "median": np.median(found), "min": found.min(), "max": found.max()}
    return {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}


def _history(snapshot: Snapshot) -> dict[str, Any]:
    """Return age, return and length of at most 2,000 evenly spaced whole episodes, oldest first."""
    columns = snapshot.columns
    numbers = np.flatnonzero(columns["whole"])
    numbers = numbers[:: max(1, -(-len(numbers) // 2000))]
    order = numbers[np.argsort(-columns["age"][numbers], kind="stable")]
    returns = columns["return"][order]
    return {
        "age": columns["age"][order].tolist(),
        "return": [one if math.isfinite(one) else None for one in returns.tolist()],
        "length": columns["length"][order].tolist(),
        "lane": columns["lane"][order].tolist(),
        "first": [snapshot.episodes[number].first_step for number in order.tolist()],
    }
