"""Every allocation of an array fails once, in turn, within every operation of a store's life: on error nothing changed.

An operation is tried again, with its next allocation failing, until it comes through. In between a store has to be
whole (:mod:`tests.support.audit`); in the end it holds what a plain oracle does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.support.audit import audit
from tests.support.oracle import Oracle, Stacking, assert_same_transition
from tests.support.starved import Memory, starved

TURNS = 60


def frame(serial: int) -> Any:
    """A picture that tells its step, on a background that a dictionary is worth."""
    picture = np.arange(96, dtype=np.uint8).reshape(8, 12)
    picture[serial % 7, serial % 12] ^= 255
    picture[7, :8] = np.frombuffer(np.int64(serial).tobytes(), np.uint8)
    return picture


SAMPLERS: list[Callable[[], Any]] = [
    sw.Uniform,
    sw.Prioritized,
    sw.RankPrioritized,
    sw.Fifo,
    lambda: sw.Mixture([(0.5, sw.Prioritized()), (0.3, sw.Uniform()), (0.2, sw.Lifo())]),
]


class Life:
    """A store that gets no memory now and then, its views, and the oracle of what was appended."""

    def __init__(self, memory: Memory, folder: Path | None, retention: Any, codec: str, capacity: int) -> None:
        spec = sw.Spec(
            obs=sw.Field((8, 12), "uint8", stack=2), action=sw.Field((), "int64"), serial=sw.Field((), "int64")
        )
        on_disk: dict[str, Any] = {"disk": folder / "life", "ram": "16MiB"} if folder else {}
        self.store = sw.Store(
            spec, capacity=capacity, segment_steps=4, seed=1, codec=codec, retention=retention, **on_disk
        )
        self.memory, self.refused, self.serial = memory, 0, 0
        self.oracle, self.views = Oracle(Stacking(2)), list[Any]()

    def come_through(self, action: Callable[[], Any]) -> Any:
        """Try until no allocation of ``action`` is left that can fail."""
        steps, at = self.store.total_steps, 0
        while True:
            at += 1
            self.memory.fail_at(at)
            try:
                came = action()
            except MemoryError:
                self.memory.fail_at(0)
                self.refused += 1
                assert self.store.total_steps == steps
                audit(self.store, self.views)
                continue
            finally:
                self.memory.fail_at(0)
            audit(self.store, self.views)
            return came

    def append(self, lanes: int) -> None:
        """Append a step to each lane; episodes end now and then."""
        serials = self.serial + np.arange(lanes)
        self.serial += lanes
        terminated, truncated = serials % 13 > 11, serials % 17 > 15
        frames = np.stack([frame(k) for k in serials.tolist()])
        finals = np.stack([frame(k + 40_000) for k in serials.tolist()])
        rewards = (serials % 8).astype(np.float32)
        self.come_through(
            lambda: self.store.extend(
                obs=frames, action=serials, reward=rewards, terminated=terminated, truncated=truncated,
                final_obs=finals, serial=serials,
            )
        )  # fmt: skip
        for lane, k in enumerate(serials.tolist()):
            ends = bool(terminated[lane]), bool(truncated[lane])
            self.oracle.append(lane, frames[lane], serials[lane], k % 8, *ends, finals[lane], serial=k)

    def end_episode(self, lane: int) -> None:
        """Truncate the lane's episode, if one is under way."""
        if self.oracle.can_end_episode(lane):
            final = frame(self.serial + 80_000)
            self.come_through(lambda: self.store.end_episode(lane, final))
            self.oracle.end_episode(lane, final)

    def resize(self, capacity: int) -> None:
        """Set another capacity."""
        self.come_through(lambda: self.store.resize(capacity=capacity))

    def view(self, sampler: Callable[[], Any], n_step: int, max_times_sampled: int | None) -> None:
        """Make another view."""
        made = self.come_through(
            lambda: self.store.transitions(
                n_step=n_step, gamma=0.5, sampler=sampler(), max_times_sampled=max_times_sampled
            )
        )
        self.views.append(made)

    def sample(self, view: Any) -> None:
        """Sample a batch, and change its priorities."""
        view.sample(4)  # memory for batches of that size is there from now on, and what reads them is compiled
        batch = self.come_through(lambda: view.sample(4))
        self.compare(view, batch)
        self.come_through(lambda: view.update_priorities(batch, np.arange(4) / 3))

    def compare(self, view: Any, batch: Any) -> None:
        """Compare a batch with the oracle."""
        for row, serial in enumerate(batch["serial"].tolist()):
            assert_same_transition(batch, row, self.oracle.transition(serial, view.n_step, 0.5))

    def held(self) -> set[int]:
        """Serial numbers of the steps that are there."""
        index, there = self.store._log.index, np.flatnonzero(self.store._log.index.rows)
        return {
            self.oracle.lanes[int(index.lane[slot])][int(index.first_step[slot]) + row].serial
            for slot in there
            for row in range(index.rows[slot])
        }


