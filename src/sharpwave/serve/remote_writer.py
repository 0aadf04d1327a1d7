"""Writer of steps into a shard: a segment writer whose segments are delivered once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from sharpwave.errors import not_to_be_copied
from sharpwave.segment_writer import SegmentWriter
from sharpwave.serve.delivery import Delivery
from sharpwave.serve.forks import follow
from sharpwave.spec import Spec


class RemoteWriter(SegmentWriter):
    """Writer of steps into a shard of a cluster. Made by ``Cluster.writer``; a ``Recorder`` can write into it.

    Segments are kept until the shard has acknowledged them, and sent again where its connection broke. While the shard
    is away, or a limiter holds writers up, steps are encoded until ``sharpwave.serve.delivery.WINDOW`` segments wait;
    then ``extend`` blocks, up to the writer's ``timeout``. Where the shard is drained, lanes move to another one.

    Attributes:
        delivery: the segments on their way: ``waiting``, ``acknowledged``, ``resent``.
    """

    def __init__(
        self,
        spec: Spec,
        delivery: Delivery,
        *,
        codec: str | Mapping[str, str] = "auto",
        segment_steps: int | None = None,
        strict: bool = False,
    ) -> None:
        self.delivery = delivery
        super().__init__(
            spec,
            delivery.lanes,
            delivery.put,
            first_lane=delivery.first_lane,
            first_steps=[step + (step > 0) for step in delivery.lane_steps],
            codec=codec,
            segment_steps=min(segment_steps or delivery.segment_steps, delivery.segment_steps),
            strict=strict,
        )
        follow(self)

    def forked(self) -> None:
        """Take a lock that no thread of the parent holds, so that ``extend`` can say whose writer it is."""
        self._lock._at_fork_reinit()

    def extend(self, **step: Any) -> None:
        """Append one step to each of several lanes: as ``Store.extend``.

        Args:
            step: its arguments, ``timeout`` among them: seconds to wait while too many segments are on the way;
                default: the writer's.

        Raises:
            ValueError: the cluster was closed.  LimiterTimeoutError: too many segments wait for the shard.
        """
        self.delivery.check()
        with self.delivery.within(step.pop("timeout", None)):
            super().extend(**step)
            if self.delivery.moving:
                self.delivery.leave(self)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the shard has every sealed segment. Steps in open segments stay here.

        Raises:
            LimiterTimeoutError: it did not take them in time.
        """
        self.delivery.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Break the lanes' episodes off, send all that is there, and disconnect; also where the cluster was closed
        before, as long as its shards go on.

        Raises:
            LimiterTimeoutError: the shard did not take all in time.  ValueError: shards have ended with their cluster.
        """
        self.delivery.check_process()
        for lane in range(self.delivery.lanes):
            self.break_episode(lane)
        self.seal()
        self.flush(timeout)
        self.delivery.close()

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self, "connect to its cluster, and make a writer with cluster.writer()")
