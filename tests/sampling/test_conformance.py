"""Every sampler passes the suite for samplers; so does one that was never heard of, in one class."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.arrays import Floats, Ints
from sharpwave.sampling.sampler_protocol import Draw, Sampler, check_unbound, checked_array
from sharpwave.testing.sampler import SamplerSuite


@dataclass
class Plain:
    """Toy: in proportion to 1 + |TD error|, in plain Python."""

    beta: float = 0.0
    in_order = False
    keeps_order = False
    _errors: dict[int, float] | None = None

    def bind(self, groups: int, group_size: int) -> None:
        check_unbound(self, self._errors)
        self._errors, self._group_size = {}, group_size

    def grow(self, groups: int) -> None:
        pass

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        for group, begin, end in zip(groups.tolist(), begins.tolist(), ends.tolist(), strict=True):
            first = group * self._group_size
            self._items.update(dict.fromkeys(range(first + begin, first + end), 1.0))

    def remove(self, group: int) -> None:
        self._errors = {item: error for item, error in self._items.items() if item // self._group_size != group}

    def exclude(self, items: Ints) -> Callable[[], None]:
        gone = {item: self._items.pop(item) for item in items.tolist()}
        return lambda: self._items.update(gone)

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        items = np.array(sorted(self._items))
        draw.items[:] = rng.choice(items, len(draw.items), p=self.probabilities(items))
        draw.probabilities[:] = self.probabilities(draw.items)

    def probabilities(self, items: Ints) -> Floats:
        total = math.fsum(1 + error for error in self._items.values())
        return np.array([(1 + self._items[item]) / total for item in items.tolist()])

    def update(self, items: Ints, td_error: Floats) -> None:
        self._items.update(zip(items.tolist(), np.abs(td_error).tolist(), strict=True))

    def settings(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"items": np.array(list(self._items), np.int64), "errors": np.array(list(self._items.values()))}

    def restore(self, state: dict[str, Any]) -> None:
        items, errors = checked_array(state, "items", np.int64), checked_array(state, "errors", np.float64)
        known = dict(zip(items.tolist(), errors.tolist(), strict=True))
        self._errors = {item: known.get(item, error) for item, error in self._items.items()}

    @property
    def _items(self) -> dict[int, float]:
        assert self._errors is not None
        return self._errors

    @property
    def nbytes(self) -> int:
        return 100 * (1 + len(self._items))


class TestUniform(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return sw.Uniform()


class TestPrioritized(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return sw.Prioritized(alpha=0.7, beta=0.5)


class TestRankPrioritized(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return sw.RankPrioritized()


class TestFifo(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return sw.Fifo()

    def expected_draw(self, there: list[int], n: int) -> list[int]:
        return [there[i % len(there)] for i in range(n)]


class TestLifo(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return sw.Lifo()

    def expected_draw(self, there: list[int], n: int) -> list[int]:
        return [there[-1 - i % len(there)] for i in range(n)]


class TestMixture(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return sw.Mixture([(2, sw.Uniform()), (1, sw.Prioritized()), (1, sw.Fifo())])


class TestToy(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return Plain()


def test_a_toy_is_part_of_a_mixture_and_of_its_checkpoint(tmp_path: Path) -> None:
    def view_of(store: sw.Store) -> Any:
        return store.transitions(sampler=sw.Mixture([(1, Plain()), (1, sw.Uniform())]))

    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=100, segment_steps=8)
    view = view_of(store)
    for k in range(50):
        store.append(obs=k, action=k, reward=0.0, terminated=True, truncated=False)
    view.update_priorities(view.sampleable_ids(), np.arange(50.0))
    store.checkpoint(tmp_path)
    again = view_of(sw.Store.open(tmp_path))
    for _ in range(3):
        np.testing.assert_array_equal(view.sample(16).ids, again.sample(16).ids)
