"""Intake of a shard: which lanes writers have, their segments in order and each once, and when writers must wait."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.log.remote_segments import Copy
from sharpwave.serve.cluster_folder import LEASES, write_whole
from sharpwave.serve.replica_content import append_once
from sharpwave.serve.replicas import Leases, Neighbour, read_leases
from sharpwave.serve.segment_parts import dictionaries_in, segments_in
from sharpwave.serve.server import MAX_WAIT_S, Client, Holder, Reply
from sharpwave.serve.wire import Frame, WireError
from sharpwave.store import Store
from sharpwave.validation import MAX_LANES, max_lanes

MAX_DICTIONARIES = 1024
MAX_DICTIONARY_BYTES = 1 << 28
"""Dictionaries that a connection may have sent."""
MAX_NAME_CHARACTERS = 200
REPLACED = "another writer of that name has replaced this one; give one of them another name="


class Intake:
    """Intake of segments into a shard's store. May be called from several threads.

    Args:
        folder: of the shard, with the writers' lanes; ``None``: they are not kept.

    Attributes:
        neighbour: keeps the shard's replica, if there is one. ``held_up``: returns whether a view makes writers wait.
    """

    def __init__(self, store: Store, folder: Path | None) -> None:
        self._store, self._folder = store, folder
        self.neighbour: Neighbour | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.held_up: Callable[[], bool] = lambda: False
        self._paused: set[int] = set()  # connections that have paused the intake
        self._leased = read_leases(None if folder is None else folder / LEASES)
        self._holders: dict[str, Holder] = {}  # by the writer's name
        self._lanes = max([store.lanes, *(first + lanes for first, lanes in self._leased.values())])

    def lend(self, own_lanes: int) -> None:
        """Give writers lanes behind the first ``own_lanes``, to which the store's own process writes; it is refused
        those of writers, which they have again wherever the store is served later."""
        self._leased = self._store._writing.lent
        self._lanes = max([self._store.lanes, own_lanes, *(first + lanes for first, lanes in self._leased.values())])

    def find(self, client: Client, frame: Frame) -> Reply:
        """Return the number of ``lanes`` of a writer's ``name`` here, or 0, and the ``turn`` of its latest writer.

        ``complete``: whether the answer is certain: a lease that only the replica has may have the name too.
        """
        name = frame.head.get("name")
        if type(name) is not str:
            raise WireError(f"a writer's name {name!r:.100}")
        complete = True
        if self.neighbour is not None and not self.neighbour.level:
            try:
                self.neighbour.replicate()
            except ConnectionError:
                complete = False
        with self._lock:
            lanes = self._leased.get(name, (0, 0))[1]
            turn = self._holders[name].turn if name in self._holders else 0
        return {"lanes": lanes, "turn": turn, "complete": complete}, {}

    def lease(self, client: Client, frame: Frame) -> Reply:
        """Give a writer lanes: its old ones if its name is known, else new ones.

        The reply gives the steps of each lane, and how many are acknowledged: with ``durable``, on the disk; with a
        neighbor, also there. Lanes of a failed lease are freed.
        """
        name, lanes = frame.head.get("name"), frame.head.get("lanes")
        if type(name) is not str or type(lanes) is not int or not 1 <= lanes <= MAX_LANES:
            raise WireError(f"a lease of {lanes!r} lanes for {name!r:.100}")
        if not (0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()):
            raise ValueError(f"writer name={name!r:.100}, expected 1 to {MAX_NAME_CHARACTERS} printable characters")
        self._level(client)
        first, new = self._reserved(name, lanes)
        try:
            if new:
                with self._lock:
                    self.keep_leases()
            return self._given(client, frame, name, first, lanes)
        except BaseException:
            if new and self.neighbour is None:  # the neighbor keeps the lease, too
                self._give_back(client, name)
            raise

    def _reserved(self, name: str, lanes: int) -> tuple[int, bool]:
        """Return a writer's first lane, and whether it is new.  Raises: ValueError."""
        with self._store._lock, self._lock:  # the store's own process may append to new lanes now
            first, count = self._leased.get(name, (-1, 0))
            if count and count != lanes:
                raise ValueError(f"writer {name!r} has {count} lanes, asked for were {lanes}; give another name=")
            if count:
                return first, False
            first, most = max(self._lanes, self._store.lanes), max_lanes(self._store.capacity)
            if first + lanes > most:
                limit = "" if most == MAX_LANES else f", 2 steps each of its capacity of {self._store.capacity:,}"
                raise ValueError(
                    f"writer {name!r}: lanes={lanes:,} from lane {first:,} on, but a shard has at most "
                    f"{most:,}{limit}; use fewer, add a shard, or give writers a name= that they have again when "
                    "they are started again"
                )
            self._leased[name] = first, lanes
            self._lanes = max(self._lanes, first + lanes)
            return first, True

    def _given(self, client: Client, frame: Frame, name: str, first: int, lanes: int) -> Reply:
        """Return the reply to a lease."""
        with self._lock:
            holder = self._holders.setdefault(name, Holder())
        # ``since``: the writer's turn in a lost shard, so that it does not replace a later writer of that name.
        self._take_turn(client, name, holder, frame.head.get("turn", 0) or frame.head.get("since", 0))
        durable = bool(frame.head.get("durable"))
        held = self._store.lane_steps
        safe = held
        if self.neighbour is not None:  # whose steps beyond those here were evicted or deleted: their numbers are used
            safe = np.array(self._replicated(client, [], durable), np.int64)
            held = np.zeros(max(len(held), len(safe)), np.int64)
            for steps in (self._store.lane_steps, safe):
                held[: len(steps)] = np.maximum(held[: len(steps)], steps)
        if durable:
            self._store.flush(views=False)
        lane_steps = _of_lanes(held, first, lanes)
        safe_steps = np.minimum(lane_steps, _of_lanes(safe, first, lanes))
        head = {"first_lane": first, "segment_steps": self._store._log.stride, "turn": client.turn}
        return head, {"lane_steps": lane_steps, "safe_steps": safe_steps}

    def _give_back(self, client: Client, name: str) -> None:
        """Free the lanes of a writer whose first lease failed, unless a later writer has them by now."""
        with self._lock:
            if name in self._holders and self._holders[name].turn > client.turn:
                return
            first, lanes = self._leased.pop(name, (0, 0))
            if first + lanes == self._lanes:
                self._lanes = max(first, self._store.lanes)
            with contextlib.suppress(OSError):  # then they are kept once it is started again
                self.keep_leases()

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

    def keep_leases(self, path: Path | None = None) -> None:
        """Write the writers' lanes, with which they go on after this process. One thread at a time writes a file."""
        if path is None and self._folder is not None:
            path = self._folder / LEASES
        if path is not None:
            write_whole(path, json.dumps(self._leased))

    def put(self, client: Client, frame: Frame) -> Reply:
        """Append segments in order, each once; reply when all are in the store.

        The segments are as in ``segment_parts``. ``noticed``: each writer's counts (``Boundaries.counts``).
        ``durable``: reply only when the segments are on the disk.
        """
        if new := dictionaries_in(frame.parts):
            self._keep_dictionaries(client, new)
        if client.refused is not None:
            raise client.refused
        try:
            self._take(client, frame.head, frame.parts)
            return {}, {}
        except Exception as error:
            if client.turn:
                client.refused = error.with_traceback(None)
            raise

    def _keep_dictionaries(self, client: Client, new: dict[int, bytes]) -> None:
        """Keep dictionaries while the connection is open.  Raises: WireError: there are too many."""
        if len(client.dictionaries) + len(new) > MAX_DICTIONARIES:
            raise WireError(f"more than {MAX_DICTIONARIES} dictionaries on one connection")
        nbytes = sum(map(len, new.values()))
        if sum(map(len, client.dictionaries.values())) + nbytes > MAX_DICTIONARY_BYTES:
            raise WireError(f"more than {MAX_DICTIONARY_BYTES:,} bytes of dictionaries on one connection")
        try:
            client.budget.keep(client.holding, nbytes, "dictionaries")
        except MemoryError as error:  # the writer reconnects, and sends the missing segments again
            raise WireError(str(error)) from error
        client.dictionaries |= new

    def _take(self, client: Client, head: dict[str, Any], parts: dict[str, Any]) -> None:
        """Append the segments of a message that are not there already."""
        noticed = head.get("noticed", [])
        if not isinstance(noticed, list):
            raise WireError(f"segments with counts {noticed!r:.100}, expected a list")
        segments = segments_in(head, parts, client.dictionaries)
        self._level(client)
        for number, one in enumerate(segments):
            self._admit(client)
            with client.holder.lock:
                if client.turn != client.holder.turn:
                    raise ValueError(f"writer: {REPLACED}")
                counts = noticed[number] if number < len(noticed) else None
                errors = parts.get(f"td_error:{number}")
                append_once(self._store, *one, errors, counts, MAX_WAIT_S, client.is_gone)
        durable = bool(head.get("durable"))
        if self.neighbour is not None:  # duplicates too: the connection may have ended before the replica had them
            self._replicated(client, segments, durable)
        if durable:
            self._store.flush(views=False)

    def _level(self, client: Client) -> None:
        """Wait until this shard has all steps of its replica; steps appended before would hide the gap."""
        if self.neighbour is not None and not self.neighbour.level:
            self._replicated(client, [], False)

    def _replicated(self, client: Client, segments: list[Copy], durable: bool) -> list[int]:
        assert self.neighbour is not None
        return self.neighbour.replicate(segments, durable, MAX_WAIT_S, client.is_gone)

    def leases(self) -> Leases:
        """Return the lanes of each writer, by its name: the first, and how many."""
        with self._lock:
            return dict(self._leased)

    def adopt(self, leases: Leases) -> None:
        """Adopt leases that are unknown here."""
        with self._lock:
            new = {name: lanes for name, lanes in leases.items() if name not in self._leased}
            if new:
                self._leased |= new
                self._lanes = max(self._lanes, *(first + lanes for first, lanes in new.values()))
                self.keep_leases()

    def _admit(self, client: Client) -> None:
        """Wait until writers may append: the intake is not paused, and no view's limiter holds them up."""
        deadline = time.monotonic() + MAX_WAIT_S
        with self._changed:
            while self._paused or self.held_up():
                if client.is_gone() or time.monotonic() > deadline:
                    raise TimeoutError(f"put: waited {MAX_WAIT_S:g} s for the learner to sample")
                self._changed.wait(0.2)

    def look_again(self) -> None:
        """Let waiting writers see that a view's limit has changed."""
        with self._changed:
            self._changed.notify_all()

    def pause(self, client: Client) -> None:
        """Take no steps until ``resume``, or until the connection ends."""
        with self._changed:
            self._paused.add(id(client))

    def resume(self, client: Client) -> None:
        """Take steps again, unless another connection has paused that."""
        with self._changed:
            self._paused.discard(id(client))
            self._changed.notify_all()


def _of_lanes(steps: Ints, first: int, lanes: int) -> Ints:
    """Return the ``steps`` of so many lanes, of which the last may be none of the store's yet."""
    found = np.zeros(lanes, np.int64)
    there = steps[first : first + lanes]
    found[: len(there)] = there
    return found
