"""Sealing behind the caller: a thread encodes a full segment while its lane goes on in other memory."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

from sharpwave.format.segment import SegmentColumn
from sharpwave.log.admission import Admission
from sharpwave.log.column_encoder import SegmentEncoder
from sharpwave.log.inventory import LogListener
from sharpwave.log.open_segments import Lanes
from sharpwave.native import core

MAX_PENDING = 16
"""Segments that wait to be encoded at most: each keeps the memory of an open segment."""

NAME = "sharpwave-encoding"
"""Name of the thread."""


class Work:
    """Work for the thread, or for a caller that needs its result first."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self.done = work, False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it, unless it is done; an error is for ``result``."""
        if self.done:
            return
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self.done = True

    def result(self) -> None:
        if self._error is not None:
            raise self._error


class Works:
    """Works of one store, done one after the other, in order, by any thread: a segment's choices depend on the segments
    before it."""

    def __init__(self) -> None:
        self._left: deque[Work] = deque()
        self.forked()

    def forked(self) -> None:
        """Forget that another thread is at work, which a child does not have."""
        self._doing = threading.Lock()

    def add(self, work: Work) -> None:
        """Add one behind the others."""
        self._left.append(work)

    def add_first(self, work: Work) -> None:
        """Add a work before the pending ones."""
        with self._doing:
            self._left.appendleft(work)

    def advance(self) -> None:
        """Do the next one, once the one before is done."""
        with self._doing:
            if self._left:
                work = self._left[0]
                work.run()
                self._left.popleft()  # last: an interrupt between two lines loses none

    def finish(self, work: Work) -> None:
        """Return once a ``work`` is done. An interrupt leaves the others to be done."""
        while not work.done:
            self.advance()

    def finish_all(self) -> None:
        """Return once all are done."""
        while self._left:
            self.advance()


class _Thread:
    """The thread of this process that encodes; it is started with the first work."""

    def __init__(self) -> None:
        self._thresholds: tuple[int, int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._waiting: SimpleQueue[Works] = SimpleQueue()
        self._starting, self._started = threading.Lock(), False

    def forked(self) -> None:
        """Forget the thread, which a child does not have, and start the collector if the thread had stopped it."""
        self.start_collector()
        self._begin()

    def stop_collector(self) -> None:
        """Let no finalizers run in the thread, by a threshold: ``gc.disable`` is the caller's own."""
        self._thresholds = gc.get_threshold()
        gc.set_threshold(0, *self._thresholds[1:])

    def start_collector(self) -> None:
        """Undo that, unless somebody has set another threshold meanwhile."""
        if self._thresholds is not None and not gc.get_threshold()[0]:
            gc.set_threshold(*self._thresholds)
        self._thresholds = None

    def there(self) -> bool:
        """Return whether there is a thread; start it if it can be."""
        with self._starting:
            if not self._started:
                try:
                    threading.Thread(target=_serve, args=(self._waiting,), name=NAME, daemon=True).start()
                except RuntimeError:
                    return False
                self._started = True
            return True

    def ask(self, works: Works) -> None:
        """Have the thread do the next one of ``works``; if memory for that is lacking, a later caller does it."""
        with suppress(MemoryError):
            self._waiting.put(works)


def _serve(waiting: SimpleQueue[Works]) -> None:
    while True:
        works = waiting.get()
        # A finalizer that the collector runs here may take the lock of a store whose owner waits for this thread:
        # deadlock.
        THREAD.stop_collector()
        try:
            works.advance()
        finally:
            THREAD.start_collector()
        del works


THREAD = _Thread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=THREAD.forked)


