"""What a shard keeps for one connection: memory that is shared with it, dictionaries, its turn as a writer."""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass, field

from sharpwave.log.step_log import StepLog
from sharpwave.memory.batch_pool import Block
from sharpwave.serve.cut_batches import Sent
from sharpwave.serve.wire import Frame, WireError
from sharpwave.views.cutting import RowCutter
from sharpwave.views.layout import Layout

MAX_MAPPED = 1024
"""Blocks of memory that a connection may have given."""


@dataclass
class Holder:
    """Who writes with a writer's name: the one whose ``turn`` it is. Of others of that name nothing is taken."""

    turn: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Client:
    """What a shard keeps for one connection.

    Attributes:
        local: whether memory can be shared with it.
        dictionaries: that it has sent, by key. ``sent``: those that it was sent.
        blocks: memory that it shares, by number. ``cutters``: of encoded rows, by view.
        gone: set once the connection has ended, so that nothing waits for it.
        holder, turn: of the writer's name, and which turn this one's is.
        refused: why a writer's segment was not taken; nor are those after it then, which are on their way.
    """

    local: bool
    holder: Holder = field(default_factory=Holder)
    turn: int = 0
    refused: Exception | None = None
    dictionaries: dict[int, bytes] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    layouts: dict[tuple[int, int], Layout] = field(default_factory=dict)
    sent: Sent = field(default_factory=dict)
    cutters: dict[int, RowCutter] = field(default_factory=dict)
    gone: threading.Event = field(default_factory=threading.Event)

    def cutter(self, view: int, log: StepLog) -> RowCutter:
        """Return what cuts rows for a view: its memory is this connection's, which sends a batch before the next."""
        if view not in self.cutters:
            self.cutters[view] = RowCutter(log)
        return self.cutters[view]

    def share(self, frame: Frame) -> None:
        """Map the memory that came with a request: ``shared``, the blocks' numbers and sizes."""
        shared = frame.head.get("shared", [])
        try:
            if not self.local and (shared or frame.fds):
                raise WireError("memory can be shared over a unix socket only")
            if len(shared) != len(frame.fds) or len(self.blocks) + len(shared) > MAX_MAPPED:
                raise WireError(f"{len(frame.fds)} descriptors for {len(shared)} blocks")
            for (name, nbytes), fd in zip(shared, frame.fds, strict=True):
                self.blocks[int(name)] = Block(int(nbytes), _mapped(fd, int(nbytes)))
        except (TypeError, ValueError, OverflowError) as error:
            raise WireError(f"shared {shared!r}: {error}") from error
        finally:
            for fd in frame.fds:
                os.close(fd)
            frame.fds.clear()

    def close(self) -> None:
        """Unmap its memory."""
        self.gone.set()
        self.layouts.clear()
        self.blocks.clear()


def _mapped(fd: int, nbytes: int) -> mmap.mmap:
    """Map shared memory that cannot shrink under this process.  Raises: ValueError."""
    import fcntl

    if nbytes <= 0 or os.fstat(fd).st_size < nbytes:
        raise ValueError(f"memory of {os.fstat(fd).st_size:,} bytes, expected {nbytes:,}")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("memory that may shrink; expected a memfd sealed with F_SEAL_SHRINK")
    return mmap.mmap(fd, nbytes)
