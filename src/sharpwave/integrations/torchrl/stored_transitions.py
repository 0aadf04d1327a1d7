"""Store that takes TensorDicts of transitions and returns batches as TensorDicts of the same structure."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase

from sharpwave.arrays import Ints
from sharpwave.errors import EmptyError
from sharpwave.integrations.frame_stacks import Stack, StackFinder
from sharpwave.integrations.resets import Resets
from sharpwave.integrations.torchrl.tensordict_layout import MASK, STEPS, Rows, TensorDictLayout
from sharpwave.integrations.torchrl.trajectories import LanePlaces, Trajectories
from sharpwave.integrations.whole_transitions import CHECKPOINT, LIMITS
from sharpwave.spec import Field, Spec
from sharpwave.store import Store
from sharpwave.validation import max_lanes
from sharpwave.views.batch import Batch, SequenceBatch

MIN_LANES = 64
"""Minimum number of unfinished trajectories that are distinguished."""
SEGMENT_STEPS = 128
"""Maximum number of transitions in a segment."""


class StoredTransitions:
    """Store, made from the first TensorDict or opened at first need.

    Args:
        frame_stack: "auto": detect stacks of frames in the images of the first TensorDict; a number: frames in a stack;
            ``None``: store whole images.
        n_step: number of steps of the returns that ``read`` gets.
        ragged: keys of the TensorDicts whose rows have any length, at the root and under "next", also where those of
            the first one do not show it; or one name.
        newest: number of the newest transitions that are always stored: the store's capacity is larger by a segment
            for each lane. ``None``: ``settings`` have the limits.
        max_length: as for a ``Field``, of all rows of any length, up to what a field holds.
        settings: arguments of the store. If ``disk`` holds a store, it is opened.

    Raises:
        ValueError: an invalid ``frame_stack``.
    """

    def __init__(
        self,
        frame_stack: int | str | None,
        *,
        n_step: int = 1,
        ragged: Collection[Any] | None = (),
        newest: int | None = None,
        max_length: int | None = None,
        **settings: Any,
    ) -> None:
        StackFinder((1,), "uint8", frame_stack)  # refuses invalid values
        Field((None,), "uint8", max_length=max_length)
        self._max_length = max_length
        limits = {"capacity": newest} if newest is not None else {}
        if settings.get("disk") is None:  # refuses invalid values
            Store(Spec(obs=Field((1,), "uint8"), action=Field((1,), "uint8")), **settings | limits).close()
        named = [ragged] if isinstance(ragged, str) else ragged or ()
        self._ragged = {(key,) if isinstance(key, str) else tuple(key) for key in named}
        self.frame_stack, self.n_step, self.newest, self.settings = frame_stack, n_step, newest, settings
        self._store: Store | None = None
        self._layout: TensorDictLayout | None = None
        self._stacks: dict[str, Stack] = {}
        self._trajectories = Trajectories()

    @property
    def disk(self) -> Path | None:
        """Folder of the store."""
        return None if self.settings.get("disk") is None else Path(self.settings["disk"])

    @property
    def opened(self) -> Store | None:
        """The store, if any: made by the first ``write``, or already on disk."""
        if self._store is None and self.disk is not None and (self.disk / "store.json").exists():
            limits = {name: self.settings[name] for name in LIMITS if name in self.settings}
            self.adopt(Store.open(self.disk, **limits))
        return self._store

    @property
    def store(self) -> Store:
        """The store.  Raises: EmptyError: the buffer is empty."""
        if self.opened is None:
            raise EmptyError("this buffer is empty; extend it first")
        assert self._store is not None
        return self._store

    def adopt(self, store: Store) -> None:
        """Continue with a store of such transitions; trajectories begin anew.  Raises: ValueError: others; closed."""
        try:
            layout = TensorDictLayout.from_spec(store.spec).checked(self.n_step)
        except ValueError:
            store.close()
            raise
        stacks = {}
        for name, leaf in layout.obs.items():
            made = replace(store.spec.fields[f"obs.{name}"], metadata={})
            stack = Stack(leaf.shape, leaf.dtype).as_stored(made)
            assert stack is not None, "this class wrote the store"
            stacks[name] = stack
        if self._store is not None:
            self._store.close()
        self._store, self._layout, self._stacks = store, layout, stacks
        self._trajectories = self._trajectories.anew(store.lanes)

    @property
    def resets(self) -> Resets:
        """Finder of rows that are resets, not steps; its ``dropped`` counts them."""
        return self._trajectories.resets

    # writing

    def write(self, data: TensorDictBase) -> Ints:
        """Append transitions, [*batch], of one or more trajectories, each in order.

        Returns:
            int64 [*batch], their ids in the store. Skipped ones have -1: padding, rows in which a vector resets with
            the next step (``Resets``), and, if observations are stacks of frames, trajectories without their first
            steps. With ``newest``, none is skipped.
        Raises:
            ValueError, TypeError: no transitions, a new structure, or no stacks; nothing was changed.

        Cost: comparisons of neighboring observations, and the store's ``extend`` of as many steps in
        time as the same trajectories take together.
        """
        ids, mask = np.full(data.batch_size.numel(), -1, np.int64), data.get(MASK, None)
        if len(ids) and mask is not None:  # trajectories padded by the collector
            present = mask.cpu().reshape(-1)
            ids[present.numpy()] = self.write(data.reshape(-1)[present].exclude(MASK))
        elif len(ids):
            ids = self._write(data.reshape(-1), data.batch_size[0] if data.ndim > 1 else 0)
        return ids.reshape(tuple(data.batch_size))

    def _write(self, flat: TensorDictBase, environments: int) -> Ints:
        layout = self._layout if self.opened is not None else None
        try:
            return self._append_rows(flat, environments, layout)
        except Exception:
            if layout is None and self._store is not None:  # the next transitions are the first
                made, self._store, self._layout = self._store, None, None
                made.close()
                if self.disk is not None:
                    shutil.rmtree(self.disk)  # which was new
            raise

    def _append_rows(self, flat: TensorDictBase, environments: int, layout: TensorDictLayout | None) -> Ints:
        first = layout is None
        layout = layout or TensorDictLayout.of(flat, self._ragged).checked(self.n_step)
        rows, trajectories = layout.rows(flat), self._trajectories.copy()
        many = len(np.unique(rows.trajectory)) if rows.trajectory is not None else 0
        most = max(MIN_LANES, many, environments)
        most = max(1, min(most, max_lanes(self.newest or self.settings.get("capacity"))))
        places = trajectories.place(rows, most, drops=self.newest is None)
        steps = ~places.dropped
        if not steps.all():
            rows, places = rows.some(steps), places.some(steps)
        if self.newest is not None:
            self.settings["capacity"] = self.newest + (trajectories.lanes + 2) * SEGMENT_STEPS
        if first:
            self._stacks = self._find_stacks(layout, rows, places)
            self._layout, self._store = layout, Store(layout.spec(self._stacks, self._max_length), **self.settings)
        elif self.newest is not None and self.settings["capacity"] > (self.store.capacity or 0):
            self.store.resize(capacity=self.settings["capacity"])
        kept = self._check(rows, places)
        self._trajectories = trajectories.anew(trajectories.lanes)  # after an error, all begin anew
        ids = np.full(len(steps), -1, np.int64)
        ids[steps] = self._append(rows, places, kept)
        self._trajectories = trajectories
        self.store._log.boundaries.counted["dropped_resets"] = trajectories.resets.dropped
        return ids

    def _find_stacks(self, layout: TensorDictLayout, rows: Rows, places: LanePlaces) -> dict[str, Stack]:
        stacks = {}
        for name, leaf in layout.obs.items():
            images = len(leaf.shape) == 3
            finder = StackFinder(leaf.shape, leaf.dtype, self.frame_stack if images else None)
            finder.look(rows.before[name], rows.after[name], places.begins, np.ones(len(rows), np.bool_))
            if finder.told and not finder.stacked:
                raise ValueError(_no_stack(name, self.frame_stack))
            stacks[name] = (finder.found or finder.whole).limited(self._max_length)
        return stacks

    def _check(self, rows: Rows, places: LanePlaces) -> npt.NDArray[np.bool_]:
        """Return which transitions are stored: bool [n].  Raises: ValueError: observations are no stacks."""
        kept = np.ones(len(rows), np.bool_)
        for name, stack in self._stacks.items():
            if stack.frames == 1:
                continue
            before = stack.stacks(rows.before[name])
            if not stack.goes_on(before, stack.stacks(rows.after[name])).all():
                raise ValueError(_no_stack(name, stack.frames))
            odd = np.flatnonzero(places.begins)[~stack.begins(before[places.begins])]
            for lane, turn in zip(places.lane[odd], places.turn[odd], strict=True):
                later = places.begins & (places.lane == lane) & (places.turn > turn)
                end = places.turn[later].min(initial=len(rows))
                kept &= (places.lane != lane) | (places.turn < turn) | (places.turn >= end)
        if not kept.all():
            what = (
                f"extend: {int((~kept).sum())} transitions are of trajectories without their "
                "first steps, which stacks of frames need. Extend the buffer with all that the collector "
                "returns, or make it with frame_stack=None"
            )
            if self.newest is not None:
                raise ValueError(what)
            warnings.warn(f"{what}; they are skipped", RuntimeWarning, stacklevel=6)
        return kept

    def _append(self, rows: Rows, places: LanePlaces, kept: npt.NDArray[np.bool_]) -> Ints:
        assert self._store is not None
        ids = np.full(len(rows), -1, np.int64)
        before, after = (
            {k: stack.newest(stack.stacks(one[k])) for k, stack in self._stacks.items()}
            for one in (rows.before, rows.after)
        )
        truncated = rows.ended & ~rows.terminated
        for block in places.blocks(kept):
            for lane in places.lane[block[0][places.breaks[block[0]]]].tolist():
                self._store.break_episode(lane)
            fields: dict[str, Any] = {name: one[block] for name, one in rows.fields.items()}
            ids[block] = self._store.extend(
                obs={name: one[block] for name, one in before.items()},
                next_obs={name: one[block] for name, one in after.items()},
                reward=rows.reward[block],
                terminated=rows.terminated[block],
                truncated=truncated[block],
                lanes=places.lane[block[0]],
                **fields,
            )
        return ids

    # reading

    def read(self, batch: Batch) -> TensorDict:
        """Return a batch of transitions as a TensorDict [B] over its memory; "next" is n steps later."""
        assert self._layout is not None
        before, after = (
            {name: stack.join(obs[name]) for name, stack in self._stacks.items()} for obs in (batch.obs, batch.next_obs)
        )
        fields = {"action": batch.action, **batch.fields}
        if self.n_step == 1:
            return self._layout.tensordict(before, after, fields, batch.reward)
        ends = {"terminated": batch.terminated, "truncated": batch.truncated}
        ends["done"] = batch.terminated | batch.truncated
        data = self._layout.tensordict(before, after, fields, batch.reward, ends)
        data.set(STEPS[0], torch.from_numpy(batch.n).reshape(data["next", "reward"].shape))
        return data

    def read_sequences(self, batch: SequenceBatch) -> TensorDict:
        """Return windows of steps as a TensorDict [B, T] over their memory, with ("collector", "mask")."""
        assert self._layout is not None
        columns = batch.mask.shape[1]
        joined = dict(batch.obs)
        for name, stack in self._stacks.items():
            if stack.frames > 1:
                obs = batch.obs[name]
                whole = stack.join(obs.reshape(-1, *obs.shape[2:]))
                joined[name] = whole.reshape(*obs.shape[:2], *whole.shape[1:])
        before, after = ({k: v[:, shift : shift + columns] for k, v in joined.items()} for shift in (0, 1))
        fields = {"action": batch.action, **batch.fields}
        data = self._layout.tensordict(before, after, fields, batch.step_reward)
        data.set(MASK, torch.from_numpy(batch.mask))
        return data

    # lives: nothing is pickled

    def save(self, folder: Path) -> None:
        """Write a checkpoint of the store; a store on disk is its own checkpoint, and is flushed."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.opened is not None and self.disk is None:
            self.store.checkpoint(folder / CHECKPOINT)
        elif self.opened is not None:
            self.store.flush()

    def load(self, folder: Path) -> None:
        """Continue with transitions that ``save`` wrote; trajectories begin anew.

        Raises:
            ValueError: not a buffer's transitions, or the buffer is on disk and empty.
        """
        if self.disk is not None:
            if self.opened is None:
                raise ValueError(f"loads: {self.disk} holds no store; a buffer on disk is opened by disk= alone")
        elif (folder / CHECKPOINT).exists():
            limits = {name: self.settings[name] for name in LIMITS if self.settings.get(name) is not None}
            self.adopt(Store.open(folder / CHECKPOINT, **limits))
        else:
            self.clear()

    def packed(self) -> torch.Tensor:
        """Return the bytes that ``save`` writes, uint8 [bytes]."""
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder))
            file = Path(folder) / CHECKPOINT
            return torch.from_numpy(np.fromfile(file, np.uint8) if file.exists() else np.empty(0, np.uint8))

    def unpack(self, content: torch.Tensor) -> None:
        """Continue with the transitions that ``packed`` returned.  Raises: ValueError: as ``load``."""
        with tempfile.TemporaryDirectory() as folder:
            if len(content):
                content.cpu().numpy().tofile(Path(folder) / CHECKPOINT)
            self.load(Path(folder))

    def clear(self) -> None:
        """Evict all transitions; delete files on disk. The structure of the TensorDicts stays."""
        if self.opened is not None:
            self.store.clear()
            self._trajectories = self._trajectories.anew(self.store.lanes)


def _no_stack(name: str, frames: Any) -> str:
    return (
        f"extend: {name} is not, or no longer, a stack of {frames} frames that begins a trajectory with its first "
        "one, repeated or after zeros; make the buffer with frame_stack=None"
    )
