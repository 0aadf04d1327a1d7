"""Store: the log of steps that learners sample from. Each verb checks its arguments and asks a lower room."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.arrays import Bools, Ints
from sharpwave.disk.state_files import StateFiles
from sharpwave.disk.store_folder import VIEWS
from sharpwave.errors import NO_STATE, not_to_be_copied
from sharpwave.format import segment
from sharpwave.format.segment_header import DELETED_STEPS, requiring
from sharpwave.json_values import decode
from sharpwave.log.boundaries import checked_counts
from sharpwave.log.remote_segments import settle
from sharpwave.log.step_blocks import StepBlock, block_of, drop_steps
from sharpwave.memory.segment_index import LEAF_MASK
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from sharpwave.native.interrupts import InterruptLock
from sharpwave.persistence.checkpoint import save
from sharpwave.persistence.checkpoint_file import folder_of, is_file_name, save_file
from sharpwave.persistence.deletion import delete, free_deleted
from sharpwave.persistence.lifetime import Life, check_same, close, open_here, remember, was_left_in, watch
from sharpwave.persistence.opening import Left, begin
from sharpwave.persistence.settings import Settings
from sharpwave.persistence.snapshot import flush
from sharpwave.persistence.versions import (
    Version,
    begun,
    checked_version,
    place_of,
    read_version,
    reading_place,
    remove,
    versions_in,
)
from sharpwave.sampling.limiters import Gate, Limiter
from sharpwave.sampling.ordered import Fifo
from sharpwave.sampling.retention import LowestPriority, Reservoir
from sharpwave.sampling.sampler_protocol import Sampler
from sharpwave.showing import bar, byte_text, table, titled
from sharpwave.spec import Field, Spec
from sharpwave.store_stats import account
from sharpwave.validation import (
    GivenSteps,
    Missing,
    check_flag,
    check_missing,
    checked_block,
    checked_episode,
    checked_final,
    checked_folder,
    checked_lane,
    checked_places,
    checked_rows,
    checked_steps,
    max_lanes,
)
from sharpwave.views.batch import Batch, SequenceBatch
from sharpwave.views.conditions import Condition
from sharpwave.views.episodes import (
    EpisodeReader,
    Episodes,
    Order,
    Table,
    ages,
    checked_lanes,
    checked_order,
    find,
    find_again,
    given_episodes,
    places_in,
    step_ids,
    unfinished,
    within,
)
from sharpwave.views.hindsight import Goals, Hindsight
from sharpwave.views.ids import Ids, Tag, check_tag, tag_of, tagged
from sharpwave.views.sequences import Sequences, Windows, window_values
from sharpwave.views.step_views import NStep, Transitions
from sharpwave.views.store_views import Views
from sharpwave.views.stored_steps import StepFetcher
from sharpwave.views.view_protocol import STEPS, View
from sharpwave.views.view_replay import Replay, checked_errors, checked_ids, flat_names, without_gradient
from sharpwave.writing import OTHERWISE, Writing

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader

B = TypeVar("B")


class Store:
    """Compressed replay memory: steps are encoded once, when appended; batches are decoded when sampled.

    Args:
        spec: schema of a step.
        capacity: maximum number of steps. Give ``capacity``, ``ram`` or both.
        ram: limit in bytes of RAM for everything (encoded steps, open segments, index, samplers, batches): a number, or
            "512MiB". A full store evicts segments. Batches that the caller holds count, up to half of ``ram``; a batch
            that does not fit raises MemoryError, and no step is evicted for it. Room for 2,048 transitions (at most
            that half) is reserved for batches; larger ones take, and keep, memory that steps do not use yet. With a
            disk nothing is reserved: segments are uncached to make room for batches.
        disk: a new or empty folder, to which every sealed segment is written; ``ram`` then bounds the cache. Needs
            ``capacity`` or ``disk_limit``.
        disk_limit: limit in bytes of the region files in that folder: a number, or "50GiB". The saved states of views
            are beside them, some bytes an item.
        on_full: behavior of an append when the disk is full or fails: "raise" an OSError and leave the store
            unchanged; "block" for up to 60 s, then raise; "drop_oldest", evict steps until a full disk has room;
            "drop_newest", drop the segment that could not be written. ``stats()`` counts failures and dropped steps.
        codec: "auto" (measured on the data) or the name of a codec; or a dict of these by field name, in which absent
            fields have "auto". ``Field(codec=)`` takes precedence.
        retention: policy that chooses which segments a full store evicts: ``Fifo()`` (the oldest; default),
            ``Reservoir()`` or ``LowestPriority()``.
        seed: seed of sampling: the same calls give the same batches.
        segment_steps: steps in a segment, the unit of encoding, reading and eviction. Default 128, with a disk or for
            steps of 4 KiB and more 64; less if the capacity or ``ram`` is small.
        strict: refuse impossible steps, with a ValueError, once a lane shows several: resets taken for steps, final
            observations that belong to the next episode, ``next_obs`` that never, or almost never, equal the next
            ``obs``. Otherwise each lane warns once (``stats()["repeated_finals"]``, ``["unchained_steps"]``,
            ``["rounded_breaks"]``). Not kept on disk.
        exist_ok: use an existing store in ``disk``. A store that is open in this process is returned itself, so that a
            notebook's cell may run again; one that was closed, or whose process ended, is opened as by ``open``, with
            the given limits; without a store a new one is made.

    All methods may be called from several threads. In a forked process a store in memory is a copy, whose views draw
    as learners of their own, and others in each fork; a store on disk remains the parent's.

    Raises:
        ValueError, TypeError: an invalid argument; or, with ``exist_ok``, the store there has other settings: ``spec``,
            ``codec``, ``retention`` or ``segment_steps``; if it is open also limits, ``on_full`` or ``seed``.
    """

    def __new__(cls, *_: Any, disk: Any = None, exist_ok: bool = False, **__: Any) -> Self:
        """Return a new object, or with ``exist_ok`` the store that this process has open in the folder."""
        found = open_here(disk) if exist_ok and disk is not None else None
        return found if isinstance(found, cls) else super().__new__(cls)

    def __init__(
        self,
        spec: Spec,
        *,
        capacity: int | None = None,
        ram: int | str | None = None,
        disk: str | os.PathLike[str] | None = None,
        disk_limit: int | str | None = None,
        on_full: str = "raise",
        codec: str | Mapping[str, str] = "auto",
        retention: Fifo | Reservoir | LowestPriority | None = None,
        seed: int = 0,
        segment_steps: int | None = None,
        strict: bool = False,
        exist_ok: bool = False,
    ) -> None:
        settings = Settings.checked(
            spec,
            capacity=capacity,
            ram=ram,
            on_disk=disk is not None,
            disk_limit=disk_limit,
            on_full=on_full,
            codec=codec,
            retention=retention,
            seed=seed,
            segment_steps=segment_steps,
        )
        check_flag("Store", "strict", strict)
        check_flag("Store", "exist_ok", exist_ok)
        folder = None if disk is None else checked_folder("disk", disk)
        if exist_ok and folder is None:
            raise ValueError("Store: exist_ok=True without disk=, expected the folder that a store may be in already")
        default = segment_steps is None
        if folder is not None and "_log" in self.__dict__:  # it is open, and __new__ found it
            check_same(settings, self._settings, folder, is_open=True, default_segments=default)
        elif exist_ok and folder is not None and was_left_in(folder):
            with Left.read(folder, None) as left:
                was = Settings.said(left.folder, left.manifest)
                check_same(settings, was, folder, is_open=False, default_segments=default)
                self._begin(replace(settings, segment_steps=was.segment_steps), left.target, left)
        else:
            self._begin(settings, folder, None)
        self._log.boundaries.strict = bool(strict)

    def _begin(self, settings: Settings, folder: Path | None, left: Left | None) -> None:
        """Set up the store, empty or with the content ``left`` by another process."""
        self.spec, self._settings = settings.spec, settings
        self._lock = InterruptLock()
        self._gate = Gate(self._lock)
        self._log, self.recovery, states = begin(settings, folder, left, Files())
        self._life = Life(self._log, self._lock)
        watch(self._log, self._lock)
        if self._log.sealing.behind is not None:
            self._lock.settle = weakref.WeakMethod(self._log.sealing.behind.settle)
        self._views = Views(self._log, self._lock, self._gate, settings.seed, self._life)
        self._step_tag = Tag(self._log.tag, STEPS)
        self._writing = Writing(self._log, self._lock, self._gate, self._views, self._step_tag)
        self._steps = StepFetcher(self._log, self._step_tag)
        self._servers: list[Any] = []  # a StoreServer, while there is one
        if left is None or not left.writers_go_on:
            settle(self._log)
        else:
            self._writing.fed.update(range(self._log.lanes))
        for number, state in states.items():
            try:
                self._views.restore(number, state)
            except NO_STATE as error:
                assert self.recovery is not None
                self.recovery.damages.append(f"view {number}: {error!r}; it starts without its checkpoint")
        if self._log.disk is not None:
            damages = [] if self.recovery is None else self.recovery.damages
            of_checkpoint = left is not None and left.checkpoint > 0
            self._views.keep_in(StateFiles(self._log.disk, VIEWS), damages, of_checkpoint)
        if self.recovery is not None:
            self.recovery.views = self._views.unclaimed
        if folder is not None:
            self._life.keep(self)
            remember(folder, self._life)
        # Opening may have enlarged the files of a store closed within its limit: appending makes room.
        same_files = left is not None and left.manifest.get("disk_limit") == settings.disk_limit
        self._log.keep_limits(files=not same_files)
        free_deleted(self._log)
        if self._log.disk is not None and left is not None and not settings.manifest().items() <= left.manifest.items():
            self._log.disk.describe(self._manifest())  # the given settings are the next life's previous values

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        disk: str | os.PathLike[str] | None = None,
        capacity: int | None = None,
        ram: int | str | None = None,
        disk_limit: int | str | None = None,
        on_full: str | None = None,
        seed: int | None = None,
        strict: bool = False,
        writers_go_on: bool = False,
        exist_ok: bool = False,
        version: str | None = None,
    ) -> Self:
        """Open a checkpoint, or a store on disk after a clean exit, a crash or SIGKILL.

        **A checkpoint** is restored exactly, views included: see ``transitions``. The checkpoint of a store in memory
        is read into memory and left unchanged. The checkpoint of a store on disk becomes a store on disk again: in the
        new or empty folder ``disk``, to which its files are linked; or else in its own folder, which is then no longer
        a checkpoint. A checkpoint in a single file is left unchanged; of a store on disk it needs ``disk``.
        Unfinished episodes stay open: a writer whose environment is reset first calls ``break_episode`` on each lane,
        or gives ``next_obs``, or uses a ``Recorder``, whose first ``reset()`` does it.

        **A store on disk** keeps every intact segment with its ids, and every flushed step except the last one of an
        unfinished episode (its successor is unknown). Every lane begins a new episode. Its views have the priorities
        and uses of their last write to the folder: by ``flush`` or ``close``, or every 5 seconds.

        ``store.recovery`` reports the number of restored steps, damage and losses, and changed limits;
        damaged files are moved to the folder ``quarantine``.

        Args:
            capacity, ram, disk_limit, on_full, seed: as for ``Store``; default: the store's previous values.
            strict: as for ``Store``.
            writers_go_on: segment writers in other processes outlived the store, and go on with ``add_segment``:
                episodes in their lanes are not ended, and continue with the next segment.
            exist_ok: return the store that is open in this process in the folder, if there is one.
            version: name of a version in the store's folder (``snapshot``), to read: sampled, but not written to. The
                store itself may be in use meanwhile. ``branch`` makes one that goes on.

        Raises:
            FileNotFoundError: the folder holds no store, or no such version.
            StoreInUseError: another process has locked the folder.
            DamagedError: ``store.json`` is damaged.
            MemoryError: the limits in ``store.json`` exceed this machine's memory.
            NewerVersionError: a later release wrote part of the store; nothing was changed.
            ValueError, FileExistsError: an invalid argument; or the store that is open has other settings.
        """
        given = {"capacity": capacity, "ram": ram, "disk_limit": disk_limit, "on_full": on_full, "seed": seed}
        check_flag("open", "strict", strict)
        check_flag("open", "exist_ok", exist_ok)
        target = None if disk is None else checked_folder("disk", disk)
        there = checked_folder("open", path) if target is None else target
        if version is not None and (target is not None or exist_ok or writers_go_on):
            raise ValueError("open: version= with disk=, exist_ok= or writers_go_on=; branch() makes a store of it")
        found = open_here(there) if exist_ok else None
        if isinstance(found, cls):
            now = Settings.from_manifest(there, found._settings.manifest(), on_disk=True, **given)
            check_same(now, found._settings, there, is_open=True)
            found._log.boundaries.strict = bool(strict)
            return found
        given_path, reading = checked_folder("open", path), None
        if version is not None:
            given_path = read_version(given_path, checked_version("open", version)).folder
            target = reading = reading_place(given_path.parent.parent)
        with folder_of(given_path, target, to_open=True) as folder, Left.read(folder, target) as left:
            if left.in_place and left.checkpoint and "version" in left.manifest:
                raise ValueError(
                    f"open: {left.folder} is a version, which never changes; open its store with version=, or give "
                    "disk= for a store that goes on from it"
                )
            left.writers_go_on = bool(writers_go_on)
            settings = Settings.from_manifest(left.folder, left.manifest, on_disk=left.target is not None, **given)
            store = cls.__new__(cls)
            try:
                store._begin(settings, left.target, left)
                store._log.boundaries.strict = bool(strict)
                if reading is not None:
                    store._log.frozen = (
                        f"this store is the version {version!r} of {given_path.parent.parent}, which never changes; "
                        f"store.branch(PATH, {version!r}) makes a store that goes on from it"
                    )
                    store._log.after_close = partial(shutil.rmtree, reading, ignore_errors=True)
            except MemoryError as error:
                if error.args:
                    raise
                raise MemoryError(
                    f"open: not enough memory to read {left.folder}; give a lower ram= or capacity="
                ) from error
        return store

    # content

    @property
    def capacity(self) -> int | None:
        """Limit in steps; ``None``: unlimited."""
        return self._settings.capacity

    @property
    def ram(self) -> int | None:
        """Limit in bytes of memory; ``None``: unlimited."""
        return self._settings.ram

    @property
    def disk_limit(self) -> int | None:
        """Limit in bytes of files; ``None``: unlimited."""
        return self._settings.disk_limit

    def __len__(self) -> int:
        """Return the number of held steps, including open segments, without deleted ones."""
        return self._log.steps

    @property
    def lanes(self) -> int:
        """Number of lanes written to so far."""
        return self._log.lanes

    @property
    def lane_steps(self) -> Ints:
        """Number of each lane's next step, counted from 0; int64 [lanes]."""
        with self._lock:
            return self._log.opened.steps.copy()

    @property
    def total_steps(self) -> int:
        """Number of steps ever appended, including steps evicted since.

        Until the store is opened again it also counts steps that ``break_episode`` dropped.
        """
        return self._log.inventory.total_steps

    def stats(self) -> dict[str, Any]:
        """Return the store's contents and costs, with every byte accounted for.

        ``steps``, ``total_steps``, ``evicted_steps``, ``evicted_segments``, ``segments``, ``lanes``; ``deleted_steps``:
        whose segments also have other steps, and so are held still;
        ``broken_episodes``: found by ``next_obs`` since the store was opened, ``unchained_steps``, of one step each,
        and ``rounded_breaks``, by rounding only; ``repeated_finals``: steps, since then, that look like resets or
        follow a final observation that is the next episode's; ``dropped_resets``: rows, since then, in which an
        environment only reset, and that a ``Recorder`` or a drop-in passed over; ``bytes`` by use: ``arena_used``
        (sealed segments), ``arena_free``, ``open_segments``, ``index``, ``dictionaries``, ``encoders``, ``samplers``,
        ``batches`` (held, and free for the next), ``open_values`` (ragged fields' values in open segments, only where
        there are such fields), ``shared_values`` (likewise), ``checkpoint`` (copies while one is written, 12 MiB at
        most, and while views are written to the store's folder; not counted in ``ram``); ``total_bytes``, their sum:
        the growth of the process; ``held_batch_bytes``: batches that the caller holds; ``encoded_bytes_per_step``: of
        sealed segments, 0 before the first, and of shared values by all steps; ``fixed_bytes``: buffers whose size
        steps do not change (all but ``arena_used``, ``index``, ``samplers`` and ``shared_values``);
        ``bytes_per_step``: all bytes by all steps; ``raw_bytes_per_step``: before encoding, of ragged fields by a
        guess; ``append_waits``, ``append_wait_s``, ``sample_waits``, ``sample_wait_s``: on rate limiters; ``shared``:
        of each field with shared values how many there are, and their bytes, only where there are such fields;
        ``codecs``: columns by field and codec; ``damaged``: messages about segments that could not be read or decoded.
        With a disk ``disk``: ``bytes`` of files, ``resident_segments`` (cached), ``hits`` and ``misses`` of sampled
        segments, ``bytes_read``, ``joined`` (reads merged with an adjacent one), ``stalls`` and ``waited_s`` (sampling
        that waited for reads), ``bytes_written``, ``failures`` of writes, ``dropped_steps`` (on_full=), ``damaged``.
        """
        with self._lock:
            return account(self._log, self._gate)

    # writing

    def extend(
        self,
        *,
        obs: Any,
        action: Any,
        reward: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        final_obs: Any = None,
        next_obs: Any = None,
        lanes: npt.ArrayLike | None = None,
        timeout: float | None = None,
        **extra: Any,
    ) -> Ids:
        """Append one step to each of several lanes, or with a leading axis of time several. Everything is copied.

        Args:
            obs: [rows, *shape] (or dicts and tuples of these, as the spec has them): the newest frame of the
                observation the action was chosen for. All arguments but ``lanes`` may be [T, rows, *shape] instead, as
                a rollout is: then T steps a lane.
            action: [rows, *shape], or dicts and tuples of these.
            reward, terminated, truncated, extra: [rows, *shape]: the action's outcome, and further fields. Floats are
                rounded to the field's dtype (a reward's is float32); integers must be exact in it; no array is masked.
            final_obs: [rows, *shape], the true observation after the step; read in rows where an episode ended, and
                required where it was truncated. Where it terminated ``obs`` may stand in: the discount is 0.
            next_obs: [rows, *shape], the newest frame after the step; used as ``final_obs`` where that is absent. If a
                lane's next ``obs`` has another value anywhere, the episode was broken off: the earlier step becomes
                truncated, with this as its final observation, and the later one begins an episode
                (``stats()["broken_episodes"]``). NaN equals itself, -0.0 equals 0.0; values that were rounded differ,
                which causes a warning. Without it, consecutive steps are assumed to follow each other.
            lanes: int [rows], all different. Default 0, 1, ...; new lanes are created.
            timeout: seconds to wait for the views' rate limiters; default 60.

        Returns:
            int64 [rows] or [T, rows], the steps' ids, as ``batch.ids`` has them.
        Raises:
            ValueError, TypeError, KeyError: an argument does not fit the spec; nothing was changed.
            LimiterTimeoutError: a rate limiter did not admit the steps in time; nothing was changed.
            MemoryError: ``ram`` is too small for so many lanes.
            With an axis of time, the latter two and OSError leave the steps appended by then, whose episodes are
            truncated there; a note at the error says how many.

        Cost: 2 to 3 us a row of 84x84 pixels, encoding included (benchmarks/store.py); 2 us for 8 rows of 17 floats,
        sealing included (benchmarks/vectors.py), and more where arrays are of dtypes that may not fit.
        """
        if timeout is None:
            extra["action"] = action
            with self._lock.interruptible:
                if self._writing.takes_small_steps():
                    appending = self._writing.appending
                    ids: Ids | int = appending.extend(
                        lanes, obs, extra, reward, terminated, truncated, final_obs, next_obs
                    )
                    if isinstance(ids, int) and ids != OTHERWISE:
                        others = extra, reward, terminated, truncated, final_obs, next_obs
                        ids = appending.again(ids, appending.extend, lanes, obs, *others)
                    if not isinstance(ids, int):
                        return ids
            del extra["action"]
        given = GivenSteps(obs, action, reward, terminated, truncated, final_obs, next_obs, extra)
        if np.ndim(reward) == 2:
            block = block_of(*checked_block(self.spec, lanes, given), self.spec.obs_names)
            return self._writing.block("extend", block, lambda: None, timeout)
        numbers, steps = checked_rows(self.spec, lanes, given)
        return self._writing.rows(numbers, *steps, timeout)

    def append(
        self,
        *,
        lane: int = 0,
        obs: Any,
        action: Any,
        reward: npt.ArrayLike,
        terminated: bool,
        truncated: bool,
        final_obs: Any = None,
        next_obs: Any = None,
        timeout: float | None = None,
        **extra: Any,
    ) -> int:
        """Append one step to one lane, and return its id: as ``extend``, without the leading axis."""
        if timeout is None and type(lane) is int:
            extra["action"] = action
            with self._lock.interruptible:
                if self._writing.takes_small_steps():
                    appending = self._writing.appending
                    id_ = appending.append(lane, obs, extra, reward, terminated, truncated, final_obs, next_obs)
                    if id_ < OTHERWISE:
                        others = extra, reward, terminated, truncated, final_obs, next_obs
                        id_ = appending.again(id_, appending.append, lane, obs, *others)
                    if id_ >= 0:
                        return id_
            del extra["action"]
        number = checked_lane("append", lane)
        given = GivenSteps(obs, action, reward, terminated, truncated, final_obs, next_obs, extra)
        steps = checked_steps(self.spec, None, given)
        return int(self._writing.rows(number, *steps, timeout)[0])

    def add_episode(
        self,
        *,
        lane: int = 0,
        obs: Any,
        action: Any,
        reward: npt.ArrayLike,
        terminated: bool,
        truncated: bool | None = None,
        whole: bool = False,
        timeout: float | None = None,
        **extra: Any,
    ) -> Ids:
        """Append a whole episode of T steps to one lane, which has no unfinished one.

        Args:
            obs: [T + 1, *shape], or dicts and tuples of these: the newest frame of each observation, the final one
                last.
            action, extra: [T, *shape]. ``reward``: [T].
            terminated: whether the last step terminated the episode; else it was truncated there.
            truncated: whether it was truncated there, in case both hold; default: ``not terminated``.
            whole: leave nothing of it after an error. It begins in a segment of its own if it does not fit into the
                lane's open one, so that ``drop_steps`` can remove a killed process's part of it.
            timeout: as for ``extend``, for each part of the append.

        Returns:
            int64 [T], the steps' ids.
        Raises:
            ValueError, TypeError, KeyError: an argument does not fit the spec, or the lane's episode is unfinished;
                nothing was changed.
            LimiterTimeoutError, MemoryError, OSError: as for ``extend``. Unless ``whole``, the steps appended by then
                remain, as an episode that was truncated there; a note at the error gives their number.

        Cost: a copy of the arrays, and encoding: a tenth of ``append``'s time for vectors (benchmarks/vectors.py
        --episodes).
        """
        lanes = checked_lane("add_episode", lane)
        rows, flags, final = checked_episode(self.spec, obs, action, reward, terminated, truncated, extra)
        finals = {name: np.broadcast_to(values, (len(flags), *values.shape)) for name, values in final.items()}
        over_time = {name: values[:, None] for name, values in rows.items()}
        never = np.zeros((len(flags), 1), np.bool_)
        block = StepBlock(lanes, flags[:, None], over_time, finals, None, never, one_episode=True, whole=whole)

        def check() -> None:
            number = int(lanes[0])
            if number < self._log.lanes and not self._log.opened.ended(number):
                raise ValueError(
                    f"add_episode: lane {number} has an unfinished episode; end it with break_episode({number}), or "
                    "give another lane="
                )

        ids = self._writing.block("add_episode", block, check, timeout)
        return tagged(ids[:, 0], self._step_tag)

    def add_segment(
        self,
        packed: bytes,
        dictionaries: Mapping[int, bytes],
        *,
        td_error: npt.ArrayLike | None = None,
        noticed: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Append a segment of a ``SegmentWriter``, in this process or another, without decoding it.

        The segment contains its lane and the number of its first step. A lane's segments must arrive in order; if some
        are missing, the episode is truncated there. No other steps may be appended to the lane meanwhile.

        Args:
            packed: the segment, of at most ``segment_steps`` steps. It is validated before anything is changed.
            dictionaries: the dictionaries that it refers to, by key; others are ignored.
            td_error: [steps], the steps' initial priorities, applied once they can be sampled; default: the largest
                priority so far. A checkpoint taken before that does not contain them.
            noticed: the segment's counts by its writer, which are added to ``stats()``.
            timeout: as for ``extend``.

        Raises:
            DamagedError: the segment is damaged, of another spec, or not after its lane's last step; nothing was
                changed.
            ValueError: the lane has steps appended in another way, or is that of a client of a ``StoreServer``; or an
                argument is invalid.
            LimiterTimeoutError, MemoryError, OSError: as for ``extend``.
        """
        self._add_segment(packed, dictionaries, td_error, noticed, timeout, own=True)

    def _add_segment(
        self,
        packed: bytes,
        dictionaries: Mapping[int, bytes],
        td_error: npt.ArrayLike | None,
        noticed: Sequence[int] | None,
        timeout: float | None,
        own: bool,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Append a segment of this process's ``own`` writers, or of a client of a ``StoreServer``."""
        header = segment.parse(packed, self.spec)
        steps, lane = header.steps, header.lane if own else None
        errors = None if td_error is None else checked_errors(td_error, (steps,), "add_segment").astype(np.float32)
        counts = None if noticed is None else checked_counts(noticed)
        self._writing.segment(packed, dictionaries, steps, errors, counts, timeout, lane, is_gone)

    def end_episode(self, lane: int, final_obs: Any) -> None:
        """Truncate the lane's episode after its last step.

        Args:
            final_obs: the observation after that step (one, without a leading axis).

        Raises:
            ValueError: the lane has no unfinished episode.
        """
        final = checked_final(self.spec, final_obs)
        with self._lock:
            self._log.check_writable("end_episode")
            if not is_integer(lane) or not 0 <= lane < self._log.lanes:
                raise ValueError(f"end_episode: lane {lane!r}, expected one of the {self._log.lanes} lanes written to")
            if not self._writing.end_episode(int(lane), final):
                raise ValueError(f"end_episode: the last episode of lane {lane} has ended already")

    def break_episode(self, lane: int) -> bool:
        """Break off the lane's unfinished episode, if there is one; the next step begins another.

        The last step becomes truncated, with its ``next_obs`` as the final observation. If it was appended without
        one, it cannot be learned from and is dropped: its observation becomes the previous step's final one. Its id is
        stale, and the lane's next step begins another segment.

        Returns:
            whether the lane had an unfinished episode; one without steps has none.
        Raises:
            ValueError: ``lane`` is not a lane's number.
        """
        with self._lock.interruptible:  # nothing is changed where it has none, as at most resets: 2 us less
            self._log.check_open()
            if not is_integer(lane) or lane < 0:
                raise ValueError(f"break_episode: lane {lane!r}, expected an integer of at least 0")
            if lane >= self._log.lanes or (lane not in self._writing.fed and self._log.opened.ended(lane)):
                return False
        with self._lock:
            self._log.check_writable("break_episode")
            return self._writing.end_episode(lane, None)

    def clear(self) -> None:
        """Evict every step; limits, views and annotations of the store and its lanes stay.

        Counts go on, so no id and no lane's step number is used again. A lane's next step begins an episode: reset
        environments first, or use a ``Recorder`` and call its ``reset``. With a disk the files are deleted; of files
        shared with a checkpoint only the store's names.

        Raises:
            OSError: files could not be deleted: their steps come back when the store is opened again. Call it again.

        Cost: O(steps) of removing them from the views' samplers.
        """
        with self._lock:
            self._log.check_writable("clear")
            for lane in list(self._writing.fed):
                self._writing.settle(lane)
            try:
                self._log.clear()
            finally:
                self._views.written()

    # views

    def transitions(
        self,
        *,
        name: str | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        relabel: Goals | None = None,
        where: Any = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> Transitions:
        """Make a view that samples n-step transitions. A store may have several views.

        Args:
            name: name of the view in checkpoints; default "transitions". A newer view replaces one of the same name.
            n_step: rewards summed; fewer at an episode's end.
            gamma: discount factor.
            relabel: ``Future(k=4, reward_fn=...)``, ``Final`` or ``Episode``: hindsight experience replay, for
                ``n_step=1``. Of ``k + 1`` transitions ``k`` get a goal that their episode achieved later (at its end;
                anywhere), and its reward. A step can then be sampled once its episode has ended.
            where: sample only steps for which this holds: a condition in SQL, such as ``"success and task = 'push'"``,
                or an expression of ``pyarrow.compute``, over the columns of ``table("episodes")``; if it names others
                that ``table("steps")`` has, such as ``"reward > 0"``, it is evaluated for each step, over both. A step
                can be sampled once its episode has ended: then its episode is judged, once, by what is held of it, and
                that stays when steps of it are evicted. Annotations that an episode lacks are null. It needs the extra
                ``sql``. Cost: some ms where episodes have ended since the last draw, and reading their annotations.
            sampler: ``Uniform()`` (default), ``Prioritized(...)``, ``RankPrioritized(...)``, ``Fifo()``, ``Lifo()``, a
                ``Mixture([...])`` of them, or your own (``sharpwave.sampling.sampler_protocol.Sampler``); one instance
                per view.
            max_times_sampled: limit on how often this view samples a step, also within a batch.
            limiter: rate limiter: ``MinSize``, ``SamplesPerInsert`` or ``Queue``. It makes this view's ``sample`` and
                the store's ``append`` and ``extend`` wait for each other.
            seed: seed of the view; default: derived from the store's seed and the number of views made before.

        In a store opened from a checkpoint this restores the view of that name, and ``seed`` is ignored; steps evicted
        since are missing from it, steps appended since are new. A warning names the losses if the settings differ or
        the view was restored before. Views that are not restored yet are listed in ``recovery.views`` and remain in the
        next checkpoint. A store on disk that is opened without a checkpoint restores its views likewise, without a
        warning: after a clean exit and a ``flush`` exactly, after a crash as they were some seconds before.

        Raises:
            ValueError, TypeError: an invalid argument.
        """
        condition = self._condition(where)  # first: importing DuckDB takes a second
        with self._lock:
            step = NStep(n_step, gamma) if relabel is None else Hindsight(relabel, n_step, gamma)
            name = NStep.kind if name is None else name
            return self._views.make(Transitions, step, name, sampler, max_times_sampled, limiter, seed, condition)

    def sequences(
        self,
        length: int,
        *,
        burn_in: int = 0,
        stride: int | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        eta: float = 0.9,
        name: str | None = None,
        where: Any = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> Sequences:
        """Make a view that samples windows of consecutive steps of an episode, as recurrent agents learn from.

        Windows begin with the steps whose number in their episode is a multiple of ``stride``. One can be sampled once
        the n-step returns of all its steps are known, and until a step of it is evicted, its burn-in included.

        Args:
            length: maximum number of trained steps; fewer at an episode's end.
            burn_in: number of steps before them, from which a recurrent state is computed; fewer at an episode's start.
            stride: default ``length``: windows don't overlap; at most that, so that every step is trained.
            n_step: rewards that each step's return sums, at most.
            eta: a window's priority is ``eta max |td_error| + (1 - eta) mean |td_error|`` over its trained steps
                (Kapturowski et al. 2019): ``update_priorities(ids, td_error)`` takes float [B, length], and ignores
                values beyond an episode's end.
            where: as for ``transitions``; of a condition on steps, a window's first trained step has to match.
            name: default "sequences". ``gamma`` and all else is as for ``transitions``; ``max_times_sampled=1`` with
                ``Fifo()`` makes a queue of windows.

        Batches are a ``SequenceBatch``. Where observations have a stack, each frame is in a batch
        ``stack`` times. Cost: as ``sample`` of as many frames.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        condition = self._condition(where)
        with self._lock:
            windows = Windows(length, burn_in, stride, n_step, gamma, eta)
            return self._views.make(Sequences, windows, name, sampler, max_times_sampled, limiter, seed, condition)

    def view(
        self,
        view: View[B],
        *,
        name: str | None = None,
        where: Any = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> Replay[B]:
        """Make a view of items of your own kind.

        Args:
            view: definition of the items and of their batches (``sharpwave.views.view_protocol.View``); one
                instance per call.
            name: name of the view in checkpoints; default ``view.kind``. Other arguments are as for ``transitions``.
            where: as for ``transitions``, if the view can find items of ended episodes only (``View.only_ended``).

        Raises:
            ValueError, TypeError: an invalid argument.
        """
        condition = self._condition(where)
        with self._lock:
            return self._views.make(Replay[B], view, name, sampler, max_times_sampled, limiter, seed, condition)

    def _condition(self, where: Any) -> Condition | None:
        if where is None:
            return None
        from sharpwave.data.table_conditions import TableCondition  # DuckDB and pyarrow, which few programs have

        return TableCondition(where, self.spec, self._log.late.columns)

    # steps and episodes

    def ids(self, lanes: npt.ArrayLike, steps: npt.ArrayLike, *, missing: Missing = "raise") -> Ids:
        """Find the ids of steps by lane and number, such as ``batch.lane`` and ``batch.step``.

        Args:
            lanes, steps: integers [n], or one for all: the lane, and the step's number in it, counted from 0 over all
                its episodes (``lane_steps`` is the next one's).
            missing: "raise", or "mask": the id of a step that is not held is -1.

        Returns int64 [n]. Cost: sorting the segments held, and a search among them for each.

        Raises:
            KeyError: a step that was evicted, or not appended yet.
            ValueError, TypeError: an invalid argument.
        """
        check_missing("ids", missing)
        where = checked_places(lanes, steps)
        with self._lock:
            self._log.check_open()
            found = self._log.index.find(*where)
            found[self._log.late.is_deleted(np.maximum(found, 0) & LEAF_MASK) & (found >= 0)] = -1
        gone = np.flatnonzero(found < 0)
        if gone.size and missing == "raise":
            lane, step = where[0][gone[0]], where[1][gone[0]]
            raise KeyError(f"ids: step {step} of lane {lane} was evicted, or not appended yet; {gone.size} are missing")
        return tagged(found, self._step_tag)

    def fetch(self, ids: npt.ArrayLike | Batch, *, fields: Sequence[str] | None = None) -> Batch:
        """Return the steps ``ids`` [n], the newest ones included, as they are stored, without next observations.

        The batch is as of transitions of one step with ``gamma=1``, but has no ``next_obs``: so half as many
        observations are decoded as by ``transitions().fetch``. ``weights`` and ``probabilities`` are 1 and NaN.

        Args:
            ids: of steps: ``batch.ids`` of transitions, ``episode.ids``, ``Store.ids``.
            fields: names of the fields that the batch has, which alone are read and decoded, as for ``sample``.

        Raises:
            KeyError: a step that was evicted or deleted.  ValueError: ids of another store, or of windows.
            DamagedError: a segment cannot be read.  MemoryError: ``ram`` has no room for the batch.
        """
        checked = checked_ids("fetch", ids, self._step_tag)
        with self._lock:
            self._log.check_open()
            spec = self._log.late.spec
            names = None if fields is None else flat_names(fields, spec, spec.fields, after=False)
            return self._steps.fetch(checked, names)

    def episodes(self, *, order: Order = "oldest", lanes: Any = None, where: Any = None) -> Episodes:
        """Find the episodes with held steps, including unfinished ones.

        Args:
            order: "return" (the highest first), "length" (the longest first), "newest" (the fewest steps of its lane
                since its last one first) or "oldest".
            lanes: number of a lane, or several; default all.
            where: only episodes for which this holds: a condition in SQL such as ``"length > 10 and task = 'push'"``,
                evaluated by DuckDB, or an expression of ``pyarrow.compute``, over the columns of ``table("episodes")``.

        Returns:
            a sequence of ``StoredEpisode``, as of the time of the call. Finding them reads flags and rewards, which are
            always in memory; observations and fields are decoded on access.
        Raises:
            ValueError, TypeError: an invalid argument.  ModuleNotFoundError: ``where`` needs the extra ``sql``.

        Cost: some 12 us a segment held, under the store's lock; a condition that names
        annotations also reads these: some 8 us an episode, and from disk each segment's head.
        """
        checked = checked_order(order)
        with self._lock:
            self._log.check_open()
            found = find(self._log, checked_lanes(lanes, self._log.lanes))
            found = found.some(places_in(checked, found, ages(found, self._log.opened.steps)))
        reader = EpisodeReader(self._log, self._lock, self._life)
        if where is not None:
            from sharpwave.data.tables import matching  # pyarrow, which few programs have

            found = found.some(matching(found, reader, where))
        return Episodes(found, reader)

    def table(self, kind: str, *, fields: Sequence[str] | None = None, lanes: Any = None) -> RecordBatchReader:
        """Read the store as a table, which DuckDB, Polars and pandas take as it is.

        Args:
            kind: "episodes": a row an episode, with its lane, first and last step, length, return, whether its first
                step is held (``begun``), how it ended, the first step's id, and its annotations, one column a key; a
                key with values that are no strings, numbers or bools, or of several types, as JSON.
                "steps": a row a step, with its lane, its episode's first step, its own number and id, whether it begins
                an episode (``first``), reward, terminated and truncated, and the fields. A field with axes is a column
                of flat lists; its shape is in the column's metadata. One of any length is a column of lists, strings or
                bytes.
            fields: names of the fields, or of the columns of episodes; default all.
            lanes: as for ``episodes``.

        Returns:
            a ``pyarrow.RecordBatchReader``, which is read once. Steps are decoded batch by batch as they are read;
            those evicted by then are left out.
        Raises:
            ValueError, TypeError: an invalid argument.  ModuleNotFoundError: the extra ``sql`` is not installed.

        Cost: an episode's annotations some 8 us, and from disk each segment's head; a step, the decoding
        of its fields.
        """
        from sharpwave.data.tables import episode_table, known_names, step_reader

        if kind not in ("episodes", "steps"):
            raise ValueError(f"table: kind={kind!r}, expected 'episodes' or 'steps'")
        with self._lock:
            self._log.check_open()
            found = find(self._log, checked_lanes(lanes, self._log.lanes))
        reader = EpisodeReader(self._log, self._lock, self._life)
        if kind == "steps":
            return step_reader(found, reader, known_names(fields, [*self.spec.fields, *self.columns], "field"))
        episodes = episode_table(found, reader)
        return episodes.select(known_names(fields, episodes.column_names, "column")).to_reader()

    def export(
        self,
        target: str,
        *,
        order: Order = "oldest",
        lanes: Any = None,
        progress: bool | Callable[[int, int], None] | None = None,
    ) -> int:
        """Write the whole episodes as a data set; episodes without their first or last step are left out.

        Args:
            target: format and place: ``"minari:NAME"`` (a new local data set), ``"npz:FILE"`` and ``"hdf5:FILE"`` (the
                D4RL layout, with ``next_observations``), ``"parquet:FILE"`` (a row a step, and one for the final
                observation). No existing file is overwritten, and the name appears only once the file is complete.
            order, lanes: as for ``episodes``.
            progress: show progress; default: in a terminal, if rich is installed. A function receives steps done and in
                total.

        Returns:
            number of written episodes.
        Raises:
            FileExistsError: the name exists already.
            ValueError: an unknown format, or there are no whole episodes.
            KeyError: an episode was evicted meanwhile.
            ModuleNotFoundError, OSError: naming the missing module or the failure. Then nothing was written.

        Cost: an episode is in memory at a time.
        """
        from sharpwave.data.exporting import export  # formats of data sets, which few programs write

        return export(self, target, order, lanes, progress)

    def drop_steps(self, lane: int, first: int, end: int) -> int:
        """Evict the lane's steps ``first`` to ``end - 1``: an episode that is not whole.

        They are in segments of their own, as by ``add_episode(whole=True)``. If the lane's last step is among them, its
        next begins an episode; step numbers go on.

        Returns:
            number of these steps that were held.
        Raises:
            ValueError: an invalid argument, or other steps share a segment with these; nothing was changed.
            OSError: the disk is full or fails; the steps may be back when the store is opened after a crash.
        """
        number = int(checked_lane("drop_steps", lane)[0])
        if not all(is_integer(one) for one in (first, end)):
            raise ValueError(
                f"drop_steps: first={first!r}, end={end!r}, expected integers: numbers of the lane's steps"
            )
        with self._lock:
            self._log.check_writable("drop_steps")
            if number >= self._log.lanes:
                raise ValueError(f"drop_steps: lane {lane}, expected one of the {self._log.lanes} lanes written to")
            try:
                return drop_steps(self._log, number, int(first), int(end))
            finally:
                self._views.written()

    def delete(self, *, where: Any = None, episodes: Any = None) -> int:
        """Delete episodes, as far as they are held: nothing shows or samples their steps any more, as if evicted.

        With a disk this is durable: it flushes the store, and writes the deletion down before it counts. A crash leaves
        all of it or nothing, and so may an OSError. Versions and checkpoints made before still have the steps. Segments
        all of whose steps are deleted are freed at once, if they are sealed; others keep the deleted steps, which count
        towards the limits, until they are evicted. Waits for a checkpoint that is being written.

        Args:
            where: condition on episodes, as for ``episodes``; those that have not ended are left out. Or:
            episodes: one of ``episodes()``, or several. Those evicted or deleted meanwhile are passed over.

        Returns:
            number of steps deleted.
        Raises:
            ValueError, TypeError: an invalid argument, an unfinished episode, or a store that must not change;
                nothing was changed.  OSError: the disk is full or fails.  MemoryError: nothing was changed.

        Cost: by ``episodes=`` the steps of their segments, and these segments' items for each view; by ``where=`` all
        steps. With a disk a flush, and a file of a bit a step held.
        """
        return self._delete(self._chosen(where, episodes), given=episodes is not None)

    def _chosen(self, where: Any, episodes: Any) -> Table:
        """Return the episodes to delete.  Raises: as ``delete``."""
        if (where is None) == (episodes is None):
            raise TypeError("delete: expected either where= or episodes=")
        with self._lock:
            self._log.check_writable("delete")
        if where is None:
            return self._given(episodes)
        from sharpwave.data.tables import matching  # pyarrow, which few programs have

        with self._lock:
            table = find(self._log, range(self._log.lanes))
            table = table.some(~unfinished(self._log, table, self._writing.fed))
        return table.some(matching(table, EpisodeReader(self._log, self._lock, self._life), where))

    def _ended(self, chosen: Table, given: bool) -> Table:
        """Return the episodes among those ``chosen`` that are held and have ended. The lock is held.

        Raises: ValueError: one that was ``given`` has not ended.
        """
        table = find_again(self._log, chosen)
        running = unfinished(self._log, table, self._writing.fed)
        there = within(table, chosen)
        if given and (there & running).any():
            lane = int(table.lane[there & running][0])
            raise ValueError(f"delete: the episode of lane {lane} has not ended; end_episode({lane}) or wait")
        return table.some(there & ~running)

    def _delete(self, chosen: Table, given: bool) -> int:
        with self._log.saving, self._lock:  # a checkpoint that has the deletion also requires readers that know it
            self._log.check_writable("delete")
            reader = EpisodeReader(self._log, self._lock, self._life)
            return self._delete_steps(step_ids(reader, self._ended(chosen, given)))

    def _delete_steps(self, ids: Ints) -> int:
        """Delete steps, as far as they are held; return how many. The lock and ``saving`` are held."""
        try:
            return delete(self._log, ids, self._require_deleted)
        finally:
            self._views.follow()
            free_deleted(self._log)
            self._gate.notify()

    def _given(self, episodes: Any) -> Table:
        """Check the episodes to delete.  Raises: TypeError, ValueError."""
        parts = list[tuple[int, int, int, int]]()
        for one in given_episodes(episodes):
            if not isinstance(one._reader, EpisodeReader) or one._reader.log is not self._log:
                raise ValueError(f"delete: {one!r:.200} is of another store, or of this one before it was opened again")
            parts.append((one.lane, one.first_step, one.length, one._first_id))
        lane, first, length, id_ = np.array(parts, np.int64).reshape(-1, 4).T
        none = np.zeros(len(parts))
        return Table(lane, first, length, none, none.astype(np.uint8), none.astype(np.bool_), id_)

    def _require_deleted(self) -> None:
        disk, writer = self._log.disk, self._log.late.writer
        assert disk is not None
        assert writer is not None
        said = requiring(disk.described, DELETED_STEPS)
        if said != disk.described:
            writer.write_deleted()  # first: where store.json names deleted steps, their file is there, or was lost
            disk.describe(said)

    # columns added later

    @property
    def columns(self) -> dict[str, Field]:
        """Columns added by ``add_column`` and ``derive``, by name."""
        with self._lock:
            return {name: column.field for name, column in self._log.late.columns.items()}

    def add_column(self, name: str, field: Field) -> None:
        """Add a column for values that come after their steps: returns, advantages, rewards or labels by a model.

        Batches of all views, also of views in use, have it from now on: ``batch["NAME"]`` as a field of the spec,
        zeros where no value was written, and ``batch.mask_of("NAME")``. So have episodes, and ``table("steps")``.
        Steps, their files and ids stay as they are. A value is dropped with its step. Checkpoints contain the columns,
        and ``flush`` makes them durable. All of a column is in memory: its values and a byte for each step.

        Args:
            name: without a dot, and not that of a field.
            field: shape and dtype of a step's value, without ``stack=``, ``every=`` and ``codec=``.

        Raises:
            ValueError, TypeError: an invalid argument.  MemoryError. Then nothing was changed.
        """
        with self._lock:
            self._log.check_writable("add_column")
            self._log.late.check_new("add_column", name, field)
            self._log.late.add(name, field)
            self._views.take_columns()
            self._log.admission.fit_memory()

    def drop_column(self, name: str) -> None:
        """Drop a column added later, with its values; ``flush`` deletes its files.  Raises: ValueError."""
        with self._lock:
            self._log.check_writable("drop_column")
            self._log.late.column("drop_column", name)
            self._log.late.drop(name)
            self._views.take_columns()

    def write_column(self, name: str, ids: npt.ArrayLike | SequenceBatch, values: npt.ArrayLike) -> int:
        """Write values of steps into a column added later, over earlier ones.

        Args:
            ids: int64 [n], ids of steps: ``batch.ids`` of transitions, ``episode.ids``, ``Store.ids``. Or a batch of
                sequences, whose real steps are meant (where ``batch.mask``). Evicted steps are skipped. Of a blend's
                batch, pass ``batch.ids[batch.source == k]`` of this store's view ``k``: a blend's ids do not tell
                their stores apart, and those of others name other steps here.
            values: [n, *shape], an array or a tensor; of sequences [B, T, *shape], or of their trained steps alone
                [B, length, *shape]. Of repeated steps the last one's counts.

        Returns:
            number of ids, or steps of windows, whose steps are held.
        Raises:
            ValueError, TypeError: no such column, ids of another store or of windows, or values that do not fit;
                nothing was changed.

        Cost: 40 ns a value of many (benchmarks/columns.py).
        """
        with self._lock:
            self._log.check_writable("write_column")
            column = self._log.late.column("write_column", name)
            given = without_gradient(values) if hasattr(values, "detach") else values
            if isinstance(ids, SequenceBatch):
                check_tag("write_column", ids.ids, Tag(self._log.tag, getattr(tag_of(ids.ids), "space", STEPS)))
                lanes, steps, rows, _ = window_values(name, column.field, ids, given)
                numbers = np.asarray(self.ids(lanes, steps, missing="mask"))
            else:
                numbers = checked_ids("write_column", ids, self._step_tag)
                rows = column.field.rows(name, given, len(numbers))
            items, there = self._log.late.held(numbers)
            self._log.late.write(name, items[there], rows[there])
            return int(np.count_nonzero(there))

    def read_column(self, name: str, ids: npt.ArrayLike) -> tuple[npt.NDArray[Any], Bools]:
        """Return a column's values of the steps ``ids`` [n], [n, *shape], and of which there are any: bool [n].

        Values that were not written, or of evicted steps, are 0.  Raises: ValueError: as for ``write_column``.
        """
        with self._lock:
            self._log.check_open()
            column = self._log.late.column("read_column", name)
            numbers = checked_ids("read_column", ids, self._step_tag)
            items, there = self._log.late.held(numbers)
            there &= column.written[items]
            values = column.values[items]
            values[~there] = 0
            return values, there

    def derive(
        self,
        name: str,
        function: Callable[..., npt.ArrayLike],
        needs: Sequence[str] | None = None,
        *,
        field: Field | None = None,
        by: str = "episode",
        again: bool = False,
        unfinished: bool = False,
        where: Any = None,
        progress: bool | Callable[[int, int], None] | None = None,
    ) -> int:
        """Compute a column from others, episode by episode: returns to go, advantages, rewards of a model.

        Episodes that have all their values already are skipped: so a call that was interrupted goes on where it was,
        and one after new steps computes theirs. With a disk, values are flushed every half minute and at the end.

        Args:
            name: of the column, which is added if there is none.
            function: called with the arrays ``needs`` of an episode, or with the episode (``Store.episodes``);
                returns its values [T, *shape].
            needs: names of fields and columns, each [T, *shape]. "obs", "action", "reward", "terminated" and
                "truncated" are as an episode has them, ``obs`` with the final observation where it has ended.
            field: of a column that is added; default: as the first values are, floats as float32.
            by: "episode"; or "step": the function gets parts of an episode, up to 4,096 steps, and ``obs`` without
                the final one.
            again: compute all values anew.
            unfinished: also of episodes that have not ended, or whose beginning was evicted.
            where: condition on episodes, as for ``episodes``.
            progress: as for ``export``.

        Returns:
            number of steps whose values were computed.
        Raises:
            ValueError, TypeError: an invalid argument, or the values do not fit; and errors of ``function``. Episodes
                before have their values.
        """
        from sharpwave.data.derived import StoreColumns, derive  # which few programs use

        return derive(StoreColumns(self), name, function, needs, field, by, again, unfinished, where, progress)

    # annotations

    def annotate(self, lane: int | None, values: Mapping[str, Any], *, episode: bool = False) -> None:
        """Annotate a lane, its episode or the store, with an environment's id, a seed, a policy's version.

        Annotations are stored with the steps, in memory, on disk and in checkpoints; ``flush`` makes them durable.
        ``sharpwave inspect`` shows them.

        Args:
            lane: number of the lane; ``None``: annotate the store.
            values: strings, numbers, booleans, bytes, and lists and dicts of these. They are merged into earlier
                annotations: a key replaces its earlier value, and ``None`` removes it.
            episode: annotate the lane's unfinished episode, or else its next one. Segments that are sealed from now on
                carry the annotations: where no step follows and all earlier ones are sealed, ``close`` loses them.

        Raises:
            TypeError, ValueError: invalid values, a lane of a client of a ``StoreServer``, or more than 4 KiB for an
                episode or 512 KiB for the store and its lanes, as JSON; nothing was changed.
        """
        with self._lock:
            self._log.check_writable("annotate")
            self._check_annotated("annotate", lane, episode)
            if lane is not None:
                self._writing.check_own("annotate", np.array([lane]))
            if not episode:
                self._log.annotations.update(None if lane is None else int(lane), values)
                return
            assert lane is not None
            if lane in self._writing.fed:
                raise ValueError(
                    f"annotate: the episodes of lane {lane} come in segments; annotate them in the SegmentWriter"
                )
            self._log.open_lanes(int(lane) + 1)
            self._log.inventory.changes += 1
            self._log.opened.annotations.update(int(lane), self._log.opened.running_episode(int(lane)), values)

    def annotations(self, lane: int | None = None, *, episode: bool = False) -> dict[str, Any]:
        """Return the annotations of a lane, of its episode or (by default) of the store."""
        with self._lock:
            self._log.check_open()
            self._check_annotated("annotations", lane, episode)
            if not episode:
                found = self._log.annotations.of(lane)
            elif lane is not None and lane < self._log.lanes:
                found = self._log.opened.annotations.of(lane, self._log.opened.running_episode(lane))
            else:
                found = {}
            decoded: dict[str, Any] = decode(found)
            return decoded

    def annotations_of(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """Return the annotations of each item's episode, by ids such as ``batch.ids``; reads segments from disk.

        A segment contains the annotations that were made before it was sealed. Plain numbers, as ``np.asarray(ids)``
        and tensors have them, are taken for ids of steps.

        Raises:
            KeyError: a step was evicted.
            ValueError: ids of another store, or of windows of a view that was freed.
            DamagedError: a segment cannot be read.
        """
        with self._lock:
            self._log.check_open()
            steps = self._views.step_ids("annotations_of", ids)
            return [decode(values) for values in self._log.annotations_of(steps.tolist())]

    def _check_annotated(self, what: str, lane: Any, episode: bool) -> None:
        if lane is None and episode:
            raise ValueError(f"{what}: episode=True, expected the number of the episode's lane")
        lane_limit = max_lanes(self._log.admission.capacity)
        if lane is not None and not (is_integer(lane) and 0 <= lane < lane_limit):
            raise ValueError(f"{what}: lane {lane!r}, expected None or an integer from 0 to {lane_limit - 1}")

    # durability

    def flush(self, *, views: bool = True) -> None:
        """Write all appended steps to disk, including open segments, and views' states, and sync.

        Without a disk: do nothing.

        Args:
            views: write views' states: 8 bytes for each of their items. Otherwise they are some seconds old after a
                crash.

        ``close`` does the same. Without either, a crash loses the steps that were not sealed yet (at most
        ``segment_steps`` per lane), a power failure also the writes of the last 30 seconds or so.

        Raises:
            OSError: the disk is full or fails; steps flushed before are safe.
        """
        with self._lock:
            self._log.check_open()
            flush(self._log, views=views)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint to a folder, or atomically replace the one in it; or to a single file.

        It holds every step with its id, open segments included, and every view's priorities, uses, random state and
        prefetched batches. ``open`` restores the store: the same calls give the same batches. Writers and samplers
        may continue meanwhile; their later calls are not part of the checkpoint.

        With a disk nothing is copied: region files get hard links in the checkpoint (which should be on the same file
        system), and take space until both names are deleted. Without a disk, all steps are written.

        Args:
            path: path of the folder. A name that ends in ".sharpwave" means a single file, to be moved and shared; it
                is packed from a folder beside it, and so takes the space twice while it is written.

        Raises:
            OSError: the disk is full or fails; an earlier checkpoint there is unchanged.
            FileExistsError: the folder holds a store that is not a checkpoint, or the file is no checkpoint.
            StoreInUseError: another process has locked the folder.
        """
        folder = checked_folder("checkpoint", path)
        with self._log.saving:  # one checkpoint at a time
            views = self._views
            with self._lock:
                manifest = self._manifest()

            def save_to(target: Path, then: Callable[[Directory], None] = lambda folder: None) -> None:
                save(target, self._log, self._lock, self._gate.notify, manifest, views.states, Files(), then)

            if is_file_name(folder):
                save_file(folder, save_to, Files())
            else:
                save_to(folder)

    # versions

    def snapshot(self, name: str, note: Mapping[str, Any] | None = None) -> Version:
        """Give the store as it is now a name, under which it can be read for good: a version.

        A version is a checkpoint in the folder ``versions`` of the store's: its files are links to the store's, so no
        bytes are copied, and they take space until no store and no version has them. It has the columns added later
        and the views, too.

        Args:
            name: letters, digits, dots, dashes and underscores.
            note: what to remember of it (who made it, from which source, what was left out): as for ``annotate``.

        Raises:
            FileExistsError: there is a version of this name: versions never change.
            ValueError, TypeError: an invalid argument, or the store is in memory.  OSError: the disk is full or fails.
        """
        folder = self._versions_folder("snapshot")
        about = begun(checked_version("snapshot", name), self._log.parent, note)
        with self._log.saving:  # one at a time: a name is taken by one of them
            place = place_of(folder, name)
            with self._lock:
                self._log.check_writable("snapshot")
                manifest = self._manifest() | {"version": about}

            def views() -> dict[str, Any]:  # called under the lock, when steps are counted
                about.update(steps=self._log.steps, columns=list(self._log.late.columns))
                return self._views.states()

            save(place, self._log, self._lock, self._gate.notify, manifest, views, Files())
            with self._lock:
                self._log.parent = {"store": manifest["store"], "version": name}
                if self._log.disk is not None:
                    self._log.disk.describe(self._manifest())
        return read_version(folder, name)

    def versions(self) -> list[Version]:
        """Return the store's versions, the oldest first.  Raises: ValueError: the store is in memory."""
        return versions_in(self._versions_folder("versions"))

    def delete_version(self, name: str) -> None:
        """Delete a version; space that no store and no other version needs is free then.

        Raises: FileNotFoundError: there is none.  StoreInUseError: it is being opened.  OSError.
        """
        remove(self._versions_folder("delete_version"), checked_version("delete_version", name), Files())

    def branch(self, path: str | os.PathLike[str], version: str | None = None, **limits: Any) -> Self:
        """Make a store in a new folder from a version, or from this store as it is, and open it.

        It shares the files that both have (by links, within a file system), and goes on by itself.

        Args:
            path: a new or empty folder. ``version``: name of the version; ``None``: as it is now.
            limits: arguments of ``open``; default: this store's.

        Raises: as ``open`` and ``checkpoint``.
        """
        folder, target = self._versions_folder("branch"), checked_folder("branch", path)
        if is_file_name(target) or (target.exists() and any(target.iterdir())):
            raise FileExistsError(f"branch: {target}, expected a new or empty folder")
        if version is None:
            self.checkpoint(target)
            return type(self).open(target, **limits)
        place = read_version(folder, checked_version("branch", version)).folder
        return type(self).open(place, disk=target, **limits)

    def _versions_folder(self, what: str) -> Path:
        with self._lock:
            self._log.check_open()
            if self._log.disk is None:
                raise ValueError(f"{what}: the store is in memory, expected one on disk; checkpoint(PATH) saves it")
            return self._log.disk.folder if not self._log.frozen else self._log.disk.folder.parent.parent

    def resize(
        self,
        *,
        capacity: int | EllipsisType | None = ...,
        ram: int | str | EllipsisType | None = ...,
        disk_limit: int | str | EllipsisType | None = ...,
    ) -> None:
        """Change limits while the store is in use; ``None`` removes one, omitted ones are unchanged.

        Segments beyond the new limits are evicted at once; beyond ``ram`` with a disk they are uncached. Ids,
        priorities and random states are unchanged. Growing beyond the initial limits moves the memory; with a disk it
        is read again.

        Raises:
            ValueError: an invalid argument; nothing was changed.
            MemoryError: no address space; nothing was changed.
            OSError: the limits could not be written to the folder: they hold until the store is closed, and the next
                opening has the earlier ones. Call it again.
        """
        with self._lock:
            self._log.check_writable("resize")
            now = {"capacity": capacity, "ram": ram, "disk_limit": disk_limit}
            now = {name: getattr(self, name) if value is ... else value for name, value in now.items()}
            settings = self._settings.limited(**now)
            self._views.check_capacity(settings.capacity)
            self._log.resize(settings.capacity, settings.ram, settings.disk_limit, self._views.batch_bytes)
            self._settings = settings
            self._life.keep(self)
            self._log.keep_limits()
            if self._log.disk is not None:
                self._log.disk.describe(self._manifest())
            self._gate.notify()

    def _manifest(self) -> dict[str, Any]:
        parent = {} if self._log.parent is None else {"parent": self._log.parent}
        said = self._settings.manifest() | self._log.identity | self._log.annotations.manifest() | parent
        described = {} if self._log.disk is None else self._log.disk.described
        any_deleted = self._log.late.deletions or DELETED_STEPS in described.get("requires", [])
        return requiring(said, DELETED_STEPS) if any_deleted else said

    def close(self) -> None:
        """Flush (see ``flush``), unlock the folder, and refuse further writing and sampling. A ``StoreServer`` is
        closed before.

        Memory is freed with the last reference to the store and its views. A store is also closed at the end of its
        ``with`` block, when it is garbage-collected, and when the interpreter exits; a write that fails in the latter
        two cases is reported by a RuntimeWarning.

        Raises:
            OSError: the disk is full or fails. The folder is unlocked; steps not flushed before are lost.
        """
        for server in list(self._servers):
            server.close()
        with self._lock.unsettled:
            try:
                with suppress(MemoryError):  # for a segment that is being encoded: nobody reads it any more
                    self._log.sealing.settle()
                self._lock.settle = lambda: None
                close(self._log)
            finally:
                self._life.over()
                self._gate.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, passing: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except OSError as error:
            if passing is None:
                raise
            passing.add_note(str(error))

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self)

    def _repr_html_(self) -> str:
        found = self.stats()
        parts, ram = found["bytes"], self.ram
        rows = [
            ("steps", f"{found['steps']:,} of {self.capacity:,}" if self.capacity else f"{found['steps']:,}"),
            ("lanes, segments", f"{found['lanes']:,}, {found['segments']:,}"),
            ("bytes a step", f"{found['encoded_bytes_per_step']:,.1f} encoded, {found['raw_bytes_per_step']:,} before"),
            ("memory", byte_text(found["total_bytes"]) + (f" of {byte_text(ram)}" if ram else "")),
        ]
        if "disk" in found:
            limit = f" of {byte_text(self.disk_limit)}" if self.disk_limit else ""
            rows.append(("disk", byte_text(found["disk"]["bytes"]) + limit))
        codecs = {name: [f"{codec} {count:,}" for codec, count in by.items()] for name, by in found["codecs"].items()}
        fields = [
            (name, f"{field.dtype} {list(field.shape)}", field.stack or "", ", ".join(codecs[name]))
            for name, field in self.spec.fields.items()
        ]
        columns = table(("field", "a step", "stack", "segments by codec"), fields)
        return titled(f"Store of {len(self):,} steps", table(("", ""), rows), bar(parts, ram), columns)

    def __repr__(self) -> str:
        limits = f"capacity={self.capacity}, ram={self.ram}"
        return f"<Store {len(self):,} steps in {self.lanes} lanes, {limits}, fields {list(self.spec.fields)}>"