@pytest.mark.parametrize(
    ("retention", "codec", "disk"),
    [
        pytest.param(retention, codec, disk, id=f"{kind}-{place}", marks=() if once else pytest.mark.nightly)
        for kind, retention, codec in (
            ("fifo", sw.Fifo(), "auto"),
            ("reservoir", sw.Reservoir(3), "delta"),
            ("lowest priority", sw.LowestPriority(), "zstd"),
        )
        for place, disk, once in (("memory", False, kind == "reservoir"), ("disk", True, kind != "reservoir"))
    ],
)
def test_an_operation_that_gets_no_memory_changes_nothing(
    retention: Any, codec: str, disk: bool, tmp_path: Path
) -> None:
    with starved() as memory:
        life = Life(memory, tmp_path if disk else None, retention, codec, capacity=40)
        for turn in range(TURNS):
            life.append(lanes=min(3, 1 + turn // 10))
            if turn % 9 == 3 and len(life.views) < len(SAMPLERS):
                k = len(life.views)
                life.view(SAMPLERS[k], n_step=1 + 2 * (k % 2), max_times_sampled=8 if k in (0, 4) else None)
            if life.views and turn % 4 == 0 and len(view := life.views[turn % len(life.views)]):
                life.sample(view)
            if turn % 11 == 10:
                life.end_episode(0)
            if turn % 20 == 19:
                life.resize(capacity=30 if turn < 30 else 500 * turn)
            if disk and turn % 14 == 13:
                life.come_through(life.store.flush)
        assert life.refused > 500
        held = life.held()
        for view in life.views:
            batch = view.fetch(view.sampleable_ids())
            life.compare(view, batch)
            if view.max_times_sampled is None:
                assert set(batch["serial"].tolist()) == life.oracle.sampleable(view.n_step, held=held)
        life.store.close()


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_refused_step_leaves_no_observation(lanes: int, on_disk: bool, tmp_path: Path) -> None:
    """Rows of any length find their room before the segment behind which they come is sealed with their observation.

    Another step, with another observation, then goes on with the episode. That holds for what takes much memory; where
    there is none for an array of a few numbers, an episode may end there.
    """
    spec = sw.Spec(obs=sw.Field(str), action=sw.Field((), "int64"), tokens=sw.Field((None,), "int32"))

    def append(store: sw.Store, text: str, some: int) -> None:
        end, long = np.zeros(some, np.bool_), np.arange(3000 + len(store), dtype=np.int32)
        store.extend(
            obs=[text] * some, action=np.zeros(some, int), tokens=[long] * some, reward=np.zeros(some),
            terminated=end, truncated=end, lanes=np.arange(some),
        )  # fmt: skip

    at, refused = 0, 0
    with starved() as memory:
        while True:
            at += 1
            disk: dict[str, Any] = {"disk": tmp_path / str(at)} if on_disk else {}
            store = sw.Store(spec, segment_steps=4, capacity=1000, codec="raw", **disk)
            for step in range(4):
                append(store, f"step {step}", 1 if step else lanes)
            memory.fail_at(at)
            try:
                append(store, "refused", lanes)
            except MemoryError as error:
                memory.fail_at(0)
                assert len(store) == 3 + lanes
                audit(store, [])
                if "KiB" not in str(error):
                    store.close()
                    continue
                refused += 1
                append(store, "another", lanes)
            else:
                memory.fail_at(0)
                break
            assert [one.length for one in store.episodes()] == [5, 2][:lanes]
            batch = store.transitions().fetch(store.ids(0, [3]))
            assert batch.obs.strings() == ["step 3"] and batch.next_obs.strings() == ["another"]
            audit(store, [])
            store.close()
    assert refused >= 2 + lanes
