"""The oracle's state machine over a store on disk, whose segments leave memory at any moment and are read back."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import sharpwave as sw
from sharpwave.disk import disk_budget as disk_module
from tests.views.test_transitions_machine import TransitionsMachine


class DiskMachine(TransitionsMachine):
    """Regions of 4 KiB, so that they fill and are deleted as well."""

    def make_store(self, spec: sw.Spec, **settings: Any) -> sw.Store:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(disk_module, "MIN_REGION_BYTES", 4096)
        self.patch.setattr(disk_module, "REGION_BYTES", 4096)
        self.folder = tempfile.TemporaryDirectory()
        return sw.Store(spec, disk=self.folder.name, **settings)

    @precondition(lambda self: hasattr(self, "store"))
    @rule(share=st.sampled_from([0.3, 1.0]))
    def segments_leave_memory(self, share: float) -> None:
        log = self.store._log
        assert log.segment_cache is not None
        index = log.index
        here = np.flatnonzero((index.resident == 1) & (index.sealed == 1) & (index.rows > 0))
        for slot in here[: int(len(here) * share)].tolist():
            log.segment_cache.uncache(slot)

    @precondition(lambda self: hasattr(self, "store"))
    @rule()
    def a_region_is_copied(self) -> None:
        """However full it is. What is sampled afterwards is read from where it lies now."""
        log = self.store._log
        assert log.compaction is not None and log.disk is not None
        before = list(log.disk.regions.regions)
        moved = log.compaction.compact(max_share=2.0)
        gone = set(before) - set(log.disk.regions.regions)
        assert len(gone) == moved and (moved or len(before) < 2)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "patch"):
            assert self.store.stats()["disk"]["damaged"] == []
            self.patch.undo()
            self.folder.cleanup()


TestDisk = DiskMachine.TestCase
TestDisk.pytestmark = [pytest.mark.timeout(900)]  # type: ignore[attr-defined]  # a failure is shrunk for minutes
