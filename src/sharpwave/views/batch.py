"""Batches of transitions for the learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass
class Batch:
    """Batch of B transitions, whose memory is theirs while any array, slice or CPU tensor over it lives.

    With ``n_step=1``, ``obs`` and ``next_obs`` share memory, as they overlap by all but one frame: a write to one shows
    in the other. Arrays of less than 256 bytes an item share one block of memory. Batches in use count as the store's
    memory, in ``stats()`` and against ``ram=``; ``copy``, and ``torch`` on another device, take memory of the process's
    own.

    Attributes:
        obs, next_obs: [B, stack, *shape] where the field has a stack, else [B, *shape]; for dict observations a dict of
            those. ``next_obs`` is the observation after the last step that ``reward`` sums, the true final one where
            that step ended the episode.
        action: [B, *shape].
        reward: float32 [B], the discounted sum of up to n rewards.
        discount: float32 [B], ``gamma**n_used * (1 - terminated)``: the factor of the value of ``next_obs``.
        weights: float32 [B], importance weights, 1 for uniform sampling.
        probabilities: float64 [B], of each item in its draw.
        ids: int64 [B], for ``update_priorities``. They carry their store's tag; other stores refuse them.
        fields: the spec's further fields by name, at the transition's first step. Also as ``batch["name"]``.
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

    def __getitem__(self, name: str) -> Any:
        """Return an array or field by its name.  Raises: KeyError."""
        if name in self.fields:
            return self.fields[name]
        if name in (field.name for field in fields(self)):
            return getattr(self, name)
        raise KeyError(f"batch: no field {name!r}; there are {[f.name for f in fields(self)] + list(self.fields)}")

    def __len__(self) -> int:
        return len(self.ids)

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """Return the batch with ``function`` applied to every array."""

        def apply(value: Any) -> Any:
            return {k: apply(v) for k, v in value.items()} if isinstance(value, dict) else function(value)

        return Batch(*(apply(getattr(self, field.name)) for field in fields(self)))

    def copy(self) -> Batch:
        """Return a copy in memory that no store counts, without sharing: ``obs`` and ``next_obs`` can be written to."""
        return self.map(lambda array: np.array(array, subok=True))

    def torch(self, device: Any = "cpu") -> Batch:
        """Return the batch as torch tensors on ``device``.

        On the CPU they share the batch's memory. For CUDA they are copied through pinned memory, without waiting.
        """
        import torch

        target = torch.device(device)
        if target.type == "cpu":
            return self.map(torch.from_numpy)
        return self.map(lambda a: torch.from_numpy(np.ascontiguousarray(a)).pin_memory().to(target, non_blocking=True))
