"""Replicas: each shard's segments are kept by its neighbor too, so that a lost disk costs nothing acknowledged."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.shared import IS_SHARED
from sharpwave.errors import DuplicateError
from sharpwave.format.segment import parse
from sharpwave.log.remote_segments import Copy, sealed_after
from sharpwave.serve.cluster_folder import write_whole
from sharpwave.serve.link import RETRY_S, Link, ShardLostError
from sharpwave.serve.value_parts import parts_of, values_of
from sharpwave.serve.wire import Frame, Part, Request, WireError
from sharpwave.store import Store

PART_BYTES = 4 << 20
"""Bytes of segments a request, while one store is brought up to another."""
RUNS = 1 << 14
"""Runs of deleted steps that are sent, or deleted, at a time."""
DELETE_S = 30.0
"""Time that a deletion waits for the neighbor."""
Leases = dict[str, tuple[int, int]]
Ints = npt.NDArray[np.int64]
T = TypeVar("T")


def read_leases(path: Path | None) -> Leases:
    """Return the lanes of each writer, by its name: the first, and how many."""
    if path is None or not path.exists():
        return {}
    return checked_leases(json.loads(path.read_text()))


def checked_leases(said: Any) -> Leases:
    """Return leases that were JSON values.  Raises: WireError."""
    try:
        return {str(name): (int(first), int(lanes)) for name, (first, lanes) in said.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise WireError(f"writers {said!r}: {error}") from error


def append_once(
    store: Store,
    packed: bytes,
    dictionaries: Mapping[int, bytes],
    td_error: npt.NDArray[np.float32] | None = None,
    noticed: Sequence[int] | None = None,
) -> None:
    """Append a segment unless the store has had it."""
    with contextlib.suppress(DuplicateError):
        store.add_segment(packed, dictionaries, td_error=td_error, noticed=noticed)


# deleted steps


def deleted_runs(store: Store, copies: Sequence[Copy] | None = None) -> Ints:
    """Return the deleted steps that a store holds, or those of some of its segments, as runs: int64 [n, 3], each a
    lane, the number of its first step there, and the number behind its last. The store's lock is held."""
    log = store._log
    found, index, deleted = [np.zeros((0, 3), np.int64)], log.index, log.late.deleted
    if deleted is None:
        return found[0]
    some = (
        None
        if copies is None
        else {(one.lane, one.first_step) for one in (parse(c.packed, store.spec) for c in copies)}
    )
    for slot in sorted(log.late.marked):
        lane, first, rows = int(index.lane[slot]), int(index.first_step[slot]), int(index.rows[slot])
        if some is not None and (lane, first) not in some:
            continue
        marks = deleted[slot * index.stride : slot * index.stride + rows]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8)))
        begins, ends = edges[::2] + first, edges[1::2] + first
        found.append(np.stack([np.full(len(begins), lane), begins, ends], 1))
    return np.concatenate(found)


def checked_runs(given: Any) -> Ints:
    """Return runs of steps that a peer sent, or that were written to a file.  Raises: WireError."""
    if given is None:
        return np.zeros((0, 3), np.int64)
    if not isinstance(given, np.ndarray) or given.dtype != np.int64 or given.ndim != 2 or given.shape[1] != 3:
        raise WireError("deleted steps, expected int64 [n, 3]")
    return given


def delete_runs(store: Store, runs: Ints) -> None:
    """Delete runs of steps, as far as they are held. The store's lock and ``saving`` are held.  Raises: OSError."""
    lane_steps = store.lane_steps
    runs = runs[(runs[:, 0] >= 0) & (runs[:, 0] < len(lane_steps))]
    lanes, first = runs[:, 0], np.maximum(runs[:, 1], 0)
    lengths = np.maximum(np.minimum(runs[:, 2], lane_steps[lanes]) - first, 0)
    for begin in range(0, len(runs), RUNS):
        each = lengths[begin : begin + RUNS]
        ends = np.cumsum(each)
        steps = np.arange(each.sum()) + np.repeat(first[begin : begin + RUNS] - (ends - each), each)
        ids = store._log.index.find(np.repeat(lanes[begin : begin + RUNS], each), steps)
        if (held := ids[store._log.late.held(ids)[1]]).size:
            store._delete_steps(held)


