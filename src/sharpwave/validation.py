"""Validation of arguments before anything is changed; errors name the value and the expectation."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array, is_integer
from sharpwave.arrays import Bools, Bytes, Ints
from sharpwave.field_values import integers_as_floats
from sharpwave.native import core
from sharpwave.ragged import Ragged
from sharpwave.spec import MAX_REWARD, TERMINATED, TRUNCATED, Spec

_UNITS = {"": 1, "B": 1} | {f"{p}{u}": b**e for e, p in enumerate("KMGT", 1) for u, b in (("B", 1000), ("iB", 1024))}
MAX_LANES = 1 << 20
_FLOAT32 = np.dtype(np.float32)

Rows = dict[str, npt.NDArray[Any]]
Missing = Literal["raise", "mask"]
"""Policies for requested items that are not held: a KeyError, or a marked place."""
Steps = tuple[Rows, Bytes, Rows | None, Rows | None]
"""Result of ``checked_steps``."""


class GivenSteps(NamedTuple):
    """Steps as a caller gave them to ``Store.extend`` or ``Store.append``."""

    obs: Any
    action: Any
    reward: npt.ArrayLike
    terminated: npt.ArrayLike
    truncated: npt.ArrayLike
    final_obs: Any
    next_obs: Any
    extra: Mapping[str, npt.ArrayLike]


def parse_bytes(size: int | str, name: str = "ram") -> int:
    """Convert ``"512MiB"``, ``"2GB"`` or a number of bytes to bytes.  Raises: ValueError."""
    if is_integer(size):
        return int(size)
    found = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    if found and found[2] in _UNITS:
        try:
            return int(float(found[1]) * _UNITS[found[2]])
        except ValueError:
            pass
    raise ValueError(f"{name}: got {size!r}, expected bytes as an integer, or a string such as '512MiB' or '2GB'")


def checked_folder(name: str, path: Any) -> Path:
    """Return ``path`` as a ``Path``.  Raises: TypeError, ValueError: it is not a path, or is empty."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(found := os.fspath(path), bytes):
        raise TypeError(f"{name}: got {path!r}, expected the path of a folder as a string or pathlib.Path")
    if not found:
        raise ValueError(f"{name}: got an empty path, expected that of a folder; '.' is the current one")
    return Path(found)


def checked_steps(spec: Spec, count: int | None, steps: GivenSteps) -> Steps:
    """Return rows by field, flags uint8 [n], final and next observations by field. ``count`` ``None``: one step."""
    obs, action, reward, terminated, truncated, final_obs, next_obs, extra = steps
    rows = {name: spec.fields[name].rows(name, value, count) for name, value in spec.split_obs(obs).items()}
    given = step_values(spec, action, extra)
    for name, value in given.items():
        rows[name] = spec.fields[name].rows(name, value, count)
    rows["reward"] = _rewards(reward, count)
    if count is None and terminated is False and truncated is False:  # 2 us less
        flags, unfinished = np.zeros(1, np.uint8), -1
    else:
        te, tr = _flags("terminated", terminated, count), _flags("truncated", truncated, count)
        flags = np.empty(len(te), np.uint8)
        unfinished = core.join_flags(te, tr, flags)
    nexts = None if next_obs is None else _observations(spec, "next", next_obs, count)
    if final_obs is not None and flags.any():
        return rows, flags, _observations(spec, "final", final_obs, count), nexts
    if final_obs is None and nexts is None and unfinished >= 0:
        raise ValueError(
            f"final_obs: row {unfinished} is truncated, expected the observation after that step as "
            "final_obs; learning bootstraps from it (Gymnasium: info['final_obs'], or the step's own obs where the "
            "reset is separate)"
        )
    return rows, flags, None, nexts


def _observations(spec: Spec, which: str, obs: Any, count: int | None) -> Rows:
    split = spec.split_obs(obs, f"{which}_obs")
    return {name: spec.fields[name].rows(f"{which}_{name}", value, count) for name, value in split.items()}


def checked_rows(spec: Spec, lanes: npt.ArrayLike | None, steps: GivenSteps) -> tuple[Ints, Steps]:
    """Return lane numbers int64 [rows], and ``checked_steps`` of one step for each lane."""
    obs = steps.obs
    count = _count(spec, spec.obs_names[0], obs if spec.array_obs else next(iter(spec.split_obs(obs).values())))
    return lane_numbers(lanes, count), checked_steps(spec, count, steps)


