"""Draws of the native core beside the steps that they merge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpwave.native import core
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.protocol import Draw, draws_shuffled
from sharpwave.sampling.sum_tree import SumTree
from sharpwave.sampling.uniform import Uniform

GROUPS, GROUP_SIZE = 9, 7


def bound(kind: type[Any], rng: np.random.Generator, excluded: int) -> Any:
    sampler = kind()
    sampler.bind(GROUPS, GROUP_SIZE)
    sampler.insert(np.arange(GROUPS), np.zeros(GROUPS, np.int64), np.full(GROUPS, GROUP_SIZE))
    items = np.arange(GROUPS * GROUP_SIZE)
    sampler.update(items, rng.exponential(size=len(items)))
    if excluded:
        sampler.exclude(np.sort(rng.permutation(items)[:excluded]))
    return sampler


@pytest.mark.parametrize("kind", [Uniform, Prioritized])
@given(seed=st.integers(0, 1000), n=st.integers(1, 70), excluded=st.integers(0, 60), beta=st.floats(0, 1))
def test_a_draw_in_one_call_is_that_of_its_steps(
    kind: type[Any], seed: int, n: int, excluded: int, beta: float
) -> None:
    sampler = bound(kind, np.random.default_rng(seed), excluded)
    one, other = Draw.of(n), Draw.of(n)
    rng, another = np.random.default_rng(seed), np.random.default_rng(seed)
    sampler.draw_shuffled(one, rng, beta)
    sampler.draw(other, another)
    another.random(out=other.uniforms)
    core.shuffle(other.uniforms, other.items, other.probabilities)
    core.importance_weights(other.probabilities, beta, other.weights)
    for name in ("items", "probabilities", "weights", "uniforms"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert rng.bit_generator.state == another.bit_generator.state


def test_a_sampler_with_a_draw_of_its_own_draws_step_by_step() -> None:
    class Own(Uniform):
        def draw(self, draw: Draw, rng: np.random.Generator) -> None:
            draw.items.fill(0)
            draw.probabilities.fill(1)

    assert draws_shuffled(Uniform()) and draws_shuffled(Prioritized()) and not draws_shuffled(Own())


def test_an_item_of_probability_0_has_no_weight() -> None:
    with pytest.raises(ValueError, match="probability 0"):
        core.importance_weights(np.array([0.5, 0.0]), 0.4, np.ones(2, np.float32))


@given(st.integers(1, 60_000), st.integers(0, 9000), st.booleans(), st.integers(0, 99))
def test_sums_of_a_tree_are_those_of_its_children(size: int, count: int, ascending: bool, seed: int) -> None:
    rng, tree = np.random.default_rng(seed), SumTree(size)
    leaves = rng.integers(0, size, count)
    tree.set(np.sort(leaves) if ascending else leaves, rng.random(count))
    assert tree.sums.highest == (leaves.max() + 1 if count else 0)
    for below, above in zip(tree.starts[:0:-1].tolist(), tree.starts[-2::-1].tolist(), strict=True):
        end = tree.starts[tree.starts > below].min(initial=len(tree.nodes))
        children = tree.nodes[below:end].reshape(-1, 8)
        sums = np.zeros(len(children))
        for column in children.T:  # in order
            sums += column
        assert tree.nodes[above : above + len(sums)].tolist() == sums.tolist()
