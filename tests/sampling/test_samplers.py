"""Which steps are drawn, how often, and what they weigh: against naive lists, by hand, and by counting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.sampling.sum_tree import SumTree
from tests.support.examples import examples

EPS = 1e-12  # so small that it does not show in a sum of ordinary priorities


def number_store(capacity: int = 200, segment_steps: int = 4, seed: int = 1) -> sw.Store:
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    return sw.Store(spec, capacity=capacity, segment_steps=segment_steps, seed=seed)


def append(store: sw.Store, count: int) -> None:
    """Steps that are each an episode, so that every one can be sampled; the action is the step's number."""
    for _ in range(count):
        k = store.total_steps
        store.append(obs=k, action=k, reward=0.0, terminated=True, truncated=False)


def set_priorities(replay: Any, priorities: dict[int, float]) -> None:
    """By the step's number."""
    ids = replay.sampleable_ids()
    actions = replay.fetch(ids).action.tolist()
    chosen = {action: one for action, one in zip(actions, ids.tolist(), strict=True) if action in priorities}
    assert (
        replay.update_priorities(np.array(list(chosen.values())), np.array([priorities[action] for action in chosen]))
        == 0
    )


def chi_square_bound(classes: int) -> float:
    """Some 5 standard deviations above the mean of chi-square: one false alarm in a million runs or fewer.

    Draws are stratified, which only makes the counts more even.
    """
    freedom = classes - 1
    # Wilson-Hilferty: (X / k)^(1/3) is nearly normal with mean 1 - 2 / (9 k), variance 2 / (9 k)
    return freedom * (1 - 2 / (9 * freedom) + 5 * math.sqrt(2 / (9 * freedom))) ** 3


def chi_square(counts: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


# the sum tree against a list


class NaiveTree:
    """Leaves in a list; every question is answered by adding up from the left."""

    def __init__(self, size: int) -> None:
        self.values = [0.0] * size

    def draw(self, uniforms: list[float]) -> list[tuple[int, float]]:
        total, drawn = sum(self.values), []
        for i, u in enumerate(uniforms):
            left = (i + u) / len(uniforms) * total
            for leaf, value in enumerate(self.values):
                if left < value:
                    drawn.append((leaf, left))
                    break
                left -= value
        return drawn


def drawn_from(tree: SumTree, uniforms: list[float]) -> tuple[Any, Any, Any]:
    n = len(uniforms)
    leaves, values, rest = np.empty(n, np.int64), np.empty(n), np.empty(n)
    tree.sums.draw(np.array(uniforms), leaves, values, rest)
    return leaves, values, rest


SIXTEENTHS = st.integers(0, 15).map(lambda k: k / 16)


@settings(max_examples=examples(150))
@given(data=st.data())
def test_sum_tree_is_a_list_that_is_added_up(data: st.DataObject) -> None:
    """Whole numbers and sixteenths: every sum is exact, so the answers must be equal, not close."""
    size = data.draw(st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 70, 513]), "size")
    tree, naive = SumTree(size), NaiveTree(size)
    for _ in range(data.draw(st.integers(1, 12), "operations")):
        if data.draw(st.booleans(), "run"):
            begin = data.draw(st.integers(0, size), "begin")
            end = data.draw(st.integers(begin, size), "end")
            value = float(data.draw(st.integers(0, 5), "value"))
            tree.sums.set_run(begin, end, value)
            naive.values[begin:end] = [value] * (end - begin)
        else:
            leaves = data.draw(st.lists(st.integers(0, size - 1), max_size=12), "leaves")
            values = [float(data.draw(st.integers(0, 1000), "value")) for _ in leaves]
            tree.sums.set(np.array(leaves, np.int64), np.array(values))
            for leaf, value in zip(leaves, values, strict=True):  # of repeated ones the last wins
                naive.values[leaf] = value
        assert tree.sums.total == sum(naive.values)
        np.testing.assert_array_equal(tree.get(np.arange(size)), naive.values)
        if tree.sums.total > 0:
            uniforms = data.draw(st.lists(SIXTEENTHS, min_size=1, max_size=8).filter(lambda u: len(u) in (1, 2, 4, 8)))
            expected = naive.draw(uniforms)
            got, values_drawn, rest = drawn_from(tree, uniforms)
            assert list(zip(got.tolist(), rest.tolist(), strict=True)) == expected
            assert values_drawn.tolist() == [naive.values[leaf] for leaf, _ in expected]