def checked_block(
    spec: Spec, lanes: npt.ArrayLike | None, steps: GivenSteps
) -> tuple[Ints, int, Rows, Bytes, Rows | None, Rows | None]:
    """Return lane numbers int64 [N], T, and ``checked_steps`` of T * N steps, time by time, from arrays [T, N, ...]."""
    times, count = np.shape(steps.reward)

    def merged(name: str, value: Any, what: str = "") -> Any:
        if name in spec.ragged_names:
            return _rows_of_block(what or name, value, times, count)
        name = what or name
        array = as_array(name, value)
        if array.shape[:2] != (times, count):
            raise ValueError(
                f"{name}: got {_told(array)}, expected [{times}, {count}, ...]: reward has axes of time and of lanes, "
                "so all else has"
            )
        return array.reshape(times * count, *array.shape[2:])

    def observed(what: str, value: Any) -> Any:
        if value is None:
            return None
        split = spec.split_obs(value, what).items()
        return spec.join_obs({name: merged(name, one, what + name[3:]) for name, one in split})

    numbers = lane_numbers(lanes, count)
    flat = GivenSteps(
        observed("obs", steps.obs),
        spec.join_action({name: merged(name, one) for name, one in spec.split_action(steps.action).items()}),
        merged("reward", steps.reward),
        merged("terminated", steps.terminated),
        merged("truncated", steps.truncated),
        observed("final_obs", steps.final_obs),
        observed("next_obs", steps.next_obs),
        {name: merged(name, value) for name, value in steps.extra.items()},
    )
    return numbers, times, *checked_steps(spec, times * count, flat)


def _rows_of_block(name: str, value: Any, times: int, count: int) -> Sequence[Any]:
    """Return the rows [T * N] of a ragged field, time by time, of rows [T][N].  Raises: ValueError."""
    if isinstance(value, Ragged) and value.shape == (times, count):
        return Ragged(value.values, value.offsets, text=value.text)  # type: ignore[return-value]
    sizes = {len(one) if hasattr(one, "__len__") else -1 for one in value} if hasattr(value, "__len__") else {-1}
    if sizes != {count} or len(value) != times:
        raise ValueError(
            f"{name}: expected [{times}][{count}] rows, sequences of sequences: reward has axes of time and of lanes, "
            "so all else has"
        )
    return [row for of_lanes in value for row in of_lanes]


def checked_episode(
    spec: Spec,
    obs: Any,
    action: Any,
    reward: npt.ArrayLike,
    terminated: bool,
    truncated: bool | None,
    extra: Mapping[str, npt.ArrayLike],
) -> tuple[Rows, Bytes, Rows]:
    """Return rows by field [T, *shape], flags uint8 [T], and the final observation [1, *shape] by field.

    Raises: ValueError, TypeError, KeyError.
    """
    given = step_values(spec, action, extra)
    name = spec.action_names[0]
    count = _count(spec, name, given[name])
    if not count:
        told = "no rows" if spec.fields[name].ragged else _told(np.asarray(given[name]))
        raise ValueError(f"add_episode: {name} {told}, expected [T, ...] of at least one step")
    observed = {name: spec.fields[name].rows(name, value, count + 1) for name, value in spec.split_obs(obs).items()}
    rows = {name: values[:-1] for name, values in observed.items()}
    for name, value in given.items():
        rows[name] = spec.fields[name].rows(name, value, count)
    rows["reward"] = _rewards(reward, count)
    flags = np.zeros(count, np.uint8)
    flags[-1] = TERMINATED if _flags("terminated", terminated, None)[0] else TRUNCATED
    if truncated is not None:
        flags[-1] |= TRUNCATED if _flags("truncated", truncated, None)[0] else 0
    return rows, flags, {name: values[-1:] for name, values in observed.items()}


def _count(spec: Spec, name: str, value: Any) -> int:
    """Return the number of rows of a field's value; 0 if it is none."""
    if spec.fields[name].ragged:
        return 0 if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") else len(value)
    return len(value) if np.ndim(value) else 0


def checked_places(lanes: npt.ArrayLike, steps: npt.ArrayLike) -> tuple[Ints, Ints]:
    """Return lanes and step numbers int64 [n]; a single number is repeated.

    Raises: TypeError, ValueError.
    """
    arrays = as_array("ids: lanes", lanes), as_array("ids: steps", steps)
    for name, array in zip(("lanes", "steps"), arrays, strict=True):
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"ids: {name} are {array.dtype}, expected integers [n], or one")
    try:
        lanes, steps = np.broadcast_arrays(*arrays)
    except ValueError as error:
        raise ValueError(
            f"ids: lanes {arrays[0].shape} and steps {arrays[1].shape}, expected as many of both, or one"
        ) from error
    if lanes.ndim > 1:
        raise ValueError(f"ids: lanes and steps of shape {lanes.shape}, expected [n]")
    return np.atleast_1d(lanes).astype(np.int64), np.atleast_1d(steps).astype(np.int64)


def check_missing(what: str, missing: Any) -> None:
    """Check an argument.  Raises: ValueError."""
    if missing not in get_args(Missing):
        raise ValueError(f"{what}: missing={missing!r}, expected 'raise' or 'mask'")


