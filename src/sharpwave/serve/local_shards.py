"""Shards in processes of this machine: their plan, and a supervisor for each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sharpwave.errors import ShardFailedError, StoreInUseError
from sharpwave.persistence.settings import LEAST, Settings, checked_limits
from sharpwave.serve.addresses import TCP, Address, Security, machine
from sharpwave.serve.cluster_folder import CLUSTER, Manifest, delete_when_free, new_folder
from sharpwave.serve.log_lines import LOG
from sharpwave.serve.process import ShardSettings
from sharpwave.serve.supervisor import Program, Supervised, end
from sharpwave.spec import Spec
from sharpwave.validation import check_capacity, parse_bytes

READY_S = 180.0
"""Seconds that a shard may take to start: a large store on disk is read."""
STOP_S = 60.0
"""Seconds that a stopped shard may take to write pending data."""
TELL_S = 0.5
"""Seconds that it may then take to dump its stacks, before it is killed."""
WATCH_S = 0.05
MAX_SHARDS = 1024
MAX_PORT = 65535
SEGMENT_STEPS = 32
"""Steps in a segment of shards and of their writers. A store has slots for its capacity in segments of its own length:
shorter segments, which writers seal, would leave it partly empty."""
COMMAND = "from sharpwave.serve.process import main; main()"


@dataclass(frozen=True)
class ShardPlan:
    """Plan of a cluster's shards, all alike.

    Attributes:
        shards: their number. ``capacity``, ``ram``, ``disk_limit``: limits of all shards together.
        disk: folder of their folders; ``None``: they are in memory. ``sockets``: folder of their unix sockets. Paths
            become absolute: a restarted shard must find them after this process has changed its working directory.
        options: further arguments of ``Store``: ``codec``, ``on_full``, ``segment_steps``, ``seed``.
        listen: their second address: shard k at ``port + 1 + k``, or any free port if the port is 0.
        begins_from: folder of a checkpoint, with a folder of each shard; ``merges``: number of these folders: shard k
            takes every ``shards``-th, from the k-th on.
        opens: whether their stores exist already: ``None`` leaves a limit as it was.
        replicas: copies of each shard, kept by its neighbor: 0 or 1.
        replicas: of each shard, kept by its neighbor: 0 or 1.
        new: limits and options of a store that must be made while others are opened.
        parts: number of shards by which the limits are divided; 0: ``shards``.
    """

    shards: int
    sockets: Path
    capacity: Any = None
    ram: Any = None
    disk_limit: Any = None
    disk: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    listen: Address | None = None
    security: Security = field(default_factory=Security)
    begins_from: Path | None = None
    merges: int = 0
    opens: bool = False
    replicas: int = 0
    new: Mapping[str, Any] = field(default_factory=dict)
    parts: int = 0

    def __post_init__(self) -> None:
        if self.options.get("segment_steps") is None and not self.new.get("segment_steps"):
            object.__setattr__(self, "options", {**self.options, "segment_steps": SEGMENT_STEPS})
        object.__setattr__(self, "parts", self.parts or self.shards)
        for name in ("disk", "begins_from"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, path.absolute())

    def one_more(self, spec: Spec, number: int) -> ShardSettings:
        """Return the settings of a shard like these, which begins empty."""
        return replace(self, begins_from=None)._one(spec, number, self._limits())

    def _limits(self) -> dict[str, int | None]:
        """Return each shard's limits; ``None``: the limit of its existing store.  Raises: ValueError."""
        given: dict[str, Any] = {"capacity": self.capacity, "ram": self.ram, "disk_limit": self.disk_limit}
        if self.opens:
            whole: dict[str, int | None] = {
                name: None if one is None else check_capacity(one) if name == "capacity" else parse_bytes(one, name)
                for name, one in given.items()
            }
        else:
            whole = checked_limits(**given, on_disk=self.disk is not None)
        return {name: None if one is None else self._part(name, one, given[name]) for name, one in whole.items()}

    def _part(self, name: str, whole: int, given: Any) -> int:
        """Return a store's part of a limit.  Raises: ValueError: no store can have it."""
        stores = self.parts * (1 if name == "capacity" else 1 + self.replicas)
        part, least = whole // stores, LEAST[name]
        if part < least:
            said = repr(given) if isinstance(given, str) else whole
            kept = f", each with {self.replicas} replica" if stores > self.parts else ""
            raise ValueError(
                f"{name}={said} of {self.parts} shards{kept}, expected at least {least * stores:,}: each store gets "
                f"an equal part, at least {least:,} {'steps' if name == 'capacity' else 'bytes'}; raise it, or have "
                "fewer shards"
            )
        return part

    def manifest(self, spec: Spec) -> Manifest:
        """Return the manifest of these shards' folder.  Raises: as ``settings``."""
        one = self.settings(spec)[0]
        new = {**one.new, **{name: value for name, value in (one.limits | one.options).items() if value is not None}}
        return Manifest(spec, self.shards, self.disk is not None, replicas=self.replicas, new=new, parts=self.parts)

    @contextlib.contextmanager
    def begun(self, spec: Spec) -> Iterator[None]:
        """Make the folder of new shards, if they have one, and hold it while they start.

        If they do not start, delete their files: the next attempt finds the folder as this one did.

        Raises: as ``new_folder``, ``settings``.
        """
        manifest = self.manifest(spec)
        if self.disk is None:
            yield
            return
        with new_folder(self.disk, manifest):
            try:
                yield
            except BaseException:
                with contextlib.suppress(StoreInUseError):  # of one that still ends
                    for number in range(self.shards):
                        delete_when_free(self.disk / f"shard-{number}")
                    (self.disk / CLUSTER).unlink(missing_ok=True)
                raise

    def check(self) -> dict[str, int | None]:
        """Return each shard's limits.  Raises: ValueError, TypeError: no cluster can have these settings."""
        if isinstance(self.shards, bool) or not isinstance(self.shards, int) or not 1 <= self.shards <= MAX_SHARDS:
            raise ValueError(f"shards={self.shards!r}, expected an integer from 1 to {MAX_SHARDS}")
        if self.replicas not in (0, 1) or self.replicas >= self.shards:
            raise ValueError(
                f"replicas={self.replicas!r} of {self.shards} shards, expected 0, or 1 of 2 shards or more: each "
                "shard's steps are kept by the next one too"
            )
        unknown = sorted(self.options.keys() - {"codec", "on_full", "segment_steps", "seed"})
        if unknown:
            raise TypeError(f"Cluster: {unknown[0]}= is no setting of shards; there are codec, on_full, segment_steps")
        return self._limits()

    def settings(self, spec: Spec) -> list[ShardSettings]:
        """Return the settings of each shard.  Raises: ValueError, TypeError: a store cannot have these."""
        each = self.check()
        if not self.opens:
            checked: dict[str, Any] = {"on_full": "raise", "codec": "auto", "segment_steps": None, "seed": 0}
            of_store: dict[str, Any] = {**each, **checked, **self.options}
            Settings.checked(spec, on_disk=self.disk is not None, retention=None, **of_store)
        return [self._one(spec, number, each) for number in range(self.shards)]

    def _one(self, spec: Spec, number: int, limits: dict[str, int | None]) -> ShardSettings:
        addresses = [f"unix:{self.sockets / f'{number}.sock'}"]
        if self.listen is not None and self.listen.kind == TCP:
            port = self.listen.port and self.listen.port + 1 + number
            if port > MAX_PORT:
                raise ValueError(
                    f"{self.listen}: shard {number} would listen at port {port}, of at most {MAX_PORT}: shards take "
                    "the ports behind it; listen at a lower one"
                )
            addresses.append(str(replace(self.listen, port=port)))
        folder = (self.sockets if self.disk is None else self.disk) / f"shard-{number}"
        return ShardSettings(
            number,
            addresses,
            str(folder),
            spec.description(),
            limits,
            self.disk is not None,
            {**self.options, "seed": int(self.options.get("seed", self.new.get("seed", 0))) + number},
            []
            if self.begins_from is None
            else [str(self.begins_from / f"shard-{one}") for one in range(number, self.merges, self.shards)],
            self.security.secret.hex(),
            self.security.certificate,
            self.security.key,
            (number - 1) % self.shards if self.replicas else None,
            f"unix:{self.sockets / f'{(number + 1) % self.shards}.sock'}" if self.replicas else None,
            dict(self.new),
        )


