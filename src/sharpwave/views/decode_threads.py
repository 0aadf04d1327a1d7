"""Helper threads that decode a large batch together with the calling one.

A helper waits and works inside one kernel that never returns to Python, so it never takes the interpreter lock, for
which the calling thread would have to wait. (numba's ``prange`` does not serve: it changes torch's number of threads,
as both use OpenMP, and keeps the other cores spinning after each batch.) A helper reads its job from an array of
numbers and addresses, and is woken through a pipe. It takes items from a counter shared with the calling thread: one
that wakes late, or never, takes fewer or none.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import cache
from typing import Any

import numpy as np
from numba import types

from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import INTERPRETED, array_at, exchange, pointer_to
from sharpwave.views.gather_kernels import COLUMN_WORDS, PIECE_ROWS, TURNS, Bytes, Ints, gather_items, gather_pieces

IDLE, CALLED, WORKING = 0, 1, 2
"""States of a helper. IDLE -> CALLED by the caller, CALLED -> WORKING -> IDLE by the helper, CALLED -> IDLE by a caller
that finds nothing left to do."""
SPINS = 1000
"""Checks of whether a helper is done before the caller lets other threads run (some 20 us)."""
JOB_WORDS = 13
FAILURES = 100
"""Failed reads (as by signals) after which a helper gives up."""

_read: Any = types.ExternalFunction("read", types.int64(types.int32, types.voidptr, types.uint64))


@njit(nogil=True, cache=True)
def _help(end: int, state: Ints, job: Ints, byte: Bytes, byte_address: int, pipe: int) -> None:
    """Wait for a byte in ``pipe``, do the ``job`` if still CALLED, and repeat, until the pipe is closed.

    A job is the words that ``_describe`` or ``_describe_pieces`` wrote.
    """
    failures = 0
    while failures < FAILURES:
        got = _read(pipe, pointer_to(byte_address), 1)
        if got == 0:
            return
        failures = failures + 1 if got < 0 else 0
        if exchange(state, 0, CALLED, WORKING):
            turns = array_at(job[0], (TURNS,), np.int64)
            column_words = array_at(job[2], (COLUMN_WORDS,), np.int64)
            items = job[3]
            if job[10]:
                pieces = array_at(job[4], (PIECE_ROWS, items), np.int64)
                gather_pieces(end, turns, job[1], column_words, pieces, array_at(job[7], (job[8], job[9]), np.uint8))
            else:
                gather_items(
                    end,
                    turns,
                    job[1],
                    column_words,
                    array_at(job[4], (items,), np.int64),
                    array_at(job[5], (items,), np.int64),
                    array_at(job[6], (items,), np.int64),
                    array_at(job[7], (items, job[8], job[9]), np.uint8),
                    array_at(job[11], (items, job[12], job[9]), np.uint8),
                )
            exchange(state, 0, WORKING, IDLE)


@njit(nogil=True, cache=True)
def _describe(
    job: Ints,
    turns: Ints,
    chunk: int,
    column_words: Ints,
    slot: Ints,
    newest: Ints,
    first: Ints,
    out: Bytes,
    last: Bytes,
) -> None:
    """Write the arguments of ``gather_items`` into ``job``, as ``_help`` reads them."""
    job[0] = turns.ctypes.data
    job[1] = chunk
    job[2] = column_words.ctypes.data
    job[3] = slot.size
    job[4] = slot.ctypes.data
    job[5] = newest.ctypes.data
    job[6] = first.ctypes.data
    job[7] = out.ctypes.data
    job[8] = out.shape[1]
    job[9] = out.shape[2]
    job[10] = 0
    job[11] = last.ctypes.data
    job[12] = last.shape[1]


@njit(nogil=True, cache=True)
def _describe_pieces(job: Ints, turns: Ints, chunk: int, column_words: Ints, pieces: Ints, out: Bytes) -> None:
    """Write the arguments of :func:`gather_pieces` into ``job``, as :func:`_help` reads them."""
    job[0] = turns.ctypes.data
    job[1] = chunk
    job[2] = column_words.ctypes.data
    job[3] = pieces.shape[1]
    job[4] = pieces.ctypes.data
    job[7] = out.ctypes.data
    job[8] = out.shape[0]
    job[9] = out.shape[1]
    job[10] = 1


@njit(nogil=True, cache=True)
def _call(state: Ints) -> None:
    exchange(state, 0, IDLE, CALLED)


@njit(nogil=True, cache=True)
def _dismissed(state: Ints) -> bool:
    """Return whether the helper will not touch the job any more; waits briefly for one that is working."""
    spins = 0
    while spins < SPINS:
        if exchange(state, 0, CALLED, IDLE) or exchange(state, 0, IDLE, IDLE):
            return True
        spins += 1
    return False


class _Helper:
    """Helper thread. Its ``state`` has a cache line of its own."""

    def __init__(self, end: int, job: Ints) -> None:
        self.state = np.zeros(16, np.int64)
        self._byte = np.zeros(1, np.uint8)
        reader, self._writer = os.pipe()
        arguments = (end, self.state, job, self._byte, self._byte.ctypes.data, reader)
        try:
            threading.Thread(target=_help, args=arguments, name="sharpwave-gather", daemon=True).start()
        except BaseException:
            os.close(reader)
            os.close(self._writer)
            raise

    def call(self) -> None:
        _call(self.state)
        os.write(self._writer, b"!")

    def dismiss(self) -> None:
        while not _dismissed(self.state):
            time.sleep(0)


class Team:
    """Helpers of a process: fewer than requested, or none, where the system allows no more threads or descriptors.

    One caller at a time uses them; another works alone meanwhile.
    """

    def __init__(self, helpers: int) -> None:
        self._job = np.zeros(JOB_WORDS, np.int64)
        self._helpers: list[_Helper] = []
        with contextlib.suppress(OSError, RuntimeError, MemoryError):
            for i in range(helpers):
                self._helpers.append(_Helper((i + 1) % 2, self._job))
        self._taken = threading.Lock()

    def gather_items(self, helpers: int, *arguments: Any) -> None:
        """Run ``sharpwave.views.gather_kernels.gather_items`` on the calling thread and up to ``helpers`` others.

        Cost: 5 us, 2 for each helper, and some 20 until they wake.
        """
        self._run(helpers, gather_items, _describe, arguments)

    def gather_pieces(self, helpers: int, *arguments: Any) -> None:
        """Run :func:`sharpwave.views.gather_kernels.gather_pieces` likewise."""
        self._run(helpers, gather_pieces, _describe_pieces, arguments)

    def _run(self, helpers: int, gather: Any, describe: Any, arguments: tuple[Any, ...]) -> None:
        if not self._taken.acquire(blocking=False):
            gather(0, *arguments)
            return
        called = self._helpers[:helpers]
        try:
            describe(self._job, *arguments)
            for helper in called:
                helper.call()
            gather(0, *arguments)
        finally:
            for helper in called:
                helper.dismiss()
            self._taken.release()


@cache
def team(threads: int) -> Team | None:
    """Return the process's team for ``threads`` threads in total; ``None`` without helpers.

    There are none on Windows, whose C library lacks the ``read`` that helpers wait in: linking it would end the
    process.
    """
    return Team(threads - 1) if threads > 1 and not INTERPRETED and os.name == "posix" else None


if hasattr(os, "register_at_fork"):  # threads do not survive a fork: a child starts its own
    os.register_at_fork(after_in_child=team.cache_clear)
