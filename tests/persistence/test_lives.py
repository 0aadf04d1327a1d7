"""One store through many lives: what was appended in all of them, against plain lists of episodes."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import sharpwave as sw
from sharpwave.disk import disk_budget as disk_module
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey
from tests.support.examples import examples
from tests.support.faults import killed
from tests.support.oracle import Oracle, Stacking, assert_same_view

GAMMA = 0.5
SPEC = sw.Spec(
    obs=sw.Field((6, 7), "uint8", stack=3, pad="zeros"), action=sw.Field((), "int64"), serial=sw.Field((), "int64")
)


def frame(serial: int) -> Any:
    picture = np.zeros((6, 7), np.uint8)
    picture[serial % 6, serial % 7] = serial % 251 + 1
    picture[0, 0] = serial // 251
    return picture


class Lives(RuleBasedStateMachine):
    """A store that is closed, dropped, killed and opened again, and an oracle that knows what each of these costs."""

    def __init__(self) -> None:
        super().__init__()
        self.base = tempfile.TemporaryDirectory()
        self.oracle = Oracle(Stacking(3, "zeros"))
        self.flushed: dict[int, int] = {}
        self.serial = self.turn = 0

    @property
    def folder(self) -> Path:
        return Path(self.base.name) / str(self.turn)

    @initialize(
        segment_steps=st.sampled_from([1, 2, 3, 5, 16]),
        codec=st.sampled_from(["delta", "zstd", "raw"]),
        region=st.sampled_from([4096, 1 << 20]),
    )
    def begin(self, segment_steps: int, codec: str, region: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(disk_module, "MIN_REGION_BYTES", region)
        self.patch.setattr(disk_module, "REGION_BYTES", region)
        self.store = sw.Store(SPEC, capacity=10_000, disk=self.folder, segment_steps=segment_steps, codec=codec)

    @rule(
        lanes=st.lists(st.integers(0, 2), min_size=1, max_size=12),
        end=st.sampled_from(["", "", "", "terminated", "truncated"]),
    )
    def steps(self, lanes: list[int], end: str) -> None:
        """Some steps, the last of which may end its lane's episode."""
        for k, lane in enumerate(lanes):
            how = end if k == len(lanes) - 1 else ""
            step = {
                "obs": frame(self.serial),
                "action": self.serial % 5,
                "reward": float(self.serial % 4) + 1000.0 * (self.serial % 9 == 0),
                "terminated": how == "terminated",
                "truncated": how == "truncated",
                "final_obs": frame(self.serial + 40_000) if how else None,
                "serial": self.serial,
            }
            self.store.append(lane=lane, **step)
            self.oracle.append(lane, **step)
            self.serial += 1

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.flushed = {lane: len(steps) for lane, steps in self.oracle.lanes.items()}

    @rule()
    def close(self) -> None:
        self.store.close()
        self.break_off({lane: len(steps) for lane, steps in self.oracle.lanes.items()})
        self.open()

    @rule(failed=st.booleans())
    def drop(self, failed: bool) -> None:
        """Without close(), also from an exception's traceback."""
        try:
            if failed:
                raise KeyError
        except KeyError:
            pass
        del self.store
        gc.collect()
        self.break_off({lane: len(steps) for lane, steps in self.oracle.lanes.items()})
        self.open()

    @rule()
    def kill(self) -> None:
        index, opened = self.store._log.index, self.store._log.opened
        sealed = dict(enumerate(index.first_step[opened.slots].tolist()))
        killed(self.store)
        self.break_off({lane: max(n, self.flushed.get(lane, 0)) for lane, n in sealed.items()}, sealed)
        self.open()

    @rule(on_disk=st.booleans())
    def checkpoint(self, on_disk: bool) -> None:
        """Opened, it goes on with the episodes; what becomes of it then, in its lives, is no different."""
        self.store.checkpoint(Path(self.base.name) / "checkpoint")
        self.store.close()
        self.turn += 1
        if on_disk:
            self.store = sw.Store.open(Path(self.base.name) / "checkpoint", disk=self.folder)
        else:
            Path(self.base.name, "checkpoint").rename(self.folder)
            self.store = sw.Store.open(self.folder)
        shutil.rmtree(Path(self.base.name) / "checkpoint", ignore_errors=True)
        self.flushed = {lane: len(steps) - 1 for lane, steps in self.oracle.lanes.items() if steps}
        self.store.flush()
        self.flushed = {lane: len(steps) for lane, steps in self.oracle.lanes.items()}

    def break_off(self, kept: dict[int, int], sealed: dict[int, int] | None = None) -> None:
        """Of each lane so many first steps are on disk, of which ``sealed`` lie in sealed segments."""
        for lane, history in self.oracle.lanes.items():
            upto, final = kept.get(lane, 0), None
            if upto and not history[upto - 1].ended:
                upto -= sealed is None or upto > sealed[lane]  # what came after it is not known
                final = history[upto].obs
            for step in history[upto:]:
                del self.oracle.where[step.serial]
            del history[upto:]
            if final is not None and self.oracle.can_end_episode(lane):
                self.oracle.end_episode(lane, final)
        self.flushed = {}

    def open(self) -> None:
        self.store = sw.Store.open(self.folder)
        assert self.store.recovery is not None and self.store.recovery.damages == []
        lengths = [len(self.oracle.lanes.get(lane, [])) for lane in range(self.store.lanes)]
        assert self.store.lane_steps.tolist() == lengths
        self.compare()

    @rule()
    def compare(self) -> None:
        for n_step in (1, 5):
            assert_same_view(self.store.transitions(n_step=n_step, gamma=GAMMA), self.oracle, n_step, GAMMA)

    @rule()
    def look_from_outside(self) -> None:
        """Once it was opened, every episode that was broken off is truncated in the bytes."""
        self.close()
        assert check(self.folder).damages == []
        found = {
            (one.lane, one.first_step): (one.steps, one.end)
            for one in survey(self.folder).episodes
            if one.first_step < len(self.oracle.lanes.get(one.lane, []))  # else rows that were flushed and given up
        }
        expected = {}
        for lane, history in self.oracle.lanes.items():
            begin = 0
            for k, step in enumerate(history):
                if step.ended:
                    expected[lane, begin] = (k + 1 - begin, "terminated" if step.terminated else "truncated")
                    begin = k + 1
        assert found == expected

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.close()
            self.store.close()
            self.patch.undo()
        self.base.cleanup()