@settings(max_examples=examples(100))
@given(
    values=st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1e12)), min_size=1, max_size=100).filter(any),
    seed=st.integers(0, 2**32 - 1),
)
def test_trap_14_no_rounding_draws_a_leaf_of_zero_or_one_that_is_not_there(values: list[float], seed: int) -> None:
    tree = SumTree(len(values) + 5)
    tree.sums.set(np.arange(len(values)), np.array(values))
    highest = math.nextafter(1.0, 0.0)
    uniforms = [*np.random.default_rng(seed).random(20).tolist(), 0.0, highest, highest]
    for some in (uniforms, [0.0], [highest], [highest] * 7):
        leaves, drawn, rest = drawn_from(tree, some)
        assert (leaves < len(values)).all()
        assert (drawn > 0).all()
        assert drawn.tolist() == [values[leaf] for leaf in leaves]
        assert (rest >= 0).all() and (rest < drawn).all()
    assert math.isclose(tree.sums.total, math.fsum(values), rel_tol=1e-12)


def test_trap_14_u_equal_to_the_total_is_the_last_positive_leaf() -> None:
    tree = SumTree(80)
    tree.sums.set(np.array([3, 70]), np.array([0.1, 0.2]))
    leaves, _, rest = drawn_from(tree, [1.0])  # no generator gives 1.0, but (i + u) / n * total may round to the total
    assert leaves.tolist() == [70] and rest[0] < 0.2


def test_sums_do_not_drift() -> None:
    """A tree that adds differences keeps 1e17's rounding after 1e17 has gone."""
    tree = SumTree(1000)
    tree.sums.set_run(0, 1000, 0.1)
    for _ in range(50):
        tree.sums.set(np.array([500]), np.array([1e17]))
        tree.sums.set(np.array([500]), np.array([0.1]))
    assert math.isclose(tree.sums.total, 100.0, rel_tol=1e-13)


# how often


def test_uniform_draws_every_step_equally_often() -> None:
    with number_store(seed=11) as store:
        append(store, 37)
        replay = store.transitions()
        for size in (1, 5, 64):
            counts = np.zeros(37)
            for _ in range(2000 // size + 500):
                np.add.at(counts, replay.sample(size).action, 1)
            assert chi_square(counts, np.full(37, counts.sum() / 37)) < chi_square_bound(37), size


def test_uniform_stays_uniform_over_segments_of_different_lengths_and_after_eviction() -> None:
    with number_store(capacity=21, segment_steps=5, seed=3) as store:
        append(store, 58)
        replay = store.transitions()
        held = sorted(replay.fetch(replay.sampleable_ids()).action.tolist())
        assert held == list(range(58 - len(store), 58))
        counts = np.zeros(58)
        for _ in range(1500):
            np.add.at(counts, replay.sample(3).action, 1)
        assert counts[: held[0]].sum() == 0
        counts = counts[held[0] :]
        assert chi_square(counts, np.full(len(held), counts.sum() / len(held))) < chi_square_bound(len(held))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_prioritized_draws_in_proportion_to_the_power_of_the_priority(alpha: float) -> None:
    with number_store(seed=2) as store:
        append(store, 20)
        replay = store.transitions(sampler=sw.Prioritized(alpha=alpha, eps=EPS))
        priorities = np.arange(1, 21) / 4
        set_priorities(replay, dict(enumerate(priorities.tolist())))
        expected = priorities**alpha / (priorities**alpha).sum()
        for size in (1, 16):
            counts = np.zeros(20)
            for _ in range(3000 // size + 500):
                batch = replay.sample(size)
                np.testing.assert_allclose(batch.probabilities, expected[batch.action], rtol=1e-9)
                np.add.at(counts, batch.action, 1)
            assert chi_square(counts, expected * counts.sum()) < chi_square_bound(20), size


@pytest.mark.parametrize("sampler", [sw.Uniform(), sw.Prioritized()], ids=["uniform", "prioritized"])
def test_draws_are_stratified(sampler: Any) -> None:
    """N draws from N steps of one priority take one from each N-th of the sum: every step exactly once."""
    with number_store() as store:
        append(store, 32)
        replay = store.transitions(sampler=sampler)
        for rounds in (1, 3):
            assert sorted(replay.sample(32 * rounds).action.tolist()) == sorted(list(range(32)) * rounds)


def test_a_heavy_step_takes_exactly_its_strata() -> None:
    with number_store() as store:
        append(store, 8)
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=EPS))
        set_priorities(replay, {0: 8.0} | dict.fromkeys(range(1, 8), 8 / 7))
        for _ in range(20):
            zeros = (replay.sample(16).action == 0).sum()
            assert 7 <= zeros <= 9  # half of the sum; its edges may cut a stratum


