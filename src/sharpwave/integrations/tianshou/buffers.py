"""Replay buffers of Tianshou whose observations are in a Sharpwave store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tianshou.data as theirs
from tianshou.data import Batch

from sharpwave.arrays import Array, Bools, Ints
from sharpwave.errors import EmptyError
from sharpwave.integrations.tianshou.batches import checked, each, joined, null_rows, split, stand_in, where
from sharpwave.integrations.tianshou.buffer_parts import part_of
from sharpwave.integrations.tianshou.stored import EvictedError, Places, Stored
from sharpwave.integrations.whole_transitions import WholeTransitions
from sharpwave.spec import Field, Spec
from sharpwave.store import Store

PLAIN = theirs.ReplayBuffer
THEIRS = (
    *("size", "total_size", "buffer_num", "stack_num", "ignore_obs_next", "save_only_last_obs", "sample_avail"),
    *("random_seed", "alpha", "beta", "weight_norm"),
)
"""Arguments of Tianshou's buffers; others are the store's."""
REQUIRED = {"obs", "act", "rew", "terminated", "truncated"}
LANE = np.zeros(1, np.int64)
"""The one lane of a buffer of one environment."""
EVICTS_LATE = 256
"""Steps that a store holds beyond a lane's places, since it evicts whole segments."""
MAX_DRAWS = 1000


