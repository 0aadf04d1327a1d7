"""Views that a client's objects use: shards are told of each view that no object uses any longer."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from queue import SimpleQueue
from typing import Any

from sharpwave.serve.forked_clients import follow
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.wire import Request

Gone = tuple[str, Sequence[deque[Any]]]
"""Name of a freed object's view, and the batches that the object and its streams had requested."""


class ViewUses:
    """Views that a client's objects use, counted by name.

    An object may be freed at any moment, also while this thread holds a lock of a link. So freeing it only leaves a
    note, and a separate thread, started with the first view, tells the shards.

    Args:
        client: its links reach the shards.
    """

    def __init__(self, client: Any) -> None:
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
                with suppress(ShardLostError):
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
