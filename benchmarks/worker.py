"""One contender in a process of its own: fills its buffer, then answers requests, one JSON object a line.

``{"fill": steps}`` -> bytes; ``{"measure": what, "batch": n, "seconds": s}`` -> calls a second.
With the names ``trees`` and ``limit``: sum trees alone, and memory alone.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from contenders import CONTENDERS, Sharpwave
from frames import LANES, Frames, read
from limit import Limit
from trees import Trees

ADDED_BYTES = 64 << 20
"""Steps that adding is timed with: as many as take this much memory."""


def private_bytes() -> int:
    """Memory of this process that is neither file nor shared: what its data takes."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
        status = Path("/proc/self/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) * 1024
    return int(psutil.Process().memory_full_info().uss)


def timed(call: Callable[[], Any], seconds: float) -> dict[str, float]:
    """``calls`` a second of wall time, and ``cpu_us``, processor time of all threads a call."""
    call()
    count = 0
    begin, cpu = time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) < begin + seconds or count < 3:
        call()
        count += 1
    return {"calls": count / (now - begin), "cpu_us": (time.process_time() - cpu) / count * 1e6}


class Bench:
    """A contender, the frames it is fed, and what is measured."""

    def __init__(self, name: str, folder: Path) -> None:
        self.make, self.folder = CONTENDERS[name], folder
        self.contender = self.make()

    def fill(self, steps: int) -> dict[str, Any]:
        frames = read(self.folder, steps)
        self._warm_up(frames)
        times = steps // LANES
        before = private_bytes()
        contender = self.contender
        contender.build(steps)
        begin = time.perf_counter()
        self._add_all(frames, times)
        took = time.perf_counter() - begin
        answer: dict[str, Any] = {"steps": times * LANES, "fill_s": took}
        if isinstance(contender, Sharpwave):
            # All included: the sampler's tree over every step, and its batches' memory.
            contender.sample_prioritized(256, np.ones(256))
            answer["stats"] = contender.store.stats()
        answer["bytes"] = private_bytes() - before
        answer["prioritized"] = contender.prioritize(lambda: self._add_all(frames, times))
        answer["wrong"] = self._wrong(frames)
        per_item = 57_000 if isinstance(contender, Sharpwave) else 500_000
        self.items = list(contender.items(frames, 0, min(times, ADDED_BYTES // per_item)))
        self.at = 0
        return answer

    def measure(self, what: str, batch: int, seconds: float) -> dict[str, float]:
        """Calls a second and processor time a call; ``rows`` is how many steps one call stands for."""
        contender = self.contender
        if what == "add":
            return timed(self._add_next, seconds) | {"rows": contender.rows}
        if what == "uniform":
            answer = timed(lambda: contender.sample(batch), seconds)
        else:
            errors = np.random.default_rng(0).exponential(size=batch)
            answer = timed(lambda: contender.sample_prioritized(batch, errors), seconds)
        return answer | {"rows": batch}

    def _add_next(self) -> None:
        self.contender.add(self.items[self.at])
        self.at = (self.at + 1) % len(self.items)

    def _add_all(self, frames: Frames, times: int) -> None:
        for item in self.contender.items(frames, 0, times):
            self.contender.add(item)

    def _warm_up(self, frames: Frames) -> None:
        """Imports, compiled code and thread pools are no part of a buffer's memory."""
        contender, self.contender = self.contender, self.make()
        self.contender.build(4096)
        self._add_all(frames, 500)
        self.contender.sample(256)
        self.contender.sample(256)
        if self.contender.prioritize(lambda: self._add_all(frames, 500)):
            self.contender.sample_prioritized(256, np.ones(256))
        self.contender = contender

    def _wrong(self, frames: Frames) -> dict[str, float]:
        """Shares of sampled stacks and successors that are not what was played; not terminal successors."""
        wrong = {"obs": 0, "next_obs": 0}
        count = 512
        for _ in range(count // 64):
            seen = self.contender.seen(self.contender.sample(64))
            for i, number in enumerate(seen.number):
                t, lane = divmod(int(number), LANES)
                obs, successor = (array[0, 0] for array in frames.stacks(t, t + 1, slice(lane, lane + 1)))
                wrong["obs"] += not np.array_equal(seen.obs[i], obs)
                if not frames.terminated[t, lane]:
                    wrong["next_obs"] += not np.array_equal(seen.next_obs[i], successor)
        return {name: amount / count for name, amount in wrong.items()}


def main() -> None:
    """Serve requests until the pipe closes. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    name = sys.argv[1]
    bench: Any = (
        {"trees": Trees, "limit": Limit}[name]() if name in ("trees", "limit") else Bench(name, Path(sys.argv[2]))
    )
    for line in sys.stdin:
        request = json.loads(line)
        if "fill" in request:
            answer = bench.fill(request["fill"])
        else:
            answer = bench.measure(request["measure"], request["batch"], request["seconds"])
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
