"""Replay buffer of TorchRL whose transitions a Sharpwave store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers import Sampler, Storage, Writer

from sharpwave.integrations.torchrl.transitions import Transitions
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.uniform import Uniform
from sharpwave.store import Store
from sharpwave.views.replay import Replay
from sharpwave.views.sequences import Windows
from sharpwave.views.transitions import NStep


class ReplayBuffer(TensorDictReplayBuffer):  # type: ignore[misc]
    """Replay buffer for the TensorDicts of TorchRL's collectors, in place of ``TensorDictReplayBuffer`` and
    ``TensorDictPrioritizedReplayBuffer``. An "index" is an id of the store.

    Args:
        capacity: transitions; and/or ``ram``: limit in bytes of memory for everything, or "2GiB".
        batch_size, prefetch, transform, pin_memory, priority_key: as for TorchRL's buffers.
        alpha, beta: draw by priority (Schaul et al. 2016); ``None``: uniformly.
        n_step, gamma: n-step returns: samples have "steps_to_next_obs", which TorchRL's losses know.
        slice_len: sample windows of so many consecutive steps instead, [batch_size, slice_len], with
            ("collector", "mask"); ``burn_in``: steps before them.
        frame_stack: "auto": whether images are stacks of frames (``CatFrames``) is seen from the first TensorDict, and
            each frame is stored once; or the number of frames; ``None``: all is stored as it comes.
        device: where samples go; a CUDA one through pinned memory, without waiting.
        seed: of sampling.
        store: arguments of ``sharpwave.Store``: ``disk``, ``disk_limit``, ``codec``, .... A ``disk`` that holds such
            transitions already is opened again.

    Attributes:
        transitions: the store, and what is written to it. ``view``: what is sampled from.

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
        kind = {"alpha": alpha, "beta": beta, "n_step": n_step, "gamma": gamma, "slice_len": slice_len}
        storage = _Ids(
            Transitions(frame_stack, capacity=capacity, ram=ram, seed=seed, **store), device, burn_in=burn_in, **kind
        )
        super().__init__(
            storage=storage,
            sampler=_Draws(),
            writer=_Appends(),
            collate_fn=_as_it_is,
            priority_key=priority_key,
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform,
            pin_memory=pin_memory,
        )

    @property
    def transitions(self) -> Transitions:
        """The store, and what is written to it."""
        found: Transitions = self._storage.transitions
        return found

    @property
    def view(self) -> Replay[Any]:
        """The view that is sampled from.  Raises: EmptyError: nothing was written yet."""
        found: Replay[Any] = self._storage.view
        return found

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set priorities of sampled transitions by their ``priority_key``, if the buffer draws by priority."""
        errors = data.get(self.priority_key, None)
        if self._storage.prioritized and errors is not None:
            self.update_priority(data.get("index"), errors)

    def close(self) -> None:
        """Write everything, and let go of memory and disk."""
        self.synchronize()
        if self.transitions.opened is not None:
            self.transitions.store.close()


class _Ids(Storage):  # type: ignore[misc]
    """Storage of TorchRL whose indices are ids of the store's."""

    def __init__(
        self,
        transitions: Transitions,
        device: torch.device | str | None,
        *,
        alpha: float | None,
        beta: float,
        n_step: int,
        gamma: float,
        slice_len: int | None,
        burn_in: int,
    ) -> None:
        super().__init__(transitions.settings["capacity"] or 1 << 62)
        self.transitions, self.prioritized = transitions, alpha is not None
        self.target = torch.device(device or "cpu")
        self.device = None if device is None else self.target
        self._alpha, self._beta, self._n_step, self._gamma = alpha, beta, n_step, gamma
        self._slice_len, self._burn_in = slice_len, burn_in
        self._made: tuple[Store, Replay[Any]] | None = None
        self._kind(), self._sampler()  # which refuse what makes no sense

    def _kind(self) -> Any:
        if self._slice_len is None:
            return NStep(self._n_step, self._gamma, newest=True)
        if self._n_step != 1:
            raise ValueError(f"ReplayBuffer: n_step={self._n_step} with slice_len={self._slice_len}, expected one of them")
        return Windows(self._slice_len, self._burn_in, None, 1, self._gamma, 0.9)

    def _sampler(self) -> Any:
        return Uniform() if self._alpha is None else Prioritized(alpha=self._alpha, beta=self._beta)

    @property
    def view(self) -> Replay[Any]:
        store = self.transitions.store
        if self._made is None or self._made[0] is not store:
            self._made = store, store.view(self._kind(), name="torchrl", sampler=self._sampler())
        return self._made[1]

    def get(self, index: Any) -> TensorDict:
        if isinstance(index, slice):
            raise TypeError(f"buffer[{index}]: items are found by their ids, as extend returns them")
        ids = np.asarray(torch.as_tensor(index).cpu())
        batch = self.view.fetch(ids.reshape(-1))
        if self._slice_len is not None:
            data = self.transitions.read_sequences(batch)
        else:
            data = self.transitions.read(batch)
            if self._n_step > 1:
                self.transitions.ends(batch, data)
        if self.target.type != "cpu":
            pinned = data.pin_memory() if self.target.type == "cuda" else data
            data = pinned.to(self.target, non_blocking=self.target.type == "cuda")
        return data if ids.ndim else data[0]

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set priorities by TD errors: [B], or [B, ...] of which the largest counts; of windows [B, slice_len, ...]."""
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

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        raise TypeError("buffer[index] = ...: what is stored does not change; extend the buffer")

    def __len__(self) -> int:
        return 0 if self.transitions.opened is None else len(self.transitions.store)

    def contains(self, item: Any) -> bool:
        return bool((self.view.fetch(np.asarray(item).reshape(-1), missing="mask").ids >= 0).all())

    def _empty(self) -> None:
        self.transitions.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"checkpoint": self.transitions.packed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.transitions.unpack(state_dict["checkpoint"])

    def dumps(self, path: Any) -> None:
        self.transitions.save(Path(path))

    def loads(self, path: Any) -> None:
        self.transitions.load(Path(path))


class _Stateless:
    """Part of a buffer whose state the store holds."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    def dumps(self, path: Any) -> None: ...

    def loads(self, path: Any) -> None: ...


class _Draws(_Stateless, Sampler):  # type: ignore[misc]
    """Sampler of TorchRL that draws from the store's view."""

    def sample(self, storage: _Ids, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        draws = storage.view.draw(batch_size)
        weights = {"priority_weight": torch.from_numpy(draws.weights)} if storage.prioritized else {}
        return torch.from_numpy(np.asarray(draws.ids)), weights

    def update_priority(self, index: Any, priority: Any, *, storage: _Ids | None = None) -> None:
        assert storage is not None
        storage.update_priority(index, priority)

    def _empty(self) -> None: ...


class _Appends(_Stateless, Writer):  # type: ignore[misc]
    """Writer of TorchRL that appends to the store."""

    _write_count = 0

    def extend(self, data: TensorDictBase) -> torch.Tensor:
        index = torch.from_numpy(self._storage.transitions.write(data))
        self._write_count += index.numel()
        return index

    add = extend

    def _empty(self, empty_write_count: bool = True) -> None:
        self._write_count = 0 if empty_write_count else self._write_count


def _as_it_is(data: Any) -> Any:
    return data
