"""Single steps of a cluster by their ids: as batches of a view, but no shard makes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sharpwave.serve.late_values import Columns
from sharpwave.serve.members import Members
from sharpwave.serve.remote_batches import RemoteBatches
from sharpwave.serve.remote_ids import checked_steps
from sharpwave.serve.shard_parts import ShardPart, ShardParts
from sharpwave.store import Store
from sharpwave.views.batch import Batch
from sharpwave.views.ids import Tag
from sharpwave.views.stored_steps import StepSource
from sharpwave.views.view_protocol import STEPS


class StepParts(ShardParts):
    """The steps of each shard, of which no view is made."""

    lacks, after = "was evicted or deleted", False

    def __init__(self, members: Members) -> None:
        super().__init__(members, {"max_times_sampled": None}, None, False)

    def ensure(self, number: int) -> ShardPart:
        """Connect to a shard; return its part.  Raises: ShardLostError."""
        return self.connected(number)

    def head(self, shard: ShardPart) -> dict[str, Any]:
        """Return the head of a request: without a view."""
        return {}


def fetched_steps(
    members: Members, local: Store, columns: Columns, given: Any, shards: Any, fields: Sequence[str] | None
) -> Batch:
    """Return steps by their ids.

    Args:
        local: an empty store of the shards' spec, which lends memory. ``columns``: later columns of every batch.

    Raises: as ``Cluster.fetch``.
    """
    members.renew()
    parts, tag = StepParts(members), Tag(local._log.tag, STEPS)
    ids, incarnations = checked_steps("fetch", given, shards, tag, parts.links.values())
    source: Any = StepSource(local._log, tag)
    batches = RemoteBatches(parts, source, local._lock, 0, columns)
    batch: Batch = batches.fetched(ids, incarnations, batches.of_names(fields), "raise")
    return batch