class StoredObservations:
    """Part of a buffer that keeps observations in a store; comes before one of Tianshou's in a class's bases.

    Indices, rewards, flags and all other data stay in Tianshou's arrays, and its code draws indices.

    Args:
        frame_stack: with a ``stack_num`` of 1. "auto": detect stacks of frames in the first transitions, and store each
            frame once; a number: frames in a stack; ``None``: store whole observations.
        max_length: limit of rows of any length, in items, of texts in bytes; at most what 64 MiB hold. Default: what
            1 MiB holds.
        ram, disk, disk_limit, codec, ...: arguments of ``sharpwave.Store``. All others are Tianshou's.

    Attributes:
        stale_updates: number of priorities that were ignored because their transitions were gone.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    def __init__(self, *args: Any, frame_stack: int | str | None = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **{name: kwargs.pop(name) for name in THEIRS if name in kwargs})
        last_only = bool(self.options["save_only_last_obs"])
        self._save_only_last_obs, self._save_obs_next = False, True
        self._lanes: int = getattr(self, "cached_buffer_num", getattr(self, "buffer_num", 1))
        self._given = {"frame_stack": frame_stack, **kwargs}
        settings = _checked_settings({"capacity": self.maxsize + EVICTS_LATE * self._lanes, **kwargs})
        places = Places(self.maxsize, self._lanes)
        self._stored = Stored(places, self._lanes, self.stack_num, last_only, frame_stack, settings)
        self._unchecked, self._null, self._null_obs = np.zeros((3, self.maxsize), np.bool_)
        self._read: tuple[Any, tuple[Any, Any]] | None = None
        self._drawn: tuple[Ints, Ints] | None = None
        self.stale_updates = 0
        self._link()

    def _link(self) -> None:
        """Let the buffers of single environments read observations here."""
        if isinstance(self, theirs.ReplayBufferManager):
            for offset, part in zip(self._offset, self.buffers, strict=True):
                part_of(self, int(offset), part)

    def __getattr__(self, key: str) -> Any:
        if key in ("obs", "obs_next") and "_stored" in self.__dict__:
            return self._column(key, np.arange(self.maxsize))
        return super().__getattr__(key)  # type: ignore[misc]

    def _column(self, key: str, places: Ints) -> Any:
        """Return observations at places, all decoded, and zeros at empty places.  Raises: AttributeError."""
        if self._stored.transitions is None or (key == "obs_next" and (why := self._no_next())):
            raise AttributeError(f"buffer.{key}: " + ("nothing was added yet" if key == "obs" else why))
        there = self._places.filled[places]

        def spread(found: Array) -> Array:
            empty = None if found.dtype == object else 0  # as Tianshou's
            column = np.full((len(places), *found.shape[1:]), empty, found.dtype)
            column[there] = found
            return column

        return joined(each(self._read_at(places[there], 1)[key == "obs_next"], spread), places)

    def _no_next(self) -> str:
        """Return the reason for missing observations after steps; "" if they are stored."""
        if self.options["ignore_obs_next"]:
            return "the buffer was made with ignore_obs_next=True; without it they take no more memory"
        return "transitions were added without obs_next; give it, or ignore_obs_next=True" if self._stored.alone else ""

    @property
    def transitions(self) -> WholeTransitions:
        """The store and its writer.  Raises: EmptyError: the buffer is empty."""
        if self._stored.transitions is None:
            raise EmptyError("transitions: nothing was added yet, and the first transitions define the observations")
        return self._stored.transitions

    @property
    def _places(self) -> Places:
        return self._stored.places

    # writing

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Array, Array, Array, Array]:
        """Add a transition of each environment, as Tianshou's collector does.

        Args:
            batch: as Tianshou's. For rewards of several agents, [environments, agents], the store gets the sums.

        Raises:
            ValueError, TypeError: values that a store cannot hold; nothing was changed.
        """
        keys = set(batch.get_keys())
        if not keys >= REQUIRED:
            raise ValueError(f"add: got {sorted(keys)}, expected {sorted(REQUIRED)} among them")
        alone = buffer_ids is None and not isinstance(self, theirs.ReplayBufferManager)
        lanes = np.arange(self._lanes) if buffer_ids is None else np.asarray(buffer_ids)
        ids, stored, null = self._store(batch, alone, lanes)
        rest = Batch()
        for name in keys - {"obs", "obs_next"}:
            rest.__dict__[name] = batch[name]
        rest.__dict__["obs"] = np.zeros(0 if alone else (len(lanes), 0), np.bool_)  # Tianshou requires some
        added: tuple[Array, Array, Array, Array] = super().add(rest, buffer_ids)  # type: ignore[misc]
        self._put(added[0], lanes, ids, stored, null)
        return added

    def _store(self, batch: Any, alone: bool, lanes: Ints) -> tuple[Ints | None, Bools, Bools]:
        """Write a transition to each of some lanes; return ids, and which rows are stored, and which have a null."""
        named = REQUIRED | ({"obs_next"} & set(batch.get_keys()))
        of, rows = {name: split(batch[name], alone) for name in named}, len(lanes)
        if self._stored.alone and self.options["ignore_obs_next"]:
            of.pop("obs_next", None)
        if self._stored.alone not in (None, "obs_next" not in of):
            raise ValueError("add: got obs_next with some transitions only, expected it with all of them or with none")
        rew, act = of["rew"], stand_in(of["act"], rows)
        flags = [of[name].reshape(-1).astype(np.bool_) for name in ("terminated", "truncated")]
        if rew.dtype.kind not in "biuf" or any(len(one) != rows for one in (rew, *flags)) or not np.isfinite(rew).all():
            raise ValueError(f"add: got rewards {rew!r} and ends {flags}, expected a finite reward and two flags each")
        dtype = getattr(of["act"], "dtype", act.dtype)
        known = getattr(self._meta.get("act"), "dtype", dtype)
        if "O" in (known.kind, dtype.kind) and known != dtype:
            raise ValueError(f"add: got act {of['act'][0]!r:.60}, expected {known} as in the first transitions")
        obs = [checked(of[name], name) for name in ("obs", "obs_next") if name in of]
        if len(self._meta.get_keys()) and self._meta.rew.shape[1:] != rew.shape[1:]:
            raise ValueError(
                f"add: got rewards {rew!r}, expected a finite reward of shape {self._meta.rew.shape[1:]} each"
            )
        rew = rew if rew.ndim == 1 else rew.reshape(rows, -1).sum(1)
        ids, stored = self._stored.add(obs[0], obs[1] if obs[1:] else None, act, rew, flags[0], flags[1], lanes)
        return ids, stored, np.logical_or.reduce([null_rows(one, rows) for one in obs])

    def _put(self, places: Ints, lanes: Ints, ids: Ints | None, stored: Bools, null: Bools) -> None:
        self._places.put(places, lanes, stored, ids)
        self._unchecked[places] = True
        self._null_obs[places] = null
        self._lost(places[~stored])

    def _lost(self, places: Ints) -> None:
        """Note that transitions are missing in the store."""

    def reset(self, keep_statistics: bool = False) -> None:
        """Forget all transitions. The store evicts them later, when it needs room."""
        super().reset(keep_statistics=keep_statistics)  # type: ignore[misc]
        if "_stored" in self.__dict__:  # Tianshou 1's constructor resets
            self._stored.leave()
            self._forget(np.arange(self.maxsize))
            self._drawn = None

    def _forget(self, places: Ints) -> None:
        self._lost(places[self._places.filled[places]])
        self._places.clear(places)
        self._unchecked[places], self._null[places], self._null_obs[places] = False, False, False

    def _move(self, places: Ints, to: Ints) -> None:
        """Move transitions to other places; their old places no longer belong to an episode."""
        nulls = self._null_obs[places]
        self._places.copy(places, to)
        self._unchecked[places], self._null[places], self._null_obs[places] = False, False, False
        self._null_obs[to], self._unchecked[to] = nulls, True

    def set_array_at_key(self, *args: Any, **kwargs: Any) -> None:
        """Set a further array, as hooks of Tianshou's collector do."""
        super().set_array_at_key(*args, **kwargs)  # type: ignore[misc]
        self._unchecked[:] = True

    def update(self, buffer: Any) -> Ints:
        """Append the transitions of another buffer, ours or Tianshou's, and return their indices.

        Raises:
            NotImplementedError: this buffer has several environments, as Tianshou's does not support either.
        """
        if isinstance(self, theirs.ReplayBufferManager):
            raise NotImplementedError(
                "update: a buffer of several environments cannot tell whose the transitions are; expected a "
                "ReplayBuffer, or add() for each environment"
            )
        stack, buffer.stack_num = buffer.stack_num, 1
        try:
            there = buffer.sample_indices(0)
            batch = buffer[there] if len(there) and self.maxsize else Batch()
        finally:
            buffer.stack_num = stack
        if not len(batch.get_keys()):
            return np.empty(0, np.int64)
        if isinstance(batch.obs_next, Batch) and not len(batch.obs_next.get_keys()):
            del batch.obs_next
        for number in range(len(batch)):
            written = self._store(batch[number : number + 1], False, LANE)
            self._put((self._insertion_idx + LANE + number) % self.maxsize, LANE, *written)
        rest = object.__new__(type(buffer))  # `copy` would share its attributes
        rest.__dict__.update(buffer.__dict__)
        rest._meta = Batch({name: buffer._meta[name] for name in set(buffer._meta.get_keys()) - {"obs", "obs_next"}})
        rest._meta.obs = np.zeros((buffer.maxsize, 0), np.bool_)
        indices: Ints = super().update(rest)  # type: ignore[misc]
        return indices

    @classmethod
    def from_data(cls, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, done: Any, obs_next: Any) -> Any:
        """Return a buffer with the transitions in arrays or HDF5 datasets, as Tianshou's."""
        names = ("obs", "act", "rew", "terminated", "truncated", "obs_next")
        columns = dict(zip(names, (obs, act, rew, terminated, truncated, obs_next), strict=True))
        buffer = cls(len(obs))
        for row in range(len(obs)):
            buffer.add(Batch({name: column[row : row + 1] for name, column in columns.items()}), [0])
        return buffer

    def set_batch(self, batch: Any) -> None:
        """Set all arrays but the observations.  Raises: NotImplementedError: the observations differ."""
        if batch.get("obs") is not self._meta.get("obs"):
            raise NotImplementedError(
                "set_batch: observations are encoded, and arrays of others cannot take their place; use "
                "ReplayBuffer.from_data, or add()"
            )
        super().set_batch(batch)  # type: ignore[misc]
        self._unchecked[:] = True

    def dropnull(self) -> None:
        """Drop transitions with a NaN or None.

        Raises:
            NotImplementedError: the buffer has several environments, where Tianshou's breaks.
        """
        if isinstance(self, theirs.ReplayBufferManager):
            raise NotImplementedError("dropnull: expected a buffer of one environment; buffers of several keep all")
        self.hasnull()
        there = self.sample_indices(0)
        kept, places = there[~self._null[there]], np.arange(np.count_nonzero(~self._null[there]))
        self._meta[places] = self._meta[kept]
        self._move(kept, places)
        self._forget(np.setdiff1d(there, places))
        self._size, self._insertion_idx = len(kept), len(kept) % self.maxsize
        self.last_index = np.array([max(len(kept) - 1, 0)])

    def close(self) -> None:
        """Write all data, and release memory and disk."""
        if self._stored.transitions is not None:
            self._stored.transitions.close()

    # reading

    def sample_indices(self, batch_size: int | None) -> Ints:
        """Draw indices as Tianshou does, without those known as evicted."""
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
        """Draw a batch, and return it with its indices.  Raises: EmptyError: all transitions were evicted."""
        for _ in range(MAX_DRAWS):
            indices = self.sample_indices(batch_size)
            try:
                batch = self[indices]
            except EvictedError:
                continue  # now known as evicted
            self._drawn = indices, self._places.ids[indices]
            return batch, indices
        raise EmptyError(f"sample: {MAX_DRAWS} draws met evicted transitions; give the store more ram=")

    def __getitem__(self, index: Any) -> Any:
        if self._stored.transitions is None:
            raise KeyError("obs: nothing was added yet")  # as in Tianshou's, so that numpy takes a buffer for an object
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
        """Return values at indices; for observations, the stacks that the environments would have made.

        Raises:
            EvictedError: the store has evicted some.
        """
        if key not in ("obs", "obs_next") or self._stored.transitions is None:
            return super().get(index, key, default_value, stack_num)  # type: ignore[misc]
        stack = self.stack_num if stack_num is None else stack_num
        if self._read is not None and self._read[0] is index and stack == self.stack_num:
            return self._read[1][key == "obs_next"]
        if key == "obs_next" and (why := self._no_next()):
            if default_value is None:
                raise KeyError(f"obs_next: {why}")
            return default_value
        places: Ints = np.asarray(self._indices[index])
        return joined(self._read_at(places.reshape(-1), stack)[key == "obs_next"], places)

    def _observations(self, index: Any, stack: int) -> tuple[Any, Any]:
        """Return observations before and after steps as Tianshou does: without the latter, those of the next index."""
        places: Ints = np.asarray(self._indices[index])
        flat = places.reshape(-1)
        obs, after = self._read_at(flat, stack)
        if self.options["ignore_obs_next"]:
            following = self.next(flat)
            if self._stored.alone or (stack > 1 and not self._stored.whole):
                after = self._read_at(following, stack)[0]
            elif (last := following == flat).any():
                after = where(last, obs, after)
        elif self._stored.alone:
            return joined(obs, places), Batch()
        return joined(obs, places), joined(after, places)

    def _read_at(self, places: Ints, stack: int) -> tuple[Any, Any]:
        try:
            return self._stored.read(places, stack, self.prev)
        except EvictedError as error:
            self._lost(error.places)
            raise

    def hasnull(self) -> bool:
        """Return whether any value is NaN.  Cost: a pass over newly added rows; nothing is decoded."""
        fresh = np.flatnonzero(self._unchecked & self._places.filled)
        if len(fresh):
            self._null[fresh] = null_rows(self._meta[fresh], len(fresh)) | self._null_obs[fresh]
            self._unchecked[fresh] = False
        return bool(self._null.any())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a state saved by pickling or by ``save_hdf5``."""
        super().__setstate__(state)  # type: ignore[misc]
        self._link()
        if len(self._meta.get_keys()) and isinstance(self, theirs.ReplayBufferManager):
            self._set_batch_for_children()  # their arrays are views of these again


class _PrioritizedStored(StoredObservations):
    """Part of a prioritized buffer: weights are Tianshou's, and 0 for evicted transitions."""

    def _lost(self, places: Ints) -> None:
        if len(places):
            self.weight[places] = np.zeros(len(places))

    def update_weight(self, index: Any, new_weight: Any) -> None:
        """Set priorities of sampled transitions; count those that are gone."""
        index, weight = np.asarray(index), theirs.to_numpy(new_weight)
        stale = self._places.absent[index] | ~self._places.filled[index]
        if self._drawn is not None and self._drawn[0] is index:
            stale |= self._places.ids[index] != self._drawn[1]
        self.stale_updates += int(stale.sum())
        if not stale.all():
            super().update_weight(index[~stale], weight[~stale])  # type: ignore[misc]


