"""What a cluster draws: the law of all shards as one store, and the same items bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.remote_batches import divide
from tests.serve.serving import SPEC, Kind, fill, served

KINDS: list[Kind] = ["unix", "tcp"]


def test_a_batch_divided_by_hand() -> None:
    shares = divide(np.array([1.0, 0.0, 3.0]), 8, np.random.default_rng(0))
    assert [(one.shard, one.begin, one.end, one.probability) for one in shares] == [(0, 0, 2, 0.25), (2, 2, 8, 0.75)]
    for one in shares:  # stratified: one point in each equal part of the shard's own mass
        count = one.end - one.begin
        assert sorted(np.floor(one.points * count).astype(int)) == list(range(count))


def items(batch: Any) -> dict[tuple[int, int, int], int]:
    """Return where in a batch each item is, by shard, lane and step."""
    keys = zip(batch.shards.tolist(), batch.lane.tolist(), batch.step.tolist(), strict=True)
    return {key: at for at, key in enumerate(keys)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", ["transitions", "sequences"])
def test_items_are_those_of_the_store_bit_for_bit(view: str, kind: Kind, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"n_step": 3} if view == "transitions" else {"length": 5, "burn_in": 3, "stride": 2}
    with served(3, tmp_path, kind) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1 + number, 60 + 40 * number, number)
        replay = getattr(there.cluster, view)(**settings)
        seen: set[tuple[int, int, int]] = set()
        for _ in range(30):
            batch = replay.sample(50)
            shards = {shard.incarnation: store for shard, store in zip(there.shards, there.stores, strict=True)}
            for incarnation, store in shards.items():
                mine = np.flatnonzero(batch.shards == incarnation)
                expected = getattr(store, view)(**settings, name="whole").fetch(np.asarray(batch.ids)[mine])
                for name in vars(expected):
                    if name in ("weights", "probabilities", "source", "shards", "relabelled", "burn_in"):
                        continue
                    got, want = getattr(batch, name), getattr(expected, name)
                    for one in want if name == "fields" else [None]:
                        left, right = (got, want) if one is None else (got[one], want[one])
                        np.testing.assert_array_equal(left[mine], right, err_msg=name)
            seen |= items(batch).keys()
        assert len(seen) > 0.9 * len(replay)


def test_draws_follow_the_law_of_all_shards_and_stale_masses_are_accounted_for(tmp_path: Path) -> None:
    """Shards of masses that differ 25 times; their priorities change behind the learner's back between its draws."""
    with served(4, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 30 + 90 * number, number)
        replay = there.cluster.transitions(sampler=sw.Prioritized(alpha=0.7, beta=0.5))
        rng = np.random.default_rng(1)
        shards = there.shards
        views: list[Any] = [shard.views.replays[0] for shard in shards]

        def change(scale: float) -> None:
            for view in views:
                ids = view.sampleable_ids()
                view.update_priorities(ids, rng.random(len(ids)) * scale + 0.01)

        change(1.0)
        replay.refresh()
        z_sum, draws = 0.0, 0
        for _ in range(150):
            before = np.array([view.sampler.mass for view in views])
            told = np.array([one.state.mass for one in replay._of.known.values()])
            law: dict[tuple[int, int], float] = {}
            for shard, view, mass, now in zip(shards, views, told, before, strict=True):
                ids = view.sampleable_ids()
                priorities = view.sampler.probabilities(np.asarray(ids) & 0xFFFFFFFF) * now
                law |= {
                    (shard.incarnation, int(id_)): float(mass / told.sum() * priority / now)
                    for id_, priority in zip(np.asarray(ids), priorities, strict=True)
                }
            assert sum(law.values()) == pytest.approx(1)
            batch = replay.sample(64)
            keys = list(zip(batch.shards.tolist(), np.asarray(batch.ids).tolist(), strict=True))
            expected = np.array([law[key] for key in keys])
            np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)
            weights = (len(law) * expected) ** -0.5
            np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)
            # An unbiased estimate of the number of items: the mean of 1 / P.
            z_sum += float((1 / expected).mean()) / len(law) - 1
            draws += 1
            change(rng.choice([0.3, 1.0, 3.0]))  # so that what the learner knows is out of date
        assert abs(z_sum / draws) < 0.05


def test_frequencies_of_draws_by_chi_square(tmp_path: Path) -> None:
    with served(3, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 20 + 20 * number, number)
        replay = there.cluster.transitions(sampler=sw.Prioritized(alpha=1.0, beta=0.0))
        rng = np.random.default_rng(5)
        expected: dict[tuple[int, int], float] = {}
        for shard in there.shards:
            view = shard.views.replays[0]
            ids = view.sampleable_ids()
            errors = rng.random(len(ids)) + 0.1
            view.update_priorities(ids, errors)
            expected |= {
                (shard.incarnation, int(id_)): error for id_, error in zip(np.asarray(ids), errors + 1e-6, strict=True)
            }
        replay.refresh()
        total, counts, draws = sum(expected.values()), dict.fromkeys(expected, 0), 0
        for _ in range(400):
            batch = replay.sample(100)
            for key in zip(batch.shards.tolist(), np.asarray(batch.ids).tolist(), strict=True):
                counts[key] += 1
                draws += 1
        chi = sum((counts[key] - draws * p / total) ** 2 / (draws * p / total) for key, p in expected.items())
        degrees = len(expected) - 1  # stratified draws vary less, so only the upper tail counts
        assert chi < degrees + 4 * np.sqrt(2 * degrees)


