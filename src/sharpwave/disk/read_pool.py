"""Threads that read segments from disk into the arena, many at a time, without the interpreter lock.

A read of some kilobytes takes a few microseconds where the page cache holds the file: less than handing the interpreter
lock from thread to thread. So a reader waits, reads and verifies in one kernel that never returns to Python; it is
woken through a pipe, takes reads from a queue, and notes each outcome in ``state``. Threads that wait for a read take
from the queue as well. Errors are not reported here: a read that failed, or whose bytes do not match their checksum, is
SUSPECT, and is repeated in Python, which names the error.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from sharpwave.native import direct_io as direct
from sharpwave.native.crc32 import TABLE, Table, crc32
from sharpwave.native.files import Files
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import copy, exchange, fetch_add, pointer_to

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

COMING, READ, SUSPECT = 1, 2, 3
"""States of a slot while its segment is read; 0 and other numbers are not this module's."""
SLOT, DESCRIPTOR, DIRECT, OFFSET, BASE, NBYTES = 0, 1, 2, 3, 4, 5
"""Columns of a read: the slot; the file's descriptor, and that for direct reads; the offset in the file;
the offset in memory; bytes, the last 4 their CRC-32."""
COLUMNS = 8
HEAD, TAIL, DONE, JOINED = 0, 8, 16, 24
"""Counters, each on a cache line of its own: reads taken from the queue, put there, and settled; and reads joined
with the one before."""
MAX_JOINED_READS = 8
"""Limit of the reads of adjoining ranges that are made as one."""
QUEUE = 2048
MAX_READERS, MIN_READERS = 32, 4
"""Reads in flight: a disk serves many at once, and one only at its latency."""
BYTES_PER_READER = 1 << 20
"""Memory for each reader's reads: its window takes an eighth of that."""
NAP_US = 30
MAX_NAPS = 1000
"""After so many reads a waiting thread returns to Python, where an interrupt by the user is noticed."""
MAX_FAILURES, NO_PIPE = 100, -1
"""Failed reads of the pipe (as by signals) after which a reader gives up."""

_read: Any = types.ExternalFunction("read", types.int64(types.int32, types.voidptr, types.uint64))
_usleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))


@njit(nogil=True, cache=True)
def _put(queue: Ints, counters: Ints, state: Ints, reads: Ints) -> int:
    """Queue as many of the first reads as there is room for; return how many. Not thread-safe."""
    tail = fetch_add(counters, TAIL, 0)
    count = min(len(reads), len(queue) - (tail - fetch_add(counters, HEAD, 0)))
    for i in range(count):
        queue[(tail + i) % len(queue)] = reads[i]
        state[reads[i, SLOT]] = COMING
    fetch_add(counters, TAIL, count)
    return count


@njit(nogil=True, cache=True)
def _take(queue: Ints, counters: Ints, reads: Ints) -> int:
    """Take the oldest read from the queue, and adjoining ones behind it; return how many."""
    while True:
        head, tail = fetch_add(counters, HEAD, 0), fetch_add(counters, TAIL, 0)
        count = 0
        while count < len(reads) and head + count < tail:
            reads[count] = queue[(head + count) % len(queue)]  # copied before its place in the queue is free
            if count and not _adjoins(reads[0], reads[count - 1], reads[count]):
                break
            count += 1
        if not count or exchange(counters, HEAD, head, head + count):
            return count


@njit(nogil=True, cache=True, inner=True)
def _adjoins(first: Ints, before: Ints, read: Ints) -> bool:
    """Return whether a read is worth joining with the one before it, and fits into the window."""
    gap = read[OFFSET] - before[OFFSET] - before[NBYTES]
    span = read[OFFSET] + read[NBYTES] - first[OFFSET]
    return bool(
        read[DESCRIPTOR] == first[DESCRIPTOR] and 0 <= gap < direct.BLOCK and span <= direct.WINDOW - direct.BLOCK
    )


@njit(nogil=True, cache=True)
def _settle(state: Ints, counters: Ints, slot: int, sound: bool) -> None:
    exchange(state, slot, COMING, READ if sound else SUSPECT)
    fetch_add(counters, DONE, 1)


@njit(nogil=True, cache=True)
def _is_coming(state: Ints, slot: int) -> bool:
    # Slots that are not being read skip the atomic access, which costs time.
    return state[slot] != 0 and fetch_add(state, slot, 0) == COMING


