"""Source of batches: drawn once the rate limiter admits it, into memory that is lent, without damaged segments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.errors import DamagedError, EmptyError
from sharpwave.native.forks import path
from sharpwave.sampling.limiters import Cursor, Gate, Limiter, Queue
from sharpwave.sampling.ordered import Fifo
from sharpwave.sampling.protocol import Draw, Sampler, check_sampler
from sharpwave.validation import Missing
from sharpwave.views.at_once import sampling
from sharpwave.views.batch import Drawn, Draws
from sharpwave.views.filling import fill
from sharpwave.views.forked_draws import own_generator
from sharpwave.views.ids import Tag, tagged
from sharpwave.views.items import Items
from sharpwave.views.layout import Layout, Target
from sharpwave.views.uses import Uses
from sharpwave.views.view import STEPS, View

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Undo = Callable[[], None]

UNSAMPLED = "the store is full of steps not sampled yet"
AHEAD = "the store is full of steps that a stream has drawn ahead: go on with it, or close() it"
"""Why nothing may be evicted."""
MAX_LAYOUTS = 4
"""Number of batch sizes whose layouts, with working memory, are kept."""


class BatchSource:
    """Batches of one view. The store's lock is held throughout.

    Args:
        log: the store's log; ``gate``: where batches wait for steps.
        seed: as for ``numpy.random.default_rng``.
        max_times_sampled: limit of the times that an item is sampled; ``None``: none.
        limiter: bounds samples against inserts; ``None``: nothing waits.

    Attributes:
        items: items that can be drawn. ``rng``: generator of the draws. ``tag``: of the ids.
        drawn_ahead: returns the ids of each draw for a batch that is still to come. ``forget_dropped``: lets those of
            streams go that were deleted, if any are in ``dropped``.
        steps_before: steps of the store that the limiter does not count as inserts.
        complete: ends the filling of a batch by a call of the user's, which needs the store's lock as ``sample`` does;
            ``None``: the core does all.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    def __init__(
        self,
        log: StepLog,
        gate: Gate,
        view: View[Any],
        sampler: Sampler,
        seed: Any,
        max_times_sampled: int | None,
        limiter: Limiter | None,
    ) -> None:
        check_sampler(f"{view.kind}: sampler", sampler)
        uses = None if max_times_sampled is None else Uses(max_times_sampled, log.index.leaves)
        self.log, self.gate, self.view, self.tag = log, gate, view, Tag(log.tag, view.id_space)
        self.max_times_sampled = None if uses is None else uses.max_uses
        if limiter is not None:
            if isinstance(limiter, type) or not hasattr(limiter, "sample_waits"):
                raise TypeError(f"{view.kind}: limiter={limiter!r}, expected a limiter such as sharpwave.MinSize(1000)")
            limiter.check(log.admission.capacity, self.max_times_sampled)
        self.limiter = limiter
        self._wanted = 0  # size of the batch asked for last, or of the largest that finds too few uses
        self.steps_before = log.inventory.total_steps - log.inventory.held_steps
        self.rng, self._process = np.random.default_rng(seed), path()
        self.items = Items(log, view, sampler, uses)
        self.layouts: dict[int, Layout] = {}  # by batch size, the latest
        self.drawn_ahead: Callable[[], list[Ints]] = list
        self.forget_dropped: Callable[[], None] = _nothing
        self.dropped: Sized = ()
        self.complete: Callable[[Any], None] | None = getattr(view, "complete", None)

    # waiting

    def sample_waits(self, batch_size: int) -> str | None:
        """Return what a batch must wait for; ``None`` if it need not."""
        self.log.check_open()
        self.forget_dropped()
        self.items.follow()
        if self.limiter is None:
            return None
        cursor = self._cursor()
        reason = self.limiter.sample_waits(batch_size, cursor)
        if reason is None:
            self._want(batch_size, cursor)
        if reason is None and cursor.uses < batch_size:
            uses = "no step" if not cursor.size else f"{cursor.uses:g} uses of steps"
            remedy = "the writer has to append"
            if self._never_fits(batch_size):
                remedy = "the store never holds as many; use a smaller batch_size, or raise capacity="
            elif full := self._evicts_unsampled(max(1, self.log.lanes)):
                remedy = full if full is AHEAD else f"{full}; use a smaller batch_size, or raise capacity="
            reason = f"{batch_size} samples find {uses} left: {remedy}"
        return None if reason is None else f"{reason} ({self.limiter}; {cursor})"

    def check_admitted(self, batch_size: int) -> None:
        """Refuse a batch that the limiter can never admit.  Raises: ValueError."""
        if self.limiter is not None:
            self.items.follow()
            self.limiter.sample_waits(batch_size, self._cursor())

    def _want(self, batch_size: int, cursor: Cursor) -> None:
        """Note a batch that the limiter admits, for ``append_waits``; wake the writers where it needs more steps."""
        if self._never_fits(batch_size):
            return  # no appends would do: they would only evict what was not sampled
        short = cursor.uses < batch_size
        if short and batch_size > self._wanted:
            self.gate.notify()
        self._wanted = max(self._wanted, batch_size) if short else batch_size

    def _never_fits(self, batch_size: int) -> bool:
        """Return whether the capacity's steps cannot be sampled so often in all."""
        capacity, uses = self.log.admission.capacity, self.max_times_sampled
        return capacity is not None and uses is not None and batch_size > capacity * uses

    def append_waits(self, steps: int) -> str | None:
        """Return what an append of ``steps`` steps must wait for; ``None`` if it need not.

        It does not wait for a learner who finds too few uses left for a batch, and so waits for the writer, unless the
        append would evict what a queue has to give out.
        """
        if self.limiter is None:
            return None
        self.items.follow()
        cursor = self._cursor()
        reason = self.limiter.append_waits(steps, cursor)
        if full := self._evicts_unsampled(steps):
            reason = reason or (full if full is AHEAD else f"{full}: the learner has to sample")
        elif reason is None or cursor.uses < self._wanted:
            return None
        return f"{reason} ({self.limiter}; {cursor})"

    def _evicts_unsampled(self, steps: int) -> str | None:
        """Return what keeps ``steps`` more from being appended, if they would evict items that a ``Queue`` with
        ``Fifo`` has promised to give out: they can be sampled, or a stream drew them and did not return them yet.

        Cost: O(1) for each segment that is to be evicted, and for each batch drawn ahead.
        """
        log, retention = self.log, self.log.retention
        capacity, need = log.admission.capacity, log.inventory.held_steps + steps
        ordered = isinstance(self.limiter, Queue) and isinstance(self.items.sampler, Fifo)
        if capacity is None or need <= capacity or not ordered or not isinstance(retention, Fifo):
            return None
        for slot in retention.oldest():
            if self._sampled_later(slot):
                return UNSAMPLED
            if self._drawn_ahead(slot):
                return AHEAD
            need -= int(log.index.rows[slot])
            if need <= capacity:
                break
        return None

    def _sampled_later(self, slot: int) -> bool:
        """Return whether items that can still be sampled need the oldest segment of a lane, those of later segments
        for their burn-in among them."""
        items, stride, later, between = self.items, self.log.stride, slot, 0
        assert items.uses is not None  # or Queue had refused the view
        while later >= 0:
            begin, end = items.spans[later].tolist()
            there = later * stride + np.arange(begin, end)
            there = there[items.uses.remaining(there)]
            if there.size and (later == slot or (self.view.segments(there) == slot).any()):
                return True
            between += 0 if later == slot else int(self.log.index.rows[later])
            if there.size or between >= self.view.reach_back:
                break
            later = int(self.log.index.next[later])
        return False

    def _drawn_ahead(self, slot: int) -> bool:
        """Return whether items that a stream has drawn and not returned yet need a segment."""
        for ids in self.drawn_ahead():
            drawn, held = self.items.resolve(ids)
            if held.any() and (self.view.segments(drawn[held]) == slot).any():
                return True
        return False

    def _cursor(self) -> Cursor:
        items, inserts = self.items, self.log.inventory.total_steps - self.steps_before
        return Cursor(inserts, items.samples, items.count, items.uses_left, self.view.id_space != STEPS)

    def wait(self, batch_size: int, timeout: float | None) -> None:
        """Wait until a batch can be drawn.  Raises: EmptyError, LimiterTimeoutError, ValueError."""
        self.gate.wait("sample", lambda: self.sample_waits(batch_size), timeout)
        self._check_enough(batch_size)

    def _check_enough(self, batch_size: int) -> None:
        count, left, max_uses = self.items.count, self.items.uses_left, self.max_times_sampled
        if count == 0 and left == 0:
            used = "" if max_uses is None else f" (or all were, max_times_sampled={max_uses} times)"
            raise EmptyError(
                f"sample: no step can be sampled yet{used}: the store holds {self.log.inventory.held_steps}, and "
                f"{self.view.waits_for}"
            )
        if left < batch_size:
            raise EmptyError(
                f"sample: batch_size={batch_size}, but the {count} steps left can be sampled {left} times in total "
                f"(max_times_sampled={max_uses}); nothing was taken: use a smaller batch_size, or append more"
            )

    def can_draw(self, count: int) -> bool:
        """Return whether ``count`` items can be drawn without waiting."""
        return self.sample_waits(count) is None and self.items.enough(count)

    # batches

    def at_once(self, batch_size: int, beta: float | None) -> Any:
        """Return a new batch, drawn and filled by one call of the core, in which no signal handler runs. The plain lock
        is held (``Lock.interruptible``).

        Returns ``None``, and nothing was drawn, where there is something to wait for, to read or to allocate: then
        ``wait`` and ``sample`` return the same batch.
        """
        items, layout = self.items, self.layouts.get(batch_size)
        if layout is None or layout.filling is None or not self.draws_at_once():
            return None
        assert items.sampling is not None
        batch = items.sampling.sample(items, layout.filling, items.sampler.beta if beta is None else float(beta))
        if self.complete is not None and batch is not None:
            try:
                self.complete(batch)
            except BaseException:  # nothing was drawn
                generator: Any = self.rng.bit_generator
                generator.advance(-items.sampling.numbers * batch_size)
                items.samples -= batch_size
                raise
        return batch

    def draws_at_once(self) -> bool:
        """Note that the view is about to change; return whether one call of the core may draw from it."""
        return not (self.items.sampling is None or self.dropped or self.gate.waiting) and self._may_change()

    def update_at_once(self, ids: Ints, td_error: Floats) -> int | None:
        """Set priorities as ``Items.update`` does, by one call of the core; the plain lock is held, as for ``at_once``.

        Returns ``None``, and nothing changed, where that takes more.
        """
        items = self.items
        if items.sampling is None or not self._may_change():
            return None
        found = items.sampling.update(items, ids, td_error.reshape(-1))
        return None if found < 0 else found

    def update(self, ids: Ints, td_error: Floats) -> int:
        """Set priorities as ``Items.update`` does.  Raises: MemoryError; ValueError: the store is closed."""
        found = self.update_at_once(ids, td_error)
        if found is None:
            self.log.check_open()
            self.items.follow()  # steps appended before this call get the largest priority of before this call
            found = self.items.update(ids, td_error)
        return found

    def _may_change(self) -> bool:
        """Note that the view is about to change; return whether it may at once."""
        return self._process is path() and (self.items.kept is None or self.items.kept.notes())

    def sample(self, batch_size: int, beta: float | None) -> Any:
        """Return a new batch, after ``wait``. An error leaves everything undrawn."""
        changes = self.log.inventory.changes
        target = self.lend(batch_size)
        if self.log.inventory.changes != changes:  # steps were evicted for the growth of index and samplers
            self.items.follow()
            self._check_enough(batch_size)
        self.draw_into(target, beta)
        self.bind()
        return target.batch

    def bind(self) -> None:
        """Let the core draw the next batches at once, as far as it can."""
        if self.limiter is None and (self.items.sampling is None or self.items.sampling.stale):
            self.items.sampling = sampling(self.log, self.items, self.view, self.rng)

    def draw(self, draw: Draw, beta: float | None, points: Floats | None = None) -> Undo:
        """Draw items that can be drawn, and a random number of each where the view wants them.

        Args:
            points: as for ``Items.draw``.

        Returns a function that undoes it while the lock is still held, the generator's state too: the same is drawn
        again. An error leaves all undrawn. A forked process draws by a generator of its own from its first draw on.
        Cost: 1 us besides ``Items.draw``.
        """
        if self._process is not path():
            self.rng, self._process, self.items.sampling = own_generator(self.rng), path(), None
        generator = self.rng.bit_generator
        before = generator.state
        try:
            undo = self.items.draw(draw, beta, self.rng, points)
            if self.view.draws_uniforms:
                self.rng.random(out=draw.uniforms)
        except BaseException:
            generator.state = before
            raise

        def undraw() -> None:
            undo()
            generator.state = before

        return undraw

    def kept_uniforms(self, draw: Draw) -> npt.NDArray[np.float64] | None:
        """Return the random numbers of a draw to keep with its ids; ``None`` where the view wants none."""
        return draw.uniforms if self.view.draws_uniforms else None

    def draw_into(self, target: Target, beta: float | None, points: Floats | None = None) -> Undo:
        """Draw items into the memory of a batch, after ``wait``; if ``points`` are given, there (``Items.draw``).

        Returns a function that undoes it while the lock is still held. An error leaves all undrawn.
        """
        while True:
            undo = self.draw(target.draw, beta, points)
            if self._filled(target, undo):
                self.gate.notify()
                return undo
            self._check_enough(len(target.ids))

    def fill_drawn(self, target: Target, drawn: Drawn, beta: float | None) -> Undo:
        """Fill the memory of a batch with the items of an earlier draw; items lost since are resampled.

        Returns a function that undoes the resampling while the lock is still held. An error leaves nothing resampled.
        """
        draw, undo = target.draw, _nothing
        while True:
            self.items.follow()
            draw.items[:], there = self.items.resolve(drawn.ids)
            draw.probabilities[:], draw.weights[:] = drawn.probabilities, drawn.weights
            if self.view.draws_uniforms:
                draw.uniforms[:] = 1 if drawn.uniforms is None else drawn.uniforms
            gone = np.flatnonzero(~there)
            if gone.size:
                self._check_enough(gone.size)
                other = Draw.of(gone.size)
                undo = self.draw(other, beta)
                draw.items[gone], draw.probabilities[gone] = other.items, other.probabilities
                draw.uniforms[gone] = other.uniforms
                self.items.weigh(draw, beta)  # those of the resampled items were divided by their own largest
            if self._filled(target, undo):
                return undo

    def _filled(self, target: Target, undo: Undo) -> bool:
        """Fill a batch's memory with its draw. An error undoes the draw, and so does damage.

        Returns False if segments were damaged: others can be sampled, and those no more.  Raises: DamagedError: none.
        """
        try:
            self._fill(target)
        except DamagedError:
            undo()
            if not self._set_aside_damaged():
                raise
            return False
        except BaseException:
            undo()
            raise
        return True

    def draw_ids(self, count: int, beta: float | None) -> Draws:
        """Draw items, after ``wait``, without making their batch. An error leaves everything undrawn."""
        draw, ids = Draw.of(count), np.empty(count, np.int64)
        self.draw(draw, beta)
        self.items.write_ids(draw.items, ids)
        self.gate.notify()
        return Draws(tagged(ids, self.tag), draw.probabilities, draw.weights, self.kept_uniforms(draw))

    def fetch(self, ids: Ints, uniforms: npt.NDArray[np.float64] | None, missing: Missing) -> Any:
        """Return the items with the given ids, and the random numbers that they were drawn with, if they were.

        Raises: KeyError, MemoryError.
        """
        self.items.follow()
        _, there = self.items.resolve(ids)
        if missing == "raise" and not there.all():
            raise KeyError(f"fetch: id {ids[~there][0]} was evicted, or its successor is not known yet")
        layout = self.layout(len(ids))  # not kept: sizes of fetches vary freely
        blocks = self.log.batches.lend(layout.sizes, layout.roots, layout.work_bytes)
        target = layout.over(blocks, self.view, self.tag)
        items, there = self.items.resolve(ids)  # steps may have been evicted for the growth of index and samplers
        if missing == "raise" and not there.all():
            raise KeyError(f"fetch: id {ids[~there][0]} was evicted")
        gone = np.flatnonzero(~there)
        items[gone] = items[np.argmax(there)] if there.any() else 0
        target.draw.items[:] = items
        target.draw.probabilities.fill(np.nan)
        target.draw.weights.fill(1)
        if self.view.draws_uniforms:
            target.draw.uniforms[:] = 1 if uniforms is None else uniforms
        if there.any():
            self._fill(target)
        if gone.size:
            for array in (*target.columns.values(), target.draw.weights):
                array[gone] = 0
            target.ids[gone] = -1
        return target.batch

    def _fill(self, target: Target) -> None:
        self.items.write_ids(target.draw.items, target.ids)
        fill(self.log, self.view, target)

    def _set_aside_damaged(self) -> bool:
        """Exclude the items of segments that cannot be read or decoded.

        Returns False if there was none that was not excluded before, or if no item is left, not even a used-up one.
        """
        items, before = self.items, self.items.known
        for slot, problem in self.log.sealed.damaged.items():
            known, (begin, end) = items.known, items.spans[slot].tolist()
            items.forget(slot, evicted=False)
            if items.known < known:
                warnings.warn(f"{problem}; its {end - begin} steps are sampled no more", RuntimeWarning, stacklevel=4)
        return 0 < items.known < before

    # memory

    def layout(self, batch_size: int) -> Layout:
        """Return the layout of a batch's memory."""
        return Layout(self.view.columns(), self.view.scratch_rows, batch_size)

    def lend(self, batch_size: int) -> Target:
        """Lend memory for a batch.  Raises: MemoryError: there is no room for it."""
        batches, layout = self.log.batches, self.layouts.get(batch_size)
        if layout is None:
            layout = self.layout(batch_size)
            blocks = batches.lend(layout.sizes, layout.roots, layout.work_bytes)
            if len(self.layouts) == MAX_LAYOUTS:
                del self.layouts[next(iter(self.layouts))]
            self.layouts[batch_size] = layout
        else:
            blocks = batches.lend(layout.sizes, layout.roots)
        return layout.over(blocks, self.view, self.tag)

    @property
    def work_bytes(self) -> int:
        """Bytes of working memory for batches."""
        return sum(layout.work_bytes for layout in self.layouts.values())

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest recent batch."""
        return max((sum(layout.sizes) for layout in self.layouts.values()), default=0)


def _nothing() -> None:
    """Undo nothing."""
