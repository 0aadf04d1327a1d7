"""Shards as parts of a cluster's batches: each knows its mass, draws the items asked of it, and gives their rows.

A store's view gives its rows of a batch in one call, under a lock, and can undo that (``views/view_parts.py``). A shard
is the asynchronous case, in three steps:

- requested: ``remote_batches.py`` divides a batch among the shards by their masses, as of their last replies, and sends
  each its points. Further batches may be requested before the first reply.
- ready: replies arrive in order over each link. Every reply has the shard's mass, count and uses after it.
- taken: the rows lie in the batch's memory, or are decoded into it. Nothing is undone: rows that a shard lacks are
  requested anew, of all shards, and where uses are limited those of the other shards are kept meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharpwave.sampling.limiters import Cursor, Limiter
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.members import Members
from sharpwave.serve.wire import Frame, Part, Request, ViewState

MAX_AHEAD_STEPS = 1 << 24
Content = tuple[Mapping[str, Any], Mapping[str, Part]]
"""Head and parts of a request."""


@dataclass(eq=False)
class ShardPart:
    """View of one shard, as far as the client knows it.

    Attributes:
        connection: of the ``link``, in which ``view`` is the view's number; -1: the shard does not answer.
        told: time of its last answer. ``credit``: total number of steps that it was last allowed to take.
        newest: number of the request whose reply brought ``state``. ``asked``: number and items of each later draw,
            which ``state`` does not count.
    """

    link: Link
    state: ViewState = field(default_factory=ViewState)
    view: int = -1
    connection: int = -1
    told: float = 0.0
    credit: int = 0
    newest: int = 0
    asked: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def ahead(self) -> int:
        """Items that were asked for, and that its state does not count."""
        return sum(items for _, items in tuple(self.asked))  # at once: other threads ask

    @property
    def mass(self) -> float:
        """Mass for another draw: where uses are limited, of no more than nothing was asked for yet."""
        return self.state.mass if self.state.uses < 0 else max(0.0, min(self.state.mass, self.state.uses - self.ahead))

    def hear(self, reply: Frame) -> None:
        """Take over the view's state of a reply."""
        if reply.number >= self.newest:  # otherwise a late one, after others that were handled
            self.state, self.told = ViewState.read(reply.head.get("state")), time.monotonic()
            self.newest = reply.number
            while self.asked and self.asked[0][0] <= reply.number:
                self.asked.popleft()


