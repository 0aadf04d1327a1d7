"""Process of ``workloads.py``: one memory under one load. Answers requests, one JSON object a line.

workload_worker.py CONTENDER LOAD FOLDER DISK
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from workload_table import LOADS

from sharpwave.bench.worker import private_bytes


class Worker:
    """Fills a memory, then adds to it and samples from it at given rates."""

    def __init__(self, name: str, load: str, folder: Path) -> None:
        self.load = LOADS[load]
        self.memory: Any = importlib.import_module(f"workload_{name}").Memory(self.load, folder)
        self._rng = np.random.default_rng(0)
        self._before = 0  # bytes of this process, but for the memory

    def fill(self, elements: int) -> dict[str, float]:
        """Add elements; return the growth of this process, and how long it took."""
        self.memory.fill(max(elements // 100, 2 * self.load.batch))
        self._learn()  # imports and kernels are not the memory's
        self._before, begin = private_bytes(), time.perf_counter()
        self.memory.fill(elements)
        self._learn()
        return {
            "bytes": private_bytes() - self._before,
            "seconds": time.perf_counter() - begin,
            **self.memory.counted(),
        }

    def run(self, seconds: float, adds: float, samples: float, actors: bool = False) -> dict[str, float]:
        """Add and sample at most at these rates, elements a second; return how well that went."""
        over, added, errors = threading.Event(), 0.0, list[BaseException]()
        waits = list[float]()
        self._learn()  # a peer's pipeline begins
        outside = self.memory.actors(adds) if actors else None

        def write() -> None:
            nonlocal added
            try:
                while not over.is_set():
                    at = time.perf_counter()
                    added += self.memory.add()
                    waits.append(time.perf_counter() - at)
                    time.sleep(max(0.0, begin + added / adds - time.perf_counter()))
            except BaseException as error:
                errors.append(error)

        begin, cpu = time.perf_counter(), time.process_time()
        thread = threading.Thread(target=write, daemon=True)
        if outside is None:
            thread.start()
        latencies, batch, pause = list[float](), self.load.batch, self.load.batch / samples
        handed = 0
        while (now := time.perf_counter()) < begin + seconds and not errors:
            handed = self._learn()
            latencies.append(time.perf_counter() - now)
            time.sleep(max(0.0, begin + len(latencies) * pause - time.perf_counter()))
        took, cpu = time.perf_counter() - begin, time.process_time() - cpu
        over.set()
        if outside is None:
            thread.join(60.0)
        else:
            added = outside.stop()
        if errors:
            raise errors[0]
        p50, p99 = np.quantile(latencies, [0.5, 0.99]) * 1e3
        return {
            "adds": added / took, "samples": len(latencies) * batch / took, "p50_ms": p50, "p99_ms": p99,
            "longest_ms": max(latencies) * 1e3, "learner_wait": sum(latencies) / took,
            "add_p99_ms": float(np.quantile(waits, 0.99)) * 1e3 if waits else 0.0, "cpu": cpu / took,
            "mb_per_s": handed / batch * (len(latencies) * batch / took) / 1e6, "bytes": private_bytes() - self._before,
            **self.memory.counted(),
        }  # fmt: skip

    def _learn(self) -> int:
        batch = self.memory.sample()
        if self.load.kind == "prioritized":
            self.memory.update(batch, self._rng)
        handed: int = self.memory.handed(batch)
        return handed


def main() -> None:
    """Answer requests until standard input ends."""
    name, load, folder = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    worker = Worker(name, load, Path(folder))
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(getattr(worker, request.pop("do"))(**request)) + "\n")
        answers.flush()
    os._exit(0)  # threads of a peer's pipeline would be waited for


if __name__ == "__main__":
    main()
