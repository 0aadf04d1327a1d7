"""Batches: the arrays of sampled items that a learner gets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from sharpwave.nesting import map_leaves
from sharpwave.ragged import Ragged
from sharpwave.showing import contact_sheet, described, table, titled


def needed(package: str) -> Any:
    """Import a framework.  Raises: ModuleNotFoundError: naming the command that installs it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(f"batch.{package}() needs {package}: pip install {package}", name=package) from error


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple) else None
    if parts is None:
        if tree is not None:  # a part that was not asked for
            yield path, tree
    else:
        for key, part in parts:
            yield from _leaves(part, f"{path}.{key}")


class Arrays:
    """Arrays of a batch, each an attribute of a dataclass; ``fields`` holds the further fields' arrays by name."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    probabilities: Any
    ids: Any
    fields: dict[str, Any]
    source: Any
    shards: Any

    def __getitem__(self, name: str) -> Any:
        """Return any part by its name.  Raises: KeyError."""
        if name in self.fields:
            return self.fields[name]
        if name in (field.name for field in fields(self)):
            return getattr(self, name)
        raise KeyError(f"batch: no field {name!r}; there are {[f.name for f in fields(self)] + list(self.fields)}")

    def mask_of(self, name: str) -> Any:
        """Return which steps have a value in a column added later (``Store.add_column``): bool, as ``batch[name]``."""
        return self[f"{name}.written"]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<{self._title}: {', '.join(f'{name} {described(value)}' for name, value in self._parts())}>"

    def _repr_html_(self) -> str:
        seen = [value for name, value in self._parts() if name.startswith("obs") and not isinstance(value, Ragged)]
        sheets = [contact_sheet(value) for value in seen]
        arrays = table(("", ""), ((name, described(value)) for name, value in self._parts()))
        return titled(self._title, *sheets, arrays)

    @property
    def _title(self) -> str:
        name = type(self).__name__
        return f"{name} of {len(self)}" if getattr(self.ids, "shape", None) else name  # ``map`` may have left numbers

    def _parts(self) -> Iterator[tuple[str, Any]]:
        """Yield each array by name, and other values."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "fields":
                yield from ((name, part) for name, part in value.items())
            elif isinstance(value, (dict, tuple)):
                yield from ((f"{field.name}{path}", part) for path, part in _leaves(value))
            elif value is not None:
                yield field.name, value

    def map(self, function: Callable[[Any], Any], of_rows: Callable[[Ragged], Any] | None = None) -> Self:
        """Return the batch with ``function`` applied to every array.

        Args:
            of_rows: applied to rows of any length; ``None``: ``function`` is applied to their values and offsets.
        """

        def apply_to(leaf: Any) -> Any:
            if isinstance(leaf, Ragged):
                return leaf.map(function) if of_rows is None else of_rows(leaf)
            return function(leaf)

        def apply(value: Any) -> Any:
            if value is None or isinstance(value, int):
                return value
            return map_leaves(lambda leaf: None if leaf is None else apply_to(leaf), value)

        return type(self)(*(apply(getattr(self, field.name)) for field in fields(self)))

    def copy(self) -> Self:
        """Copy the batch into memory that no store counts, arrays that share theirs apart from each other."""
        return self.map(lambda array: np.array(array, subok=True))

    def torch(self, device: Any = "cpu") -> Self:
        """Return the same batch as torch tensors on ``device``.

        On the CPU they share the batch's memory. For CUDA they are copied through pinned memory, without waiting.
        """
        torch = needed("torch")
        target = torch.device(device)
        if target.type == "cpu":
            return self.map(torch.from_numpy)
        return self.map(lambda a: torch.from_numpy(np.ascontiguousarray(a)).pin_memory().to(target, non_blocking=True))

    def jax(self, device: Any = None) -> Self:
        """Return the same batch as JAX arrays on ``device``; by default on the CPU.

        From 64 KiB on they share the batch's memory. Copied are stacks of frames of transitions with ``n_step=1``, as
        ``obs`` and ``next_obs`` overlap, and numbers of 64 bits, which JAX cuts to 32 by default. ``ids``, ``lane`` and
        ``step`` stay numpy's, as they may need 64 bits.
        """
        jax = needed("jax")
        target = jax.devices("cpu")[0] if device is None else device
        moved = self.map(lambda array: jax.device_put(array, target))
        kept: dict[str, Any] = {name: getattr(self, name) for name in ("ids", "lane", "step")}
        return replace(moved, **kept)


@dataclass(frozen=True)
class Draws:
    """Drawn items without their batch, for ``fetch`` and ``update_priorities``.

    Attributes:
        ids: int64 [n]. ``probabilities``: float64 [n]. ``weights``: float32 [n]. As in a batch.
        uniforms: float64 [n], which goals they are relabelled with; ``None`` where none are.
    """

    ids: Any
    probabilities: Any
    weights: Any
    uniforms: Any = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(repr=False)
