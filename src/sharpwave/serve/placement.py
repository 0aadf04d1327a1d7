"""Placement of writers: the shard for a writer's lanes. A writer returns to the shard that has its name."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress

from sharpwave.serve.link import RETRY_S, Link, ShardLostError
from sharpwave.serve.wire import Request


def home(name: str, shards: int) -> int:
    """Return the home shard, of so many, of a writer's name that no shard has: the same in every process.

    Names that end in numbers, such as "actor-0", "actor-1", ..., get one shard after the other.
    """
    stem = name.rstrip("0123456789")
    return (zlib.crc32(stem.encode(errors="replace")) + int(name[len(stem) :][-9:] or 0)) % shards


def turned(shards: int, begin: int) -> list[int]:
    """Return the numbers of so many shards, one after the other, from one on; ``begin`` may be beyond them."""
    return [(begin + number) % shards for number in range(shards)]


def placed(name: str, links: Callable[[], Sequence[Link]], timeout: float) -> list[int]:
    """Return the numbers of the shards to try for a writer of a name, in order: the shard that has the name, else all,
    its home first.

    If an unreachable shard may have the name, and no other shard has it, wait for that shard, up to ``timeout``
    seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        there = list(links())
        turns, away = _turns(name, there)
        if turns:
            return [max(turns, key=lambda number: turns[number])]
        if not away or time.monotonic() >= deadline:
            return turned(len(there), home(name, len(there)))
        time.sleep(RETRY_S)


def _turns(name: str, links: Sequence[Link]) -> tuple[dict[int, int], bool]:
    """Ask all shards for a writer's name; return each holder's latest turn, and whether any shard did not answer."""
    turns: dict[int, int] = {}
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
                turns[number] = int(head.get("turn", 0))
            away = away or not head.get("complete")
    finally:
        for link in own:
            link.close()
    return turns, away
