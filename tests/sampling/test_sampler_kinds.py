"""Samplers beside uniform and proportional ones: the order of Fifo and Lifo, ranks, mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.sampling.sampler_protocol import Sampler
from tests.sampling.test_samplers import (
    append,
    chi_square,
    chi_square_bound,
    number_store,
    probabilities,
    set_priorities,
)

MAKERS: dict[str, Any] = {
    "uniform": sw.Uniform,
    "prioritized": sw.Prioritized,
    "rank": sw.RankPrioritized,
    "fifo": sw.Fifo,
    "lifo": sw.Lifo,
    "mixture": lambda: sw.Mixture([(2, sw.Uniform()), (1, sw.RankPrioritized()), (1, sw.Fifo())]),
}


# every sampler: tests/sampling/test_conformance.py has the rest


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind not in ("fifo", "lifo")])
def test_probabilities_are_how_often_a_step_is_drawn(kind: str) -> None:
    with number_store(seed=4) as store:
        append(store, 12)
        replay = store.transitions(sampler=MAKERS[kind]())
        set_priorities(replay, {k: (k * 5 % 12 + 1) / 4 for k in range(12)})
        counts, expected = np.zeros(12), np.zeros(12)
        for _ in range(3000):
            batch = replay.sample(7)
            np.add.at(counts, batch.action, 1)
            # the sum of 1/P over what was drawn estimates how many there are: this is what importance weights rest on
            np.add.at(expected, batch.action, 1 / 7 / batch.probabilities)
        assert counts.sum() == 21_000 and (counts > 0).all()
        np.testing.assert_allclose(expected / 3000, np.ones(12), atol=0.15 if kind != "mixture" else 0.25)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_sampler_serves_one_view(kind: str) -> None:
    sampler = MAKERS[kind]()
    with number_store() as store:
        store.transitions(sampler=sampler)
        with pytest.raises(ValueError, match="serves a view already"):
            store.transitions(sampler=sampler)


# the order


def test_fifo_gives_the_oldest_and_lifo_the_newest_through_eviction() -> None:
    with number_store(capacity=12, segment_steps=3) as store:
        oldest, newest = store.transitions(sampler=sw.Fifo()), store.transitions(sampler=sw.Lifo())
        for _ in range(60):
            append(store, 1)
            held = list(range(store.total_steps - len(store), store.total_steps))
            for replay, order in ((oldest, held), (newest, held[::-1])):
                batch = replay.sample(4)
                assert batch.action.tolist() == [order[i % len(order)] for i in range(4)]
                assert batch.weights.tolist() == [1.0] * 4
                np.testing.assert_allclose(batch.probabilities, 1 / min(4, len(order)))


def test_the_order_holds_across_lanes_however_seldom_the_view_is_asked() -> None:
    with number_store(capacity=64, segment_steps=4) as store:
        replay = store.transitions(sampler=sw.Fifo())
        rng = np.random.default_rng(0)
        for k in range(40):
            store.append(lane=int(rng.integers(3)), obs=k, action=k, reward=0.0, terminated=True, truncated=False)
        assert replay.sample(40).action.tolist() == list(range(40))


def test_waiting_steps_come_when_they_can_be_sampled() -> None:
    with number_store() as store:
        replay = store.transitions(n_step=3, sampler=sw.Fifo())
        for lane in (0, 1, 0, 0, 1, 0):
            k = store.total_steps
            store.append(lane=lane, obs=k, action=k, reward=0.0, terminated=False, truncated=False)
        assert replay.sample(1).action.tolist() == [0]
        store.end_episode(1, 99)
        assert replay.sample(3).action.tolist() == [0, 1, 4]
        store.end_episode(0, 99)
        assert replay.sample(6).action.tolist() == [0, 1, 4, 2, 3, 5]


def test_one_fifo_is_a_retention_and_a_sampler() -> None:
    fifo = sw.Fifo()
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=20, retention=fifo) as store:
        append(store, 30)
        assert store.transitions(sampler=fifo).sample(2).action.tolist() == [30 - len(store), 31 - len(store)]


# ranks


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_rank_probabilities_by_hand(alpha: float) -> None:
    with number_store() as store:
        append(store, 5)
        replay = store.transitions(sampler=sw.RankPrioritized(alpha=alpha))
        set_priorities(replay, {0: 0.25, 1: -7.0, 2: 1e6, 3: 0.0, 4: 3.0})  # ranks 4, 2, 1, 5, 3
        mass = np.array([4, 2, 1, 5, 3], np.float64) ** -alpha
        expected = mass / mass.sum()
        assert probabilities(replay) == pytest.approx(dict(enumerate(expected.tolist())))
        batch = replay.sample(64, beta=1.0)
        weights = 1 / expected
        np.testing.assert_allclose(batch.weights, weights[batch.action] / weights[batch.action].max(), rtol=1e-5)


def test_rank_draws_in_proportion() -> None:
    with number_store(seed=2) as store:
        append(store, 20)
        replay = store.transitions(sampler=sw.RankPrioritized())
        set_priorities(replay, {k: float(k) for k in range(20)})
        expected = np.arange(20, 0, -1.0) ** -0.7
        counts = np.zeros(20)
        for _ in range(1000):
            np.add.at(counts, replay.sample(8).action, 1)
        assert chi_square(counts, expected / expected.sum() * counts.sum()) < chi_square_bound(20)


def test_new_steps_rank_first_and_old_ranks_are_sorted_anew_in_time() -> None:
    with number_store(capacity=4000, segment_steps=16) as store:
        append(store, 1000)
        replay = store.transitions(sampler=sw.RankPrioritized(alpha=1.0))
        rng = np.random.default_rng(0)
        ids = replay.sampleable_ids()
        replay.update_priorities(ids, rng.random(1000))
        replay.sample(1)
        append(store, 2)
        first = replay.sample(2000)
        best = first.action[np.argsort(-first.probabilities, kind="stable")]
        assert set(best[:2].tolist()) >= {1001}  # before all others, though nothing was sorted
        errors = rng.random(1000)
        for some in np.array_split(rng.permutation(1000), 20):
            replay.update_priorities(ids[some], errors[some])
        ranks = np.empty(1000)
        ranks[np.argsort(-errors)] = np.arange(3, 1003)
        expected = 1 / ranks / (1 / np.arange(1, 1003)).sum()
        seen = probabilities(replay, 4000)
        for k in range(1000):
            assert seen.get(k, expected[k]) == pytest.approx(expected[k])


# mixtures


def test_a_mixtures_probabilities_by_hand() -> None:
    with number_store(seed=3) as store:
        append(store, 4)
        parts: list[tuple[float, Sampler]] = [(3, sw.Prioritized(alpha=1.0, eps=1e-12)), (1, sw.Uniform())]
        replay = store.transitions(sampler=sw.Mixture(parts, beta=0.5))
        set_priorities(replay, {0: 1.0, 1: 1.0, 2: 2.0, 3: 4.0})
        expected = 0.75 * np.array([1, 1, 2, 4]) / 8 + 0.25 / 4
        counts = np.zeros(4)
        for _ in range(2000):
            batch = replay.sample(5)
            np.testing.assert_allclose(batch.probabilities, expected[batch.action], rtol=1e-9)
            mass = batch.probabilities**-0.5
            np.testing.assert_allclose(batch.weights, mass / mass.max(), rtol=1e-5)
            np.add.at(counts, batch.action, 1)
        assert chi_square(counts, expected * counts.sum()) < chi_square_bound(4)


def test_the_newest_are_in_every_batch_of_a_mixture_that_says_so() -> None:
    with number_store() as store:
        replay = store.transitions(sampler=sw.Mixture([(0.75, sw.Uniform()), (0.25, sw.Lifo())]))
        for _ in range(30):
            append(store, 5)
            batch = replay.sample(8)
            newest = store.total_steps - 1
            assert {newest, newest - 1} <= set(batch.action.tolist())
            chosen = batch.action >= newest - 1
            np.testing.assert_allclose(batch.probabilities[chosen], 0.75 / len(store) + 0.25 / 2)
            np.testing.assert_allclose(batch.probabilities[~chosen], 0.75 / len(store))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sw.Mixture([]), "at least one"),
        (lambda: sw.Mixture([sw.Uniform()]), r"\(share, sampler\)"),  # type: ignore[list-item]
        (lambda: sw.Mixture([(0.5, sw.Uniform)]), r"\(share, sampler\)"),  # type: ignore[list-item]
        (lambda: sw.Mixture([(0.0, sw.Uniform())]), "share 0.0"),
        (lambda: sw.Mixture([(float("nan"), sw.Uniform())]), "share nan"),
        (lambda: sw.Mixture([(1, sw.Uniform())], beta=2.0), "beta=2.0"),
        (lambda: sw.Mixture([(1, (one := sw.Uniform())), (1, one)]), "twice"),
        (lambda: sw.RankPrioritized(alpha=1.5), "alpha=1.5"),
        (lambda: sw.RankPrioritized(beta=float("nan")), "beta=nan"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        make()
