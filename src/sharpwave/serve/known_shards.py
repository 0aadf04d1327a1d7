"""Knowledge of one view in each shard of a cluster: masses, counts, and the shards that answer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharpwave.sampling.limiters import Cursor, Limiter
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.members import Members
from sharpwave.serve.wire import Frame, Request, ViewState

MAX_AHEAD_STEPS = 1 << 24


@dataclass
class KnownShard:
    """State of a view of one shard, as far as the client knows it.

    Attributes:
        connection: of the ``link``, in which ``view`` is the view's number. ``told``: time of its last answer.
        credit: total number of steps that it was last allowed to take.
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


class KnownShards:
    """One view in each shard, by each shard's last answer.

    Args:
        members: the cluster's. ``asked``: the view's request. ``limited``: whether a limiter bounds it.

    Attributes:
        known: state by shard number. ``limits_uses``: whether an item's uses are limited.
    """

    def __init__(self, members: Members, asked: Mapping[str, Any], limited: bool) -> None:
        self.members, self._asked = members, dict(asked)
        self.known: dict[int, KnownShard] = {}
        self._limited, self.limits_uses = limited, self._asked["max_times_sampled"] is not None

    @property
    def ahead(self) -> int:
        """Items that were asked for, and that no state counts."""
        return sum(one.ahead for one in self.known.values())

    @property
    def links(self) -> dict[int, Link]:
        """Links to the shards that are there, by number.  Raises: ValueError: the cluster was closed."""
        self.members.check_open()
        return dict(enumerate(self.members.links))

    def ensure(self, number: int) -> Link:
        """Make sure that a shard has the view; return the link to it.  Raises: ShardLostError."""
        self.members.check_open()
        links = self.members.links
        if number >= len(links):
            raise ShardLostError("shard: gone")
        link = links[number]
        link.connect()
        shard = self.known.get(number)
        if shard is None or shard.link is not link:
            shard = self.known[number] = KnownShard(link)
        if shard.connection != link.connections:
            seed = int(np.random.SeedSequence([self._asked["seed"], number]).generate_state(1)[0])
            reply = link.call(Request.VIEW, self._asked | {"seed": seed})
            shard.view, shard.connection = int(reply.head["view"]), link.connections
            self.told(number, reply)
            if not self._limited:  # the limits of an earlier learner would otherwise block writers for ever
                link.drop(link.submit(Request.CREDIT, self.head(number)))
        return link

    def told(self, number: int, reply: Frame) -> None:
        """Take over the view's state of a shard's reply."""
        shard = self.known[number]
        if reply.number < shard.newest:  # a late reply: later ones were already handled
            return
        shard.state, shard.told = ViewState.read(reply.head.get("state")), time.monotonic()
        shard.newest = reply.number
        while shard.asked and shard.asked[0][0] <= reply.number:
            shard.asked.popleft()

    def lost(self, number: int) -> None:
        """Note that a shard does not answer: nothing is drawn from it until it does."""
        shard = self.known.get(number)
        if shard is None:
            return
        shard.state = replace(shard.state, mass=0.0, count=0, uses=-1 if shard.state.uses < 0 else 0)
        shard.connection = -1
        shard.asked.clear()

    def refresh(self, older_s: float = 0.0) -> None:
        """Ask each shard for its state if its last answer is older than ``older_s`` seconds."""
        self.members.renew()
        links = self.links
        for number in [one for one, shard in self.known.items() if shard.link is not links.get(one)]:
            del self.known[number]  # a lost shard, whose limiter's counts another shard has taken over
        before = time.monotonic() - older_s
        tickets: list[tuple[int, Link, int]] = []
        for number, link in links.items():
            if not link.may_be_tried() or (number in self.known and self.known[number].told > before):
                continue
            try:
                self.ensure(number)
                tickets.append((number, link, link.submit(Request.STATE, self.head(number))))
            except ShardLostError:
                self.lost(number)
        for number, link, ticket in tickets:
            try:
                self.told(number, link.wait(ticket))
            except ShardLostError:
                self.lost(number)

    def head(self, number: int) -> dict[str, Any]:
        """Return the head that every request of this view has."""
        largest = max((one.state.max_priority for one in self.known.values()), default=1.0)
        return {"view": self.known[number].view, "max_priority": float(largest)}

    @property
    def states(self) -> list[ViewState]:
        """Latest state of each shard."""
        return [one.state for one in self.known.values()]

    def cursor(self, windows: bool) -> Cursor:
        """Return the progress of the view in all shards; ``windows``: whether its items are windows."""
        states = self.states
        ahead = self.ahead
        uses = sum(state.uses for state in states) - ahead if any(state.uses >= 0 for state in states) else float("inf")
        size = sum(state.count for state in states)
        return Cursor(
            sum(state.inserts for state in states),
            sum(state.samples for state in states) + ahead,
            size,
            uses if size else 0,
            windows,
        )

    def give_credit(self, limiter: Limiter, cursor: Cursor) -> None:
        """Tell every shard the total number of steps that it may take.

        Shards with less credit are told first; others get more credit only once these know. Otherwise the shards
        together would take too many steps.
        """
        credit = self._credit(limiter, cursor)
        less = {number: inserts for number, inserts in credit.items() if inserts < self.known[number].credit}
        for number, ticket in self._tell_credit(less).items():
            try:
                self.told(number, self.known[number].link.wait(ticket))
            except (ShardLostError, LookupError):  # or it was started again, and has not been asked for the view
                self.lost(number)
        if less:
            credit = self._credit(limiter, self.cursor(cursor.windows))
        more = {number: n for number, n in credit.items() if n > self.known[number].credit - (not less)}
        for number, ticket in self._tell_credit(more).items():
            self.known[number].link.drop(ticket)

    def _tell_credit(self, credit: Mapping[int, int]) -> dict[int, int]:
        """Ask shards to take steps up to their totals; return the number of each shard's request, but lost shards'."""
        tickets: dict[int, int] = {}
        for number, inserts in credit.items():
            shard = self.known[number]
            try:
                tickets[number] = shard.link.submit(Request.CREDIT, self.head(number) | {"inserts": inserts})
                shard.credit = inserts
            except ShardLostError:
                self.lost(number)
        return tickets

    def _credit(self, limiter: Limiter, cursor: Cursor) -> dict[int, int]:
        """Return the total of steps up to which each shard may take some, so that the limiter is kept."""
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
