"""Mapping of an environment's observations to the frames of a store's fields, by its observation space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array
from sharpwave.arrays import Ints
from sharpwave.environment_kinds import is_vec_env, is_vector
from sharpwave.field_values import copied_rows
from sharpwave.spaces import stored_space, stored_values, variable_parts
from sharpwave.spec import Field, Spec

Frames = dict[str, npt.NDArray[Any]]

PADS: dict[str, Literal["repeat", "zeros"]] = {"reset": "repeat", "zero": "zeros"}
"""``Field(pad=)`` for each ``padding_type`` of Gymnasium's ``FrameStackObservation``."""


@dataclass(frozen=True)
class _StoredPart:
    """Part of an observation that one field stores.

    Attributes:
        shape: shape for one environment, by its space; ``None``: it has no space.
        parts: number of parts of a tuple observation, which are stored as one row; 0: it is an array.
        stacked: whether its first axis is a stack of frames, of which the newest is stored.
    """

    name: str
    field: Field
    shape: tuple[int, ...] | None
    parts: int = 0
    stacked: bool = False


class Observations:
    """Reader of an environment's observations for a store with ``spec``.

    An observation has the shape of its field. It may also be a stack of such frames if the field declares a stack of
    the same size and the environment declares how it stacks and pads, as do Gymnasium's ``FrameStackObservation``,
    ale-py's ``AtariVectorEnv``, or any wrapper with the former's attributes ``stack_size`` and ``padding_type``. Dicts
    and tuples have the parts that the spec declares. A tuple of parts of the same shape also fits a field with an axis
    for them: they become one row.

    Attributes:
        stacked: whether the environment stacks frames.

    Raises:
        ValueError: the observations do not fit the spec; the message says how to declare them.
    """

    def __init__(self, env: Any, spec: Spec) -> None:
        self.spec, self.vector = spec, is_vector(env)
        single = self.vector and not is_vec_env(env)
        space = getattr(env, "single_observation_space" if single else "observation_space", None)
        self._varying, self._rows = (space if variable_parts(space) else None), bool(spec.ragged_obs)
        self._parts = [self._part(env, name, one) for name, one in self._spaces(space).items()]
        self.stacked = any(part.stacked for part in self._parts)

    @property
    def plain(self) -> bool:
        """Whether an observation is one array, stored as it is."""
        return (
            self.spec.array_obs
            and self._varying is None
            and not self.stacked
            and not any(part.parts for part in self._parts)
        )

    def frames(self, obs: Any, *, of_one: bool = False) -> Frames:
        """Return the newest frame of each lane, [lanes, *shape] by field, from ``reset`` or ``step``. Not copied.

        Args:
            of_one: it is the observation of one sub-environment: [1, *shape].
        """
        arrays = self._arrays(obs, self.vector and not of_one)
        return {name: array[:, -1] if part.stacked else array for name, part, array in arrays}

    def stacks(self, obs: Any) -> Frames:
        """Return the whole stacks, [lanes, stack, *shape], of the fields that the environment stacks. Not copied."""
        if not self.stacked:
            return {}
        return {name: array for name, part, array in self._arrays(obs, self.vector) if part.stacked}

    def check_begun(self, obs: Any, lanes: Ints) -> None:
        """Check that the first stacks of episodes, in ``lanes`` of ``obs``, are padded as the store pads them.

        Raises: ValueError.
        """
        for name, stacks in self.stacks(obs).items():
            field, some = self.spec.fields[name], stacks[lanes]
            older, newest = some[:, :-1], some[:, -1:]
            same = older == (0 if field.pad == "zeros" else newest)
            wrong = ~(same | (older != older)).reshape(len(lanes), -1).all(axis=1)
            if wrong.any():
                other = "repeat" if field.pad == "zeros" else "zeros"
                fits = older == (0 if other == "zeros" else newest)
                raise ValueError(
                    f"Recorder: {name}: after a reset the stack of environment {lanes[np.argmax(wrong)]} is not padded "
                    f"as Field(pad={field.pad!r}) will pad it when it is sampled; "
                    + (
                        f"declare pad={other!r}"
                        if fits.all()
                        else "it holds other frames (an end of an episode after which the game goes on? see "
                        f"episodic_life): let the environment stack nothing, or declare Field({some.shape[1:]}, "
                        f"{field.dtype!r}), which stores whole stacks"
                    )
                )

    def check_shifted(self, before: Frames, obs: Any, lanes: Ints) -> None:
        """Check that stacks have shifted by one frame, the newest last, since ``before``, from ``stacks``.

        Raises: ValueError.
        """
        for name, stacks in self.stacks(obs).items():
            same = (stacks[lanes, :-1] == before[name][lanes, 1:]) | (stacks[lanes, :-1] != stacks[lanes, :-1])
            if not same.all():
                raise ValueError(
                    f"Recorder: {name}: the environment's stack is not the previous one shifted by one frame, with the "
                    "newest last, so the store could not rebuild it. Declare "
                    f"Field({stacks.shape[1:]}, {self.spec.fields[name].dtype!r}), which stores whole stacks"
                )

    def _spaces(self, space: Any) -> dict[str, Any]:
        if space is None:
            return dict.fromkeys(self.spec.obs_names)
        stored = stored_space(space, self._rows)
        inner = getattr(stored, "spaces", None)
        if self.spec.array_obs and isinstance(inner, Mapping):
            raise ValueError(
                f"Recorder: the environment observes a dict, the spec declares one field; declare "
                f"Spec(obs={{key: Field(...)}}) with the keys {sorted(inner)}"
            )
        if not self.spec.array_obs and inner is None:
            declared = self.spec.join_obs(self.spec.fields)
            parts = (
                f"dict with the spec's keys {list(declared)}"
                if isinstance(declared, dict)
                else f"tuple of the spec's {len(declared)} parts"
            )
            raise ValueError(f"Recorder: the environment observes {space}, expected a {parts}")
        return self.spec.split_space(stored, "Recorder: the environment's observation")

    def _part(self, env: Any, name: str, space: Any) -> _StoredPart:
        field = self.spec.fields[name]
        refuse_choices(f"Recorder: {name} is", space)
        if field.ragged:
            return _StoredPart(name, field, None)
        inner = getattr(space, "spaces", None)
        shape: tuple[int, ...] | None = getattr(space, "shape", None)
        parts = 0
        if isinstance(inner, Sequence):
            shapes = [getattr(one, "shape", None) for one in inner]
            if len(set(shapes)) != 1 or shapes[0] is None:
                raise ValueError(
                    f"Recorder: {name} is {space}, whose parts differ in shape; declare a tuple of fields for it"
                )
            parts, shape = len(inner), (len(inner), *shapes[0])
        elif space is not None and (shape is None or inner is not None):
            raise ValueError(
                f"Recorder: {name} is {space}, which is no array; declare its parts, as a dict or tuple of fields, or "
                "wrap the environment with gymnasium.wrappers.FlattenObservation"
            )
        if shape is None or shape == field.shape:
            return _StoredPart(name, field, field.shape if shape is None else shape, parts)
        said = f"Recorder: {name}: the environment gives {shape}, the field holds {field.shape}"
        if shape[1:] != field.shape or parts:
            raise ValueError(f"{said}; declare Field({shape}, {field.dtype!r})")
        if field.stack != shape[0]:
            raise ValueError(
                f"{said} and {'no stack' if field.stack is None else f'a stack of {field.stack}'}; declare "
                f"Field({shape}, ...), or, where the environment stacks {shape[0]} frames, "
                f"Field({field.shape}, ..., stack={shape[0]})"
            )
        for size, padding in stacking(env):
            self._check_padding(said, field, size, padding)
        return _StoredPart(name, field, shape, stacked=True)

    @staticmethod
    def _check_padding(said: str, field: Field, size: int, padding: str) -> None:
        if size != field.stack:
            raise ValueError(
                f"{said} and a stack of {field.stack}, but the environment "
                + (f"says stack_size={size}" if size else "does not say that it stacks frames")
                + f"; declare Field({(field.stack, *field.shape)}, ...) for an observation with such an axis; or give "
                f"a wrapper of yours that stacks the attributes stack_size={field.stack} and padding_type='reset' or "
                "'zero', as gymnasium.wrappers.FrameStackObservation has them"
            )
        if padding not in PADS:
            raise ValueError(
                f"{said}; the environment pads the stacks at an episode's start with padding_type={padding!r}, which "
                "the store cannot do; use padding_type='zero' with Field(pad='zeros'), or 'reset' with 'repeat'"
            )
        if field.frames > 1 and PADS[padding] != field.pad:
            raise ValueError(
                f"{said}; at an episode's start the environment pads stacks with padding_type={padding!r}, the field "
                f"with pad={field.pad!r}; declare Field({field.shape}, ..., stack={field.stack}, "
                f"pad={PADS[padding]!r})"
            )

    def _arrays(self, obs: Any, batched: bool) -> Iterator[tuple[str, _StoredPart, npt.NDArray[Any]]]:
        """Yield the observations' arrays by field, with one leading axis, which ``batched`` ones have already."""
        stored = obs if self._varying is None else stored_values(self._varying, obs, self._rows)
        split = self.spec.split_obs(stored)
        for part in self._parts:
            value = split[part.name]
            if part.field.ragged:
                yield part.name, part, copied_rows(f"Recorder: {part.name}", value if batched else [value])
                continue
            if part.parts and batched:
                array = np.stack([np.asarray(one) for one in value], axis=1)
            else:
                array = as_array("obs", value)
                array = array if batched else array[None]
            if array.shape[1:] != part.shape:
                raise ValueError(
                    f"Recorder: {part.name} has shape {array.shape[1:]}, expected {part.shape} as the environment's "
                    "observation space says (or the field, where there is none)"
                )
            yield part.name, part, array


