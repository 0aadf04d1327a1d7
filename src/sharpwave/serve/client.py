"""What a shard keeps for one connection: memory that is shared with it, dictionaries, its turn as a writer."""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from sharpwave.log.step_log import StepLog
from sharpwave.memory.batch_pool import Block
from sharpwave.serve.budget import Budget, Holding
from sharpwave.serve.cut_batches import Sent
from sharpwave.serve.wire import Frame, WireError
from sharpwave.views.cutting import RowCutter
from sharpwave.views.layout import Layout

MAX_MAPPED = 1024
"""Blocks of memory that a connection may share."""
MAX_MAPPED_TOGETHER = 16_384
"""Those of all connections: a process of Linux may map 65,530, and its store and its threads need some."""
MAX_LAYOUTS = 64
"""Number of batch sizes whose layouts are kept for a connection."""


@dataclass
class Holder:
    """Who writes with a writer's name: the one whose ``turn`` it is. Of others of that name nothing is taken."""

    turn: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Client:
    """What a shard keeps for one connection.

    Attributes:
        local: whether memory can be shared with it. ``budget``: of the shard; ``holding``: what this one holds of it.
        dictionaries: that it has sent, by key. ``sent``: those that it was sent.
        blocks: memory that it shares, by number. ``cutters``: of encoded rows, by view.
        layouts: of batches in shared memory, by view and size, the latest.
        connection: on which it is answered.
        holder, turn: of the writer's name, and which turn this one's is.
        refused: why a writer's segment was not taken; nor are those after it then, which are on their way.
    """

    local: bool
    budget: Budget
    holding: Holding = field(default_factory=Holding)
    holder: Holder = field(default_factory=Holder)
    turn: int = 0
    refused: Exception | None = None
    dictionaries: dict[int, bytes] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    layouts: dict[tuple[int, int], Layout] = field(default_factory=dict)
    sent: Sent = field(default_factory=dict)
    cutters: dict[int, RowCutter] = field(default_factory=dict)
    _cutter_bytes: dict[int, int] = field(default_factory=dict)
    connection: socket.socket | None = None

    def is_gone(self) -> bool:
        """Return whether its connection has ended, so that nothing is to wait for it."""
        if self.connection is None or not hasattr(select, "POLLRDHUP"):
            return False
        poll = select.poll()
        try:
            poll.register(self.connection, select.POLLRDHUP)
        except ValueError:  # it is closed
            return True
        return bool(poll.poll(0))

    def layout(self, view: int, size: int, make: Callable[[int], Layout]) -> Layout:
        """Return the layout of batches of a view, made if need be.  Raises: MemoryError."""
        found = self.layouts.pop((view, size), None)
        if found is None:
            found = make(size)
            self.budget.keep(self.holding, found.work_bytes, f"a batch of {size:,} items")
        self.layouts[view, size] = found
        if len(self.layouts) > MAX_LAYOUTS:
            self._drop_layout(next(iter(self.layouts)))
        return found

    def _drop_layout(self, key: tuple[int, int]) -> None:
        gone = self.layouts.pop(key)
        self.budget.let_go(self.holding, gone.work_bytes)
        for block in self.blocks.values():
            if block.arrays is not None and block.arrays[0] is gone:
                block.arrays = None

    def forget(self, view: int) -> None:
        """Free what was kept for a view, which the client uses no longer."""
        for key in [one for one in self.layouts if one[0] == view]:
            self._drop_layout(key)
        if self.cutters.pop(view, None) is not None:
            self.budget.let_go(self.holding, self._cutter_bytes.pop(view, 0))

    def cutter(self, view: int, log: StepLog) -> RowCutter:
        """Return what cuts rows for a view: its memory is this connection's, which sends a batch before the next."""
        if view not in self.cutters:

            def grow(nbytes: int) -> None:
                self.budget.keep_at_once(self.holding, nbytes)
                self._cutter_bytes[view] = self._cutter_bytes.get(view, 0) + nbytes

            self.cutters[view] = RowCutter(log, grow)
        return self.cutters[view]

    def share(self, frame: Frame) -> None:
        """Unmap memory, the blocks that a request says to ``forget``; map what came with it: ``shared``, the blocks'
        numbers and sizes."""
        shared = frame.head.get("shared", [])
        try:
            for name in frame.head.get("forget", []):
                self.blocks.pop(name, None)
            if not self.local and (shared or frame.fds):
                raise WireError("memory can be shared over a unix socket only")
            if len(shared) != len(frame.fds) or len(self.blocks) + len(shared) > MAX_MAPPED:
                raise WireError(f"{len(frame.fds)} descriptors for {len(shared)} blocks")
            if len(_MAPPED) + len(shared) > MAX_MAPPED_TOGETHER:
                raise MemoryError(
                    f"shared: connections share {len(_MAPPED):,} blocks of memory with this process, of at most "
                    f"{MAX_MAPPED_TOGETHER:,}; let batches go, or use fewer learners a shard"
                )
            for (name, nbytes), fd in zip(shared, frame.fds, strict=True):
                self.blocks[int(name)] = Block(int(nbytes), _mapped(fd, int(nbytes)))
        except (TypeError, ValueError, OverflowError) as error:
            raise WireError(f"shared {shared!r}: {error}") from error
        finally:
            for fd in frame.fds:
                os.close(fd)
            frame.fds.clear()

    def close(self) -> None:
        """Unmap its memory, and free what was kept for it."""
        for kept in (self.layouts, self.blocks, self.dictionaries, self.sent, self.cutters):
            kept.clear()
        self.budget.close(self.holding)


class _Mapped(mmap.mmap):
    """Memory of a client; a class of this module, so that it can be counted."""


_MAPPED: weakref.WeakSet[_Mapped] = weakref.WeakSet()


def _mapped(fd: int, nbytes: int) -> _Mapped:
    """Map shared memory that cannot shrink under this process.  Raises: ValueError."""
    import fcntl

    if nbytes <= 0 or os.fstat(fd).st_size < nbytes:
        raise ValueError(f"memory of {os.fstat(fd).st_size:,} bytes, expected {nbytes:,}")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("memory that may shrink; expected a memfd sealed with F_SEAL_SHRINK")
    made = _Mapped(fd, nbytes)
    _MAPPED.add(made)
    return made
