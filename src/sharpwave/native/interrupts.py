"""Deferred signals: a handler such as Ctrl-C's that raises amid a change of the store would leave it half done.

Python runs signal handlers between any two instructions of the main thread. A step interrupted there may have its frame
stored and not its end, and the next step would be joined to the wrong frames.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

try:
    # The functions of the module itself convert to enums, which takes 3 us.
    from _signal import getsignal  # type: ignore[import-not-found, unused-ignore]
    from _signal import signal as set_handler
except ImportError:
    from signal import getsignal
    from signal import signal as set_handler

HANGS_S = {"SIGINT": 2.0, "SIGTERM": 2.0, "SIGHUP": 2.0, "SIGALRM": 30.0, "SIGUSR1": 30.0, "SIGUSR2": 30.0}
"""Seconds after which a change of the store counts as hung, so that a signal is handled amid it, by the signal's name.

A second Ctrl-C requests an end. A timer cannot know that a slow disk, or the first call, which compiles, takes its
time.
"""
DEFERRED = {int(getattr(signal, name)): seconds for name, seconds in HANGS_S.items() if hasattr(signal, name)}
TIMER = getattr(signal, "SIGALRM", None)


class Handlers:
    """Signal handlers of the process, deferred while its main thread, where they run, changes a store.

    A signal that arrives again ``HANGS_S`` after the first is handled at once. Not sooner: who presses Ctrl-C twice
    would leave a store half changed. A timer's arrives again by itself, so that it shows where a program hangs.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._own = self._later
        self._others: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: dict[int, float] = {}  # when
        self._reminds = False  # the process's timer is set, so that SIGALRM arrives again

    def defer(self, depth: int = 1) -> None:
        """Defer handlers until ``allow`` has been called ``depth`` times. Handlers may raise until this returns.

        Cost: 2 us with the call of ``allow``.
        """
        if get_ident() != self._main:
            return
        if not self._depth:
            if self._came:  # an interrupt arrived between the end of the last change and these lines
                self._pass_on()
            for number in DEFERRED:
                handler = getsignal(number)
                if handler is self._own:  # an interrupt arrived at this line the last time
                    continue
                self._others.pop(number, None)
                if callable(handler):
                    self._others[number] = handler
                    try:
                        set_handler(number, self._own)
                    except ValueError:  # embedded: another thread is the main one
                        del self._others[number]
        self._depth += depth

    def allow(self) -> None:
        """Undo one ``defer``. The outermost call runs the handlers of signals that arrived meanwhile."""
        if get_ident() != self._main or not self._depth:
            return
        try:
            self._depth -= 1
        finally:
            if not self._depth:  # from here on _later passes signals on
                self._restore([*self._others.items()])

    def _restore(self, handlers: list[tuple[int, Callable[[int, FrameType | None], Any]]]) -> None:
        """Set the handlers again, then run the handlers of all signals that arrived, even if one raises meanwhile.

        A signal left for later would make the first signal of a later change look like a repeated one.
        """
        try:
            if self._reminds:  # while SIGALRM is still deferred: one that arrives right now is not a second one
                signal.setitimer(signal.ITIMER_REAL, 0)
                self._reminds = False
            while handlers:
                number, handler = handlers.pop()
                set_handler(number, handler)  # it may raise before: _later then goes on to run the handler
        finally:
            if handlers:
                self._restore(handlers)
            else:
                self._pass_on()

    def _pass_on(self) -> None:
        """Run the handlers of signals that arrived, in Python's order.

        A handler that runs between any two lines here, and uses a store, runs the remaining handlers itself.
        """
        try:
            while (number := min(self._came, default=None)) is not None:
                if self._came.pop(number, None) is not None:
                    self._others[number](number, sys._getframe())
        finally:
            if self._came:
                self._pass_on()

    def suspend(self) -> int:
        """Undo every ``defer``; return the ``depth`` to restore."""
        if get_ident() != self._main or not self._depth:
            return 0
        depth, self._depth = self._depth, 1
        self.allow()
        return depth

    def forked(self) -> None:
        """Reset after a fork: in the child, the forking thread is the main one, and no change is under way."""
        self._main = get_ident()
        self._came.clear()
        self._reminds = False  # a child has no timers
        self.suspend()

    def _later(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._depth and now - self._came.setdefault(number, now) < DEFERRED[number]:
            if number == TIMER and not any(signal.getitimer(signal.ITIMER_REAL)):
                self._reminds = True
                signal.setitimer(signal.ITIMER_REAL, DEFERRED[number])
            return
        self._came.pop(number, None)
        self._others[number](number, frame)


HANDLERS = Handlers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HANDLERS.forked)


def _nothing() -> None:
    return None


class InterruptLock:
    """Reentrant lock; while the main thread holds it, it is not interrupted unless it waits for a condition.

    Attributes:
        number: order of creation, by which locks that are held together are sorted.
        settle: returns a function, if it still exists, that every taker of the lock calls, except a thread that already
            holds it. If it raises, the lock is not taken. A ``weakref.WeakMethod``: a lock keeps no store alive.
        unsettled: context that takes the lock without that call.
        interruptible: the plain lock of ``threading``, which defers nothing and costs a tenth: for changes made by one
            call of compiled code, in which no handler runs.
    """

    _numbers = itertools.count()

    def __init__(self) -> None:
        self._lock = self.interruptible = threading.RLock()
        self.number = next(self._numbers)
        self.settle: Callable[[], Callable[[], None] | None] = _nothing
        self.unsettled = _Unsettled(self)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire as ``threading.RLock`` does, and settle."""
        outermost = not self._is_owned()
        taken = self.take(blocking, timeout)
        if taken and outermost:
            try:
                self._settle()
            except BaseException:
                self.release()
                raise
        return taken

    def _settle(self) -> None:
        settle = self.settle()
        if settle is not None:
            settle()

    def take(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire as ``threading.RLock`` does, without settling."""
        HANDLERS.defer()
        taken = False
        try:
            taken = self._lock.acquire(blocking, timeout)
        finally:
            if not taken:
                HANDLERS.allow()
        return taken

    def release(self) -> None:
        """Release as ``threading.RLock`` does."""
        self._lock.release()
        HANDLERS.allow()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *passing: object) -> None:
        self.release()

    # Methods that threading.Condition calls on its lock.

    def _is_owned(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _release_save(self) -> tuple[Any, int]:
        depth = HANDLERS.suspend()  # may raise, so the lock is still held
        return self._lock._release_save(), depth  # type: ignore[attr-defined]

    def _acquire_restore(self, saved: tuple[Any, int]) -> None:
        self._lock._acquire_restore(saved[0])  # type: ignore[attr-defined]
        HANDLERS.defer(saved[1])
        self._settle()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]


class _Unsettled:
    """Context in which a lock is held that was taken without settling."""

    def __init__(self, lock: InterruptLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.take()

    def __exit__(self, *passing: object) -> None:
        self._lock.release()