def take(store: Store, segments: Sequence[Copy], runs: Ints, pending: Path | None) -> None:
    """Append segments unless the store has had them, and delete ``runs`` of their steps.

    Deletions are noted in the file ``pending`` before the segments can be on disk, so that a process that is killed in
    between deletes them when it begins again (``finish_deletions``); ``None``: the store has no disk.
    """
    if not len(runs):
        for one in segments:
            append_once(store, *one)
        return
    if not segments:
        pending = None
    if pending is not None:
        write_whole(pending, json.dumps(runs.tolist()))
    with store._log.saving, store._lock:  # nothing samples a step before it is deleted
        try:
            for one in segments:
                append_once(store, *one)
        finally:
            delete_runs(store, runs)
    if pending is not None:
        pending.unlink()


def finish_deletions(store: Store, pending: Path | None) -> None:
    """Delete the steps that ``take`` did not delete, as the process was killed or the disk failed.  Raises: OSError."""
    if pending is not None and pending.exists():
        with store._log.saving, store._lock:
            delete_runs(store, np.array(json.loads(pending.read_text()), np.int64).reshape(-1, 3))
        pending.unlink()


class Keeper:
    """Replica of another shard that this one keeps: a store without views, and that shard's leases.

    Args:
        number: of the other shard. ``path``: file for its leases. ``pending``: as for ``take``.
    """

    def __init__(self, number: int, store: Store, path: Path, pending: Path | None = None) -> None:
        self.number, self.store, self._path, self._pending = number, store, path, pending
        self._leases = read_leases(path)
        self._lock = threading.Lock()

    def keep(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Append the segments of a request, delete its steps ``deleted``, and note its leases; return how many steps
        the replica has had of each lane."""
        self._check(frame)
        leases, runs = checked_leases(frame.head.get("leases", {})), checked_runs(frame.parts.get("deleted"))
        with self._lock:
            finish_deletions(self.store, self._pending)
            if leases.items() - self._leases.items():
                self._leases |= leases
                write_whole(self._path, json.dumps(self._leases))
            take(self.store, segments_of(frame.parts, frame.head.get("keys", [])), runs, self._pending)
        if frame.head.get("durable"):
            self.store.flush(views=False)
        return {"leases": self._leases}, {"lane_steps": self.store.lane_steps}

    def give(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return segments that a shard lacks which has had ``lane_steps``; none: it has all."""
        self._check(frame)
        steps = frame.parts.get("lane_steps")
        if not isinstance(steps, np.ndarray) or steps.dtype != np.int64 or steps.ndim != 1:
            raise WireError("restore: expected lane_steps, int64 [lanes]")
        with self._lock:
            finish_deletions(self.store, self._pending)
            return message(*lacking(self.store, steps))

    def _check(self, frame: Frame) -> None:
        if frame.head.get("of") != self.number:
            raise ValueError(f"replica of shard {frame.head.get('of')!r}: this one keeps that of {self.number}")


class Neighbour:
    """Neighbor: the shard that keeps this one's replica.

    After every connection, each shard first gets the segments that only the other has; only then are any acknowledged.

    Args:
        number: of this shard. ``leases``: returns this shard's leases. ``adopt``: called with the neighbor's leases.
        pending: as for ``take``.
    """

    def __init__(
        self,
        number: int,
        store: Store,
        link: Link,
        leases: Callable[[], Leases],
        adopt: Callable[[Leases], None],
        pending: Path | None = None,
    ) -> None:
        self._number, self._store, self._link, self._pending = number, store, link, pending
        self._leases, self._adopt = leases, adopt
        self._made_level = -1  # number of the connection on which both last exchanged missing segments
        self._lock = threading.RLock()

    @property
    def level(self) -> bool:
        """Whether this shard has all segments of the neighbor."""
        return self._made_level >= 0

    def replicate(
        self,
        segments: Sequence[Copy] = (),
        durable: bool = False,
        patience_s: float = 0.0,
        gone: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Wait until the neighbor has these segments and this shard's leases; return its number of steps of each lane.

        Args:
            patience_s: seconds to retry while it cannot be reached. ``gone``: returns whether the caller has given up.

        Raises:
            ShardLostError: it cannot be reached.
        """
        return self._level_then(lambda: self._sent(segments, durable), patience_s, gone)

    def delete(self, runs: Ints, delete_here: Callable[[], int], gone: Callable[[], bool]) -> int:
        """Delete runs of steps in the replica, then in this shard; return how many steps this was here.

        In this order no step is there again, whichever of the two is killed, or loses its folder, at whatever moment.

        Args:
            delete_here: deletes them in this shard. Segments that are on their way to the replica get there first.

        Raises: ShardLostError: the neighbor cannot be reached.  OSError: one of the two could not delete.
        """

        def in_both() -> int:
            self._send_missing()
            for begin in range(0, len(runs), RUNS):
                self._sent((), deleted=runs[begin : begin + RUNS])
            return delete_here()

        return self._level_then(in_both, DELETE_S, gone)

    def _level_then(self, act: Callable[[], T], patience_s: float, gone: Callable[[], bool]) -> T:
        """Act under the lock once both have the same; retry so long while the neighbor cannot be reached.

        Raises: ShardLostError.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                with self._lock:
                    self._link.connect()
                    if self._made_level != self._link.connections:
                        self._bring_level()
                    return act()
            except ShardLostError:
                if gone() or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def _sent(self, segments: Sequence[Copy], durable: bool = False, deleted: Ints | None = None) -> list[int]:
        head, parts = message(segments, deleted)
        reply = self._link.call(
            Request.REPLICATE, {**head, "of": self._number, "leases": self._leases(), "durable": durable}, parts
        )
        self._adopt(checked_leases(reply.head.get("leases")))
        return [int(steps) for steps in reply.parts["lane_steps"]]

    def _bring_level(self) -> None:
        connection = self._link.connections
        finish_deletions(self._store, self._pending)
        self._sent(())
        while True:
            steps = self._store.lane_steps
            reply = self._link.call(Request.RESTORE, {"of": self._number}, {"lane_steps": steps})
            runs = checked_runs(reply.parts.get("deleted"))
            take(self._store, segments_of(reply.parts, reply.head.get("keys", [])), runs, self._pending)
            if not reply.parts or not (self._store.lane_steps.sum() > steps.sum()):
                break
        self._send_missing()
        with self._store._lock:
            runs = deleted_runs(self._store)
        for begin in range(0, len(runs), RUNS):  # also of a folder that was changed while it was not served
            self._sent((), deleted=runs[begin : begin + RUNS])
        self._made_level = connection

    def _send_missing(self) -> None:
        """Send the segments that the neighbor lacks."""
        while True:
            theirs = np.array(self._sent(()), np.int64)
            missing, deleted = lacking(self._store, theirs)
            if not missing or sum(self._sent(missing, deleted=deleted)) <= theirs.sum():
                break


def lacking(store: Store, lane_steps: Ints) -> tuple[list[Copy], Ints]:
    """Return the first of a store's segments that another lacks which has had ``lane_steps``, and the runs of deleted
    steps in them."""
    with store._lock:
        store._log.check_open()
        copies = sealed_after(store._log, lane_steps, PART_BYTES)
        return copies, deleted_runs(store, copies)


def message(segments: Sequence[Copy], deleted: Ints | None = None) -> tuple[dict[str, Any], dict[str, Part]]:
    """Return the head and the parts of a message of segments, each dictionary and shared value once; and of runs of
    deleted steps."""
    parts: dict[str, Part] = {f"segment:{k}": one.packed for k, one in enumerate(segments)}
    dictionaries: dict[int, bytes] = {}
    for one in segments:
        dictionaries |= one.dictionaries
    parts |= {f"dictionary:{key:x}": data for key, data in dictionaries.items() if not key & IS_SHARED}
    keys = [[f"{key:x}" for key in one.dictionaries if not key & IS_SHARED] for one in segments]
    parts |= parts_of(dictionaries)
    if deleted is not None and len(deleted):
        parts["deleted"] = deleted
    return {"keys": keys}, parts


def segments_of(parts: Mapping[str, Any], keys: Sequence[Sequence[str]]) -> list[Copy]:
    """Return the segments of a message, with their dictionaries and all its shared values.  Raises: WireError."""
    values = values_of(parts)
    try:
        return [
            Copy(
                bytes(parts[f"segment:{k}"]),
                {int(key, 16): bytes(parts[f"dictionary:{key}"]) for key in those} | values,
            )
            for k, those in enumerate(keys)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"segments of a replica: {error!r} is missing or malformed") from error
