"""Ids of a cluster's steps and items, which name them together with the shards that they are of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.views.ids import Tag, tag_of
from sharpwave.views.view_replay import checked_ids, on_host

IDS_ALONE = (
    "ids alone do not say which shard they are of, nor whether it began anew since; pass the batch itself, or "
    "shards=batch.shards"
)
"""Refusal of ids without shards, also of the only shard: one that began anew has other steps under these ids."""


def checked_steps(what: str, given: Any, shards: Any, tag: Tag, links: Iterable[Link]) -> tuple[Ints, Ints]:
    """Return ids, or a batch's ids, and the incarnations of their shards, both int64 [n].

    Another client of the same shards may have got the ids, whose tag then differs.

    Args:
        shards: of ids; ``None``: a batch has them. ``tag``: of the ids that this client gets.

    Raises: ValueError: no ids, ids without shards, or of another cluster or of items of another kind.
    """
    shards = getattr(given, "shards", None) if shards is None else shards
    other = tag_of(getattr(given, "ids", given))
    if isinstance(other, Tag) and other.store is not tag.store and _is_ours(shards, links):
        tag = Tag(other.store, tag.space)
    ids = checked_ids(what, given, tag)
    return ids, checked_shards(what, shards, len(ids))


def _is_ours(shards: Any, links: Iterable[Link]) -> bool:
    """Return whether any of these shards are those at the end of ``links``."""
    return shards is not None and bool(np.isin(on_host(shards), incarnations(links)).any())


def checked_shards(what: str, shards: Any, count: int) -> Ints:
    """Return the shards of so many items.  Raises: ValueError."""
    if shards is None:
        raise ValueError(f"{what}: {IDS_ALONE}")
    found = on_host(shards)
    if found.shape != (count,) or (count and found.dtype.kind not in "iu"):
        raise ValueError(f"shards: got shape {found.shape} {found.dtype}, expected int64 [{count}]")
    return found.astype(np.int64, copy=False)


def incarnations(links: Iterable[Link]) -> list[int]:
    """Return the incarnations of the shards that can be reached."""
    found = []
    for link in links:
        with suppress(ShardLostError):
            link.connect()
            found.append(link.incarnation)
    return found
