"""Schema of a step: its fields, and the validation of arrays against them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array, is_integer
from sharpwave.codecs.codec_registry import codec_choice
from sharpwave.codecs.ragged_rows import REFERENCE_BYTES, ROOM_BYTES, Kind
from sharpwave.codecs.shared import KEY_BYTES
from sharpwave.field_values import converted, ragged_rows
from sharpwave.json_values import MAX_DEPTH, decode, encode, is_plain
from sharpwave.nesting import Structure, tree_of
from sharpwave.ragged import Text

TERMINATED, TRUNCATED, START = 1, 2, 4
"""Bits of the ``flags`` column: whether the step's episode terminated, was truncated, or began with it."""
ENDED = TERMINATED | TRUNCATED

MAX_REWARD = float(np.finfo(np.float32).max)
"""Limit of rewards and n-step returns; larger values are clipped to it."""

RESERVED = {"reward", "terminated", "truncated", "flags", "final_obs", "lanes", "lane", "next_obs", "timeout"} | {
    "discount",
    "weights",
    "probabilities",
    "ids",
}


MAX_DIMENSIONS, MAX_VALUE_BYTES, MAX_FIELDS = 16, 1 << 30, 1024
MAX_EVERY = 1 << 20
MAX_ROW_BYTES = 1 << 26
"""Limit of a row of a ragged field: a segment has room for one."""
_DTYPES = re.compile("bool|u?int(8|16|32|64)|float(16|32|64|96|128)|str|bytes")
"""NumPy's dtype names that ``Spec.to_json`` writes, and those of text."""
TYPICAL_BYTES = 1024
"""Bytes that a row of a ragged field is taken for, unless ``max_length`` allows fewer, where a size must be guessed."""