def test_a_shard_that_comes_later_is_drawn_from(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        fill(there.stores[0], 1, 50, 0)
        replay = there.cluster.transitions()
        assert set(replay.sample(32).shards.tolist()) == {there.shards[0].incarnation}
        fill(there.stores[1], 1, 400, 1)
        replay.refresh()
        drawn = np.concatenate([replay.sample(32).shards for _ in range(20)])
        share = (drawn == there.shards[1].incarnation).mean()
        assert share == pytest.approx(len(there.stores[1]) / (len(there.stores[0]) + len(there.stores[1])), abs=0.03)


def test_priorities_reach_their_shards_and_those_of_a_former_life_are_stale(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 60, number)
        replay = there.cluster.transitions(sampler=sw.Prioritized(alpha=1.0))
        batch = replay.sample(40)
        assert replay.update_priorities(batch, np.full(40, 7.0)) == 0
        for shard in there.shards:
            view: Any = shard.views.replays[0]
            mine = np.asarray(batch.ids)[batch.shards == shard.incarnation]
            items = mine & 0xFFFFFFFF
            np.testing.assert_allclose(view.sampler._tree.get(items), 7.0 + 1e-6)
        former = batch.copy()
        former.shards = np.where(batch.shards == there.shards[0].incarnation, 12345, batch.shards)
        gone = int((former.shards == 12345).sum())
        assert 0 < gone < 40
        assert replay.update_priorities(former, np.ones(40)) == gone


@pytest.mark.parametrize("kind", KINDS)
def test_a_blend_of_a_cluster_and_a_store(kind: Kind, tmp_path: Path) -> None:
    with served(2, tmp_path, kind) as there, sw.Store(SPEC, capacity=1000, segment_steps=8) as demos:
        for number, store in enumerate((*there.stores, demos)):
            fill(store, 1, 80, number)
        sampler = sw.Prioritized(alpha=1.0, beta=0.5)
        views: list[Any] = [demos.transitions(), there.cluster.transitions(sampler=sampler)]
        blend: Any = sw.Blend([(1, views[0]), (3, views[1])], seed=0)
        counts = np.zeros(2)
        for _ in range(20):
            batch = blend.sample(64)
            counts += np.bincount(batch.source, minlength=2)
            for k, store in enumerate([demos, *there.stores]):
                shard = -1 if k == 0 else there.shards[k - 1].incarnation
                mine = np.flatnonzero(batch.shards == shard)
                assert ((batch.source[mine] == 0) == (k == 0)).all()
                expected = store.transitions(name="whole").fetch(np.asarray(batch.ids)[mine])
                np.testing.assert_array_equal(batch.obs[mine], expected.obs)
                np.testing.assert_array_equal(batch.reward[mine], expected.reward)
            np.testing.assert_allclose(batch.probabilities[batch.source == 0], 0.25 / len(views[0]))
        assert counts[1] / counts.sum() == pytest.approx(0.75, abs=0.04)
        assert blend.update_priorities(batch, np.full(64, 9.0)) == 0
        again = views[1].sample(64)
        at = items(batch)
        raised = [key in at and batch.source[at[key]] == 1 for key in items(again)]
        assert np.mean(raised) > 0.5  # 9 times as likely as before
        with pytest.raises(ValueError, match="differ"):
            sw.Blend([(1, views[0]), (1, there.cluster.transitions(name="far", n_step=5))])


def test_a_blend_of_a_cluster_and_a_store_goes_on_from_its_state(tmp_path: Path) -> None:
    with served(1, tmp_path) as there, sw.Store(SPEC, capacity=1000, segment_steps=8) as demos:
        for number, store in enumerate((*there.stores, demos)):
            fill(store, 1, 80, number)
        views: list[Any] = [demos.transitions(), there.cluster.transitions()]
        blend, other = (sw.Blend([(1, views[0]), (3, views[1])], seed=seed) for seed in (0, 1))
        blend.sample(16)
        other.restore(blend.state())
        batch = blend.sample(16)
        assert (batch.source == other.sample(16).source).all()
        stream = blend.stream(8, lookahead=3)
        assert len(next(stream)) == 8 and not stream.drawn, "nobody would give back what shards count as sampled"
        with pytest.raises(ValueError, match="of another blend"):
            other.update_priorities(batch, np.ones(16))
