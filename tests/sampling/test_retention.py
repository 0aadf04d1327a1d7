"""What leaves: a reservoir holds every segment equally often, LowestPriority lets the least go; no hole is bridged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.native.untouched import HUGE_PAGE
from sharpwave.sampling.retention import Newcomer
from tests.sampling.test_samplers import append, chi_square, chi_square_bound
from tests.store.letters import append_numbered, letter_store
from tests.support.examples import every_two, examples
from tests.support.oracle import Oracle, Stacking, assert_same_transition


def number_store(retention: Any, capacity: int | None, segment_steps: int = 1, **kwargs: Any) -> sw.Store:
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    return sw.Store(spec, capacity=capacity, segment_steps=segment_steps, retention=retention, **kwargs)


def append_going_on(store: sw.Store, count: int) -> None:
    """Steps of one long episode: each segment has its full length."""
    for _ in range(count):
        k = store.total_steps
        store.append(obs=k, action=k, reward=0.0, terminated=False, truncated=False)


def held(store: sw.Store) -> list[int]:
    """Numbers of the steps that are held."""
    replay = store.transitions()
    return sorted(replay.fetch(replay.sampleable_ids()).action.tolist()) if len(replay) else []


# trap 7: k of n


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "n", "lanes"),
    [
        (3, 4, 1),
        pytest.param(4, 12, 2, marks=pytest.mark.nightly),
        pytest.param(4, 12, 1, marks=pytest.mark.nightly),
        pytest.param(7, 40, 1, marks=pytest.mark.nightly),
        pytest.param(3, 4, 2, marks=pytest.mark.nightly),
    ],
)
def test_trap_07_a_reservoir_holds_each_of_n_segments_with_probability_k_of_n(k: int, n: int, lanes: int) -> None:
    """Segments of one step; the newest step of each lane lies in its open segment, so n + lanes are appended.

    What is one too many or too few shows where n is small; what age does in the long run needs fewer stores. One false
    alarm in a million seeds.
    """
    runs = 700 if n < 20 else 400
    counts = np.zeros(n)
    for seed in range(runs):
        with number_store(sw.Reservoir(seed), capacity=k + lanes) as store:
            for step in range(n + lanes):
                store.append(lane=step % lanes, obs=step, action=step, reward=0.0, terminated=True, truncated=False)
            now = held(store)
            assert now[-lanes:] == list(range(n, n + lanes))
            assert len(now) == k + lanes if lanes == 1 else len(now) <= k + lanes
            counts[now[:-lanes]] += 1
    share = counts.sum() / n  # k / n of the runs, less where lanes leave room
    assert share == pytest.approx(runs * k / n) if lanes == 1 else share > runs * (k - 1) / n
    # inclusions in one run are negatively correlated: with the factor (n - 1) / (n - k) this is chi-square of n - 1
    kept = share / runs
    statistic = chi_square(counts, np.full(n, share)) / (1 - kept) * (n - 1) / n
    assert statistic < chi_square_bound(n)
    if lanes == 1:
        assert statistic > 0


@pytest.mark.slow
def test_trap_07_at_exactly_k_all_are_held_and_one_leaves_at_k_plus_1() -> None:
    left = np.zeros(5)
    runs = examples(1000)
    for seed in range(runs):
        with number_store(sw.Reservoir(seed), capacity=5) as store:
            append(store, 5)  # 4 sealed, and one open
            assert held(store) == [0, 1, 2, 3, 4]
            append(store, 1)
            now = held(store)
            assert len(now) == 5 and now[-1] == 5
            (gone,) = set(range(5)) - set(now)
            left[gone] += 1
            assert store.stats()["evicted_segments"] == 1
    assert chi_square(left, np.full(5, runs / 5)) < chi_square_bound(5)


def made_room(reservoir: sw.Reservoir, here: set[int], newcomer: Newcomer, most: int) -> bool:
    """Evict until there is room for one more; False if the newcomer is not kept."""
    while len(reservoir) >= most:
        slot = reservoir.choose(newcomer, lambda slots: None)
        if slot == newcomer.slot:
            return False
        here.remove(slot)
    return True


def test_trap_07_the_probability_is_the_same_for_all_when_room_comes_and_goes() -> None:
    """Open segments take room at times: a reservoir that fills up again with whatever comes next would favour that."""
    counts = np.zeros(13)
    for seed in range(3000):
        reservoir = sw.Reservoir(seed)
        here: set[int] = set()
        for slot in range(13):
            most = 3 if slot % 2 else 5
            if reservoir.admits(slot) and made_room(reservoir, here, Newcomer(slot, slot), most):
                reservoir.add(slot, slot)
                here.add(slot)
            while len(reservoir) > most:
                here.remove(reservoir.choose(None, lambda slots: None))
            if slot in (4, 7, 10) and reservoir.admits(99 + slot):  # one that cannot be sealed after all
                if slot == 7:
                    reservoir.add(99, 99 + slot)
                    reservoir.discard(99)
                else:
                    made_room(reservoir, here, Newcomer(99, 99 + slot), most)
            assert len(reservoir) == len(here)
        counts[list(here)] += 1
    share = counts.sum() / 13
    assert chi_square(counts, np.full(13, share)) < chi_square_bound(12)


@pytest.mark.slow
def test_trap_07_uniform_sampling_of_a_reservoir_sees_every_age() -> None:
    """Segments of several steps: sampled steps are spread over all that was ever appended."""
    ages = np.zeros(10)
    for seed in range(60):
        with number_store(sw.Reservoir(seed), capacity=64, segment_steps=4) as store:
            append(store, 1000)
            ages += np.bincount(np.array([k for k in held(store) if k < 996]) // 100, minlength=10)
    assert (ages > 0.7 * ages.mean()).all() and (ages < 1.3 * ages.mean()).all()


def test_the_same_seed_keeps_the_same_and_stores_do_not_share_a_retention() -> None:
    retention = sw.Reservoir(5)
    kept = []
    for one in (retention, retention, sw.Reservoir(5), sw.Reservoir(6)):
        with number_store(one, capacity=20, segment_steps=2) as store:
            append(store, 300)
            kept.append(held(store))
    assert kept[0] == kept[1] == kept[2] != kept[3]


# lowest priority


def set_by_number(replay: Any, priority: Any) -> None:
    ids = replay.sampleable_ids()
    replay.update_priorities(ids, np.array([priority(k) for k in replay.fetch(ids).action.tolist()]))


@pytest.mark.parametrize("segment_steps", [1, 2, 3, 8])
def test_the_segment_of_the_lowest_mean_priority_leaves(segment_steps: int) -> None:
    with number_store(sw.LowestPriority(), capacity=10 * segment_steps, segment_steps=segment_steps) as store:
        replay = store.transitions(sampler=sw.Prioritized(alpha=1.0))
        append_going_on(store, 10 * segment_steps)  # 9 sealed, one open and full
        # the last segment comes last: its newest step cannot be told its priority yet
        order = np.append(np.random.default_rng(segment_steps).permutation(9), 9)
        set_by_number(replay, lambda k: 10.0 + float(order[k // segment_steps]))
        here = set(range(10))
        for lowest in range(5):
            append_going_on(store, segment_steps)  # they come with the largest priority
            here.discard(int(np.flatnonzero(order == lowest)[0]))
            old = {k // segment_steps for k in held(store)} & set(range(10))
            assert old == here


def test_without_priorities_the_oldest_leaves_and_equal_ones_go_by_age() -> None:
    for views in (0, 1):
        with number_store(sw.LowestPriority(), capacity=12, segment_steps=2) as store:
            kept = [store.transitions(sampler=sw.Prioritized()) for _ in range(views)]
            append(store, 41)
            assert held(store) == list(range(41 - len(store), 41)) and len(kept) == views


def test_used_up_steps_leave_first() -> None:
    with number_store(sw.LowestPriority(), capacity=12, segment_steps=2) as store:
        replay = store.transitions(sampler=sw.Prioritized(), max_times_sampled=1)
        append(store, 12)
        ids = replay.sampleable_ids()
        numbers = replay.fetch(ids).action
        replay.update_priorities(ids, np.where((numbers == 4) | (numbers == 5), 1e6, 1.0))
        assert set(replay.sample(2).action.tolist()) == {4, 5}
        append(store, 1)
        assert held(store) == [0, 1, 2, 3, *range(6, 13)]


# holes


@pytest.mark.parametrize(("n_step", "segment_steps"), every_two([1, 2, 3, 5, 9], [1, 2, 5]))
def test_no_return_bridges_a_hole(n_step: int, segment_steps: int) -> None:
    """Traps 1, 2, 5: each segment in turn leaves, last or first or from the middle, seen by the view before or not."""
    for asked in (True, False):
        for seed in range(examples(4, most=40)):
            most = None if seed % 2 else 3
            oracle = Oracle(Stacking(3))
            with letter_store(3, capacity=24, segment_steps=segment_steps, retention=sw.Reservoir(seed)) as store:
                single = store.transitions(gamma=0.5)
                replay = store.transitions(n_step=n_step, gamma=0.5, max_times_sampled=most)
                for k in range(60):
                    append_numbered(store, oracle, end="|" if k % 17 == 16 else "." if k % 23 == 22 else "")
                    here = set(single.fetch(single.sampleable_ids())["serial"].tolist()) if len(single) else set()
                    if not asked and k < 59:
                        continue
                    expected = oracle.sampleable(n_step, held=here)
                    ids = replay.sampleable_ids()
                    assert len(ids) == len(replay) == len(expected)
                    if not len(ids):
                        continue
                    batch = replay.fetch(ids)
                    assert set(batch["serial"].tolist()) == expected
                    for i, serial in enumerate(batch["serial"].tolist()):
                        assert_same_transition(batch, i, oracle.transition(serial, n_step, 0.5))


@pytest.mark.parametrize("sampler", [sw.Uniform, sw.Prioritized, sw.RankPrioritized, sw.Fifo, sw.Lifo])
def test_a_step_that_lost_its_return_is_not_drawn_and_an_update_does_not_bring_it_back(sampler: Any) -> None:
    with number_store(sw.Reservoir(3), capacity=40, segment_steps=2) as store:
        replay = store.transitions(n_step=4, sampler=sampler())
        early = np.empty(0, np.int64)
        for k in range(200):
            store.append(obs=k, action=k, reward=0.0, terminated=False, truncated=False)
            now = replay.sampleable_ids()
            lost = np.setdiff1d(early, now)
            assert replay.update_priorities(lost, np.full(len(lost), 1e3)) == len(lost)
            early = np.union1d(early, now)
            if len(now):
                assert set(replay.sample(25).ids.tolist()) <= set(now.tolist())


# memory


@pytest.mark.parametrize(
    ("retention", "limit"),
    [
        pytest.param(sw.Reservoir(1), "capacity", id="reservoir-capacity"),
        pytest.param(sw.LowestPriority(), "ram", id="lowest-ram"),
        pytest.param(sw.Reservoir(1), "ram", id="reservoir-ram", marks=pytest.mark.nightly),
        pytest.param(sw.LowestPriority(), "capacity", id="lowest-capacity", marks=pytest.mark.nightly),
    ],
)
def test_memory_that_segments_leave_in_any_order_is_used_again(retention: Any, limit: str) -> None:
    """What is left between segments is closed up: at most twice what is used stays committed, and ram= is filled."""
    spec = sw.Spec(obs=sw.Field((40, 40), "uint8", stack=2), action=sw.Field((), "int64"))
    frame = np.zeros((40, 40), np.uint8)
    rng = np.random.default_rng(0)
    limits: dict[str, Any] = {"capacity": 12_000} if limit == "capacity" else {"ram": "4MiB"}
    steps = 26_000 if limit == "capacity" else 40_000
    with sw.Store(spec, **limits, segment_steps=16, codec="delta", retention=retention) as store:
        replay = store.transitions(sampler=sw.Prioritized())
        for k in range(steps):
            frame[:] = 0
            frame.reshape(-1)[rng.integers(0, 1600, 12)] = k % 250 + 1
            store.append(obs=frame, action=k, reward=0.0, terminated=False, truncated=False)
            if k % 500 == 499:
                batch = replay.sample(64 if k < steps // 2 else 256)  # the batches' memory comes out of ram=
                assert (batch.obs[:, -1].max(axis=(1, 2)) == batch.action % 250 + 1).all()
                replay.update_priorities(batch.ids, rng.random(len(batch)))
                assert limit == "capacity" or store.stats()["total_bytes"] <= 4 << 20
                del batch  # two of them are more than batches may take
        stats = store.stats()
        taken = stats["bytes"]
        assert stats["evicted_steps"] > 10_000
        free = taken["arena_free"] - (HUGE_PAGE if limit == "capacity" else 0)  # the last one, which is taken whole
        assert free <= taken["arena_used"] * (1.0 if limit == "capacity" else 0.1), taken
        batch = replay.fetch(rng.permutation(replay.sampleable_ids())[:200])
        assert (batch.obs[:, -1].max(axis=(1, 2)) == batch.action % 250 + 1).all()


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True])
def test_a_seed_that_makes_no_sense(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed="):
        sw.Reservoir(seed)