def check_flag(what: str, name: str, value: Any) -> None:
    """Check an argument.  Raises: TypeError."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what}: {name}={value!r}, expected True or False")


def checked_final(spec: Spec, final_obs: Any) -> Rows:
    """Return one final observation, [1, *shape] by field."""
    return _observations(spec, "final", final_obs, None)


def check_capacity(capacity: Any) -> int | None:
    if capacity is None:
        return None
    if isinstance(capacity, float) and capacity.is_integer():  # 1e6
        capacity = int(capacity)
    if not is_integer(capacity) or not 2 <= capacity <= 2**31:
        raise ValueError(f"Store: capacity={capacity!r}, expected an integer number of steps from 2 to 2**31")
    return int(capacity)


def max_lanes(capacity: int | None) -> int:
    """Return the maximum number of lanes of a store with that capacity."""
    return MAX_LANES if capacity is None else min(MAX_LANES, capacity // 2)


def step_values(spec: Spec, action: Any, extra: Mapping[str, Any], later: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of the action and the extra fields by flat name.

    Args:
        later: extra fields that may be missing.

    Raises:
        KeyError: an unknown field, or a missing one.  ValueError: an action of another structure.
    """
    check_names(extra, [name for name in spec.extra_names if name in extra or name not in later])
    return {**spec.split_action(action), **extra}


def check_names(given: Collection[str], expected: Collection[str]) -> None:
    """Check that the given fields are the expected ones.  Raises: KeyError: an unknown field, or a missing one."""
    if len(given) == len(expected) and all(name in given for name in expected):
        return
    extra, missing = set(given) - set(expected), set(expected) - set(given)
    what = f"unknown field {min(extra)!r}" if extra else f"field {min(missing)!r} is missing"
    raise KeyError(f"step: {what}; the spec's fields beside obs and action are {list(expected)}")


def _flags(name: str, value: npt.ArrayLike, count: int | None) -> Bools:
    array = as_array(name, value)
    expected = () if count is None else (count,)
    if array.dtype != np.bool_ and array.dtype.kind in "iuf" and ((array == 0) | (array == 1)).all():
        array = array != 0
    if array.shape != expected or array.dtype != np.bool_:
        raise ValueError(f"{name}: got {_told(array)}, expected shape {expected} bool (or 0 and 1), one for each step")
    return np.ascontiguousarray(array).reshape(-1)


def _rewards(reward: npt.ArrayLike, count: int | None) -> npt.NDArray[np.float32]:
    if count is None and type(reward) is float and -MAX_REWARD <= reward <= MAX_REWARD:  # 3 us less
        return np.array((reward,), np.float32)
    array = as_array("reward", reward)
    expected = () if count is None else (count,)
    if array.shape != expected or array.dtype.kind not in "iuf":
        raise ValueError(f"reward: got {_told(array)}, expected shape {expected} float32, one for each step")
    if array.dtype == np.float32:
        rewards = np.ascontiguousarray(array).reshape(-1)
    elif array.dtype.kind in "iu":
        rewards = np.ascontiguousarray(integers_as_floats("reward", array, _FLOAT32)).reshape(-1)
    else:
        with np.errstate(over="ignore"):  # found below, and named
            rewards = np.ascontiguousarray(array, np.float32).reshape(-1)
    if not core.all_within(rewards, MAX_REWARD):
        row = int(np.argmax(~np.isfinite(rewards)))
        raise ValueError(
            f"reward: row {row} is {array.reshape(-1)[row]}, expected finite float32; check the environment's rewards"
        )
    return rewards


def checked_lane(call: str, lane: Any) -> Ints:
    """Return one lane's number as int64 [1].  Raises: ValueError."""
    if not is_integer(lane) or not 0 <= lane < MAX_LANES:
        raise ValueError(f"{call}: lane {lane!r}, expected an integer from 0 to {MAX_LANES - 1}")
    return np.array([lane], np.int64)


def lane_numbers(lanes: npt.ArrayLike | None, count: int) -> Ints:
    if lanes is None:
        return np.arange(count)
    array = as_array("lanes", lanes)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(f"lanes: got {_told(array)}, expected shape ({count},) of integers, one for each row of obs")
    if count and (array.min() < 0 or array.max() >= MAX_LANES):
        raise ValueError(f"lanes: got {array.min()}..{array.max()}, expected numbers from 0 to {MAX_LANES - 1}")
    if len(np.unique(array)) != count:
        raise ValueError(f"lanes: {array.tolist()} repeats a lane; a call appends one step to each")
    return array.astype(np.int64)


def _told(array: npt.NDArray[Any]) -> str:
    return f"{array.item()!r}" if array.ndim == 0 else f"shape {array.shape} {array.dtype}"
