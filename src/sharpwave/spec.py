"""What a step is: the fields that are stored for it, and how arrays from outside are checked against them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.registry import codec_choice

TERMINATED, TRUNCATED, START = 1, 2, 4
"""Bits of the ``flags`` column: how a step ended its episode, and whether it began one."""

RESERVED = {"reward", "terminated", "truncated", "flags", "final_obs", "lanes", "lane", "next_obs", "timeout"} | {
    "discount",
    "weights",
    "probabilities",
    "ids",
}


MAX_DIMENSIONS, MAX_VALUE_BYTES, MAX_FIELDS = 16, 1 << 30, 1024
MAX_EVERY = 1 << 20
_DTYPES = re.compile("bool|u?int(8|16|32|64)|float(16|32|64|96|128)")
"""Of the names that NumPy knows, those that ``Spec.to_json`` writes."""


@dataclass(frozen=True)
class Field:
    """One array that is stored for every step.

    Args:
        shape: shape of one step's value; for pixels one frame, without the stack.
        dtype: a numpy boolean, integer or floating dtype.
        stack: how many consecutive frames a batch carries on an axis before ``shape``; ``None``: no such axis.
            Only for observations.
        pad: what stands before an episode's first frame in a stack: that frame again ("repeat") or zeros.
        codec: overrides the store's codec for this field: "auto", "zstd", "delta", "raw" or one that was registered.
        every: keep the values of steps 0, k, 2k, ... of each episode only, as for recurrent states: ``extend`` takes a
            value for every step; a batch has the last one that was kept. ``None``: of every step. Only for fields
            beside the observation and the action.

    Raises:
        ValueError, TypeError: naming the argument that does not fit.
    """

    shape: tuple[int, ...]
    dtype: str
    stack: int | None = None
    pad: Literal["repeat", "zeros"] = "repeat"
    codec: str | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else self.shape
        if not isinstance(shape, (tuple, list)) or any(not isinstance(n, (int, np.integer)) or n < 1 for n in shape):
            raise ValueError(f"Field: shape {self.shape!r} must be a tuple of positive integers; () for a scalar")
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise TypeError(f"Field: {self.dtype!r} is not a numpy dtype; write e.g. 'uint8'") from error
        if dtype.kind not in "buif":
            raise TypeError(f"Field: dtype {dtype} cannot be stored; use a boolean, integer or floating dtype")
        if self.stack is not None and (not isinstance(self.stack, (int, np.integer)) or not 1 <= self.stack <= 64):
            raise ValueError(f"Field: stack {self.stack!r} must be None or an integer from 1 to 64")
        if self.pad not in ("repeat", "zeros"):
            raise ValueError(f"Field: pad {self.pad!r} must be 'repeat' or 'zeros'")
        if self.codec is not None:
            codec_choice(self.codec, "Field")
        if self.every is not None and not (isinstance(self.every, (int, np.integer)) and 1 <= self.every <= MAX_EVERY):
            raise ValueError(f"Field: every {self.every!r} must be None or an integer from 1 to {MAX_EVERY:,}")
        if self.every is not None and self.stack is not None:
            raise ValueError(f"Field: every={self.every} and stack={self.stack}; every frame of a stack is needed")
        if len(shape) > MAX_DIMENSIONS or math.prod(map(int, shape)) * dtype.itemsize > MAX_VALUE_BYTES:
            raise ValueError(
                f"Field: a value of shape {shape!r} and {dtype} is too large; expected at most {MAX_DIMENSIONS} "
                f"dimensions and {MAX_VALUE_BYTES >> 20} MiB"
            )
        object.__setattr__(self, "shape", tuple(int(n) for n in shape))
        object.__setattr__(self, "stack", None if self.stack is None else int(self.stack))
        object.__setattr__(self, "every", None if self.every in (None, 1) else int(self.every))
        object.__setattr__(self, "dtype", dtype.newbyteorder("=").name)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one value, unencoded."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def frames(self) -> int:
        """Frames that one observation is made of: ``stack``, or 1."""
        return self.stack or 1

    @cached_property
    def line_bytes(self) -> int:
        """Bytes from a pixel to the one below it, or 0 for fewer than two dimensions."""
        if len(self.shape) < 2:
            return 0
        # [H, W, 3] interleaves channels; anything else has its lines on the last axis.
        line = self.shape[1:] if len(self.shape) == 3 and self.shape[2] <= 4 else self.shape[-1:]
        return int(np.prod(line)) * np.dtype(self.dtype).itemsize

    def rows(self, name: str, value: npt.ArrayLike, count: int | None) -> npt.NDArray[Any]:
        """Check ``value`` as ``count`` rows of this field and return it as C-contiguous ``[count, *shape]``.

        ``count`` is ``None`` for one value without a leading axis; it is returned with one. Integers of another width
        are taken if every value fits, floats of another width are rounded.

        Raises:
            ValueError: another shape, or an integer out of range.  TypeError: another kind of dtype.
        """
        array = np.asarray(value)
        dtype = np.dtype(self.dtype)
        expected = self.shape if count is None else (count, *self.shape)
        if array.shape != expected:
            rows = "" if count is None else ", one row a lane"
            hint = f" (the newest frame only: the stack of {self.stack} is made when sampling)" if self.stack else ""
            raise ValueError(f"{name}: got shape {array.shape} {array.dtype}, expected {expected} {dtype}{rows}{hint}")
        if array.dtype != dtype:
            array = _converted(name, array, dtype)
        return np.ascontiguousarray(array).reshape(1 if count is None else count, *self.shape)


def _converted(name: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    kinds = (array.dtype.kind, dtype.kind)
    if kinds == ("f", "f") or (kinds[1] == "f" and kinds[0] in "iu"):
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        wrong = np.isinf(converted) & np.isfinite(array)
        if wrong.any():
            raise ValueError(f"{name}: value {array[wrong].flat[0]} does not fit into {dtype}; declare a wider dtype")
        return converted
    if kinds[0] in "iu" and kinds[1] in "iu":
        converted = array.astype(dtype)
        wrong = converted != array
        if wrong.any():
            raise ValueError(f"{name}: value {array[wrong].flat[0]} does not fit into {dtype}; declare a wider dtype")
        return converted
    raise TypeError(f"{name}: got dtype {array.dtype}, expected {dtype}; convert it, or declare the field so")


@dataclass(frozen=True, init=False)
class Spec:
    """All that is stored for a step: ``obs`` (a field, or a dict of fields), ``action``, and any further fields.

    ``reward`` (float32), ``terminated`` and ``truncated`` (bool) are always there and not declared.

    Attributes:
        fields: every declared field by its flat name; a dict observation's are ``"obs.<key>"``.
    """

    fields: dict[str, Field]

    def __init__(self, *, obs: Field | Mapping[str, Field], action: Field, **extra: Field) -> None:
        fields: dict[str, Field] = {}
        if isinstance(obs, Mapping):
            if not obs:
                raise ValueError("Spec: obs is an empty dict; give at least one field")
            for key, field in obs.items():
                if not isinstance(key, str) or not key or "." in key:
                    raise ValueError(f"Spec: observation key {key!r} must be a non-empty string without '.'")
                fields[f"obs.{key}"] = field
        else:
            fields["obs"] = obs
        for name, field in {"action": action, **extra}.items():
            if name in RESERVED:
                raise ValueError(f"Spec: field {name!r} is always there or made when sampling; do not declare it")
            if name.split(".")[0] == "obs":
                raise ValueError(f"Spec: field {name!r} would count as an observation; choose another name")
            fields[name] = field
        if len(fields) > MAX_FIELDS:
            raise ValueError(f"Spec: {len(fields):,} fields, expected at most {MAX_FIELDS:,}; join some in one array")
        for name, field in fields.items():
            if not isinstance(field, Field):
                raise TypeError(f"Spec: {name} is {field!r}, expected a sharpwave.Field")
            if field.stack is not None and not name.split(".")[0] == "obs":
                raise ValueError(f"Spec: {name} has stack={field.stack}; only observations are stacked")
            if field.every is not None and (name == "action" or name.split(".")[0] == "obs"):
                raise ValueError(f"Spec: {name} has every={field.every}; observations and actions are of every step")
        object.__setattr__(self, "fields", fields)

    @cached_property
    def obs_names(self) -> tuple[str, ...]:
        """Flat names of the observation's fields."""
        return tuple(name for name in self.fields if name.split(".")[0] == "obs")

    @cached_property
    def step_names(self) -> tuple[str, ...]:
        """Names of the fields that have one value a step and no successor: the action and the extra fields."""
        return tuple(name for name in self.fields if name.split(".")[0] != "obs")

    @cached_property
    def sparse_names(self) -> tuple[str, ...]:
        """Names of the fields of which not every step's value is kept."""
        return tuple(name for name, field in self.fields.items() if field.every is not None)

    @property
    def dict_obs(self) -> bool:
        """Whether the observation is a dict."""
        return "obs" not in self.fields

    @cached_property
    def context(self) -> int:
        """Frames before a segment's first step that the segment carries, so that stacks never leave it."""
        return max(self.fields[name].frames for name in self.obs_names) - 1

    @cached_property
    def step_bytes(self) -> int:
        """Bytes of one step, unencoded: one frame, action, further fields, reward and flags; of a sparse field its
        share in a long episode."""
        return sum(-(-field.row_bytes // (field.every or 1)) for field in self.fields.values()) + 4 + 1

    @cached_property
    def max_step_bytes(self) -> int:
        """Bytes of one step, unencoded, of which all values are kept, as of an episode's first one."""
        return sum(field.row_bytes for field in self.fields.values()) + 4 + 1

    def to_json(self) -> str:
        """Return the schema as canonical JSON, without codecs: what a segment's schema hash is computed from."""
        fields = {
            name: {"shape": field.shape, "dtype": field.dtype, "stack": field.stack, "pad": field.pad}
            | ({} if field.every is None else {"every": field.every})
            for name, field in self.fields.items()
        }
        return json.dumps({"fields": fields}, separators=(",", ":"))

    def description(self) -> dict[str, Any]:
        """Describe the schema and the codecs that fields ask for, as JSON has them: what ``store.json`` keeps."""
        found: dict[str, Any] = json.loads(self.to_json())
        for name, field in self.fields.items():
            if field.codec is not None:
                found["fields"][name]["codec"] = field.codec
        return found

    @classmethod
    def from_json(cls, schema: Mapping[str, Any]) -> Spec:
        """Inverse of ``description``, and of ``to_json`` once parsed.

        Raises:
            ValueError, TypeError: not a schema.
        """
        fields = {
            name: _field(name, field) for name, field in _dict("spec", _dict("spec", schema).get("fields")).items()
        }
        obs = {name[4:]: field for name, field in fields.items() if name.startswith("obs.")}
        further = {name: field for name, field in fields.items() if name.split(".")[0] != "obs"}
        if "action" not in further or bool(obs) == ("obs" in fields):
            raise ValueError(f"spec: fields {list(fields)[:8]}, expected one observation, or several, and an action")
        return cls(obs=obs or fields["obs"], **further)

    @cached_property
    def schema_hash(self) -> int:
        """The first 8 bytes of BLAKE2b over ``to_json``, as an unsigned integer."""
        return int.from_bytes(hashlib.blake2b(self.to_json().encode(), digest_size=8).digest(), "little")

    def split_obs(self, obs: Any, what: str = "obs") -> dict[str, Any]:
        """Return the arrays of an observation as the user holds it, by flat field name."""
        if not self.dict_obs:
            return {"obs": obs}
        keys = [name[4:] for name in self.obs_names]
        if not isinstance(obs, Mapping) or set(obs) != set(keys):
            came = f"keys {sorted(obs)}" if isinstance(obs, Mapping) else type(obs).__name__
            raise ValueError(f"{what}: got {came}, expected a dict with the keys {sorted(keys)}")
        return {f"obs.{key}": obs[key] for key in keys}

    def join_obs(self, arrays: Mapping[str, Any]) -> Any:
        """Inverse of ``split_obs``."""
        return {name[4:]: arrays[name] for name in self.obs_names} if self.dict_obs else arrays["obs"]


def _dict(what: str, value: Any) -> dict[str, Any]:
    """Return a JSON object.  Raises: ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{what}: {type(value).__name__}, expected an object")
    return value


def _field(name: str, value: Any) -> Field:
    """Make a field of whatever was parsed.  Raises: ValueError, TypeError."""
    said = {"codec": None, "every": None, **_dict(f"field {name!r}", value)}
    if said.keys() != {"shape", "dtype", "stack", "pad", "codec", "every"}:
        raise ValueError(f"field {name!r}: {sorted(said)}, expected a shape, a dtype, a stack and a pad")
    shape, dtype, stack, every = said["shape"], said["dtype"], said["stack"], said["every"]
    optional = {type(stack), type(every)} <= {int, type(None)}
    if not isinstance(shape, list) or any(type(n) is not int for n in shape) or not optional:
        raise ValueError(f"field {name!r}: shape {shape!r}, stack {stack!r}, every {every!r}, expected integers")
    if not isinstance(dtype, str) or not _DTYPES.fullmatch(dtype):
        raise ValueError(f"field {name!r}: dtype {dtype!r}, expected one of NumPy's names of numbers")
    return Field(tuple(shape), dtype, stack, said["pad"], said["codec"], every)
