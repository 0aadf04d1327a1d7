"""Infos of a step: values of fields and, for episodes that ended, true final observations and statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array
from sharpwave.arrays import Bools
from sharpwave.observations import Frames, Observations
from sharpwave.spec import Field

FINALS = ("final_obs", "final_observation", "terminal_observation")
"""Names of the true final observation: of Gymnasium from 1.1 on, of 0.29, and of Stable-Baselines3."""
FINAL_INFO = "final_info"
"""Name of the infos of an episode's last step, if the infos beside it belong to the following reset."""
STATISTICS = "episode"
"""Name of statistics by Gymnasium's ``RecordEpisodeStatistics`` and SB3's ``Monitor``: r(eturn), l(ength), t(ime)."""


def final_frames(info: Any, ended: Bools, observations: Observations, last: Frames) -> tuple[Frames, Bools]:
    """Return true final observations of a SameStep environment.

    Args:
        ended: bool [lanes]. ``last``: observations before the step, newest frames [lanes, *shape] by field.

    Returns:
        newest frames [lanes, *shape] by field, ``last`` where none was given; rows that did not end are undefined.
        absent bool [lanes]: episodes that ended, and of which none was given.
    """
    absent = np.zeros(len(ended), np.bool_)
    if isinstance(info, Mapping):
        given = next((info[name] for name in FINALS if name in info), None)
    else:  # one for each environment: of SB3, or Gymnasium's DictInfoToList
        given = [next((one[name] for name in FINALS if name in one), None) for one in info]
    if not observations.vector:
        given = [given]
    elif isinstance(given, (Mapping, tuple)) or (isinstance(given, np.ndarray) and given.dtype != object):
        return observations.frames(given), absent
    rows = np.flatnonzero(ended).tolist()
    given = [None] * len(ended) if given is None else given
    there = [row for row in rows if given[row] is not None]
    absent[rows] = True
    absent[there] = False
    found = {row: observations.frames(given[row], of_one=True) for row in there}
    finals = {}
    for name, frames in last.items():
        dtype = np.result_type(*(found[row][name].dtype for row in there)) if there else frames.dtype
        repeated = absent.any() or frames.dtype.kind == "O"  # rows of any length, which are all checked
        finals[name] = frames.astype(dtype) if repeated else np.zeros(frames.shape, dtype)
        for row in there:
            finals[name][row] = found[row][name][0]
    return finals, absent


def statistics_of(info: Any, row: int | None) -> dict[str, Any]:
    """Return the statistics in the infos of the episode that ended: numbers and strings by name; {} if there are none.

    Args:
        row: of the environment, in a vector's infos; ``None``: they are of one environment.
    """
    if row is not None and not isinstance(info, Mapping):
        info, row = info[row], None
    said = _of_row(info, STATISTICS, row)
    if said is None and (final := _of_row(info, FINAL_INFO, row)) is not None:
        said = final.get(STATISTICS)
    plain = {key: _plain(value) for key, value in said.items()} if isinstance(said, Mapping) else {}
    return {key: value for key, value in plain.items() if value is not None and isinstance(key, str)}


def info_rows(info: Any, name: str, field: Field, vector: bool, stepped: Bools, ended: Bools) -> npt.NDArray[Any]:
    """Return the values under ``name`` in a step's infos, [lanes, *shape]; zeros for lanes that have not ``stepped``.

    Raises:
        ValueError: a lane that has stepped has no value, or a value of another shape.
    """
    given = info.get(name) if isinstance(info, Mapping) else None
    if vector and isinstance(given, np.ndarray) and given.dtype != object and stepped.all() and not ended.any():
        return given
    values: dict[int, npt.NDArray[Any]] = {}
    for row in np.flatnonzero(stepped).tolist():
        value = info_value(info, name, row if vector else None, bool(ended[row]))
        if value is None or np.shape(value) != field.shape:
            what = "no value" if value is None else f"a value of shape {np.shape(value)}"
            raise ValueError(
                f"Recorder: the step's info has {what} under {name!r}, expected {field.shape} {field.dtype}, as the "
                "environment's metadata['info_fields'] declares"
            )
        values[row] = as_array(name, value)
    dtype = np.result_type(*values.values()) if values else field.np_dtype
    found = np.zeros((len(stepped), *field.shape), dtype)
    for row, one in values.items():
        found[row] = one
    return found


def info_value(info: Any, name: str, row: int | None, ended: bool) -> Any:
    """Return the value under ``name`` in the infos of one environment's step; ``None``: there is none.

    Args:
        row: of the environment, in a vector's infos; ``None``: they are of one environment.
        ended: its episode ended with the step: its final info has precedence, if there is one.
    """
    if row is not None and not isinstance(info, Mapping):
        info, row = info[row], None
    if ended and (final := _of_row(info, FINAL_INFO, row)) is not None:
        return final.get(name)
    if row is None:
        return info.get(name)
    return _at(info.get(name), row) if _at(info.get(f"_{name}", True), row, True) else None


def _of_row(info: Mapping[str, Any], name: str, row: int | None) -> Mapping[str, Any] | None:
    """Return the dict ``name`` of one environment in infos; ``None``: there is none.

    A vector's is a dict of arrays, in dicts, each with a mask beside it under its name after "_"; or, of Gymnasium
    0.29, an array of dicts.
    """
    found = info.get(name)
    if row is not None and found is not None:
        if (mask := info.get(f"_{name}")) is not None and not _at(mask, row):
            return None
        if not isinstance(found, Mapping):
            found = _at(found, row)
        else:
            masks = {f"_{key}" for key in found}
            found = {
                key: _of_row(found, key, row) if isinstance(value, Mapping) else _at(value, row)
                for key, value in found.items()
                if key not in masks and _at(found.get(f"_{key}", True), row, True)
            }
    return found if isinstance(found, Mapping) else None


def _at(values: Any, row: int, otherwise: Any = None) -> Any:
    """Return the value of one row; ``otherwise`` where there are no rows."""
    is_array = isinstance(values, (np.ndarray, list, tuple)) and np.ndim(values) > 0
    return values[row] if is_array and len(values) > row else otherwise


def _plain(value: Any) -> Any:
    """Return a number, boolean or string as a Python value; ``None``: another value, or not finite."""
    if isinstance(value, (np.ndarray, np.generic)) and value.size == 1:
        value = value.item()
    if isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else None
