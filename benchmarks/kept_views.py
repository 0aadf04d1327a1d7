"""Cost of keeping priorities in the folder of a store on disk: draws and updates with and without, taking turns.

python benchmarks/kept_views.py [--items 1000000] [--rounds 5]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import runner

import sharpwave as sw
from sharpwave.views.keeping import PERIOD_S

TURN_S = 2 * PERIOD_S


def filled(folder: Path, items: int) -> sw.Store:
    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=items + 1000, disk=folder)
    lanes, times = 100, 100
    no = np.zeros((times, lanes), bool)
    while len(store) < items:
        obs = np.random.default_rng(len(store)).random((times, lanes, 4), np.float32)
        store.extend(
            obs=obs, action=np.zeros((times, lanes), np.int64), reward=np.ones((times, lanes)), terminated=no,
            truncated=no,
        )  # fmt: skip
    return store


def turn(view: Any, store: sw.Store, kept: bool) -> tuple[float, float, float]:
    """Draws and updates a second of processor time and of the clock, and the longest call, for some seconds."""
    items, rng = view.source.items, np.random.default_rng(0)
    found, items.kept = items.kept, items.kept if kept else None
    count, longest, cpu, began = 0, 0.0, time.process_time(), time.perf_counter()
    now = began
    while now - began < TURN_S:
        drawn = view.draw(256)
        view.update_priorities(drawn.ids, rng.random(256))
        then, now = now, time.perf_counter()
        longest = max(longest, now - then)
        count += 1
    keeping = store._views.keeping
    assert keeping is not None
    keeping.end()  # what was begun counts
    spent = count / (time.process_time() - cpu), count / (time.perf_counter() - began), longest
    items.kept = found
    return spent


def main() -> None:
    parser = runner.parser(__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder) / "store", given.items) as store:
        view = store.transitions(sampler=sw.Prioritized())
        view.update_priorities(view.draw(256).ids, np.ones(256))
        rows = [(turn(view, store, False), turn(view, store, True)) for _ in range(given.rounds)]
        began = time.perf_counter()
        store.flush()
        flushed_s = time.perf_counter() - began
        nbytes = sum(path.stat().st_size for path in (Path(folder) / "store" / "views").iterdir())
        for k, what in enumerate(("of processor time", "of the clock")):
            without, with_ = (statistics.median(row[side][k] for row in rows) for side in (0, 1))
            ratio = statistics.median(row[1][k] / row[0][k] for row in rows)
            print(
                f"draws and updates of 256 a second {what}: {without:,.0f} without, {with_:,.0f} with: {ratio - 1:+.1%}"
            )
        longest = [max(row[side][2] for row in rows) for side in (0, 1)]
        print(f"longest draw and update: {1e3 * longest[0]:.1f} ms without, {1e3 * longest[1]:.1f} ms with")
        print(f"file: {nbytes:,} bytes for {len(view):,} items; a flush takes {1e3 * flushed_s:.0f} ms")


if __name__ == "__main__":
    main()
