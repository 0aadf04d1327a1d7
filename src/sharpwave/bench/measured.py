"""Process of one contender: fills its buffer, then answers requests, one JSON object a line.

``{"do": "fill", "steps": n}`` -> bytes; ``{"do": "measure", "what": "uniform", "batch": 32, "seconds": 0.2}`` -> calls
a second.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.arrays import Array
from sharpwave.bench.contenders import SETUPS, Contender, Sharpwave
from sharpwave.bench.machine import answer, available_bytes, cores
from sharpwave.bench.played import PlayedSteps, read
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


MAX_ADDED_BYTES = 64 << 20
"""Bytes of the steps that adding is timed with."""
MAX_WARM_TIMES = 500
CHECKED = 512
"""Sampled transitions that are compared with the recording."""


def private_bytes() -> int:
    """Return this process's private anonymous memory, which is that of its data."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
        status = Path("/proc/self/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) * 1024
    import psutil

    return int(psutil.Process().memory_full_info().uss)


def timed(call: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Return ``calls`` per second of wall time, and ``cpu_us``, processor time of all threads per call."""
    call()
    count = 0
    begin, cpu = time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) < begin + seconds or count < 3:
        call()
        count += 1
    return {"calls": count / (now - begin), "cpu_us": (time.process_time() - cpu) / count * 1e6}


class Bench:
    """Benchmark of a contender, filled from a recording.

    Attributes:
        large: size of a large batch, whose memory counts as the contender's.
    """

    large = 256

    def __init__(self, make: Callable[[], Contender], recording: PlayedSteps) -> None:
        self.make, self.recording = make, recording
        self.contender = make()

    def fill(self, steps: int) -> dict[str, Any]:
        """Fill the contender; ``bytes`` is the growth of the process."""
        recording, contender = self.recording, self.contender
        self._warm_up()
        steps -= steps % recording.lanes
        before = private_bytes()
        contender.build(recording, steps)
        begin = time.perf_counter()
        self._add_all(steps)
        filled: dict[str, Any] = {"steps": steps, "fill_s": time.perf_counter() - begin}
        filled["filled_bytes"] = private_bytes() - before
        if isinstance(contender, Sharpwave):
            # Includes the sampler's tree over every step, and the memory of its batches.
            contender.sample_prioritized(self.large, self.errors(self.large))
            filled["stats"] = contender.store.stats()
        filled["bytes"] = private_bytes() - before
        filled["prioritized"] = contender.prioritize(lambda: self._add_all(steps))
        filled["wrong"] = self._wrong()
        per_time = recording.lanes * recording.frame_bytes
        per_time *= 1 if isinstance(contender, Sharpwave) else 2 * (recording.stack or 1)
        times = max(1, min(recording.times, steps // recording.lanes, MAX_ADDED_BYTES // per_time))
        self.items = list(contender.items(recording, 0, times))
        self.rows = times * recording.lanes / len(self.items)
        self.at = 0
        return filled

    def measure(self, what: str, batch: int, seconds: float) -> dict[str, float]:
        """Return calls per second and processor time per call; ``rows`` is the number of steps of one call."""
        contender = self.contender
        if what == "add":
            return timed(self._add_next, seconds) | {"rows": self.rows}
        if what == "uniform":
            found = timed(lambda: contender.sample(batch), seconds)
        else:
            errors = self.errors(batch)
            found = timed(lambda: contender.sample_prioritized(batch, errors), seconds)
        return found | {"rows": batch}

    def errors(self, batch: int) -> Array:
        return np.random.default_rng(0).exponential(size=batch)

    def _add_next(self) -> None:
        self.contender.add(self.items[self.at])
        self.at = (self.at + 1) % len(self.items)

    def _add_all(self, steps: int) -> None:
        """Add ``steps``, playing the recording again from its beginning as often as needed."""
        times = steps // self.recording.lanes
        while times:
            part = min(times, self.recording.times)
            for item in self.contender.items(self.recording, 0, part):
                self.contender.add(item)
            times -= part

    def _warm_up(self) -> None:
        """Import, compile and start threads, whose memory is not the buffer's."""
        contender, self.contender = self.contender, self.make()
        steps = min(MAX_WARM_TIMES, self.recording.times) * self.recording.lanes
        self.contender.build(self.recording, steps)
        self._add_all(steps)
        self.contender.sample(self.large)
        self.contender.sample(self.large)
        if self.contender.prioritize(lambda: self._add_all(steps)):
            self.contender.sample_prioritized(self.large, self.errors(self.large))
        self.contender.close()
        self.contender = contender

    def _wrong(self) -> dict[str, float]:
        """Return the shares of sampled observations and successors, except terminal ones, that were never recorded."""
        recording = self.recording
        wrong = {"obs": 0, "next_obs": 0}
        for _ in range(CHECKED // 64):
            seen_obs, seen_next, numbers = self.contender.seen(self.contender.sample(64))
            for i, number in enumerate(numbers):
                t, lane = divmod(int(number), recording.lanes)
                obs, successor = (array[0, 0] for array in recording.transitions(t, t + 1, slice(lane, lane + 1)))
                wrong["obs"] += not np.array_equal(seen_obs[i], obs)
                if not recording.terminated[t, lane]:
                    wrong["next_obs"] += not np.array_equal(seen_next[i], successor)
        return {name: amount / CHECKED for name, amount in wrong.items()}


def main() -> None:
    """Serve the contender named by the first argument, over the recording in the second, of a stack in the third."""
    name, stack = sys.argv[1], int(sys.argv[3]) or None
    recording = read(Path(sys.argv[2]), stack)
    if name == "limit":
        source_bytes = min(SOURCE_BYTES, available_bytes() // 8)
        answer(lambda: Limit(recording.frame_bytes, (stack or 1) + 1, source_bytes))
    else:
        answer(lambda: Bench(lambda: SETUPS[name].make(stack), recording))


if __name__ == "__main__":
    main()
