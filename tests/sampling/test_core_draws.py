"""Draws of the native core, and which samplers leave theirs to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpwave.arrays import Ints
from sharpwave.native import core
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.sampler_protocol import Draw, draws_by_tree
from sharpwave.sampling.sum_tree import SumTree
from sharpwave.sampling.uniform import Uniform


def test_the_core_does_not_draw_for_a_sampler_with_a_draw_of_its_own() -> None:
    class Own(Uniform):
        def draw(self, draw: Draw, rng: np.random.Generator) -> None:
            draw.items.fill(0)
            draw.probabilities.fill(1)

    class First(Prioritized):
        def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
            super().insert(groups, begins, ends)

    assert draws_by_tree(Uniform()) and draws_by_tree(Prioritized())
    assert not draws_by_tree(Own()) and not draws_by_tree(First())


def test_an_item_of_probability_0_has_no_weight() -> None:
    with pytest.raises(ValueError, match="probability 0"):
        core.importance_weights(np.array([0.5, 0.0]), 0.4, np.ones(2, np.float32))


@given(st.integers(1, 60_000), st.integers(0, 9000), st.booleans(), st.integers(0, 99))
def test_sums_of_a_tree_are_those_of_its_children(size: int, count: int, ascending: bool, seed: int) -> None:
    rng, tree = np.random.default_rng(seed), SumTree(size)
    leaves = rng.integers(0, size, count)
    tree.sums.set(np.sort(leaves) if ascending else leaves, rng.random(count))
    assert tree.sums.highest == (leaves.max() + 1 if count else 0)
    for below, above in zip(tree.starts[:0:-1].tolist(), tree.starts[-2::-1].tolist(), strict=True):
        end = tree.starts[tree.starts > below].min(initial=len(tree.nodes))
        children = tree.nodes[below:end].reshape(-1, 8)
        sums = np.zeros(len(children))
        for column in children.T:  # in order
            sums += column
        assert tree.nodes[above : above + len(sums)].tolist() == sums.tolist()


@given(
    st.integers(1, 700),
    st.integers(1, 300),
    st.sampled_from([0.0, 0.5, 0.99]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_counts_are_drawn_as_any_values(
    groups: int, n: int, empty: float, at_the_end: bool, in_any_order: bool, seed: int
) -> None:
    """Passing groups one after the other gives what descending from the root gives."""
    rng, tree, size = np.random.default_rng(seed), SumTree(groups), 100
    counts = np.where(rng.random(groups) < empty, 0, rng.integers(1, size + 1, groups)).astype(np.float64)
    counts[rng.integers(groups)] = 1.0
    tree.sums.set(np.arange(groups), counts)
    uniforms = np.full(n, np.nextafter(1, 0)) if at_the_end else rng.random(n)
    if in_any_order:  # as shards are told to draw
        core.stratify(rng.random(n), uniforms)
    leaves, values, rest = np.empty(n, np.int64), np.empty(n), np.empty(n)
    tree.sums.draw(uniforms, leaves, values, rest)
    items, probabilities, other = np.empty(n, np.int64), np.empty(n), np.empty(n)
    core.draw(core.Leaves(tree.sums, size, np.zeros(groups * size, np.uint8)), items, probabilities, other, uniforms)
    assert items.tolist() == (leaves * size + np.minimum(rest, values - 1).astype(np.int64)).tolist()
    assert other.tolist() == rest.tolist()
    assert probabilities.tolist() == [1 / counts.sum()] * n
