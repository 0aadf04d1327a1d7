"""Store: the log of steps that learners sample from."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import EllipsisType
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from sharpwave.disk.view_files import ViewFiles
from sharpwave.errors import not_to_be_copied
from sharpwave.log.appending import Appending
from sharpwave.log.remote_segments import settle
from sharpwave.native.directory import Directory
from sharpwave.native.files import Files
from sharpwave.native.interrupts import Lock
from sharpwave.persistence.checkpoint import save
from sharpwave.persistence.checkpoint_file import folder_to_open, is_file_name, save_file
from sharpwave.persistence.forks import watch
from sharpwave.persistence.lifetime import Life, close, flush
from sharpwave.persistence.open_stores import check_same, open_here, remember, was_left_in
from sharpwave.persistence.opening import NO_STATE, Left, begin
from sharpwave.persistence.settings import Settings
from sharpwave.sampling.limiters import Gate
from sharpwave.sampling.ordered import Fifo
from sharpwave.sampling.retention import LowestPriority, Reservoir
from sharpwave.spec import Spec
from sharpwave.store_annotations import StoreAnnotations
from sharpwave.store_episodes import StoreEpisodes
from sharpwave.store_stats import account
from sharpwave.store_views import StoreViews
from sharpwave.store_writing import StoreWriting
from sharpwave.validation import check_flag, checked_folder
from sharpwave.views.ids import Ids, Tag
from sharpwave.views.registry import Views
from sharpwave.views.view import STEPS


class Store(StoreWriting, StoreAnnotations, StoreViews, StoreEpisodes):
    """Compressed replay memory: steps are encoded once, when appended; batches are decoded when sampled.

    Args:
        spec: schema of a step.
        capacity: limit in steps; and/or
        ram: limit in bytes of RAM for everything (encoded steps, open segments, index, samplers, batches): a number, or
            "512MiB". A full store evicts segments. Batches that the caller holds count, up to half of ``ram``; a batch
            that does not fit raises MemoryError, and no step is evicted for it. Room for 2,048 transitions (at most
            that half) is reserved for batches; larger ones take, and keep, memory that steps do not use yet. With a
            disk nothing is reserved: segments are uncached to make room for batches.
        disk: a new or empty folder, to which every sealed segment is written; ``ram`` then bounds the cache. Needs
            ``capacity`` or ``disk_limit``.
        disk_limit: limit in bytes of the files in that folder: a number, or "50GiB".
        on_full: behaviour of an append when the disk is full or fails: "raise" an OSError and leave the store
            unchanged; "block" for up to 60 s, then raise; "drop_oldest", evict steps until a full disk has room;
            "drop_newest", drop the segment that could not be written. ``stats()`` counts failures and dropped steps.
        codec: "auto" (measured on the data) or the name of a codec; or a dict of those by field name, in which absent
            fields have "auto". ``Field(codec=)`` takes precedence.
        retention: policy that chooses which segments a full store evicts: ``Fifo()`` (the oldest; default),
            ``Reservoir()`` or ``LowestPriority()``.
        seed: seed of sampling: the same calls give the same batches.
        segment_steps: steps in a segment, the unit of encoding, reading and eviction. Default 128, with a disk or for
            steps of 4 KiB and more 64; less if the capacity or ``ram`` is small.
        strict: refuse steps that never happened, with a ValueError, where a lane shows several: resets taken for steps,
            final observations that are the next episode's, ``next_obs`` that never lead on, or all but do. Else each
            lane warns once (``stats()["repeated_finals"]``, ``["unchained_steps"]``, ``["rounded_breaks"]``). Not kept
            on disk.
        exist_ok: go on with the store that is in ``disk`` already. One that is open in this process is returned itself,
            so that a notebook's cell may run again; one that was closed, or whose process ended, is opened, as by
            ``open``, with the limits that are given here; where there is none it is made.

    All methods may be called from several threads. In a forked process a store in memory is a copy, whose views draw
    as learners of their own, and others in each fork; a store on disk remains the parent's.

    Raises:
        ValueError, TypeError: an invalid argument; or, with ``exist_ok``, the store there has other settings: a spec,
            ``codec``, ``retention`` or ``segment_steps``, and of one that is open also limits, ``on_full`` or ``seed``.
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
        """Set up the store, empty or with the contents that another process ``left``."""
        self.spec, self._settings = settings.spec, settings
        self._lock = Lock()
        self._gate = Gate(self._lock)
        self._log, self.recovery, states = begin(settings, folder, left, Files())
        self._life = Life(self._log, self._lock)
        watch(self._log, self._lock)
        if self._log.behind is not None:
            self._lock.settle = weakref.WeakMethod(self._log.behind.settle)
        self._views = Views(self._log, self._lock, self._gate, settings.seed, self._life)
        self._fed = set()
        self._step_tag = Tag(self._log.tag, STEPS)
        self._appending = Appending(self._log, self._lock, Ids, self._step_tag)
        if left is None or not left.writers_go_on:
            settle(self._log)
        else:
            self._fed.update(range(self._log.lanes))
        for number, state in states.items():
            try:
                self._views.restore(number, state)
            except NO_STATE as error:
                assert self.recovery is not None
                self.recovery.damages.append(f"view {number}: {error!r}; it starts without its checkpoint")
        if self._log.disk is not None:
            damages = [] if self.recovery is None else self.recovery.damages
            self._views.keep_in(ViewFiles(self._log.disk), damages, left is not None and left.checkpoint > 0)
        if self.recovery is not None:
            self.recovery.views = self._views.unclaimed
        if folder is not None:
            self._life.keep(self)
            remember(folder, self._life)
        # Files that a closed store left within its limit may have grown by what opening wrote: appending makes room.
        same_files = left is not None and left.manifest.get("disk_limit") == settings.disk_limit
        self._log.keep_limits(files=not same_files)
        if self._log.disk is not None and left is not None and not settings.manifest().items() <= left.manifest.items():
            self._log.disk.describe(self._manifest())  # what was given now are the next life's previous values

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

    # accounting

    def __len__(self) -> int:
        """Return the number of steps held, including those in open segments."""
        return self._log.inventory.held_steps

    @property
    def lanes(self) -> int:
        """Number of lanes written to so far."""
        return self._log.lanes

    @property
    def lane_steps(self) -> npt.NDArray[np.int64]:
        """Number of each lane's next step, counted from 0; int64 [lanes]."""
        with self._lock:
            return self._log.opened.steps.copy()

    @property
    def total_steps(self) -> int:
        """Number of steps ever appended, those evicted since included; also those that ``break_episode`` dropped, until
        the store is opened again."""
        return self._log.inventory.total_steps

    def stats(self) -> dict[str, Any]:
        """Return the store's contents and costs, with every byte accounted for.

        ``steps``, ``total_steps``, ``evicted_steps``, ``evicted_segments``, ``segments``, ``lanes``;
        ``broken_episodes``: found by ``next_obs`` since the store was opened, ``unchained_steps``, those of one step,
        and ``rounded_breaks``, those by rounding only; ``repeated_finals``: steps, since then, that look like resets or
        follow a final observation that is the next episode's; ``dropped_resets``: rows, since then, in which an
        environment only reset, and that a ``Recorder`` or a drop-in passed over; ``bytes`` by use: ``arena_used``
        (sealed segments), ``arena_free``, ``open_segments``, ``index``, ``dictionaries``, ``encoders``, ``samplers``,
        ``batches`` (held, and free for the next), ``checkpoint`` (copies while one is written, 12 MiB at most, and
        while views are written to the store's folder; not counted in ``ram``); ``total_bytes``, their sum: the growth
        of the process; ``held_batch_bytes``: batches that the caller holds; ``encoded_bytes_per_step``: of sealed
        segments, 0 before the first; ``fixed_bytes``: buffers whose size steps do not change (all but ``arena_used``,
        ``index`` and ``samplers``); ``bytes_per_step``: all bytes by all steps; ``raw_bytes_per_step``: before
        encoding; ``append_waits``, ``append_wait_s``, ``sample_waits``, ``sample_wait_s``: on rate limiters;
        ``codecs``: columns by field and codec; ``damaged``: messages about segments that could not be read or decoded.
        With a disk ``disk``: ``bytes`` of files, ``resident_segments`` (cached), ``hits`` and ``misses`` of sampled
        segments, ``bytes_read``, ``joined`` (reads merged with an adjacent one), ``stalls`` and ``waited_s`` (sampling
        that waited for reads), ``bytes_written``, ``failures`` of writes, ``dropped_steps`` (on_full=), ``damaged``.
        """
        with self._lock:
            return account(self._log, self._gate)

    def flush(self, *, views: bool = True) -> None:
        """Write all appended steps to disk, open segments included, and what views remember, and sync.

        Without a disk: do nothing.

        Args:
            views: write what views remember: 8 bytes for each of their items. Else that is some seconds old after a
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
            path: of the folder. A name that ends in ".sharpwave" is that of a single file, to be moved and shared; it
                is packed from a folder beside it, and so takes the space twice while it is written.

        Raises:
            OSError: the disk is full or fails; an earlier checkpoint there is unchanged.
            FileExistsError: the folder holds a store that is not a checkpoint, or the file is none.
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

    def clear(self) -> None:
        """Evict every step; limits, views and annotations of the store and its lanes stay.

        Steps go on being counted, so no id and no lane's step number is used again. A lane's next step begins an
        episode: reset environments first, or use a ``Recorder`` and call its ``reset``. With a disk the files are
        deleted; of those shared with a checkpoint only the store's names.

        Raises:
            OSError: files could not be deleted: their steps come back when the store is opened again. Call it again.

        Cost: O(steps) of removing them from the views' samplers.
        """
        with self._lock:
            self._log.check_open()
            for lane in list(self._fed):
                self._settle(lane)
            try:
                self._log.clear()
            finally:
                self._views.written()

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
            self._log.check_open()
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
        return self._settings.manifest() | self._log.identity | self._log.annotations.manifest()

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
    ) -> Self:
        """Open a checkpoint, or a store on disk after a clean exit, a crash or SIGKILL.

        **A checkpoint** is restored exactly, views included: see ``transitions``. That of a store in memory is read
        into memory and left unchanged. That of a store on disk becomes a store on disk again: in the new or empty
        folder ``disk``, to which its files are linked; or else in its own folder, which is then no longer a checkpoint.
        One in a single file is left unchanged; of a store on disk it needs ``disk``.
        Unfinished episodes stay open: a writer whose environment is reset first calls ``break_episode`` on each lane,
        or gives ``next_obs``, or uses a ``Recorder``, whose first ``reset()`` does it.

        **A store on disk** keeps every intact segment with its ids, and every flushed step except the last one of an
        unfinished episode (its successor is unknown). Every lane begins a new episode. Its views have the priorities
        and uses that they had when they were last written to the folder: by ``flush`` or ``close``, or every 5 seconds.

        ``store.recovery`` reports how many steps were restored, what is damaged or missing, and which limits differ;
        damaged files are moved to the folder ``quarantine``.

        Args:
            capacity, ram, disk_limit, on_full, seed: as for ``Store``; default: the store's previous values.
            strict: as for ``Store``.
            writers_go_on: segment writers in other processes outlived the store, and go on with ``add_segment``:
                the episodes of their lanes are not ended, and go on with the next segment.
            exist_ok: return the store that is open in this process in the folder, if there is one.

        Raises:
            FileNotFoundError: the folder holds no store.
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
        found = open_here(there) if exist_ok else None
        if isinstance(found, cls):
            now = Settings.from_manifest(there, found._settings.manifest(), on_disk=True, **given)
            check_same(now, found._settings, there, is_open=True)
            found._log.boundaries.strict = bool(strict)
            return found
        with folder_to_open(checked_folder("open", path), target) as folder, Left.read(folder, target) as left:
            left.writers_go_on = bool(writers_go_on)
            settings = Settings.from_manifest(left.folder, left.manifest, on_disk=left.target is not None, **given)
            store = cls.__new__(cls)
            try:
                store._begin(settings, left.target, left)
                store._log.boundaries.strict = bool(strict)
            except MemoryError as error:
                if error.args:
                    raise
                raise MemoryError(
                    f"open: not enough memory to read {left.folder}; give a lower ram= or capacity="
                ) from error
        return store

    def close(self) -> None:
        """Flush (see ``flush``), unlock the folder, and refuse further writing and sampling.

        Memory is freed with the last reference to the store and its views. A store is also closed at the end of its
        ``with`` block, when it is garbage-collected, and when the interpreter exits; a write that fails in the latter
        two cases is reported by a RuntimeWarning.

        Raises:
            OSError: the disk is full or fails. The folder is unlocked; steps not flushed before are lost.
        """
        with self._lock.unsettled:
            try:
                with suppress(MemoryError):  # for a segment that is being encoded: nobody reads it any more
                    self._log.settle()
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

    def __repr__(self) -> str:
        limits = f"capacity={self.capacity}, ram={self.ram}"
        return f"<Store {len(self):,} steps in {self.lanes} lanes, {limits}, fields {list(self.spec.fields)}>"
