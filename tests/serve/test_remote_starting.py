"""Priorities of a cluster's items that start from a column, against a store of the same steps and the formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.addresses import Security
from sharpwave.serve.server import Server
from sharpwave.serve.shard import Shard
from sharpwave.serve.wire import Request
from tests.serve.serving import Kind, Served, served
from tests.support.examples import by_day

SPEC = sw.Spec(
    obs=sw.Field((40,), "uint8"), action=sw.Field((), "int64"), score=sw.Field((), "float32"),
    pair=sw.Field((2,), "float32"), text=sw.Field(str),
)  # fmt: skip
EPS, ALPHA = 1e-3, 0.7
LATE = sw.Field((), "float64")


def play(stores: list[sw.Store], episodes: int, seed: int, lane: int = 0) -> None:
    """Add the same episodes of random lengths to each store."""
    rng = np.random.default_rng(seed)
    for _ in range(episodes):
        steps = int(rng.integers(3, 15))
        arrays: dict[str, Any] = {"obs": rng.integers(0, 256, (steps + 1, 40), np.uint8), "action": np.arange(steps)}
        arrays |= {name: rng.normal(size=steps).astype(np.float32) for name in ("reward", "score")}
        arrays |= {"pair": np.zeros((steps, 2)), "text": ["a"] * steps}
        for store in stores:
            store.add_episode(lane=lane, terminated=True, **arrays)


def sampler(by: str | None, alpha: float = ALPHA) -> sw.Prioritized:
    return sw.Prioritized(alpha=alpha, beta=0.5, eps=EPS, by=by)


def masses(view: Any) -> dict[int, float]:
    """Return the mass p^alpha of each item of a store's view, by id."""
    drawn = view.sample(512)
    total = view.sampler.mass
    return dict(zip(drawn.ids.tolist(), (drawn.probabilities * total).tolist(), strict=True))


def check(there: Served, view: Any, own: list[Any], first: bool = False) -> None:
    """Compare a batch with the masses of each shard's items, of stores with the same steps.

    Args:
        first: whether it is the first batch after other steps: its shares are by the shards' masses of before.
    """
    expected = [masses(one) for one in own]
    total = sum(one.sampler.mass for one in own)
    batch = view.sample(256)
    numbers = {shard.incarnation: k for k, shard in enumerate(there.shards)}
    weights, compared = [], 0
    for k, item, chance in zip(batch.shards.tolist(), batch.ids.tolist(), batch.probabilities.tolist(), strict=True):
        mass = expected[numbers[k]].get(item)
        if mass is not None and not first:
            assert chance == pytest.approx(mass / total, rel=1e-5)
            compared += 1
        weights.append((len(view) * chance) ** -0.5)
    assert first or compared > 200
    assert np.allclose(batch.weights, np.array(weights) / max(weights), rtol=1e-5)


@pytest.mark.parametrize(
    ("by", "windows", "kind"),
    [("reward", False, "unix"), ("score", True, "tcp"), ("late", False, "tcp"), ("late", True, "unix")],
)
def test_items_start_as_in_stores_with_the_same_steps(tmp_path: Path, by: str, kind: Kind, windows: bool) -> None:
    settings: dict[str, Any] = {"length": 4, "burn_in": 1, "stride": 2, "eta": 0.8} if windows else {"n_step": 2}
    make = "sequences" if windows else "transitions"
    with served(2, tmp_path, kind, spec=SPEC) as there:
        local = [sw.Store(SPEC, capacity=100_000, segment_steps=8) for _ in range(2)]
        there.cluster.add_column("late", LATE)
        for store in local:
            store.add_column("late", LATE)
        view = getattr(there.cluster, make)(sampler=sampler(by), **settings)
        own = [getattr(store, make)(sampler=sampler(by), **settings) for store in local]
        assert view.sampler.by == by
        for turn in range(3):
            for number in range(2):
                play([there.stores[number], local[number]], 3 + turn, 10 * turn + number, lane=turn % 2)
                for store in (there.stores[number], local[number]):
                    ids = store.transitions(name=f"all {turn}").sampleable_ids()
                    rng = np.random.default_rng(turn)
                    values = rng.normal(size=len(ids))
                    values[rng.random(len(ids)) < 0.2] = np.nan
                    store.write_column("late", np.sort(ids), values)
            largest = max(one.sampler.max_priority for one in own)
            for one in own:  # as shards tell each other
                one.sampler.max_priority = largest
            if not turn:
                check(there, view, own, first=True)
            view.sample(8)
            check(there, view, own, first=by == "late")
            check(there, view, own)


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_items_are_drawn_as_often_as_their_values_say(tmp_path: Path, kind: Kind) -> None:
    """Over all shards, by ``(|value| + eps)^alpha``; values that a client wrote, before the first draw."""
    with served(3, tmp_path, kind, spec=SPEC) as there:
        for number, store in enumerate(there.stores):
            play([store], 2 * number + 2, number)
        there.cluster.add_column("late", LATE)
        everything = there.cluster.transitions(name="all", sampler=sw.Fifo(), max_times_sampled=1)
        batch = everything.sample(len(everything))
        values = np.random.default_rng(0).gamma(0.5, size=len(batch)) + 0.1
        there.cluster.write_column("late", batch, values)
        view = there.cluster.transitions(sampler=sampler("late"))
        view.sample(64)  # each shard's first draw starts its items
        places = {item: k for k, item in enumerate(zip(batch.shards.tolist(), batch.ids.tolist(), strict=True))}
        chances = (values + EPS) ** ALPHA
        chances /= chances.sum()
        counts = np.zeros(len(batch))
        for _ in range(60):
            drawn = view.sample(256)
            found = [places[item] for item in zip(drawn.shards.tolist(), drawn.ids.tolist(), strict=True)]
            np.add.at(counts, found, 1)
            assert np.allclose(drawn.probabilities, chances[found], rtol=1e-5)
        expected = chances * counts.sum()
        assert ((counts - expected) ** 2 / expected).sum() < len(batch) + 5 * np.sqrt(2 * len(batch))


