"""TorchRL in ``workloads.py``: transitions with both observations, or windows of single frames, in tensors.

It counts no uses, and its prioritized sampler needs an extension that does not load with every torch (2.13 is one);
then loads are sampled at random, which costs less.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workload_data
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler, Sampler
from workload_table import LANES, Load


class Memory:
    """The contender. See ``workload_worker.Contender``."""

    def __init__(self, load: Load, folder: Path) -> None:
        self.load, self.columns = load, workload_data.read(folder)
        self.times, self._at = len(self.columns["reward"]), 0
        sampler: Sampler = RandomSampler()
        if load.kind == "prioritized":
            with contextlib.suppress(RuntimeError, ImportError):
                sampler = PrioritizedSampler(load.elements, 0.6, 0.4)
        self._prioritized = isinstance(sampler, PrioritizedSampler)
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(load.elements), sampler=sampler, batch_size=load.batch)
        self._obs = [name for name in self.columns if name.startswith("obs")]
        self._added = 0

    def _elements(self, at: int) -> Any:
        """Return the elements that step ``at`` completes, one of each lane: all that begin where they can."""
        load, stack = self.load, self.load.stack or 1
        rest = [name for name in self.columns if name not in self._obs]
        if load.window:
            back = load.window + load.burn_in
            when = (np.arange(at - back - stack + 2, at + 2)) % self.times  # the frames of its stacks, and one after it
            parts = {name: self.columns[name][when].swapaxes(0, 1) for name in self._obs}
            parts |= {
                name: self.columns[name][(np.arange(at - back + 1, at + 1)) % self.times].swapaxes(0, 1)
                for name in rest
            }
        else:
            parts = {name: self.columns[name][at % self.times] for name in rest}
            for name in self._obs:
                if load.stack:
                    frames = self.columns[name][(np.arange(at - stack + 1, at + 2)) % self.times].swapaxes(0, 1)
                    parts[name], parts["next_" + name] = frames[:, :-1], frames[:, 1:]
                else:
                    parts[name], parts["next_" + name] = (self.columns[name][(at + k) % self.times] for k in (0, 1))
        return TensorDict({name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in parts.items()}, [LANES])

    def fill(self, elements: int) -> None:
        """Add so many elements."""
        for _ in range(elements // LANES):
            self._at += self.load.steps
            self._extend()

    def _extend(self) -> None:
        self.buffer.extend(self._elements(self._at))
        self._added += LANES

    def add(self) -> float:
        """Add a step of each lane, and a window where one is complete; return how many elements these are."""
        self._at += 1
        if self._at % self.load.steps == 0:
            self._extend()
        return LANES / self.load.steps

    def sample(self) -> Any:
        """Return a batch."""
        return self.buffer.sample(return_info=True)

    def update(self, batch: Any, rng: np.random.Generator) -> None:
        """Set the priorities of a batch."""
        if self._prioritized:
            errors = torch.from_numpy(rng.exponential(size=self.load.batch)).float()
            self.buffer.update_priority(batch[1]["index"], errors)

    def handed(self, batch: Any) -> int:
        """Return the bytes of a batch's arrays of observations."""
        return sum(one.nbytes for name, one in batch[0].items() if "obs" in name)

    def counted(self) -> dict[str, float]:
        """Return nothing: it counts no bytes."""
        return {"steps": min(self._added, self.load.elements) * self.load.steps}