TestLives = pytest.mark.slow(Lives.TestCase)
TestLives.settings = settings(max_examples=examples(5, most=100), stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("in_place", [True, False])
def test_what_a_checkpoint_held_outlives_a_kill_after_it_was_opened(tmp_path: Path, in_place: bool) -> None:
    spec = sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=1000, disk=tmp_path / "store", segment_steps=16) as store:
        for k in range(37):
            store.append(obs=[k], action=k, reward=1, terminated=k % 10 == 9, truncated=False, next_obs=[k + 1])
        store.checkpoint(tmp_path / "checkpoint")
    where = tmp_path / "checkpoint" if in_place else tmp_path / "new"
    script = (
        "import os, sys, sharpwave as sw\n"
        "store = sw.Store.open(sys.argv[1], disk=sys.argv[2] or None)\n"
        "assert len(store) == 37\n"
        "os.kill(os.getpid(), 9)"
    )
    arguments = [str(tmp_path / "checkpoint"), "" if in_place else str(where)]
    assert subprocess.run([sys.executable, "-c", script, *arguments], timeout=300).returncode == -9
    with sw.Store.open(where) as again:
        assert again.recovery is not None
        assert again.recovery.damages == []
        view = again.transitions(sampler=sw.Fifo(), max_times_sampled=1)
        assert sorted(view.sample(len(view)).action.tolist()) == list(range(37))
