"""Replay buffer of TorchRL - storage, sampler, writer - whose indices are ids of a Sharpwave store."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers import Sampler, Writer

from sharpwave.integrations.torchrl.storage import StepStorage
from sharpwave.integrations.torchrl.stored_transitions import StoredTransitions
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.uniform import Uniform
from sharpwave.views.sequences import Windows
from sharpwave.views.step_views import NStep
from sharpwave.views.view_replay import Replay


class StoredIds(StepStorage):
    """Storage of TorchRL whose indices are the store's ids."""

    def __init__(
        self,
        transitions: StoredTransitions,
        device: torch.device | str | None,
        *,
        alpha: float | None,
        beta: float,
        gamma: float,
        slice_len: int | None,
        burn_in: int,
    ) -> None:
        super().__init__(transitions.settings["capacity"] or 1 << 62, transitions)
        self.prioritized, self.target = alpha is not None, torch.device(device or "cpu")
        self._alpha, self._beta, self._gamma = alpha, beta, gamma
        self._slice_len, self._burn_in = slice_len, burn_in
        self.drawn: tuple[torch.Tensor, Any] | None = None  # the batch of the last draw: fetching it takes longer
        self._items(), self._sampler()  # both refuse invalid arguments

    def _items(self) -> Any:
        if self._slice_len is None:
            return NStep(self.transitions.n_step, self._gamma, newest=True)
        if self.transitions.n_step != 1:
            raise ValueError(
                f"ReplayBuffer: n_step={self.transitions.n_step} with slice_len={self._slice_len}, expected one of them"
            )
        return Windows(self._slice_len, self._burn_in, None, 1, self._gamma, 0.9)

    def _sampler(self) -> Any:
        return Uniform() if self._alpha is None else Prioritized(alpha=self._alpha, beta=self._beta)

    def get(self, index: Any) -> TensorDict:
        if isinstance(index, slice):
            raise TypeError(f"buffer[{index}]: items are found by the ids that extend returns")
        drawn, self.drawn = self.drawn, None
        single = False
        if drawn is not None and drawn[0] is index:
            batch = drawn[1]
        else:
            ids = np.asarray(torch.as_tensor(index).cpu())
            batch, single = self.view.fetch(ids.reshape(-1)), not ids.ndim
        if self._slice_len is not None:
            data = self.transitions.read_sequences(batch)
        else:
            data = self.transitions.read(batch)
        if self.target.type != "cpu":
            pinned = data.pin_memory() if self.target.type == "cuda" else data
            data = pinned.to(self.target, non_blocking=self.target.type == "cuda")
        return data[0] if single else data

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities by TD errors: [B], or the largest of [B, ...]; for windows [B, slice_len, ...]."""
        ids = torch.as_tensor(index).cpu()
        errors = torch.as_tensor(priority).detach().cpu().float().abs()
        if self._slice_len is None:
            ids = ids.reshape(-1)
            errors = errors.reshape(len(ids), -1).amax(1)
        else:
            ids = ids.reshape(len(ids), -1)[:, 0]
            columns = self._slice_len + self._burn_in if errors.ndim > 1 else 1
            errors = errors.reshape(len(ids), columns, -1).amax(2)[:, -self._slice_len :]
            errors = errors.expand(len(ids), self._slice_len)
        self.view.update_priorities(ids.numpy(), errors.numpy())

    def __repr__(self) -> str:
        return f"{self.transitions.opened!r}"

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        raise TypeError("buffer[index] = ...: stored transitions do not change; extend the buffer")

    def __len__(self) -> int:
        return 0 if self.transitions.opened is None else len(self.transitions.store)

    def contains(self, item: Any) -> bool:
        return bool((self.view.fetch(np.asarray(item).reshape(-1), missing="mask").ids >= 0).all())


class _Stateless:
    """Part of a buffer whose state the store holds."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    def dumps(self, path: Any) -> None: ...

    def loads(self, path: Any) -> None: ...


class DrawnIds(_Stateless, Sampler):  # type: ignore[misc]
    """Sampler of TorchRL that draws from the store's view."""

    def sample(self, storage: StoredIds, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        batch = storage.view.sample(batch_size)
        index = torch.from_numpy(np.asarray(batch.ids))
        storage.drawn = index, batch
        return index, {"priority_weight": torch.from_numpy(batch.weights)} if storage.prioritized else {}

    def update_priority(self, index: Any, priority: Any, *, storage: StoredIds | None = None) -> None:
        assert storage is not None
        storage.update_priority(index, priority)

    def _empty(self) -> None: ...


class Appending(_Stateless, Writer):  # type: ignore[misc]
    """Writer of TorchRL that appends to the store."""

    _write_count = 0

    def extend(self, data: TensorDictBase) -> torch.Tensor:
        index = torch.from_numpy(self._storage.transitions.write(data))
        self._write_count += index.numel()
        return index

    add = extend

    def _empty(self, empty_write_count: bool = True) -> None:
        self._write_count = 0 if empty_write_count else self._write_count


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
        ragged: keys whose rows have any length, where the first TensorDict does not show it; a key names that under
            "next", too.
        device: device of samples; a CUDA device through pinned memory, without waiting.
        seed: seed of sampling.
        store: arguments of ``sharpwave.Store``: ``disk``, ``disk_limit``, ``codec``, .... If ``disk`` holds such
            transitions, it is opened. Also ``max_length``: limit of rows of any length, in items, of texts in bytes; at
            most what 64 MiB hold. Default: what 1 MiB holds.

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
        ragged: str | Collection[str | tuple[str, ...]] | None = (),
        device: torch.device | str | None = None,
        seed: int = 0,
        priority_key: str = "td_error",
        prefetch: int | None = None,
        transform: Any = None,
        pin_memory: bool = False,
        **store: Any,
    ) -> None:
        storage = StoredIds(
            StoredTransitions(
                frame_stack, n_step=n_step, ragged=ragged, capacity=capacity, ram=ram, seed=seed, **store
            ),
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
