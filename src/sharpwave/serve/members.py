"""Members of a cluster: a client's links to all shards, the shard that has a writer's name, and the views in use."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Any, Protocol

from sharpwave.native.forks import follow
from sharpwave.serve.addresses import Address, Security, machine, nearest, reachable
from sharpwave.serve.link import READY_S, RETRY_S, Link, OtherShardLostError, ShardLostError, ask_each
from sharpwave.serve.wire import Request
from sharpwave.spec import Spec

RENEW_S = 5.0
"""Period of asking a directory whether there are other shards."""
ASK_S = 1.0
"""Time in which it must answer that."""
PAUSE_S = 60.0
"""Pause before an unresponsive directory is asked again: connected clients work without it."""
Gone = tuple[str, Sequence[deque[Any]]]
"""Name of a freed object's view, and the batches that the object and its streams had requested."""


class Started(Protocol):
    """Shards that this process has started (``fleet.Fleet``)."""

    def __len__(self) -> int: ...
    def where(self) -> dict[str, Any]: ...
    def link(self, number: int) -> Link: ...


class Members:
    """Links to the shards: started by this process, named by a directory, or listening at given addresses.

    Args:
        fleet: shards that this process has started. ``directory``: lists the shards; ``said``: its answer.
        addresses: addresses of shards, if there is neither.

    Attributes:
        links: by number. ``views``: views that are used over them. ``deletions``: number of deletions by this client.
    """

    def __init__(
        self,
        security: Security,
        *,
        fleet: Started | None = None,
        directory: Address | None = None,
        said: Mapping[str, Any] | None = None,
        addresses: Sequence[Address] = (),
    ) -> None:
        self._security, self._fleet, self._directory = security, fleet, directory
        self._said = None if said is None or directory is None else reachable(said, directory)
        self._asked_at, self._lock = time.monotonic(), threading.RLock()
        self._closed = False
        self.deletions = 0
        self.links = [Link(one, security) for one in addresses]
        self._fit()
        self.views = ViewUses(self)
        follow(self)

    def forked(self) -> None:
        """Take a lock that no thread of the parent holds."""
        self._lock = threading.RLock()

    @property
    def directory(self) -> str:
        """Address of the directory; "": there is none."""
        return "" if self._directory is None else str(self._directory)

    def where(self) -> dict[str, Any]:
        """Return the addresses of each of ``shards``, and the ``machine`` that they are on, as a directory does."""
        if self._fleet is not None:
            return self._fleet.where()
        if self._said is not None:
            return dict(self._said)
        return {"shards": [[str(link.address)] for link in self.links], "machine": machine()}

    def check_open(self, sending: bool = False) -> None:
        """Refuse a cluster that was closed.  Raises: ValueError.

        Args:
            sending: segments of before the end, for shards that did not end with the cluster.
        """
        if self._closed and (self._fleet is not None or not sending):
            raise ValueError("cluster: closed; make a new Cluster, or connect again, to go on")

    def now(self) -> list[Link]:
        """Return links to the shards that there are now, by number.  Raises: ValueError: closed."""
        self.renew()
        return self.links

    def renew(self, older_s: float = RENEW_S) -> bool:
        """Link to new shards, and drop links to shards that a restarted service lacks.

        Asks the directory only if its last answer is older than ``older_s`` seconds. Returns whether any link changed.

        Raises: ValueError: closed.
        """
        self.check_open()
        with self._lock:
            before = len(self.links)
            if self._directory is not None and self._asked_at <= time.monotonic() - older_s:
                self._asked_at = time.monotonic()
                try:
                    said = ask_directory(self._directory, self._security, None, ASK_S)
                except (OSError, RuntimeError):
                    self._asked_at += PAUSE_S
                    return False
                self._said = reachable(said, self._directory)
            self._fit()
            return len(self.links) != before

    def _fit(self) -> None:
        """Make links to new shards, and drop links to removed shards."""
        if self._fleet is not None:
            count = len(self._fleet)
        elif self._said is not None:
            count = len(self._said["shards"])
        else:
            return
        while len(self.links) > count:
            self.links.pop().close()
        new = range(len(self.links), count)
        if new and self._fleet is not None:
            self.links += [self._fleet.link(number) for number in new]
        elif new and self._said is not None and self._directory is not None:
            there = nearest(self._said, self._directory)
            self.links += [Link(there[number], self._security) for number in new]

    def call(
        self, kind: Request, head: Mapping[str, Any] | None = None, *, of_all: bool = True
    ) -> list[dict[str, Any]]:
        """Send a request to every shard, twice if its connection broke; return their replies' heads.

        Args:
            of_all: whether every shard must answer; else skip unreachable shards.

        Raises: ShardLostError: a required shard, or every shard, is unreachable.
        """
        self.renew()
        found: list[dict[str, Any]] = []
        lost: ShardLostError | None = None
        links = list(self.links)
        for link, reply in zip(links, ask_each(links, kind, head or {}), strict=True):
            try:  # again, if that was a connection of the shard's life before
                found.append((link.call(kind, head) if isinstance(reply, ShardLostError) else reply).head)
            except ShardLostError as error:
                if of_all:
                    raise
                lost = error
        if lost is not None and not found:
            raise lost
        return found

    def ask_service(self, kind: Request, head: Mapping[str, Any], patience_s: float) -> None:
        """Send a request to the directory's service.

        Raises: ShardLostError: it, or a shard that it needs, is away; and errors of the service.
        """
        assert self._directory is not None
        link = Link(self._directory, self._security, patience_s)
        try:
            link.call(kind, head)
        except OtherShardLostError as error:
            raise ShardLostError(str(error)) from error
        finally:
            link.close()

    def of_name(self, name: str, timeout: float) -> list[int]:
        """Return the numbers of the shards to try for a writer of a name, in order: the shard that has the name, else
        all, its home first.

        If an unreachable shard may have the name, and no other shard has it, wait for that shard, up to ``timeout``
        seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            there = list(self.now())
            turns, away = _turns(name, there)
            if turns:
                return [max(turns, key=lambda number: turns[number])]
            if not away or time.monotonic() >= deadline:
                return turned(len(there), home(name, len(there)))
            time.sleep(RETRY_S)

    def close(self) -> None:
        """Disconnect, for good."""
        self._closed = True
        for link in self.links:
            link.close()


def members_of(directory: Address, security: Security, said: Mapping[str, Any]) -> Members:
    """Return links to the shards of a directory's answer, or to a store that its own process serves."""
    if said.get("alone"):
        return Members(security, addresses=nearest(said, directory))
    return Members(security, directory=directory, said=said)


