"""The oracle's state machine over a store that now and then goes on from a checkpoint of itself, or gets other limits.

What goes on must be the store that was: beside the oracle, the old one is asked for a batch as well.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import sharpwave as sw
from tests.disk.test_disk_machine import DiskMachine
from tests.views.test_transitions_machine import TransitionsMachine


class CheckpointMachine(TransitionsMachine):
    """In memory."""

    def make_store(self, spec: sw.Spec, **settings: Any) -> sw.Store:
        self.place = tempfile.TemporaryDirectory()
        self.openings = 0
        return super().make_store(spec, **settings)

    def opened(self, checkpoint: Path) -> sw.Store:
        return sw.Store.open(checkpoint)

    @precondition(lambda self: hasattr(self, "store"))
    @rule(size=st.integers(1, 9), fresh=st.booleans())
    def goes_on_from_a_checkpoint(self, size: int, fresh: bool) -> None:
        self.openings += 1
        checkpoint = Path(self.place.name) / (f"checkpoint {self.openings}" if fresh else "checkpoint")
        old, before = self.store, self.store.stats()
        old.checkpoint(checkpoint)
        new = self.opened(checkpoint)
        assert new.recovery is not None
        found = (new.recovery.damages, new.recovery.differences)
        assert found == ([], []), found
        assert new.recovery.steps == len(new) == len(old) and new.lanes == old.lanes
        after = new.stats()
        for name in ("steps", "total_steps", "evicted_steps", "evicted_segments", "segments"):
            assert before[name] == after[name], name
        for view in self.views:
            sampler = sw.Uniform() if view.alpha is None else sw.Prioritized(alpha=view.alpha, beta=0.5, eps=view.eps)
            replay = new.transitions(name=view.replay.name, n_step=view.n_step, gamma=view.gamma, sampler=sampler)
            np.testing.assert_array_equal(np.sort(replay.sampleable_ids()), np.sort(view.replay.sampleable_ids()))
            if len(replay):
                assert_same_batch(view.replay.sample(size), replay.sample(size))
            if view.stream is not None:
                stream = replay.stream(view.stream._size, lookahead=view.stream._lookahead)
                if len(replay):
                    assert_same_batch(next(view.stream), next(stream))
                view.stream = stream
            view.replay = replay
        self.others_go_on(new, size)
        old.close()
        self.store = new

    def others_go_on(self, new: sw.Store, size: int) -> None:
        """Views of another kind, if there are any, are made again in ``new``."""

    @precondition(lambda self: hasattr(self, "store"))
    @rule(data=st.data())
    def gets_another_capacity(self, data: st.DataObject) -> None:
        open_rows = self.lanes * (self.segment_steps + 1)  # or the newest steps of a lane would go, as in no other test
        self.capacity = data.draw(st.one_of(st.integers(open_rows, 40), st.integers(2**12, 2**16)), "capacity")
        self.store.resize(capacity=self.capacity)
        assert self.store.capacity == self.capacity and len(self.store) <= self.capacity
        self.learn_what_is_held()
        self.let_go = self.oracle.total_steps - len(self.store)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "place"):
                self.place.cleanup()


class DiskCheckpointMachine(CheckpointMachine, DiskMachine):
    """On disk: the files are linked to a new folder every time, or the checkpoint becomes the store."""

    def opened(self, checkpoint: Path) -> sw.Store:
        if self.openings % 3 == 0:
            return sw.Store.open(checkpoint)
        return sw.Store.open(checkpoint, disk=Path(self.place.name) / f"store {self.openings}")

    @precondition(lambda self: hasattr(self, "store"))
    @rule(size=st.integers(1, 9), fresh=st.just(True))
    def goes_on_from_a_checkpoint(self, size: int, fresh: bool) -> None:
        super().goes_on_from_a_checkpoint(size, fresh)


def assert_same_batch(one: Any, other: Any) -> None:
    for name in ("reward", "discount", "weights", "probabilities", "ids"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one["serial"], other["serial"])


TestCheckpoints = CheckpointMachine.TestCase
TestCheckpoints.pytestmark = [pytest.mark.timeout(900)]  # type: ignore[attr-defined]
TestDiskCheckpoints = DiskCheckpointMachine.TestCase
TestDiskCheckpoints.pytestmark = [pytest.mark.timeout(900)]  # type: ignore[attr-defined]