@dataclass(frozen=True, init=False)
class Field:
    """Array that is stored for every step, or a row of any length, as tokens and text are.

    Args:
        shape: shape of one step's value; for pixels one frame, without the stack. With ``None`` as its first axis,
            ``(None,)`` or ``(None, 768)``, each step's value has its own length, 0 included; ``str`` and ``bytes`` are
            text of any length.
        dtype: a numpy boolean, integer or floating dtype; not given with ``str`` and ``bytes``.
        stack: number of consecutive frames that a batch carries on an axis before ``shape``; ``None``: no such axis.
            Only for observations.
        pad: padding of a stack before an episode's first frame: that frame repeated ("repeat") or zeros ("zeros").
        codec: codec of this field instead of the store's: "auto", "patches", "packed", "delta", "zstd", "predict",
            "raw" or the name of a registered one.
        every: store only the values of steps 0, k, 2k, ... of each episode, for recurrent states: ``extend`` takes a
            value for every step, a batch has the last stored one. ``None``: store every value. Not for observations
            and actions.
        metadata: a dict of strings, numbers, booleans, bytes, and lists and dicts of these, such as units or names of
            components; kept in ``store.json``.
        max_length: greatest length of a row, in items of its first axis; of text in bytes (of UTF-8). Longer ones are
            refused. Default: as many as 1 MiB holds.
        shared: store equal values once, for values that many steps have, such as a prompt, a goal or a static image.
            A step has 16 bytes more, before they are packed. Only for fields beside obs and action.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    shape: tuple[Any, ...]
    dtype: str
    stack: int | None = None
    pad: Literal["repeat", "zeros"] = "repeat"
    codec: str | None = None
    every: int | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    max_length: int | None = None
    shared: bool = False

    def __init__(
        self,
        shape: int | Sequence[int | None] | type[str] | type[bytes],
        dtype: Any = None,
        stack: int | None = None,
        pad: Literal["repeat", "zeros"] = "repeat",
        codec: str | None = None,
        every: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_length: int | None = None,
        shared: bool = False,
    ) -> None:
        if shape is str or shape is bytes:
            if dtype not in (None, text := "str" if shape is str else "bytes"):
                raise ValueError(f"Field: dtype {dtype!r} with {text}, which has none; leave it out")
            shape, dtype = (None,), text
        elif dtype is None:
            raise TypeError(f"Field: no dtype for shape {shape!r}; write e.g. 'uint8'")
        metadata = {} if metadata is None else metadata
        values = shape, dtype, stack, pad, codec, every, metadata, max_length, shared
        for field, value in zip(dataclasses.fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)
        self._check()

    def _check(self) -> None:
        shape: Any = (self.shape,) if is_integer(self.shape) else self.shape
        ragged = isinstance(shape, (tuple, list)) and len(shape) > 0 and shape[0] is None
        inner = shape[1:] if ragged else shape
        if not isinstance(shape, (tuple, list)) or any(not is_integer(n) or n < 1 for n in inner):
            raise ValueError(
                f"Field: shape {self.shape!r} must be a tuple of positive integers, the first of which may be None for "
                "rows of any length; () for a scalar"
            )
        text = self.dtype if self.dtype in ("str", "bytes") and ragged else None
        if text is not None and inner:
            raise ValueError(f"Field: shape {shape!r} of {text}, expected (None,): a step has one {text}")
        try:
            dtype = np.dtype(np.uint8 if text else self.dtype)
        except TypeError as error:
            raise TypeError(f"Field: {self.dtype!r} is not a numpy dtype; write e.g. 'uint8'") from error
        if dtype.kind not in "buif":
            raise TypeError(f"Field: dtype {dtype} cannot be stored; use a boolean, integer or floating dtype")
        if not isinstance(self.shared, bool):
            raise TypeError(f"Field: shared={self.shared!r}, expected True or False")
        apart = "rows of any length" if ragged else "shared values" if self.shared else ""
        for name in ("stack", "every", "codec") if apart else ():
            if getattr(self, name) is not None:
                raise ValueError(f"Field: {name}={getattr(self, name)!r} of {apart}, expected None")
        if self.max_length is not None and not (ragged and is_integer(self.max_length) and self.max_length > 0):
            raise ValueError(
                f"Field: max_length {self.max_length!r}, expected None, or an integer of at least 1 for rows of any "
                f"length (shape {shape!r})"
            )
        if self.stack is not None and (not is_integer(self.stack) or not 1 <= self.stack <= 64):
            raise ValueError(f"Field: stack {self.stack!r} must be None or an integer from 1 to 64")
        if self.pad not in ("repeat", "zeros"):
            raise ValueError(f"Field: pad {self.pad!r} must be 'repeat' or 'zeros'")
        if self.codec is not None:
            codec_choice(self.codec, "Field")
        if self.every is not None and not (is_integer(self.every) and 1 <= self.every <= MAX_EVERY):
            raise ValueError(f"Field: every {self.every!r} must be None or an integer from 1 to {MAX_EVERY:,}")
        if self.every is not None and self.stack is not None:
            raise ValueError(f"Field: every={self.every} and stack={self.stack}; every frame of a stack is needed")
        item_bytes = math.prod(map(int, inner)) * dtype.itemsize
        if ragged and item_bytes * int(self.max_length or 1) > MAX_ROW_BYTES:
            raise ValueError(
                f"Field: {int(self.max_length or 1):,} items of {item_bytes:,} bytes are too large a row; expected at "
                f"most {MAX_ROW_BYTES >> 20} MiB: lower max_length="
            )
        if len(shape) > MAX_DIMENSIONS or item_bytes > MAX_VALUE_BYTES:
            raise ValueError(
                f"Field: a value of shape {shape!r} and {dtype} is too large; expected at most {MAX_DIMENSIONS} "
                f"dimensions and {MAX_VALUE_BYTES >> 20} MiB"
            )
        object.__setattr__(self, "shape", tuple(None if n is None else int(n) for n in shape))
        object.__setattr__(self, "max_length", None if self.max_length is None else int(self.max_length))
        object.__setattr__(self, "stack", None if self.stack is None else int(self.stack))
        object.__setattr__(self, "every", None if self.every is None else int(self.every))
        object.__setattr__(self, "dtype", text or dtype.newbyteorder("=").name)
        object.__setattr__(self, "metadata", decode(encode(self.metadata, "Field: metadata")))

    @cached_property
    def np_dtype(self) -> np.dtype[Any]:
        """The dtype, as numpy has it; of text uint8."""
        return np.dtype(np.uint8 if self.text else self.dtype)

    @cached_property
    def row_bytes(self) -> int:
        """Size of one value in bytes, unencoded; of a ragged field, of its reference in an open segment."""
        return REFERENCE_BYTES if self.ragged else self.item_bytes

    @cached_property
    def ragged(self) -> bool:
        """Whether values have any length."""
        return self.shape[:1] == (None,)

    @cached_property
    def column(self) -> Field:
        """Field of a segment's column: the field itself, or of the keys of its shared values."""
        return Field((KEY_BYTES // 8,), "uint64") if self.shared else self

    @property
    def text(self) -> Text | None:
        """Kind of the values' text, "str" or "bytes", if they are text."""
        return cast(Text, self.dtype) if self.dtype in ("str", "bytes") else None

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """Shape of one item of a ragged field; else of the value."""
        return self.shape[1:] if self.ragged else self.shape

    @cached_property
    def item_bytes(self) -> int:
        """Size in bytes of one item of a ragged field; else of the value."""
        return int(np.prod(self.inner, dtype=np.int64)) * self.np_dtype.itemsize

    @cached_property
    def most_items(self) -> int:
        """Limit of a ragged field's row, in items."""
        return max(1, ROOM_BYTES // self.item_bytes) if self.max_length is None else self.max_length

    @cached_property
    def room_bytes(self) -> int:
        """Limit of the bytes of a ragged field's values in one segment; 0 for other fields."""
        return max(ROOM_BYTES, self.most_items * self.item_bytes) if self.ragged else 0

    @cached_property
    def kind(self) -> Kind:
        """Kind of a ragged field's rows, for its codec; a shared value of one length is a row of one item."""
        if not self.ragged:
            return Kind(self.np_dtype, self.shape, None, 1, self.item_bytes)
        return Kind(self.np_dtype, self.inner, self.text, self.most_items, self.room_bytes)

    @cached_property
    def typical_bytes(self) -> int:
        """Size of one value in bytes, unencoded; a guess for a ragged field."""
        return min(TYPICAL_BYTES, self.most_items * self.item_bytes) if self.ragged else self.row_bytes

    @property
    def frames(self) -> int:
        """Frames in an observation: ``stack``, or 1."""
        return self.stack or 1

    @cached_property
    def line_bytes(self) -> int:
        """Bytes of an image line; 0 for fewer than two dimensions."""
        if len(self.shape) < 2 or self.ragged:
            return 0
        # [H, W, 3] interleaves channels; other shapes have lines on the last axis.
        line = self.shape[1:] if len(self.shape) == 3 and self.shape[2] <= 4 else self.shape[-1:]
        return int(np.prod(line)) * np.dtype(self.dtype).itemsize

    def rows(self, name: str, value: npt.ArrayLike, count: int | None) -> npt.NDArray[Any]:
        """Check ``value`` as ``count`` rows of this field and return it as C-contiguous ``[count, *shape]``.

        A ``count`` of ``None`` means one value without a leading axis; it is returned with one. Integers of another
        width, or for a field of floats, are accepted if every value fits exactly; floats of another width are rounded.
        Of a ragged field ``value`` is a sequence of rows, and the result an array of arrays.

        Raises:
            ValueError: another shape, an integer out of range, or too long a row.
            TypeError: a dtype of another kind, or a masked array.
        """
        if self.ragged:
            return ragged_rows(name, value, count, self.inner, self.np_dtype, self.text, self.most_items)
        array, dtype = as_array(name, value), self.np_dtype
        expected = self.shape if count is None else (count, *self.shape)
        if array.shape != expected:
            rows = "" if count is None else ", one row a lane"
            hint = f" (the newest frame only: the stack of {self.stack} is made when sampling)" if self.stack else ""
            raise ValueError(f"{name}: got shape {array.shape} {array.dtype}, expected {expected} {dtype}{rows}{hint}")
        if array.dtype != dtype:
            array = converted(name, array, dtype)
        whole: npt.NDArray[Any] = np.ascontiguousarray(array)
        return (
            whole[None] if count is None and self.shape else whole.reshape(1 if count is None else count, *self.shape)
        )


Fields = Field | Mapping[str, Any] | Sequence[Any]
"""A field, or dicts and tuples of fields, nested."""


@dataclass(frozen=True, init=False)
class Spec:
    """Schema of a step: ``obs`` and ``action``, each a field, or dicts and tuples of fields, nested; further fields.

    ``reward`` (float32), ``terminated`` and ``truncated`` (bool) are always stored and are not declared. Every argument
    and result with an observation or action has the structure declared here; a list counts as a tuple.

    Attributes:
        fields: every declared field by its flat name, which is its path: ``"obs.<key>"`` in a dict,
            ``"action.0"`` in a tuple, ``"obs.images.top"``; a dot in a key is written ``\\.`` (``sharpwave.nesting``).
        tuples: flat names of the parts that are tuples.

    Raises:
        ValueError, TypeError: an invalid field or key.
    """

    fields: dict[str, Field]
    tuples: tuple[str, ...]
    _obs: Structure = dataclasses.field(repr=False, compare=False)
    _action: Structure = dataclasses.field(repr=False, compare=False)

    def __init__(self, *, obs: Fields, action: Fields, **extra: Field) -> None:
        roots = {"obs": Structure("obs", obs), "action": Structure("action", action)}
        declared = {**roots["obs"].ends, **roots["action"].ends}
        fields = _joined(declared, extra, roots["action"].is_array)
        for name, field in fields.items():
            if not isinstance(field, Field):
                raise TypeError(f"Spec: {name} is {field!r}, expected a sharpwave.Field")
            if field.stack is not None and name not in roots["obs"].ends:
                raise ValueError(f"Spec: {name} has stack={field.stack}; only observations are stacked")
            if field.every is not None and name in declared:
                raise ValueError(
                    f"Spec: {name} has every={field.every}; only fields beside obs and action may be sparse"
                )
            if field.shared and name in declared:
                raise ValueError(
                    f"Spec: {name} has shared=True; only fields beside obs and action may share values: declare it "
                    "beside them"
                )
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "tuples", roots["obs"].tuples + roots["action"].tuples)
        object.__setattr__(self, "_obs", roots["obs"])
        object.__setattr__(self, "_action", roots["action"])

    @property
    def obs_names(self) -> tuple[str, ...]:
        """Flat names of the observation's fields."""
        return self._obs.names

    @property
    def action_names(self) -> tuple[str, ...]:
        """Flat names of the action's fields."""
        return self._action.names

    @cached_property
    def extra_names(self) -> tuple[str, ...]:
        """Names of the fields beside obs and action."""
        return tuple(name for name in self.fields if name not in {*self.obs_names, *self.action_names})

    @cached_property
    def step_names(self) -> tuple[str, ...]:
        """Names of the fields that have one value a step and no successor: the action's and the extra fields."""
        return self.action_names + self.extra_names

    @property
    def nested(self) -> bool:
        """Whether the observation is more than an array or a dict of arrays, or the action more than an array."""
        return self._obs.nested or not self._action.is_array

    @cached_property
    def sparse_names(self) -> tuple[str, ...]:
        """Names of the fields with ``every``."""
        return tuple(name for name, field in self.fields.items() if field.every is not None)

    @cached_property
    def ragged_names(self) -> tuple[str, ...]:
        """Names of the fields with rows of any length."""
        return tuple(name for name, field in self.fields.items() if field.ragged)

    @cached_property
    def shared_names(self) -> tuple[str, ...]:
        """Names of the fields with shared values."""
        return tuple(name for name, field in self.fields.items() if field.shared)

    @cached_property
    def columns(self) -> dict[str, Field]:
        """Content of a segment's columns, by the field's name (``Field.column``)."""
        return {name: field.column for name, field in self.fields.items()}

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """Kinds of the rows of ragged columns, by the field's name.

        A segment has room for three rows of an observation: the one of a step, the one after it, and one that the step
        was to have, but had not.
        """
        found = {name: column.kind for name, column in self.columns.items() if column.ragged}
        for name in found.keys() & set(self.obs_names):
            kind = found[name]
            found[name] = kind._replace(room_bytes=max(kind.room_bytes, 3 * kind.most_items * kind.item_bytes))
        return found

    @cached_property
    def ragged_obs(self) -> tuple[str, ...]:
        """Names of the observation's fields with rows of any length."""
        return tuple(name for name in self.obs_names if self.fields[name].ragged)

    def check_fixed(self, what: str, cure: str, taken: Container[str] = ()) -> None:
        """Refuse fields with rows of any length, but those of ``taken``.

        Raises: ValueError: naming the first one, and the ``cure``.
        """
        for name in (one for one in self.ragged_names if one not in taken):
            field = self.fields[name]
            raise ValueError(
                f"{what}: field {name!r} has rows of any length ({field.dtype} {field.shape}), which it cannot take "
                f"yet; {cure}"
            )

    @property
    def array_obs(self) -> bool:
        """Whether the observation is one array."""
        return self._obs.is_array

    @property
    def array_action(self) -> bool:
        """Whether the action is one array."""
        return self._action.is_array

    @cached_property
    def context(self) -> int:
        """Frames before its first step that a segment carries, so that stacks need no other segment."""
        return max(self.fields[name].frames for name in self.obs_names) - 1

    @cached_property
    def step_bytes(self) -> int:
        """Mean size of a step in bytes, unencoded: frame, action, further fields, reward and flags; a sparse field
        counts with its share in a long episode, a ragged one with a guess."""
        return sum(-(-field.typical_bytes // (field.every or 1)) for field in self.fields.values()) + 4 + 1

    @cached_property
    def max_step_bytes(self) -> int:
        """Size in bytes, unencoded, of a step with the values of all sparse fields, such as an episode's first."""
        return sum(field.row_bytes for field in self.columns.values()) + 4 + 1

    def to_json(self) -> str:
        """Return the schema as canonical JSON, without codecs. A segment's schema hash is the hash of this text."""
        fields = {
            name: {"shape": field.shape, "dtype": field.dtype, "stack": field.stack, "pad": field.pad}
            | ({} if field.every is None else {"every": field.every})
            | ({} if field.max_length is None else {"max_length": field.max_length})
            | ({"shared": True} if field.shared else {})
            for name, field in self.fields.items()
        }
        tuples = {"tuples": self.tuples} if self.tuples else {}
        return json.dumps({"fields": fields} | tuples, separators=(",", ":"))

    def description(self) -> dict[str, Any]:
        """Return the schema with the fields' codecs and metadata, as values for JSON; ``store.json`` contains it."""
        found: dict[str, Any] = json.loads(self.to_json())
        for name, field in self.fields.items():
            if field.codec is not None:
                found["fields"][name]["codec"] = field.codec
            if field.metadata:
                found["fields"][name]["metadata"] = encode(field.metadata, f"{name}: metadata")
        return found

    @classmethod
    def from_json(cls, schema: Mapping[str, Any]) -> Spec:
        """Make the spec of a ``description``, or of a parsed ``to_json``.

        Raises:
            ValueError, TypeError: the values are not a schema.
        """
        said = _dict("spec", schema)
        fields = {name: _field(name, field) for name, field in _dict("spec", said.get("fields")).items()}
        tuples = said.get("tuples", [])
        if not isinstance(tuples, list) or any(not isinstance(name, str) for name in tuples):
            raise ValueError("spec: tuples, expected a list of names")
        obs = {name: field for name, field in fields.items() if name.split(".")[0] == "obs"}
        # Beside an action that is one array, a further field may have any name.
        of_action = {name for name in fields if name.split(".")[0] == "action"}
        actions = {name: fields[name] for name in fields if name in ({"action"} & of_action or of_action)}
        if not obs or not actions:
            raise ValueError(f"spec: fields {list(fields)[:8]}, expected at least one observation and an action")
        further = {name: field for name, field in fields.items() if name not in obs and name not in actions}
        made = cls(obs=tree_of("obs", obs, tuples), action=tree_of("action", actions, tuples), **further)
        if made.fields.keys() != fields.keys() or set(made.tuples) != set(tuples):
            raise ValueError(
                f"spec: fields {list(fields)[:8]} and tuples {tuples[:8]}, expected those of one structure"
            )
        return made

    @cached_property
    def schema_hash(self) -> int:
        """First 8 bytes of BLAKE2b over ``to_json``, as an unsigned integer."""
        return int.from_bytes(hashlib.blake2b(self.to_json().encode(), digest_size=8).digest(), "little")

    def with_fields(self, further: Mapping[str, Field]) -> Spec:
        """Return a spec with further fields behind the others.  Raises: ValueError: of a name that is taken."""
        made: Spec = object.__new__(Spec)
        fields = _joined(self.fields, further, self.array_action)
        mine = {"fields": fields, "tuples": self.tuples, "_obs": self._obs, "_action": self._action}
        for name, value in mine.items():
            object.__setattr__(made, name, value)
        return made

    def split_obs(self, obs: Any, what: str = "obs") -> dict[str, Any]:
        """Split an observation into arrays by flat field name.  Raises: ValueError: naming the part that is wrong."""
        return self._obs.split(obs, what)

    def split_space(self, space: Any, what: str) -> dict[str, Any]:
        """Split an observation space, whose dicts and tuples are its ``spaces``, into spaces by flat field name.

        Raises: ValueError.
        """
        return self._obs.split(space, what, lambda one: getattr(one, "spaces", one))

    def join_obs(self, arrays: Mapping[str, Any]) -> Any:
        """Join arrays by flat field name into an observation; inverse of ``split_obs``."""
        return self._obs.join(arrays)

    def split_action(self, action: Any, what: str = "action") -> dict[str, Any]:
        """Split an action into arrays by flat field name.  Raises: ValueError: naming the part that is wrong."""
        return self._action.split(action, what)

    def join_action(self, arrays: Mapping[str, Any]) -> Any:
        """Join arrays by flat field name into an action; inverse of ``split_action``."""
        return self._action.join(arrays)


def _joined(fields: Mapping[str, Field], further: Mapping[str, Field], array_action: bool) -> dict[str, Field]:
    """Return fields, and further ones behind them.  Raises: ValueError: of a name that is taken, or too many."""
    for name in further:
        if name in RESERVED:
            raise ValueError(f"Spec: field {name!r} is always stored or computed when sampling; do not declare it")
        root = name.split(".")[0]
        if root == "obs" or name in fields or (root == "action" and not array_action):
            kind = {"obs": "observation"}.get(root, root)
            raise ValueError(f"Spec: field {name!r} would be taken for an {kind}; choose another name")
    if (count := len(fields) + len(further)) > MAX_FIELDS:
        raise ValueError(f"Spec: {count:,} fields, expected at most {MAX_FIELDS:,}; join some in one array")
    return {**fields, **further}


def _dict(what: str, value: Any) -> dict[str, Any]:
    """Check that a parsed JSON value is an object, and return it.  Raises: ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{what}: {type(value).__name__}, expected an object")
    return value


def _field(name: str, value: Any) -> Field:
    """Make a field of a parsed JSON value.  Raises: ValueError, TypeError."""
    absent: dict[str, Any] = {"codec": None, "every": None, "metadata": {}, "max_length": None, "shared": False}
    said = {**absent, **_dict(f"field {name!r}", value)}
    if said.keys() != {"shape", "dtype", "stack", "pad", *absent}:
        raise ValueError(f"field {name!r}: {sorted(said)}, expected a shape, a dtype, a stack and a pad")
    if not is_plain(said["metadata"], MAX_DEPTH):
        raise ValueError(f"field {name!r}: metadata, expected plain values, nested in at most {MAX_DEPTH} levels")
    shape, dtype, stack, every, most = (said[key] for key in ("shape", "dtype", "stack", "every", "max_length"))
    optional = {type(stack), type(every), type(most)} <= {int, type(None)}
    if not isinstance(shape, list) or {type(n) for n in shape} - {int, type(None)} or not optional:
        raise ValueError(
            f"field {name!r}: shape {shape!r}, stack {stack!r}, every {every!r}, max_length {most!r}, expected integers"
        )
    if not isinstance(dtype, str) or not _DTYPES.fullmatch(dtype):
        raise ValueError(f"field {name!r}: dtype {dtype!r}, expected one of NumPy's names of numbers")
    metadata, shared = decode(said["metadata"]), said["shared"]
    return Field(tuple(shape), dtype, stack, said["pad"], said["codec"], every, metadata, most, shared)