def refuse_choices(what: str, space: Any) -> None:
    """Refuse a space each of whose observations is of one of several kinds.  Raises: ValueError."""
    if type(space).__name__ == "OneOf":
        raise ValueError(
            f"{what} {space}, of one of several kinds each time, which no field holds; wrap the environment so that "
            "it gives the kind's number, and arrays for all kinds"
        )


def stacking(env: Any) -> list[tuple[int, str]]:
    """Return ``stack_size`` and ``padding_type`` of ``env``, or of each of its sub-environments; (0, "") if not set."""
    found = _own_stacking(env)
    inner = getattr(env, "unwrapped", env)
    if found[0] or not is_vector(env):
        return [found]
    if isinstance(getattr(inner, "envs", None), Sequence):
        return list({_own_stacking(one) for one in inner.envs})
    if not hasattr(inner, "call"):
        return [found]
    if not all(inner.call("has_wrapper_attr", "stack_size")):  # asked first: a worker process without it would end
        return [(0, "")]
    sizes, paddings = inner.get_attr("stack_size"), inner.get_attr("padding_type")
    values = inner.get_attr("padding_value") if "_custom" in paddings else [None] * len(sizes)
    return list({(int(size), _padding(*one)) for size, *one in zip(sizes, paddings, values, strict=True)})


def _own_stacking(env: Any) -> tuple[int, str]:
    layer = env
    while layer is not None:
        if any(one.__name__ == "AtariVectorEnv" for one in type(layer).__mro__):
            return int(layer.single_observation_space.shape[0]), "zero"
        if "stack_size" in vars(layer):
            return int(layer.stack_size), _padding(layer.padding_type, getattr(layer, "padding_value", None))
        layer = vars(layer).get("env")
    return 0, ""


def _padding(padding: Any, value: Any) -> str:
    if padding == "_custom":  # gymnasium's name for an observation that the caller gives
        values = value.values() if isinstance(value, Mapping) else [value]
        return "zero" if not any(np.any(one) for one in values) else "an observation of its own"
    return str(padding)
