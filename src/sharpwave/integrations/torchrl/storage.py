"""Storage for TorchRL's own replay buffers, samplers and writers over a Sharpwave store."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data.replay_buffers import RoundRobinWriter, Storage

from sharpwave.integrations.torchrl.stored_transitions import StoredTransitions
from sharpwave.integrations.torchrl.tensordict_layout import MASK
from sharpwave.store import Store
from sharpwave.views.step_views import NStep
from sharpwave.views.view_replay import Replay

THEIRS: dict[str, tuple[Any, str]] = {
    "ndim": (1, "a place is one transition; flatten the input of extend, with reshape(-1)"),
    "device": ("cpu", "the store is in memory or on disk; move the samples"),
    "compilable": (False, "a store is not compiled"),
    "shared_init": (False, "other processes connect to a store; sharpwave.connect"),
}
"""Arguments of ``LazyTensorStorage``: the only allowed value, and the reason."""


class StepStorage(Storage):  # type: ignore[misc]
    """Storage of TorchRL whose transitions are in a store, and whose state is the store's checkpoint."""

    def __init__(self, max_size: int, transitions: StoredTransitions) -> None:
        super().__init__(max_size)
        self.transitions = transitions
        self._made: tuple[Store, Replay[Any]] | None = None

    @property
    def view(self) -> Replay[Any]:
        """View for sampling.  Raises: EmptyError: the buffer is empty."""
        store = self.transitions.store
        if self._made is None or self._made[0] is not store:
            self._made = store, store.view(self._items(), name="torchrl", sampler=self._sampler())
        return self._made[1]

    def _items(self) -> Any:
        return NStep(1, 1.0, newest=True)

    def _sampler(self) -> Any:
        return None

    def _empty(self) -> None:
        self.transitions.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint of the store, as uint8."""
        return {"checkpoint": self.transitions.packed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the state that ``state_dict`` returned."""
        self.transitions.unpack(state_dict["checkpoint"])

    def dumps(self, path: Any) -> None:
        """Write a checkpoint of the store to a folder."""
        self.transitions.save(Path(path))

    def loads(self, path: Any) -> None:
        """Continue with the data that ``dumps`` wrote."""
        self.transitions.load(Path(path))


