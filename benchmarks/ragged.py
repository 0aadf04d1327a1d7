"""Rows of any length: how fast tokens are written and drawn, and how many bytes they take, beside arrays of objects.

``python benchmarks/ragged.py [--batch 256] [--rounds 7]``: rows of 200 to 2,000 tokens below 50,000. Beside it numpy's
object arrays of int32 arrays, from which a batch's rows are joined. Rounds are interleaved; medians are printed.

Then the bytes that batches of one small field, and of all fields, read from disk; and what steps of a prompt and an
answer take where each prompt has 16 answers, in random order, with and without ``shared=True``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import sharpwave as sw

ROWS, TOKENS = 2_000, 50_000


def seconds(function: Callable[[], object], calls: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls


def bytes_read(spec: sw.Spec, steps: dict[str, Any], rows: list[Any], fields: tuple[str, ...] | None) -> int:
    """Return the bytes that batches of all steps read from disk."""
    with tempfile.TemporaryDirectory(prefix="sharpwave-ragged-") as folder:
        with sw.Store(spec, capacity=2 * ROWS, disk=folder) as store:
            store.add_episode(**steps, terminated=True, tokens=rows)
        with sw.Store.open(folder) as store:
            view = store.transitions()
            view.fetch(view.sampleable_ids(), fields=fields)
            return int(store.stats()["disk"]["bytes_read"])


ANSWERS = 16


def prompt_bytes(rows: list[Any], shared: bool, **where: Any) -> float:
    """Return the bytes of memory, or with ``disk=`` of files, of a step with one of ``rows`` as its prompt."""
    prompt, answer = sw.Field((None,), "int32", shared=shared), sw.Field((None,), "int32")
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), prompt=prompt, answer=answer)
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(rows)), ANSWERS)).tolist()
    with sw.Store(spec, capacity=2 * len(order), **where) as store:
        for at in order:
            values = {"prompt": rows[at], "answer": rows[at][:50]}
            store.append(obs=0, action=0, reward=0, terminated=True, truncated=False, **values)
        taken, disk = store.stats()["bytes"], store._log.disk
        if disk is not None:
            return float(sum(region.used for region in disk.regions.regions.values()) / len(order))
        return float(sum(taken.get(name, 0) for name in ("arena_used", "index", "shared_values")) / len(order))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, TOKENS, rng.integers(200, 2001)).astype(np.int32) for _ in range(ROWS)]
    total = sum(map(len, rows))
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), tokens=sw.Field((None,), "int32"))
    zeros = np.zeros(ROWS + 1, np.float32)
    steps: dict[str, Any] = {"obs": zeros, "action": np.zeros(ROWS, np.int64), "reward": zeros[1:]}
    stores: list[sw.Store] = []
    arrays: list[np.ndarray] = []

    def write_store() -> None:
        stores[:] = [sw.Store(spec, capacity=2 * ROWS)]
        stores[0].add_episode(**steps, terminated=True, tokens=rows)

    def write_arrays() -> None:
        arrays[:] = [np.empty(ROWS, object)]
        for i, row in enumerate(rows):
            arrays[0][i] = row.copy()

    def draw_arrays() -> tuple[np.ndarray, np.ndarray]:
        chosen = arrays[0][rng.integers(0, ROWS, given.batch)]
        return np.concatenate(chosen), np.cumsum([len(row) for row in chosen])

    times: dict[str, list[float]] = {name: [] for name in ("write", "write arrays", "draw", "draw arrays")}
    for _ in range(given.rounds):
        times["write"].append(seconds(write_store))
        times["write arrays"].append(seconds(write_arrays))
        stores[0].stats()
        view = stores[0].transitions()
        view.sample(given.batch)
        times["draw"].append(seconds(partial(view.sample, given.batch), 20))
        times["draw arrays"].append(seconds(draw_arrays, 20))
    median = {name: statistics.median(one) for name, one in times.items()}
    log = stores[0]._log
    c = log.layout.ragged_columns[0]
    sealed = np.flatnonzero(log.index.sealed[: log.index.highest])
    held = int(log.index.rows[sealed].sum())
    nbytes = log.inventory.sealed_bytes / sum(len(row) for row in rows[:held])
    assert (log.index.codec[c, sealed] == 6).all()
    mean = total / ROWS
    print(f"{ROWS:,} rows of {mean:,.0f} int32 tokens below {TOKENS:,}, batches of {given.batch}")
    print(
        f"{'':16} {'bytes a token':>14} {'rows/s written':>16} {'Mtokens/s':>10} {'rows/s drawn':>14} {'Mtokens/s':>10}"
    )
    for name, size, write, draw in (
        ("sharpwave", nbytes, "write", "draw"),
        ("object arrays", 4 + 112 / mean, "write arrays", "draw arrays"),
    ):
        written, drawn = ROWS / median[write], given.batch / median[draw]
        print(
            f"{name:16} {size:14.2f} {written:16,.0f} {written * mean / 1e6:10,.0f} {drawn:14,.0f} "
            f"{drawn * mean / 1e6:10,.0f}"
        )
    every, some = bytes_read(spec, steps, rows, None), bytes_read(spec, steps, rows, ("action",))
    print(f"all steps from disk: {every:,} bytes; fields=('action',): {some:,}, {some / every:.3f} of them")
    for shared in (False, True):
        with tempfile.TemporaryDirectory(prefix="sharpwave-ragged-") as folder:
            memory, files = prompt_bytes(rows[:100], shared), prompt_bytes(rows[:100], shared, disk=folder)
        print(
            f"{ANSWERS} answers a prompt, shared={shared}: {memory:,.0f} bytes a step in memory, {files:,.0f} on disk"
        )


if __name__ == "__main__":
    main()
