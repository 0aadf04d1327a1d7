"""Batches of views with and without a condition, and conditions over episodes beside DuckDB.

    python benchmarks/conditions.py [--steps 1000000] [--rounds 1000] [--episodes 100000]

Medians of microseconds a batch, with and without in turn, of a million steps of which half match: sampled alone, and
after 8 steps were appended, which end an episode now and then. Then conditions over episodes of 10 steps, in memory and
on disk, beside DuckDB over a Parquet file that has a row an episode.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import runner

import sharpwave as sw

LENGTH, LANES, PUSH = 200, 8, "task = 'push'"


def filled(shape: tuple[int, ...], dtype: str, steps: int) -> tuple[sw.Store, Any]:
    """Return a store of that many steps, and the observations of an episode."""
    spec = sw.Spec(obs=sw.Field(shape, dtype, stack=4 if len(shape) == 2 else None), action=sw.Field((), "int64"))
    store, rng = sw.Store(spec, capacity=steps), np.random.default_rng(0)
    obs: Any = rng.random((LENGTH + 1, *shape)).astype(np.float32)
    if dtype == "uint8":
        obs = np.zeros((LENGTH + 1, *shape), np.uint8)
        for t in range(LENGTH + 1):  # a ball on an empty field
            obs[t, t % 80 : t % 80 + 4, t * 7 % 80 : t * 7 % 80 + 4] = 255
    action, reward = np.zeros(LENGTH, np.int64), np.ones(LENGTH)
    for k in range(steps // LENGTH):
        store.annotate(k % LANES, {"task": ("push", "pull")[k // LANES % 2]}, episode=True)
        store.add_episode(lane=k % LANES, obs=obs, action=action, reward=reward, terminated=True)
    return store, obs


def appended(store: sw.Store, obs: Any, step: int) -> None:
    """Append a step to each lane."""
    ends = np.full(LANES, step % LENGTH == LENGTH - 1)
    if step % LENGTH == 0:
        for lane in range(LANES):
            store.annotate(lane, {"task": ("push", "pull")[lane % 2]}, episode=True)
    now = np.broadcast_to(obs[step % LENGTH], (LANES, *obs.shape[1:]))
    zeros = np.zeros(LANES, np.int64)
    store.extend(obs=now, action=zeros, reward=zeros, terminated=ends, truncated=zeros > 0, final_obs=now)


def medians(calls: dict[str, Callable[[], Any]], before: Callable[[int], None], rounds: int) -> dict[str, float]:
    """Return the median of each call's microseconds, one after the other in each round."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for k in range(rounds):
        for name, call in calls.items() if k % 2 else reversed(calls.items()):
            before(k)
            began = time.perf_counter()
            call()
            took[name].append(1e6 * (time.perf_counter() - began))
    return {name: float(np.median(times)) for name, times in took.items()}


def over_episodes(count: int, rounds: int = 5) -> None:
    """Print the seconds of conditions over so many episodes."""
    import duckdb
    import pyarrow.parquet

    spec, rng = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64")), np.random.default_rng(0)
    obs, action = rng.random((11, 4)).astype(np.float32), np.zeros(10, np.int64)
    with tempfile.TemporaryDirectory(prefix="sharpwave-conditions-") as scratch:
        kept: dict[str, Any] = {"memory": {}, "disk": {"disk": f"{scratch}/store", "ram": "64MiB"}}
        stores = {name: sw.Store(spec, capacity=10 * count, **where) for name, where in kept.items()}
        for k in range(count):
            reward = rng.random(10)
            for store in stores.values():
                store.annotate(k % LANES, {"task": ("push", "pull")[k % 2], "success": k % 3 == 0}, episode=True)
                store.add_episode(lane=k % LANES, obs=obs, action=action, reward=reward, terminated=True)
        pyarrow.parquet.write_table(stores["memory"].table("episodes").read_all(), f"{scratch}/episodes.parquet")
        calls: dict[str, Callable[..., Any]] = {}
        for name, store in stores.items():
            calls[f"episodes(where=), {name}"] = store.episodes
            calls[f"transitions(where=), {name}"] = store.transitions

        def by_duckdb(where: str) -> Any:
            return duckdb.execute(f"select * from '{scratch}/episodes.parquet' where {where}").fetchall()

        calls["DuckDB, Parquet"] = by_duckdb
        conditions = ('"return" > 5', "task = 'push' and \"return\" > 5")
        took: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for name, call in calls.items():
                for where in conditions:
                    began = time.perf_counter()
                    call(where=where)
                    took.setdefault((name, where), []).append(time.perf_counter() - began)
        print(f"{f'{count:,} episodes':<34}{'facts':>10}{'annotations':>14}   seconds")
        for name in calls:
            facts, annotations = (float(np.median(took[name, where])) for where in conditions)
            print(f"{name:<34}{facts:>10.3f}{annotations:>14.3f}", flush=True)
        for store in stores.values():
            store.close()


def main() -> None:
    """Print a table."""
    parser = runner.parser(__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=100_000)
    given = parser.parse_args()
    print(f"{'':34}{'without':>10}{'where=':>10}   us a batch")
    for title, shape, dtype in (("84x84 frames", (84, 84), "uint8"), ("17 floats", (17,), "float32")):
        store, obs = filled(shape, dtype, given.steps)
        for kind in (sw.Uniform, sw.Prioritized):
            plain = store.transitions(name=f"plain {kind}", sampler=kind())
            began = time.perf_counter()
            chosen = store.transitions(name=f"where {kind}", sampler=kind(), where=PUSH)
            made = time.perf_counter() - began
            for size in (32, 256):
                views = {"without": plain, "where": chosen}
                calls: dict[str, Any] = {name: partial(view.sample, size) for name, view in views.items()}
                medians(calls, lambda k: None, 20)
                step = iter(range(1 << 30))
                for what, before in (
                    ("", lambda k: None),
                    (", 8 appended", lambda k, store=store, obs=obs, step=step: appended(store, obs, next(step))),
                ):
                    found = medians(calls, before, given.rounds)
                    label = f"{title}, {kind.__name__}, {size}{what}"
                    print(f"{label:<42}{found['without']:>10.1f}{found['where']:>10.1f}", flush=True)
            print(f"{title}, {kind.__name__}: made in {made:.2f} s, {len(chosen):,} of {len(plain):,} items")
    over_episodes(given.episodes)


if __name__ == "__main__":
    main()
