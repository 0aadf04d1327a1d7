"""What the caller drops costs nothing any more: views and streams."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np

import sharpwave as sw
from tests.store.test_traps import _calls


def filled(**more: object) -> sw.Store:
    spec = sw.Spec(obs=sw.Field((16,), "int32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, **({"capacity": 256, "segment_steps": 16, "seed": 1} | more))  # type: ignore[arg-type]
    for _ in range(100):
        append(store)
    return store


def append(store: sw.Store) -> None:
    k = store.total_steps
    store.append(obs=np.full(16, k, np.int32), action=k, reward=0.0, terminated=k % 7 == 6, truncated=False)


def test_an_append_does_not_ask_views_that_were_dropped() -> None:
    with filled() as store:
        kept = store.transitions()
        for _ in range(16):
            append(store)
        before = _calls(lambda: append(store))
        for k in range(500):
            view = store.transitions(sampler=sw.Fifo() if k % 2 else sw.Prioritized(), limiter=sw.MinSize(1))
            view.sample(4)
            if k % 3:
                next(view.stream(4, lookahead=1))
        del view
        gc.collect()
        for _ in range(16):
            append(store)
        assert _calls(lambda: append(store)) <= before + 20
        assert store.stats()["bytes"]["samplers"] == kept.nbytes
        for _ in range(400):
            append(store)
        assert len(kept.sample(8)) == 8


def test_a_view_that_was_dropped_holds_nobody_back() -> None:
    with filled() as store:
        view = store.transitions(limiter=sw.Queue(100), sampler=sw.Fifo(), max_times_sampled=1)
        del view
        gc.collect()
        for _ in range(300):  # more than the queue takes, and nobody reads
            append(store)
        assert store.total_steps == 400


def test_a_stream_that_was_dropped_keeps_nothing(tmp_path: Path) -> None:
    with filled(disk=tmp_path / "store", ram="8MiB") as store:
        view = store.transitions()
        view.sample(32)
        before = store.stats()["bytes"]["batches"]
        for batch in view.stream(32, lookahead=20):
            assert len(batch) == 32
            break
        segment_cache = store._log.segment_cache
        assert segment_cache is not None
        del batch
        gc.collect()
        view.sample(32)
        assert segment_cache.kept_bytes == 0 and not segment_cache._pins.any()
        assert store.stats()["bytes"]["batches"] <= before + 8192
