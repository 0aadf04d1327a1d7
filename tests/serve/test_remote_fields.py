"""Single fields of a cluster's batches: the same items as whole batches, and only these bytes cross the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.server import Server
from sharpwave.serve.service import Service
from sharpwave.serve.shard import Shard
from sharpwave.serve.wire import Request
from tests.serve.serving import Kind, served
from tests.support.examples import by_day
from tests.views.test_fields import parts, wanted

OBS = {"camera": sw.Field((8, 8), "uint8", stack=2), "arm": (sw.Field((3,), "float32"), sw.Field((), "int16"))}
SPEC = sw.Spec(
    obs=OBS, action={"move": sw.Field((2,), "float32"), "grip": sw.Field((), "bool")}, note=sw.Field((5,), "int64"),
    state=sw.Field((4,), "float32", every=4), words=sw.Field((None,), "int32"), task=sw.Field(str, shared=True),
)  # fmt: skip
CHOICES: list[tuple[str, ...]] = [
    (), ("reward",), ("obs",), ("action",), ("note",), ("obs.camera",), ("obs.arm.1", "action.move"), ("words",),
    ("task", "state"), ("obs.arm.0", "note"), ("next_obs", "action", "words"), ("later",), ("later", "obs.camera"),
    ("later.written",),
]  # fmt: skip
VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("transitions", {}),
    "three": ("transitions", {"n_step": 3}),
    "windows": ("sequences", {"length": 5, "burn_in": 2, "stride": 2, "n_step": 2}),
}


def play(store: sw.Store, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for step in range(steps):
        store.append(
            obs={"camera": rng.integers(0, 256, (8, 8), np.uint8), "arm": (rng.random(3), np.int16(step))},
            action={"move": rng.random(2), "grip": bool(step % 2)}, reward=step, terminated=step % 11 == 10,
            truncated=False, note=np.full(5, step), state=np.full(4, step), words=rng.integers(0, 9, step % 7),
            task=f"task {step // 11 % 3}",
        )  # fmt: skip
    store.derive("later", lambda reward: reward, ("reward",))


def equal(found: Any, expected: Any) -> bool:
    if isinstance(found, sw.Ragged):
        return all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in ("values", "offsets"))
    return bool(np.array_equal(found, expected))


def asked(name: str, fields: tuple[str, ...]) -> bool:
    """Whether a part of a whole batch is in one of ``fields``."""
    if name in ("words", "task"):
        return name in fields
    if name.startswith("later"):
        return name in fields or name.removesuffix(".written") in fields
    return wanted(name, fields)


@pytest.mark.parametrize(
    ("view", "kind", "disk"),
    [
        ("one", "unix", False), ("one", "tcp", True), ("three", "unix", True),
        ("three", "tcp", False), ("windows", "unix", True), ("windows", "tcp", False),
    ],
)  # fmt: skip
def test_a_cluster_gives_the_fields_that_a_store_gives(tmp_path: Path, view: str, kind: Kind, disk: bool) -> None:
    make, settings = VIEWS[view]
    more: dict[str, Any] = {"disk": tmp_path / "disk", "ram": 32 << 20} if disk else {}
    with served(1, tmp_path, kind, spec=SPEC, **more) as there:
        play(there.stores[0], 150, 0)
        whole = getattr(there.stores[0], make)(name="whole", **settings)
        replay = getattr(there.cluster, make)(sampler=sw.Prioritized(), **settings)
        for fields in CHOICES:
            for batch in (replay.sample(9, fields=fields), next(replay.stream(7, lookahead=1, fields=fields))):
                expected, found = parts(whole.fetch(np.asarray(batch.ids))), parts(batch)
                assert found.keys() - {"shards"} == {name for name in expected if asked(name, fields)}, fields
                for name, value in found.items():
                    if name not in ("weights", "probabilities", "shards"):
                        assert equal(value, expected[name]), (fields, name)
                replay.update_priorities(batch, np.ones((len(batch), *whole.view.error_shape)))
        batch = replay.sample(9)
        assert parts(batch).keys() - {"shards"} == parts(whole.fetch(np.asarray(batch.ids))).keys()


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_only_the_bytes_of_these_fields_travel_and_are_read_from_disk(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sw.Spec(
        obs=sw.Field((64, 64), "uint8", codec="raw"), action=sw.Field((), "int64"), note=sw.Field((8,), "int64")
    )
    replies: list[dict[str, Any]] = []
    drawn = Shard._drawn

    def noted(*given: Any) -> Any:
        replies.append(drawn(*given)[1])
        return {}, replies[-1]

    monkeypatch.setattr(Shard, "_drawn", noted)
    rng = np.random.default_rng(0)
    with sw.Store(spec, capacity=5000, disk=tmp_path / "disk", segment_steps=32) as store:
        for step in range(2000):
            obs, ended = rng.integers(0, 256, (64, 64), np.uint8), step % 50 == 49
            store.append(obs=obs, action=step, reward=1.0, terminated=ended, truncated=False, note=np.full(8, step))
    address = Address.parse(f"unix:{tmp_path / 'socket'}" if kind == "unix" else "127.0.0.1:0")
    with sw.Store.open(tmp_path / "disk", ram="32MiB") as again:
        server = Server(Shard(again), address, Security())
        with sw.Cluster.of(spec, [server.address]) as cluster:
            read, view = list[int](), cluster.transitions()
            for fields in (("reward",), ("action", "note"), ("obs",)):
                before = again.stats()["disk"]["bytes_read"]
                batch = view.sample(64, fields=fields)
                read.append(again.stats()["disk"]["bytes_read"] - before)
                assert (batch.obs is None) == (fields != ("obs",))
            assert read[0] == 0 and 0 < read[1] < read[2] / 10
        server.close()
    if kind == "tcp":
        nbytes = [sum(np.asarray(part).nbytes for part in one.values()) for one in replies]
        assert nbytes[0] < nbytes[1] < 64 * (8 + 8 * 8 + 64) and nbytes[2] > 64 * 64 * 64
    else:
        assert not any(part for one in replies for part in one)


def test_wrong_names_are_refused_as_by_a_store(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        for store in there.stores:
            play(store, 40, 0)
        local, view = there.stores[0].transitions(), there.cluster.transitions()
        for fields in ("obs", ("nothing",), (3,), ("obs.nothing",), ("later", "other")):
            for call in ("sample", "stream"):
                with pytest.raises((ValueError, TypeError)) as expected:
                    getattr(local, call)(4, fields=fields)
                with pytest.raises(type(expected.value)) as found:
                    getattr(view, call)(4, fields=fields)
                assert str(found.value) == str(expected.value)


def test_columns_of_other_clients_and_of_shards_that_lack_them(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        for store in there.stores:
            play(store, 60, 0)
            store.drop_column("later")
        view = there.cluster.transitions()
        with pytest.raises(ValueError, match="no field 'later', expected some of obs"):
            view.sample(8, fields=("later",))
        there.stores[1].derive("later", lambda reward: reward, ("reward",))
        batch = view.sample(32, fields=("later",))
        marks, late = batch.mask_of("later"), batch.shards == there.shards[1].incarnation
        assert set(batch.fields) == {"later", "later.written"}
        assert marks.any() and not marks[~late].any() and np.array_equal(batch["later"][marks], batch.reward[marks])
        there.stores[1].drop_column("later")
        assert not view.sample(32, fields=("later",)).mask_of("later").any()
        with pytest.raises(ValueError, match="no field 'later'"):
            view.sample(8, fields=("later",))
        there.cluster.add_column("later", sw.Field((2,), "float64"))
        assert view.sample(8, fields=("later",))["later"].shape == (8, 2)
        assert not view.sample(8, fields=("action",)).fields


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_batches_ahead_and_limited_uses(tmp_path: Path, kind: Kind) -> None:
    with served(2, tmp_path, kind, spec=SPEC) as there:
        for number, store in enumerate(there.stores):
            play(store, 60, number)
        view = there.cluster.transitions(sampler=sw.Uniform(), max_times_sampled=1)
        count, drawn = len(view), list[tuple[int, int]]()
        stream: Any = view.stream(6, lookahead=2, fields=("note",))
        for _ in range(4):
            batch = next(stream)
            assert batch.obs is None and (batch["note"] == batch.reward[:, None]).all()
            drawn += zip(batch.shards.tolist(), batch.ids.tolist(), strict=True)
        stream.close()
        batch = view.sample(6, fields=("note",), lookahead=1)  # what the stream had requested comes back
        drawn += zip(batch.shards.tolist(), batch.ids.tolist(), strict=True)
        while len(drawn) < count // 6 * 6:
            batch = view.sample(6, fields=("note",))
            drawn += zip(batch.shards.tolist(), batch.ids.tolist(), strict=True)
        assert len(set(drawn)) == len(drawn)
        other = there.cluster.transitions(name="other")
        for fields in (None, ("note",), ("action",), None):
            batch = other.sample(5, lookahead=2, fields=fields)
            assert (batch.obs is None) == (fields is not None) and other.asked == 2


def test_a_shard_lost_in_the_middle(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        for number, store in enumerate(there.stores):
            play(store, 60, number)
        view = there.cluster.transitions(sampler=sw.Uniform(), max_times_sampled=3)
        view.sample(16, lookahead=1, fields=("note", "words", "later"))
        there.servers[1].close()
        batch = view.sample(16, fields=("note", "words", "later"))
        assert (batch["note"] == batch.reward[:, None]).all() and len(batch["words"]) == 16
        assert np.array_equal(batch["later"][batch.mask_of("later")], batch.reward[batch.mask_of("later")])


def test_malformed_names_are_refused(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        play(there.stores[0], 40, 0)
        view = there.cluster.transitions()
        link = there.cluster.links[0]
        number = next(iter(there.shards[0].views.replays))
        for names in ("obs", [3], {"a": 1}):
            with pytest.raises(ConnectionError):
                link.call(Request.DRAW, {"view": number, "fields": names}, {"points": np.zeros(4)})
        reply = link.call(
            Request.DRAW, {"view": number, "fields": ["nothing", "action.grip"]}, {"points": np.full(4, 0.5)}
        )
        assert not any(name.startswith("rows:") for name in reply.parts) and "column:action.grip" in reply.parts
        assert len(view.sample(4)) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_processes_of_shards_send_fields_and_start_priorities(kind: Kind) -> None:
    spec = sw.Spec(
        obs=sw.Field((40,), "uint8"), action=sw.Field((), "int64"), score=sw.Field((), "float32"),
        prompt=sw.Field(str, shared=True),
    )  # fmt: skip
    with Service(Address.parse("127.0.0.1:0"), 2, None, Security(), capacity=10_000) as service:
        whole = sw.Cluster(spec, address=str(service.address))
        told = [[Address.parse(one) for one in shard] for shard in whole.where()["shards"]]
        cluster = sw.Cluster.of(spec, [next(one for one in shard if one.kind == kind) for shard in told])
        rng = np.random.default_rng(0)
        scores = rng.normal(size=(2, 300, 2)).astype(np.float32)
        for number in range(2):
            writer = cluster.writer(lanes=2, shard=number)
            for step in range(300):
                ends, obs = np.full(2, step % 20 == 19), rng.integers(0, 256, (2, 40), np.uint8)
                writer.extend(
                    obs=obs, action=[step, step], reward=np.ones(2), terminated=ends, truncated=ends & False,
                    final_obs=obs, score=scores[number, step], prompt=[f"prompt {step // 20}"] * 2,
                )  # fmt: skip
            writer.close()
        view = cluster.transitions(sampler=sw.Prioritized(alpha=1.0, eps=1e-3, by="score"))
        items = len(view)
        assert 1190 <= items <= 1200
        view.sample(8)  # each shard's first draw starts its items
        for fields in (("score", "prompt"), ("prompt",), ("score",), ("action",)):
            batch = view.sample(256, fields=fields)
            assert batch.obs is None and set(batch.fields) == set(fields) - {"action"}
            if "score" in fields:
                mass = np.abs(scores).sum() + items * 1e-3
                assert np.allclose(batch.probabilities, (np.abs(batch["score"]) + 1e-3) / mass, rtol=2e-2)
            if "prompt" in fields:
                assert batch["prompt"].strings() == [f"prompt {step // 20}" for step in batch.step.tolist()]
        cluster.close()
        whole.close()
