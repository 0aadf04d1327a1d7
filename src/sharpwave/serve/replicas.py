"""Replicas: each shard's segments are kept by its neighbor too, so that a lost disk costs nothing acknowledged."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.log.late_columns import described
from sharpwave.log.remote_segments import Copy
from sharpwave.serve.cluster_folder import write_whole
from sharpwave.serve.late_values import Columns, add, drop, lacks, write_values
from sharpwave.serve.link import RETRY_S, Link, ShardLostError
from sharpwave.serve.replica_content import (
    END,
    RUNS,
    agree,
    checked_columns,
    delete_runs,
    deleted_runs,
    finish_deletions,
    lacking,
    message,
    placed,
    runs_in,
    said,
    segments_of,
    take,
    values_after,
)
from sharpwave.serve.wire import Frame, Part, Request, WireError, array_in
from sharpwave.spec import Field
from sharpwave.store import Store

CHANGE_S = 30.0
"""Time that a deletion, or a change of columns or of values, waits for the neighbor."""
Leases = dict[str, tuple[int, int]]
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


class Keeper:
    """Replica of another shard that this one keeps: a store without views, and that shard's leases.

    Args:
        number: of the other shard. ``path``: file for its leases. ``pending``: as for ``take``.
    """

    def __init__(self, number: int, store: Store, path: Path, pending: Path | None = None) -> None:
        self.number, self.store, self._path, self._pending = number, store, path, pending
        self._leases = read_leases(path)
        self._complete = False  # whether it has had all values of the other shard since this process has kept it
        self._lock = threading.Lock()

    def keep(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Append the segments of a request, delete its steps ``deleted``, and note its leases; return how many steps
        the replica has had of each lane."""
        self._check(frame)
        leases, runs = checked_leases(frame.head.get("leases", {})), runs_in(frame.parts)
        with self._lock:
            finish_deletions(self.store, self._pending)
            if leases.items() - self._leases.items():
                self._leases |= leases
                write_whole(self._path, json.dumps(self._leases))
            take(self.store, segments_of(frame), runs, self._pending)
        if frame.head.get("durable"):
            self.store.flush(views=False)
        return {"leases": self._leases}, {"lane_steps": self.store.lane_steps}

    def give(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return segments that a shard lacks which has had ``lane_steps``; none: it has all."""
        self._check(frame)
        steps = array_in(frame.parts, "lane_steps", np.int64, -1)
        with self._lock:
            finish_deletions(self.store, self._pending)
            return message(*lacking(self.store, steps))

    def keep_columns(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Have the ``columns`` of a request and no others, or write the values of one, as a client's request brings
        them; return how many of their steps are held. ``complete``: the other shard has no more values."""
        self._check(frame)
        head, written = frame.head, 0
        with self._lock:
            if "columns" in head:
                agree(self.store, checked_columns(head["columns"]))
            if "name" in head:
                written = write_values(self.store, head, frame.parts)
            self._complete |= bool(head.get("complete"))
        return {"written": written}, {}

    def give_columns(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return which columns and deleted steps there are, and whether these are ``complete``; or the values of one
        from a slot on, as of ``values_after``."""
        self._check(frame)
        name, begin = frame.head.get("name"), frame.head.get("begin", 0)
        if type(begin) is not int or begin < 0:
            raise WireError(f"values of a replica from slot {begin!r} on")
        with self._lock:
            if name is not None:
                end, parts = values_after(self.store, name, begin)
                return {"end": end}, parts
            finish_deletions(self.store, self._pending)
            with self.store._lock:
                runs = deleted_runs(self.store)
            return {"columns": said(self.store.columns), "complete": self._complete}, {"deleted": runs}

    def _check(self, frame: Frame) -> None:
        if frame.head.get("of") != self.number:
            raise ValueError(f"replica of shard {frame.head.get('of')!r}: this one keeps that of {self.number}")


class Neighbour:
    """Neighbor: the shard that keeps this one's replica.

    After every connection, each shard first gets the segments that only the other has; only then are any acknowledged.
    Values of columns are acknowledged once both have them. A process that begins again first gets them from the
    replica, which has later ones than its folder; then, and after every later connection, the replica gets those of
    the shard.

    Args:
        number: of this shard. ``leases``: returns this shard's leases. ``adopt``: called with the neighbor's leases.
        pending: as for ``take``.

    Attributes:
        trouble: why the neighbor was last not reached, or not made level; "": it was.
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
        self._began_empty = not store.total_steps and not store.columns
        self.trouble = ""
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
            self._send_deleted(runs)
            return delete_here()

        return self._level_then(in_both, CHANGE_S, gone)

    def add_column(self, name: Any, field: Field, gone: Callable[[], bool]) -> None:
        """Add a column to both, unless they have it.

        Raises: ShardLostError: the neighbor cannot be reached; and as ``late_values.add``.
        """
        self._level_then(lambda: self._add(name, field), CHANGE_S, gone)

    def drop_column(self, name: Any, gone: Callable[[], bool]) -> None:
        """Drop a column from both, the replica first: a shard that is restored does not bring it back.

        Raises: ShardLostError: the neighbor cannot be reached; and as ``late_values.drop``.
        """

        def in_both() -> None:
            self._keep_columns({other: field for other, field in self._store.columns.items() if other != name})
            drop(self._store, name)

        self._level_then(in_both, CHANGE_S, gone)

    def write_column(self, head: Mapping[str, Any], parts: Mapping[str, Any], gone: Callable[[], bool]) -> int:
        """Write the values of a request to both; return the number of its steps that are held here.

        Raises: ShardLostError: the neighbor cannot be reached; and as ``late_values.write_values``.
        """

        def in_both() -> int:
            written = write_values(self._store, head, parts, self._add)
            if sum(self._send_values(head["name"], one) for one in placed(self._store, parts)) < written:
                self._send_missing()  # segments that are on their way to the replica
                for one in placed(self._store, parts):
                    self._send_values(head["name"], one)
            return written

        return self._level_then(in_both, CHANGE_S, gone)

    def _add(self, name: Any, field: Field) -> None:
        """Add a column, to the replica first: what that has no room for, this shard does not get."""
        if lacks(self._store, name, field):
            self._keep_columns({**self._store.columns, name: field})
        add(self._store, name, field)

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
                    result = act()
                    self.trouble = ""
                    return result
            except ShardLostError as error:
                self.trouble = str(error)
                if gone() or time.monotonic() > deadline:
                    raise
            except Exception as error:
                if self._made_level != self._link.connections:  # otherwise it is of ``act``
                    self.trouble = f"{type(error).__name__}: {error}"
                raise
            time.sleep(RETRY_S)

    def _sent(self, segments: Sequence[Copy], durable: bool = False, deleted: Ints | None = None) -> list[int]:
        head, parts = message(segments, deleted)
        reply = self._link.call(
            Request.REPLICATE, {**head, "of": self._number, "leases": self._leases(), "durable": durable}, parts
        )
        self._adopt(checked_leases(reply.head.get("leases")))
        return [int(steps) for steps in reply.parts["lane_steps"]]

    def _send_deleted(self, runs: Ints) -> None:
        """Delete runs of steps in the replica."""
        for begin in range(0, len(runs), RUNS):
            self._sent((), deleted=runs[begin : begin + RUNS])

    def _bring_level(self) -> None:
        connection = self._link.connections
        finish_deletions(self._store, self._pending)
        self._sent(())
        restores = not self.level and self._take_columns()  # before segments that leave no room for them
        while True:
            steps = self._store.lane_steps
            reply = self._link.call(Request.RESTORE, {"of": self._number}, {"lane_steps": steps})
            take(self._store, segments_of(reply), runs_in(reply.parts), self._pending)
            if not reply.parts or not (self._store.lane_steps.sum() > steps.sum()):
                break
        if restores:
            self._take_values()
        self._keep_columns(self._store.columns)
        self._send_missing()
        with self._store._lock:
            runs = deleted_runs(self._store)
        self._send_deleted(runs)  # also of a folder that was changed while it was not served
        for name in self._store.columns:
            begin = 0
            while begin != END:
                begin, values = values_after(self._store, name, begin)
                self._send_values(name, values)
        self._link.call(Request.KEEP_COLUMNS, {"of": self._number, "complete": True})
        self._made_level = connection

    def _take_columns(self) -> bool:
        """Have the replica's columns, and delete what was deleted there, where its process has gone on; or where this
        shard began empty. Return False: both begin again, and this shard's folder has all that was flushed."""
        reply = self._link.call(Request.GIVE_COLUMNS, {"of": self._number})
        if not (reply.head.get("complete") or self._began_empty):
            return False
        with self._store._log.saving, self._store._lock:
            delete_runs(self._store, runs_in(reply.parts))
        agree(self._store, checked_columns(reply.head.get("columns")))
        return True

    def _take_values(self) -> None:
        """Write the replica's values over those of this shard."""
        for name, field in self._store.columns.items():
            begin = 0
            while begin != END:
                reply = self._link.call(Request.GIVE_COLUMNS, {"of": self._number, "name": name, "begin": begin})
                write_values(self._store, {"name": name, "field": described(field)}, reply.parts)
                begin = int(reply.head["end"])

    def _keep_columns(self, columns: Columns) -> None:
        """Let the replica have these columns and no others."""
        self._link.call(Request.KEEP_COLUMNS, {"of": self._number, "columns": said(columns)})

    def _send_values(self, name: str, values: Mapping[str, Part]) -> int:
        """Send values of a column to the replica; return of how many it has the steps."""
        field = described(self._store.columns[name])
        reply = self._link.call(Request.KEEP_COLUMNS, {"of": self._number, "name": name, "field": field}, values)
        return int(reply.head["written"])

    def _send_missing(self) -> None:
        """Send the segments that the neighbor lacks."""
        while True:
            theirs = np.array(self._sent(()), np.int64)
            missing, deleted = lacking(self._store, theirs)
            if not missing or sum(self._sent(missing, deleted=deleted)) <= theirs.sum():
                break
