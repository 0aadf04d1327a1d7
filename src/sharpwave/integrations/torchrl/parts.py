"""Parts of a TorchRL buffer - storage, sampler, writer - whose indices are ids of a Sharpwave store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data.replay_buffers import Sampler, Storage, Writer

from sharpwave.integrations.torchrl.saving import load, packed, save, unpack
from sharpwave.integrations.torchrl.transitions import StoredTransitions
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.uniform import Uniform
from sharpwave.store import Store
from sharpwave.views.replay import Replay
from sharpwave.views.sequences import Windows
from sharpwave.views.transitions import NStep


class StoredIds(Storage):  # type: ignore[misc]
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
        super().__init__(transitions.settings["capacity"] or 1 << 62)
        self.transitions, self.prioritized = transitions, alpha is not None
        self.target = torch.device(device or "cpu")
        self._alpha, self._beta, self._gamma = alpha, beta, gamma
        self._slice_len, self._burn_in = slice_len, burn_in
        self._made: tuple[Store, Replay[Any]] | None = None
        self.drawn: tuple[torch.Tensor, Any] | None = None  # the batch of the last draw: fetching it takes longer
        self._kind(), self._sampler()  # both refuse invalid arguments

    def _kind(self) -> Any:
        if self._slice_len is None:
            return NStep(self.transitions.n_step, self._gamma, newest=True)
        if self.transitions.n_step != 1:
            raise ValueError(
                f"ReplayBuffer: n_step={self.transitions.n_step} with slice_len={self._slice_len}, expected one of them"
            )
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

    def _empty(self) -> None:
        self.transitions.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"checkpoint": packed(self.transitions)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        unpack(self.transitions, state_dict["checkpoint"])

    def dumps(self, path: Any) -> None:
        save(self.transitions, Path(path))

    def loads(self, path: Any) -> None:
        load(self.transitions, Path(path))


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
