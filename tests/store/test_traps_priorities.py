"""The traps about priorities that other replay buffers fell into, by number; the others are in test_traps.py."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import sharpwave as sw
from tests.store.letters import EPS, append_numbered, id_of, letter_store, told
from tests.support.oracle import Oracle, Stacking, frame, play_all


def test_trap_13_an_update_for_a_step_that_has_left_is_counted_and_ignored() -> None:
    with letter_store(1, capacity=6, segment_steps=2) as store:
        replay = store.transitions(gamma=0.5, sampler=sw.Prioritized(alpha=1.0, beta=1.0, eps=EPS))
        oracle = Oracle(Stacking(1))
        for _ in range(4):
            append_numbered(store, oracle, end=".")
        old = replay.sampleable_ids().copy()
        for _ in range(8):
            append_numbered(store, oracle, end=".")
        now = replay.sampleable_ids()
        assert not set(old.tolist()) & set(now.tolist())  # never given to a successor
        before = replay.sample(64).copy()
        assert replay.update_priorities(old, np.full(len(old), 1000.0)) == len(old)
        assert replay.update_priorities(np.r_[old[:2], now[:1]], np.array([1000.0, 1000.0, 1.0])) == 2
        after = replay.sample(64).copy()
        assert len(replay) == len(now)
        for batch in (before, after):
            np.testing.assert_allclose(batch.probabilities, 1 / len(now), rtol=1e-6)
        # nor did the ignored priorities become what a new step starts with
        append_numbered(store, oracle, end=".")
        np.testing.assert_allclose(replay.sample(64).probabilities, 1 / len(replay), rtol=1e-6)


def test_trap_13_an_update_does_not_make_a_waiting_step_sampleable() -> None:
    with letter_store(1) as store:
        single = store.transitions(n_step=1, gamma=0.5)
        replay = store.transitions(n_step=3, gamma=0.5, sampler=sw.Prioritized())
        play_all(store, "abcde")
        assert set(told(single)) == {0, 1, 2, 3}
        assert set(told(replay)) == {0, 1}
        replay.update_priorities(single.sampleable_ids(), np.full(4, 100.0))
        assert set(told(replay)) == {0, 1}
        assert set(replay.sample(200)["serial"].tolist()) == {0, 1}
        store.end_episode(0, frame("F"))
        assert set(told(replay)) == {0, 1, 2, 3, 4}


def test_trap_14_a_step_of_next_to_no_priority_is_never_drawn_whatever_the_rounding() -> None:
    """Over 24 orders of magnitude, most of them the lowest: float32 sums would end in a zero leaf or past the last."""
    with letter_store(None, capacity=1000, segment_steps=50) as store:
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0, beta=0.0, eps=EPS), seed=3)
        for _ in range(700):
            append_numbered(store, Oracle(), end=".")
        ids = replay.sampleable_ids()
        errors = np.zeros(len(ids))
        positive = np.arange(0, 690, 7)  # the last leaves are next to nothing: a draw of u = total would fall on them
        errors[positive] = 10.0 ** np.linspace(-12, 12, len(positive))
        assert replay.update_priorities(ids, errors) == 0
        allowed = set(ids[positive].tolist())
        for _ in range(40):
            batch = replay.sample(512)
            assert set(batch.ids.tolist()) <= allowed
            assert (batch.probabilities > 0).all() and np.isfinite(batch.weights).all()


def test_trap_15_the_newest_step_can_be_drawn_and_starts_with_the_highest_priority_so_far() -> None:
    with letter_store(1) as store:
        replay = store.transitions(gamma=0.5, sampler=sw.Prioritized(alpha=0.5, beta=0.4, eps=EPS), seed=5)
        play_all(store, "a. b. c.")
        first = replay.sample(100)
        assert set(first["serial"].tolist()) == {0, 1, 2}
        np.testing.assert_allclose(first.probabilities, 1 / 3, rtol=1e-6)
        # 2.25 is not rounded to 2, and its sign does not matter; roots are 0.5, 1.5, 1
        replay.update_priorities(
            np.array([id_of(replay, s) for s in (0, 1, 2)]), np.array([0.25, -2.25, 1.0], np.float32)
        )
        play_all(store, "d.")
        batch = replay.sample(400)
        assert set(batch["serial"].tolist()) == {0, 1, 2, 3}
        roots = np.array([0.5, 1.5, 1.0, 1.5])  # alpha was applied once, to the new step's 2.25 too
        np.testing.assert_allclose(batch.probabilities, roots[batch["serial"]] / roots.sum(), rtol=1e-6)


def test_trap_15_a_repeated_id_keeps_its_last_priority() -> None:
    with letter_store(1) as store:
        replay = store.transitions(gamma=0.5, sampler=sw.Prioritized(alpha=1.0, beta=0.4, eps=EPS), seed=5)
        play_all(store, "a. b.")
        a, b = id_of(replay, 0), id_of(replay, 1)
        replay.update_priorities(np.array([a, b, a, a]), np.array([8.0, 1.0, 5.0, 3.0]))
        batch = replay.sample(64)
        np.testing.assert_allclose(batch.probabilities, np.array([0.75, 0.25])[batch["serial"]], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_trap_15_a_priority_that_is_no_number_is_refused_and_changes_nothing(bad: float) -> None:
    with letter_store(1) as store:
        replay = store.transitions(gamma=0.5, sampler=sw.Prioritized(alpha=1.0, beta=0.4, eps=EPS), seed=5)
        play_all(store, "a. b. c.")
        ids = replay.sampleable_ids().copy()
        with pytest.raises(ValueError, match=r"(?i)nan|inf|finite"):
            replay.update_priorities(ids, np.array([5.0, bad, 2.0]))
        np.testing.assert_allclose(replay.sample(32).probabilities, 1 / 3, rtol=1e-6)


def test_trap_16_priorities_go_to_explicit_ids_not_to_the_last_sample() -> None:
    with letter_store(1) as store:
        replay = store.transitions(gamma=0.5, sampler=sw.Prioritized(alpha=1.0, beta=0.4, eps=EPS), seed=5)
        assert "ids" in inspect.signature(replay.update_priorities).parameters
        play_all(store, "a. b. c. d.")
        early = replay.sample(8).copy()
        for _ in range(3):
            replay.sample(16)  # other batches are already in flight
        play_all(store, "e.")
        replay.update_priorities(early.ids, np.full(8, 3.0))
        batch = replay.sample(500)
        raised = set(early["serial"].tolist())
        priority = np.array([3.0 if s in raised else 1.0 for s in range(5)])  # e came before the update
        np.testing.assert_allclose(batch.probabilities, (priority / priority.sum())[batch["serial"]], rtol=1e-6)