def test_updates_count_from_then_on_and_views_are_shared_by_their_column(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        play(there.stores, 4, 0)
        view = there.cluster.transitions(sampler=sampler("score", alpha=1.0))
        batch = view.sample(16)
        view.update_priorities(batch, np.full(16, 5.0))
        again = there.cluster.transitions(sampler=sampler("score", alpha=1.0)).sample(200)
        updated = np.isin(again.ids, batch.ids)
        ratio = again.probabilities / np.where(updated, 5 + EPS, np.abs(again["score"]) + EPS)
        assert updated.any() and not updated.all() and np.allclose(ratio, ratio[0], rtol=1e-5)
        for by in (None, "reward"):
            with pytest.raises(ValueError, match="view 'transitions' is there with other settings: sampler is"):
                there.cluster.transitions(sampler=sampler(by, alpha=1.0))
        uses = there.cluster.transitions(name="uses", sampler=sampler("score"), max_times_sampled=1)
        found = uses.sample(len(uses))
        assert len(set(found.ids.tolist())) == len(found)


def test_shards_without_the_column_get_it(tmp_path: Path) -> None:
    """Where another client added it, and a shard has begun anew since."""
    with served(2, tmp_path, spec=SPEC) as there, sw.Store(SPEC, capacity=1000) as fresh:
        for number, store in enumerate(there.stores):
            play([store], 3, number)
        there.stores[0].add_column("late", LATE)  # by a client that met one shard only
        view = there.cluster.transitions(sampler=sampler("late"))
        assert all(store.columns.keys() == {"late"} for store in there.stores)
        assert set(view.sample(8, fields=("late",)).fields) == {"late", "late.written"}
        there.servers[1].close()
        play([fresh], 3, 5)
        server = Server(Shard(fresh), there.servers[1].address, Security())
        batch = view.sample(64)
        while set(batch.shards.tolist()) == {there.shards[0].incarnation}:
            batch = view.sample(64)
        assert fresh.columns.keys() == {"late"}
        server.close()


@pytest.mark.parametrize("by", ["obs", "action", "pair", "text", "nothing", "wide", 3, ["score"]])
def test_other_columns_are_refused_as_by_a_store(tmp_path: Path, by: Any) -> None:
    with served(2, tmp_path, spec=SPEC) as there, sw.Store(SPEC, capacity=100) as local:
        for store in (local, there.cluster):
            store.add_column("late", LATE)
            store.add_column("wide", sw.Field((3,), "float32"))
        with pytest.raises((ValueError, TypeError)) as expected:
            local.transitions(sampler=sw.Prioritized(by=by))
        with pytest.raises(type(expected.value)) as found:
            there.cluster.transitions(sampler=sw.Prioritized(by=by))
        assert str(found.value) == str(expected.value)
        given = sw.Prioritized(by="late")
        with pytest.raises(ValueError, match="n_step"):
            there.cluster.transitions(sampler=given, n_step=0)
        assert given.by == "late"
        assert len(there.cluster.transitions(sampler=given)) == 0


def test_malformed_columns_of_views_are_refused(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        play(there.stores, 2, 0)
        asked = {"name": "v", "kind": "transitions", "settings": {"n_step": 1, "gamma": 0.9}, "max_times_sampled": None}
        link = there.cluster.links[0]
        for given in (
            {"sampler": {"kind": "Prioritized", "alpha": 0.6, "eps": 1e-6, "by": "absent"}},
            {"sampler": {"kind": "Prioritized", "alpha": 0.6, "eps": 1e-6, "by": ["score"]}},
            {"sampler": {"kind": "Prioritized", "by": "late"}, "column": {"name": "late", "field": 3}},
            {"sampler": {"kind": "Prioritized", "by": "late"}, "column": "late"},
            {"sampler": {"kind": "Uniform", "by": "score"}},
        ):  # fmt: skip
            with pytest.raises(ValueError, match=r"by=|column|view|sampler"):
                link.call(Request.VIEW, asked | given)
        no_name = {"sampler": {"kind": "Prioritized", "by": "late"}, "column": {"name": 3, "field": {}}}
        with pytest.raises(sw.ShardLostError, match="closed the connection"):
            link.call(Request.VIEW, asked | no_name)
        assert not there.stores[0].columns
