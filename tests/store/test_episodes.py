"""``Store.episodes``: what is there, in which order, and exactly what was written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.sampling import limiters
from sharpwave.views.episodes import EpisodeReader, StoredEpisode

SPEC = sw.Spec(
    obs={"state": sw.Field((3,), "float64", stack=2), "code": sw.Field((), "uint8")},
    action=sw.Field((), "int64"),
    core=sw.Field((2,), "float32", every=3),
    flag=sw.Field((2,), "bool"),
)


def episode(rng: np.random.Generator, steps: int) -> dict[str, Any]:
    return {
        "obs": {"state": rng.normal(size=(steps + 1, 3)), "code": rng.integers(0, 9, steps + 1).astype(np.uint8)},
        "action": rng.integers(0, 4, steps),
        "reward": rng.normal(size=steps).astype(np.float32),
        "terminated": bool(rng.integers(2)),
        "core": rng.normal(size=(steps, 2)).astype(np.float32),
        "flag": rng.random((steps, 2)) < 0.5,
    }


def check(one: StoredEpisode, data: dict[str, Any], skipped: int = 0) -> None:
    """Check an episode that lost its first ``skipped`` steps."""
    rows = slice(skipped, None)
    for key, values in data["obs"].items():
        assert one.obs[key].dtype == values.dtype and np.array_equal(one.obs[key], values[rows])
    for name in ("action", "reward", "flag"):
        value = one.reward if name == "reward" else one[name]
        assert value.dtype == data[name].dtype and np.array_equal(value, data[name][rows])
    steps = np.arange(len(data["action"]))
    if not skipped:
        assert np.array_equal(one["core"], data["core"][steps // 3 * 3])
    assert one.total_reward == pytest.approx(float(data["reward"][rows].astype(np.float64).sum()), abs=1e-9)
    assert one.terminated.tolist() == [False] * (one.length - 1) + [data["terminated"]]
    assert one.truncated.tolist() == [False] * (one.length - 1) + [not data["terminated"]]
    assert one.ended == ("terminated" if data["terminated"] else "truncated")


@pytest.mark.parametrize("on_disk", [False, True])
def test_every_episode_is_as_it_was_written(tmp_path: Path, on_disk: bool) -> None:
    rng = np.random.default_rng(0)
    disk = tmp_path / "store" if on_disk else None
    store = sw.Store(SPEC, capacity=100_000, ram="32MiB" if on_disk else None, disk=disk, segment_steps=8)
    written = [episode(rng, int(rng.integers(1, 40))) for _ in range(60)]
    for number, data in enumerate(written):
        store.annotate(number % 3, {"number": number}, episode=True)
        store.add_episode(lane=number % 3, **data)
    store.append(
        lane=1, obs={"state": np.ones(3), "code": 0}, action=1, reward=2.0, terminated=False, truncated=False,
        core=np.zeros(2), flag=np.zeros(2, np.bool_),
    )  # fmt: skip
    found = store.episodes()
    assert len(found) == 61 and sum(one.length for one in found) == len(store)
    *whole, going_on = sorted(found, key=lambda one: one.info.get("number", 99))
    for number, one in enumerate(whole):
        assert one.whole and one.lane == number % 3 and one.info == {"number": number}
        assert np.array_equal(one.ids, store.ids(one.lane, one.first_step + np.arange(one.length)))
        check(one, written[number])
    assert not going_on.whole and going_on.begun and going_on.ended is None
    assert going_on.obs["state"].tolist() == [[1, 1, 1]] and going_on.reward.tolist() == [2]
    if on_disk:  # what was in the open segments as well
        store.close()
        with sw.Store.open(tmp_path / "store") as again:
            for one in again.episodes():
                check(one, written[one.info["number"]])
            assert len(again.episodes()) == 60


def test_orders_and_lanes() -> None:
    rng = np.random.default_rng(1)
    store = sw.Store(SPEC, capacity=10_000)
    for number in range(30):
        store.add_episode(lane=number % 2, **episode(rng, int(rng.integers(1, 9))))
    returns = [one.total_reward for one in store.episodes(order="return")]
    assert returns == sorted(returns, reverse=True) and len(returns) == 30
    lengths = [one.length for one in store.episodes(order="length")]
    assert lengths == sorted(lengths, reverse=True)
    newest = list(store.episodes(order="newest", lanes=1))
    assert [one.first_step for one in newest] == sorted((one.first_step for one in newest), reverse=True)
    oldest = list(store.episodes(lanes=[1]))
    assert [one.first_step for one in oldest] == [one.first_step for one in newest][::-1]
    assert {one.lane for one in store.episodes(lanes=[1, 0, 1])} == {0, 1} and len(
        store.episodes(lanes=[1, 0, 1])
    ) == 30
    assert len(store.episodes()[3:7]) == 4 and store.episodes()[-1] in store.episodes()
    assert len(sw.Store(SPEC, capacity=10).episodes()) == 0
    with pytest.raises(ValueError, match="order='best', expected one of 'oldest', 'newest'"):
        store.episodes(order="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lane 2, expected one of the 2 lanes"):
        store.episodes(lanes=2)
    with pytest.raises(TypeError, match="lanes"):
        store.episodes(lanes="all")


@pytest.mark.parametrize("retention", [sw.Fifo(), sw.Reservoir()])
def test_evicted_parts_are_not_there(retention: Any) -> None:
    rng = np.random.default_rng(2)
    store = sw.Store(SPEC, capacity=200, segment_steps=8, retention=retention, seed=3)
    written = {}
    for number in range(40):
        written[number] = episode(rng, int(rng.integers(1, 30)))
        store.annotate(0, {"number": number}, episode=True)
        store.add_episode(**written[number])
    found = store.episodes()
    assert sum(one.length for one in found) == len(store) <= 200
    begins = np.cumsum([0, *(len(one["action"]) for one in written.values())])
    for one in found:
        number = int(np.searchsorted(begins, one.first_step, side="right")) - 1
        skipped, data = one.first_step - int(begins[number]), written[number]
        assert one.begun == (skipped == 0)
        assert one.whole == (one.length == len(data["action"]))
        if one.ended is not None:
            check(one, data, skipped)
        rows = slice(skipped, skipped + one.length)
        assert np.array_equal(one.action, data["action"][rows]) and one.info == {"number": number}
    assert isinstance(retention, sw.Reservoir) or sum(not one.whole for one in found) <= 1


def test_an_episode_that_was_evicted_says_so() -> None:
    rng = np.random.default_rng(4)
    store = sw.Store(SPEC, capacity=50, segment_steps=8)
    store.add_episode(**episode(rng, 20))
    first = store.episodes()[0]
    for _ in range(10):
        store.add_episode(**episode(rng, 20))
    with pytest.raises(KeyError, match="were evicted since episodes"):
        _ = first.obs
    with pytest.raises(KeyError, match="no field 'speed', expected one of"):
        store.episodes()[0]["speed"]


def test_nothing_is_decoded_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    store = sw.Store(SPEC, capacity=1000, segment_steps=8)
    store.add_episode(**episode(rng, 50))
    read: list[str] = []
    original = EpisodeReader.read

    def reading(self: EpisodeReader, name: str, *args: Any, **more: Any) -> Any:
        read.append(name)
        return original(self, name, *args, **more)

    monkeypatch.setattr(EpisodeReader, "read", reading)
    (one,) = store.episodes(order="return")
    assert one.reward.size == 50 and one.terminated.size == 50 and one.info == {}
    assert read == []
    _ = one.action
    assert read == ["action"]


@pytest.mark.parametrize("on_disk", [False, True])
def test_drop_steps_removes_an_episode_for_good(tmp_path: Path, on_disk: bool) -> None:
    rng = np.random.default_rng(6)
    disk = tmp_path / "store" if on_disk else None
    store = sw.Store(SPEC, capacity=10_000, disk=disk, segment_steps=8)
    replay = store.transitions()
    written = [episode(rng, steps) for steps in (20, 3, 40, 5)]
    for number, data in enumerate(written):
        store.annotate(0, {"number": number}, episode=True)
        store.add_episode(whole=True, **data)
    with pytest.raises(ValueError, match="share a segment; expected"):
        store.drop_steps(0, 21, 22)
    with pytest.raises(ValueError, match=r"first=23, end=63.5, expected integers"):
        store.drop_steps(0, 23, 63.5)  # type: ignore[arg-type]
    assert len(store) == 68 and replay.sample(64).obs["state"].shape[0] == 64
    assert store.drop_steps(0, 23, 63) == 40
    assert len(store) == 28 and store.drop_steps(0, 23, 63) == 0
    batch = replay.sample(256)
    assert set(np.unique(batch.step)) <= {*range(23), *range(63, 68)}
    store.add_episode(**written[2])
    expected = [0, 1, 3, 2]
    for again in range(3 if on_disk else 1):
        if again:
            store.close()
            store = sw.Store.open(tmp_path / "store")
        for one, number in zip(store.episodes(), expected, strict=True):
            check(one, written[number])


@pytest.mark.parametrize("evict", [lambda store: store.drop_steps(0, 0, 16), sw.Store.clear], ids=["drop", "clear"])
def test_an_append_that_waits_is_told_of_dropped_steps(
    monkeypatch: pytest.MonkeyPatch, evict: Callable[[sw.Store], object]
) -> None:
    """A queue has room again."""
    monkeypatch.setattr(limiters, "LOOK_S", 3600.0)  # it does not look by itself
    store = sw.Store(SPEC, capacity=10_000, segment_steps=8)
    queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(16))
    first, second = (episode(np.random.default_rng(seed), 16) for seed in (1, 2))
    store.add_episode(whole=True, **first)
    with pytest.raises(sw.LimiterTimeoutError) as caught:
        store.add_episode(whole=True, timeout=0.0, **second)
    assert not getattr(caught.value, "__notes__", [])  # nothing of it was left
    assert len(store) == 16

    def drop() -> None:
        while store.stats()["append_waits"] < 2:  # until it waits
            time.sleep(0.001)
        evict(store)

    dropping = threading.Thread(target=drop)
    dropping.start()
    store.add_episode(whole=True, timeout=3600.0, **second)
    dropping.join()
    assert len(store) == len(queue) == 16


def test_drop_steps_leaves_an_episode_under_way_alone() -> None:
    """Its open segment once lost the frames that it had by then, so that observations moved to later steps."""
    rng = np.random.default_rng(8)
    store = sw.Store(SPEC, capacity=10_000, segment_steps=32)
    store.add_episode(whole=True, **episode(rng, 20))
    store.add_episode(whole=True, **episode(rng, 20))
    data = episode(rng, 30)
    given = {name: data[name] for name in ("action", "reward", "core", "flag")}

    def append(t: int) -> None:
        obs = {name: values[t] for name, values in data["obs"].items()}
        store.append(obs=obs, terminated=False, truncated=False, **{name: values[t] for name, values in given.items()})

    for t in range(10):
        append(t)
    assert store.drop_steps(0, 0, 20) == 20
    assert store.drop_steps(0, 0, 0) == store.drop_steps(0, 100, 200) == 0
    for t in range(10, 30):
        append(t)
    under_way = store.episodes(order="newest")[0]
    assert (under_way.first_step, under_way.length, under_way.begun, under_way.ended) == (40, 30, True, None)
    for name, values in data["obs"].items():
        assert np.array_equal(under_way.obs[name], values[:30])
    for name in ("action", "flag"):
        assert np.array_equal(under_way[name], data[name])


def test_an_error_leaves_nothing_of_a_whole_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    store = sw.Store(SPEC, capacity=10_000, segment_steps=8)
    store.add_episode(whole=True, **episode(rng, 5))
    original, calls = type(store._writing)._change, 0

    def failing(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(type(store._writing), "_change", failing)
    with pytest.raises(KeyboardInterrupt):
        store.add_episode(whole=True, **episode(rng, 60))
    assert len(store) == 5 and len(store.episodes()) == 1
    last = episode(rng, 60)
    store.add_episode(whole=True, **last)
    check(store.episodes()[1], last)
