"""Conformance suite for samplers.

    class TestMine(SamplerSuite):
        def make_sampler(self) -> Sampler:
            return Mine()

Under pytest, it checks that the sampler draws only items that it holds, with the probabilities that it reports; that
undoing, growing and restoring do not change its draws; and that a store with it is restored from a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.sampling.sampler_protocol import Draw, Sampler, check_sampler

SETTINGS = settings(
    max_examples=min(60, 2 * settings().max_examples),  # fewer only where the profile asks for few
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SPEC = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))


class Told:
    """Sampler with a record of its calls: items in the order of insertion, and the number inserted in each group."""

    def __init__(self, sampler: Sampler, groups: int, group_size: int) -> None:
        self.sampler, self.groups, self.group_size = sampler, groups, group_size
        self.there: list[int] = []
        self.came = [0] * groups
        sampler.bind(groups, group_size)

    def insert(self, group: int, end: int) -> None:
        begin = self.came[group]
        self.sampler.insert(np.array([group]), np.array([begin]), np.array([end]))
        self.there += range(group * self.group_size + begin, group * self.group_size + end)
        self.came[group] = end

    def remove(self, group: int) -> None:
        self.sampler.remove(group)
        self.there = [item for item in self.there if item // self.group_size != group]
        self.came[group] = 0

    def exclude(self, items: list[int]) -> Callable[[], None]:
        """Exclude items; return a function that undoes the exclusion."""
        before, undo = self.there, self.sampler.exclude(np.array(items, np.int64))
        self.there = [item for item in before if item not in items]

        def undone() -> None:
            undo()
            self.there = before

        return undone

    def grow(self, groups: int) -> None:
        self.sampler.grow(groups)
        self.came += [0] * (groups - self.groups)
        self.groups = groups

    def probabilities(self) -> dict[int, float]:
        self.draw(np.random.default_rng(0), 1)
        return dict(zip(self.there, self.sampler.probabilities(np.array(self.there)).tolist(), strict=True))

    def draw(self, rng: np.random.Generator, n: int) -> Draw:
        draw = Draw.of(n)
        self.sampler.draw(draw, rng)
        return draw

    def restored(self, fresh: Sampler, items: list[int]) -> Told:
        """Load this sampler's state into ``fresh``, which holds ``items``: a prefix of each group."""
        other = Told(fresh, self.groups, self.group_size)
        for group in sorted({item // self.group_size for item in items}):
            ends = [item % self.group_size + 1 for item in items if item // self.group_size == group]
            other.insert(group, max(ends))
        gone = [item for item in other.there if item not in items]
        if gone:
            other.exclude(gone)
        fresh.restore(self.sampler.state())
        new = [item for item in other.there if item not in self.there]
        other.there = [item for item in self.there if item in items] + new
        return other


class SamplerSuite:
    """Tests that every sampler passes. Subclasses make the sampler."""

    def make_sampler(self) -> Sampler:
        """Make a new sampler, always with the same settings."""
        raise NotImplementedError

    def expected_draw(self, there: list[int], n: int) -> list[int] | None:
        """Return the items that n draws give of ``there``, which is in the order of insertion; None: random ones."""
        return None

    def _told(self, groups: int = 4, group_size: int = 5) -> Told:
        return Told(self.make_sampler(), groups, group_size)

    def _used(self, seed: int) -> Told:
        """Make a sampler with items of most groups, some of them excluded, and with priorities."""
        told, rng = self._told(), np.random.default_rng(seed)
        for group in range(3):
            told.insert(group, int(rng.integers(2, 6)))
        told.remove(1)
        told.exclude(rng.choice(told.there, 2, replace=False).tolist())
        told.insert(1, 3)
        for _ in range(3):
            told.sampler.update(rng.permutation(told.there)[:4], rng.normal(size=4))
        return told

    def test_it_has_all_methods(self) -> None:
        check_sampler("sampler", self.make_sampler())

    def test_it_serves_one_view(self) -> None:
        told = self._told()
        with pytest.raises(ValueError, match="serves a view already"):
            told.sampler.bind(1, 1)

    @SETTINGS
    @given(data=st.data())
    def test_whatever_comes_and_goes_only_what_is_there_is_drawn(self, data: st.DataObject) -> None:
        groups, group_size = data.draw(st.integers(1, 6), "groups"), data.draw(st.integers(1, 5), "group size")
        told, rng = self._told(groups, group_size), np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
        for _ in range(data.draw(st.integers(1, 25), "operations")):
            acts = ["insert", "insert", "insert", "remove", "exclude", "undo", "update", "grow"]
            act, group = data.draw(st.sampled_from(acts), "act"), data.draw(st.integers(0, told.groups - 1), "group")
            some = data.draw(st.lists(st.sampled_from(told.there), unique=True), "some") if told.there else []
            if act == "insert" and told.came[group] < group_size:
                told.insert(group, data.draw(st.integers(told.came[group] + 1, group_size), "end"))
            elif act == "remove":
                told.remove(group)
            elif act == "exclude":
                told.exclude(some)
            elif act == "undo":
                before = told.probabilities() if told.there else {}
                undo = told.exclude(some)
                if told.there:
                    told.draw(rng, 3)
                undo()
                assert _alike(told.probabilities() if told.there else {}, before)
            elif act == "update":
                told.sampler.update(np.array(some, np.int64), rng.normal(size=len(some)))
            elif act == "grow":
                before = told.probabilities() if told.there else {}
                told.grow(told.groups + 1)
                assert _alike(told.probabilities() if told.there else {}, before)
            if told.there:
                self._check(told, told.draw(rng, data.draw(st.integers(1, 40), "size")))

    def _check(self, told: Told, draw: Draw) -> None:
        there, n = told.there, len(draw.items)
        assert set(draw.items.tolist()) <= set(there), "an absent item was drawn"
        of_drawn = told.sampler.probabilities(draw.items)
        np.testing.assert_allclose(of_drawn, draw.probabilities, rtol=1e-9)
        assert told.sampler.probabilities(np.array(there)).sum() == pytest.approx(1.0)
        expected = self.expected_draw(there, n)
        assert expected is None or draw.items.tolist() == expected
        assert isinstance(told.sampler.nbytes, int) and told.sampler.nbytes > 0

    def test_probabilities_are_how_often_an_item_is_drawn(self) -> None:
        told, rng, n, rounds = self._used(3), np.random.default_rng(1), 7, 4000
        if self.expected_draw(told.there, n) is not None:
            return
        counts = dict.fromkeys(told.there, 0.0)
        for _ in range(rounds):
            draw = told.draw(rng, n)
            for item, probability in zip(draw.items.tolist(), draw.probabilities.tolist(), strict=True):
                counts[item] += 1 / (n * probability)  # 1 a round on average, as importance weights assume
        for item, count in counts.items():
            assert count / rounds == pytest.approx(1.0, abs=0.25), f"item {item} is drawn too often or too rarely"

    def test_settings_are_json(self) -> None:
        described = self.make_sampler().settings()
        assert json.loads(json.dumps(described)) == described == self.make_sampler().settings()

    @pytest.mark.parametrize("seed", range(4))
    def test_a_state_goes_on_as_if_nothing_had_been(self, seed: int) -> None:
        told = self._used(seed)
        state = told.sampler.state()
        for array in _arrays(state):
            array.flags.writeable = False  # copies: later calls of the sampler change none
        other = told.restored(self.make_sampler(), told.there)
        one, another = np.random.default_rng(9), np.random.default_rng(9)
        for step in range(20):
            draws = [a.draw(rng, 6) for a, rng in ((told, one), (other, another))]
            assert draws[0].items.tolist() == draws[1].items.tolist(), f"draw {step} after the checkpoint differs"
            np.testing.assert_array_equal(draws[0].probabilities, draws[1].probabilities)
            for a in (told, other):
                a.sampler.update(draws[0].items[:3], np.full(3, step / 7))
            if step == 10:
                for a in (told, other):
                    a.insert(3, 4)

    def test_of_a_state_what_is_gone_is_ignored_and_what_came_since_is_new(self) -> None:
        told = self._used(1)
        kept = [item for item in told.there if item // told.group_size != 0]
        other = told.restored(self.make_sampler(), [*kept, *range(15, 19)])
        told.remove(0)
        told.insert(3, 4)
        self._check(other, other.draw(np.random.default_rng(0), 30))
        if self.expected_draw(kept, 1) is None:
            assert _alike(other.probabilities(), told.probabilities())

    @pytest.mark.parametrize("empty", [{}, {"more": np.zeros(3)}, None], ids=["empty", "of another", "none"])
    def test_what_is_no_state_is_refused_and_changes_nothing(self, empty: Any) -> None:
        told = self._used(2)
        if not told.sampler.state():
            return  # the sampler has no state
        before = told.probabilities()
        with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
            told.sampler.restore(empty)
        assert told.probabilities() == pytest.approx(before)

    @pytest.mark.parametrize("max_times_sampled", [None, 3], ids=["any times", "three times"])
    def test_a_store_with_it_comes_back_from_a_checkpoint(self, max_times_sampled: int | None, tmp_path: Path) -> None:
        store = sw.Store(SPEC, capacity=60, segment_steps=8, seed=3)
        view = store.transitions(sampler=self.make_sampler(), max_times_sampled=max_times_sampled)
        rng = np.random.default_rng(0)

        def go_on(of: sw.Store) -> None:
            for _ in range(10):
                k = of.total_steps
                of.append(obs=k, action=k, reward=0.0, terminated=k % 7 == 6, truncated=False)

        for _ in range(9):
            go_on(store)
            batch = view.sample(8)
            assert set(batch.action.tolist()) <= set(range(store.total_steps - len(store), store.total_steps))
            view.update_priorities(batch.ids, rng.normal(size=8))
        store.checkpoint(tmp_path)
        opened = sw.Store.open(tmp_path)
        go_on(opened)  # no limiter waits for a view that was not requested yet
        first = opened.transitions(sampler=self.make_sampler(), max_times_sampled=max_times_sampled)
        assert set(first.sample(8).action.tolist()) <= set(range(100))
        again = sw.Store.open(tmp_path)
        views = [view, again.transitions(sampler=self.make_sampler(), max_times_sampled=max_times_sampled)]
        for _ in range(5):
            one, other = (each.sample(6) for each in views)
            np.testing.assert_array_equal(one.ids, other.ids)
            np.testing.assert_array_equal(one.weights, other.weights)
            for each in views:
                each.update_priorities(np.asarray(one.ids), np.arange(6.0))
            for of in (store, again):
                go_on(of)


def _alike(one: dict[int, float], other: dict[int, float]) -> bool:
    """Return whether both have the same items and the same multiset of probabilities."""
    return one.keys() == other.keys() and sorted(one.values()) == pytest.approx(sorted(other.values()))


def _arrays(tree: Any) -> list[npt.NDArray[Any]]:
    if isinstance(tree, np.ndarray):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [array for part in parts for array in _arrays(part)]
