"""Items of a view: found as steps are appended, dropped at evictions, counted as they are drawn."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from sharpwave.arguments import is_integer
from sharpwave.arrays import Bools, Bytes, Floats, Int32s, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.native.forks import path
from sharpwave.native.untouched import zeros
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.sampler_protocol import Draw, Sampler, draws_by_tree, extended
from sharpwave.sampling.starts_by_column import StartsByColumn
from sharpwave.views.conditions import MATCHES, REFUSED, UNJUDGED, Judge
from sharpwave.views.gather import LogArrays
from sharpwave.views.starting import Starts
from sharpwave.views.view_protocol import MAX_RUNS, View, items_of

Undo = Callable[[], None]
NO_ITEMS = np.empty(0, np.int64)


class Items(core.Items):
    """Items of ``view``, reported to ``sampler``. The store's lock is held throughout.

    An item's id is ``generation << 32 | item``, where the generation is that of its segment's slot: so ids are never
    reused.

    Args:
        seed: of the generator of the draws, as for ``numpy.random.default_rng``.
        uses: counts how often each item is sampled; ``None``: there is no limit.
        judge: of the items, of ended episodes only, by a condition; ``None``: all match. Others are in the spans, and
            excluded from the sampler.

    Attributes:
        rng: generator of the draws of the fork ``process``; another one draws by its own from its first draw on.
        spans: int32 [slots, 2], the items of each slot that can be sampled, are used up or do not match.
        count: items that can be sampled. ``samples``: number of items drawn so far.
        grew: items were inserted since someone set this to False.
        seen: the log's changes at the last call of ``follow``. ``deletions``: of the log then.
        unchecked: items that are found next may be of deleted steps.
        found: runs of items that await memory in the sampler. ``losing``: items that await exclusion, for lack of it.
        arrays: the log's, for the core.
        sampling: draws of whole batches by the core; ``None`` until their arrays were bound.
        starts: first TD errors of new items; ``None``: no sampler starts from a column.
        kept: ``keeping.Kept``, notified before the state of the sampler or the uses changes; ``None``: nothing.
    """

    def __init__(
        self, log: StepLog, view: View[Any], sampler: Sampler, seed: Any, uses: Uses | None, judge: Judge | None
    ) -> None:
        super().__init__()
        self.rng, self.process = np.random.default_rng(seed), path()
        view.bind(log)  # first: where it refuses the log, the sampler can serve another view
        starts = Starts(log, view, sampler)
        self.starts = starts or None
        sampler.bind(log.index.slots, log.stride)
        self._log, self._view, self.sampler, self.uses, self.judge = log, view, sampler, uses, judge
        self.spans = zeros((log.index.slots, 2), np.int32)
        self.arrays = LogArrays(log)
        self._bound: core.Log | None = None
        self._in_core = uses is None and draws_by_tree(sampler) and view.lost_by() is not None
        self.sampling: core.Sampling | None = None
        self.kept: Any = None
        self.deletions, self.unchecked = log.late.deletions, log.late.deleted is not None

    def follow(self) -> None:
        """Find the items that became known since the last call.  Raises: MemoryError; a later call continues."""
        if self.seen == self._log.inventory.changes:
            return
        if self.deletions != self._log.late.deletions:
            self.unchecked = True  # items may be found of steps that came and were deleted since the last call
            self._refuse_deleted()
        self._insert_found()
        found = MAX_RUNS
        while found == MAX_RUNS:
            runs = self._view.find(self.spans)
            found = runs.shape[1]
            if found:
                self.found = runs
                self._insert_found()
        self.unchecked = False
        self.seen = self._log.inventory.changes

    def _insert_found(self) -> None:
        """Insert the items found last, if that is still to be done: a view reports an item once."""
        if self.found is not None:
            self._insert(self.found)
        if self.losing:
            self._exclude_lost()

    def _insert(self, runs: Ints, started: bool = True) -> None:
        """Insert found items; with ``started`` at the priorities of their fields, if the sampler starts from any."""
        groups, begins, ends = np.ascontiguousarray(runs)
        came = int(ends.sum() - begins.sum())
        refused = None if self.judge is None else self._refused(runs)
        gone = np.minimum(self.spans[groups, 0], ends)  # items before were found, but are lost already
        starts = []
        if self.starts is not None and started:  # before anything changes: they may lack memory
            held = np.stack([groups, np.maximum(begins, gone), ends])
            starts = [(one, *self.starts.errors(one, held)) for one in self.starts.at_once]
        lost = (
            items_of(np.stack([groups, begins, np.maximum(begins, gone)]), self._log.stride)
            if (gone > begins).any()
            else None
        )
        self.sampler.insert(groups, begins, ends)
        self.found, self.grew = None, True
        self.losing.extend(items for items in (lost, refused) if items is not None and len(items))
        self.count += came
        if self.uses is not None:
            self.uses.add(came)
        first = self._view.first_errors(runs)
        for one, known, errors in starts:
            one.start(*self._matching(known, errors))
        if first is not None:
            self.sampler.update(*self._matching(*first))
        if self.losing:
            self._exclude_lost()

    def _matching(self, items: Ints, errors: Floats) -> tuple[Ints, Floats]:
        """Return the items that match the condition, and their errors."""
        matching = slice(None) if self.judge is None else self.judge.judged[items] == MATCHES
        return items[matching], errors[matching]

    def _start(self, samplers: list[StartsByColumn]) -> None:
        """Start the unstarted items of ``samplers`` at the priorities of their columns."""
        for one in samplers:
            if one.unstarted_groups:
                assert self.starts is not None and one.unstarted is not None
                items, errors = self.starts.errors(one, self.starts.unstarted(one, self.spans))
                new = one.unstarted[items] & self.remaining(items)
                one.start(items[new], errors[new])

    def _refused(self, runs: Ints) -> Ints:
        """Judge items of ended episodes; return those that do not match.  Raises: MemoryError."""
        assert self.judge is not None
        if self.judge.condition is None and not self.unchecked:  # no deletion since the last call: all match
            stride = self._log.stride
            for slot, begin, end in runs.T.tolist():
                self.judge.judged[slot * stride + begin : slot * stride + end] = MATCHES
            return NO_ITEMS
        items = items_of(runs, self._log.stride)
        self.judge.judge(items)
        refused: Ints = items[self.judge.judged[items] == REFUSED]
        return refused

    def _refuse_deleted(self) -> None:
        """Exclude the items of steps deleted since the last call.  Raises: MemoryError; a later call continues."""
        stride, slots = self._log.stride, self._log.late.slots_deleted_since(self.deletions)
        if self.judge is None or slots is None:
            slots = np.arange(len(self.spans))
        slots = slots[self.spans[slots, 1] > 0]
        items = items_of(np.stack([slots, *self.spans[slots].T.astype(np.int64)]), stride)
        if self.judge is None:
            judge = Judge(self._log, None, self._view)
            judge.judged[items] = MATCHES
            if self.found is not None:  # they are judged when they are inserted
                judge.judged[items_of(self.found, stride)] = UNJUDGED
            self.sampling = self._bound = None
            self.unbind()
            self.judge = judge
        gone = self.judge.deleted_of(items[self.judge.judged[items] == MATCHES])
        left = gone[self.remaining(gone)]
        self.losing.append(left)
        self.judge.judged[gone] = REFUSED
        self.deletions = self._log.late.deletions
        self._exclude_lost()

    def remaining(self, items: Ints) -> Bools:
        """Return which of ``items``, all within the spans, can be sampled: bool [n]."""
        left = np.ones(len(items), np.bool_) if self.uses is None else self.uses.remaining(items)
        return left if self.judge is None else left & (self.judge.judged[items] == MATCHES)

    def restore(
        self, generation: Ints, given: Int32s | None, state: dict[str, Any], judged: Bytes | None = None
    ) -> None:
        """Restore a checkpoint, before anything was followed.

        Args:
            generation: int64 [slots], of the checkpoint's segments; items of others are new.
            given: int32 [items], how often each was sampled; where uses are counted.
            state: the sampler's.
            judged: uint8 [items], earlier judgements; where there is a condition.

        Raises:
            ValueError: not such a state; then all items are new.
        """
        found: list[Ints] = []
        while not found or found[-1].shape[1] == MAX_RUNS:
            found.append(self._view.find(self.spans).copy())
        runs = np.concatenate(found, axis=1)
        before = np.full(len(self.spans), -1, np.int64)
        before[: len(generation)] = generation[: len(before)]
        old = self._log.index.generation[runs[0]] == before[runs[0]]
        if self.judge is not None and judged is not None:
            items = items_of(runs[:, old], self._log.stride)
            items = items[items < len(judged)]
            self.judge.judged[items] = judged[items]
        try:
            if old.any():
                self._insert(runs[:, old], started=False)
            if self.uses is not None and given is not None:
                held = np.stack([runs[0], np.maximum(runs[1], self.spans[runs[0], 0]), runs[2]])[:, old]
                items = items_of(held, self._log.stride)  # without lost items
                used_up = self.uses.restore(given, items[self.remaining(items)])
                if len(used_up):
                    self.sampler.exclude(used_up)
                    self.count -= len(used_up)
            self.sampler.restore(state)
        finally:
            if self.starts is not None:  # items that the state does not know start as new ones
                self._start(self.starts.at_once)
            if not old.all():
                self._insert(runs[:, ~old])
        self.seen = self._log.inventory.changes

    @property
    def known(self) -> int:
        """Items that can be sampled, or could until they were used up. Cost: 1 us, and 1 ms for a million slots."""
        return int((self.spans[:, 1] - self.spans[:, 0]).sum())

    @property
    def uses_left(self) -> float:
        """Uses left of all items that can be sampled now."""
        return self.uses.left if self.uses is not None else math.inf if self.count else 0

    def enough(self, batch_size: int) -> bool:
        """Return whether there are ``batch_size`` items."""
        return self.count > 0 and self.uses_left >= batch_size

    def written(self) -> None:
        """Follow the log where the order of insertions matters, after it has changed."""
        if self.sampler.in_order:  # otherwise the next draw follows it
            with contextlib.suppress(MemoryError):  # the steps were appended; the next draw finishes the rest
                self.follow()

    def draw(self, draw: Draw, beta: float | None, points: Floats | None = None) -> Undo:
        """Fill ``draw``, with a random number of each item where the view wants them; count its items as sampled.

        Args:
            beta: overrides the sampler's.
            points: shares of the sampler's mass to draw at, in this order: for a ``DrawsByMass``, without limited uses.

        Returns a function that undoes it while the lock is still held, the generator's state too: the same is drawn
        again. An error leaves all undrawn.
        """
        if self.process is not path():
            self.rng, self.process, self.sampling = own_generator(self.rng), path(), None
        if self.kept is not None:
            self.kept.note()
        if self.starts is not None:
            self._start(self.starts.at_draws)
        rng, ended, unused = self.rng, 0, None
        generator = rng.bit_generator
        before = generator.state
        try:
            if points is not None:
                assert self.uses is None
                self.sampler.draw_at(draw, points)  # type: ignore[attr-defined]
            elif self.uses is None:
                self.sampler.draw(draw, rng)
            else:
                ended, unused = self.uses.draw(self.sampler, draw, rng)
            if points is None and not self.sampler.keeps_order:
                rng.random(out=draw.uniforms)
                core.shuffle(draw.uniforms, draw.items, draw.probabilities)
            self.weigh(draw, beta)
            if self._view.draws_uniforms:
                rng.random(out=draw.uniforms)
        except BaseException:
            generator.state = before
            raise
        count = len(draw.items)
        self.count -= ended
        self.samples += count

        def undo() -> None:
            if unused is not None:
                unused()
            self.count += ended
            self.samples -= count
            generator.state = before

        return undo

    def take_back(self, ids: Ints) -> None:
        """Make ``ids`` of a discarded batch available again if their uses are limited.

        Items that were lost since stay lost.
        """
        readmit: Callable[[Ints], bool] | None = getattr(self.sampler, "readmit", None)
        if self.uses is None or readmit is None:
            return
        items, there = self.resolve(ids)
        items = items[there]
        ended = np.unique(items[~self.uses.remaining(items)])
        if len(ended) and not readmit(ended):
            return
        self.uses.take_back(items)
        self.count += len(ended)
        self.samples -= len(items)
        if self.kept is not None:
            self.kept.note()

    def weigh(self, draw: Draw, beta: float | None) -> None:
        """Compute importance weights of a draw from its probabilities; ``beta`` overrides the sampler's."""
        beta = self.sampler.beta if beta is None else float(beta)
        core.importance_weights(draw.probabilities, beta, draw.weights)

    def write_ids(self, items: Ints, ids: Ints) -> None:
        core.write_ids(items, self._log.index.generation, self._log.stride, ids)

    def resolve(self, ids: Ints, items: Ints | None = None) -> tuple[Ints, Bools]:
        """Return the items of ``ids`` [n], in ``items``, and bool [n], whether each is present; absent items are 0."""
        items, there = np.empty(len(ids), np.int64) if items is None else items, np.empty(len(ids), np.bool_)
        core.resolve(ids, self._log.index.generation, self.spans, self._log.stride, items, there)
        if self.judge is not None:
            there &= self.judge.judged[items] == MATCHES
        return items, there

    def ids(self) -> Ints:
        """Return the ids of all items that can be sampled: int64 [count], in no particular order."""
        groups = np.flatnonzero(self.spans[:, 1])
        items = items_of(np.stack([groups, *self.spans[groups].T.astype(np.int64)]), self._log.stride)
        items = items[self.remaining(items)]
        self.write_ids(items, ids := np.empty(len(items), np.int64))
        return ids

    def update(self, ids: Ints, td_error: Floats) -> int:
        """Set priorities by ``td_error`` [n, ...] for the ``ids`` [n] that can be sampled; return their number."""
        if self.kept is not None:
            self.kept.note()
        items, there = self.resolve(ids)
        if self.uses is not None:
            there &= self.uses.remaining(items)
        if np.count_nonzero(there) < len(there):  # 0.2 us; there.all() takes 0.9 us
            items, td_error = items[there], td_error[there]
        self.sampler.update(items, self._view.item_errors(items, td_error))
        return len(items)

    def priorities(self, slots: Ints) -> Floats | None:
        """Return mean priorities of items that can be sampled, by slot; infinite where none can be sampled yet.

        ``None`` if there are no priorities.
        """
        if not isinstance(self.sampler, Prioritized):
            return None
        self.follow()
        known = self.spans[slots, 1] - self.spans[slots, 0]
        empty = np.inf if self.judge is None or not self._log.late.marked else self._without_deleted(slots, known)
        return np.where(known > 0, self.sampler.masses(slots) / np.maximum(known, 1), empty)

    def _without_deleted(self, slots: Ints, known: Int32s) -> Floats:
        """Take items of deleted steps off the numbers ``known`` [n] in slots.

        Returns the priorities of slots that have no items: 0 where all steps were deleted.
        """
        assert self.judge is not None
        late, stride = self._log.late, self._log.stride
        places = dict(zip(slots.tolist(), range(len(slots)), strict=True))
        empty = np.full(len(slots), np.inf)
        for slot in late.marked & places.keys():
            place, (begin, end), rows = places[slot], self.spans[slot].tolist(), int(self._log.index.rows[slot])
            known[place] -= len(self.judge.deleted_of(np.arange(slot * stride + begin, slot * stride + end)))
            if late.is_deleted(np.arange(slot * stride, slot * stride + rows)).all():
                empty[place] = 0
        return empty

    def binds(self) -> bool:
        """Bind the arrays by which the core drops a segment's items, as they are until the log grows; return whether it
        does: not where uses are limited, nor for samplers and views that do more than theirs."""
        if self._in_core and self._bound is not self.arrays.current():
            arrays, lost_by = self.arrays.current(), self._view.lost_by()
            assert lost_by is not None
            judged = None if self.judge is None else self.judge.judged
            self.bind(arrays, self.spans, self.sampler.tree(), *lost_by, judged)  # type: ignore[attr-defined]
            self._bound = arrays
        return self._in_core

    def forget(self, slot: int, evicted: bool = True) -> None:
        """Drop all items that need the segment in ``slot``. A call that raised is repeated.

        Args:
            evicted: it is about to be evicted; otherwise it is set aside as unreadable, and its uses are kept, for it
                may be readable when a checkpoint is opened.
        """
        self._insert_found()
        if self.binds():
            self.lose_segment(slot)
            return
        self._drop(slot, evicted)
        lost = self._view.lose(slot, self.spans)  # which reports an item once
        self.losing.append(lost if self.judge is None else lost[self.judge.judged[lost] == MATCHES])
        self._exclude_lost(slot)

    def _exclude_lost(self, evicted: int = -1) -> None:
        """Exclude lost items, except those of the slot ``evicted``, which are gone.

        A call that raised is repeated.
        """
        lost = self.losing[0]
        if len(self.losing) > 1:
            lost = np.unique(np.concatenate(self.losing))
            lost = lost[lost // self._log.stride != evicted]
        if self.uses is not None:
            lost = lost[self.uses.remaining(lost)]
        if len(lost):  # their spans end before them already
            left = 0 if self.uses is None else self.uses.left_of(lost)
            self.sampler.exclude(lost)
            self._lose(len(lost), left)
        self.losing.clear()

    def _drop(self, slot: int, evicted: bool) -> None:
        """Drop the items of a slot, and their uses if it is evicted."""
        first = slot * self._log.stride
        begin, end = self.spans[slot].tolist()
        count, left = end - begin, 0
        if self.uses is not None or self.judge is not None:
            items = np.arange(first + begin, first + end)
            items = items[self.remaining(items)]
            count, left = len(items), 0 if self.uses is None else self.uses.left_of(items)
        self.sampler.remove(slot)
        self._lose(count, left)
        self.spans[slot, 0] = self.spans[slot, 1] = 0
        if self.uses is not None and evicted:
            self.uses.clear(first, first + self._log.stride)
        if self.judge is not None and evicted:
            self.judge.judged[first : first + self._log.stride] = UNJUDGED

    def _lose(self, count: int, left: int) -> None:
        """Subtract ``count`` items, which had ``left`` uses left in total."""
        self.count -= count
        if self.uses is not None:
            self.uses.left -= left

    def grow(self, slots: int) -> None:
        """Enlarge for ``slots`` slots; the log may end up with fewer.  Raises: MemoryError."""
        if slots > len(self.spans):
            self.sampling = self._bound = None  # first: of arrays that are about to be replaced
            self.unbind()
            self.sampler.grow(slots)
            self._view.grow(slots)
            if self.uses is not None:
                self.uses.grow(slots * self._log.stride)
            if self.judge is not None:
                self.judge.grow(slots * self._log.stride)
            spans = zeros((slots, 2), np.int32)
            spans[: len(self.spans)] = self.spans
            self.spans = spans  # last: its length tells the capacity

    @property
    def nbytes(self) -> int:
        """Bytes of memory, the view's and the sampler's included."""
        index = self._log.index
        uses = 0 if self.uses is None else self.uses.nbytes(index.highest * index.stride)
        judged = 0 if self.judge is None else index.highest * index.stride
        return 8 * index.highest + uses + judged + self._view.nbytes + self.sampler.nbytes


class Uses:
    """Counts of uses, for draws that sample each step at most ``max_uses`` times.

    Attributes:
        left: uses left of all steps that can be sampled.

    Raises:
        ValueError: ``max_uses`` is out of range.
    """

    def __init__(self, max_uses: Any, items: int) -> None:
        if not is_integer(max_uses) or not 1 <= max_uses < 2**31:
            raise ValueError(f"max_times_sampled={max_uses!r}, expected an integer of at least 1, or None")
        self.max_uses = int(max_uses)
        self.left = 0
        self._given = zeros(items, np.int32)

    def grow(self, items: int) -> None:
        """Enlarge for ``items`` items."""
        self._given = extended(self._given, items)

    def add(self, count: int) -> None:
        """Add the uses of ``count`` new steps that can be sampled."""
        self.left += count * self.max_uses

    def remaining(self, items: Ints) -> Bools:
        """Return which of the steps can be sampled again: bool [n]."""
        remaining: Bools = self._given[items] < self.max_uses
        return remaining

    def left_of(self, items: Ints) -> int:
        """Return how often ``items`` (distinct) can still be sampled in total."""
        return int((self.max_uses - self._given[items]).sum())

    def clear(self, begin: int, end: int) -> None:
        """Reset the counts of the items ``begin <= i < end``, for other steps."""
        self._given[begin:end] = 0

    def draw(self, sampler: Sampler, draw: Draw, rng: np.random.Generator) -> tuple[int, Callable[[], None]]:
        """Fill ``draw`` with at most as many items as there are uses left; exclude steps at their last use.

        Items drawn too often are resampled from the remaining steps, with the probabilities of that draw.

        Returns how many steps have no use left now, and a function that undoes all of it.
        """
        count, taken, ended = len(draw.items), 0, 0
        full = np.empty(count, np.int64)
        undos: list[Callable[[], None]] = []

        def undo() -> None:
            for one in reversed(undos):
                one()
            np.subtract.at(self._given, draw.items[:taken], 1)
            self.left += taken

        try:
            while taken < count:
                part = draw.part(taken, count)
                sampler.draw(part, rng)
                kept, found = core.count_uses(part.items, part.probabilities, self._given, self.max_uses, full)
                if not kept:  # the first item of a part has a use left, otherwise the sampler should not know it
                    raise RuntimeError(
                        f"{type(sampler).__name__}: drew items that were excluded, which have no use left"
                    )
                taken += kept
                self.left -= kept
                if found:
                    undos.append(sampler.exclude(np.sort(full[:found])))
                    ended += found
        except BaseException:  # an interrupt by the user among them
            undo()
            raise
        return ended, undo

    def take_back(self, items: Ints) -> None:
        """Uncount a use of each of ``items``, which may repeat."""
        np.subtract.at(self._given, items, 1)
        self.left += len(items)

    def given(self, items: int) -> Int32s:
        """Return how often each of the first ``items`` items was sampled: int32 [items], a copy."""
        return self._given[:items].copy()

    def restore(self, given: Int32s, items: Ints) -> Ints:
        """Restore a checkpoint's counts for ``items``, present both then and now; return the used-up ones.

        Raises:
            ValueError: counts out of range.
        """
        if ((given < 0) | (given > self.max_uses)).any() or len(given) > len(self._given):
            raise ValueError(f"uses: expected counts from 0 to {self.max_uses} of at most {len(self._given)} items")
        items = items[items < len(given)]
        self._given[items] = given[items]
        self.left -= int(given[items].sum())
        full: Ints = items[given[items] == self.max_uses]
        return full

    def nbytes(self, items: int) -> int:
        """Return the bytes of memory in use for the items below that number."""
        return items * self._given.itemsize


def own_generator(inherited: np.random.Generator) -> np.random.Generator:
    """Return a generator for the draws of a forked process. Called at its first draw.

    Its seed combines the generator's state at the fork, the fork's number and, in a worker of PyTorch's DataLoader, the
    worker's number and seed. So it differs in every fork, and is the same in a run that forks in the same order and
    seeds torch.
    """
    state = inherited.integers(1 << 32, size=8, dtype=np.uint64).tolist()  # of this process's copy
    worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", lambda: None)
    worker = worker_info()  # which it learns after the fork, so fork hooks run too early for this
    numbers = [] if worker is None else [int(worker.id), int(worker.seed)]
    return np.random.default_rng(np.random.SeedSequence([*state, *numbers], spawn_key=path()))
