"""The store: a log of steps that learners sample from."""

from __future__ import annotations

import copy
import json
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .checks import MOST_LANES, check_capacity, checked_steps, lane_numbers, parse_bytes
from .codecs import NAMES, DamagedError, codec_choice
from .sampling.limiters import Gate, Limiter
from .sampling.order import Fifo
from .sampling.retention import LowestPriority, Reservoir
from .sampling.samplers import Sampler, Uniform
from .segment import FIRST_FIELD
from .spec import Spec
from .tiers.disk import Disk, read_manifest
from .tiers.files import Files
from .tiers.log import DEFAULT_STRIDE, StepLog
from .tiers.recovery import Recovery, highest_slot, recover
from .views.transitions import Transitions

SMALLEST_RAM = 4 << 20
SMALLEST_DISK = 16 << 20
ON_FULL = ("raise", "block", "drop_oldest", "drop_newest")


class Store:
    """A compressed replay memory: steps go in once, encoded; batches are put together when they are sampled.

    Args:
        spec: what is stored for a step.
        capacity: most steps to hold; and/or
        ram: most bytes of RAM that the store may take, all included (encoded steps, open segments, index, samplers,
            batches): a number, or "512MiB". At least one of the two. What is full lets the oldest segments go.
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
        segment_steps: steps in a segment: what is encoded, and what leaves, at a time. Default 128, less where the
            capacity or ``ram`` is small.

    All methods may be called from several threads.

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
        _manifest: dict[str, Any] | None = None,  # of the store to open, which is in ``disk`` already
    ) -> None:
        if not isinstance(spec, Spec):
            raise TypeError(f"Store: spec is {spec!r}, expected a sharpwave.Spec")
        self.spec = spec
        self.capacity = check_capacity(capacity)
        self.ram = None if ram is None else parse_bytes(ram)
        self.disk_limit = None if disk_limit is None else parse_bytes(disk_limit, "disk_limit")
        if self.capacity is None and (self.ram if disk is None else self.disk_limit) is None:
            limit = "ram=" if disk is None else "disk_limit="
            raise ValueError(
                f"Store: give capacity= (steps), {limit} (bytes) or both; without either it would never be full"
            )
        if self.disk_limit is not None and (disk is None or self.disk_limit < SMALLEST_DISK):
            raise ValueError(
                f"Store: disk_limit={disk_limit!r}, expected at least {SMALLEST_DISK >> 20} MiB, and a folder as disk="
            )
        if on_full not in ON_FULL:
            raise ValueError(f"Store: on_full={on_full!r}, expected one of {', '.join(ON_FULL)}")
        self.on_full = on_full
        if self.ram is not None and self.ram < SMALLEST_RAM:
            raise ValueError(f"Store: ram={ram!r}, expected at least {SMALLEST_RAM >> 20} MiB")
        if retention is not None and not isinstance(retention, (Fifo, Reservoir, LowestPriority)):
            raise TypeError(
                f"Store: retention is {retention!r}, expected sharpwave.Fifo(), Reservoir() or LowestPriority()"
            )
        if disk is not None and retention is not None and not isinstance(retention, Fifo):
            raise ValueError(f"Store: retention={retention!r} works in memory only; with disk= it is Fifo()")
        if not isinstance(seed, (int, np.integer)) or seed < 0:
            raise ValueError(f"Store: seed={seed!r}, expected an integer of at least 0")
        self.retention = Fifo() if retention is None else copy.deepcopy(retention)
        if isinstance(self.retention, LowestPriority):
            self.retention.priorities = self._priorities
        self.seed = int(seed)
        self.segment_steps = self._stride(segment_steps)
        self._lock = threading.RLock()
        self._gate = Gate(self._lock)
        self._views: list[weakref.ref[Transitions]] = []
        self._views_made = 0
        chosen = self._codecs(codec)
        tier = None if disk is None else self._disk(Path(disk), chosen, _manifest)
        self.recovery: Recovery | None = None
        try:
            self._log = self._new_log(chosen, tier, _manifest is not None)
        except BaseException:
            if tier is not None:
                tier.close()
            raise
        self._log.watchers.append(self._forget)
        self._log.other_bytes = lambda: sum(view.nbytes for view in self._live_views())

    def _stride(self, segment_steps: int | None) -> int:
        if segment_steps is not None:
            if not isinstance(segment_steps, (int, np.integer)) or not 1 <= segment_steps <= 65536:
                raise ValueError(f"Store: segment_steps={segment_steps!r}, expected an integer from 1 to 65536")
            return int(segment_steps)
        stride = DEFAULT_STRIDE
        if self.capacity is not None:
            stride = min(stride, self.capacity // 16)
        if self.ram is not None:
            stride = min(stride, self.ram // 64 // self.spec.step_bytes)
        return max(1, stride)

    def _disk(self, folder: Path, codecs: dict[str, str], manifest: dict[str, Any] | None) -> Disk:
        most = None if self.capacity is None else self.capacity * self.spec.step_bytes
        settings = {
            "schema": self.spec.schema_hash,
            "spec": json.loads(self.spec.to_json()),
            "codecs": codecs,
            "segment_steps": self.segment_steps,
            "capacity": self.capacity,
            "ram": self.ram,
            "disk_limit": self.disk_limit,
            "on_full": self.on_full,
            "seed": self.seed,
        }
        return Disk(folder, manifest or settings, self.disk_limit, most, Files())

    def _new_log(self, codecs: dict[str, str], disk: Disk | None, existing: bool) -> StepLog:
        found, damages = disk.regions.recover() if disk is not None and existing else ([], [])
        slots = highest_slot(found, self.segment_steps) + 1024
        log = StepLog(
            self.spec, codecs, self.capacity, self.ram, self.segment_steps, self.retention, disk, slots, self.on_full
        )
        if disk is not None and existing:
            self.recovery = recover(log, disk, found, damages)
        return log

    def _codecs(self, codec: str | Mapping[str, str]) -> dict[str, str]:
        given = codec if isinstance(codec, Mapping) else dict.fromkeys(self.spec.fields, codec)
        unknown = set(given) - set(self.spec.fields)
        if unknown:
            raise ValueError(f"Store: codec names unknown field {min(unknown)!r}; there are {list(self.spec.fields)}")
        return {name: codec_choice(field.codec or given.get(name, "auto")) for name, field in self.spec.fields.items()}

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
        lanes: npt.ArrayLike | None = None,
        timeout: float | None = None,
        **extra: npt.ArrayLike,
    ) -> None:
        """Append one step to each of several lanes. Everything is copied.

        Args:
            obs: [rows, *shape] (or a dict of those): the newest frame of what the action was taken in.
            action, reward, terminated, truncated, extra: [rows, *shape], what came of it.
            final_obs: [rows, *shape], the true observation after the step; read where the step ended an episode. Needed
                where a step is truncated; where it is terminated and this is absent, ``obs`` stands in (it counts for
                nothing: the discount is 0).
            lanes: int [rows], whose steps these are, all different. Default 0, 1, ...; new lanes are made.
            timeout: seconds to wait at most until the views' limiters allow it; default 60. Without limiters nothing
                waits.

        Raises:
            ValueError, TypeError, KeyError: what came, what was expected; then nothing changed.
            LimiterTimeoutError: what it waited for in vain; then nothing changed.
            MemoryError: ``ram`` is too small for so many lanes.

        Cost: 6 to 9 us a row of 84x84 pixels, encoding included (benchmarks/store.py).
        """
        first = obs[next(iter(obs))] if isinstance(obs, Mapping) and obs else obs
        count = len(first) if np.ndim(first) else 0
        numbers = lane_numbers(lanes, count)
        rows, flags, finals = checked_steps(
            self.spec, count, obs, action, reward, terminated, truncated, final_obs, extra
        )
        self._write(numbers, rows, flags, finals, timeout)

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
        timeout: float | None = None,
        **extra: npt.ArrayLike,
    ) -> None:
        """Append one step to one lane: as :meth:`extend`, without the leading axis."""

        if not isinstance(lane, (int, np.integer)) or not 0 <= lane < MOST_LANES:
            raise ValueError(f"append: lane {lane!r}, expected an integer from 0 to {MOST_LANES - 1}")
        checked = checked_steps(self.spec, None, obs, action, reward, terminated, truncated, final_obs, extra)
        self._write(np.array([lane], np.int64), *checked, timeout)

    def _write(
        self,
        lanes: npt.NDArray[np.int64],
        rows: dict[str, npt.NDArray[Any]],
        flags: npt.NDArray[np.uint8],
        finals: dict[str, npt.NDArray[Any]] | None,
        timeout: float | None,
    ) -> None:
        with self._lock:
            self._gate.wait("append", lambda: self._append_waits(len(lanes)), timeout)
            if len(lanes):
                self._log.open_lanes(int(lanes.max()) + 1)
                self._log.write(lanes, flags, rows, finals)
                self._tell_views()

    def _append_waits(self, steps: int) -> str | None:
        self._log.check_open()
        reasons = (view.append_waits(steps) for view in self._live_views())
        return next((reason for reason in reasons if reason is not None), None) if steps else None

    def end_episode(self, lane: int, final_obs: Any) -> None:
        """Say that the lane's episode was broken off after its last step: the step becomes truncated.

        Args:
            final_obs: the observation after that step (one, without a leading axis).

        Raises:
            ValueError: the lane has no step, or its episode has ended already.
        """
        spec = self.spec
        final = {
            name: spec.fields[name].rows(f"final_{name}", value, None)
            for name, value in spec.split_obs(final_obs, "final_obs").items()
        }
        with self._lock:
            self._log.check_open()
            if not isinstance(lane, (int, np.integer)) or not 0 <= lane < self._log.lanes:
                raise ValueError(f"end_episode: lane {lane!r}, expected one of the {self._log.lanes} lanes written to")
            if self._log.ended(int(lane)):
                raise ValueError(f"end_episode: the last episode of lane {lane} has ended already")
            self._log.end_episode(int(lane), final)
            self._tell_views()

    # sampling

    def transitions(
        self,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        depth: int = 2,
        seed: int | None = None,
    ) -> Transitions:
        """A view that samples n-step transitions; several may sample one store.

        Args:
            n_step: rewards summed, at most; fewer at an episode's end.
            gamma: discount factor.
            sampler: ``Uniform()`` (default), ``Prioritized(...)``, ``RankPrioritized(...)``, ``Fifo()``, ``Lifo()`` or
                a ``Mixture([...])`` of them; one instance a view.
            max_times_sampled: times that this view gives out a step, at most, within a batch too; then never again.
            limiter: ``MinSize``, ``SamplesPerInsert`` or ``Queue``: makes this view's ``sample``, and the store's
                ``append`` and ``extend``, wait for each other.
            depth: how many batches stay valid at a time; each takes memory of its own.
            seed: default: from the store's seed and the number of views made before.

        Raises:
            ValueError: naming the argument.
        """
        with self._lock:
            self._log.check_open()
            seeds = [self.seed, self._views_made] if seed is None else seed
            view = Transitions(
                self._log,
                self._lock,
                self._gate,
                n_step=n_step,
                gamma=gamma,
                sampler=Uniform() if sampler is None else sampler,
                max_times_sampled=max_times_sampled,
                limiter=limiter,
                depth=depth,
                seed=seeds,
            )
            self._views_made += 1
            self._views.append(weakref.ref(view))
            self._log.limit_arena()
            return view

    # accounting

    def __len__(self) -> int:
        """Steps held now, those in open segments included."""
        return self._log.held_steps

    @property
    def lanes(self) -> int:
        """Lanes written to so far."""
        return self._log.lanes

    @property
    def total_steps(self) -> int:
        """Steps ever appended."""
        return self._log.total_steps

    def stats(self) -> dict[str, Any]:
        """What the store holds and what that costs, every byte accounted for.

        Returns:
            ``steps``, ``total_steps``, ``evicted_steps``, ``evicted_segments``, ``segments``, ``lanes``;
            ``bytes``: by use - ``arena_used`` (sealed segments), ``arena_free`` (committed, empty), ``open_segments``,
            ``index``, ``dictionaries``, ``encoders``, ``samplers`` (trees), ``batches``;
            ``total_bytes``, their sum: what the process's memory grew by;
            ``bytes_per_step``: total_bytes / steps; ``encoded_bytes_per_step``: of sealed segments alone;
            ``raw_bytes_per_step``: of a step as it came;
            ``append_waits``, ``append_wait_s``, ``sample_waits``, ``sample_wait_s``: how often either side waited for a
            limiter, and the seconds in all; ``codecs``: by field, columns packed by each codec.
            With a disk also ``disk``: ``bytes`` of its files, ``resident_segments`` (in memory as well), ``hits`` and
            ``misses`` of sampled segments, ``bytes_read``, ``waited_s`` (how long sampling waited for reads),
            ``bytes_written``, ``failures`` of writing, ``dropped_steps`` (on_full=), and ``damaged``: what could not be
            read.
        """
        with self._lock:
            log, index = self._log, self._log.index
            sealed = np.flatnonzero(index.sealed[: index.highest] & (index.rows[: index.highest] > 0))
            views = self._live_views()
            batches = sum(view.batch_bytes for view in views)
            taken = log.bytes() | {"samplers": sum(view.nbytes for view in views) - batches, "batches": batches}
            total = sum(taken.values())
            sealed_steps = int(index.rows[sealed].sum())
            found = {
                "steps": log.held_steps,
                "total_steps": log.total_steps,
                "evicted_steps": log.evicted_steps,
                "evicted_segments": log.evicted_segments,
                "segments": len(sealed) + log.lanes,
                "lanes": log.lanes,
                "bytes": taken,
                "total_bytes": total,
                "bytes_per_step": total / max(1, log.held_steps),
                "encoded_bytes_per_step": log.sealed_bytes / max(1, sealed_steps),
                "raw_bytes_per_step": self.spec.step_bytes,
                "append_waits": self._gate.waits["append"],
                "append_wait_s": self._gate.seconds["append"],
                "sample_waits": self._gate.waits["sample"],
                "sample_wait_s": self._gate.seconds["sample"],
                "codecs": {
                    name: {
                        NAMES[codec]: int((index.codec[FIRST_FIELD + i, sealed] == codec).sum())
                        for codec in np.unique(index.codec[FIRST_FIELD + i, sealed]).tolist()
                    }
                    for i, name in enumerate(self.spec.fields)
                },
            }
            if log.disk is not None and log.residency is not None:
                found["disk"] = {
                    "bytes": log.disk.nbytes,
                    "resident_segments": int(index.resident[sealed].sum()),
                    "hits": log.residency.hits,
                    "misses": log.residency.misses,
                    "bytes_read": log.disk.bytes_read,
                    "waited_s": log.residency.waited_s,
                    "bytes_written": log.disk.bytes_written,
                    "failures": log.disk.failures,
                    "dropped_steps": log.dropped_steps,
                    "damaged": list(log.residency.damaged.values()),
                }
            return found

    def flush(self) -> None:
        """Return when all that was appended so far is on disk, open segments included. Without a disk: at once.

        Without it a crash of the process costs the steps that were not sealed yet, at most ``segment_steps`` a lane; a
        power cut also what the system had not written, which it does within some 30 seconds.

        Raises:
            OSError: the disk is full or failing; what was flushed before stays.
        """
        with self._lock:
            log = self._log
            log.check_open()
            if log.disk is None:
                return
            generation = int(log.index.generation[: log.index.highest].max(initial=0))
            for lane in range(log.lanes):
                id_, packed = log.pack_open(lane)
                if packed:
                    log.disk.append_tail(id_, packed, generation)
            log.disk.regions.sync()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        capacity: int | None = None,
        ram: int | str | None = None,
        disk_limit: int | str | None = None,
        on_full: str | None = None,
        seed: int | None = None,
    ) -> Self:
        """The store in a folder, as another process left it: in whatever way it ended.

        Every segment that is whole comes back with its ids, and every step that was flushed, but for the last one of an
        episode that went on (what came after it is not known). ``store.recovery`` says how many, and names what was
        damaged; damaged files are moved to the folder ``quarantine``. Every lane begins a new episode.

        Args:
            capacity, ram, disk_limit, on_full, seed: as for :class:`Store`; by default what they were.

        Raises:
            FileNotFoundError: no store there.  StoreInUseError: another process has it.
            DamagedError: ``store.json`` is not what a store writes.
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        try:
            spec = Spec.from_json(manifest["spec"])
            codecs, segment_steps = manifest["codecs"], manifest["segment_steps"]
            limits = {name: manifest[name] for name in ("capacity", "ram", "disk_limit", "on_full", "seed")}
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"{folder}: store.json is not what a store writes ({error!r})") from error
        given = {"capacity": capacity, "ram": ram, "disk_limit": disk_limit, "on_full": on_full, "seed": seed}
        limits |= {name: value for name, value in given.items() if value is not None}
        return cls(spec, disk=folder, codec=codecs, segment_steps=segment_steps, _manifest=manifest, **limits)

    def close(self) -> None:
        """Refuse any further writing and sampling. Memory goes with the last reference to the store and its views.

        A store on disk lets its folder go; steps that were not sealed yet are not there (see :meth:`flush`).
        """
        with self._lock:
            if not self._log.closed and self._log.disk is not None:
                self._log.disk.close()
            self._log.closed = True
            self._gate.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        limits = f"capacity={self.capacity}, ram={self.ram}"
        return f"<Store {len(self):,} steps in {self.lanes} lanes, {limits}, fields {list(self.spec.fields)}>"

    def _live_views(self) -> list[Transitions]:
        return [view for ref in self._views if (view := ref()) is not None]

    def _priorities(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64] | None:
        """Mean priorities of the steps in ``slots`` by the first view that has any."""
        return next((p for view in self._live_views() if (p := view.priorities(slots)) is not None), None)

    def _tell_views(self) -> None:
        """Steps were appended, or are sampleable now."""
        for view in self._live_views():
            view.written()
        self._gate.notify()

    def _forget(self, slot: int) -> None:
        for view in self._live_views():
            view.forget(slot)
