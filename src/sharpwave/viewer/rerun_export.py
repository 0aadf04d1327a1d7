"""Export of an episode as a recording for Rerun's viewer."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.errors import DamagedError
from sharpwave.extras import install
from sharpwave.training.atomic_files import replacing
from sharpwave.viewer import frame_pictures, step_curves
from sharpwave.viewer.action_values import ActionValues, NoValuesError, curves_of
from sharpwave.viewer.snapshots import MAX_DECODED_BYTES, MAX_READ_STEPS, Snapshot
from sharpwave.viewer.sources import opened_sources
from sharpwave.viewer.watching import Watched

FRAMES_AT_A_TIME = 256


def export_rerun(path: Path, out: Path, number: int | None, say: Callable[[str], None]) -> None:
    """Write an episode's frames, rewards, fields and priorities, on the timeline ``step``; for a run, also Q-values.

    Args:
        path: a run, a store or a checkpoint. ``number``: the episode's; ``None``: of whole ones the highest return's.

    Raises:
        ValueError: rerun-sdk is missing, the episode does not exist, or ``out`` cannot be written.
    """
    if find_spec("rerun") is None or find_spec("PIL") is None:
        raise ValueError(f"--export rerun needs Rerun's SDK and pillow: pip install rerun-sdk && {install('view')}")
    if out.suffix != ".rrd" or out.is_dir() or not out.absolute().parent.is_dir():
        raise ValueError(
            f"--export: got {str(out)!r}, expected a file to write that ends in .rrd, in a folder that exists"
        )
    with opened_sources([path]) as sources:
        if len(sources) != 1:
            raise ValueError(f"--export: {str(path)!r} holds {len(sources)} runs and stores; give one of them")
        folder = str(sources[0].path)
        if os.path.commonpath([out.absolute(), folder]) == folder:
            raise ValueError(f"--export: {str(out)!r} is in the shown folder, which is only read; give another")
        watched = Watched(sources[0])
        watched.read()
        snapshot = watched.snapshot
        if snapshot is None or not snapshot.episodes:
            raise ValueError(f"--export: {str(path)!r} holds no episode yet")
        number = _chosen(snapshot, number)
        values = None
        try:
            if sources[0].run is not None:
                values = watched.values.compute(snapshot, snapshot.episodes[number])
        except NoValuesError as error:
            say(f"without Q-values: {error}")
        try:
            with replacing(out) as partial:
                _write(sources[0].name, snapshot, number, values, partial)
        except (OSError, DamagedError) as error:
            raise ValueError(f"--export: {error}") from error
    episode = snapshot.episodes[number]
    say(f"episode {number}, {episode.steps:,} steps, return {episode.total:g}: {out}; open it with: rerun {out}")


def _chosen(snapshot: Snapshot, number: int | None) -> int:
    """Return the requested episode's number.  Raises: ValueError: it does not exist."""
    if number is None:
        best = snapshot.order("return", True, whole=True)
        if not len(best):
            raise ValueError("--export: no episode is whole; choose one by --episode")
        return int(best[0])
    if number >= len(snapshot.episodes):
        raise ValueError(f"--episode: got {number}, expected from 0 to {len(snapshot.episodes) - 1}")
    return number


def _write(name: str, snapshot: Snapshot, number: int, values: ActionValues | None, out: Path) -> None:
    import rerun

    rr: Any = rerun
    episode, spec = snapshot.episodes[number], snapshot.survey.described.spec
    if episode.steps > MAX_READ_STEPS:
        raise ValueError(f"--export: {episode.steps:,} steps, expected at most {MAX_READ_STEPS:,}")
    recording = rr.RecordingStream(
        "sharpwave", recording_id=f"{snapshot.survey.described.identity.store.hex()}-{number}"
    )
    recording.save(out)
    told = f"episode {number} of {name}: lane {episode.lane}, return {episode.total:g}, {episode.end}"
    recording.log("episode", rr.TextDocument(told), static=True)
    for begin in range(0, episode.steps, step_curves.MAX_POINTS):
        end = min(begin + step_curves.MAX_POINTS, episode.steps)
        part = step_curves.curves(snapshot, episode, begin, end)
        at = np.array(part["step"], np.int64)
        for one in part["curves"] + (curves_of(values, begin, end)["curves"] if values is not None else []):
            column = np.array([np.nan if value is None else value for value in one["values"]])
            known = np.isfinite(column)
            if known.any():
                recording.send_columns(
                    rr.new_entity_path([one["name"], one["label"]]),
                    indexes=[rr.TimeColumn("step", sequence=at[known])],
                    columns=rr.Scalars.columns(scalars=column[known]),
                )
    for field_name in spec.obs_names:
        field = spec.fields[field_name]
        if not frame_pictures.is_picture(field):
            continue
        for begin in range(0, episode.steps + 1, FRAMES_AT_A_TIME):
            wanted = np.arange(begin, min(begin + FRAMES_AT_A_TIME, episode.steps + 1))
            for step, value in snapshot.survey.frames(episode, field_name, wanted, limit=MAX_DECODED_BYTES):
                picture = frame_pictures.sheet([(step, frame_pictures.pixels_of(value, field))], {step: 0}, field)
                recording.set_time("step", sequence=step)
                image = rr.EncodedImage(contents=picture, media_type="image/png")
                recording.log(rr.new_entity_path([field_name, "frame"]), image)
    recording.flush()
    recording.disconnect()
