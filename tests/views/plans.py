"""What the machine of transitions makes up: fields, observations that tell their step, and what a view may show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import sharpwave as sw
from tests.support.oracle import Array, Obs, Stacking

DTYPES = ["uint8", "float32", "int16"]


@dataclass(frozen=True)
class FieldPlan:
    shape: tuple[int, ...]
    dtype: str
    stacking: Stacking

    def field(self) -> sw.Field:
        if self.stacking.stack is None:
            return sw.Field(self.shape, self.dtype)
        return sw.Field(self.shape, self.dtype, stack=self.stacking.stack, pad=self.stacking.pad)


@dataclass
class ViewUnderTest:
    """A view, what it was asked for, and what may be known of its priorities."""

    replay: Any
    n_step: int
    gamma: float
    alpha: float | None  # None: uniform
    eps: float
    known: dict[int, set[float]]  # serial -> raw priorities that the contract allows
    highest: set[float]  # what a new step's priority may be
    stream: Any = None
    at_append: dict[int, set[float]] = field(default_factory=dict)  # the same, when the step was appended


def made_up(plan: FieldPlan, serial: int, kind: int) -> Array:
    """Content of one field at one step: noise, a few pixels on a still background, or nothing at all."""
    rng = np.random.default_rng((serial, kind, 7))
    size = int(np.prod(plan.shape, dtype=np.int64))
    flavour = kind % 3
    if flavour == 0:
        flat = rng.integers(0, 256, size)
    elif flavour == 1:
        flat = np.arange(size) % 256
        if size:
            flat[rng.integers(0, size)] = rng.integers(0, 256)
    else:
        flat = np.zeros(size, np.int64)
    if plan.dtype == "float32":
        values = (flat.astype(np.float32) - 128) / 7
        if flavour == 2:
            values = -values  # -0.0, whose bits must survive
        return values.astype(np.float32).reshape(plan.shape)
    if plan.dtype == "int16":
        return ((flat - 128) * 251).astype(np.int16).reshape(plan.shape)
    return flat.astype(plan.dtype).reshape(plan.shape)


def batched(values: list[Obs]) -> Obs:
    if isinstance(values[0], Mapping):
        return {name: np.stack([value[name] for value in values]) for name in values[0]}
    return np.stack(values)
