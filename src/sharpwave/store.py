"""The store: a log of steps that learners sample from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import StoreInUseError, not_to_be_copied
from sharpwave.format import segment
from sharpwave.format.annotations import decode
from sharpwave.log.episode_annotations import annotations_of
from sharpwave.log.remote_segments import settle, settle_lane, take_in
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
from sharpwave.sampling.uniform import Uniform
from sharpwave.spec import Spec
from sharpwave.store_stats import account
from sharpwave.validation import MOST_LANES, checked_final, checked_folder, checked_rows, checked_steps, most_lanes
from sharpwave.views.registry import R, Views
from sharpwave.views.replay import Replay
from sharpwave.views.transitions import NStep, Transitions
from sharpwave.views.view import View

B = TypeVar("B")

BLOCK_S = 60.0
"""How long an append tries to write to a disk that refuses, with on_full="block"."""


class Store:
    """A compressed replay memory: steps go in once, encoded; batches are put together when they are sampled.

    Args:
        spec: what is stored for a step.
        capacity: most steps to hold; and/or
        ram: most bytes of RAM that the store may take, all included (encoded steps, open segments, index, samplers,
            batches): a number, or "512MiB". At least one of the two. A full store evicts its oldest segments. Batches
            that the caller holds count, up to half of ``ram``; one that does not fit is refused (MemoryError), no step
            leaves for it. Room for 2,048 transitions, or that half where it is less, is kept for batches from the
            start; beyond that they get, and keep, what steps have not taken yet. With a disk nothing is kept: batches
            get memory from what was read from there.
        disk: a new or empty folder; every sealed segment is written there, and ``ram`` then bounds only what is kept in
            memory beside it. With it, ``capacity`` or ``disk_limit`` is needed.
        disk_limit: most bytes of files in that folder: a number, or "50GiB".
        on_full: what an append does where the disk is full or failing: "raise" an OSError and leave the store as it
            was; "block" for up to 60 s, then raise; "drop_oldest" steps until there is room; "drop_newest", the segment
            that could not be written. ``stats()`` counts failures and dropped steps.
        codec: "auto" (measured on the data), "delta", "zstd" or "raw"; or a dict of those by field name, where fields
            not named are "auto". ``Field(codec=)`` comes before it.
        retention: which segments leave when the store is full: those of ``Fifo()`` (the oldest, default),
            ``Reservoir()`` or ``LowestPriority()``.
        seed: of the sampling, so that the same calls give the same batches.
        segment_steps: steps in a segment: what is encoded, read from disk, and leaves, at a time. Default 128, with
            a disk 64, less where the capacity or ``ram`` is small.

    All methods may be called from several threads. A forked process has a copy of a store in memory, whose views draw
    just what they draw here: workers each ask for one with a ``seed`` of its own. A store on disk stays the parent's.

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
        self._fed: set[int] = set()  # lanes whose last steps came with add_segment
        self._log, self.recovery, states = begin(settings, folder, left, Files())
        self._life = Life(self._log, self._lock)
        watch(self._log, self._lock)
        self._views = Views(self._log, self._lock, self._gate, settings.seed)
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
        """Most steps held; ``None``: no limit."""
        return self._settings.capacity

    @property
    def ram(self) -> int | None:
        """Most bytes of memory; ``None``: no limit."""
        return self._settings.ram

    @property
    def disk_limit(self) -> int | None:
        """Most bytes of files; ``None``: no limit."""
        return self._settings.disk_limit

    # writing

    def extend(
        self,
        *,
        obs: Any,
        action: npt.ArrayLike,
        reward: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        final_obs: Any = None,
        next_obs: Any = None,
        lanes: npt.ArrayLike | None = None,
        timeout: float | None = None,
        **extra: npt.ArrayLike,
    ) -> None:
        """Append one step to each of several lanes. Everything is copied.

        Args:
            obs: [rows, *shape] (or a dict of those): the newest frame of what the action was taken in.
            action, reward, terminated, truncated, extra: [rows, *shape], the outcome of the action.
            final_obs: [rows, *shape], the true observation after the step; read where the step ended an episode. Needed
                where a step is truncated; where it is terminated and this is absent, ``obs`` stands in (it counts for
                nothing: the discount is 0).
            next_obs: [rows, *shape], the newest frame after the step, in every row; it stands in for ``final_obs``
                where that is absent. Where a lane's next step has another ``obs``, bit by bit, its episode was broken
                off (a reset that nobody told of): the step before becomes truncated, with this as its final
                observation, and the next one begins an episode. ``stats()["broken_episodes"]`` counts that. Without
                it, what comes is taken to follow.
            lanes: int [rows], whose steps these are, all different. Default 0, 1, ...; new lanes are made.
            timeout: seconds to wait at most until the views' limiters allow it; default 60. Without limiters nothing
                waits.

        Raises:
            ValueError, TypeError, KeyError: what came, what was expected; then nothing changed.
            LimiterTimeoutError: what it waited for until it timed out; then nothing changed.
            MemoryError: ``ram`` is too small for so many lanes.

        Cost: 6 to 9 us a row of 84x84 pixels, encoding included (benchmarks/store.py).
        """
        numbers, steps = checked_rows(
            self.spec, lanes, obs, action, reward, terminated, truncated, final_obs, next_obs, extra
        )
        self._write(numbers, *steps, timeout)

    def append(
        self,
        *,
        lane: int = 0,
        obs: Any,
        action: npt.ArrayLike,
        reward: npt.ArrayLike,
        terminated: bool,
        truncated: bool,
        final_obs: Any = None,
        next_obs: Any = None,
        timeout: float | None = None,
        **extra: npt.ArrayLike,
    ) -> None:
        """Append one step to one lane: as :meth:`extend`, without the leading axis."""
        if not isinstance(lane, (int, np.integer)) or not 0 <= lane < MOST_LANES:
            raise ValueError(f"append: lane {lane!r}, expected an integer from 0 to {MOST_LANES - 1}")
        checked = checked_steps(self.spec, None, obs, action, reward, terminated, truncated, final_obs, next_obs, extra)
        self._write(np.array([lane], np.int64), *checked, timeout)

    def _write(
        self,
        lanes: npt.NDArray[np.int64],
        rows: dict[str, npt.NDArray[Any]],
        flags: npt.NDArray[np.uint8],
        finals: dict[str, npt.NDArray[Any]] | None,
        nexts: dict[str, npt.NDArray[Any]] | None,
        timeout: float | None,
    ) -> None:
        if not len(lanes):
            with self._lock:
                self._gate.wait("append", lambda: self._append_waits(0), timeout)
            return

        def write() -> None:
            if self._fed:
                for lane in self._fed.intersection(lanes.tolist()):
                    self._settle(lane)
            self._log.open_lanes(int(lanes.max()) + 1)
            self._log.write(lanes, flags, rows, finals, nexts)

        self._change(write, len(lanes), timeout)

    def add_segment(
        self,
        packed: bytes,
        dictionaries: Mapping[int, bytes],
        *,
        td_error: npt.ArrayLike | None = None,
        timeout: float | None = None,
    ) -> None:
        """Append the steps of a segment that a :class:`SegmentWriter` made, in this process or another, as it is.

        It names its lane, and which of the lane's steps it begins with; segments of a lane come in their order, and
        where some are missing the episode counts as truncated. While they come, nothing else may append to the lane.

        Args:
            packed: the segment, of at most ``segment_steps`` steps. It is checked before anything is changed.
            dictionaries: those that it refers to, by key; others are not looked at.
            td_error: [steps], what their first priorities are made of, with samplers that know priorities; without it
                they get the largest so far. Steps that cannot be sampled yet get theirs as soon as they can; a
                checkpoint in between does not keep it.
            timeout: as for :meth:`extend`.

        Raises:
            DamagedError: not a segment for this store, or not after the last step of its lane; then nothing changed.
            ValueError: the lane is appended to otherwise, or an argument does not fit.
            LimiterTimeoutError, MemoryError, OSError: as for :meth:`extend`.
        """
        steps = segment.parse(packed, self.spec).steps
        errors = None if td_error is None else np.asarray(td_error, np.float32)
        if errors is not None and (errors.shape != (steps,) or not np.isfinite(errors).all()):
            raise ValueError(
                f"add_segment: td_error has shape {errors.shape}, expected {(steps,)} of finite numbers, one a step"
            )

        def take() -> None:
            slot, header = take_in(self._log, packed, dictionaries)
            self._fed.add(header.lane)
            if errors is not None and slot >= 0:
                self._views.expect(slot, errors)

        self._change(take, steps, timeout)

    def _change(self, write: Callable[[], None], steps: int, timeout: float | None) -> None:
        """Append so many steps by ``write`` once rate limiters admit it, then notify views."""
        deadline = time.monotonic() + BLOCK_S
        while True:
            with self._lock:
                self._gate.wait("append", lambda: self._append_waits(steps), timeout)
                try:
                    write()
                    self._views.written()
                    return
                except OSError as error:  # and nothing was appended
                    if self._settings.on_full != "block" or isinstance(error, StoreInUseError):
                        raise
                    if time.monotonic() > deadline:
                        raise OSError(error.errno, f"{error.strerror}, after {BLOCK_S:g} s of trying") from error
            time.sleep(0.05)  # others may go on meanwhile

    def _append_waits(self, steps: int) -> str | None:
        self._log.check_open()
        if not steps:
            return None
        reason = self._views.append_waits(steps)
        return self._log.copying.waits() if reason is None and self._log.copying is not None else reason

    def end_episode(self, lane: int, final_obs: Any) -> None:
        """Say that the lane's episode was broken off after its last step: the step becomes truncated.

        Args:
            final_obs: the observation after that step (one, without a leading axis).

        Raises:
            ValueError: the lane has no step, or its episode has ended already.
        """
        final = checked_final(self.spec, final_obs)
        with self._lock:
            self._log.check_open()
            if not isinstance(lane, (int, np.integer)) or not 0 <= lane < self._log.lanes:
                raise ValueError(f"end_episode: lane {lane!r}, expected one of the {self._log.lanes} lanes written to")
            if self._settle(int(lane)):
                return
            if self._log.opened.ended(int(lane)):
                raise ValueError(f"end_episode: the last episode of lane {lane} has ended already")
            self._log.end_episode(int(lane), final)
            self._views.written()

    def break_episode(self, lane: int) -> bool:
        """End the lane's episode with what is known, if one is under way; the next step begins another.

        The last step becomes truncated, with the ``next_obs`` that it was given as the final observation. Where it was
        given none it cannot be learned from and is let go: what it observed is the final observation of the one before.

        Returns whether an episode was under way; a lane without steps has none.

        Raises:
            ValueError: ``lane`` is no number of a lane.
        """
        with self._lock:
            self._log.check_open()
            if not isinstance(lane, (int, np.integer)) or lane < 0:
                raise ValueError(f"break_episode: lane {lane!r}, expected an integer of at least 0")
            if lane >= self._log.lanes:
                return False
            if self._settle(lane):
                return True
            if self._log.opened.ended(lane):
                return False
            self._log.end_episode(lane, None)
            self._views.written()
            return True

    def _settle(self, lane: int) -> bool:
        """End the episode of a lane that segments came for. Whether one was under way."""
        if lane not in self._fed:
            return False
        self._fed.discard(lane)
        ended = settle_lane(self._log, lane)
        if ended:
            self._views.written()
        return ended

    def annotate(self, lane: int | None, values: Mapping[str, Any], *, episode: bool = False) -> None:
        """Say something of a lane, of its episode or of the store: an environment's id, a seed, a policy's version.

        Annotations are kept with the steps, in memory, on disk and in checkpoints; :meth:`flush` acknowledges them.
        ``sharpwave inspect`` shows them.

        Args:
            lane: whose they are; ``None``: the store's own.
            values: strings, numbers, booleans, bytes, and lists and dicts of those. They are added to what was said
                before, a key that was there being replaced, or taken away by ``None``.
            episode: they are of the lane's episode that is under way, or else of the one that it begins next. Segments
                carry them that are sealed from now on.

        Raises:
            TypeError, ValueError: naming what does not fit, or where there is too much: 4 KiB for an episode, 512 KiB
                for the store and its lanes, as JSON; then nothing changed.
        """
        with self._lock:
            self._log.check_open()
            self._check_annotated("annotate", lane, episode)
            if not episode:
                self._log.annotations.update(None if lane is None else int(lane), values)
                return
            assert lane is not None
            if lane in self._fed:
                raise ValueError(
                    f"annotate: the episodes of lane {lane} come in segments; annotate them in the SegmentWriter"
                )
            self._log.open_lanes(int(lane) + 1)
            self._log.opened.annotations.update(int(lane), self._log.opened.running_episode(int(lane)), values)

    def annotations(self, lane: int | None = None, *, episode: bool = False) -> dict[str, Any]:
        """Return what :meth:`annotate` was told of a lane, of its episode or (by default) of the store."""
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
        """Return what was said of the episode of each step, by ids such as ``batch.ids``; reads segments from disk.

        A segment knows what was said before it was sealed.

        Raises:
            KeyError: an id that has left.  DamagedError: a segment that cannot be read.
        """
        with self._lock:
            self._log.check_open()
            return [decode(values) for values in annotations_of(self._log, np.asarray(ids, np.int64).tolist())]

    def _check_annotated(self, what: str, lane: Any, episode: bool) -> None:
        if lane is None and episode:
            raise ValueError(f"{what}: episode=True, expected the number of the episode's lane")
        most = most_lanes(self.capacity)
        if lane is not None and not (isinstance(lane, (int, np.integer)) and 0 <= lane < most):
            raise ValueError(f"{what}: lane {lane!r}, expected None or an integer from 0 to {most - 1}")

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
        """A view that samples n-step transitions; several may sample one store.

        Args:
            name: by which a checkpoint knows it; default "transitions". Of two views in use with one name it keeps the
                one made last.
            n_step: rewards summed, at most; fewer at an episode's end.
            gamma: discount factor.
            sampler: ``Uniform()`` (default), ``Prioritized(...)``, ``RankPrioritized(...)``, ``Fifo()``, ``Lifo()``, a
                ``Mixture([...])`` of them, or one of your own (:class:`sharpwave.sampling.protocol.Sampler`); one
                instance a view.
            max_times_sampled: times that this view gives out a step, at most, within a batch too; then never again.
            limiter: ``MinSize``, ``SamplesPerInsert`` or ``Queue``: makes this view's ``sample``, and the store's
                ``append`` and ``extend``, wait for each other.
            seed: default: from the store's seed and the number of views made before.

        In a store opened from a checkpoint this gives back the view of that name as it was, ``seed`` not being used;
        steps that were evicted since are gone from it, those appended since are new. If it is asked for with other
        settings, or once more after it was given out, a warning says what is lost; those not asked for yet are in
        ``recovery.views``, and in the next checkpoint. A store on disk that is opened without a checkpoint has no
        views: priorities begin anew.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        return self._view(Transitions, NStep(n_step, gamma), name, sampler, max_times_sampled, limiter, seed)

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
            view: what the items are, and how a batch of them is filled (:class:`sharpwave.views.view.View`); one
                instance serves one replay.
            name: default ``view.kind``. All else is as for :meth:`transitions`.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        return self._view(Replay[B], view, name, sampler, max_times_sampled, limiter, seed)

    def _view(
        self,
        kind: type[R],
        view: View[Any],
        name: str | None,
        sampler: Sampler | None,
        max_times_sampled: int | None,
        limiter: Limiter | None,
        seed: int | None,
    ) -> R:
        with self._lock:
            self._log.check_open()
            replay = self._views.make(
                kind,
                view,
                name=name,
                sampler=Uniform() if sampler is None else sampler,
                seed=seed,
                max_times_sampled=max_times_sampled,
                limiter=limiter,
            )
            replay.life = self._life
            return replay

    # accounting

    def __len__(self) -> int:
        """Steps held now, those in open segments included."""
        return self._log.inventory.held_steps

    @property
    def lanes(self) -> int:
        """Lanes written to so far."""
        return self._log.lanes

    @property
    def lane_steps(self) -> npt.NDArray[np.int64]:
        """int64 [lanes], the number that the next step of each lane will have, counted from 0."""
        with self._lock:
            return self._log.opened.steps.copy()

    @property
    def total_steps(self) -> int:
        """Steps ever appended."""
        return self._log.inventory.total_steps

    def stats(self) -> dict[str, Any]:
        """What the store holds and what that costs, every byte accounted for.

        Returns:
            ``steps``, ``total_steps``, ``evicted_steps``, ``evicted_segments``, ``segments``, ``lanes``;
            ``broken_episodes``: that a ``next_obs`` showed to have been broken off, since the store was opened;
            ``bytes``: by use - ``arena_used`` (sealed segments), ``arena_free`` (committed, empty), ``open_segments``,
            ``index``, ``dictionaries``, ``encoders``, ``samplers`` (trees), ``batches`` (those in use, and free memory
            for the next), ``checkpoint`` (copies of segments, while one is written: some 12 MiB at most, beside
            ``ram=``);
            ``total_bytes``, their sum: what the process's memory grew by;
            ``held_batch_bytes``: of batches that the caller holds;
            ``bytes_per_step``: total_bytes / steps; ``encoded_bytes_per_step``: of sealed segments alone;
            ``raw_bytes_per_step``: of a step as it came;
            ``append_waits``, ``append_wait_s``, ``sample_waits``, ``sample_wait_s``: how often either side waited for a
            limiter, and the seconds in all; ``codecs``: by field, columns packed by each codec; ``damaged``: segments
            that could not be read or decoded.
            With a disk also ``disk``: ``bytes`` of its files, ``resident_segments`` (in memory as well), ``hits`` and
            ``misses`` of sampled segments, ``bytes_read``, ``joined`` (reads made with the one beside them),
            ``stalls`` and ``waited_s`` (how often, and for how many seconds in all, sampling waited for reads),
            ``bytes_written``, ``failures`` of writing, ``dropped_steps`` (on_full=), and ``damaged`` as above.
        """
        with self._lock:
            return account(self._log, self._gate)

    def flush(self) -> None:
        """Return when all that was appended so far is on disk, open segments included. Without a disk: at once.

        :meth:`close` does the same. Without either a crash costs the steps that were not sealed yet, at most
        ``segment_steps`` a lane; a power cut also what the system had not written, which it does within some 30
        seconds.

        Raises:
            OSError: the disk is full or failing; what was flushed before stays.
        """
        with self._lock:
            self._log.check_open()
            flush(self._log)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint into a folder, or replace the one that is there, whole or not at all.

        It holds every step with its id, open segments included, and of every view the priorities, the uses, the random
        state and what streams have drawn ahead. :meth:`open` gives the store back as it was: the same calls give the
        same batches. Writers and samplers go on meanwhile; what they do after this was called is not in it.

        With a disk nothing is copied: the region files get a second name in the checkpoint (so it should be on the same
        file system), and their space comes back when both have let them go. Without, all that is in memory is written.

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
        """Change limits while the store is in use; those that are not given stay, ``None`` lifts one.

        What is too much now leaves at once: steps as the retention chooses them, or, with a disk, memory alone. Ids,
        priorities and random states stay. Growing beyond what was first asked for moves what is in memory;
        with a disk it is read again when it is sampled.

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

        **A checkpoint** comes back exactly, views included: see :meth:`transitions`. That of a store in memory is read
        into memory and stays as it is. That of a store on disk becomes a store on disk again: in the folder ``disk``,
        new or empty, to which its files are linked; or, without it, in its own folder, which is no checkpoint from then
        on. Episodes are under way as they were: a writer whose environment begins anew calls :meth:`break_episode` on
        each lane first, or gives ``next_obs``, or wraps it in a ``Recorder``, whose first ``reset()`` does.

        **A store on disk**: every segment that is whole comes back with its ids, and every step that was flushed, but
        for the last one of an episode that went on (what came after it is not known). Every lane begins a new episode.

        ``store.recovery`` says how much came back, and names what was damaged, what is missing and which limits differ;
        damaged files are moved to the folder ``quarantine``.

        Args:
            capacity, ram, disk_limit, on_full, seed: as for :class:`Store`; by default what they were.

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
        """Refuse any further writing and sampling. Memory goes with the last reference to the store and its views.

        A store on disk is flushed (see :meth:`flush`) and lets its folder go. So it is at the end of ``with``, also
        where an exception passes; when nothing refers to the store and its views any more; and when the interpreter
        exits. A RuntimeWarning says so where these last two cannot write.

        Raises:
            OSError: the disk is full or failing. The folder was let go; what had not been flushed before is lost.
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
