"""The order of a batch's items says nothing: any part of it is like a smaller batch.

Each test would find a batch that is sorted by age, by rank, or by which part of a mixture drew it. Seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.sampling.test_samplers import chi_square, chi_square_bound

STEPS = 4096
PARTS, SIZE = 20, 256


def priority(k: Any) -> Any:
    return 1.0 + 9.0 * np.asarray(k) / STEPS


def filled(sampler: Any, **view: Any) -> tuple[sw.Store, Any]:
    """Steps that are each an episode; priorities grow with the step's number."""
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=2 * STEPS, segment_steps=64, seed=5)
    replay = store.transitions(sampler=sampler, **view)
    for k in range(STEPS):
        store.append(obs=k, action=k, reward=0.0, terminated=True, truncated=False)
    everything = replay.fetch(replay.sampleable_ids())
    replay.update_priorities(everything, priority(everything.action))
    return store, replay


SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": sw.Uniform,
    "prioritized": lambda: sw.Prioritized(alpha=1.0),
    "rank": lambda: sw.RankPrioritized(alpha=0.5),
    "mixture": lambda: sw.Mixture([(0.5, sw.Prioritized(alpha=1.0)), (0.25, sw.Uniform()), (0.25, sw.Fifo())]),
}
SETTINGS: dict[str, dict[str, Any]] = {"any times": {}, "twice": {"max_times_sampled": 2}}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_mini_batch_sees_the_whole_memory(sampler: str, settings: str) -> None:
    store, replay = filled(SAMPLERS[sampler](), **SETTINGS[settings])
    with store:
        rounds = 1 if settings == "twice" else 4
        batches = [replay.sample(PARTS * SIZE) for _ in range(rounds)]
        for batch in batches:
            ages = batch.action.reshape(PARTS, SIZE).astype(np.float64)
            # Means of 256 drawn without replacement from the batch: 5 deviations, one false alarm in a million.
            most = 5 * ages.std() / np.sqrt(SIZE)
            assert np.abs(ages.mean(axis=1) - ages.mean()).max() < most
            weights = batch.weights.reshape(PARTS, SIZE).astype(np.float64)
            assert np.abs(weights.mean(axis=1) - weights.mean()).max() <= 5 * weights.std() / np.sqrt(SIZE) + 1e-6


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_age_is_independent_of_the_place_in_the_batch(sampler: str) -> None:
    """Chi-square of places in the batch (8) against ages (8), over many batches of 32."""
    store, replay = filled(SAMPLERS[sampler]())
    with store:
        table = np.zeros((8, 8))
        for _ in range(1000):
            age = replay.sample(32).action * 8 // STEPS
            np.add.at(table, (np.arange(32) // 4, age), 1)
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        assert chi_square(table, expected) < chi_square_bound(7 * 7 + 1)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "rank"])
def test_neighbours_in_a_batch_are_no_neighbours_in_the_memory(sampler: str) -> None:
    store, replay = filled(SAMPLERS[sampler]())
    with store:
        ages = np.concatenate([replay.sample(64).action for _ in range(200)]).reshape(200, 64).astype(np.float64)
        left, right = ages[:, :-1].ravel(), ages[:, 1:].ravel()
        assert abs(np.corrcoef(left, right)[0, 1]) < 5 / np.sqrt(left.size)


def test_items_stay_together() -> None:
    """Ids, probabilities and weights are those of the step beside them, whatever the order."""
    store, replay = filled(sw.Prioritized(alpha=1.0, beta=1.0))
    with store:
        batch = replay.sample(512)
        expected = (priority(batch.action) + 1e-6) / (priority(np.arange(STEPS)) + 1e-6).sum()
        np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)
        np.testing.assert_allclose(batch.weights, expected.min() / expected, rtol=1e-5)
        assert replay.fetch(batch.ids).action.tolist() == batch.action.tolist()


def test_what_is_sampled_stays_stratified() -> None:
    """One from each of n equal ranges, whatever the order."""
    store, replay = filled(sw.Uniform())
    with store:
        for _ in range(20):
            batch = replay.sample(64)
            assert sorted((batch.action * 64 // STEPS).tolist()) == list(range(64))
            assert batch.action.tolist() != sorted(batch.action.tolist())


def test_fifo_and_lifo_are_orders() -> None:
    for sampler, expected in ((sw.Fifo(), range(300)), (sw.Lifo(), range(STEPS - 1, STEPS - 301, -1))):
        store, replay = filled(sampler)
        with store:
            assert replay.sample(300).action.tolist() == list(expected)
            assert next(replay.stream(300)).action.tolist() == list(expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_checkpoint_goes_on_in_the_same_order(tmp_path: Path, sampler: str, settings: str) -> None:
    store, replay = filled(SAMPLERS[sampler](), **SETTINGS[settings])
    stream = replay.stream(16, lookahead=3)
    for _ in range(3):
        replay.update_priorities(replay.sample(32), np.arange(32.0))
        next(stream)
    store.checkpoint(tmp_path / "ckpt")
    with store, sw.Store.open(tmp_path / "ckpt") as opened:
        again = opened.transitions(sampler=SAMPLERS[sampler](), **SETTINGS[settings])
        other = again.stream(16, lookahead=3)
        for _ in range(5):
            assert replay.sample(32).ids.tolist() == again.sample(32).ids.tolist()
            assert next(stream).ids.tolist() == next(other).ids.tolist()
