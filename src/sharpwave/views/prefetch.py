"""Prefetching: batches drawn ahead of the learner, whose segments are read from disk meanwhile."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.errors import EmptyError, not_to_be_copied
from sharpwave.native.forks import path
from sharpwave.sampling.protocol import Draw, checked_array
from sharpwave.views.batch import Drawn
from sharpwave.views.batch_source import BatchSource

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]
B = TypeVar("B")

AHEAD = 0.75
"""Share of the memory for segments that prefetching may fill. The rest is for batches drawn now."""


class DrawsAhead:
    """Draws of one view for the future batches of a stream. The store's lock is held, except in ``wait_for``.

    Segments are read ahead as far as three quarters of the store's memory for them allow, counted over all its streams:
    a segment that was read must still be there when it is used.

    Args:
        owner: the replay, kept alive: only live replays are notified of evictions.
        lock: the store's.

    Attributes:
        drawn: draws not used yet, oldest first. ``filling``: those of batches that are being made.
    """

    def __init__(self, owner: object, source: BatchSource, lock: Any, streams: Streams) -> None:
        self._owner, self.source, self.lock, self._streams = owner, source, lock, streams
        self.drawn: deque[Drawn] = deque()
        self.filling: list[Drawn] = []
        with lock:
            streams.add(self)
            self._process = streams.process

    def draw(self, count: int, beta: float | None) -> Callable[[], None]:
        """Draw ``count`` items, which can be drawn; return a function that undoes it while the lock is still held."""
        self._streams.forget_dropped()
        source, draw = self.source, Draw.of(count)
        undo = source.draw(draw, beta)
        source.items.write_ids(draw.items, ids := np.empty(count, np.int64))
        self.drawn.append(Drawn(ids, draw.probabilities, draw.weights, source.kept_uniforms(draw)))
        source.gate.notify()

        def undraw() -> None:
            unpin(source.log, self.drawn.pop())
            undo()

        return undraw

    def read(self) -> None:
        """Start to read the segments of the next batches, as far as there is room to keep them."""
        log = self.source.log
        segment_cache = log.segment_cache
        if segment_cache is None or log.closed:
            return
        for batch in self.drawn:
            if batch.slots is None:
                slots = self._needed(batch)
                nbytes = int(log.index.nbytes[slots].sum())
                if segment_cache.kept_bytes + nbytes > AHEAD * log.segment_bytes:
                    break
                batch.slots, batch.nbytes = slots, nbytes
                segment_cache.kept_bytes += nbytes
                segment_cache.pin(slots)
                segment_cache.fetch(slots)

    def _needed(self, batch: Drawn) -> Ints:
        """Return slots of the sealed segments that a batch's items need, as far as they are still held."""
        items, there = self.source.items.resolve(batch.ids)
        uniforms = np.ones(len(items)) if batch.uniforms is None else batch.uniforms
        slots = self.source.view.drawn_segments(items[there], uniforms[there]).reshape(-1)
        sealed: Ints = slots[self.source.log.index.sealed[slots] > 0]
        return sealed

    def wait_for(self, one: Drawn) -> None:
        """Wait until the segments of a draw are read, while others append and sample."""
        segment_cache = self.source.log.segment_cache
        if segment_cache is not None and one.slots is not None:
            segment_cache.wait(one.slots)

    def go_on(self, used: Drawn) -> None:
        """Unpin the segments of a draw that was used, and read on."""
        unpin(self.source.log, used)
        self.source.gate.notify()  # they may be evicted
        self.read()

    def resume(self, drawn: list[dict[str, Any]]) -> None:
        """Begin with the draws of another stream; batches of other sizes are returned as well."""
        for batch in drawn:
            _, there = self.source.items.resolve(batch["ids"])
            ids = np.where(there, batch["ids"], -1)
            self.drawn.append(Drawn(ids, batch["probabilities"], batch["weights"], batch.get("uniforms")))

    @property
    def inherited(self) -> bool:
        """Whether this process was forked since the view was made, and ``clear`` was not called in it yet: what is
        drawn ahead is the parent's."""
        return self._process is not path()

    def clear(self) -> None:
        """Discard all draws; what they counted as sampled can be sampled again, where that is limited."""
        self._process = path()
        release(self.source.log, self.drawn, self.source)
        self.source.gate.notify()