class ReplayBuffer(StoredObservations, theirs.ReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``ReplayBuffer``, over a store."""


class PrioritizedReplayBuffer(_PrioritizedStored, theirs.PrioritizedReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``PrioritizedReplayBuffer``, over a store."""


class VectorReplayBuffer(StoredObservations, theirs.VectorReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``VectorReplayBuffer``, over a store."""


class PrioritizedVectorReplayBuffer(_PrioritizedStored, theirs.PrioritizedVectorReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``PrioritizedVectorReplayBuffer``, over a store."""


class CachedReplayBuffer(StoredObservations, theirs.CachedReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``CachedReplayBuffer``, over a store.

    Args:
        main_buffer: an empty buffer of this module; it becomes a part of this buffer, which takes its settings.

    Raises:
        TypeError, ValueError: another ``main_buffer``.
    """

    def __init__(self, main_buffer: ReplayBuffer, cached_buffer_num: int, max_episode_length: int) -> None:
        if type(main_buffer) is not ReplayBuffer or len(main_buffer._meta.get_keys()):
            raise TypeError(
                f"CachedReplayBuffer: got main_buffer {main_buffer!r}, expected an empty "
                "sharpwave.integrations.tianshou.ReplayBuffer"
            )
        given = main_buffer._given
        main_buffer.__class__ = PLAIN
        main_buffer._save_obs_next = not main_buffer.options["ignore_obs_next"]
        del main_buffer._stored
        super().__init__(main_buffer, cached_buffer_num, max_episode_length, **given)

    def _store(self, batch: Any, alone: bool, lanes: Ints) -> tuple[Ints | None, Bools, Bools]:
        written = super()._store(batch, alone, lanes)
        places = [self._offset[1 + lane] + self.buffers[1 + lane]._insertion_idx for lane in lanes]
        super()._put(np.array(places), lanes, *written)
        return written

    def _put(self, *args: Any) -> None:
        """Do nothing: transitions were noted before Tianshou moved the ended episodes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.main_buffer, self.cached_buffers = self.buffers[0], self.buffers[1:]


def _checked_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a store.  Raises: ValueError, TypeError: invalid settings."""
    if "retention" in settings:
        raise ValueError("retention: expected none; the oldest are evicted, as in Tianshou's buffers")
    disk = settings.get("disk")
    if disk is not None and (Path(disk) / "store.json").exists():
        raise ValueError(
            f"disk={str(disk)!r} already holds a store; load the buffer saved with it, or give an empty folder"
        )
    Field((None,), "uint8", max_length=settings.get("max_length"))
    others = ("disk", "disk_limit", "on_full", "max_length")
    in_memory = {name: value for name, value in settings.items() if name not in others}
    Store(Spec(obs=Field((1,), "uint8"), action=Field((), "int64")), **in_memory).close()
    return settings
