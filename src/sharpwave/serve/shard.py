"""Shard: one store, as other processes write to it and sample from it."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import EmptyError
from sharpwave.format.segment import FIRST_FIELD
from sharpwave.sampling.ordered import Fifo, Lifo
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.protocol import Sampler, draws_by_mass
from sharpwave.sampling.uniform import Uniform
from sharpwave.serve.client import Client
from sharpwave.serve.cut_batches import written
from sharpwave.serve.intake import LEASES, Intake
from sharpwave.serve.replicas import Keeper
from sharpwave.serve.requests import SEQUENCES, TRANSITIONS, Request, ViewState
from sharpwave.serve.wire import Frame, WireError
from sharpwave.store import Store
from sharpwave.views.replay import MAX_BATCH_SIZE, Replay, checked_errors

SAMPLERS: dict[str, type[Any]] = {one.__name__: one for one in (Uniform, Prioritized, Fifo, Lifo)}
"""Samplers that shards have, by name. Ranks among all items cannot be known to one shard."""
Reply = tuple[dict[str, Any], dict[str, Any]]


class Shard:
    """A store's answers to requests. May be called from several threads.

    Attributes:
        incarnation: a random number, of this shard in this life: ids of another mean nothing to it.
        keeper: of another shard's replica, if there is one. ``intake``: of what writers give.
    """

    def __init__(self, store: Store, folder: Path | None = None, keeper: Keeper | None = None) -> None:
        self.store, self.keeper = store, keeper
        self.intake = Intake(store, folder)
        self.incarnation = secrets.randbits(62)
        self._views: dict[int, Replay[Any]] = {}  # by number
        self._settings: dict[int, dict[str, Any]] = {}
        self._inserts_before: dict[int, int] = {}
        self._lock = threading.Lock()
        self._answers: dict[int, Callable[[Client, Frame], Reply]] = {
            Request.DESCRIBE: self._describe,
            Request.VIEW: self._view,
            Request.STATE: self._state,
            Request.DRAW: self._draw,
            Request.UPDATE: self._update,
            Request.LEASE: self._lease,
            Request.PUT: self._put,
            Request.CREDIT: self._set_credit,
            Request.STATS: self._stats,
            Request.FLUSH: self._flush,
            Request.PAUSE: self._pause,
            Request.RESUME: self._resume,
            Request.CHECKPOINT: self._checkpoint,
            Request.CLEAR: self._clear,
            Request.ANNOTATE: self._annotate,
            Request.REPLICATE: self._replicate,
            Request.RESTORE: self._restore,
            Request.DRAIN: self._drain,
            Request.CEDE: self._cede,
            Request.INHERIT: self._inherit,
        }

    def answer(self, client: Client, frame: Frame) -> Reply:
        """Return the head and the parts of the reply to a request.  Raises: what the request's method does."""
        method = self._answers.get(frame.kind)
        if method is None:
            raise WireError(f"a request of kind {frame.kind}, which this release does not know")
        return method(client, frame)

    # what there is

    def about(self) -> dict[str, Any]:
        """Return what clients are told when they connect."""
        return {"shard": self.incarnation, "process": os.getpid()}

    def _describe(self, client: Client, frame: Frame) -> Reply:
        store = self.store
        head = {
            "spec": store.spec.description(),
            "shard": self.incarnation,
            "segment_steps": store._log.stride,
            "capacity": store.capacity,
            "steps": len(store),
            "total_steps": store.total_steps,
            "lanes": store.lanes,
        }
        return head, {}

    def _stats(self, client: Client, frame: Frame) -> Reply:
        replica = {} if self.keeper is None else {"replica": self.keeper.store.stats()}
        drained = {"draining": self.intake.elsewhere is not None}
        return {"stats": self.store.stats() | drained | replica, "shard": self.incarnation}, {}

    # views

    def _view(self, client: Client, frame: Frame) -> Reply:
        """Make a view, or find the one of that name, which must have the same settings."""
        asked = {name: frame.head.get(name) for name in ("name", "kind", "settings", "sampler", "max_times_sampled")}
        name = str(asked["name"])
        with self._lock:
            for number, settings in self._settings.items():
                if settings["name"] == name:
                    if settings != asked:
                        wrong = [key for key in asked if asked[key] != settings[key]]
                        raise ValueError(
                            f"view {name!r} is there with other settings: {wrong[0]} is {settings[wrong[0]]!r}, "
                            f"asked for was {asked[wrong[0]]!r}; give yours another name="
                        )
                    return self._said(number)
            number = len(self._views)
            self._views[number] = self._made(asked, frame.head.get("seed"))
            self._settings[number] = asked
            self._inserts_before[number] = self._views[number].source.steps_before
            return self._said(number)

    def _made(self, asked: Mapping[str, Any], seed: Any) -> Replay[Any]:
        settings = asked["settings"]
        given: dict[str, Any] = {
            "name": asked["name"],
            "sampler": _sampler(asked["sampler"]),
            "max_times_sampled": asked["max_times_sampled"],
            "seed": seed,
        }
        if not isinstance(settings, dict) or asked["kind"] not in (TRANSITIONS, SEQUENCES):
            raise ValueError(f"view of kind {asked['kind']!r}, expected {TRANSITIONS!r} or {SEQUENCES!r}")
        make: Any = self.store.transitions if asked["kind"] == TRANSITIONS else self.store.sequences
        made: Replay[Any] = make(**settings, **given)
        return made

    def _replay(self, frame: Frame) -> tuple[int, Replay[Any]]:
        number = frame.head.get("view")
        if type(number) is not int or number not in self._views:
            raise KeyError(f"view {number!r}: there is none of that number; ask for it by name first")
        return number, self._views[number]

    def _said(self, number: int) -> Reply:
        return {"view": number, "state": self._view_state(number).described(), "shard": self.incarnation}, {}

    def _view_state(self, number: int) -> ViewState:
        replay = self._views[number]
        items, sampler = replay.source.items, replay.sampler
        with replay.lock:
            items.follow()
            left = items.uses_left
            mass = float(items.count) if items.uses is not None else float(getattr(sampler, "mass", items.count))
            return ViewState(
                mass,
                items.count,
                -1 if items.uses is None else int(left),
                self.store.total_steps - self._inserts_before[number],
                items.samples,
                float(getattr(sampler, "max_priority", 1.0)),
            )

    def _state(self, client: Client, frame: Frame) -> Reply:
        number, replay = self._replay(frame)
        self._note(replay, frame)
        return self._said(number)

    def _note(self, replay: Replay[Any], frame: Frame) -> None:
        """Take over what a request says of the whole: the largest priority of any shard."""
        largest = frame.head.get("max_priority")
        if isinstance(largest, float) and isinstance(replay.sampler, Prioritized):
            with replay.lock:
                replay.sampler.max_priority = max(replay.sampler.max_priority, min(largest, 1e30))

    # draws

    def _draw(self, client: Client, frame: Frame) -> Reply:
        """Draw items at points of the mass, and decode them into shared memory, or send them: encoded where ``cut``.

        ``points``: float64 [n]. ``batch``: its items in all; ``begin``: of the part that these are. ``blocks``: numbers
        of the blocks of shared memory of the batch; new ones come as file descriptors.
        """
        number, replay = self._replay(frame)
        points = _points(frame)
        for name in frame.head.get("forget", []):
            client.blocks.pop(name, None)
        begin, size = frame.head.get("begin", 0), frame.head.get("batch", len(points))
        if not (type(begin) is type(size) is int and 0 <= begin <= begin + len(points) <= size <= MAX_BATCH_SIZE):
            raise WireError(f"a draw of {len(points)} items from {begin!r} on, of a batch of {size!r}")
        with replay.lock:
            self._note(replay, frame)
            source = replay.source
            source.items.follow()
            if not source.items.enough(max(1, len(points))):
                raise EmptyError(f"shard: {source.items.count} items can be sampled, asked for were {len(points)}")
            exact = points if source.items.uses is None and draws_by_mass(replay.sampler) else None
            if "blocks" in frame.head:
                target = self._shared(client, number, replay, frame, size)
                part = target.part(begin, begin + len(points))
                source.draw_into(part, 0.0, exact)
                parts = {}
            else:
                target = source.lend(len(points))
                target.cutter = cutter = client.cutter(number, source.log) if frame.head.get("cut") else None
                source.draw_into(target, 0.0, exact)
                parts = written(target, cutter, source.log.tables[FIRST_FIELD:], client.sent)
            return self._said(number)[0], parts

    def _shared(self, client: Client, number: int, replay: Replay[Any], frame: Frame, size: int) -> Any:
        """Return the target over a batch's blocks of shared memory."""
        layout = client.layouts.get((number, size))
        if layout is None:
            layout = client.layouts[number, size] = replay.source.layout(size)
        blocks = frame.head["blocks"]
        if not isinstance(blocks, list) or len(blocks) != len(layout.sizes):
            raise WireError(f"a draw into {blocks!r}, expected {len(layout.sizes)} blocks of memory")
        lent = []
        for name, nbytes, (shape, dtype) in zip(blocks, layout.sizes, layout.roots, strict=True):
            block = client.blocks.get(name) if type(name) is int else None
            if block is None or block.nbytes != nbytes:
                raise WireError(f"block {name!r} is not shared, or has not {nbytes:,} bytes")
            lent.append((block, np.ndarray(shape, dtype, block.memory)))
        return layout.over(lent, replay.view, replay.source.tag)

    def _update(self, client: Client, frame: Frame) -> Reply:
        number, replay = self._replay(frame)
        ids, errors = frame.parts.get("ids"), frame.parts.get("td_error")
        if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
            raise WireError("an update without ids, int64 [n]")
        checked = checked_errors(errors, ids.shape + replay.view.error_shape)
        with replay.lock:
            self._note(replay, frame)
            stale = replay.update_priorities(ids, checked)
        head, parts = self._said(number)
        return {**head, "stale": stale}, parts

    # writers

    def _lease(self, client: Client, frame: Frame) -> Reply:
        return self.intake.lease(client, frame) | {"shard": self.incarnation}, {}

    def _put(self, client: Client, frame: Frame) -> Reply:
        return self.intake.put(client, frame) | {"shard": self.incarnation}, {}

    def _keeper(self) -> Keeper:
        if self.keeper is None:
            raise ValueError("this shard keeps no replica of another")
        return self.keeper

    def _replicate(self, client: Client, frame: Frame) -> Reply:
        return self._keeper().keep(frame)

    def _restore(self, client: Client, frame: Frame) -> Reply:
        return self._keeper().give(frame)

    def _stores(self) -> list[Store]:
        return [self.store] if self.keeper is None else [self.store, self.keeper.store]

    def _set_credit(self, client: Client, frame: Frame) -> Reply:
        """Let writers append until the view has counted ``inserts`` steps; ``None``: without limit."""
        number, _ = self._replay(frame)
        inserts = frame.head.get("inserts")
        self.intake.set_credit(number, None if inserts is None else int(inserts) + self._inserts_before[number])
        return self._said(number)

    # the whole store

    def _flush(self, client: Client, frame: Frame) -> Reply:
        for one in self._stores():
            one.flush()
        return {"total_steps": self.store.total_steps}, {}

    def _pause(self, client: Client, frame: Frame) -> Reply:
        """Take no steps until ``RESUME``, or until the connection ends."""
        self.intake.pause(client)
        return {"total_steps": self.store.total_steps}, {}

    def _resume(self, client: Client, frame: Frame) -> Reply:
        self.intake.resume(client)
        return {}, {}

    def left(self, client: Client) -> None:
        """Undo what a connection held up."""
        self.intake.left(client)

    # a drain

    def _drain(self, client: Client, frame: Frame) -> Reply:
        """Send writers ``elsewhere``, and evict what is due: whole segments of the first ``evict`` steps that there
        ever were. Without ``elsewhere``, take writers again."""
        elsewhere = frame.head.get("elsewhere")
        self.intake.elsewhere = None if elsewhere is None else dict(elsewhere)
        evict_before(self.store, int(frame.head.get("evict", 0)))
        steps, total = len(self.store), self.store.total_steps
        return {"steps": steps, "total_steps": total, "writers": self.intake.writers}, {}

    def _cede(self, client: Client, frame: Frame) -> Reply:
        """Hand over how many steps and samples each view has counted, for the limiters; they begin anew here."""
        counts = {}
        for number, replay in list(self._views.items()):
            with replay.lock:
                inserts, items = self.store.total_steps - self._inserts_before[number], replay.source.items
                counts[self._settings[number]["name"]] = [inserts, items.samples]
                self._count(number, -inserts, -items.samples)
        return {"counts": counts}, {}

    def _inherit(self, client: Client, frame: Frame) -> Reply:
        """Add what another shard has ceded; a view's counts are kept with its priorities."""
        counts = frame.head.get("counts", {})
        for number, replay in list(self._views.items()):
            inserts, samples = counts.get(self._settings[number]["name"], (0, 0))
            with replay.lock:
                self._count(number, int(inserts), int(samples))
        return {}, {}

    def _count(self, number: int, inserts: int, samples: int) -> None:
        source = self._views[number].source
        source.items.samples += samples
        source.steps_before -= inserts
        self._inserts_before[number] -= inserts

    def _checkpoint(self, client: Client, frame: Frame) -> Reply:
        path = Path(str(frame.head["path"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.store.checkpoint(path)
        self.intake.keep_leases(path.with_name(f"{path.name}-{LEASES}"))
        on_disk = "disk" in self.store.stats()
        return {"total_steps": self.store.total_steps, "steps": len(self.store), "on_disk": on_disk}, {}

    def _annotate(self, client: Client, frame: Frame) -> Reply:
        self.store.annotate(None, frame.head["values"])
        return {}, {}

    def _clear(self, client: Client, frame: Frame) -> Reply:
        for one in self._stores():
            one.clear()
        return {}, {}


def evict_before(store: Store, total_steps: int) -> None:
    """Evict a store's oldest segments, as far as their steps are among the first ``total_steps`` that it ever had."""
    with store._lock:
        log = store._log
        log.check_open()
        order, inventory = log.admission.retention, log.inventory
        assert isinstance(order, Fifo)
        try:
            while (slot := next(order.oldest(), None)) is not None:
                gone = inventory.total_steps - inventory.held_steps
                if gone + int(log.index.rows[slot]) > total_steps:
                    break
                log.admission.evict_one(slot)
        finally:
            store._views.written()


def _sampler(described: Any) -> Sampler:
    """Return a new sampler.  Raises: ValueError."""
    kind = described.get("kind") if isinstance(described, dict) else None
    if kind not in SAMPLERS:
        raise ValueError(f"sampler {described!r}, expected one of {', '.join(SAMPLERS)}")
    made: Sampler = SAMPLERS[kind](**{name: value for name, value in described.items() if name != "kind"})
    return made


def _points(frame: Frame) -> npt.NDArray[np.float64]:
    points = frame.parts.get("points")
    if not isinstance(points, np.ndarray) or points.dtype != np.float64 or points.ndim != 1:
        raise WireError("a draw without points, float64 [n]")
    if len(points) and not (points.min() >= 0 and points.max() < 1):
        raise WireError("points of a draw, expected numbers from 0 to below 1")
    return points
