"""Replay buffers of Tianshou whose observations a Sharpwave store holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tianshou.data as theirs
from tianshou.data import Batch

from sharpwave.errors import EmptyError
from sharpwave.integrations.tianshou.arguments import THEIRS, checked
from sharpwave.integrations.tianshou.observations import joined, null_rows, split
from sharpwave.integrations.tianshou.places import Places
from sharpwave.integrations.tianshou.stored import EvictedError, Stored
from sharpwave.integrations.whole_transitions import WholeTransitions

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

REQUIRED = {"obs", "obs_next", "act", "rew", "terminated", "truncated"}
EVICTS_LATE = 256
"""Steps that a store holds beyond a lane's places, as it evicts whole segments."""
MAX_DRAWS = 1000


class StoredObservations:
    """Part of a buffer that keeps observations in a store; comes before one of Tianshou's in a class's bases.

    Indices, rewards, flags and whatever else there is stay in Tianshou's arrays, and its code draws indices.

    Args:
        frame_stack: where ``stack_num`` is 1. "auto": whether observations are stacks of frames is seen from the first
            transitions, and each frame is stored once; or the number of frames; ``None``: they are stored as they are.
        ram, disk, disk_limit, codec, ...: of ``sharpwave.Store``. All others are Tianshou's.

    Attributes:
        stale_updates: priorities that were not set, as their transitions were not there any more.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(self, *args: Any, frame_stack: int | str | None = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **{name: kwargs.pop(name) for name in THEIRS if name in kwargs})
        last_only = bool(self.options["save_only_last_obs"])
        self._save_only_last_obs, self._save_obs_next = False, True
        self._lanes: int = getattr(self, "buffer_num", 1)
        settings = checked({"capacity": self.maxsize + EVICTS_LATE * self._lanes, **kwargs})
        places = Places(self.maxsize, self._lanes)
        self._stored = Stored(places, self._lanes, self.stack_num, last_only, frame_stack, settings)
        self._unchecked, self._null, self._null_obs = np.zeros((3, self.maxsize), np.bool_)
        self._read: tuple[Any, tuple[Any, Any]] | None = None
        self._drawn: tuple[Ints, Ints] | None = None
        self.stale_updates = 0

    def __getattr__(self, key: str) -> Any:
        if key in ("obs", "obs_next"):
            raise AttributeError(f"buffer.{key}: observations are encoded; use buffer.get(indices, {key!r})")
        return super().__getattr__(key)  # type: ignore[misc]

    @property
    def transitions(self) -> WholeTransitions:
        """The store and what is written to it.  Raises: EmptyError: nothing was added yet."""
        if self._stored.transitions is None:
            raise EmptyError("transitions: nothing was added yet, and only that says what observations are")
        return self._stored.transitions

    @property
    def _places(self) -> Places:
        return self._stored.places

    # writing

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Array, Array, Array, Array]:
        """Add a transition of each environment, as Tianshou's collector does.

        Raises:
            ValueError, TypeError: what a store cannot hold; nothing was changed.
        """
        if not set(batch.get_keys()) >= REQUIRED:
            raise ValueError(f"add: got {sorted(batch.get_keys())}, expected {sorted(REQUIRED)} among them")
        alone = buffer_ids is None and not isinstance(self, theirs.ReplayBufferManager)
        lanes = np.arange(self._lanes) if buffer_ids is None else np.asarray(buffer_ids)
        of = {name: split(batch[name], alone) for name in REQUIRED}
        act, rew = of["act"], of["rew"]
        if not isinstance(act, np.ndarray) or rew.shape != lanes.shape or not np.isfinite(rew).all():
            raise ValueError(f"add: got actions {act!r} and rewards {rew!r}, expected arrays, and a finite reward each")
        terminated, truncated = (of[name].astype(np.bool_) for name in ("terminated", "truncated"))
        ids, stored = self._stored.add(of["obs"], of["obs_next"], act, rew, terminated, truncated, lanes)
        rest = Batch()
        for name in set(batch.get_keys()) - {"obs", "obs_next"}:
            rest.__dict__[name] = batch[name]
        rest.__dict__["obs"] = np.zeros(0 if alone else (len(lanes), 0), np.bool_)  # Tianshou asks for some
        added: tuple[Array, Array, Array, Array] = super().add(rest, buffer_ids)  # type: ignore[misc]
        places = added[0]
        self._places.put(places, lanes, stored, ids)
        self._unchecked[places] = True
        self._null_obs[places] = null_rows(of["obs"], len(lanes)) | null_rows(of["obs_next"], len(lanes))
        self._lost(places[~stored])
        return added

    def _lost(self, places: Ints) -> None:
        """Learn that transitions are not in the store."""

    def reset(self, keep_statistics: bool = False) -> None:
        """Forget all transitions. The store evicts them when it needs room."""
        super().reset(keep_statistics=keep_statistics)  # type: ignore[misc]
        if "_stored" in self.__dict__:  # Tianshou 1's constructor resets
            self._lost(np.flatnonzero(self._places.filled))
            self._places.clear()
            self._unchecked[:], self._null[:], self._null_obs[:], self._drawn = False, False, False, None

    def set_array_at_key(self, *args: Any, **kwargs: Any) -> None:
        """Set a further array, as hooks of Tianshou's collector do."""
        super().set_array_at_key(*args, **kwargs)  # type: ignore[misc]
        self._unchecked[:] = True

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("Sharpwave's buffers get transitions by add(), and keep them")

    update = set_batch = dropnull = _refuse

    def close(self) -> None:
        """Write everything, and let go of memory and disk."""
        if self._stored.transitions is not None:
            self._stored.transitions.close()

    # reading

    def sample_indices(self, batch_size: int | None) -> Ints:
        """Draw indices as Tianshou does, but none that is known to be evicted."""
        indices: Ints = super().sample_indices(batch_size)  # type: ignore[misc]
        absent = self._places.absent[indices]
        if not absent.any():
            return indices
        if not batch_size:
            return indices[~absent]
        there: Ints = super().sample_indices(0)  # type: ignore[misc]
        there = there[~self._places.absent[there]]
        if not len(there):
            raise EmptyError("sample: the store has evicted all transitions; give it more ram=")
        indices[absent] = getattr(self, "_random_state", np.random).choice(there, int(absent.sum()))
        return indices

    def sample(self, batch_size: int | None) -> tuple[Any, Ints]:
        """Draw a batch, and return it with its indices.  Raises: EmptyError: everything was evicted."""
        for _ in range(MAX_DRAWS):
            indices = self.sample_indices(batch_size)
            try:
                batch = self[indices]
            except EvictedError:
                continue  # they are known now
            self._drawn = indices, self._places.ids[indices]
            return batch, indices
        raise EmptyError(f"sample: {MAX_DRAWS} draws met evicted transitions; give the store more ram=")

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            index = self.sample_indices(0) if index == slice(None) else self._indices[: len(self)][index]
        else:
            index = self._indices[index]
        self._read = index, self._observations(index, self.stack_num)
        try:
            return super().__getitem__(index)  # type: ignore[misc]
        finally:
            self._read = None

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """Return values at indices; of observations their stacks, as the environments would have made them.

        Raises:
            EvictedError: the store has not all of them any more.
        """
        if key not in ("obs", "obs_next") or self._stored.transitions is None:
            return super().get(index, key, default_value, stack_num)  # type: ignore[misc]
        stack = self.stack_num if stack_num is None else stack_num
        if self._read is not None and self._read[0] is index and stack == self.stack_num:
            return self._read[1][key == "obs_next"]
        return self._observations(index, stack)[key == "obs_next"]

    def _observations(self, index: Any, stack: int) -> tuple[Any, Any]:
        if self._stored.transitions is None:
            raise KeyError("obs")  # as Tianshou's empty buffer does
        places: Ints = np.asarray(self._indices[index])
        try:
            obs, after = self._stored.read(places.reshape(-1), stack, self.prev)
        except EvictedError as error:
            self._lost(error.places)
            raise
        return joined(obs, places), joined(after, places)

    def hasnull(self) -> bool:
        """Return whether there is a NaN anywhere.  Cost: that of what was added since; nothing is decoded."""
        fresh = np.flatnonzero(self._unchecked & self._places.filled)
        if len(fresh):
            self._null[fresh] = null_rows(self._meta[fresh], len(fresh)) | self._null_obs[fresh]
            self._unchecked[fresh] = False
        return bool(self._null.any())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was saved, by pickling or by ``save_hdf5``."""
        super().__setstate__(state)  # type: ignore[misc]
        if len(self._meta.get_keys()) and isinstance(self, theirs.ReplayBufferManager):
            self._set_batch_for_children()  # their arrays are parts of these again


class _Prioritized(StoredObservations):
    """The same of a prioritized buffer: weights are Tianshou's, and 0 of what was evicted."""

    def _lost(self, places: Ints) -> None:
        if len(places):
            self.weight[places] = np.zeros(len(places))

    def update_weight(self, index: Any, new_weight: Any) -> None:
        """Set priorities of the transitions that were sampled; of those not there any more none, but count them."""
        index, weight = np.asarray(index), theirs.to_numpy(new_weight)
        stale = self._places.absent[index] | ~self._places.filled[index]
        if self._drawn is not None and self._drawn[0] is index:
            stale |= self._places.ids[index] != self._drawn[1]
        self.stale_updates += int(stale.sum())
        if not stale.all():
            super().update_weight(index[~stale], weight[~stale])  # type: ignore[misc]


class ReplayBuffer(StoredObservations, theirs.ReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``ReplayBuffer``, over a store."""


class PrioritizedReplayBuffer(_Prioritized, theirs.PrioritizedReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``PrioritizedReplayBuffer``, over a store."""


class VectorReplayBuffer(StoredObservations, theirs.VectorReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``VectorReplayBuffer``, over a store."""


class PrioritizedVectorReplayBuffer(_Prioritized, theirs.PrioritizedVectorReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``PrioritizedVectorReplayBuffer``, over a store."""
