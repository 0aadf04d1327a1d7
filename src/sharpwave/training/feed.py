"""Batches from the replay memory on the learner's device; from shards and on CUDA the next one is prefetched."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

import sharpwave as sw
from sharpwave.errors import EmptyError
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.remote_replay import RemoteReplay

LOOKAHEAD = 1
"""Batches that shards draw and decode while the learner learns from one."""


class Feed:
    """Source of batches that samples a view and moves them to ``device``.

    On a CPU a batch is sampled by ``take``, and its tensors share its memory. On CUDA, where the processor is idle
    during an update, ``prepare`` samples the next batch and copies it through pinned memory in a stream of its own.
    A prefetched batch does not see the steps and priorities added between ``prepare`` and ``take``. Of a view of shards
    ``take`` asks for the next batch as well, on any device, so that the learner does not wait for it.

    Args:
        replay: a view of the store.
        batch_size: items in a batch.
        ahead: prefetch batches; None: on CUDA only.
        fewest: items without which there is no batch.
    """

    def __init__(
        self, replay: Any, batch_size: int, device: torch.device, ahead: bool | None = None, fewest: int = 1
    ) -> None:
        self.replay = replay
        self._batch_size, self._fewest = batch_size, fewest
        self._device = device
        self._ahead = device.type == "cuda" if ahead is None else ahead
        self._shards = replay if isinstance(replay, RemoteReplay) else None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ready: tuple[sw.Batch, sw.Batch] | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a batch to take. Shards are asked only where none is on its way."""
        under_way = self._ready is not None or (self._shards is not None and self._shards.asked > 0)
        return under_way or len(self.replay) >= self._fewest

    @property
    def lost(self) -> bool:
        """Whether all that there was to learn from is lost, by shards that began anew."""
        return self._shards is not None and self._shards.lost

    def take(self, beta: float | None = None) -> tuple[sw.Batch, sw.Batch] | None:
        """Return the next batch, as sampled and as tensors on the device; None: shards that had it are lost.

        Args:
            beta: exponent of the importance weights; ignored for a prefetched batch, which used ``prepare``'s.
        """
        try:
            ready = self._ready or self._draw(beta)
        except (EmptyError, ShardLostError):
            if self._shards is None:
                raise
            return None
        batch, tensors = ready
        self._ready = None
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)

            def used(tensor: torch.Tensor) -> torch.Tensor:
                tensor.record_stream(current)  # the allocator may not reuse it before that stream has read it
                return tensor

            tensors.map(used)
        return batch, tensors

    def prepare(self, beta: float | None = None) -> None:
        """Prefetch the next batch if batches are prefetched and there are items for one; else do nothing."""
        if self._ahead and self._ready is None and self.ready:
            with contextlib.nullcontext() if self._shards is None else contextlib.suppress(EmptyError, ShardLostError):
                self._ready = self._draw(beta)

    def _draw(self, beta: float | None) -> tuple[sw.Batch, sw.Batch]:
        if self._shards is None:
            batch = self.replay.sample(self._batch_size, beta=beta)
        else:
            batch = self._shards.sample(self._batch_size, beta=beta, lookahead=LOOKAHEAD)
        if self._stream is None:
            return batch, batch.torch(self._device)
        with torch.cuda.stream(self._stream):
            return batch, batch.torch(self._device)
