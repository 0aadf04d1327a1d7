"""Mapping between the parts of a collector's TensorDict and the fields of a store's steps.

A key at the root and under "next" alike (observations, step counts, recurrent states) is an observation: it is stored
once. Single booleans (done, terminated, truncated, is_init) share a few bytes. Every other key is a field of its own.
Texts and rows of any length are arrays of objects on their way to the store, and ``Ragged`` on their way back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_leaf_nontensor,
    is_non_tensor,
)

from sharpwave.arrays import Array
from sharpwave.integrations.any_length import rows_of, shape_of
from sharpwave.integrations.frame_stacks import Stack
from sharpwave.ragged import Ragged
from sharpwave.spec import Field, Spec

Named = dict[str, Array]
Key = tuple[str, ...]

NEXT = "next"
REWARD, DONE, TERMINATED, TRUNCATED = ((NEXT, name) for name in ("reward", "done", "terminated", "truncated"))
TRAJECTORY: Key = ("collector", "traj_ids")
STEPS: Key = ("steps_to_next_obs",)
MASK: Key = ("collector", "mask")
SAMPLED = {("index",), ("priority_weight",)}
"""Keys that sampling adds and that are not stored."""
BITS, ACTION = "bits", "action"


@dataclass(frozen=True)
class TensorDictLeaf:
    """Tensor of the TensorDict: its key, and its shape without batch dimensions and dtype, as a ``Field`` has them."""

    key: Key
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def ragged(self) -> bool:
        """Whether each row has its own length, as texts have."""
        return self.shape[:1] == (None,)

    @property
    def single(self) -> bool:
        """Whether it is one number in each row."""
        return all(n == 1 for n in self.shape)


@dataclass
class Rows:
    """Arrays of n transitions: ``before`` and ``after`` observations by name, ``fields`` with the action.

    ``ended``: bool [n], the episode ended with the transition. ``trajectory``: the collector's numbers, if any.
    """

    before: Named
    after: Named
    fields: Named
    reward: Array
    terminated: npt.NDArray[np.bool_]
    ended: npt.NDArray[np.bool_]
    trajectory: Array | None

    def __len__(self) -> int:
        return len(self.reward)

    def some(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """Return the rows ``chosen``, bool [n]."""
        before, after, fields = (
            {name: one[chosen] for name, one in part.items()} for part in (self.before, self.after, self.fields)
        )
        numbers = None if self.trajectory is None else self.trajectory[chosen]
        return Rows(
            before, after, fields, self.reward[chosen], self.terminated[chosen], self.ended[chosen], numbers
        )  # fmt: skip


class TensorDictLayout:
    """Fields of a store for TensorDicts of one structure.

    Attributes:
        obs: leaves at the root and under "next", by the observation's name. ``fields``: all other leaves with a field.
        bits: single booleans, in the order of their bits. ``reward``: the leaf of the store's reward, if any.
    """

    def __init__(
        self,
        obs: dict[str, TensorDictLeaf],
        fields: dict[str, TensorDictLeaf],
        bits: list[TensorDictLeaf],
        reward: TensorDictLeaf | None,
    ) -> None:
        self.obs, self.fields, self.bits, self.reward = obs, fields, bits, reward

    @classmethod
    def of(cls, data: TensorDictBase, ragged: Collection[Key] = ()) -> TensorDictLayout:
        """Return the layout of transitions [n].

        Args:
            ragged: keys whose rows have any length, also where those of ``data`` have one.

        Raises:
            ValueError, TypeError: not transitions, or not storable.
        """
        leaves = _widened({key: _leaf_at(data, key) for key in _keys(data)}, ragged)
        bits = [leaf for leaf in leaves.values() if leaf.dtype == "bool" and leaf.single]
        left = {leaf.key: leaf for leaf in leaves.values() if leaf not in bits}
        obs = [leaf for key, leaf in left.items() if key[0] != NEXT and _alike(leaf, left.get((NEXT, *key)))]
        taken = {key for leaf in obs for key in (leaf.key, (NEXT, *leaf.key))}
        reward = left.get(REWARD)
        if reward is not None and (reward.dtype != "float32" or not reward.single):
            reward = None
        others = [leaf for key, leaf in left.items() if key not in taken and leaf is not reward]
        roots = sorted((leaf for leaf in others if leaf.key[0] != NEXT), key=lambda leaf: leaf.key[-1] != ACTION)
        if not obs or not roots:
            raise ValueError(
                f"extend: got keys {sorted('.'.join(key) for key in leaves)}, expected transitions as collectors make "
                'them: an action, and observations at the root and under "next" (compact_obs=False); a store holds '
                "nothing else, TorchRL's LazyTensorStorage does"
            )
        action = roots[0]
        named = {ACTION: action} | _named([leaf for leaf in others if leaf is not action], "td/")
        return cls(_named(obs, ""), named, bits, reward)

    @classmethod
    def from_spec(cls, spec: Spec) -> TensorDictLayout:
        """Return the layout of a store.  Raises: ValueError: this module did not make the store."""
        try:
            bits = spec.fields[BITS].metadata
            leaves = {name: _leaf(field.metadata) for name, field in spec.fields.items() if name != BITS}
            reward = _leaf(bits["reward"]) if bits["reward"] else None
            obs = {name[4:]: leaves[name] for name in spec.obs_names}
            fields = {name: leaves[name] for name in spec.step_names if name != BITS}
            return cls(obs, fields, [_leaf(one) for one in bits["bits"]], reward)
        except (KeyError, TypeError) as error:
            raise ValueError(f"this store holds {spec}, expected one made by a TorchRL buffer") from error

    def checked(self, n_step: int) -> TensorDictLayout:
        """Return the layout, if it allows returns of ``n_step`` steps.  Raises: ValueError."""
        roots = {leaf.key for leaf in (*self.fields.values(), *self.bits)}
        for leaf in self.fields.values():
            if n_step > 1 and leaf.key[0] == NEXT and leaf.key[1:] in roots:
                raise ValueError(
                    f"ReplayBuffer: n_step={n_step}, but {leaf.key} differs from {leaf.key[1:]} in shape or dtype, so "
                    "it would be that of the first step; make them alike, or exclude one of them"
                )
        if n_step > 1 and (self.reward is None or STEPS in (leaf.key for leaf in self.fields.values())):
            raise ValueError(
                f'ReplayBuffer: n_step={n_step}, expected 1, or ("next", "reward") as one float32, and single steps, '
                "not the output of MultiStep"
            )
        return self

    def spec(self, stacks: Mapping[str, Stack], max_length: int | None = None) -> Spec:
        """Return the store's schema; ``from_spec`` is its inverse.  ``max_length``: of fields beside observations."""
        obs = {name: replace(stack.field(), metadata=_metadata(self.obs[name])) for name, stack in stacks.items()}
        fields = {}
        for name, leaf in self.fields.items():
            same = name != ACTION and leaf.dtype in ("str", "bytes")  # such as a prompt of many answers
            most = Stack(leaf.shape, leaf.dtype).limited(max_length).max_length
            fields[name] = Field(leaf.shape, leaf.dtype, metadata=_metadata(leaf), max_length=most, shared=same)
        said = {"bits": [_metadata(leaf) for leaf in self.bits], "reward": self.reward and _metadata(self.reward)}
        return Spec(obs=obs, **fields, **{BITS: Field((-(-max(1, len(self.bits)) // 8),), "uint8", metadata=said)})

    def rows(self, data: TensorDictBase) -> Rows:
        """Return transitions [n] as arrays, which share their memory if it is the CPU's.

        Raises:
            ValueError: another structure than the layout's.
        """
        try:
            before = {name: _array(data, leaf) for name, leaf in self.obs.items()}
            after = {name: _array(data, leaf, NEXT) for name, leaf in self.obs.items()}
            fields = {name: _array(data, leaf) for name, leaf in self.fields.items()}
            bits = {leaf.key: _array(data, leaf).reshape(len(data)) for leaf in self.bits}
            reward = np.zeros(len(data), np.float32)
            if self.reward is not None:
                reward = _array(data, self.reward).reshape(len(data))
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"extend: these are not transitions as those before: {error}") from error
        if more := set(_keys(data)) - self._keys():
            raise ValueError(f"extend: keys {sorted(more)} are not in the first transitions; expected the same keys")
        packed = np.stack(list(bits.values()), 1) if bits else np.zeros((len(data), 1), np.bool_)
        none = np.zeros(len(data), np.bool_)
        done, terminated, truncated = (bits.get(key) for key in (DONE, TERMINATED, TRUNCATED))
        cut = none if truncated is None else truncated
        if terminated is None:
            terminated = none if done is None else done & ~cut
        ended = terminated | cut | (none if done is None else done)
        fields |= {BITS: np.packbits(packed, axis=1)}
        trajectory = data.get(TRAJECTORY, None)
        numbers = None
        if trajectory is not None:
            numbers = trajectory.detach().cpu().numpy().reshape(len(data), -1)[:, 0]
        return Rows(before, after, fields, reward, terminated, ended, numbers)

    def _keys(self) -> set[Key]:
        once = {leaf.key for leaf in (*self.fields.values(), *self.bits, *([self.reward] if self.reward else []))}
        return once | {key for leaf in self.obs.values() for key in (leaf.key, (NEXT, *leaf.key))}

    def tensordict(
        self, before: Named, after: Named, fields: Named, reward: Array, ends: Named | None = None
    ) -> TensorDict:
        """Return a TensorDict over arrays.

        Rows of any length are jagged nested tensors, texts a ``NonTensorStack``. In windows [B, T] a nested tensor has
        one window's rows, so the TensorDict is a lazy stack of B.

        Args:
            before, after: observations by name; ``fields``: with the action. All [*batch, *shape].
            reward: [*batch]. ``ends``: "done", "terminated" and "truncated" under "next", bool [*batch], if they differ
                from the stored ones.
        """
        batch, found = reward.shape, {leaf.key: before[name] for name, leaf in self.obs.items()}
        found |= {(NEXT, *leaf.key): after[name] for name, leaf in self.obs.items()}
        found |= {leaf.key: fields[name] for name, leaf in self.fields.items()}
        bits = np.unpackbits(fields[BITS], axis=-1, count=max(1, len(self.bits))).view(np.bool_)
        columns = np.ascontiguousarray(np.moveaxis(bits, -1, 0))
        for leaf, column in zip(self.bits, columns, strict=False):
            changed = ends is not None and leaf.key in (DONE, TERMINATED, TRUNCATED)
            found[leaf.key] = (ends[leaf.key[1]] if ends and changed else column).reshape(*batch, *leaf.shape)
        if self.reward is not None:
            found[REWARD] = reward.reshape(*batch, *self.reward.shape)
        nested: dict[str, Any] = {}
        rows: dict[Key, Ragged] = {}
        for key, array in found.items():
            inner = nested
            for name in key[:-1]:
                inner = inner.setdefault(name, {})
            if not isinstance(array, Ragged):
                inner[key[-1]] = torch.from_numpy(array)
            elif array.text is not None:
                inner[key[-1]] = _texts(array.strings() if array.text == "str" else array.bytes())
            elif len(batch) == 1:
                inner[key[-1]] = array.torch()
            else:
                rows[key] = array
        data = TensorDict(nested, batch_size=batch, device="cpu")
        if not rows:
            return data
        windows = list(data.unbind(0))
        for number, window in enumerate(windows):
            for key, values in rows.items():
                window.set(key, values[number].torch())
        return LazyStackedTensorDict.lazy_stack(windows)


def _texts(rows: list[Any]) -> NonTensorStack:
    """Return texts [n], or [B][T], as a stack."""
    return NonTensorStack(*(_texts(one) if isinstance(one, list) else one for one in rows))


def _keys(data: TensorDictBase) -> list[Key]:
    names = data.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    keys = [name if isinstance(name, tuple) else (name,) for name in names]
    return [key for key in keys if key not in SAMPLED]


def _value(data: TensorDictBase, key: Key) -> Any:
    """Return a tensor [n, ...], or a list of texts or arrays."""
    try:
        value = data.get(key)
    except RuntimeError:  # a lazy stack of tensors of several shapes
        value = data.get(key, as_list=True)
    if value is None:
        raise KeyError(f"no {key}")
    if is_non_tensor(value):
        return value.tolist()
    if isinstance(value, torch.Tensor) and value.is_nested:
        value = value.unbind()
    return value if isinstance(value, torch.Tensor) else [one.detach().cpu().numpy() for one in value]


def _leaf_at(data: TensorDictBase, key: Key) -> TensorDictLeaf:
    """Return the leaf of a key.  Raises: TypeError: a store cannot hold its values."""
    try:
        value = _value(data, key)
        if isinstance(value, torch.Tensor):
            return TensorDictLeaf(
                key, tuple(value.shape[data.ndim :]), torch.empty(0, dtype=value.dtype).numpy().dtype.name
            )
        shape, dtype = shape_of("rows", rows_of("rows", value))
    except TypeError as error:
        raise TypeError(
            f"extend: {key} cannot be stored ({error}); expected tensors of numbers, as numpy has them, texts, or rows "
            "of any length in a nested tensor, a lazy stack or a NonTensorStack: exclude it, or convert it"
        ) from error
    return TensorDictLeaf(key, shape, dtype)


def _widened(leaves: dict[Key, TensorDictLeaf], ragged: Collection[Key]) -> dict[Key, TensorDictLeaf]:
    """Return the leaves; those of any length are ``ragged`` ones, and that of other lengths at the root than in "next".

    Raises: ValueError: one that was named is a single number, or one that was not is always empty.
    """
    found = dict(leaves)
    for key, leaf in leaves.items():
        twin_key = key[1:] if key[0] == NEXT else (NEXT, *key)
        twin, named = leaves.get(twin_key), key in ragged or twin_key in ragged
        if named and not leaf.shape:
            raise ValueError(f"extend: {key} is a single number, expected rows with a length, as ragged= names it")
        wide = _of_any_length(leaf, key)
        differs = twin is not None and twin.shape != leaf.shape and _of_any_length(twin, key) == wide
        if leaf.shape and (named or differs):
            found[key] = wide
        if 0 in found[key].shape:
            raise ValueError(
                f"extend: {key} has rows of shape {leaf.shape}, expected numbers in each; if rows have any length, "
                f"name the key in ragged=, as ragged=[{key}]"
            )
    return found


def _of_any_length(leaf: TensorDictLeaf, key: Key) -> TensorDictLeaf:
    return replace(leaf, key=key, shape=(None, *leaf.shape[1:]))


def _alike(one: TensorDictLeaf, other: TensorDictLeaf | None) -> bool:
    return other is not None and (one.shape, one.dtype) == (other.shape, other.dtype)


def _named(leaves: list[TensorDictLeaf], prefix: str) -> dict[str, TensorDictLeaf]:
    named: dict[str, TensorDictLeaf] = {}
    for leaf in leaves:
        name = prefix + "/".join(leaf.key).replace(".", "_")
        while name in named:
            name += "_"
        named[name] = leaf
    return named


def _array(data: TensorDictBase, leaf: TensorDictLeaf, *under: str) -> Array:
    value = _value(data, key := (*under, *leaf.key))
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    array: Array = rows_of(str(key), value) if leaf.ragged or isinstance(value, list) else value
    shape, dtype = shape_of(str(key), array)
    if (shape, dtype) != (leaf.shape, leaf.dtype):
        cure = "" if leaf.ragged or None not in shape else f"; name it in ragged=, as {leaf.key}"
        raise ValueError(f"{key} is {dtype} {shape}, expected {leaf.dtype} {leaf.shape}{cure}")
    return array


def _metadata(leaf: TensorDictLeaf) -> dict[str, Any]:
    return {"key": list(leaf.key), "shape": list(leaf.shape), "dtype": leaf.dtype}


def _leaf(said: Mapping[str, Any]) -> TensorDictLeaf:
    return TensorDictLeaf(tuple(said["key"]), tuple(said["shape"]), said["dtype"])
