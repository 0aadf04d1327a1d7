"""Full segments give way in the core as they do in Python: the same slots, bytes, choices of codecs and evictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import sharpwave as sw

from ..support.audit import audit
from ..support.examples import examples

Frames = npt.NDArray[Any]


def film(rng: np.random.Generator, shape: tuple[int, ...], count: int) -> Frames:
    """Frames of a still picture, in which a square moves, or from time to time all."""
    picture = rng.integers(0, 4, shape).astype(np.uint8) * np.uint8(40)
    made = np.repeat(picture[None], count, axis=0)
    for t in range(count):
        if rng.random() < 0.02:
            made[t:] = rng.integers(0, 255, shape, np.uint8)
        at = t % (shape[0] - 3)
        made[t, at : at + 3] = 200 + t % 2
    return made


SPECS: dict[str, tuple[Any, dict[str, sw.Field]]] = {
    "floats": (sw.Field((17,), "float32"), {}),
    "counts": (sw.Field((96,), "int16"), {}),
    "frames": (sw.Field((40, 48), "uint8", stack=2), {}),
    "large frames": (sw.Field((64, 80), "uint8", stack=3), {"cost": sw.Field((), "float32")}),
    "both": ({"eye": sw.Field((24, 24), "uint8", stack=2), "body": sw.Field((5,), "float32")}, {}),
}


class Pair:
    """Two stores of the same steps, one of which leaves nothing to the core; and what their calls returned."""

    def __init__(self, kind: str, rng: np.random.Generator, **settings: Any) -> None:
        obs, extra = SPECS[kind]
        self.spec = sw.Spec(obs=obs, action=sw.Field((3,), "int64"), **extra)
        self.rng, self.lanes = rng, int(rng.integers(1, 6))
        self.stores = [sw.Store(self.spec, seed=7, **settings) for _ in range(2)]
        long = self.stores[1]
        long._writing.appending.serves, long._log.sealing.turnover, long._log.admission.release = False, None, None
        self.films = {
            name: film(rng, field.shape, 80)
            if len(field.shape) == 2
            else np.cumsum(rng.integers(-1, 2, (80, *field.shape)), axis=0).astype(field.np_dtype)
            for name, field in self.spec.fields.items()
            if name in self.spec.obs_names
        }
        self.at = rng.integers(0, 80, self.lanes)
        self.rolled = 0
        again = self.stores[0]._writing.appending.again

        def counted(*args: Any) -> Any:
            self.rolled += 1
            return again(*args)

        self.stores[0]._writing.appending.again = counted  # type: ignore[method-assign, assignment]

    def observed(self, lanes: Frames) -> Any:
        rows = {name: frames[self.at[lanes]] for name, frames in self.films.items()}
        return rows["obs"] if self.spec.array_obs else {name.removeprefix("obs."): rows[name] for name in rows}

    def extend(self) -> None:
        rng = self.rng
        some = np.sort(rng.permutation(self.lanes)[: rng.integers(1, self.lanes + 1)])
        lanes = some if rng.random() < 0.3 else np.arange(self.lanes)
        obs, count = self.observed(lanes), len(lanes)
        ends = rng.random((2, count)) < 0.02
        self.at[lanes] = np.where(rng.random(count) < 0.01, rng.integers(0, 80, count), self.at[lanes] + 1) % 80
        after = self.observed(lanes)
        given: dict[str, Any] = (
            {"cost": rng.normal(size=count).astype(np.float32)} if "cost" in self.spec.fields else {}
        )
        if ends.any() or rng.random() < 0.2:
            given["next_obs" if rng.random() < 0.5 else "final_obs"] = after
        step = {
            "obs": obs, "action": rng.integers(0, 5, (count, 3)), "reward": rng.normal(size=count).astype(np.float32),
            "terminated": ends[0], "truncated": ends[1], "lanes": lanes, **given,
        }  # fmt: skip
        one, two = (store.extend(**step) for store in self.stores)
        np.testing.assert_array_equal(one, two)

    def each(self, call: Any) -> list[Any]:
        return [call(store) for store in self.stores]

    def check(self) -> None:
        one, two = (segments(store) for store in self.stores)
        assert one == two
        for store in self.stores:
            audit(store, [])


def segments(store: sw.Store) -> Any:
    """All that a log says of its segments, the sealed ones' bytes among it."""
    with store._lock:
        log, index = store._log, store._log.index
        used = slice(0, index.highest)
        sealed = np.flatnonzero(index.sealed[used] & (index.rows[used] > 0))
        arrays = "rows", "generation", "lane", "next", "previous", "gap", "context", "frames", "sealed", "begins"
        held = np.concatenate([sealed, log.opened.slots])
        return (
            {name: getattr(index, name)[held].tolist() for name in (*arrays, "first_step", "episode_step")},
            {slot: log.sealed.packed(slot) for slot in sealed.tolist()},
            [index.codec[:, held].tolist(), index.dictionary[:, held].tolist()],
            log.retention.order()["slots"].tolist(),
            [log.opened.shares.tolist(), log.opened.successor_known.tolist(), log.opened.watch.tolist()],
            log.inventory.oldest.tolist(),
            [log.inventory.counts[k] for k in (0, 1, 3, 4, 5)],
            [table.nbytes for table in log.tables],
            sorted(index.free.slots()),
        )


