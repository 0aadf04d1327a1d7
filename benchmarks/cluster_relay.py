"""A relay before a shard, for cluster_faults.py: it loses, delays, repeats and reorders replies, is slow, or cuts."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sharpwave.serve.addresses import UNIX, Address
from sharpwave.serve.wire import HEADER

CHUNK_BYTES = 1 << 12
HOLD_S = 0.05
"""How long a reply is held back for the one after it to overtake it."""


class Relay:
    """A relay that listens at a unix socket.

    Args:
        behind: says where the shard is.

    Attributes:
        loses: share of replies that are lost, each with its connection. ``swaps``: of those that come after the next
            one. ``repeats``: of those that come twice. ``delay_s``: before each reply. ``bytes_s``: how fast it is, in
            both directions; 0: without limit.
    """

    def __init__(self, path: Path, behind: Callable[[], Address], seed: int) -> None:
        self.address, self._behind, self._random = f"unix:{path}", behind, random.Random(seed)
        self.loses = self.swaps = self.repeats = self.delay_s = self.bytes_s = 0.0
        self._open: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(16)
        threading.Thread(target=self._run, daemon=True).start()

    def heal(self) -> None:
        """Pass on everything, as it comes."""
        self.loses = self.swaps = self.repeats = self.delay_s = self.bytes_s = 0.0

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._socket.accept()
                try:
                    theirs = _connected(self._behind())
                except OSError:
                    ours.close()
                    continue
                self._open = [one for one in self._open if one.fileno() >= 0] + [ours, theirs]
                for work, ends in ((self._requests, (ours, theirs)), (self._replies, (theirs, ours))):
                    threading.Thread(target=self._until_closed, args=(work, ends), daemon=True).start()

    def _until_closed(
        self, work: Callable[[socket.socket, socket.socket], None], ends: tuple[socket.socket, socket.socket]
    ) -> None:
        with contextlib.suppress(OSError):
            work(*ends)
        for one in ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _requests(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(CHUNK_BYTES):
            self._passed(target, data)

    def _replies(self, source: socket.socket, target: socket.socket) -> None:
        held = b""
        while True:
            alone = held and not select.select([source], [], [], HOLD_S)[0]
            reply = b"" if alone else _frame(source)
            if (not reply and not alone) or self._random.random() < self.loses:
                return
            if self.delay_s:
                time.sleep(self.delay_s)
            if reply and not held and self._random.random() < self.swaps:
                held = reply
                continue
            for one in (reply, held):
                self._passed(target, one)
            if self._random.random() < self.repeats:
                self._passed(target, reply)
            held = b""

    def _passed(self, target: socket.socket, data: bytes) -> None:
        for begin in range(0, len(data), CHUNK_BYTES):
            chunk = data[begin : begin + CHUNK_BYTES]
            if self.bytes_s:
                time.sleep(len(chunk) / self.bytes_s)
            target.sendall(chunk)

    def cut(self) -> None:
        """End the connections that there are."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening, and cut."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.cut()
        for one in self._open:
            one.close()


def _connected(address: Address) -> socket.socket:
    if address.kind != UNIX:
        return socket.create_connection((address.host, address.port))
    made = socket.socket(socket.AF_UNIX)
    made.connect(address.path)
    return made


def _frame(source: socket.socket) -> bytes:
    """Receive a whole frame; nothing: the connection has ended."""
    header = _exactly(source, HEADER.size)
    if not header:
        return b""
    _, _, _, _, head, body, _ = HEADER.unpack(header)
    return header + _exactly(source, head + body)


def _exactly(source: socket.socket, nbytes: int) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        some = source.recv(nbytes - len(data))
        if not some:
            return b""
        data += some
    return bytes(data)