class _Seat(Supervised):
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
    """Processes of shards, until ``close``.

    Attributes:
        addresses: of each shard, by number.

    Raises:
        ShardFailedError: one does not begin; then all are stopped.
    """

    def __init__(self, settings: Sequence[ShardSettings]) -> None:
        self._seats: list[_Seat] = []
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.addresses: list[list[str]] = []
        try:
            for one in settings:
                self._seats.append(_Seat(one))
                self._seats[-1].start()
            self.addresses = [seat.ready(seat.process) for seat in self._seats]
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="sharpwave-shards", daemon=True)
        self._watcher.start()

    def moved(self, number: int) -> None:
        """Return ``None``: shards of this machine listen at the same addresses again."""

    def where(self) -> dict[str, Any]:
        """Return the shards' description for a directory."""
        return {"shards": self.addresses, "machine": machine()}

    def add(self, settings: ShardSettings) -> list[str]:
        """Start one more shard; return its addresses.  Raises: ShardFailedError."""
        seat = _Seat(settings)
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

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_S):
            for seat in list(self._seats):
                with self._lock:  # ``close`` and ``remove`` end the processes of seats that they find
                    if seat not in self._seats or self._closing.is_set() or seat.alive:
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


def _stop(seats: Sequence[_Seat]) -> None:
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