class Stream(Generic[B]):
    """Endless iterator over batches; made by ``replay.Replay.stream``.

    Batches are drawn as far ahead as requested, and their segments are read meanwhile.

    Attributes:
        drawn: batches drawn and not used yet, oldest first.
    """

    def __init__(
        self, ahead: DrawsAhead, batch_size: int, lookahead: int, beta: float | None, timeout: float | None
    ) -> None:
        self._ahead, self.drawn = ahead, ahead.drawn
        self._size, self._lookahead = batch_size, lookahead
        self._beta, self._timeout = beta, timeout

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self)

    def __iter__(self) -> Stream[B]:
        return self

    def __next__(self) -> B:
        """Return the batch drawn longest ago.  Raises: as ``replay.Replay.sample``."""
        ahead, source = self._ahead, self._ahead.source
        one: Drawn | None = None
        try:
            with ahead.lock:
                if ahead.inherited:
                    source.log.check_open()
                    ahead.clear()
                while len(self.drawn) <= self._lookahead:
                    if not self.drawn:
                        source.wait(self._size, self._timeout)
                    elif not source.can_draw(self._size):
                        break
                    ahead.draw(self._size, self._beta)
                ahead.read()
                one = self.drawn.popleft()
                ahead.filling.append(one)
            ahead.wait_for(one)
            with ahead.lock:
                source.log.check_open()
                target = source.lend(len(one.ids))
                source.fill_drawn(target, one, self._beta)
                batch: B = target.batch
                return batch
        except (MemoryError, EmptyError):  # the draw counts as sampled: it is returned once there is room, or steps
            if one is not None:
                self.drawn.appendleft(one)
            raise
        except BaseException:  # an interrupt by the user, or damage
            if one is not None:
                with ahead.lock:
                    release(source.log, deque([one]), source)
            raise
        finally:
            if one is not None:
                with ahead.lock:
                    ahead.filling.remove(one)
                    ahead.go_on(one)

    def close(self) -> None:
        """Discard batches that were drawn and not used. With ``max_times_sampled`` their items can be drawn again."""
        with self._ahead.lock:
            self._ahead.clear()


class Streams:
    """Streams of one replay; it keeps none alive. The store's lock is held throughout.

    Attributes:
        resumed: draws of streams before a checkpoint, for the next streams made.
        process: the fork that made the replay. ``dropped``: draws of deleted streams, appended by any thread.
    """

    def __init__(self, source: BatchSource) -> None:
        self.process = path()
        self._log, self._source = source.log, weakref.ref(source)  # no cycle: its memory goes with the last reference
        self._made: list[tuple[weakref.ref[DrawsAhead], deque[Drawn]]] = []
        self.dropped: deque[Any] = deque()
        self.resumed: list[list[dict[str, Any]]] = []

    def add(self, stream: DrawsAhead) -> None:
        """Register the draws of a new stream, which continues one from a checkpoint, if any is left."""
        if self.resumed:
            stream.resume(self.resumed.pop(0))
        self.forget_dropped()
        self._made.append((weakref.ref(stream, self.dropped.append), stream.drawn))

    def forget_dropped(self) -> None:
        """Release draws of streams that were deleted, as ``Stream.close`` does."""
        if self.dropped:
            self.dropped.clear()
            unused = deque(one for ref, drawn in self._made if ref() is None for one in drawn)
            self._made = [one for one in self._made if one[0]() is not None]
            release(self._log, unused, self._source())

    def state(self) -> list[list[dict[str, Any]]]:
        """Return each stream's unused draws, in the order of making, for ``resumed``."""
        self.forget_dropped()
        in_use = (drawn for ref, drawn in self._made if ref() is not None)
        return [*([_state(one) for one in drawn] for drawn in in_use), *self.resumed]

    def ids(self) -> list[Ints]:
        """Return the ids of each stream's draws whose batches were not returned yet."""
        self.forget_dropped()
        streams = [stream for ref, _ in self._made if (stream := ref()) is not None]
        return [one.ids for stream in streams for one in (*stream.filling, *stream.drawn)]

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all draws."""
        return sum(one.draw_bytes for _, drawn in self._made for one in drawn)


def _state(one: Drawn) -> dict[str, Any]:
    state = {"ids": one.ids.copy(), "probabilities": one.probabilities.copy(), "weights": one.weights.copy()}
    return state if one.uniforms is None else state | {"uniforms": one.uniforms.copy()}


def checked(batch: Any) -> dict[str, Any]:
    """Return a batch of ``Streams.state``.  Raises: ValueError: it is something else."""
    arrays = {"ids": np.int64, "probabilities": np.float64, "weights": np.float32}
    if isinstance(batch, dict) and "uniforms" in batch:
        arrays["uniforms"] = np.float64
    found = {name: checked_array(batch, name, dtype) for name, dtype in arrays.items()}
    if "uniforms" in found and not ((found["uniforms"] >= 0) & (found["uniforms"] <= 1)).all():
        raise ValueError("drawn ahead: uniforms, expected numbers from 0 to 1")
    if len({len(array) for array in found.values()}) > 1 or not len(found["ids"]):
        raise ValueError("drawn ahead: arrays of different lengths, expected one of each an item")
    return found


def release(log: StepLog, drawn: deque[Drawn], source: BatchSource | None) -> None:
    """Discard draws: unpin their segments, and make their items available again where their uses are limited. The
    store's lock is held."""
    if drawn:
        ids = np.concatenate([one.ids for one in drawn])
        while drawn:
            unpin(log, drawn.popleft())
        if source is not None and not log.closed:
            source.items.take_back(ids)


def unpin(log: StepLog, one: Drawn) -> None:
    """Unpin the segments that were read for a draw. The store's lock is held."""
    if log.segment_cache is not None and one.slots is not None:
        log.segment_cache.kept_bytes -= one.nbytes
        log.segment_cache.pin(one.slots, -1)
        one.slots, one.nbytes = None, 0