def ask_directory(
    address: Address, security: Security, spec: Spec | None, patience_s: float = READY_S
) -> dict[str, Any]:
    """Return a directory's reply: ``spec``, and addresses of ``shards``, made if there are none and it is given.

    Raises:
        ConnectionError, ValueError.
    """
    link = Link(address, security, patience_s=patience_s)
    try:
        return link.call(Request.DIRECTORY, {"spec": None if spec is None else spec.description()}).head
    finally:
        link.close()


# the shards of writers


def home(name: str, shards: int) -> int:
    """Return the home shard, of so many, of a writer's name that no shard has: the same in every process.

    Names that end in numbers, such as "actor-0", "actor-1", ..., get one shard after the other.
    """
    stem = name.rstrip("0123456789")
    return (zlib.crc32(stem.encode(errors="replace")) + int(name[len(stem) :][-9:] or 0)) % shards


def turned(shards: int, begin: int) -> list[int]:
    """Return the numbers of so many shards, one after the other, from one on; ``begin`` may be beyond them."""
    return [(begin + number) % shards for number in range(shards)]


def _turns(name: str, links: Sequence[Link]) -> tuple[dict[int, int], bool]:
    """Ask all shards for a writer's name; return each holder's latest turn, and whether any shard did not answer."""
    own = [link.another() for link in links]  # a learner's requests may be on their way on the others
    try:
        replies = dict(enumerate(ask_each(own, Request.FIND, {"name": name})))
    finally:
        for link in own:
            link.close()
    heads = {number: reply.head for number, reply in replies.items() if not isinstance(reply, ShardLostError)}
    turns = {number: int(head.get("turn", 0)) for number, head in heads.items() if head.get("lanes")}
    return turns, len(heads) < len(own) or not all(head.get("complete") for head in heads.values())


# views in use


class ViewUses:
    """Views that a client's objects use, counted by name: shards are told of a view that no object uses any longer.

    An object may be freed at any moment, also while this thread holds a lock of a link. So freeing it only leaves a
    note, and a separate thread, started with the first view, tells the shards.
    """

    def __init__(self, client: Members) -> None:
        self._client = weakref.ref(client)
        self._objects: Counter[str] = Counter()
        self._gone: SimpleQueue[Gone | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        weakref.finalize(client, self._gone.put, None).atexit = False
        follow(self)

    def forked(self) -> None:
        """Go on without the parent's thread, which may have held the lock."""
        self._lock, self._thread = threading.Lock(), None

    def use(self, name: str, user: object, asked: Sequence[deque[Any]]) -> None:
        """Count ``user`` among the users of a view, as long as it lives. Call this before asking shards.

        Args:
            asked: batches that it has requested; their replies are discarded once it is freed.
        """
        with self._lock:
            self._objects[name] += 1
            if self._thread is None:
                self._thread = threading.Thread(target=_tell, args=(self._gone, weakref.ref(self)), daemon=True)
                self._thread.start()
        weakref.finalize(user, self._gone.put, (name, asked)).atexit = False

    def unused(self, name: str, asked: Sequence[deque[Any]]) -> None:
        """Note that an object was freed; tell the shards if it was the last user of the view.

        Runs under the lock, so that a new object requests the view after that, over the same connections.
        """
        for plan in chain(*asked):
            plan.drop()
        with self._lock:
            self._objects[name] -= 1
            client = self._client()
            if self._objects[name] or client is None:
                return
            del self._objects[name]
            for link in list(client.links):
                with contextlib.suppress(ShardLostError):
                    if link.is_connected:  # otherwise the shard has noticed that nobody uses it
                        link.drop(link.submit(Request.FORGET, {"name": name}))


def _tell(gone: SimpleQueue[Gone | None], uses: weakref.ref[ViewUses]) -> None:
    """Wait for freed views, until the client is freed."""
    while (one := gone.get()) is not None:
        there = uses()
        if there is None:
            return
        there.unused(*one)
        del there, one
