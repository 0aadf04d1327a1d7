"""Replay buffer of TorchRL over a Sharpwave store."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import TensorDictReplayBuffer

from sharpwave.integrations.torchrl.parts import Appending, DrawnIds, StoredIds
from sharpwave.integrations.torchrl.transitions import StoredTransitions
from sharpwave.views.replay import Replay


class ReplayBuffer(TensorDictReplayBuffer):  # type: ignore[misc]
    """Replay buffer for the TensorDicts of TorchRL's collectors, instead of ``TensorDictReplayBuffer`` and
    ``TensorDictPrioritizedReplayBuffer``. An "index" is an id of the store.

    Args:
        capacity: maximum number of transitions. ``ram``: limit of all memory in bytes, or "2GiB". Give either or both.
        batch_size, prefetch, transform, pin_memory, priority_key: as for TorchRL's buffers.
        alpha, beta: draw by priority (Schaul et al. 2016); ``None``: uniformly.
        n_step, gamma: n-step returns: samples have "steps_to_next_obs", which TorchRL's losses use.
        slice_len: sample windows of this many consecutive steps instead, [batch_size, slice_len], with
            ("collector", "mask"); ``burn_in``: number of steps before them.
        frame_stack: "auto": detect stacks of frames (``CatFrames``) in the images of the first TensorDict, and store
            each frame once; a number: frames in a stack; ``None``: store whole images.
        device: device of samples; a CUDA device through pinned memory, without waiting.
        seed: seed of sampling.
        store: arguments of ``sharpwave.Store``: ``disk``, ``disk_limit``, ``codec``, .... If ``disk`` holds such
            transitions, it is opened.

    Attributes:
        transitions: the store and its writer. ``view``: the view for sampling.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        ram: int | str | None = None,
        batch_size: int | None = None,
        alpha: float | None = None,
        beta: float = 0.4,
        n_step: int = 1,
        gamma: float = 0.99,
        slice_len: int | None = None,
        burn_in: int = 0,
        frame_stack: int | str | None = "auto",
        device: torch.device | str | None = None,
        seed: int = 0,
        priority_key: str = "td_error",
        prefetch: int | None = None,
        transform: Any = None,
        pin_memory: bool = False,
        **store: Any,
    ) -> None:
        storage = StoredIds(
            StoredTransitions(frame_stack, n_step=n_step, capacity=capacity, ram=ram, seed=seed, **store),
            device,
            alpha=alpha,
            beta=beta,
            gamma=gamma,
            slice_len=slice_len,
            burn_in=burn_in,
        )
        super().__init__(
            storage=storage,
            sampler=DrawnIds(),
            writer=Appending(),
            collate_fn=torch.nn.Identity(),
            priority_key=priority_key,
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform,
            pin_memory=pin_memory,
        )

    @property
    def transitions(self) -> StoredTransitions:
        """The store and its writer."""
        found: StoredTransitions = self._storage.transitions
        return found

    @property
    def view(self) -> Replay[Any]:
        """View for sampling.  Raises: EmptyError: the buffer is empty."""
        found: Replay[Any] = self._storage.view
        return found

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set priorities of sampled transitions by their ``priority_key``, if the buffer draws by priority."""
        errors = data.get(self.priority_key, None)
        if self._storage.prioritized and errors is not None:
            self.update_priority(data.get("index"), errors)

    def close(self) -> None:
        """Write all data, and release memory and disk."""
        self.synchronize()
        if self.transitions.opened is not None:
            self.transitions.store.close()
