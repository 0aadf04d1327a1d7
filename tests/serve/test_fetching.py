"""Items of a cluster by id: as each shard's own store gives them, in the order of the ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve import remote_batches
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.server import Server
from sharpwave.serve.shard import Shard
from tests.serve.serving import Kind, Served, served
from tests.serve.test_remote_fields import CHOICES, SPEC, VIEWS, equal, play
from tests.support.examples import by_day
from tests.views.test_fields import parts


def filled(there: Served, steps: int = 150) -> None:
    for seed, store in enumerate(there.stores):
        play(store, steps, seed)


def check_as_stores(there: Served, found: Any, ids: Any, shards: Any, views: list[Any], **settings: Any) -> None:
    """Compare a fetched batch with the batches of the shards' own views."""
    seen = parts(found)
    for shard, view in zip(there.shards, views, strict=True):
        places = np.flatnonzero(shards == shard.incarnation)
        expected = parts(view.fetch(np.asarray(ids)[places], **settings))
        assert seen.keys() == expected.keys() | {"shards"}
        for name, values in expected.items():
            if isinstance(values, int):
                assert seen[name] == values
            elif name == "probabilities":
                assert np.isnan(seen[name]).all() and np.isnan(values).all()
            else:
                assert equal(seen[name][places], values), (name, settings)
    assert np.array_equal(found.shards, shards)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_a_cluster_fetches_what_its_stores_fetch(
    tmp_path: Path, kind: Kind, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, settings = VIEWS[view]
    rng = np.random.default_rng(0)
    with served(2, tmp_path, kind, spec=SPEC) as there:
        filled(there)
        replay = getattr(there.cluster, make)(**settings)
        own = [getattr(store, make)(name="whole", **settings) for store in there.stores]
        batch = replay.sample(40)
        order = rng.permutation(np.arange(40).repeat(2))
        ids, shards = batch.ids[order], batch.shards[order]
        for fields in (None, *CHOICES):
            check_as_stores(there, replay.fetch(ids, shards, fields=fields), ids, shards, own, fields=fields)
        monkeypatch.setattr(remote_batches, "FETCHED_IDS", 7)  # many requests at once
        check_as_stores(there, replay.fetch(batch), batch.ids, batch.shards, own)
        assert len(replay.fetch([], [])) == 0

        there.cluster.delete(episodes=[one for one in there.cluster.episodes() if one.ended][::3])
        left = replay.fetch(ids, shards, missing="mask")
        check_as_stores(there, left, ids, shards, own, missing="mask")
        gone = ids[np.asarray(left.ids) < 0]
        assert 0 < len(gone) < len(ids)
        with pytest.raises(KeyError, match=f"fetch: id {gone[0]} was evicted"):
            replay.fetch(ids, shards)
        there.cluster.clear()
        nothing = replay.fetch(batch, missing="mask")
        assert (nothing.ids == -1).all() and not nothing.weights.any()


def shapes(batch: Any) -> dict[str, tuple[Any, ...]]:
    """Return the number of a batch's rows of each field and column, with the shape and dtype of arrays."""
    return {
        name: (len(rows), getattr(rows, "shape", None), getattr(rows, "dtype", None))
        for name, rows in batch.fields.items()
    }


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_a_batch_of_no_items_has_the_columns_of_other_clients(tmp_path: Path, kind: Kind, view: str) -> None:
    """As a store's own has them."""
    make, settings = VIEWS[view]
    with served(2, tmp_path, kind, spec=SPEC) as there, sw.Store(SPEC, capacity=5000) as near:
        filled(there)
        play(near, 150, 0)
        with sw.Cluster.of(SPEC, [str(one.address) for one in there.servers]) as other:
            for one in (other, near):
                one.add_column("adv", sw.Field((2,), "float32"))
        replay, own = (getattr(one, make)(**settings) for one in (there.cluster, near))
        batch, gone = replay.sample(12), np.full(12, 1 << 20)
        there.cluster.clear()
        for began_anew in (0, 1):  # then no shard is asked for an item
            for fields in (None, ("adv",), ("reward",)):
                found = replay.fetch(batch.ids, batch.shards + began_anew, missing="mask", fields=fields)
                assert shapes(found) == shapes(own.fetch(gone, missing="mask", fields=fields))
                assert shapes(replay.fetch([], [], fields=fields)) == shapes(own.fetch([], fields=fields))
        assert shapes(there.cluster.fetch([], [])) == shapes(near.fetch([]))


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_a_cluster_fetches_single_steps_as_its_stores(tmp_path: Path, kind: Kind) -> None:
    with served(2, tmp_path, kind, spec=SPEC) as there:
        filled(there)
        episodes = list(there.cluster.episodes())  # the newest steps, too
        ids = np.concatenate([one.ids for one in episodes])
        shards = np.concatenate([one.shards for one in episodes])
        order = np.random.default_rng(0).permutation(len(ids))
        stores: list[Any] = list(there.stores)
        for fields in (None, *(choice for choice in CHOICES if "next_obs" not in choice)):
            found = there.cluster.fetch(ids[order], shards[order], fields=fields)
            assert found.next_obs is None
            check_as_stores(there, found, ids[order], shards[order], stores, fields=fields)
        batch = there.cluster.transitions().sample(8)
        assert equal(there.cluster.fetch(batch).obs["camera"], batch.obs["camera"])
        assert len(there.cluster.fetch([], [])) == 0
        there.cluster.delete(episodes=episodes[0])
        with pytest.raises(KeyError, match="was evicted or deleted"):
            there.cluster.fetch(ids, shards)
        with pytest.raises(ValueError, match="ids alone"):
            there.cluster.fetch(np.asarray(ids))
        with pytest.raises(ValueError, match="these ids are of windows"):
            there.cluster.fetch(there.cluster.sequences(length=4).sample(4))  # type: ignore[arg-type]


def test_only_the_bytes_of_these_fields_are_read_and_sent(tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field((64, 64), "uint8", codec="raw"), action=sw.Field((), "int64"), note=sw.Field(str))
    rng = np.random.default_rng(0)
    with sw.Store(spec, capacity=5000, disk=tmp_path / "disk", segment_steps=32) as store:
        for step in range(2000):
            obs, ended = rng.integers(0, 256, (64, 64), np.uint8), step % 50 == 49
            store.append(obs=obs, action=step, reward=1.0, terminated=ended, truncated=False, note=f"{step}")
    with (
        sw.Store.open(tmp_path / "disk", ram="32MiB") as again,
        sw.StoreServer(again, "127.0.0.1:0") as server,
        sw.connect(server.address) as cluster,
    ):
        view = cluster.transitions()
        batch = view.sample(64, fields=("reward",))
        read, sent = list[int](), list[int]()
        for fields in (("reward",), ("action", "note"), ("obs",)):
            before = again.stats()["disk"]["bytes_read"], cluster.links[0].received_bytes
            found = view.fetch(batch, fields=fields)
            read.append(again.stats()["disk"]["bytes_read"] - before[0])
            sent.append(cluster.links[0].received_bytes - before[1])
            assert (found.obs is None) == (fields != ("obs",))
        assert read[0] == 0 and 0 < read[1] < read[2] / 10
        assert sent[0] < sent[1] < sent[2] / 10 and sent[2] > 64 * 64 * 64


def test_ids_of_episodes_and_of_other_clients(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        filled(there)
        addresses = [str(one.address) for one in there.servers]
        with sw.Cluster.of(SPEC, addresses) as other, sw.Cluster.of(SPEC, addresses[:1]) as part:
            views = [one.transitions(sampler=sw.Prioritized()) for one in (there.cluster, other)]
            for one in there.cluster.episodes()[:-2]:  # the last ones go on
                found = views[1].fetch(one.ids, one.shards, fields=("action", "task", "later"))
                assert np.array_equal(found.action["grip"], one.action["grip"])
                assert found["task"].strings() == one["task"].strings() and equal(found["later"], one["later"])
            batch = views[0].sample(16)
            assert equal(views[1].fetch(batch).obs["camera"], batch.obs["camera"])
            assert views[1].update_priorities(batch, np.ones(16)) == 0
            assert other.write_column("later", batch, np.full(16, 7.0)) == 16
            assert (views[0].fetch(batch)["later"] == 7).all()
            rest = part.transitions(name="part").fetch(batch, missing="mask")
            assert np.array_equal(rest.ids >= 0, batch.shards == there.shards[0].incarnation)
            windows: Any = other.sequences(length=4)
            for call in (
                lambda: windows.fetch(batch),
                lambda: windows.update_priorities(batch, np.ones((16, 4))),
            ):
                with pytest.raises(ValueError, match="these ids are of steps, expected ids of windows"):
                    call()
            episodes = there.cluster.episodes()
            assert other.delete(episodes=episodes[0]) == episodes[0].length


def test_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with served(1, tmp_path, spec=SPEC) as there, served(1, tmp_path / "other", spec=SPEC) as other:
        filled(there)
        filled(other)
        view, foreign = there.cluster.transitions(), other.cluster.transitions().sample(4)
        batch = view.sample(4)
        for given, settings, named in (
            (batch.ids, {}, "fetch: ids alone do not say"),
            (batch.ids, {"shards": [1, 2]}, "shards: got shape"),
            (batch, {"missing": "skip"}, "missing='skip'"),
            (batch, {"fields": ("nothing",)}, "no field 'nothing'"),
            (foreign, {}, "fetch: these ids are of another store"),
            (there.stores[0].transitions().sample(4), {}, "fetch: these ids are of another store|ids alone"),
        ):
            with pytest.raises(ValueError, match=named):
                view.fetch(given, **settings)
        for call in (
            lambda: view.update_priorities(foreign, np.ones(4)),
            lambda: there.cluster.write_column("later", foreign, np.ones(4)),
        ):
            with pytest.raises(ValueError, match="these ids are of another store"):
                call()


def test_a_shard_that_is_lost_or_began_anew(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        filled(there)
        view = there.cluster.transitions()
        batch = view.sample(32)
        first = batch.shards == there.shards[0].incarnation
        for link in there.cluster.links:
            link.close()
        assert equal(view.fetch(batch).reward, batch.reward), "over new connections"
        there.servers[1].close()
        found = view.fetch(batch.ids[first], batch.shards[first])
        assert equal(found.reward, batch.reward[first])
        for missing in ("raise", "mask"):
            with pytest.raises(ShardLostError):
                view.fetch(batch, missing=missing)
        again = Shard(there.stores[1], tmp_path / "1")  # the same ids, of another life
        there.servers[1] = Server(again, Address.parse(str(there.servers[1].address)), Security())
        try:
            with pytest.raises(KeyError, match="was evicted"):
                view.fetch(batch)
            assert np.array_equal(view.fetch(batch, missing="mask").ids >= 0, first)
        finally:
            there.servers[1].close()


def test_a_column_that_another_client_added_anew_with_a_dtype_that_does_not_convert(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        filled(there)
        addresses = [str(one.address) for one in there.servers]
        with sw.Cluster.of(SPEC, addresses) as other:
            other.add_column("mark", sw.Field((), "bool"))
            there.cluster.drop_column("mark")
            there.cluster.add_column("mark", sw.Field((), "float32"))
            batch = other.transitions().sample(8)
            with pytest.raises(TypeError, match="mark: got dtype"):
                other.write_column("mark", batch, np.full(8, 2j))
            assert other.write_column("mark", batch, np.full(8, 0.5, np.float32)) == 8
            assert (other.fetch(batch)["mark"] == 0.5).all()
