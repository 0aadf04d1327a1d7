"""The spec of an environment's steps, by its spaces."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from sharpwave.observations import PADS, refuse_choices, stacking
from sharpwave.spaces import row_field, stored_space, variable_parts
from sharpwave.spec import Field, Spec
from sharpwave.teams import ACTION_MASK


def step_spec(env: Any, **extra: Field) -> Spec:
    """Return the ``Spec`` of a step of ``env``: its observations and actions, in the environment's dicts and tuples.

    Of a stack of frames the newest frame is stored. Values in the infos of every step are declared by the environment
    as ``metadata["info_fields"]``, spaces by name; they become further fields, which a ``Recorder`` fills.

    Args:
        env: a Gymnasium environment or vector, whose observations and actions are arrays or numbers, or nested dicts
            and tuples of them (Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple), texts (Text), or sequences
            of arrays (Sequence); or a VecEnv of Stable-Baselines3.
        extra: further fields; a field with the name of an info replaces it.

    A Text becomes ``Field(str)``, a Sequence of arrays a field with rows of any length, an observed Graph a dict of
    such: ``nodes``, ``edges`` and ``edge_links``. Parts of an observation that are other sequences are left out, with a
    warning that names them: a store has no field for them, and a tuple is stored without their places. ``Recorder``
    leaves them out too.

    Raises:
        ValueError: observations or actions of another kind, for which a ``Spec`` can be declared by hand; or
            environments that stack frames in different ways, or with a padding that no field has.
    """
    prefix = "single_" if hasattr(env, "single_observation_space") else ""
    space: Any = getattr(env, f"{prefix}observation_space", None)
    actions: Any = getattr(env, f"{prefix}action_space", None)
    if space is None or actions is None:
        what = f"observations {space}" if space is None else f"actions {actions}"
        raise ValueError(f"step_spec: env has {what}, expected an environment such as gymnasium.make('CartPole-v1')")
    found = stacking(env)
    usable = len(found) == 1 and (not found[0][0] or found[0][1] in PADS)
    if not usable and getattr(space, "spaces", None) is None:
        raise ValueError(
            f"env: stacks frames as (stack_size, padding_type) {found}; expected one, padded with {[*PADS]}"
        )
    size, padding = found[0] if usable else (0, "")
    infos = {name: _fields(f"info {name!r}", one, 0, "") for name, one in info_spaces(env).items()}
    left_out = variable_parts(space, rows=True)
    stored = stored_space(space, rows=True)
    if left_out and stored is space:
        raise ValueError(
            f"step_spec: env observes {', '.join(left_out)} only, which no field holds; "
            "expected an array as well: add one, as by gymnasium.wrappers.TransformObservation"
        )
    if left_out:
        warnings.warn(
            f"step_spec: {', '.join(left_out)}: of varying length, and not stored; agents do not see it",
            UserWarning,
            stacklevel=2,
        )
    return Spec(
        obs=_fields("observations", stored, size, padding), action=_fields("actions", actions, 0, ""), **(infos | extra)
    )


def info_spaces(env: Any) -> Mapping[str, Any]:
    """Return the spaces of the values in every step's infos, by name.

    The environment declares them as ``metadata["info_fields"]``, which wrappers and vectors pass on.
    """
    found: Mapping[str, Any] = (getattr(env, "metadata", None) or {}).get("info_fields", {})
    return found


def _fields(what: str, space: Any, size: int, padding: str) -> Any:
    """Return the fields of a space, as it is nested, in an environment that stacks ``size`` frames; 0: none.

    Parts that a wrapper added to a dict of stacks are stored as they are; a mask, which may have as many actions as a
    stack frames, by its name.
    """
    refuse_choices(f"step_spec: env has {what}", space)
    if isinstance(space, Field):
        return space
    if (rows := row_field(space)) is not None:
        return rows
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping):
        return {
            key: _fields(f"{what}[{key!r}]", one, 0 if key == ACTION_MASK and len(one.shape) == 1 else size, padding)
            for key, one in inner.items()
        }
    if inner is not None:
        return tuple(_fields(f"{what}[{number}]", one, size, padding) for number, one in enumerate(inner))
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        raise ValueError(f"step_spec: env has {what} {space}, expected arrays; declare sharpwave.Spec(...) for it")
    dtype = "int64" if what.startswith("actions") and type(space).__name__ == "Discrete" else str(dtype)
    if size and shape[:1] == (size,):  # the replayed stack looks as the environment's does, its padding included
        return Field(shape[1:], dtype, stack=size, pad=PADS[padding])
    return Field(shape, dtype)