# weights, by hand


def test_weights_by_hand() -> None:
    with number_store(seed=5) as store:
        append(store, 4)
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0, beta=0.5, eps=EPS))
        set_priorities(replay, {0: 1.0, 1: 4.0, 2: 9.0, 3: 2.0})  # P = 1/16, 4/16, 9/16, 2/16
        # N P = 1/4, 1, 9/4, 1/2; to the power -1/2: 2, 1, 2/3, sqrt 2
        by_hand = np.array([2.0, 1.0, 2 / 3, math.sqrt(2)])
        seen = set()
        for _ in range(60):
            batch = replay.sample(3)
            assert batch.weights.dtype == np.float32
            expected = by_hand[batch.action] / by_hand[batch.action].max()  # the largest of this batch, not of all
            np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)
            seen.add(bool((batch.action == 0).any()))
        assert seen == {False, True}


def test_beta_of_a_sample_overrides_the_samplers() -> None:
    with number_store(seed=5) as store:
        append(store, 2)
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0, beta=0.5, eps=EPS))
        set_priorities(replay, {0: 1.0, 1: 4.0})
        # 5 strata of a sum of 5: one draw of step 0, four of step 1
        for beta, expected in ((None, 0.5), (0.0, 1.0), (1.0, 0.25), (0.5, 0.5)):
            batch = replay.sample(5, beta=beta)
            assert batch.action.tolist().count(0) == 1
            np.testing.assert_allclose(batch.weights[batch.action == 0], 1.0)
            np.testing.assert_allclose(batch.weights[batch.action == 1], expected, rtol=1e-6)


def test_uniform_weighs_everything_one() -> None:
    with number_store() as store:
        append(store, 10)
        batch = store.transitions().sample(6)
        assert batch.weights.dtype == np.float32 and batch.weights.tolist() == [1.0] * 6
        assert batch.probabilities.dtype == np.float64 and batch.probabilities.tolist() == [0.1] * 6


# priorities


def probabilities(replay: Any, draws: int = 600) -> dict[int, float]:
    batch = replay.sample(draws)
    return dict(zip(batch.action.tolist(), batch.probabilities.tolist(), strict=True))


def test_the_first_priority_is_one_and_alpha_is_applied_once() -> None:
    with number_store() as store:
        append(store, 2)
        replay = store.transitions(sampler=sw.Prioritized(alpha=0.5, eps=EPS))
        set_priorities(replay, {0: 0.0625})  # root 1/4, beside the default's root 1
        assert probabilities(replay) == pytest.approx({0: 0.2, 1: 0.8}, rel=1e-6)
        append(store, 1)  # the largest so far is still the first 1
        assert probabilities(replay) == pytest.approx({0: 1 / 9, 1: 4 / 9, 2: 4 / 9}, rel=1e-6)


