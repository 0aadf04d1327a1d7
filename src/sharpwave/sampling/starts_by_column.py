"""Items of a sampler whose first priorities come from a column of their steps."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from sharpwave.arrays import Bools, Floats, Ints
from sharpwave.sampling.sampler_protocol import extended


class StartsByColumn:
    """Part of a sampler with priorities: notes which items have none of their own yet (``views/starting.py``).

    Attributes:
        by: column that priorities start from; ``None``: the largest priority so far.
        unstarted: bool [items], items inserted since they were last ``start``ed that have no priority of their own yet,
            also of items that are gone; ``None`` without ``by``.
        unstarted_groups: groups of these.
    """

    by: str | None
    unstarted: Bools | None
    unstarted_groups: set[int]
    _group_size: int

    @abstractmethod
    def update(self, items: Ints, td_error: Floats) -> None:
        """Set the items' priorities."""

    def start(self, items: Ints, td_error: Floats) -> None:
        """Set the first priorities of ``items``; all others that are unstarted keep theirs."""
        self.update(items, td_error)
        if self.unstarted is not None:
            for group in self.unstarted_groups:
                self.unstarted[group * self._group_size : (group + 1) * self._group_size] = False
        self.unstarted_groups.clear()

    def _begin_starts(self, items: int) -> None:
        if self.by is not None:
            self.unstarted = np.zeros(items, np.bool_)

    def _grow_starts(self, items: int) -> None:
        if self.unstarted is not None:
            self.unstarted = extended(self.unstarted, items)

    def _note_new(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        if self.unstarted is not None:
            for group, begin, end in zip(groups.tolist(), begins.tolist(), ends.tolist(), strict=True):
                self.unstarted[group * self._group_size + begin : group * self._group_size + end] = True
            self.unstarted_groups.update(groups.tolist())

    def _note_updated(self, items: Ints) -> None:
        if self.unstarted_groups and self.unstarted is not None:
            self.unstarted[items] = False

    def _restore_starts(self, new: Ints) -> None:
        """Note that only the items ``new`` have no priority of their own."""
        if self.unstarted is not None:
            self.unstarted = np.zeros(len(self.unstarted), np.bool_)
            self.unstarted[new], self.unstarted_groups = True, set((new // self._group_size).tolist())
