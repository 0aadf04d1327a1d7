"""Shard: one store, as other processes write to it and sample from it."""

from __future__ import annotations

import json
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import EmptyError
from sharpwave.format.segment import FIRST_FIELD
from sharpwave.log.sealed_after import Copy
from sharpwave.log.step_log import StepLog
from sharpwave.memory.batch_pool import Block
from sharpwave.sampling.ordered import Fifo, Lifo
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.protocol import Sampler
from sharpwave.sampling.uniform import Uniform
from sharpwave.serve.cut_batches import Sent, written
from sharpwave.serve.manifest import write_whole
from sharpwave.serve.replicas import Keeper, Leases, Neighbour, append_once, read_leases
from sharpwave.serve.requests import SEQUENCES, TRANSITIONS, Request, ViewState
from sharpwave.serve.wire import Frame, WireError
from sharpwave.store import Store
from sharpwave.validation import MAX_LANES
from sharpwave.views.cutting import RowCutter
from sharpwave.views.layout import Layout
from sharpwave.views.replay import MAX_BATCH_SIZE, Replay, checked_errors

SAMPLERS: dict[str, type[Any]] = {one.__name__: one for one in (Uniform, Prioritized, Fifo, Lifo)}
"""Samplers that shards have, by name. Ranks among all items cannot be known to one shard."""
MAX_DICTIONARIES = 1024
MAX_DICTIONARY_BYTES = 1 << 28
"""Dictionaries that a connection may have sent."""
MAX_MAPPED = 1024
"""Blocks of memory that a connection may have given."""
MAX_WAIT_S = 600.0
REPLACED = "another writer of that name has replaced this one; give one of them another name="
LEASES = "writers.json"
"""File in a shard's folder: the lanes of each writer."""

Reply = tuple[dict[str, Any], dict[str, Any]]


@dataclass
class Holder:
    """Who writes with a writer's name: the one whose ``turn`` it is. Of others of that name nothing is taken."""

    turn: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Client:
    """What a shard keeps for one connection.

    Attributes:
        local: whether memory can be shared with it.
        dictionaries: that it has sent, by key. ``sent``: those that it was sent.
        blocks: memory that it shares, by number. ``cutters``: of encoded rows, by view.
        gone: set once the connection has ended, so that nothing waits for it.
        holder, turn: of the writer's name, and which turn this one's is.
        refused: why a writer's segment was not taken; nor are those after it then, which are on their way.
    """

    local: bool
    holder: Holder = field(default_factory=Holder)
    turn: int = 0
    refused: Exception | None = None
    dictionaries: dict[int, bytes] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    layouts: dict[tuple[int, int], Layout] = field(default_factory=dict)
    sent: Sent = field(default_factory=dict)
    cutters: dict[int, RowCutter] = field(default_factory=dict)
    gone: threading.Event = field(default_factory=threading.Event)

    def cutter(self, view: int, log: StepLog) -> RowCutter:
        """Return what cuts rows for a view: its memory is this connection's, which sends a batch before the next."""
        if view not in self.cutters:
            self.cutters[view] = RowCutter(log)
        return self.cutters[view]

    def close(self) -> None:
        """Unmap its memory."""
        self.gone.set()
        self.layouts.clear()
        self.blocks.clear()