def test_the_largest_priority_stays_when_its_step_is_lowered_or_leaves() -> None:
    with number_store(capacity=8, segment_steps=2) as store:
        append(store, 3)
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=EPS))
        set_priorities(replay, {1: 6.5})
        set_priorities(replay, {1: 0.5})
        append(store, 1)
        assert probabilities(replay) == pytest.approx({0: 1 / 9, 1: 0.5 / 9, 2: 1 / 9, 3: 6.5 / 9}, rel=1e-6)
        append(store, 20)
        held = probabilities(replay)
        assert 1 not in held and len(held) == len(replay)
        assert list(held.values()) == pytest.approx([1 / len(held)] * len(held), rel=1e-9)
        set_priorities(replay, {23: 13.0})
        assert probabilities(replay)[23] == pytest.approx(2 / (len(held) + 1), rel=1e-9)  # beside 6.5 each


def test_eps_is_added_to_the_error() -> None:
    with number_store() as store:
        append(store, 2)
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=0.5))
        set_priorities(replay, {0: 0.0, 1: -1.0})
        assert probabilities(replay) == pytest.approx({0: 0.25, 1: 0.75})


def test_views_have_priorities_of_their_own() -> None:
    with number_store() as store:
        append(store, 2)
        one = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=EPS))
        two = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=EPS))
        uniform = store.transitions()
        set_priorities(one, {0: 3.0, 1: 1.0})
        assert probabilities(one) == pytest.approx({0: 0.75, 1: 0.25})
        assert probabilities(two) == pytest.approx({0: 0.5, 1: 0.5})
        assert probabilities(uniform) == pytest.approx({0: 0.5, 1: 0.5})


def test_ids_of_one_view_serve_another_that_was_not_asked_anything_yet() -> None:
    with number_store() as store:
        uniform = store.transitions()
        prioritized = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=EPS))
        append(store, 2)
        ids = uniform.sampleable_ids()
        assert prioritized.update_priorities(ids, np.array([3.0, 1.0])) == 0
        by_action = dict(zip(uniform.fetch(ids).action.tolist(), [0.75, 0.25], strict=True))
        assert probabilities(prioritized) == pytest.approx(by_action)


def test_a_view_made_late_knows_what_is_there() -> None:
    with number_store(capacity=20, segment_steps=3) as store:
        append(store, 50)
        for sampler in (sw.Uniform(), sw.Prioritized()):
            replay = store.transitions(sampler=sampler)
            assert len(replay) == len(store)
            assert set(probabilities(replay)) == set(range(50 - len(store), 50))


def test_an_update_of_nothing_is_nothing() -> None:
    with number_store() as store:
        append(store, 3)
        replay = store.transitions(sampler=sw.Prioritized())
        before = probabilities(replay)
        assert replay.update_priorities(np.array([], np.int64), np.array([])) == 0
        assert replay.update_priorities([], []) == 0
        assert probabilities(replay) == before


def test_a_uniform_view_takes_updates_and_ignores_them() -> None:
    """So that an agent's loop is the same with either sampler; stale ids are counted all the same."""
    with number_store(capacity=6, segment_steps=2) as store:
        append(store, 6)
        replay = store.transitions()
        old = replay.sampleable_ids().copy()
        assert replay.update_priorities(old, np.arange(6.0)) == 0
        append(store, 6)
        assert replay.update_priorities(old, np.arange(6.0)) == 6
        assert set(replay.sample(12).probabilities.tolist()) == {1 / len(replay)}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_errors_of_any_number_type_are_taken(dtype: Any) -> None:
    with number_store() as store:
        append(store, 2)
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=EPS))
        ids = replay.sampleable_ids()
        assert replay.update_priorities(ids, np.array([3, -1], dtype)) == 0
        assert replay.update_priorities(ids.tolist(), [3, -1]) == 0
        assert sorted(probabilities(replay).values()) == pytest.approx([0.25, 0.75])
