"""``max_times_sampled``: a step is given out so often, then never again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.views.batch_source import BatchSource
from tests.sampling.test_sampler_kinds import MAKERS
from tests.sampling.test_samplers import append, number_store


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("most", [1, 2, 5])
def test_each_step_is_given_out_exactly_so_often(kind: str, most: int) -> None:
    with number_store() as store:
        append(store, 13)
        replay = store.transitions(sampler=MAKERS[kind](), max_times_sampled=most)
        assert len(replay) == 13
        seen: Counter[int] = Counter()
        rng = np.random.default_rng(1)
        while sum(seen.values()) < 13 * most:
            size = min(int(rng.integers(1, 9)), 13 * most - sum(seen.values()))
            batch = replay.sample(size)
            assert np.isfinite(batch.weights).all() and (batch.probabilities > 0).all()
            seen.update(batch.action.tolist())
            assert max(seen.values()) <= most
            assert len(replay) == sum(seen[k] < most for k in range(13)) == len(replay.sampleable_ids())
        assert seen == dict.fromkeys(range(13), most)
        with pytest.raises(sw.EmptyError):
            replay.sample(1)
        append(store, 1)
        assert replay.sample(most).action.tolist() == [13] * most


@pytest.mark.parametrize("kind", MAKERS)
def test_one_batch_of_all_there_is(kind: str) -> None:
    with number_store() as store:
        append(store, 9)
        replay = store.transitions(sampler=MAKERS[kind](), max_times_sampled=3)
        with pytest.raises(sw.EmptyError, match=r"batch_size=28.*9 steps.*27 times.*max_times_sampled=3"):
            replay.sample(28)
        assert len(replay) == 9
        assert Counter(replay.sample(27).action.tolist()) == dict.fromkeys(range(9), 3)


def test_a_step_of_nearly_all_the_mass_is_given_out_no_oftener() -> None:
    with number_store() as store:
        append(store, 40)
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=1e-12), max_times_sampled=2)
        ids = replay.sampleable_ids()
        replay.update_priorities(ids, 8.0 ** np.arange(40))  # each outweighs all before it together
        seen = Counter(replay.sample(30).action.tolist())
        assert set(seen.values()) == {2} or max(seen.values()) == 2
        assert seen[39] == seen[38] == 2


def test_trap_13_an_update_does_not_bring_a_used_up_step_back() -> None:
    with number_store() as store:
        append(store, 4)
        for sampler in (sw.Prioritized(), sw.RankPrioritized(), sw.Uniform(), sw.Fifo()):
            replay = store.transitions(sampler=sampler, max_times_sampled=1)
            ids = replay.sampleable_ids()
            batch = replay.sample(3).copy()
            assert replay.update_priorities(ids, np.full(4, 9.0)) == 3
            assert len(replay) == 1
            assert set(replay.sample(1).action.tolist()) == set(range(4)) - set(batch.action.tolist())
            assert sorted(replay.fetch(ids).action.tolist()) == [0, 1, 2, 3]  # they are still in the store


@pytest.mark.parametrize("kind", MAKERS)
def test_a_sample_that_fails_gives_nothing_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with number_store() as store:
        append(store, 6)
        replay = store.transitions(sampler=MAKERS[kind](), max_times_sampled=2)
        seen = Counter(replay.sample(4).action.tolist())

        def fail(*_: Any) -> None:
            raise KeyboardInterrupt

        for size in (1, 5, 8):
            with monkeypatch.context() as patched:
                patched.setattr(BatchSource, "fill", fail)
                with pytest.raises(KeyboardInterrupt):
                    replay.sample(size)
            assert len(replay) == sum(seen[k] < 2 for k in range(6))
        seen.update(replay.sample(8).action.tolist())
        assert seen == dict.fromkeys(range(6), 2)


@given(data=st.data())
@pytest.mark.parametrize("kind", MAKERS)
def test_uses_are_counted_through_eviction(kind: str, data: st.DataObject) -> None:
    """Steps come and leave while others are used up: against a counter by the step's number."""
    most = data.draw(st.integers(1, 3), "most")
    with number_store(capacity=16, segment_steps=data.draw(st.integers(1, 5), "segment_steps")) as store:
        replay = store.transitions(sampler=MAKERS[kind](), max_times_sampled=most)
        seen: Counter[int] = Counter()
        for _ in range(data.draw(st.integers(1, 12), "rounds")):
            append(store, data.draw(st.integers(0, 7), "count"))
            held = range(store.total_steps - len(store), store.total_steps)
            left = sum(most - seen[k] for k in held)
            assert len(replay) == sum(seen[k] < most for k in held)
            size = data.draw(st.integers(1, 12), "size")
            if size > left:
                with pytest.raises(sw.EmptyError):
                    replay.sample(size)
                continue
            batch = replay.sample(size)
            seen.update(batch.action.tolist())
            assert set(batch.action.tolist()) <= set(held)
            assert max(seen.values()) <= most
            assert replay.fetch(replay.sampleable_ids()).action.tolist() == [] if left == size else True


@pytest.mark.parametrize("most", [0, -1, 1.5, "once", True])
def test_a_limit_that_makes_no_sense_is_refused(most: Any) -> None:
    with number_store() as store, pytest.raises(ValueError, match=f"max_times_sampled={most!r}"):
        store.transitions(max_times_sampled=most)
