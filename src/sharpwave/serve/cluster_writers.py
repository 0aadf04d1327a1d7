"""How a cluster is written to: writers, each of lanes of one shard."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

from sharpwave.arguments import is_integer
from sharpwave.persistence.settings import MAX_SEGMENT_STEPS
from sharpwave.sampling.limiters import check_timeout
from sharpwave.serve.delivery import Delivery
from sharpwave.serve.link import RETRY_S, ShardLostError
from sharpwave.serve.members import Members
from sharpwave.serve.placement import placed, turned
from sharpwave.serve.remote_writer import RemoteWriter
from sharpwave.serve.requests import Request
from sharpwave.spec import Spec
from sharpwave.validation import MAX_LANES


class ClusterWriters:
    """The part of a cluster that makes writers."""

    spec: Spec
    _members: Members
    _writers: int

    def writer(
        self,
        lanes: int = 1,
        *,
        name: str | None = None,
        shard: int | None = None,
        durability: str = "memory",
        segment_steps: int | None = None,
        codec: str | Mapping[str, str] = "auto",
        strict: bool = False,
        timeout: float | None = None,
    ) -> RemoteWriter:
        """Make a writer of ``lanes`` lanes, which one shard gets: for a ``Recorder``, or to call ``extend``.

        Args:
            name: of the writer. One that replaces another of the same name goes on with its lanes, in its shard.
            shard: number of the shard; default: the one that has the name; a new name's follows from the name and the
                number of shards, and writers without one get one after the other, without those that cannot be
                reached. Where that is drained, another.
            durability: "memory": a segment is acknowledged once it is in the shard's store; "flush": once it is on the
                shard's disk, which the cluster must have.
            segment_steps: steps in a segment; default, and at most: the shard's, 32 unless it was made with another.
                With fewer the shard holds fewer steps than its capacity says.
            strict: as for ``Store``: steps that never happened are an error of ``extend``, and else a warning here. The
                cluster's ``stats()`` count them once the segments that follow have arrived.
            timeout: seconds that the writer waits for its shard, and at first for those that are away and may have its
                name; default 60.

        Raises:
            ValueError: an invalid argument.  ShardLostError: the shard cannot be reached.
        """
        if durability not in ("memory", "flush"):
            raise ValueError(f"writer: durability={durability!r}, expected 'memory' or 'flush'")
        lanes = _checked("lanes", lanes, MAX_LANES)
        if segment_steps is not None:
            segment_steps = _checked("segment_steps", segment_steps, MAX_SEGMENT_STEPS)
        deadline = time.monotonic() + check_timeout("writer", timeout)
        while True:
            try:
                delivery = self._delivery(lanes, name, shard, durability, timeout, deadline)
                try:
                    return RemoteWriter(self.spec, delivery, codec=codec, segment_steps=segment_steps, strict=strict)
                except BaseException:
                    delivery.close()
                    raise
            except ShardLostError:  # the one that has the name may have been lost just after it said so
                if name is None or shard is not None or time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_S)

    def _delivery(
        self, lanes: int, name: str | None, shard: int | None, durability: str, timeout: float | None, deadline: float
    ) -> Delivery:
        """Return lanes of the first shard that can be reached of those that may have them.

        Raises: ShardLostError, ValueError.
        """
        links = list(self._members.now())  # which may come and go meanwhile
        if shard is not None:
            tried = [shard]
        elif name is not None:
            tried = placed(str(name), self._members.now, max(0.0, deadline - time.monotonic()))
            links = list(self._members.now())
        else:  # one after the other, and past those that are away
            tried = turned(len(links), self._writers + os.getpid())
            self._writers += 1
        for number in tried:
            if number not in range(len(links)):
                raise ValueError(f"writer: shard={number!r}, expected one of {[*range(len(links))]}")
            try:
                link = links[number].another()
                if durability == "flush" and not link.call(Request.DESCRIBE).head["on_disk"]:
                    raise ValueError(
                        "writer: durability='flush', but this cluster has no disk to sync to; give it disk=, or write "
                        "with durability='memory'"
                    )
                return Delivery(
                    link,
                    uuid.uuid4().hex if name is None else str(name),
                    lanes,
                    durable=durability == "flush",
                    timeout=timeout,
                    number=number,
                    others=self._members.now,
                    check_open=self._members.check_open,
                )
            except ShardLostError:
                if number == tried[-1]:
                    raise
        raise ShardLostError("writer: the cluster has no shard at present; try again")


def _checked(name: str, value: Any, most: int) -> int:
    """Return an argument as an integer.  Raises: ValueError."""
    if not is_integer(value) or not 1 <= value <= most:
        raise ValueError(f"writer: {name}={value!r}, expected an integer from 1 to {most}")
    return int(value)
