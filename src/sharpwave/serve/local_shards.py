"""Shards in processes of this machine, each under a supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from sharpwave.errors import ShardFailedError
from sharpwave.serve.addresses import HERE, Address, machine, nearest
from sharpwave.serve.link import READY_S
from sharpwave.serve.log_lines import LOG
from sharpwave.serve.shard_process import ShardSettings
from sharpwave.serve.supervisor import Program, Supervised, end

STOP_S = 60.0
"""Seconds that a stopped shard may take to write pending data."""
TELL_S = 0.5
"""Seconds that it may then take to dump its stacks, before it is killed."""
WATCH_S = 0.05
COMMAND = "from sharpwave.serve.shard_process import main; main()"


class _ShardSeat(Supervised):
    """One shard: its settings, and the process that runs it."""

    def __init__(self, settings: ShardSettings) -> None:
        super().__init__(f"shard {settings.number}", self._program, say=lambda text: LOG.warning("%s", text))
        self.settings = settings

    def _program(self) -> Program:
        program = Program(COMMAND)
        with contextlib.suppress(OSError):  # the shard has died; ``ready`` reports it
            program.stdin.write(json.dumps(asdict(self.settings)) + "\n")
            program.stdin.flush()
        return program

    def ready(self, process: Program) -> list[str]:
        """Wait until its process listens; return its addresses.  Raises: ShardFailedError."""
        begun = time.monotonic()
        timer = threading.Timer(READY_S, process.kill)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        said: dict[str, Any] = json.loads(line) if line else {}
        if "addresses" not in said:
            process.join()
            late = f"it was not ready after {READY_S:g} s; is the machine busy, or the store very large?"
            died = f"it ended with status {process.exitcode} before it was ready"
            why = said.get("failed", late if time.monotonic() - begun > READY_S else died)
            raise ShardFailedError(f"shard {self.settings.number}: {why}")
        self.settings = replace(  # the ports that it got
            self.settings, addresses=said["addresses"], begins_from=[]
        )
        return self.settings.addresses


class LocalShards:
    """Processes of shards, until ``close``, or until nothing refers to them: no cluster, view, writer or episode.

    Attributes:
        addresses: of each shard, by number.

    Raises:
        ShardFailedError: one does not begin; then all are stopped.
    """

    def __init__(self, settings: Sequence[ShardSettings]) -> None:
        self._seats: list[_ShardSeat] = []
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.addresses: list[list[str]] = []
        try:
            for one in settings:
                self._seats.append(_ShardSeat(one))
                self._seats[-1].start()
            self.addresses = [seat.ready(seat.process) for seat in self._seats]
        except BaseException:
            self.close()
            raise
        watched = self._seats, self._lock, self._closing  # not this object, which may be freed
        threading.Thread(target=_watch, args=watched, name="sharpwave-shards", daemon=True).start()
        weakref.finalize(self, _abandon, self._closing, os.getpid()).atexit = False  # then their standard input ends

    def moved(self, number: int) -> Callable[[], Address]:
        """Return a function that returns a shard's address, always the same: links keep the shards running by it."""
        return lambda: nearest(self.where(), HERE)[number]

    def where(self) -> dict[str, Any]:
        """Return the shards' description for a directory."""
        return {"shards": self.addresses, "machine": machine()}

    def add(self, settings: ShardSettings) -> list[str]:
        """Start one more shard; return its addresses.  Raises: ShardFailedError."""
        seat = _ShardSeat(settings)
        try:
            seat.start()
            addresses = seat.ready(seat.process)
        except BaseException:
            _stop([seat])
            raise
        with self._lock:
            self._seats.append(seat)
            self.addresses.append(addresses)
        return addresses

    @property
    def count(self) -> int:
        """Number of the shards."""
        return len(self.addresses)

    @property
    def processes(self) -> list[int]:
        """Process numbers of the shards; a shard that awaits its restart has its dead process's number."""
        return [seat.pid for seat in self._seats]

    def leave(self) -> None:
        """Leave the shards to the parent, in a forked process: they end when their standard input is closed by all."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for seat in self._seats:
            if seat.process is not None and not seat.process.stdin.closed:
                os.dup2(nothing, seat.process.stdin.fileno(), inheritable=False)  # takes no lock of a thread
        os.close(nothing)

    def close(self) -> None:
        """Stop the shards, which write pending data to their disks."""
        self._closing.set()
        with self._lock:
            _stop(self._seats)


def _watch(seats: list[_ShardSeat], lock: threading.Lock, closing: threading.Event) -> None:
    """Start shards again that have died, until ``closing``; then stop them."""
    while not closing.wait(WATCH_S):
        for seat in list(seats):
            with lock:  # ``close`` ends the processes of seats that it finds
                if closing.is_set() or seat.alive:
                    continue
                if seat.process is not None:
                    seat.bury()
                if not seat.due:
                    continue
                try:
                    seat.restart()
                except OSError as error:  # out of descriptors or memory: retried later
                    LOG.error("shard %d cannot be started again: %s", seat.settings.number, error)
                    continue
                process = seat.process  # ``close`` may release it meanwhile
            try:
                seat.ready(process)
            except (RuntimeError, ValueError) as error:  # it failed, no thread can be started, or it was released
                LOG.error("%s", error)
    with lock:
        _stop(seats)


def _abandon(closing: threading.Event, process: int) -> None:
    """Let the watching thread stop the shards, which takes time; no fork does."""
    if os.getpid() == process:
        closing.set()


def _stop(seats: Sequence[_ShardSeat]) -> None:
    for seat in seats:
        if seat.process is not None:
            seat.process.terminate()
    end(seats, STOP_S, stuck=_ask_where_it_is)


def _ask_where_it_is(seat: Supervised) -> None:
    """Let a shard that does not end dump its stacks to standard error, for debugging."""
    LOG.warning("%s did not end in %g s; it is killed", seat.name, STOP_S)
    if hasattr(signal, "SIGUSR1"):
        with contextlib.suppress(OSError):
            seat.process.send_signal(signal.SIGUSR1)
            time.sleep(TELL_S)