@pytest.mark.parametrize("kind", list(SPECS))
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
def test_any_calls_give_the_same_as_without_the_core(kind: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, list(SPECS).index(kind)])
    codec = str(rng.choice(["auto", "auto", "patches", "delta", "zstd", "raw"]))
    limit = int(rng.choice([40, 150, 600]))
    pair = Pair(kind, rng, capacity=limit, codec=codec, segment_steps=int(rng.integers(4, 33)))
    views: list[list[Any]] = []
    full = 0
    for turn in range(examples(500, most=500)):
        before = pair.rolled
        pair.extend()
        full += pair.rolled == before
        what = rng.integers(0, 400)
        if what < 4 and len(views) < 2:
            sampler = [sw.Uniform, sw.Prioritized][what % 2]
            name = f"view {turn}"
            views.append(pair.each(lambda store, s=sampler, n=name: store.transitions(sampler=s(), name=n, n_step=2)))
        elif what < 10 and views:
            views.pop()
        elif what < 14:
            lane, number = int(rng.integers(pair.lanes)), int(rng.integers(100))
            if lane < pair.stores[0].lanes:
                pair.each(lambda store, at=lane, n=number: store.annotate(at, {"seed": n}, episode=True))
        elif what < 18:
            now = limit + int(rng.integers(0, 100))
            pair.each(lambda store, steps=now: store.resize(capacity=steps))
        elif what == 18:
            pair.each(lambda store: store.resize(ram="64MiB"))
        elif what < 22:
            pair.each(lambda store: store.break_episode(store.lanes - 1))
        elif what == 22:
            pair.each(lambda store: store.clear())
        elif what == 23:
            pair.each(lambda store, at=turn: store.checkpoint(tmp_path / f"{at}-{pair.stores.index(store)}"))
        elif what < 60 and views and len(views[-1][0]):
            batches = [view.sample(8) for view in views[-1]]
            for part in ("ids", "weights", "reward", "action"):
                np.testing.assert_array_equal(*(batch[part] for batch in batches))
        if turn % 50 == 49:
            pair.check()
    pair.check()
    assert full > 20, "many calls are one call of the core"


def test_a_full_store_of_many_lanes_stays_in_the_core() -> None:
    """Neither sealing nor eviction needs Python, once the codecs are chosen."""
    rng = np.random.default_rng(0)
    pair = Pair("floats", rng, capacity=400, segment_steps=8)
    for _ in range(400):
        pair.extend()
    evicted, pair.rolled = pair.stores[0].stats()["evicted_segments"], 0
    for _ in range(300):
        pair.extend()
    assert pair.stores[0].stats()["evicted_segments"] > evicted + 50
    assert pair.rolled < 60, "but for trials of codecs"
    pair.check()


class Newest(sw.Fifo):
    """Retention that evicts the segment that was sealed last."""

    def choose(self, newcomer: Any, priorities: Any) -> int:
        slot = int(self.order()["slots"][-1])
        self.discard(slot)
        return slot


def test_a_retention_of_one_s_own_is_asked_what_to_evict() -> None:
    store = sw.Store(
        sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64")),
        capacity=40,
        segment_steps=5,
        retention=Newest(),
    )
    for step in range(100):
        store.append(obs=np.full(3, step, np.float32), action=0, reward=0.0, terminated=False, truncated=False)
    index = store._log.index
    assert index.first_step[: index.highest][index.rows[: index.highest] > 0].min() == 0, "the oldest is held"
