"""Steps by their ids, as they are stored: batches without next observations."""

from __future__ import annotations

import numpy as np

from sharpwave.arrays import Bools, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.ragged import Ragged
from sharpwave.views.batch import Batch
from sharpwave.views.batch_source import MAX_LAYOUTS
from sharpwave.views.filling import fill_target, lend_held
from sharpwave.views.ids import Tag
from sharpwave.views.layout import Arrays, BatchLayout, BatchTarget
from sharpwave.views.step_views import HERE, NUMBERS, NStep, empty_rows, numbers


class StoredSteps(NStep):
    """View of single steps with no successor: it finds no items, but fills a batch with the caller's steps.

    Args:
        late: whether columns added later are columns of batches.
    """

    kind = "fetch"
    places_arrays = True

    def __init__(self, log: StepLog, late: bool = True) -> None:
        super().__init__(1, 1.0)
        self.late = late
        self.bind(log)

    def take_columns(self) -> None:
        super().take_columns()
        endings = [core.OF_FRAMES if end == core.OF_FRAMES_AFTER else end for _, _, end in self._windows]
        self._windows = [(*window[:2], end) for window, end in zip(self._windows, endings, strict=True)]
        self._endings = np.array(endings, np.uint8)

    def no_rows(self, count: int) -> dict[str, Ragged]:
        return {name: empty_rows(self._spec.fields[name], count) for name in self.ragged}

    def batch(self, arrays: Arrays) -> Batch:
        """Return a ``Batch`` whose ``next_obs`` is ``None``."""
        spec = self._spec
        return Batch(
            obs=self.joined(spec.join_obs, spec.obs_names, arrays, HERE),
            action=self.joined(spec.join_action, spec.action_names, arrays, HERE),
            next_obs=None,
            fields=self.further(arrays, HERE),
            **numbers(arrays, tuple(NUMBERS)),
        )


class StepFetcher:
    """Reader of a log's steps by their ids. The store's lock is held.

    Args:
        tag: of ids of steps.
    """

    def __init__(self, log: StepLog, tag: Tag) -> None:
        self._log, self._tag = log, tag
        self._kept: dict[tuple[frozenset[str] | None, int], tuple[StoredSteps, BatchLayout]] = {}  # by fields and size
        self._version = -1  # of the late columns
        log.ledger.enter_for_batches(lambda: sum(layout.work_bytes for _, layout in self._kept.values()))

    def fetch(self, ids: Ints, names: frozenset[str] | None) -> Batch:
        """Return the steps ``ids`` [n], with the fields ``names`` only; ``None``: with all.

        Raises:
            KeyError: a step is not held.  DamagedError: a segment cannot be read.  MemoryError.
        """
        self._held(ids)
        view, layout = self._layout(names, len(ids))
        blocks = self._log.batches.lend(layout.sizes, layout.roots)
        target = layout.over(blocks, view, self._tag)
        target.draw.items[:] = self._held(ids)  # memory for the batch may have evicted some
        target.draw.probabilities.fill(np.nan)
        target.draw.weights.fill(1)
        target.ids[:] = ids
        if len(ids):
            fill_target(self._log, view, target)
        batch: Batch = target.batch
        return batch

    def _held(self, ids: Ints) -> Ints:
        """Return the leaves of steps.  Raises: KeyError."""
        items, there = self._log.late.held(ids)
        if not there.all():
            raise KeyError(f"fetch: no step has the id {ids[~there][0]}: it was evicted or deleted, or never stored")
        return items

    def _layout(self, names: frozenset[str] | None, count: int) -> tuple[StoredSteps, BatchLayout]:
        """Return the view of some fields, and the layout of its batches of a size."""
        if self._version != self._log.late.version:
            self._kept.clear()
            self._version = self._log.late.version
        if (names, count) not in self._kept:
            view = StoredSteps(self._log)
            if names is not None:
                view = view.only(names)
            if len(self._kept) == MAX_LAYOUTS:
                del self._kept[next(iter(self._kept))]
            self._kept[names, count] = view, BatchLayout(view.columns(), view.scratch_rows, count)
        return self._kept[names, count]


class StepSource:
    """Source of batches of single steps for learners elsewhere, without columns added later, which are read apart.

    The store's lock is held. Either end of a connection has one: the shard's fills batches; the learner's, of an empty
    store, lends memory to decode them into.
    """

    def __init__(self, log: StepLog, tag: Tag, view: StoredSteps | None = None) -> None:
        self.log, self.tag, self.view = log, tag, view or StoredSteps(log, late=False)

    def only(self, names: frozenset[str] | None) -> StepSource:
        """Return a source of batches with these fields only; ``None``: with all."""
        return self if names is None else StepSource(self.log, self.tag, self.view.only(names))

    def lend_once(self, batch_size: int) -> BatchTarget:
        """Lend memory for a batch.  Raises: MemoryError."""
        layout = BatchLayout(self.view.columns(), self.view.scratch_rows, batch_size)
        return layout.over(self.log.batches.lend(layout.sizes, layout.roots, layout.work_bytes), self.view, self.tag)

    def lend_for(self, ids: Ints) -> tuple[BatchTarget, Bools]:
        """Lend memory for a batch of the steps among ``ids``, as ``lend_held``."""
        self.log.check_open()
        return lend_held(ids, self.log.late.held, self.lend_once)

    def fill(self, target: BatchTarget) -> None:
        """Cut the rows of a batch out.  Raises: as ``fill_target``."""
        target.cutter.clear()
        fill_target(self.log, self.view, target)
