"""Server of a store of this process: clients use it as a cluster of one shard."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Self

from sharpwave.arguments import is_integer
from sharpwave.serve.addresses import CONNECT_S, Address, Security, machine
from sharpwave.serve.server import Client, Reply, Server
from sharpwave.serve.shard import Shard
from sharpwave.serve.wire import Frame, Request
from sharpwave.spec import Spec
from sharpwave.store import Store
from sharpwave.validation import MAX_LANES

CLOSE_S = 10.0
"""Seconds that closing waits for requests under way."""


class StoreServer:
    """Server of an open store, which other processes write to and sample from while this one uses it.

    Clients connect as to a cluster, by ``sharpwave.connect(address)``; it is one of a single shard. Close it before the
    store, or let ``Store.close`` do so. A context manager that closes it; the store stays open.

    Args:
        store: an open store of this process.
        addresses: where it listens: "unix:PATH", for this user's processes, or "HOST:PORT"; port 0 is any free one.
            Give several in one call.
        own_lanes: number of lanes, from 0 on, that this process writes to; writers elsewhere get those behind.
            Default: the lanes that the store has now.
        secret: shared secret of at least 16 characters, which addresses that other machines reach need; default: the
            environment variable SHARPWAVE_SECRET.
        tls_certificate, tls_key: PEM files: connections over TCP are encrypted.

    Attributes:
        addresses: where it listens, with the ports that it got. ``address``: the first.

    Raises:
        ValueError, TypeError: an invalid argument, no secret where one is needed, or a store that is served already.
        OSError: an address is in use, or not this machine's.
    """

    def __init__(
        self,
        store: Store,
        *addresses: str | os.PathLike[str],
        own_lanes: int | None = None,
        secret: str | bytes | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
    ) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"StoreServer: store is {store!r:.100}, expected a sharpwave.Store of this process")
        if not addresses:
            raise ValueError('StoreServer: no address, expected one or more: "unix:PATH" or "HOST:PORT"')
        if own_lanes is not None and not (is_integer(own_lanes) and 0 <= own_lanes <= MAX_LANES):
            raise ValueError(f"StoreServer: own_lanes={own_lanes!r}, expected an integer from 0 to {MAX_LANES:,}")
        listening = [Address.parse(one) for one in addresses]
        security = Security.of(secret, certificate=tls_certificate, key=tls_key)
        for one in listening:
            security.check(one)
        self._store, self._process = store, os.getpid()
        self._servers: list[Server] = []
        self.addresses: list[str] = []
        with store._lock:
            store._log.check_open()
            if store._servers:
                raise ValueError(
                    f"StoreServer: this store is served already, by {store._servers[0]!r}; close that, or give it all "
                    "addresses"
                )
            store._servers.append(self)
        atexit.register(self.close)  # a thread in the core would abort an interpreter that ends
        try:
            shard = _OwnShard(store, 0 if own_lanes is None else int(own_lanes))
            for one in listening:
                self._servers.append(Server(shard, one, security))
            self.addresses += (str(one.address) for one in self._servers)
            shard.listens_at(self.addresses)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The first of ``addresses``."""
        return self.addresses[0]

    def close(self) -> None:
        """End all connections, once their requests are answered or 10 s are over, and stop listening.

        Clients' views are freed; writers keep their lanes, should this store be served again. In a forked process it
        does nothing.
        """
        atexit.unregister(self.close)
        if self._process != os.getpid() or self not in self._store._servers:
            return
        self._store._servers.remove(self)
        for server in self._servers:
            server.close()
        for server in self._servers:
            server.join(CLOSE_S)
        self._servers.clear()
        self._store._log.ledger.enter("connections", int)  # it held the shard, with its views

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<StoreServer at {', '.join(self.addresses)}>"


class _OwnShard(Shard):
    """Shard of a store that this process uses as well, and its directory: clients need no other."""

    def __init__(self, store: Store, own_lanes: int) -> None:
        super().__init__(store)
        self.intake.lend(own_lanes)
        self._addresses: list[str] = []
        self._listens = threading.Event()
        self._answers[Request.DIRECTORY] = self._directory

    def listens_at(self, addresses: list[str]) -> None:
        """Answer from now on which addresses it has."""
        self._addresses = addresses
        self._listens.set()

    def _directory(self, client: Client, frame: Frame) -> Reply:
        """Return the spec and the addresses, as of a directory with one shard; ``alone``: there is no directory.

        Raises: ValueError: the client asks for another spec.
        """
        self._listens.wait(CONNECT_S)
        there, asked = self.store.spec.description(), frame.head.get("spec")
        if asked is not None and (given := Spec.from_json(asked).description()) != there:
            raise ValueError(
                f"this store has steps of {there}, asked for were {given}; use that spec, or sharpwave.connect(), "
                "which takes it from the store"
            )
        return {"spec": there, "shards": [self._addresses], "machine": machine(), "alone": True}, {}