class Shard:
    """A store's answers to requests. May be called from several threads.

    Attributes:
        incarnation: a random number, of this shard in this life: ids of another mean nothing to it.
        keeper: of another shard's replica, if there is one. ``neighbour``: keeps this one's, if there is one.
    """

    def __init__(self, store: Store, folder: Path | None = None, keeper: Keeper | None = None) -> None:
        self.store, self.keeper = store, keeper
        self.neighbour: Neighbour | None = None
        self._folder = folder
        self.incarnation = secrets.randbits(62)
        self._views: dict[int, Replay[Any]] = {}  # by number
        self._settings: dict[int, dict[str, Any]] = {}
        self._inserts_before: dict[int, int] = {}
        self._credit: dict[int, int] = {}  # by view, the total of steps up to which writers may append
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._paused: set[int] = set()  # who has paused the intake of steps
        self._leased = read_leases(None if folder is None else folder / LEASES)
        self._holders: dict[str, Holder] = {}  # by the writer's name
        self._lanes = max([store.lanes, *(first + lanes for first, lanes in self._leased.values())])
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
        return {"stats": self.store.stats() | replica, "shard": self.incarnation}, {}

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
            exact = points if source.items.uses is None and hasattr(replay.sampler, "draw_at") else None
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

    def share(self, client: Client, frame: Frame) -> None:
        """Map the memory that came with a request: ``shared``, the blocks' numbers and sizes."""
        shared = frame.head.get("shared", [])
        try:
            if not client.local and (shared or frame.fds):
                raise WireError("memory can be shared over a unix socket only")
            if len(shared) != len(frame.fds) or len(client.blocks) + len(shared) > MAX_MAPPED:
                raise WireError(f"{len(frame.fds)} descriptors for {len(shared)} blocks")
            for (name, nbytes), fd in zip(shared, frame.fds, strict=True):
                client.blocks[int(name)] = Block(int(nbytes), _mapped(fd, int(nbytes)))
        except (TypeError, ValueError, OverflowError) as error:
            raise WireError(f"shared {shared!r}: {error}") from error
        finally:
            for fd in frame.fds:
                os.close(fd)
            frame.fds.clear()

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
        """Give a writer lanes: those that it had, if its name is known, else new ones.

        The reply says how many steps each has had, and how many of them are acknowledged: with ``durable``, on the
        disk; with a neighbour, also there.
        """
        name, lanes = frame.head.get("name"), frame.head.get("lanes")
        if type(name) is not str or type(lanes) is not int or not 1 <= lanes <= MAX_LANES:
            raise WireError(f"a lease of {lanes!r} lanes for {name!r}")
        self._level(client)
        with self._lock:
            first, count = self._leased.get(name, (-1, 0))
            if count and count != lanes:
                raise ValueError(f"writer {name!r} has {count} lanes, asked for were {lanes}; give another name=")
            if not count:
                first = max(self._lanes, self.store.lanes)
                if first + lanes > MAX_LANES:
                    raise ValueError(f"writer {name!r}: there are {first} lanes already, of at most {MAX_LANES}")
                self._leased[name] = first, lanes
                self._lanes = max(self._lanes, first + lanes)
                self._keep_leases()
            holder = self._holders.setdefault(name, Holder())
        self._take_turn(client, name, holder, frame.head.get("turn", 0))
        durable = bool(frame.head.get("durable"))
        held = self.store.lane_steps.tolist()
        safe = held if self.neighbour is None else self._replicated(client, [], durable)
        if durable:
            self.store.flush(views=False)
        of_writer = slice(first, first + lanes)
        return {
            "first_lane": first,
            "lane_steps": [*held[of_writer], *[0] * lanes][:lanes],
            "safe_steps": [*map(min, held[of_writer], [*safe[of_writer], *[0] * lanes]), *[0] * lanes][:lanes],
            "segment_steps": self.store._log.stride,
            "shard": self.incarnation,
            "turn": client.turn,
        }, {}

    def _take_turn(self, client: Client, name: str, holder: Holder, turn: Any) -> None:
        """Let a writer go on with its ``turn``, or, with 0, replace the one that has the name."""
        if type(turn) is not int or not 0 <= turn < 1 << 63:
            raise WireError(f"a lease for turn {turn!r}")
        with holder.lock:
            if turn and turn < holder.turn:
                raise ValueError(f"writer {name!r}: {REPLACED}")
            # By the clock: writers that knew this shard before it was started again keep their order.
            holder.turn = turn or max(time.time_ns(), holder.turn + 1)
            client.holder, client.turn, client.refused = holder, holder.turn, None

    def _keep_leases(self, path: Path | None = None) -> None:
        """Keep the writers' lanes, which they go on with after this process."""
        if path is None and self._folder is not None:
            path = self._folder / LEASES
        if path is not None:
            write_whole(path, json.dumps(self._leased))

    def _put(self, client: Client, frame: Frame) -> Reply:
        """Append segments, in order; reply once all are in the store, each once.

        ``steps``: their steps. ``keys``: for each, the keys of its dictionaries; those that the connection has not sent
        yet are parts "dictionary:KEY". ``durable``: reply only when they are on the disk.
        """
        head, parts = frame.head, frame.parts
        for name, part in parts.items():
            if name.startswith("dictionary:"):
                if len(client.dictionaries) >= MAX_DICTIONARIES:
                    raise WireError(f"more than {MAX_DICTIONARIES} dictionaries on one connection")
                client.dictionaries[int(name.removeprefix("dictionary:"), 16)] = bytes(part)
                if sum(map(len, client.dictionaries.values())) > MAX_DICTIONARY_BYTES:
                    raise WireError(f"more than {MAX_DICTIONARY_BYTES:,} bytes of dictionaries on one connection")
        if client.refused is not None:
            raise client.refused
        try:
            return self._taken(client, head, parts)
        except Exception as error:
            if client.turn:
                client.refused = error.with_traceback(None)
            raise

    def _taken(self, client: Client, head: dict[str, Any], parts: dict[str, Any]) -> Reply:
        self._level(client)
        duplicates, appended = 0, []
        for number, keys in enumerate(head.get("keys", [])):
            packed = bytes(parts[f"segment:{number}"])
            errors = parts.get(f"td_error:{number}")
            shared = {int(key, 16): client.dictionaries[int(key, 16)] for key in keys}
            self._admit(client)
            with client.holder.lock:
                if client.turn != client.holder.turn:
                    raise ValueError(f"writer: {REPLACED}")
                duplicates += not append_once(self.store, packed, shared, errors)
            appended.append(Copy(packed, shared))
        durable = bool(head.get("durable"))
        if self.neighbour is not None:  # also those that are here: the connection may have ended before they were there
            self._replicated(client, appended, durable)
        if durable:
            self.store.flush(views=False)
        return {"duplicates": duplicates, "shard": self.incarnation}, {}

    def _level(self, client: Client) -> None:
        """Wait until this shard has what only its replica had; steps that are appended before would hide the lack."""
        if self.neighbour is not None and not self.neighbour.level:
            self._replicated(client, [], False)

    def _replicated(self, client: Client, segments: list[Copy], durable: bool) -> list[int]:
        assert self.neighbour is not None
        return self.neighbour.replicate(segments, durable, MAX_WAIT_S, client.gone.is_set)

    def leases(self) -> Leases:
        """Return the lanes of each writer, by its name: the first, and how many."""
        with self._lock:
            return dict(self._leased)

    def adopt(self, leases: Leases) -> None:
        """Take over leases that are not known here."""
        with self._lock:
            new = {name: lanes for name, lanes in leases.items() if name not in self._leased}
            if new:
                self._leased |= new
                self._lanes = max(self._lanes, *(first + lanes for first, lanes in new.values()))
                self._keep_leases()

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

    def _admit(self, client: Client) -> None:
        """Wait until writers may append: the intake is not paused, and no view's limiter holds them up."""
        deadline = time.monotonic() + MAX_WAIT_S
        with self._changed:
            while self._paused or any(
                self.store.total_steps - self._inserts_before[number] >= credit
                for number, credit in self._credit.items()
            ):
                if client.gone.is_set() or time.monotonic() > deadline:
                    raise TimeoutError(f"put: waited {MAX_WAIT_S:g} s for the learner to sample")
                self._changed.wait(0.2)

    def _set_credit(self, client: Client, frame: Frame) -> Reply:
        """Let writers append until the view has counted ``inserts`` steps; ``None``: without limit."""
        number, _ = self._replay(frame)
        inserts = frame.head.get("inserts")
        with self._changed:
            if inserts is None:
                self._credit.pop(number, None)
            else:
                self._credit[number] = int(inserts)
            self._changed.notify_all()
        return self._said(number)

    # the whole store

    def _flush(self, client: Client, frame: Frame) -> Reply:
        for one in self._stores():
            one.flush()
        return {"total_steps": self.store.total_steps}, {}

    def _pause(self, client: Client, frame: Frame) -> Reply:
        """Take no steps until ``RESUME``, or until the connection ends."""
        with self._changed:
            self._paused.add(id(client))
        return {"total_steps": self.store.total_steps}, {}

    def _resume(self, client: Client, frame: Frame) -> Reply:
        self.left(client)
        return {}, {}

    def left(self, client: Client) -> None:
        """Undo what a connection held up."""
        with self._changed:
            self._paused.discard(id(client))
            self._changed.notify_all()

    def _checkpoint(self, client: Client, frame: Frame) -> Reply:
        path = Path(str(frame.head["path"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.store.checkpoint(path)
        self._keep_leases(path.with_name(f"{path.name}-{LEASES}"))
        on_disk = "disk" in self.store.stats()
        return {"total_steps": self.store.total_steps, "steps": len(self.store), "on_disk": on_disk}, {}

    def _annotate(self, client: Client, frame: Frame) -> Reply:
        self.store.annotate(None, frame.head["values"])
        return {}, {}

    def _clear(self, client: Client, frame: Frame) -> Reply:
        for one in self._stores():
            one.clear()
        return {}, {}


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


def _mapped(fd: int, nbytes: int) -> mmap.mmap:
    """Map shared memory that cannot shrink under this process.  Raises: ValueError."""
    import fcntl

    if nbytes <= 0 or os.fstat(fd).st_size < nbytes:
        raise ValueError(f"memory of {os.fstat(fd).st_size:,} bytes, expected {nbytes:,}")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("memory that may shrink; expected a memfd sealed with F_SEAL_SHRINK")
    return mmap.mmap(fd, nbytes)
