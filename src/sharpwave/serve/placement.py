"""Placement of a writer: which shard gets its lanes. A writer of a name comes to the shard that has that name."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress

from sharpwave.serve.link import RETRY_S, Link, ShardLostError
from sharpwave.serve.requests import Request

Known = tuple[bool, int]
"""Whether the shard that has a name takes writers, and the turn of the latest writer of that name there."""


def home(name: str, shards: int) -> int:
    """Return the shard, of so many, that a writer's name comes to where none has it: the same in every process.

    Names that end in numbers, as "actor-0", "actor-1", ..., come to one shard after the other.
    """
    stem = name.rstrip("0123456789")
    return (zlib.crc32(stem.encode(errors="replace")) + int(name[len(stem) :][-9:] or 0)) % shards


def turned(shards: int, begin: int) -> list[int]:
    """Return the numbers of so many shards, one after the other, from one on; ``begin`` may be beyond them."""
    return [(begin + number) % shards for number in range(shards)]


def placed(name: str, links: Callable[[], Sequence[Link]], timeout: float) -> list[int]:
    """Return the numbers of the shards to try for a writer of a name, in order: the one that has the name, else all,
    its home first.

    While a shard is away that may have it, and no other has, that is waited for, up to ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        there = list(links())
        known, away = _asked(name, there)
        if known:
            return [max(known, key=lambda number: known[number])]
        if not away or time.monotonic() >= deadline:
            return turned(len(there), home(name, len(there)))
        time.sleep(RETRY_S)


def _asked(name: str, links: Sequence[Link]) -> tuple[dict[int, Known], bool]:
    """Ask all shards for a writer's name; return those that have it, and whether one did not say."""
    known: dict[int, Known] = {}
    away = False
    own = [link.another() for link in links]  # a learner's requests may be on their way on the others
    tickets: list[int | None] = []
    try:
        for link in own:
            tickets.append(None)
            with suppress(ShardLostError):
                tickets[-1] = link.submit(Request.FIND, {"name": name})
        for number, (link, ticket) in enumerate(zip(own, tickets, strict=True)):
            try:
                if ticket is None:
                    raise ShardLostError(str(link.address))
                head = link.wait(ticket).head
            except ShardLostError:
                away = True
                continue
            if head.get("lanes"):
                known[number] = not head.get("drained"), int(head.get("turn", 0))
            away = away or not head.get("complete")
    finally:
        for link in own:
            link.close()
    return known, away