@njit(nogil=True, cache=True, inner=True)
def _is_sound(memory: Bytes, table: Table, read: Ints) -> bool:
    """Return whether the bytes read match their checksum."""
    end = read[BASE] + read[NBYTES]
    stored = np.uint64(0)
    for i in range(4):
        stored |= np.uint64(memory[end - 4 + i]) << np.uint64(8 * i)
    return bool(stored == crc32(memory, read[BASE], end - 4, table))


@njit(nogil=True, cache=True)
def _make(memory: Bytes, counters: Ints, state: Ints, table: Table, reads: Ints, window: Bytes) -> None:
    """Make reads of adjoining ranges, and note their outcomes."""
    first, last = reads[0], reads[len(reads) - 1]
    at = 0
    if len(reads) > 1:
        span = last[OFFSET] + last[NBYTES] - first[OFFSET]
        at = direct.look(first[DESCRIPTOR], first[DIRECT], first[OFFSET], span, window)
        fetch_add(counters, JOINED, len(reads) - 1)
    for i in range(len(reads)):
        read = reads[i]
        begin, nbytes = read[BASE], read[NBYTES]
        if len(reads) > 1 and at >= 0:
            copy(memory, begin, window, at + read[OFFSET] - first[OFFSET], nbytes)
            sound = True
        else:
            sound = direct.read(read[DESCRIPTOR], read[DIRECT], read[OFFSET], memory, begin, begin + nbytes, window)
        _settle(state, counters, read[SLOT], sound and _is_sound(memory, table, read))


@njit(nogil=True, cache=True)
def _serve(memory: Bytes, queue: Ints, counters: Ints, state: Ints, table: Table, window: Bytes, pipe: int) -> None:
    """Wait for a byte in ``pipe``, make reads until none is queued, and repeat, until the pipe is closed."""
    reads = np.empty((MAX_JOINED_READS, COLUMNS), np.int64)
    failures = 0
    while failures < MAX_FAILURES:
        got = _read(pipe, pointer_to(window.ctypes.data), 1)
        if got == 0:
            return
        failures = failures + 1 if got < 0 else 0
        count = _take(queue, counters, reads)
        while count:
            _make(memory, counters, state, table, reads[:count], window)
            count = _take(queue, counters, reads)


@njit(nogil=True, cache=True)
def _wait(memory: Bytes, queue: Ints, counters: Ints, state: Ints, table: Table, window: Bytes, slots: Ints) -> bool:
    """Wait until none of ``slots`` is being read, making reads meanwhile; return False to be called again."""
    reads = np.empty((MAX_JOINED_READS, COLUMNS), np.int64)
    naps = 0
    for slot in slots:
        while _is_coming(state, slot):
            count = _take(queue, counters, reads)
            if count:
                _make(memory, counters, state, table, reads[:count], window)
            elif naps == MAX_NAPS:
                return False
            else:
                _usleep(NAP_US)
                naps += 1
    return True


def _make_with(files: Files, memory: Bytes, read: Ints) -> bool:
    """Make a read as ``_make`` does, through ``files``."""
    begin, end = int(read[BASE]), int(read[BASE] + read[NBYTES])
    try:
        done = files.pread(int(read[DESCRIPTOR]), memory[begin:end].data, int(read[OFFSET]))
    except OSError:
        return False
    stored = int.from_bytes(memory[end - 4 : end].tobytes(), "little")
    return done == end - begin and stored == int(crc32(memory, begin, end - 4, TABLE))


def _thread(
    files: Files,
    memory: Bytes,
    queue: Ints,
    counters: Ints,
    state: Ints,
    pipe: int,
    ends: list[bool],
    window: Bytes,
) -> None:
    """Run a reader. Its arguments keep the memory that it writes to alive until it ends."""
    try:
        if files.native:
            _serve(memory, queue, counters, state, TABLE, window, pipe)
            return
        reads = np.empty((MAX_JOINED_READS, COLUMNS), np.int64)
        while os.read(pipe, 1):
            while count := _take(queue, counters, reads):
                for read in reads[:count]:
                    _settle(state, counters, int(read[SLOT]), _make_with(files, memory, read))
    finally:
        if ends.pop():  # the last one
            os.close(pipe)