@dataclass
class Pending:
    """Segment that is being encoded. Its rows are raw, in separate memory, and can be sampled.

    Attributes:
        lane, slot: of the segment. ``staging``: offset of its rows, as ``Lanes.staging``.
        may_try: as for ``SegmentEncoder.encode``.
        work: encodes it; ``None``: the work failed, and the segment must still be encoded.
        packed, begins, columns, places: arguments of ``Admission.keep``, once the work is done.
    """

    lane: int
    slot: int
    staging: int
    may_try: list[bool]
    work: Work | None = None
    packed: bytes = b""
    begins: list[int] = field(default_factory=list)
    columns: list[SegmentColumn] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class Behind(LogListener):
    """Segments that are being encoded, in the order in which they became full, and memory for further ones.

    Only batches and appends on the fast path see pending segments: every other use of the store, and the next sealing,
    calls ``settle`` first (``Lock.settle``). So the number of held steps, and the bytes of segments, do not depend on
    the thread's speed.

    Attributes:
        pending: the segments. ``works``: the works that encode them.
    """

    def __init__(self, opened: Lanes, admission: Admission, encoder: SegmentEncoder) -> None:
        self._opened, self._admission, self._encoder = opened, admission, encoder
        self._space, self._sealed, self._ledger = admission.space, admission.sealed, admission.ledger
        self.pending: deque[Pending] = deque()
        self.works = Works()
        self._spare: list[int] = []
        self._unasked = 0

    def take(self, lane: int, slot: int, following: int) -> bool:
        """Have the lane's open segment, which is in ``slot``, encoded behind the caller. The lane's next segment, in
        the slot ``following``, gets other memory.

        Returns False if encoding takes no longer than handing over, or if there is no memory or thread for it. So with
        a limit in bytes, where the moment at which one segment is sealed decides which other segment is evicted.
        """
        opened = self._opened
        if self._ledger.ram is not None or opened.annotations or len(self.pending) >= MAX_PENDING:
            return False
        rows = opened.columns.all_so_far(slot)
        if not self._encoder.takes_long(lane, rows) or not (self._spare or self._add()) or not THREAD.there():
            return False
        one = Pending(lane, slot, opened.staging.item(lane), self._encoder.reserve_trials(lane, rows))
        one.work = self._work(one)
        self.pending.append(one)
        try:
            self.works.add(one.work)
        except BaseException:
            self.pending.pop()
            raise
        opened.move(lane, following, self._spare.pop())
        self._space.index.sealed[slot] = 1  # no row follows in it; readers check this flag
        THREAD.ask(self.works)
        return True

    def _add(self) -> bool:
        """Take memory for an open segment from the arena, if it has any."""
        arena, nbytes = self._space.arena, self._space.layout.open_bytes
        offsets = arena.reserve(nbytes, 1)
        self._spare += [offset - arena.begin_of(0) for offset in offsets]
        self._space.staged += len(offsets)
        return bool(offsets)

    def begin(self, work: Callable[[], None]) -> Callable[[], None]:
        """Have work done behind the caller, from ``wake`` on; return a function that waits for it and raises its
        error."""
        one = Work(work)

        def finish() -> None:
            self.works.finish(one)
            one.result()

        self.works.add(one)
        self._unasked += 1
        return finish

    def wake(self) -> None:
        """Ask the thread to do the work begun. Last in a call: the thread takes the interpreter's lock."""
        while self._unasked and THREAD.there():
            THREAD.ask(self.works)
            self._unasked -= 1

    def _work(self, one: Pending) -> Work:
        return Work(lambda: self._encode(one))

    def _encode(self, one: Pending) -> None:
        rows = self._opened.columns.all_so_far(one.slot)
        self._encoder.encode(one.lane, rows, one.columns, one.places, one.may_try)
        one.packed, one.begins = self._opened.pack(one.lane, one.slot, one.columns)

    def settle(self) -> None:
        """Seal every segment that is being encoded, once its work is done.

        Raises: MemoryError: there is no room; the next call seals the rest.
        """
        while self.pending:
            one = self.pending[0]
            try:
                if one.work is None:
                    work = self._work(one)
                    self.works.add_first(work)  # beside the thread, two would use an encoder at once
                    one.work = work
                self.works.finish(one.work)
                one.work.result()
            except BaseException:
                if one.work is None or one.work.done:  # otherwise after an interrupt: the thread goes on
                    self._sealed.drop_dictionaries(one.places)
                    one.work, one.columns, one.places = None, [], []
                raise
            columns, places, rows = one.columns, one.places, int(self._space.index.rows[one.slot])
            one.work, one.columns, one.places = None, [], []  # ``keep`` releases the dictionaries where it raises
            kept = self._admission.keep(one.slot, rows, one.packed, one.begins, columns, places)
            self.pending.popleft()
            self._spare.append(one.staging)
            if not kept:
                self._admission.drop(one.slot)
            self._opened.columns.values.release(one.slot)

    def let_go(self) -> None:
        """Free the memory for further segments, once the segments that are being encoded are sealed."""
        self.settle()
        begin = self._space.arena.begin_of(0)
        spare, self._spare = [begin + staging for staging in sorted(self._spare)], []
        self._admission.unstage(spare)

    def wait(self) -> None:
        """Wait until nothing is being encoded: a forked child has no thread for it."""
        self.works.finish_all()

    @property
    def followers(self) -> list[core.Items] | None:
        """None where segments are being encoded, which are sealed before others."""
        return None if self.pending else []

    def growing(self, slots: int) -> None:
        """Seal them: memory is about to move."""
        self.settle()