class Batch(Arrays):
    """B transitions, in memory that is theirs while any array, slice or CPU tensor over it exists.

    Stacks of frames in ``obs`` and ``next_obs`` of a view with ``n_step=1`` share memory, as they overlap by all but
    one frame: a write to one changes the other. All other arrays are C-contiguous. All arrays of less than 256 bytes an
    item lie in one piece of memory.
    Held batches count as the store's memory, in ``stats()`` and against ``ram=``; ``copy`` and ``torch`` on another
    device take the process's own memory.

    Attributes:
        obs, next_obs: [B, stack, *shape] where the field has a stack, else [B, *shape]; in dicts and tuples, as the
            spec has them. ``next_obs`` is the observation after the last step that ``reward`` sums, the true final one
            where that step ended the episode.
        action: [B, *shape]; in dicts and tuples, as the spec has them. Observations and actions of any length are a
            ``Ragged``.
        reward: float32 [B], the discounted sum of up to n rewards, clipped to float32's largest value.
        discount: float32 [B], ``gamma**n_used * (1 - terminated)``: factor of the value of ``next_obs``.
        weights: float32 [B], importance weights, 1 for uniform sampling.
        probabilities: float64 [B], each item's probability in its draw.
        ids: int64 [B], for ``update_priorities``. They are tagged with their store; another store refuses them.
        fields: the spec's further fields by name, at the transition's first step; those of any length as a ``Ragged``.
            Also as ``batch["name"]``.
        source: int64 [B], each item's view in a ``Blend``; ``None`` without a blend.
        terminated, truncated: bool [B], whether the last step that ``reward`` sums ended the episode so.
        n: int64 [B], steps that ``reward`` sums.
        lane, step: int64 [B], the lane and the step's number in it (``Store.ids``).
        relabelled: bool [B], whether an item has a goal that its episode achieved, and its reward; ``None`` without
            ``relabel=``.
        shards: int64 [B], the incarnation of each item's shard; ``None`` for a store in this process.
    """

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    discount: Any
    weights: Any
    probabilities: Any
    ids: Any
    fields: dict[str, Any]
    source: Any = None
    terminated: Any = None
    truncated: Any = None
    n: Any = None
    lane: Any = None
    step: Any = None
    relabelled: Any = None
    shards: Any = None


@dataclass(repr=False)
class SequenceBatch(Arrays):
    """B windows of T = ``burn_in + length`` steps, in memory as a ``Batch``'s.

    Columns ``burn_in`` ... T - 1 are trained; earlier ones only prepare a recurrent state. A window that begins less
    than ``burn_in`` steps after its episode is padded at the left, one that reaches beyond its episode's end at the
    right. Where ``mask`` is false all arrays are zero, ``bootstrap`` apart.

    Attributes:
        obs: [B, T + n_step, *shape], or [B, T + n_step, stack, *shape] where the field has a stack; in dicts
            and tuples, as the spec has them. Each step's observation, then the observations that returns bootstrap
            from; after an episode's last step its true final one; zeros beyond.
        action: [B, T, *shape]; in dicts and tuples, as the spec has them. Observations and actions of any length are a
            ``Ragged`` of shape (B, T + n_step) or (B, T).
        reward: float32 [B, T], n-step returns: the discounted sum of up to n rewards, as of ``Batch``.
        step_reward: float32 [B, T], of each step alone.
        discount: float32 [B, T], ``gamma**n_used * (1 - terminated)``: factor of the value of the observation in column
            ``bootstrap``.
        bootstrap: int64 [B, T], columns of ``obs``: a step's own plus n_used.
        mask: bool [B, T], a step. ``first``: bool [B, T], an episode's first one: a recurrent state is zero there.
        weights: float32 [B], importance weights, 1 for uniform sampling.
        probabilities: float64 [B], each item's probability in its draw.
        ids: int64 [B], for ``update_priorities``.
        fields: the spec's further fields by name, [B, T, *shape]; a sparse one (``Field(every=k)``) [B, *shape], its
            value at the window's first step, where that step's number in its episode is a multiple of k, else at the
            last multiple before it; one of any length is a ``Ragged`` of shape (B, T). Also as ``batch["name"]``.
        burn_in: columns before the first trained one.
        source: int64 [B], each item's view in a ``Blend``; ``None`` without a blend.
        terminated, truncated: bool [B, T], whether a step ended the episode so.
        n: int64 [B, T], steps that ``reward`` sums.
        lane, step: int64 [B], the lane and the first trained step's number in it (``Store.ids``).
        shards: int64 [B], as of a ``Batch``.
    """

    obs: Any
    action: Any
    reward: Any
    step_reward: Any
    discount: Any
    bootstrap: Any
    mask: Any
    first: Any
    weights: Any
    probabilities: Any
    ids: Any
    fields: dict[str, Any]
    burn_in: int
    source: Any = None
    terminated: Any = None
    truncated: Any = None
    n: Any = None
    lane: Any = None
    step: Any = None
    shards: Any = None
