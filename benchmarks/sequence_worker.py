"""One contender of ``sequences.py`` in a process of its own: ``sequence_worker.py NAME FOLDER STEPS``.

Needs nothing but Sharpwave's own dependencies and the contender's library, so that one that installs beside nothing
else has its own interpreter.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sequence_contenders import LENGTH, STATES, STEPS, WINDOW, Contender, Ring, Sharpwave, play, recurrent_states
from sequence_peers import Flashbax, Reverb, TorchRL

from sharpwave.bench import recording as recordings
from sharpwave.bench.limit import Limit
from sharpwave.bench.recording import Recording
from sharpwave.bench.worker import Measured, private_bytes, serve, timed

CONTENDERS: dict[str, Callable[[], Contender]] = {
    "sharpwave auto": partial(Sharpwave, "auto"),
    "sharpwave raw": partial(Sharpwave, "raw"),
    "numpy ring": Ring,
    "TorchRL": TorchRL,
    "TorchRL, no state": partial(TorchRL, state=False),
    "TorchRL memmap": partial(TorchRL, mapped=True),
    "Flashbax": Flashbax,
    "Flashbax, no state": partial(Flashbax, state=False),
    "Reverb": Reverb,
}
BATCHES = (64, 16)
MAX_ADDED_TIMES = 1000
"""Times of all lanes that adding is timed with."""
WARM_TIMES = 600
DRAINED = 4
"""Batches taken before the clock starts, some of which were prepared earlier."""
IDLE_S = 0.002


class Bench:
    """Benchmark of a contender, filled from a recording."""

    def __init__(self, make: Callable[[], Contender], recording: Recording) -> None:
        self.make, self.recording = make, recording
        self.states = recurrent_states()

    def fill(self, steps: int) -> dict[str, Any]:
        """Fill the contender; ``bytes`` is the growth of the process without any batch's memory."""
        lanes = self.recording.lanes
        self.contender = self.make()  # import, compile and start threads, whose memory is not the buffer's
        self._add_all(WARM_TIMES * lanes)
        self._sample_each()
        self.contender.close()
        del self.contender
        before = private_bytes()
        self.contender = self.make()
        begin = time.perf_counter()
        self._add_all(steps)
        answer: dict[str, Any] = {"steps": steps, "fill_s": time.perf_counter() - begin}
        answer["bytes"] = private_bytes() - before
        self._sample_each()
        answer["bytes_with_batches"] = private_bytes() - before
        if isinstance(self.contender, Sharpwave):
            answer["windows"] = len(self.contender.uniform)
        answer["wrong"] = self._wrong()
        times = min(MAX_ADDED_TIMES, self.recording.times)
        self.items = [self.contender.item(step) for step in play(self.recording, self.states, 0, times)]
        self.at = 0
        return answer

    def measure(self, what: str, batch: int, seconds: float) -> dict[str, float]:
        """Return calls per second and processor time per call; ``rows`` is the number of steps or windows of one."""
        contender = self.contender
        if what == "add":
            return timed(self._add_next, seconds) | {"rows": self.recording.lanes}
        for _ in range(DRAINED):
            contender.sample(batch)
        if what == "uniform":
            answer = timed(lambda: contender.sample(batch), seconds)
        else:
            assert isinstance(contender, Sharpwave)
            errors = np.random.default_rng(0).exponential(size=(batch, LENGTH))
            answer = timed(lambda: contender.sample_prioritized(batch, errors), seconds)
        _wait_until_idle()
        return answer | {"rows": batch}

    def _add_next(self) -> None:
        self.contender.add(self.items[self.at])
        self.at = (self.at + 1) % len(self.items)

    def _add_all(self, steps: int) -> None:
        """Build the contender and add ``steps``, playing the recording again from its beginning as often as needed."""
        self.contender.build(self.recording, steps)
        times = steps // self.recording.lanes
        while times:
            part = min(times, self.recording.times)
            self.contender.fill(play(self.recording, self.states, 0, part))
            times -= part

    def _sample_each(self) -> None:
        for batch in BATCHES:
            self.contender.sample(batch)
            if isinstance(self.contender, Sharpwave):
                self.contender.sample_prioritized(batch, np.ones((batch, LENGTH)))

    def _wrong(self) -> dict[str, float]:
        """Return the shares of sampled windows that are not consecutive steps of one episode, of observations that are
        not those recorded, and of states that are not those of the first step."""
        recording, lanes = self.recording, self.recording.lanes
        seen = self.contender.seen(self.contender.sample(BATCHES[0]))
        assert seen.number.shape[1] == STEPS
        crossed = frames = states = 0
        for i, mask in enumerate(seen.mask):
            number = seen.number[i][mask]
            t, lane = number // lanes, number[0] % lanes
            whole = np.array_equal(number, number[0] + lanes * np.arange(len(number)))
            crossed += not whole or recording.start[t[-1], lane] > t[0]
            frames += int((seen.obs[i][mask] != recording.obs[t, number % lanes]).any(axis=(1, 2)).sum())
            if len(seen.state):
                states += not np.array_equal(seen.state[i], self.states[number[0] % STATES])
        count = len(seen.number)
        return {"windows": crossed / count, "frames": frames / int(seen.mask.sum()), "states": states / count}


def _wait_until_idle() -> None:
    """Wait for threads that prepare the next batches: the processor is the next contender's."""
    before = -1.0
    while time.process_time() - before > IDLE_S:
        before = time.process_time()
        time.sleep(10 * IDLE_S)


def make(name: str, folder: Path, steps: int) -> Measured:
    """Make the benchmark ``name`` over the first ``steps`` of the recording in ``folder``."""
    if name == "limit":
        return Limit(84 * 84, WINDOW)
    recording = recordings.read(folder, None, steps // recordings.LANES)
    return Bench(CONTENDERS[name], recording)


if __name__ == "__main__":
    bench = make(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    serve(lambda: bench)
    if isinstance(bench, Bench):
        bench.contender.close()
