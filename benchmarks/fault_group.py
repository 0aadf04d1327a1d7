"""Writers and a learner of a cluster under faults, the relays between them, and the checks of their steps."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fault_homes import LANES, PATIENCE_S, Account, Home, audit, wrong
from runner import memory

import sharpwave as sw
from sharpwave.bench.measured import private_bytes
from sharpwave.serve.addresses import UNIX, Address
from sharpwave.serve.wire import HEADER

HERE = Path(__file__).parent
STOPPED_S = 1.0
CHUNK_BYTES = 1 << 12
HOLD_S = 0.05
"""Seconds that a relay holds a reply back, so that the next reply overtakes it."""
LOST = (ConnectionError, OSError, sw.EmptyError)
"""What calls may raise while something is away."""


class Relay:
    """A relay that listens at a unix socket.

    Args:
        behind: says where the shard is.

    Attributes:
        loses: share of replies that are lost, each with its connection. ``swaps``: share of replies that the next
            reply overtakes. ``repeats``: share of replies that arrive twice. ``delay_s``: pause before each reply.
            ``bytes_s``: bytes a second in both directions; 0: without limit.
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


class Group:
    """A cluster, its writers and its learner, for some rounds.

    Attributes:
        shards: their number at first. ``others``: steps acknowledged to writers that were killed, by shard and lane.
        wrong: transitions that the learner sampled and that never happened. ``batches``: that it sampled.
        errors: that are none of the promised ones.
    """

    def __init__(self, home: Home, folder: Path, seed: int) -> None:
        self.random, self.folder, self.home = random.Random(seed), folder, home
        self.cluster = home.cluster
        self.shards = len(self.cluster.links)
        self.accounts = [Account(self.cluster, shard) for shard in range(self.shards)]
        self.relays: list[Relay] = []
        for shard, one in enumerate(self.accounts):
            behind: Any = lambda shard=shard: home.address(shard)  # noqa: E731
            self.relays.append(Relay(folder / f"relay-{shard}", behind, seed + shard))
            one.start(self.relays[-1].address)
        self.replay = self.cluster.transitions(name="learner", sampler=sw.Prioritized(alpha=1.0))
        self.uniform = self.cluster.transitions(name="uniform")
        self.others: dict[tuple[int, int], set[int]] = {}
        self._over, self._resting, self._rests = threading.Event(), threading.Event(), threading.Event()
        self.wrong, self.batches, self.errors = 0, 0, list[str]()
        self._thread = threading.Thread(target=self._learn, daemon=True)
        self._thread.start()
        time.sleep(0.3)

    def _learn(self) -> None:
        while not self._over.is_set():
            if self._resting.is_set():
                self._rests.set()
                time.sleep(0.005)
                continue
            self._rests.clear()
            try:
                batch = self.replay.sample(64)
                self.wrong += wrong(batch)
                self.replay.update_priorities(batch, np.asarray(batch.step) % 7 + 1.0)
                self.batches += 1
                time.sleep(0.002)
            except (ConnectionError, sw.EmptyError):
                time.sleep(0.02)
            except Exception as error:
                self.errors.append(f"learner: {type(error).__name__}: {error}")
                time.sleep(0.1)

    def meanwhile(self, act: Callable[[], Any], harm: Callable[[], float]) -> float:
        """Do harm while ``act`` is under way, again and again; return what ``harm`` does."""
        stop, acted = threading.Event(), threading.Event()

        def run() -> None:
            while not stop.is_set():
                try:
                    acted.set()
                    act()
                except LOST:
                    time.sleep(0.01)
                except Exception as error:
                    self.errors.append(f"meanwhile: {type(error).__name__}: {error}")
                    time.sleep(0.1)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        acted.wait(PATIENCE_S)
        time.sleep(self.random.uniform(0.0, 0.15))
        took = harm()
        stop.set()
        thread.join(PATIENCE_S)
        if thread.is_alive():
            self.errors.append(f"what was under way has not ended in {PATIENCE_S:g} s")
        return took

    def sampled(self) -> float:
        """Return the seconds until a batch comes."""
        begun = time.monotonic()
        while time.monotonic() < begun + PATIENCE_S:
            try:
                self.uniform.sample(64)
                return time.monotonic() - begun
            except (ConnectionError, sw.EmptyError):
                time.sleep(0.01)
        return float("inf")

    def stop(self, process: int) -> float:
        """Stop a process for a while; return the seconds until a batch comes after that."""
        os.kill(process, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(process, signal.SIGCONT)
        return self.sampled()

    def doomed(self, *arguments: str, stops: bool = False) -> list[str]:
        """Run another writer or learner, stop it for a while if it ``stops``, and kill it; return what it said."""
        command = [sys.executable, str(HERE / "fault_homes.py"), *arguments]
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            until = 3 + self.random.randrange(10)
            for line in process.stdout:
                lines.append(line)
                if stops and len(lines) == until:
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(STOPPED_S)
                    process.send_signal(signal.SIGCONT)
                if len(lines) > until + 5 * stops:
                    break
            process.kill()
            lines += process.stdout.read().splitlines(keepends=True)
        return lines

    # checks

    def rest(self) -> None:
        """Wait until nobody writes or samples, and all that is sealed is acknowledged."""
        for one in self.accounts:
            one.rest()
        self._resting.set()
        self._rests.wait(PATIENCE_S)

    def go_on(self) -> None:
        """Let writers and the learner go on."""
        self._resting.clear()
        for one in self.accounts:
            one.go_on()

    def check(self) -> tuple[list[str], dict[str, float]]:
        """Return what is wrong once all rest: probabilities, transitions, writers; and memory in bytes."""
        self.rest()
        found = [f"writer: {text}" for one in self.accounts for text in one.errors] + self.errors
        if self.wrong:
            found.append(f"the learner sampled {self.wrong} transitions that never happened")
        try:
            found += self._probabilities()
            held = self._memory()
        except Exception as error:
            found.append(f"checks: {type(error).__name__}: {error}")
            held = {}
        self.wrong, self.errors = 0, []
        for one in self.accounts:
            one.errors.clear()
        self.go_on()
        return found, held

    def _probabilities(self) -> list[str]:
        """Check the draws of rested shards: one over the items, and by the priorities just set over the masses."""
        found = []
        count, batch = self._counted()
        if not np.allclose(batch.probabilities, 1 / count, rtol=1e-9):
            found.append(f"uniform probabilities are not 1/{count}")
        found += [f"{bad} transitions that never happened"] if (bad := wrong(batch)) else []
        batch = self.replay.sample(256)
        self.replay.update_priorities(batch, np.asarray(batch.step) % 5 + 1.0)
        set_ = {
            (int(shard), int(id_)): int(step) % 5 + 1.0
            for shard, id_, step in zip(batch.shards, batch.ids, batch.step, strict=True)
        }
        self.replay.refresh()
        mass = sum(one.state.mass for one in self.replay._of.known.values())
        for _ in range(8):
            batch = self.replay.sample(256)
            for shard, id_, p in zip(batch.shards, batch.ids, batch.probabilities, strict=True):
                expected = set_.get((int(shard), int(id_)))
                if expected is not None and abs(float(p) * mass / expected - 1) > 1e-4:
                    return [*found, f"an item of priority {expected} is drawn as one of {float(p) * mass:.6f}"]
        return found

    def _counted(self) -> tuple[int, Any]:
        """Return the number of items, and a batch of them: a shard that is back is found meanwhile."""
        while True:
            count = len(self.uniform)
            batch = self.uniform.sample(256)
            if len(self.uniform) == count:
                return count, batch
            time.sleep(0.2)

    def _memory(self) -> dict[str, float]:
        """Return private bytes: of this process, with learner and writers; of a shard, beyond what its store counts."""
        stats = self.cluster.stats()["shards"]
        counted = [one["total_bytes"] + one.get("replica", {"total_bytes": 0})["total_bytes"] for one in stats]
        beyond = [memory(one) - held for one, held in zip(self.home.processes(), counted, strict=True)]
        return {"learner and writers": float(private_bytes()), "shard": float(np.mean(beyond))}

    def end(self) -> tuple[int, list[str]]:
        """Stop writers and learner; return the steps acknowledged, and how all that there is differs from them."""
        for one in self.accounts:
            one.end()
        self._over.set()
        self._thread.join(30)
        found = [f"writer: {text}" for one in self.accounts for text in one.errors]
        found += audit(self.cluster, self.accounts, self.others)
        for relay in self.relays:
            relay.close()
        self.home.close()
        told = LANES * sum(one.acknowledged for one in self.accounts) + sum(map(len, self.others.values()))
        return told, found
