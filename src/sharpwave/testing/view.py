"""Conformance suite for views.

    class TestMine(ViewSuite):
        def make_view(self) -> View:
            return Mine()

        def expected(self, lane: list[Step]) -> set[Any]:
            return {...}  # the items that can be sampled, computed in the plainest way

        def item(self, batch: Any, i: int) -> Any:
            return ...  # item i of a batch, in the form of expected()

Under pytest, it checks that the view has the expected items after any appends and evictions, in memory and on disk,
that ids keep their meaning, and that the view is restored from a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.views import filling
from sharpwave.views.view_protocol import View
from sharpwave.views.view_replay import Replay

FINAL = 1_000_000
"""Offset of final observations: an episode's final observation is its last step's serial number plus this."""


@dataclass
class AppendedStep:
    """Step as the suite appended it. Its observation and its action are its serial number.

    Attributes:
        held: whether the store still holds it.
    """

    serial: int
    reward: float
    terminated: bool
    truncated: bool
    held: bool = True

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Play:
    """Store with a record of the steps appended to it, by lane."""

    def __init__(self, store: sw.Store, seed: int, lanes: list[list[AppendedStep]] | None = None) -> None:
        self.store, self.lanes = store, lanes or []
        self._rng = np.random.default_rng(seed)

    def go_on(self, steps: int) -> None:
        """Append steps to random lanes, and occasionally to a new one."""
        for _ in range(steps):
            lane = int(self._rng.integers(0, min(6, len(self.lanes) + 1)))
            self.lanes += [[] for _ in range(lane + 1 - len(self.lanes))]
            end = self._rng.random()
            step = AppendedStep(self.store.total_steps, float(self._rng.integers(-4, 5)), end < 0.1, 0.1 <= end < 0.2)
            self.store.append(
                lane=lane, obs=self._observed(step.serial), action=step.serial, reward=step.reward,
                terminated=step.terminated, truncated=step.truncated, final_obs=self._observed(step.serial + FINAL),
            )  # fmt: skip
            self.lanes[lane].append(step)
        self.note_held()

    def _observed(self, number: int) -> Any:
        spec = self.store.spec
        return spec.join_obs({name: np.full(2, number) for name in spec.obs_names})

    def note_held(self) -> None:
        """Update ``held`` of all steps."""
        index = self.store._log.index
        held = [set[int]() for _ in self.lanes]
        for slot in np.flatnonzero(index.rows).tolist():
            first = int(index.first_step[slot])
            held[int(index.lane[slot])] |= set(range(first, first + int(index.rows[slot])))
        for lane, numbers in zip(self.lanes, held, strict=True):
            for number, step in enumerate(lane):
                step.held = number in numbers


class ViewSuite:
    """Tests that every view passes. Subclasses make the view and list its items in the plainest way.

    Attributes:
        spec: spec of the stores; observations are [2] of a number, or dicts of those, actions a number.
    """

    spec = sw.Spec(obs=sw.Field((2,), "int64", stack=2), action=sw.Field((), "int64"))

    def make_view(self) -> View[Any]:
        """Make a new view, always with the same settings."""
        raise NotImplementedError

    def expected(self, lane: list[AppendedStep]) -> set[Any]:
        """Return the items that can be sampled, given all steps ever appended to a lane."""
        raise NotImplementedError

    def item(self, batch: Any, i: int) -> Any:
        """Return item ``i`` of a batch in the form of ``expected``."""
        raise NotImplementedError

    def _store(self, folder: Path | None = None, **settings: Any) -> sw.Store:
        return sw.Store(self.spec, **{"capacity": 80, "segment_steps": 4, "seed": 1, "disk": folder} | settings)

    def _told(self, batch: Any) -> list[Any]:
        return [self.item(batch, i) for i in range(len(batch.ids))]

    def _items(self, replay: Replay[Any]) -> dict[int, Any]:
        """Return every item that can be sampled, by its id."""
        ids = replay.sampleable_ids()
        assert len(ids) == len(set(ids.tolist())) == len(replay)
        return dict(zip(ids.tolist(), self._told(replay.fetch(ids)), strict=True)) if len(ids) else {}

    def _check(self, play: Play, replay: Replay[Any]) -> dict[int, Any]:
        items = self._items(replay)
        expected = [item for lane in play.lanes for item in self.expected(lane)]
        assert set(items.values()) == set(expected) and len(items) == len(expected)
        return items

    def test_settings_are_json(self) -> None:
        settings = self.make_view().settings()
        assert json.loads(json.dumps(settings)) == settings == self.make_view().settings()

    @pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
    @pytest.mark.parametrize("retention", [sw.Fifo(), sw.Reservoir(3)], ids=["fifo", "reservoir"])
    def test_the_items_are_those_of_the_plain_account(self, retention: Any, on_disk: bool, tmp_path: Path) -> None:
        """An id always means the same item, and is invalid once the item is evicted."""
        with self._store(tmp_path / "store" if on_disk else None, retention=retention) as store:
            play, replay = Play(store, 2), store.view(self.make_view())
            known: dict[int, Any] = {}
            for steps in (1, 2, 5, *[7] * 40):
                play.go_on(steps)
                items = self._check(play, replay)
                for id_ in list(items)[:: 1 + len(items) // 3] if on_disk else []:
                    store._log.segment_cache.clear()  # type: ignore[union-attr]
                    assert self._told(replay.fetch([id_])) == [items[id_]], "only from the segments that the view names"
                assert items == {id_: known.get(id_, item) for id_, item in items.items()}
                gone = np.array([id_ for id_ in known if id_ not in items], np.int64)
                assert replay.update_priorities(gone, np.zeros((len(gone), *replay.view.error_shape))) == len(gone)
                for id_ in gone[-2:]:
                    with pytest.raises(KeyError):
                        replay.fetch([id_])
                known |= items
            late = store.view(self.make_view(), name="late")
            assert self._items(late) == items, "a view made later has the same items"

    def test_what_is_sampled_is_what_is_fetched(self) -> None:
        with self._store() as store:
            Play(store, 3).go_on(150)
            replay = store.view(self.make_view())
            items = self._items(replay)
            for batch in (replay.sample(16), next(replay.stream(16, lookahead=2))):
                assert self._told(batch) == [items[id_] for id_ in batch.ids.tolist()]
                np.testing.assert_allclose(batch.probabilities, 1 / len(items))
                np.testing.assert_array_equal(batch.weights, 1)
                assert self._told(replay.fetch(batch)) == self._told(batch)

    def test_each_item_is_given_out_once_in_order(self) -> None:
        with self._store(capacity=10_000) as store:
            play, replay = Play(store, 4), store.view(self.make_view(), sampler=sw.Fifo(), max_times_sampled=1)
            seen: list[Any] = []
            for _ in range(30):
                play.go_on(9)
                if len(replay):
                    seen += self._told(replay.sample(len(replay)))
            assert len(seen) == len(set(seen))
            assert set(seen) == {item for lane in play.lanes for item in self.expected(lane)}

    def test_a_batch_is_the_same_in_parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Batches are filled in parts when memory is too small for all of their segments."""
        resident = filling.resident
        with self._store(tmp_path / "store") as store:
            Play(store, 5).go_on(150)
            replay = store.view(self.make_view())
            ids = replay.sampleable_ids()
            whole = self._told(replay.fetch(ids))
            monkeypatch.setattr(filling, "resident", lambda log, slots, columns: resident(log, slots[:3], columns))
            assert self._told(replay.fetch(ids)) == whole

    @pytest.mark.parametrize("max_times_sampled", [None, 2], ids=["any times", "twice"])
    def test_it_comes_back_from_a_checkpoint(self, max_times_sampled: int | None, tmp_path: Path) -> None:
        def view_of(store: sw.Store) -> Replay[Any]:
            return store.view(self.make_view(), sampler=sw.Prioritized(), max_times_sampled=max_times_sampled)

        store = self._store()
        play, replay = Play(store, 6), view_of(store)
        play.go_on(150)
        rng, shape = np.random.default_rng(0), replay.view.error_shape
        for _ in range(5):
            replay.update_priorities(replay.sample(4), rng.normal(size=(4, *shape)))
        store.checkpoint(tmp_path)
        again, later = sw.Store.open(tmp_path), sw.Store.open(tmp_path)
        other = view_of(again)
        for _ in range(4):
            one, two = replay.sample(4), other.sample(4)
            np.testing.assert_array_equal(one.ids, two.ids)
            np.testing.assert_array_equal(one.weights, two.weights)
            assert self._told(one) == self._told(two)
        Play(later, 7, [list(lane) for lane in play.lanes]).go_on(50)
        assert later.recovery is not None and later.recovery.views == [replay.view.kind]
        items = self._items(view_of(later))
        assert items == self._items(later.view(self.make_view(), name="new")) or max_times_sampled is not None
