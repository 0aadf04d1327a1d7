"""Replicas: each shard's segments are kept by its neighbor too, so that a lost disk costs nothing acknowledged."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.shared import IS_SHARED
from sharpwave.errors import DuplicateError
from sharpwave.log.remote_segments import Copy, sealed_after
from sharpwave.serve.cluster_folder import write_whole
from sharpwave.serve.link import RETRY_S, Link, ShardLostError
from sharpwave.serve.value_parts import parts_of, values_of
from sharpwave.serve.wire import Frame, Part, Request, WireError
from sharpwave.store import Store

PART_BYTES = 4 << 20
"""Bytes of segments a request, while one store is brought up to another."""
Leases = dict[str, tuple[int, int]]
Ints = npt.NDArray[np.int64]


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


class Keeper:
    """Replica of another shard that this one keeps: a store without views, and that shard's leases.

    Args:
        number: of the other shard. ``path``: file for its leases.
    """

    def __init__(self, number: int, store: Store, path: Path) -> None:
        self.number, self.store, self._path = number, store, path
        self._leases = read_leases(path)
        self._lock = threading.Lock()

    def keep(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Append the segments of a request and note its leases; return how many steps the replica has of each lane."""
        self._check(frame)
        leases = checked_leases(frame.head.get("leases", {}))
        with self._lock:
            if leases.items() - self._leases.items():
                self._leases |= leases
                write_whole(self._path, json.dumps(self._leases))
            for one in segments_of(frame.parts, frame.head.get("keys", [])):
                append_once(self.store, *one)
        if frame.head.get("durable"):
            self.store.flush(views=False)
        return {"leases": self._leases}, {"lane_steps": self.store.lane_steps}

    def give(self, frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return segments that a shard lacks which has had ``lane_steps``; none: it has all."""
        self._check(frame)
        steps = frame.parts.get("lane_steps")
        if not isinstance(steps, np.ndarray) or steps.dtype != np.int64 or steps.ndim != 1:
            raise WireError("restore: expected lane_steps, int64 [lanes]")
        return message(lacking(self.store, steps))

    def _check(self, frame: Frame) -> None:
        if frame.head.get("of") != self.number:
            raise ValueError(f"replica of shard {frame.head.get('of')!r}: this one keeps that of {self.number}")


class Neighbour:
    """Neighbor: the shard that keeps this one's replica.

    After every connection, each shard first gets the segments that only the other has; only then are any acknowledged.

    Args:
        number: of this shard. ``leases``: returns this shard's leases. ``adopt``: called with the neighbor's leases.
    """

    def __init__(
        self, number: int, store: Store, link: Link, leases: Callable[[], Leases], adopt: Callable[[Leases], None]
    ) -> None:
        self._number, self._store, self._link = number, store, link
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
        deadline = time.monotonic() + patience_s
        while True:
            try:
                with self._lock:
                    self._link.connect()
                    if self._made_level != self._link.connections:
                        self._bring_level()
                    return self._sent(segments, durable)
            except ShardLostError:
                if gone() or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def _sent(self, segments: Sequence[Copy], durable: bool = False) -> list[int]:
        head, parts = message(segments)
        reply = self._link.call(
            Request.REPLICATE, {**head, "of": self._number, "leases": self._leases(), "durable": durable}, parts
        )
        self._adopt(checked_leases(reply.head.get("leases")))
        return [int(steps) for steps in reply.parts["lane_steps"]]

    def _bring_level(self) -> None:
        connection = self._link.connections
        self._sent(())
        while True:
            steps = self._store.lane_steps
            reply = self._link.call(Request.RESTORE, {"of": self._number}, {"lane_steps": steps})
            for one in segments_of(reply.parts, reply.head.get("keys", [])):
                append_once(self._store, *one)
            if not reply.parts or not (self._store.lane_steps.sum() > steps.sum()):
                break
        while True:
            theirs = np.array(self._sent(()), np.int64)
            missing = lacking(self._store, theirs)
            if not missing or sum(self._sent(missing)) <= theirs.sum():
                break
        self._made_level = connection


def lacking(store: Store, lane_steps: Ints) -> list[Copy]:
    """Return the first of a store's segments that another lacks which has had ``lane_steps``."""
    with store._lock:
        store._log.check_open()
        return sealed_after(store._log, lane_steps, PART_BYTES)


def message(segments: Sequence[Copy]) -> tuple[dict[str, Any], dict[str, Part]]:
    """Return the head and the parts of a message of segments, each dictionary and shared value once."""
    parts: dict[str, Part] = {f"segment:{k}": one.packed for k, one in enumerate(segments)}
    dictionaries: dict[int, bytes] = {}
    for one in segments:
        dictionaries |= one.dictionaries
    parts |= {f"dictionary:{key:x}": data for key, data in dictionaries.items() if not key & IS_SHARED}
    keys = [[f"{key:x}" for key in one.dictionaries if not key & IS_SHARED] for one in segments]
    return {"keys": keys}, parts | parts_of(dictionaries)


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
