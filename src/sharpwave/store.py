"""The store: a log of steps that learners sample from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import not_to_be_copied
from sharpwave.log.remote_segments import settle
from sharpwave.native.files import Files
from sharpwave.native.interrupts import Lock
from sharpwave.persistence.checkpoint import save
from sharpwave.persistence.forks import watch
from sharpwave.persistence.lifetime import Life, close, flush
from sharpwave.persistence.opening import NO_STATE, Left, begin
from sharpwave.persistence.settings import Settings
from sharpwave.sampling.limiters import Gate, Limiter
from sharpwave.sampling.ordered import Fifo
from sharpwave.sampling.protocol import Sampler
from sharpwave.sampling.retention import LowestPriority, Reservoir
from sharpwave.spec import Spec
from sharpwave.store_stats import account
from sharpwave.store_writing import StoreWriting
from sharpwave.validation import checked_folder
from sharpwave.views.registry import Views
from sharpwave.views.replay import Replay
from sharpwave.views.transitions import NStep, Transitions
from sharpwave.views.view import View

B = TypeVar("B")


class Store(StoreWriting):
    """A compressed replay memory: steps are encoded once, as they come; batches are decoded as they are sampled.

    Args:
        spec: what is stored for a step.
        capacity: limit in steps; and/or
        ram: limit in bytes of RAM, all included (encoded steps, open segments, index, samplers, batches): a number, or
            "512MiB". A full store evicts its oldest segments. Batches that the caller holds count, up to half of
            ``ram``; one that does not fit is refused (MemoryError), no step is evicted for it. Room for 2,048
            transitions (at most that half) is kept for batches; beyond that they get, and keep, what steps have not
            taken yet. With a disk nothing is kept: segments are uncached for them.
        disk: a new or empty folder, where every sealed segment is written; ``ram`` then bounds what is cached of it.
            Needs ``capacity`` or ``disk_limit``.
        disk_limit: limit in bytes of files in that folder: a number, or "50GiB".
        on_full: what an append does where the disk is full or failing: "raise" an OSError and leave the store as it
            was; "block" for up to 60 s, then raise; "drop_oldest" steps until there is room; "drop_newest", the segment
            that could not be written. ``stats()`` counts failures and dropped steps.
        codec: "auto" (measured on the data), or the name of a codec; or a dict of those by field name ("auto" where
            absent). ``Field(codec=)`` takes precedence.
        retention: chooses which segments a full store evicts: ``Fifo()`` (the oldest; default), ``Reservoir()`` or
            ``LowestPriority()``.
        seed: of the sampling: the same calls give the same batches.
        segment_steps: steps in a segment, the unit of encoding, reading and eviction. Default 128, with a disk 64; less
            where the capacity or ``ram`` is small.

    All methods may be called from several threads. In a forked process a store in memory is a copy, whose views draw
    what they draw here (give each worker's view its own ``seed``); a store on disk stays the parent's.

    Raises:
        ValueError, TypeError: naming the argument.
    """

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
        self._begin(settings, None if disk is None else checked_folder("disk", disk), None)

    def _begin(self, settings: Settings, folder: Path | None, left: Left | None) -> None:
        """Set up, empty or with what another process ``left``."""
        self.spec, self._settings = settings.spec, settings
        self._lock = Lock()
        self._gate = Gate(self._lock)
        self._log, self.recovery, states = begin(settings, folder, left, Files())
        self._life = Life(self._log, self._lock)
        watch(self._log, self._lock)
        self._views = Views(self._log, self._lock, self._gate, settings.seed, self._life)
        self._fed = set()
        settle(self._log)
        for number, state in states.items():
            try:
                self._views.restore(number, state)
            except NO_STATE as error:
                assert self.recovery is not None
                self.recovery.damages.append(f"view {number}: {error!r}; it begins anew")
        if self.recovery is not None:
            self.recovery.views = self._views.unclaimed
        self._log.keep_limits()

    @property
    def capacity(self) -> int | None:
        """Limit in steps; ``None``: none."""
        return self._settings.capacity

    @property
    def ram(self) -> int | None:
        """Limit in bytes of memory; ``None``: none."""
        return self._settings.ram

    @property
    def disk_limit(self) -> int | None:
        """Limit in bytes of files; ``None``: none."""
        return self._settings.disk_limit

    # sampling

    def transitions(
        self,
        *,
        name: str | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> Transitions:
        """Make a view that samples n-step transitions; several may sample one store.

        Args:
            name: names the view in checkpoints; default "transitions". Of two with one name the newer is kept.
            n_step: rewards summed, at most; fewer at an episode's end.
            gamma: discount factor.
            sampler: ``Uniform()`` (default), ``Prioritized(...)``, ``RankPrioritized(...)``, ``Fifo()``, ``Lifo()``, a
                ``Mixture([...])`` of them, or one of your own (``sharpwave.sampling.protocol.Sampler``); one
                instance a view.
            max_times_sampled: times that this view gives out a step, at most, within a batch too.
            limiter: ``MinSize``, ``SamplesPerInsert`` or ``Queue``: makes this view's ``sample``, and the store's
                ``append`` and ``extend``, wait for each other.
            seed: default: from the store's seed and the number of views made before.

        In a store opened from a checkpoint this restores the view of that name, ``seed`` not being used; steps that
        were evicted since are gone from it, those appended since are new. A warning says what is lost where the
        settings differ, or the view was asked for before. Views not asked for yet are in ``recovery.views``, and in the
        next checkpoint. A store on disk that is opened without a checkpoint has no views: priorities begin anew.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        with self._lock:
            step = NStep(n_step, gamma)
            return self._views.make(Transitions, step, name, sampler, max_times_sampled, limiter, seed)

    def view(
        self,
        view: View[B],
        *,
        name: str | None = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> Replay[B]:
        """Make a view whose items are of a kind of your own.

        Args:
            view: what the items are, and how a batch of them is filled (``sharpwave.views.view.View``); one
                instance serves one replay.
            name: default ``view.kind``. All else is as for ``transitions``.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        with self._lock:
            return self._views.make(Replay[B], view, name, sampler, max_times_sampled, limiter, seed)

    # accounting

    def __len__(self) -> int:
        """Return the number of steps held, those in open segments included."""
        return self._log.inventory.held_steps

    @property
    def lanes(self) -> int:
        """Number of lanes written to so far."""
        return self._log.lanes

    @property
    def lane_steps(self) -> npt.NDArray[np.int64]:
        """int64 [lanes], the number that the next step of each lane will have, counted from 0."""
        with self._lock:
            return self._log.opened.steps.copy()

    @property
    def total_steps(self) -> int:
        """Number of steps ever appended."""
        return self._log.inventory.total_steps

    def stats(self) -> dict[str, Any]:
        """Return what the store holds and what that costs, every byte accounted for.

        ``steps``, ``total_steps``, ``evicted_steps``, ``evicted_segments``, ``segments``, ``lanes``; since it was
        opened ``broken_episodes`` (found by ``next_obs``); ``bytes`` by use: ``arena_used`` (sealed segments),
        ``arena_free``, ``open_segments``, ``index``, ``dictionaries``, ``encoders``, ``samplers``, ``batches`` (held,
        and free for the next), ``checkpoint`` (copies while one is written: 12 MiB at most, beside ``ram``);
        ``total_bytes``, their sum: what the process grew by; ``held_batch_bytes``: of batches that the caller holds;
        ``bytes_per_step``; ``encoded_bytes_per_step``: of sealed segments; ``raw_bytes_per_step``: as steps came;
        ``append_waits``, ``append_wait_s``, ``sample_waits``, ``sample_wait_s``: on rate limiters; ``codecs``: columns
        by field and codec; ``damaged``: messages about segments that could not be read or decoded.
        With a disk ``disk``: ``bytes`` of files, ``resident_segments`` (cached), ``hits`` and ``misses`` of sampled
        segments, ``bytes_read``, ``joined`` (reads made with the one beside them), ``stalls`` and ``waited_s``
        (of sampling, on reads), ``bytes_written``, ``failures`` of writing, ``dropped_steps`` (on_full=), ``damaged``.
        """
        with self._lock:
            return account(self._log, self._gate)

    def flush(self) -> None:
        """Return when all that was appended so far is on disk, open segments included. Without a disk: at once.

        ``close`` does the same. Without either, a crash costs the steps that were not sealed yet (at most
        ``segment_steps`` a lane), a power cut also what the system wrote in the last 30 seconds or so.

        Raises:
            OSError: the disk is full or failing; what was flushed before stays.
        """
        with self._lock:
            self._log.check_open()
            flush(self._log)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint into a folder, or replace the one that is there, whole or not at all.

        It holds every step with its id, open segments included, and every view's priorities, uses, random state and
        batches drawn ahead. ``open`` restores the store: the same calls give the same batches. Writers and samplers
        go on meanwhile; what they do after this call is not in it.

        With a disk nothing is copied: region files get a second name in the checkpoint (which should be on the same
        file system), and take space until both are deleted. Without, all that is in memory is written.

        Raises:
            OSError: the disk is full or failing; a checkpoint that was there before stays.
            FileExistsError: the folder holds a store that is no checkpoint.  StoreInUseError: it is in use.
        """
        folder = checked_folder("checkpoint", path)
        with self._log.saving:  # one checkpoint at a time
            views = self._views
            with self._lock:
                manifest = self._manifest()
            save(folder, self._log, self._lock, self._gate.notify, manifest, views.states, Files())

    def resize(
        self,
        *,
        capacity: int | EllipsisType | None = ...,
        ram: int | str | EllipsisType | None = ...,
        disk_limit: int | str | EllipsisType | None = ...,
    ) -> None:
        """Change limits while the store is in use; ``None`` lifts one, those that are not given stay.

        What exceeds them is evicted at once, or with a disk uncached. Ids, priorities and random states stay. Growing
        beyond the first limits moves what is in memory; with a disk it is read again.

        Raises:
            ValueError: naming the argument; then nothing changed.  MemoryError: no address space; nothing changed.
        """
        with self._lock:
            self._log.check_open()
            now = {"capacity": capacity, "ram": ram, "disk_limit": disk_limit}
            now = {name: getattr(self, name) if value is ... else value for name, value in now.items()}
            settings = self._settings.limited(**now)
            self._views.check_capacity(settings.capacity)
            self._log.resize(settings.capacity, settings.ram, settings.disk_limit, self._views.batch_bytes)
            self._settings = settings
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
    ) -> Self:
        """Open a checkpoint, or a store on disk after a clean exit, a crash or SIGKILL.

        **A checkpoint** is restored exactly, views included: see ``transitions``. That of a store in memory is read
        into memory and stays as it is. That of a store on disk becomes one again: in the new or empty folder ``disk``,
        to which its files are linked; or else in its own folder, which is no checkpoint from then on. Episodes are
        still under way: a writer whose environment begins anew calls ``break_episode`` on each lane first, or gives
        ``next_obs``, or uses a ``Recorder``, whose first ``reset()`` does.

        **A store on disk** keeps every whole segment with its ids, and every flushed step but the last one of an
        episode that went on (what came after it is not known). Every lane begins a new episode.

        ``store.recovery`` says how much came back, what was damaged or is missing, and which limits differ; damaged
        files are moved to the folder ``quarantine``.

        Args:
            capacity, ram, disk_limit, on_full, seed: as for ``Store``; by default what they were.

        Raises:
            FileNotFoundError: no store there.  StoreInUseError: another process has it.
            DamagedError: ``store.json`` is not what a store writes.  MemoryError: the limits it names are too large.
            NewerVersionError: a later release wrote something in it; nothing was changed.
            ValueError, FileExistsError: naming the argument that does not fit.
        """
        given = {"capacity": capacity, "ram": ram, "disk_limit": disk_limit, "on_full": on_full, "seed": seed}
        target = None if disk is None else checked_folder("disk", disk)
        with Left.read(checked_folder("open", path), target) as left:
            settings = Settings.from_manifest(left.folder, left.manifest, on_disk=left.target is not None, **given)
            store = cls.__new__(cls)
            try:
                store._begin(settings, left.target, left)
            except MemoryError as error:
                if error.args:
                    raise
                raise MemoryError(
                    f"open: the system has no memory to read {left.folder}; lower ram= or capacity="
                ) from error
        return store

    def close(self) -> None:
        """Flush (see ``flush``), unlock the folder, and refuse further writing and sampling.

        Memory is freed with the last reference to the store and its views. A store that is not closed is when its
        ``with`` block ends, when nothing refers to it any more, and when the interpreter exits; where these last two
        cannot write, a RuntimeWarning says so.

        Raises:
            OSError: the disk is full or failing. The folder was unlocked; what had not been flushed before is lost.
        """
        with self._lock:
            try:
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
