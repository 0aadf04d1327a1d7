"""A store ten times its memory, beside one that is all in memory and beside the disk's own random reads.

    python benchmarks/tiers.py [--steps 4000000] [--ram 64MiB] [--rounds 5] [--seconds 1] [--folder FOLDER]

Pong frames (500,000 different steps, repeated), batches of 256. The system's cache of the region files is emptied
before every slice, as far as the system allows; a virtual disk may have another cache below it, which the disk's own
limit sees as well. "A learner of 10 ms" sleeps so long after every batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import frames
import numpy as np
from rich.console import Console
from rich.table import Table
from worker import private_bytes

import sharpwave as sw

HERE = Path(__file__).parent
BATCH, READERS, LEARNER_S = 256, 16, 0.01


def filled(store: sw.Store, played: frames.Frames, steps: int) -> None:
    """Append the played steps, again and again."""
    times = len(played.obs) - 1
    zeros = np.zeros(frames.LANES)
    no = np.zeros(frames.LANES, bool)
    for k in range(steps // frames.LANES):
        store.extend(obs=played.obs[k % times], action=zeros.astype(int), reward=zeros, terminated=no, truncated=no)


def empty_cache(store: sw.Store) -> None:
    """Let the system forget what it has of the region files."""
    disk = store._log.disk
    if disk is not None and hasattr(os, "posix_fadvise"):
        disk.regions.sync()
        for region in disk.regions.regions.values():
            os.posix_fadvise(region.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Transitions a second."""
    begin = time.perf_counter()
    count = 0
    while (now := time.perf_counter()) < begin + seconds or count < 3:
        call()
        count += 1
    return count * BATCH / (now - begin)


def reads(store: sw.Store, seconds: float) -> float:
    """Segments a second that the disk gives at random places, ``READERS`` at a time, straight from the files."""
    log = store._log
    assert log.disk is not None
    index, regions = log.index, log.disk.regions
    slots = np.flatnonzero(index.sealed[: index.highest] & (index.rows[: index.highest] > 0))

    def read(thread: int) -> int:
        rng, out, count = np.random.default_rng(thread), bytearray(int(index.nbytes[slots].max())), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            slot = slots[rng.integers(len(slots))]
            view = memoryview(out)[: int(index.nbytes[slot])]
            regions.read(int(index.region[slot]), int(index.place[slot]), view)
            count += 1
        return count

    with ThreadPoolExecutor(READERS) as pool:
        return sum(pool.map(read, range(READERS))) / seconds


def with_learner(batches: Iterator[Any]) -> Callable[[], None]:
    """The next batch, and a learner's time with it."""

    def call() -> None:
        next(batches)
        time.sleep(LEARNER_S)

    return call


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=4_000_000)
    parser.add_argument("--ram", default="64MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where the regions go; default: a temporary folder")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for tiers.json")
    arguments = parser.parse_args()
    played = frames.read(frames.folder_of("pong", 500_000, cache=frames.CACHE, say=print), 500_000)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="sharpwave-tiers-"))
    spec = sw.Spec(obs=sw.Field((84, 84), "uint8", stack=4), action=sw.Field((), "int64"))

    with sw.Store(spec, capacity=20_000, ram=arguments.ram, disk=folder / "small") as small:  # compiled code is loaded
        filled(small, played, 20_000)
        small.transitions().sample(BATCH)
    before = private_bytes()
    tiered = sw.Store(spec, capacity=arguments.steps, ram=arguments.ram, disk=folder / "store")
    filled(tiered, played, arguments.steps)
    view = tiered.transitions()
    for _ in range(4):
        view.sample(BATCH)
    grown = private_bytes() - before
    whole = sw.Store(spec, capacity=arguments.steps)
    filled(whole, played, arguments.steps)
    streams = {
        name: store.transitions().stream(BATCH, lookahead=4) for name, store in (("disk", tiered), ("ram", whole))
    }
    kinds: dict[str, Callable[[], float]] = {
        "in memory: sample": lambda: rate(lambda: in_memory.sample(BATCH), arguments.seconds),
        "on disk: sample": lambda: rate(lambda: view.sample(BATCH), arguments.seconds),
        "on disk: stream, lookahead 4": lambda: rate(lambda: next(streams["disk"]), arguments.seconds),
        "the disk itself: random reads of segments": lambda: reads(tiered, arguments.seconds),
        "in memory: a learner of 10 ms": lambda: rate(with_learner(streams["ram"]), arguments.seconds),
        "on disk: stream, a learner of 10 ms": lambda: rate(with_learner(streams["disk"]), arguments.seconds),
    }
    in_memory = whole.transitions()
    results: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(arguments.rounds):
        for name, measure in kinds.items():
            empty_cache(tiered)
            results[name].append(measure())
    stats = tiered.stats()
    shown = Table(
        title=f"{arguments.steps:,} steps of Pong, ram={arguments.ram}", title_style="bold", title_justify="left"
    )
    shown.add_column("")
    shown.add_column("transitions/s", justify="right")
    for name, values in results.items():
        shown.add_row(name, f"{statistics.median(values):,.0f}")
    console = Console(width=140)
    console.print(shown)

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(results[one], results[other], strict=True))

    stream, limit = "on disk: stream, lookahead 4", "the disk itself: random reads of segments"
    learner = ("on disk: stream, a learner of 10 ms", "in memory: a learner of 10 ms")
    encoded = tiered._log.sealed_bytes
    ram, used = tiered.ram or 1, stats["bytes"]
    per_step = [used[part] / stats["steps"] for part in ("index", "samplers")]
    console.print(
        f"encoded {encoded:,} bytes, {encoded / ram:.1f} x ram=\n"
        f"the process grew by {grown:,} bytes, {grown / ram:.2f} x ram=; stats() says {stats['total_bytes']:,}\n"
        f"index {per_step[0]:.1f}, trees {per_step[1]:.1f} bytes a step\n"
        f"stream beside the disk itself: {ratio(stream, limit):.2f} x (goal .9)\n"
        f"stream beside memory, with a learner of 10 ms: {ratio(*learner):.2f} x (goal .8)"
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    summary = {"steps": arguments.steps, "ram": tiered.ram, "grown": grown, "encoded": encoded, "transitions": results}
    (arguments.out / "tiers.json").write_text(json.dumps(summary, indent=1) + "\n")
    tiered.close()
    if arguments.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
