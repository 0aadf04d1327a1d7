"""Upper limit by memory bandwidth: windows of frames copied from random places, without any lookup or decoding."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from sharpwave.bench.machine import cores
from sharpwave.native import core

SOURCE_BYTES = 1 << 30


class Limit:
    """Benchmark of random copies from a large array, by as many threads as cores.

    Args:
        frame_bytes: size of a frame.
        frames: frames of a window, which is one transition.
        source_bytes: size of the array; larger than any cache.
    """

    def __init__(self, frame_bytes: int, frames: int, source_bytes: int = SOURCE_BYTES) -> None:
        self.frame_bytes, self.window, self.source_bytes = frame_bytes, frames * frame_bytes, source_bytes

    def fill(self, steps: int) -> dict[str, Any]:
        """Commit the memory; ``steps`` is ignored."""
        self.source = np.ones(self.source_bytes, np.uint8)
        self.threads = cores()
        return {"threads": self.threads}

    def measure(self, what: str, batch: int, seconds: float) -> dict[str, float]:
        """Return windows per second of all threads together; they do not wait for each other."""
        counts = [0] * self.threads
        rows = max(1, batch // self.threads)
        begin = threading.Barrier(self.threads)

        def copy(thread: int) -> None:
            rng = np.random.default_rng(thread)
            out, nbytes = np.ones(rows * self.window, np.uint8), np.full(rows, self.window)
            targets = np.arange(rows) * self.window
            places = (self.source_bytes - self.window) // self.frame_bytes
            starts = rng.integers(0, places, (64, rows)) * self.frame_bytes
            core.copy_ranges(self.source, starts[0], out, targets, nbytes)
            begin.wait()
            end, turn = time.perf_counter() + seconds, 0
            while time.perf_counter() < end:
                core.copy_ranges(self.source, starts[turn % 64], out, targets, nbytes)
                turn += 1
            counts[thread] = turn * rows

        threads = [threading.Thread(target=copy, args=(thread,)) for thread in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"windows": sum(counts) / seconds}
