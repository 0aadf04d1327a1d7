"""Reads of segments from region files into the arena: many at once by a pool of threads, or one.

The threads are the core's, or Python's where ``files`` are not the system's.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
import zlib
from queue import SimpleQueue

import numpy as np

from sharpwave.arrays import Bytes, Ints
from sharpwave.native import core
from sharpwave.native.file_operations import Files

SLOT, DESCRIPTOR, DIRECT, OFFSET, BASE, NBYTES = range(core.READ_COLUMNS)
"""Columns of a read: the slot; the file's descriptor, and that for direct reads; the offset in the file;
the offset in memory; bytes, the last 4 their CRC-32."""
MAX_READERS, MIN_READERS = 32, 4
"""Reads in flight: a disk serves many at once, and one only at its latency."""
BYTES_PER_READER = 1 << 20
"""Memory for each reader's reads: its window takes an eighth of that."""
NAP_S = 1e-4


def _some() -> Ints:
    """Return room for reads from ``ReadQueue.take``."""
    return np.empty((core.MAX_JOINED_READS, core.READ_COLUMNS), np.int64)


def _make(files: Files, memory: Bytes, read: Ints) -> bool:
    """Make a read through ``files``; return whether its bytes match their checksum."""
    begin, end = int(read[BASE]), int(read[BASE] + read[NBYTES])
    try:
        done = files.pread(int(read[DESCRIPTOR]), memory[begin:end].data, int(read[OFFSET]))
    except OSError:
        return False
    stored = int.from_bytes(memory[end - 4 : end].tobytes(), "little")
    return done == end - begin and stored == zlib.crc32(memory[begin : end - 4].data)


def _make_some(files: Files, memory: Bytes, queue: core.ReadQueue, reads: Ints) -> bool:
    """Do the oldest read, and adjoining ones, within the size of ``reads``; return whether there was any."""
    count = queue.take(reads)
    for read in reads[:count]:
        queue.settle(int(read[SLOT]), _make(files, memory, read))
    return count > 0


def _serve(files: Files, memory: Bytes, queue: core.ReadQueue, wakes: SimpleQueue[bool]) -> None:
    """Do reads whenever woken, until the pool ends."""
    reads = _some()
    while wakes.get():
        while _make_some(files, memory, queue, reads):
            pass


def _end(wakes: SimpleQueue[bool], count: int) -> None:
    for _ in range(count):
        wakes.put(False)


class Readers:
    """Pool of threads that read segments into ``memory``; a thread that waits for a segment reads as well.

    Args:
        memory: uint8 [bytes].
        state: int64 [slots]; ``core.COMING`` while a slot is being read, then READ or SUSPECT: a failed read, or a
            mismatch of the checksum.
        room: bytes of memory for segments.
        files: if its ``pread`` is the system's, reading takes no interpreter lock.
    """

    def __init__(self, memory: Bytes, state: Ints, room: int, files: Files) -> None:
        self._memory, self._files = memory, files
        self._queue = core.ReadQueue(memory, state)
        self.count = max(MIN_READERS, min(MAX_READERS, room // BYTES_PER_READER))
        self._started = 0
        self._wakes: SimpleQueue[bool] = SimpleQueue()  # of Python's threads

    @property
    def nbytes(self) -> int:
        """Bytes of the queue and of the readers' windows."""
        return self._queue.nbytes + self.count * core.WINDOW_BYTES

    @property
    def joined(self) -> int:
        """Reads that were joined with the one before."""
        return self._queue.joined

    def start(self, reads: Ints) -> None:
        """Start ``reads`` [n, ``core.READ_COLUMNS``]. Not thread-safe.  Cost: 10 us."""
        if not self._started and not self._files.native:
            self._begin()
        begin = 0
        while begin < len(reads):
            count = self._queue.put(reads[begin:])
            begin += count
            if self._files.native:
                self._started = self._queue.start_readers(self.count)
            else:
                for _ in range(min(count, self._started)):
                    self._wakes.put(True)
            if begin < len(reads):
                self._work_or_nap()

    def wait(self, slots: Ints) -> None:
        """Wait until none of ``slots`` is being read. Thread-safe."""
        if self._files.native:
            while not self._queue.wait(slots):
                pass
        else:
            for slot in slots.tolist():
                while self._queue.is_coming(slot):
                    self._work_or_nap()

    def close(self) -> None:
        """Drop queued reads, wait for running ones, and end the threads."""
        self._queue.drop()
        while self._queue.pending:
            time.sleep(NAP_S)
        self._queue.end_readers()
        if not self._files.native and self._started:
            self._finish()
        self._started = 0

    def _begin(self) -> None:
        """Start Python's threads: fewer, or none, where the system allows no more."""
        with contextlib.suppress(RuntimeError, MemoryError):
            work = self._files, self._memory, self._queue, self._wakes
            for _ in range(self.count):
                threading.Thread(target=_serve, args=work, name="sharpwave-read", daemon=True).start()
                self._started += 1
        self._finish = weakref.finalize(self, _end, self._wakes, self._started)

    def _work_or_nap(self) -> None:
        if self._files.native:
            worked = self._queue.work()
        else:
            worked = _make_some(self._files, self._memory, self._queue, _some())
        if not worked:
            time.sleep(NAP_S)
