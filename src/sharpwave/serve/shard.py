"""Shard: one store, as other processes write to it and sample from it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.arrays import Floats
from sharpwave.errors import EmptyError
from sharpwave.format.segment import FIRST_FIELD
from sharpwave.log.late_columns import LateColumn, described
from sharpwave.persistence.settings import LIMITS
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.sampler_protocol import draws_by_mass
from sharpwave.serve import shard_episodes
from sharpwave.serve.budget import Budget, Holding, NoRoomError
from sharpwave.serve.cluster_folder import LEASES
from sharpwave.serve.cut_batches import ragged_parts, written
from sharpwave.serve.intake import Intake
from sharpwave.serve.late_values import add, chosen, drop, field_in, late_arrays, late_parts, name_in, write_values
from sharpwave.serve.replicas import Keeper
from sharpwave.serve.server import Client, Reply
from sharpwave.serve.shard_views import ShardView, ShardViews, item_bytes
from sharpwave.serve.wire import Frame, Request, WireError, array_in
from sharpwave.store import Store
from sharpwave.views.batch_source import BatchSource
from sharpwave.views.layout import BatchLayout, BatchTarget
from sharpwave.views.stored_steps import StepSource
from sharpwave.views.view_replay import MAX_BATCH_SIZE, Replay, checked_errors

FREE_SHARE = 0.25
"""Share of the budget beyond which memory of batches that were sent is released."""
ATTEMPTS = 8
"""Attempts of a draw, between which room is made for its rows."""


class Shard:
    """A store's answers to requests. May be called from several threads.

    Attributes:
        incarnation: a random number, of this shard in this life: ids of another mean nothing to it.
        keeper: of another shard's replica, if there is one. ``intake``: of segments. ``views``: of its store.
        budget: of memory for connections.
    """

    def __init__(self, store: Store, folder: Path | None = None, keeper: Keeper | None = None) -> None:
        self.store, self.keeper = store, keeper
        self.intake = Intake(store, folder)
        layout = store._log.layout
        self.budget = Budget.of_store(store.ram, layout.stride * store.spec.step_bytes + sum(layout.rooms))
        store._log.ledger.enter("connections", lambda: self.budget.held_bytes)
        self.incarnation = secrets.randbits(62)
        self.views = ShardViews(store, self.intake)
        self._steps = StepSource(store._log, store._step_tag)
        self._answers: dict[int, Callable[[Client, Frame], Reply | None]] = {
            Request.DESCRIBE: self._describe,
            Request.VIEW: self._view,
            Request.STATE: self._state,
            Request.FORGET: lambda client, frame: self.views.forget(client, frame.head.get("name")),
            Request.DRAW: self._draw,
            Request.UPDATE: self._update,
            Request.FETCH: self._fetch,
            Request.FIND: self.intake.find,
            Request.LEASE: self.intake.lease,
            Request.PUT: self.intake.put,
            Request.CREDIT: self._set_credit,
            Request.STATS: self._stats,
            Request.FLUSH: self._flush,
            Request.PAUSE: lambda client, _: self.intake.pause(client),
            Request.RESUME: lambda client, _: self.intake.resume(client),
            Request.CHECKPOINT: self._checkpoint,
            Request.CLEAR: self._clear,
            Request.ANNOTATE: self._annotate,
            Request.ADD_COLUMN: lambda client, frame: self._add_column(client, frame.head),
            Request.DROP_COLUMN: self._drop_column,
            Request.WRITE_COLUMN: self._write_column,
            Request.DELETE: self._delete,
            Request.EPISODES: lambda client, frame: shard_episodes.table_of(self.store, client, frame),
            Request.READ_EPISODES: lambda client, frame: shard_episodes.arrays_of(self.store, client, frame),
            Request.EPISODE_INFO: lambda _, frame: shard_episodes.annotations_of(self.store, frame),
            Request.REPLICATE: lambda _, frame: self._keeper().keep(frame),
            Request.RESTORE: lambda _, frame: self._keeper().give(frame),
            Request.KEEP_COLUMNS: lambda _, frame: self._keeper().keep_columns(frame),
            Request.GIVE_COLUMNS: lambda _, frame: self._keeper().give_columns(frame),
        }

    def answer(self, client: Client, frame: Frame) -> Reply:
        """Return the head and the parts of the reply to a request, empty where its method returns none.

        Raises: as that method.
        """
        if frame.refused is not None:
            if frame.kind == Request.PUT:  # refuse the writer's segments under way behind it, too
                client.refused = frame.refused
            raise frame.refused
        method = self._answers.get(frame.kind)
        if method is None:
            raise WireError(f"a request of kind {frame.kind}, which this release does not know")
        reply = method(client, frame)
        return ({}, {}) if reply is None else reply

    # description

    def about(self) -> dict[str, Any]:
        """Return the description that clients get when they connect."""
        return {"shard": self.incarnation, "process": os.getpid()}

    def _describe(self, client: Client, frame: Frame) -> Reply:
        """Return the number of steps and whether they are on disk; and ``columns``, if they are asked for."""
        said: dict[str, Any] = {"steps": len(self.store), "on_disk": self.store._log.disk is not None}
        if frame.head.get("columns"):
            said["columns"] = {name: described(field) for name, field in self.store.columns.items()}
        return said, {}

    def _stats(self, client: Client, frame: Frame) -> Reply:
        stats = self.store.stats()
        if self.keeper is not None:
            stats["replica"] = self.keeper.store.stats()
        if self.intake.neighbour is not None:
            stats["replica_trouble"] = self.intake.neighbour.trouble
        return {"stats": stats}, {}

    # views

    def _view(self, client: Client, frame: Frame) -> Reply:
        """Make a view, or find it; the ``column`` that its priorities start from is added, unless it is there."""
        column = frame.head.get("column")
        if isinstance(column, dict):
            self._add_column(client, column)
        return self._said(self.views.ask(client, frame.head)), {}

    def _said(self, view: ShardView) -> dict[str, Any]:
        return {"view": view.number, "state": asdict(view.state(self.store))}

    def _state(self, client: Client, frame: Frame) -> Reply:
        view = self.views.of(frame)
        self._note(view.replay, frame)
        return self._said(view), {}

    def _note(self, replay: Replay[Any], frame: Frame) -> None:
        """Take over the largest priority of any shard, which a request brings."""
        largest = frame.head.get("max_priority")
        if isinstance(largest, float) and isinstance(replay.sampler, Prioritized):
            with replay.lock:
                replay.sampler.max_priority = max(replay.sampler.max_priority, min(largest, 1e30))

    # draws

    def _draw(self, client: Client, frame: Frame) -> Reply:
        """Draw items at points of the mass; decode them into shared memory, or send them with encoded rows.

        ``points``: float64 [n]. ``batch``: the batch's number of items; ``begin``: its first item here. ``fields``:
        names of the fields that it has; without, all. ``blocks``: numbers of the batch's blocks of shared memory; new
        blocks arrive as file descriptors.
        """
        view, points, names = self.views.of(frame), array_in(frame.parts, "points", np.float64, -1), _names(frame)
        if len(points) and not (points.min() >= 0 and points.max() < 1):
            raise WireError("points of a draw, expected numbers from 0 to below 1")
        begin, size = frame.head.get("begin", 0), frame.head.get("batch", len(points))
        if not (type(begin) is type(size) is int and 0 <= begin <= begin + len(points) <= size <= MAX_BATCH_SIZE):
            raise WireError(f"a draw of {len(points)} items from {begin!r} on, of a batch of {size!r}")
        what, (work_bytes, sent_bytes) = f"a draw of {len(points):,} items", view.item_bytes
        layout = None
        if "blocks" in frame.head:
            client.budget.work(client.holding, len(points) * work_bytes, what)
            layout = client.layout(view.number, size, names, lambda size: self._layout(view, names, size))
        else:
            client.budget.work(client.holding, len(points) * (work_bytes + sent_bytes), what)
        head, parts = self._in_room(
            client, what, lambda room: self._drawn(client, frame, view, names, points, begin, layout, room)
        )
        return self._said(view) | head, parts

    def _in_room(self, client: Client, what: str, attempt: Callable[[RaggedRoom], Reply]) -> Reply:
        """Return the result of ``attempt``, which is repeated with more room if it finds too little."""
        room = RaggedRoom(client.budget, client.holding)
        for _ in range(ATTEMPTS):
            room.used = 0
            try:
                return attempt(room)
            except NoRoomError as short:  # under the store's lock nothing waits; the draw was undone, at no cost
                if short.kept:
                    client.budget.keep(client.holding, short.nbytes, what)
                    client.holding.spare += short.nbytes
                else:
                    client.budget.work(client.holding, short.nbytes, what)
                    room.taken += short.nbytes
        raise MemoryError(f"{what} found no memory for its rows, {ATTEMPTS} times; use fewer learners a shard")

    def _drawn(
        self,
        client: Client,
        frame: Frame,
        view: ShardView,
        names: frozenset[str] | None,
        points: Floats,
        begin: int,
        layout: BatchLayout | None,
        room: RaggedRoom,
    ) -> Reply:
        """Draw items into shared memory of a ``layout``, or return them as parts of a message.

        Columns added later are read under the same lock: all of the reply is of one moment.
        """
        replay = view.replay
        with replay.lock:
            source = view.source(self._own(names))
            columns = chosen(source.log.late.columns, names)
            self._note(replay, frame)
            source.items.follow()
            if not source.items.enough(max(1, len(points))):
                raise EmptyError(f"shard: {source.items.count} items can be sampled, asked for were {len(points)}")
            late = late_arrays(columns, len(points), view.rows)
            room(sum(one.nbytes for one in late.values()))  # first: a draw without room is not begun
            exact = points if source.items.uses is None and draws_by_mass(replay.sampler) else None
            if layout is not None:
                target = self._shared(client, layout, source, frame)
                target.grow = room
                part = target.part(begin, begin + len(points)).with_late(late)
                source.draw_into(part, 0.0, exact)
                head, parts = late_parts(columns, late)
                return head, parts | ragged_parts(target, self.store.spec)
            pool = source.log.batches.pool
            if self.store.ram is None and pool.free_bytes > self.budget.limit_bytes * FREE_SHARE:
                pool.trim()  # blocks of sizes that vary
            target = source.lend(len(points)).with_late(late)
            target.cutter, target.grow = client.cutter(view.number, source.log), room
            source.draw_into(target, 0.0, exact)
            return self._cut_parts(client, source, target, columns)

    def _cut_parts(
        self, client: Client, source: BatchSource | StepSource, target: BatchTarget, columns: Mapping[str, LateColumn]
    ) -> Reply:
        """Return the items of a batch, whose rows were cut out, as head and parts of a message."""
        head, parts = late_parts(columns, target.columns)
        parts |= written(target, target.cutter, source.log.tables[FIRST_FIELD:], client.sent)
        return head, parts | ragged_parts(target, self.store.spec)

    def _fetch(self, client: Client, frame: Frame) -> Reply:
        """Send the items among ``ids`` int64 [n] of a view that are held, with encoded rows, and ``there`` bool [n],
        which these are; without a view, single steps. ``fields``: as for a draw."""
        view = self.views.of(frame) if "view" in frame.head else None
        names, ids, store = _names(frame), array_in(frame.parts, "ids", np.int64, -1), self.store
        what = f"a fetch of {len(ids):,} items"
        each = item_bytes(self._steps.view) if view is None else view.item_bytes
        rows, number = (1, -1) if view is None else (view.rows, view.number)
        client.budget.work(client.holding, len(ids) * sum(each), what)

        def fetched(room: RaggedRoom) -> Reply:
            with store._lock:
                own = self._own(names)
                source = self._steps.only(own) if view is None else view.source(own)
                columns = chosen(source.log.late.columns, names)
                late = late_arrays(columns, len(ids), rows)
                room(sum(one.nbytes for one in late.values()))
                target, there = source.lend_for(ids)
                if not there.any():  # a batch of none has the columns, too
                    head, parts = late_parts(columns, late_arrays(columns, 0, rows))
                    return head, parts | {"there": there}
                target.draw.probabilities.fill(1)
                target = target.with_late({name: one[: len(target.ids)] for name, one in late.items()})
                target.cutter, target.grow = client.cutter(number, source.log), room
                source.fill(target)
                head, parts = self._cut_parts(client, source, target, columns)
                return head, parts | {"there": there}

        head, parts = self._in_room(client, what, fetched)
        return ({} if view is None else self._said(view)) | head, parts

    def _own(self, names: frozenset[str] | None) -> frozenset[str] | None:
        """Return the names of fields without columns added later, which are read apart."""
        return None if names is None else names.intersection(self.store.spec.fields)

    def _layout(self, view: ShardView, names: frozenset[str] | None, size: int) -> BatchLayout:
        with view.replay.lock:
            return view.source(self._own(names)).layout(size)

    def _shared(self, client: Client, layout: BatchLayout, source: BatchSource, frame: Frame) -> Any:
        """Return the target over a batch's blocks of shared memory."""
        blocks = frame.head["blocks"]
        if not isinstance(blocks, list) or len(blocks) != len(layout.sizes):
            raise WireError(f"a draw into {blocks!r}, expected {len(layout.sizes)} blocks of memory")
        lent = []
        for name, nbytes, (shape, dtype) in zip(blocks, layout.sizes, layout.roots, strict=True):
            block = client.blocks.get(name) if type(name) is int else None
            if block is None or block.nbytes != nbytes:
                raise WireError(f"block {name!r} is not shared, or has not {nbytes:,} bytes")
            lent.append((block, np.ndarray(shape, dtype, block.memory)))
        return layout.over(lent, source.view, source.tag)

    def _update(self, client: Client, frame: Frame) -> Reply:
        view = self.views.of(frame)
        replay, ids = view.replay, array_in(frame.parts, "ids", np.int64, -1)
        checked = checked_errors(frame.parts.get("td_error"), ids.shape + replay.view.error_shape)
        with replay.lock:
            self._note(replay, frame)
            stale = replay.update_priorities(ids, checked)
        return self._said(view) | {"stale": stale}, {}

    # writers

    def _keeper(self) -> Keeper:
        if self.keeper is None:
            raise ValueError("this shard keeps no replica of another")
        return self.keeper

    def _stores(self) -> list[Store]:
        return [self.store] if self.keeper is None else [self.store, self.keeper.store]

    def _set_credit(self, client: Client, frame: Frame) -> Reply:
        """Let writers append until the view has counted ``inserts`` steps; ``None``: without limit."""
        view, inserts = self.views.of(frame), frame.head.get("inserts")
        if inserts is not None and type(inserts) is not int:
            raise WireError(f"a credit of {inserts!r:.100} steps")
        self.views.set_credit(client, view, inserts)
        return self._said(view), {}

    # the whole store

    def _flush(self, client: Client, frame: Frame) -> None:
        for one in self._stores():
            one.flush(views=frame.head.get("views") is not False)

    def left(self, client: Client) -> None:
        """Resume work that an ended connection had paused."""
        self.intake.resume(client)
        self.views.left(client)

    def _checkpoint(self, client: Client, frame: Frame) -> Reply:
        path = Path(str(frame.head["path"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.store.checkpoint(path)
        self.intake.keep_leases(path.with_name(f"{path.name}-{LEASES}"))
        settings = self.store._settings.manifest()
        new = {name: settings[name] for name in (*LIMITS, "segment_steps", "on_full")}  # of a store like this one
        said, parts = self._describe(client, frame)
        return {**said, "new": new | {"codec": settings["codecs"]}}, parts

    def _annotate(self, client: Client, frame: Frame) -> None:
        values = frame.head.get("values")
        if not isinstance(values, dict):
            raise WireError(f"annotations {values!r:.100}, expected a dict")
        self.store.annotate(None, values)

    def _add_column(self, client: Client, head: dict[str, Any]) -> None:
        """Add a column, unless it is there: a client repeats a request whose reply was lost.

        It is in the store's folder before the reply.
        """
        name = name_in(head)
        if self.intake.neighbour is None:
            add(self.store, name, field_in(head))
        else:
            self.intake.neighbour.add_column(name, field_in(head), client.is_gone)

    def _drop_column(self, client: Client, frame: Frame) -> None:
        """Drop a column, if it is there, also from the store's folder before the reply."""
        name = name_in(frame.head)
        if self.intake.neighbour is None:
            drop(self.store, name)
        else:
            self.intake.neighbour.drop_column(name, client.is_gone)

    def _write_column(self, client: Client, frame: Frame) -> Reply:
        if self.intake.neighbour is None:
            return {"written": write_values(self.store, frame.head, frame.parts)}, {}
        return {"written": self.intake.neighbour.write_column(frame.head, frame.parts, client.is_gone)}, {}

    def _delete(self, client: Client, frame: Frame) -> Reply:
        """Delete the episodes of a request, or those for which its condition holds. The store writes the deletion down
        before it counts, so a shard that dies before its reply has deleted all of them or none; a repeated request
        finds the rest."""
        where = frame.head.get("where")
        if where is not None and not isinstance(where, str):
            raise WireError(f"a deletion where {where!r:.100}, expected a condition")
        episodes = shard_episodes.chosen(self.store, frame) if where is None else None
        if self.intake.neighbour is None:
            return {"deleted": self.store.delete(where=where, episodes=episodes)}, {}
        found, given = self.store._chosen(where, episodes), episodes is not None
        with self.store._lock:
            found = self.store._ended(found, given)
        runs = np.stack([found.lane, found.first_step, found.first_step + found.length], 1)
        neighbour, here = self.intake.neighbour, self.store
        return {"deleted": neighbour.delete(runs, lambda: here._delete(found, given), client.is_gone)}, {}

    def _clear(self, client: Client, frame: Frame) -> None:
        for one in self._stores():
            one.clear()


class RaggedRoom:
    """Room for the rows of any length of a reply, whose size is known once they are drawn.

    Attributes:
        taken: bytes of the budget. ``used``: bytes of rows.
    """

    def __init__(self, budget: Budget, holding: Holding) -> None:
        self._budget, self._holding = budget, holding
        self.taken = self.used = 0

    def __call__(self, nbytes: int) -> None:
        """Take room for more rows.  Raises: NoRoomError."""
        self.used += nbytes
        if self.used > self.taken:
            self._budget.work_at_once(self._holding, self.used - self.taken)
            self.taken = self.used


def _names(frame: Frame) -> frozenset[str] | None:
    """Return the names of the fields that a draw asks for; ``None``: of all."""
    names = frame.head.get("fields")
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WireError(f"fields {names!r:.100} of a draw, expected a list of names")
    return frozenset(names)