class ShardParts:
    """One view in each shard, by each shard's last answer.

    Args:
        members: the cluster's. ``asked``: the view's request. ``limiter``: bounds it; ``windows``: whether its items
            are windows.

    Attributes:
        known: parts by shard number. ``limits_uses``: whether an item's uses are limited.
        lacks: says of an id that there is no such item. ``after``: whether batches have the next observation.
    """

    lacks, after = "was evicted, or its successor is not known yet", True

    def __init__(self, members: Members, asked: Mapping[str, Any], limiter: Limiter | None, windows: bool) -> None:
        self.members, self._asked, self._limiter, self._windows = members, dict(asked), limiter, windows
        self.known: dict[int, ShardPart] = {}
        self.limits_uses = self._asked["max_times_sampled"] is not None

    @property
    def ahead(self) -> int:
        """Items that were asked for, and that no state counts."""
        return sum(one.ahead for one in self.known.values())

    @property
    def links(self) -> dict[int, Link]:
        """Links to the shards that are there, by number.  Raises: ValueError: the cluster was closed."""
        self.members.check_open()
        return dict(enumerate(self.members.links))

    @property
    def states(self) -> list[ViewState]:
        """Latest state of each shard."""
        return [one.state for one in self.known.values()]

    def connected(self, number: int) -> ShardPart:
        """Connect to a shard; return its part.  Raises: ShardLostError."""
        self.members.check_open()
        links = self.members.links
        if number >= len(links):
            raise ShardLostError("shard: gone")
        link = links[number]
        link.connect()
        shard = self.known.get(number)
        if shard is None or shard.link is not link:
            shard = self.known[number] = ShardPart(link)
        return shard

    def ensure(self, number: int) -> ShardPart:
        """Make sure that a shard has the view; return its part.  Raises: ShardLostError."""
        shard = self.connected(number)
        link = shard.link
        if shard.connection != link.connections:
            seed = int(np.random.SeedSequence([self._asked["seed"], number]).generate_state(1)[0])
            reply = link.call(Request.VIEW, self._asked | {"seed": seed})
            shard.view, shard.connection = int(reply.head["view"]), link.connections
            shard.hear(reply)
            if self._limiter is None:  # the limits of an earlier learner would otherwise block writers for ever
                link.drop(link.submit(Request.CREDIT, self.head(shard)))
        return shard

    def lost(self, number: int) -> None:
        """Note that a shard does not answer: nothing is drawn from it until it does."""
        shard = self.known.get(number)
        if shard is not None:
            shard.state = replace(shard.state, mass=0.0, count=0, uses=-1 if shard.state.uses < 0 else 0)
            shard.connection = -1
            shard.asked.clear()

    def check_reached(self) -> None:
        """Raise ShardLostError if no shard answers."""
        if not any(one.connection >= 0 for one in self.known.values()):
            lost = ", ".join(str(link.address) for link in self.links.values())
            raise ShardLostError(f"sample: no shard can be reached: {lost or 'there is none'}")

    def head(self, shard: ShardPart) -> dict[str, Any]:
        """Return the head that every request of this view has."""
        largest = max((one.state.max_priority for one in self.known.values()), default=1.0)
        return {"view": shard.view, "max_priority": float(largest)}

    def ask(
        self,
        kind: Request,
        numbers: Iterable[int],
        content: Callable[[int], Content] = lambda _: ({}, {}),
        *,
        wait: bool = True,
    ) -> dict[int, Frame]:
        """Send shards a request each, then take their replies; return them, without those of lost shards.

        Args:
            content: returns a shard's request, once the shard has the view. ``wait``: whether the replies matter.
        """
        tickets: dict[int, tuple[ShardPart, int]] = {}
        replies: dict[int, Frame] = {}
        for number in numbers:
            try:
                shard = self.ensure(number)
                head, parts = content(number)
                tickets[number] = shard, shard.link.submit(kind, {**self.head(shard), **head}, parts)
            except ShardLostError:
                self.lost(number)
        for number, (shard, ticket) in tickets.items():
            if not wait:
                shard.link.drop(ticket)
                continue
            try:
                replies[number] = shard.link.wait(ticket)
                shard.hear(replies[number])
            except ShardLostError:
                self.lost(number)
        return replies

    def refresh(self, older_s: float = 0.0) -> None:
        """Ask each shard for its state if its last answer is older than ``older_s`` seconds."""
        self.members.renew()
        links, before = self.links, time.monotonic() - older_s
        for number in [one for one, shard in self.known.items() if shard.link is not links.get(one)]:
            del self.known[number]  # a lost shard, whose limiter's counts another shard has taken over
        old = [number for number in links if number not in self.known or self.known[number].told <= before]
        self.ask(Request.STATE, [number for number in old if links[number].may_be_tried()])

    # the limiter

    @property
    def cursor(self) -> Cursor:
        """Progress of the view in all shards."""
        states, ahead = self.states, self.ahead
        uses = sum(state.uses for state in states) - ahead if any(state.uses >= 0 for state in states) else float("inf")
        size = sum(state.count for state in states)
        inserts, samples = sum(state.inserts for state in states), sum(state.samples for state in states)
        return Cursor(inserts, samples + ahead, size, uses if size else 0, self._windows)

    def give_credit(self) -> None:
        """Tell every shard the total number of steps that it may take, where a limiter bounds them.

        Shards with less credit are told first; others get more credit only once these know. Otherwise the shards
        together would take too many steps.
        """
        if self._limiter is None:
            return
        credit = self._credit(self._limiter)
        less = {number: inserts for number, inserts in credit.items() if inserts < self.known[number].credit}
        if less:
            self._tell_credit(less, wait=True)
            credit = self._credit(self._limiter)
        self._tell_credit({number: n for number, n in credit.items() if n > self.known[number].credit - (not less)})

    def _tell_credit(self, credit: Mapping[int, int], *, wait: bool = False) -> None:
        def total(number: int) -> Content:
            self.known[number].credit = credit[number]
            return {"inserts": credit[number]}, {}

        self.ask(Request.CREDIT, credit, total, wait=wait)

    def _credit(self, limiter: Limiter) -> dict[int, int]:
        """Return the total of steps up to which each shard may take some, so that the limiter is kept."""
        cursor = self.cursor
        low, high = 0, MAX_AHEAD_STEPS  # the most steps after which one more need not wait
        while low < high:
            middle = (low + high) // 2
            then = replace(cursor, inserts=cursor.inserts + middle, size=cursor.size + middle)
            if limiter.append_waits(1, then) is None:
                low = middle + 1
            else:
                high = middle
        alive = [number for number in self.links if number in self.known and self.known[number].connection >= 0]
        each = -(-low // max(1, len(alive)))
        return {number: self.known[number].state.inserts + each for number in alive}