class Readers:
    """Pool of threads that read segments into ``memory``; a thread that waits for a segment reads as well.

    Args:
        memory: uint8 [bytes], which outlives all reads.
        state: int64 [slots]; COMING while a slot is being read, then READ or SUSPECT.
        files: if its ``pread`` is the system's, reading takes no interpreter lock.
    """

    def __init__(self, memory: Bytes, state: Ints, files: Files) -> None:
        self._memory, self._state, self._files = memory, state, files
        self._queue = np.zeros((QUEUE, COLUMNS), np.int64)
        self._counters = np.zeros(32, np.int64)
        self.count = max(MIN_READERS, min(MAX_READERS, len(memory) // BYTES_PER_READER))
        self._local = threading.local()
        self._dropped = np.empty((MAX_JOINED_READS, COLUMNS), np.int64)  # for ``close``, which takes no memory
        self._writer = -1

    @property
    def nbytes(self) -> int:
        """Bytes of the queue and of the readers' windows."""
        return self._queue.nbytes + self.count * direct.WINDOW

    @property
    def joined(self) -> int:
        """Reads that were joined with the one before."""
        return int(self._counters[JOINED])

    def start(self, reads: Ints) -> None:
        """Start ``reads`` [n, COLUMNS]. Not thread-safe.

        Cost: 10 us.
        """
        if self._writer < 0:
            self._begin()
        begin = 0
        while begin < len(reads):
            count = _put(self._queue, self._counters, self._state, reads[begin:])
            begin += count
            if self._writer >= 0:
                try:
                    os.write(self._writer, b"!" * min(count, self.count))
                except BlockingIOError:
                    pass  # the pipe is full of wake-ups
                except BrokenPipeError:  # all readers have failed: whoever waits reads, and the next call starts others
                    self._end()
                    self._writer = -1
            if begin < len(reads):
                self._work_or_nap()

    def wait(self, slots: Ints) -> None:
        """Wait until none of ``slots`` is being read. Thread-safe."""
        if self._files.native:
            window = self._window()
            while not _wait(self._memory, self._queue, self._counters, self._state, TABLE, window, slots):
                pass
        else:
            for slot in slots.tolist():
                while _is_coming(self._state, slot):
                    self._work_or_nap()

    def close(self) -> None:
        """Drop queued reads, and wait for those under way."""
        while self._counters[DONE] < self._counters[TAIL] and (
            count := _take(self._queue, self._counters, self._dropped)
        ):
            for read in self._dropped[:count]:
                _settle(self._state, self._counters, int(read[SLOT]), False)
        while self._counters[DONE] < self._counters[TAIL]:
            time.sleep(1e-4)
        if self._writer >= 0:
            self._end()

    def leave(self) -> None:
        """Close the pipe in a forked process, or else the parent's readers would not end."""
        if self._writer >= 0:
            self._end()

    def _begin(self) -> None:
        """Start the threads: fewer where the system allows no more, none without descriptors.

        Their machine code is loaded here: a thread that had no descriptor for its file would end.
        """
        try:
            _serve(self._memory, self._queue, self._counters, self._state, TABLE, self._window(), NO_PIPE)
            pipe, writer = os.pipe()
        except OSError:
            return
        if hasattr(os, "set_blocking"):  # else a full pipe waits for a reader
            os.set_blocking(writer, False)
        ends = [number == 0 for number in range(self.count)]  # one a thread: the last to end pops True
        arguments = (self._files, self._memory, self._queue, self._counters, self._state, pipe, ends)
        started = 0
        with contextlib.suppress(RuntimeError, MemoryError):
            for _ in range(self.count):
                work = (*arguments, direct.window())
                threading.Thread(target=_thread, args=work, name="sharpwave-read", daemon=True).start()
                started += 1
        for _ in range(self.count - started):
            if ends.pop():
                os.close(pipe)
        if not started:
            os.close(writer)
            return
        self._writer = writer
        self._end = weakref.finalize(self, os.close, writer)  # without a writer the readers end

    def _window(self) -> Bytes:
        """Return the calling thread's own window."""
        if not hasattr(self._local, "window"):
            self._local.window = direct.window()
        window: Bytes = self._local.window
        return window

    def _work_or_nap(self) -> None:
        reads = np.empty((MAX_JOINED_READS, COLUMNS), np.int64)
        count = _take(self._queue, self._counters, reads)
        if not count:
            time.sleep(1e-4)
        elif self._files.native:
            _make(self._memory, self._counters, self._state, TABLE, reads[:count], self._window())
        else:
            for read in reads[:count]:
                _settle(self._state, self._counters, int(read[SLOT]), _make_with(self._files, self._memory, read))
