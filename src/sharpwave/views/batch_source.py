"""Source of one view's batches: drawn and filled by one call of the core if possible, otherwise step by step."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from sharpwave.arrays import Bools, Floats, Int32s, Ints
from sharpwave.errors import DamagedError
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.native.forks import path
from sharpwave.sampling.limiters import Gate, Limiter
from sharpwave.sampling.sampler_protocol import Draw, Sampler, as_json, check_sampler, draws_by_tree
from sharpwave.validation import Missing
from sharpwave.views.conditions import Judge
from sharpwave.views.draws_ahead import Drawn, UnusedDraws
from sharpwave.views.filling import fill_target, lend_held
from sharpwave.views.ids import Tag
from sharpwave.views.items import Items, Undo, Uses
from sharpwave.views.layout import BatchLayout, BatchTarget
from sharpwave.views.pace import Pace, check_limiter
from sharpwave.views.starting import Unfollowed
from sharpwave.views.view_protocol import View

MAX_LAYOUTS = 4
"""Limit of batch sizes whose layouts, with working memory, are kept."""


class BatchSource:
    """Batches of one view. The store's lock is held throughout.

    Args:
        log: the store's log; ``gate``: where batches wait for steps.
        seed: as for ``numpy.random.default_rng``.
        max_times_sampled: limit of an item's samples; ``None``: none.
        limiter: bounds samples against inserts; ``None``: nothing waits.
        judge: of items by the view's condition; ``None``: there is none.

    Attributes:
        items: items that can be drawn. ``tag``: of the ids.
        pace: waiting of batches and appends. ``unused``: draws of streams.
        complete: ends the filling of a batch by a call of the user's function, which needs the store's lock like
            ``sample``; ``None``: the core does everything.

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
        judge: Judge | None = None,
    ) -> None:
        check_sampler(f"{view.kind}: sampler", sampler)
        uses = None if max_times_sampled is None else Uses(max_times_sampled, log.index.leaves)
        check_limiter(view.kind, limiter, log.admission.capacity, None if uses is None else uses.max_uses)
        self.log, self.gate, self._view, self.tag = log, gate, view, Tag(log.tag, view.id_space)
        self._whole: View[Any] | None = None  # followed by a source of some fields, which does not draw at once
        self.items = Items(log, view, sampler, seed, uses, judge)  # last, for it binds the sampler
        self.unused = UnusedDraws(log, self.items)
        self.pace = Pace(log, gate, view, self.items, self.unused, limiter)
        self.layouts: dict[int, BatchLayout] = {}  # by batch size, the latest
        self.complete: Callable[[Any], None] | None = getattr(view, "complete", None)
        self._some: dict[frozenset[str], BatchSource] = {}  # by the names of fields that batches have
        self._partial = weakref.WeakSet[BatchSource]()  # these, and those that only streams have still
        self._filler: tuple[core.Log, Int32s, core.Filler, Ints, Any] | None = None

    @property
    def view(self) -> View[Any]:
        """The definition of the items; of some fields only, it follows the whole one, whose arrays are replaced."""
        if self._whole is not None:
            self._view.follow(self._whole)
        return self._view

    def take_columns(self) -> None:
        """Begin to fill batches with the columns that the log has now."""
        self.items.sampling = None
        for source in (self, *self._partial):
            source.view.take_columns()
            source.layouts.clear()
            source._filler = None

    def only(self, names: frozenset[str]) -> BatchSource:
        """Return a source of the same items whose batches have some fields only.  Raises: ValueError."""
        found = self._some.get(names)
        if found is None:
            found = copy.copy(self)
            found._view, found._whole = self.view.only(names), self.view
            found.layouts, found._some, found._partial = {}, {}, weakref.WeakSet()
            found._filler = None
            found.complete = getattr(found.view, "complete", None)
            if len(self._some) == MAX_LAYOUTS:
                del self._some[next(iter(self._some))]
            self._some[names] = found
            self._partial.add(found)
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """The view's settings as JSON values, with its kind and condition."""
        judge = self.items.judge
        where = None if judge is None or judge.condition is None else judge.condition.text
        return {"kind": self.view.kind, **as_json(self.view.settings()), "where": where}

    # by one call

    def at_once(self, batch_size: int, beta: float | None) -> Any:
        """Return a new batch, drawn and filled by one call of the core, in which no signal handler runs. The plain lock
        is held (``Lock.interruptible``).

        Returns ``None``, and nothing was drawn, where there is something to wait for, to read or to allocate: then
        ``wait`` and ``sample`` return the same batch.
        """
        items, layout = self.items, self.layouts.get(batch_size)
        if layout is None or layout.filling is None or self._whole is not None or not self.draws_at_once():
            return None
        assert items.sampling is not None
        batch = items.sampling.sample(items, layout.filling, items.sampler.beta if beta is None else float(beta))
        if self.complete is not None and batch is not None:
            try:
                self.complete(batch)
            except BaseException:  # nothing was drawn
                generator: Any = items.rng.bit_generator
                generator.advance(-items.sampling.numbers * batch_size)
                items.samples -= batch_size
                raise
        return batch

    def draws_at_once(self) -> bool:
        """Note that the view is about to change; return whether one call of the core may draw from it."""
        return not (self.items.sampling is None or self.unused.dropped or self.gate.waiting) and self._may_change()

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
            self.follow()  # steps appended before this call get the largest priority of before this call
            found = self.items.update(ids, td_error)
        return found

    def follow(self) -> None:
        """Take back the draws of deleted streams, and find new items.

        Raises: MemoryError; a later call continues. ValueError: the store is closed.
        """
        self.log.check_open()
        self.unused.forget_dropped()
        self.items.follow()

    def _may_change(self) -> bool:
        """Note that the view is about to change; return whether it may at once."""
        items = self.items
        return items.process is path() and (items.kept is None or items.kept.notes())

    def bind(self) -> None:
        """Let the core draw the next batches at once, over the arrays as they are now, as far as it can."""
        items, view, sampler = self.items, self.view, self.items.sampler
        if (
            self._whole is not None
            or self.pace.limiter is not None
            or not (items.sampling is None or items.sampling.stale)
        ):
            return
        items.sampling = None
        filled = self.filler()
        if filled is None or view.foresees or not draws_by_tree(sampler):  # type: ignore[attr-defined]
            return
        if items.uses is not None or sampler.keeps_order or items.unchecked:
            return
        log, index = self.log, self.log.index
        _, _, filler, runs, same = filled
        objects = {
            "sampler": sampler,
            "leaves": sampler.tree(),  # type: ignore[attr-defined]
            "generator": items.rng.bit_generator,
            "pool": log.batches.pool,
            "filler": filler,
            "runs": runs,
            "cache": log.segment_cache,
            "same": [  # an object, an attribute and its value: with another one the draws are stale
                (log, "closed", False),
                (log.inventory, "oldest", log.inventory.oldest),
                (log.arena, "memory", log.arena.memory),
                (index, "offset", index.offset),
                (log.late, "version", log.late.version),
                (log.late, "deletions", items.deletions),
                *((owner, name, getattr(owner, name)) for owner, name in same),
            ],
            "expected": view.expected if items.starts is None else Unfollowed(items, items.starts, log),  # type: ignore[attr-defined]
            "judged": None if items.judge is None else items.judge.judged,
            "judges": items.judge is not None and items.judge.condition is not None,
        }
        resident = None if log.segment_cache is None else index.resident
        items.sampling = core.Sampling(objects, log.inventory.counts, index.generation, resident, log.stride)

    def filler(self) -> tuple[core.Log, Int32s, core.Filler, Ints, Any] | None:
        """Return the core's filler of batches, between the arrays that it is for and those of ``View.filler``, as they
        are now; ``None``: the view fills them."""
        arrays, spans, found = self.items.arrays.current(), self.items.spans, self._filler
        if found is None or found[0] is not arrays or found[1] is not spans:
            if getattr(self.view, "filled_at_once", None) is None:
                return None
            found = self._filler = arrays, spans, *self.view.filler(spans)  # type: ignore[attr-defined]
        return found

    # step by step

    def sample(self, batch_size: int, beta: float | None) -> Any:
        """Return a new batch, after ``wait``. An error leaves everything undrawn."""
        changes = self.log.inventory.changes
        target = self.lend(batch_size)
        if self.log.inventory.changes != changes:  # steps were evicted for the growth of index and samplers
            self.items.follow()
            self.pace.check_enough(batch_size)
        self.draw_into(target, beta)
        self.bind()
        return target.batch

    def draw_into(self, target: BatchTarget, beta: float | None, points: Floats | None = None) -> Undo:
        """Draw items into the memory of a batch, after ``wait``; if ``points`` are given, there (``Items.draw``).

        Returns a function that undoes it while the lock is still held. An error leaves all undrawn.
        """
        while True:
            undo = self.items.draw(target.draw, beta, points)
            if self._filled(target, undo):
                self.gate.notify()
                return undo
            self.pace.check_enough(len(target.ids))

    def fill_drawn(self, target: BatchTarget, drawn: Drawn, beta: float | None) -> Undo:
        """Fill the memory of a batch with the items of an earlier draw; items lost since are resampled.

        Returns a function that undoes the resampling while the lock is still held. An error leaves nothing resampled.
        """
        draw, undo = target.draw, lambda: None
        while True:
            self.items.follow()
            _, there = self.items.resolve(drawn.ids, draw.items)
            draw.probabilities[:], draw.weights[:] = drawn.probabilities, drawn.weights
            if self.view.draws_uniforms:
                draw.uniforms[:] = 1 if drawn.uniforms is None else drawn.uniforms
            if np.count_nonzero(there) < len(there):  # 0.2 us; there.all() takes 0.9 us
                gone = np.flatnonzero(~there)
                self.pace.check_enough(gone.size)
                other = Draw.of(gone.size)
                undo = self.items.draw(other, beta)
                draw.items[gone], draw.probabilities[gone] = other.items, other.probabilities
                draw.uniforms[gone] = other.uniforms
                self.items.weigh(draw, beta)  # the resampled items' weights were divided by their own largest
            if self._filled(target, undo):
                return undo

    def _filled(self, target: BatchTarget, undo: Undo) -> bool:
        """Fill a batch's memory with its draw. An error undoes the draw, and so does damage.

        Returns False if segments were damaged, so that their items are excluded.  Raises: DamagedError: no items
        remain.
        """
        try:
            self.fill(target)
        except DamagedError:
            undo()
            if not self._set_aside_damaged():
                raise
            return False
        except BaseException:
            undo()
            raise
        return True

    def draw_ids(self, count: int, beta: float | None) -> tuple[Drawn, Undo]:
        """Draw items that can be drawn, without making their batch; return a function that undoes it, too."""
        draw, ids = Draw.of(count), np.empty(count, np.int64)
        undo = self.items.draw(draw, beta)
        self.items.write_ids(draw.items, ids)
        self.gate.notify()
        return Drawn(ids, draw.probabilities, draw.weights, draw.uniforms if self.view.draws_uniforms else None), undo

    def fetch(self, ids: Ints, uniforms: Floats | None, missing: Missing) -> Any:
        """Return the items with the given ids, and the random numbers that they were drawn with, if they were.

        Raises: KeyError, MemoryError.
        """
        self.items.follow()
        _, there = self.items.resolve(ids)
        if missing == "raise" and not there.all():
            raise KeyError(f"fetch: id {ids[~there][0]} was evicted, or its successor is not known yet")
        target = self.lend_once(len(ids))
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
            self.fill(target)
        if gone.size:
            target.clear(gone)
        return target.batch

    def lend_for(self, ids: Ints) -> tuple[BatchTarget, Bools]:
        """Lend memory for a batch of the items among ``ids``, as ``lend_held``, for ``fill``."""
        self.follow()
        return lend_held(ids, self.items.resolve, self.lend_once)

    def fill(self, target: BatchTarget) -> None:
        """Fill a batch for its items, all present; or cut their rows out, with ``target.cutter``.

        Raises:
            DamagedError: a segment is damaged; it is in ``log.sealed.damaged``.
            MemoryError: there is no room to read one.
        """
        self.items.write_ids(target.draw.items, target.ids)
        filled = None
        if target.cutter is not None:
            target.cutter.clear()
        else:
            filled = self.filler()
        fill_target(self.log, self.view, target, None if filled is None else filled[2])

    def _set_aside_damaged(self) -> bool:
        """Exclude the items of segments that cannot be read or decoded.

        Returns False if all were excluded before, or if no item is left, not even a used-up one.
        """
        items, before = self.items, self.items.known
        for slot, problem in self.log.sealed.damaged.items():
            known, (begin, end) = items.known, items.spans[slot].tolist()
            items.forget(slot, evicted=False)
            if items.known < known:
                warnings.warn(f"{problem}; its {end - begin} steps are sampled no more", RuntimeWarning, stacklevel=4)
        return 0 < items.known < before

    # memory

    def layout(self, batch_size: int) -> BatchLayout:
        return BatchLayout(self.view.columns(), self.view.scratch_rows, batch_size)

    def lend(self, batch_size: int) -> BatchTarget:
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

    def lend_once(self, batch_size: int) -> BatchTarget:
        """Lend memory for a batch whose layout is not kept, as sizes of fetches vary freely.  Raises: MemoryError."""
        layout = self.layout(batch_size)
        blocks = self.log.batches.lend(layout.sizes, layout.roots, layout.work_bytes)
        return layout.over(blocks, self.view, self.tag)

    @property
    def work_bytes(self) -> int:
        """Bytes of working memory for batches."""
        some = sum(one.work_bytes for one in self._some.values())
        return some + sum(layout.work_bytes for layout in self.layouts.values())

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest recent batch."""
        return max((sum(layout.sizes) for layout in self.layouts.values()), default=0)