class SharpwaveStorage(StepStorage):
    """Storage of ``max_size`` transitions by place, as in ``LazyTensorStorage``.

    Use ``TensorDictReplayBuffer(storage=SharpwaveStorage(100_000))``. Samplers draw the same places as with TorchRL's
    storages. If observations are stacks of frames, place them in the order of time.

    Args:
        frame_stack, ragged, max_length: as for ``ReplayBuffer``.
        store: arguments of ``sharpwave.Store`` that do not limit its content: ``codec``; ``disk`` (a new folder) with
            ``ram``. Arguments of ``LazyTensorStorage`` may be given with its defaults.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(
        self,
        max_size: int,
        *,
        frame_stack: int | str | None = "auto",
        ragged: Collection[Any] | None = (),
        **store: Any,
    ) -> None:
        for name, (only, why) in THEIRS.items():
            if str(given := store.pop(name, only)) != str(only):
                raise ValueError(f"SharpwaveStorage: {name}={given!r}, expected {only!r}: {why}")
        if store.keys() & {"capacity", "disk_limit"} or ("ram" in store and store.get("disk") is None):
            raise ValueError(
                f"SharpwaveStorage: got {sorted(store)}, expected no limits beside max_size: places that "
                "TorchRL's samplers draw must be filled; use sharpwave.integrations.torchrl.ReplayBuffer"
            )
        super().__init__(max_size, StoredTransitions(frame_stack, ragged=ragged, newest=int(max_size), **store))
        self._ids = np.empty(0, np.int64)  # ids by place

    def attach(self, buffer: Any) -> None:
        """Let a buffer use the results of ``get`` unchanged, unless it was given a ``collate_fn``."""
        super().attach(buffer)
        if getattr(buffer, "_init_collate_fn", self) is None:  # TorchRL has defaults only for its own storages
            buffer._init_collate_fn = torch.nn.Identity()

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Append transitions [n], or one, and note their places.

        Raises:
            ValueError, TypeError, IndexError: invalid transitions or places; nothing was changed.
        """
        if not isinstance(data, TensorDictBase):
            raise TypeError(
                f"extend: got {type(data).__name__}, expected a TensorDict of transitions; a store holds no others; "
                "TorchRL's LazyTensorStorage does"
            )
        single = isinstance(cursor, (int, np.integer))
        rows = data.unsqueeze(0) if single and not data.ndim else data
        places = _places(cursor, self.max_size)
        if rows.ndim != 1 or len(places) != len(rows) or MASK in rows.keys(True):
            raise ValueError(
                f"extend: got transitions of shape {tuple(data.batch_size)} for {len(places)} places, expected as many "
                "[n], without padding: flatten a collector's output, with reshape(-1)"
            )
        try:
            ids = self.transitions.write(rows)
        except BaseException:
            if set_cursor:
                self._rewind(places)
            raise
        if set_cursor:
            self._set_last_cursor(cursor)
        needed = int(places.max(initial=-1)) + 1
        if needed > len(self._ids):
            self._ids = np.concatenate([self._ids, np.full(needed - len(self._ids), -1, np.int64)])
        self._ids[places] = ids
        super()._bump_mutation_revision()

    def _rewind(self, places: npt.NDArray[np.int64]) -> None:
        """Move the writer back to the first of the places of refused transitions: it went on before."""
        writers = [getattr(one, "_writer", None) for one in self._attached_entities_iter()]
        if len(writers) == 1 and isinstance(writers[0], RoundRobinWriter) and len(places):
            writer = writers[0]
            if writer._cursor == (places[-1] + 1) % self.max_size:  # no other process went on since
                writer._cursor = int(places[0])
                writer._write_count -= len(places)

    def get(self, index: Any) -> TensorDict:
        """Return transitions by place: one, or [n] for a slice or integers [n].

        Raises:
            IndexError: the place is empty. KeyError: it was not written, or was evicted, since others were overwritten
                many times.
        """
        if isinstance(index, (int, np.integer)):
            return self.get([index])[0]
        places = _places(index, len(self._ids))
        batch = self.view.fetch(self._ids[places], missing="mask")
        if (never := places[self._ids[places] < 0]).size:
            raise KeyError(
                f"place {never[0]} was never written, but places after it were, as after transitions were refused; "
                f"write it, with buffer[{never[0]}] = ..., or empty the buffer"
            )
        if (lost := places[batch.ids < 0]).size:
            raise KeyError(
                f"place {lost[0]} is empty by now: of {self.max_size} places the newest {self.transitions.newest} "
                "transitions are kept, and other places were overwritten since; write places in their order"
            )
        return self.transitions.read(batch)

    def __len__(self) -> int:
        return len(self._ids)

    def contains(self, item: Any) -> Any:
        """Return whether a place holds a transition: bool, or bool [n]."""
        places = torch.as_tensor(item)
        found = (places >= -len(self)) & (places < len(self))
        return found if found.ndim else bool(found)

    def _empty(self) -> None:
        super()._empty()
        self._ids = np.empty(0, np.int64)
        super()._bump_mutation_revision()

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint of the store, as uint8, and the places."""
        return super().state_dict() | {"ids": torch.from_numpy(self._ids.copy())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the state that ``state_dict`` returned."""
        super().load_state_dict(state_dict)
        self._ids = state_dict["ids"].cpu().numpy().copy()
        super()._bump_mutation_revision()

    def _bump_mutation_revision(self) -> None:
        """Refuse a buffer's ``set_``, ``set_at_`` and ``update_``, which changed a copy and then call this."""
        raise TypeError(
            "SharpwaveStorage: set_, set_at_ and update_ change tensors in place, and stored transitions do not "
            "change; write whole transitions with buffer[index] = ..., or use TorchRL's LazyTensorStorage"
        )

    def dumps(self, path: Any) -> None:
        """Write a checkpoint of the store to a folder, and the places."""
        super().dumps(path)
        (Path(path) / "ids.json").write_text(json.dumps(self._ids.tolist()))

    def loads(self, path: Any) -> None:
        """Continue with the data that ``dumps`` wrote."""
        super().loads(path)
        self._ids = np.array(json.loads((Path(path) / "ids.json").read_text()), np.int64)
        super()._bump_mutation_revision()


def _places(index: Any, count: int) -> npt.NDArray[np.int64]:
    """Return places int64 [n].  Raises: IndexError: beyond ``count``."""
    if isinstance(index, slice):
        return np.arange(count)[index]
    if isinstance(index, tuple) and len(index) == 1:
        return _places(index[0], count)
    array = np.asarray(index.cpu() if isinstance(index, torch.Tensor) else index)
    places = np.arange(count)[array] if array.dtype == np.bool_ else array.astype(np.int64).reshape(-1)
    if ((places < -count) | (places >= count)).any():
        raise IndexError(f"place {places[(places < -count) | (places >= count)][0]}, expected one of {count}")
    return np.where(places < 0, places + count, places)
