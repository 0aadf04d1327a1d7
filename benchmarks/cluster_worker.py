"""Process of ``cluster.py``: writers, a learner, or a server of Reverb. Answers requests, one JSON object a line.

cluster_worker.py server CAPACITY | writers CONTENDER FRAMES ADDRESS ... | learner CONTENDER FRAMES ADDRESS ...
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

import frames
import numpy as np
from cluster_world import ALPHA, BATCH, BETA, ITEM_BYTES, Steps, connection_bytes, skewed

MAX_WRITERS = 64


class Writers:
    """Writers in threads of this process, one environment each, which are used again from call to call."""

    def __init__(self, contender: Any, steps: Steps, addresses: list[str]) -> None:
        self._contender, self._steps, self._addresses = contender, steps, addresses
        self._writers: list[tuple[Any, Any]] = []

    def write(self, writers: int, seconds: float, steps: int = 0, rate: float = 0.0) -> dict[str, float]:
        """Write for ``seconds``, or until there are ``steps``; at most ``rate`` steps a second, of all together."""
        while len(self._writers) < writers:
            number = len(self._writers)
            self._writers.append((self._contender.Writer(self._addresses, number), self._steps.of(number)))
        counts, errors = [0] * writers, []
        begin, cpu = time.perf_counter(), time.process_time()

        def run(number: int) -> None:
            writer, mine = self._writers[number]
            written = 0
            try:
                while (written * writers < steps) if steps else time.perf_counter() < begin + seconds:
                    writer.write(next(mine))
                    written += 1
                    if rate:
                        time.sleep(max(0.0, begin + written * writers / rate - time.perf_counter()))
                counts[number] = writer.flush()
            except Exception as error:  # a thread's own is lost
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if errors:
            raise errors[0]
        took = time.perf_counter() - begin
        return {"steps": sum(counts), "seconds": took, "cpu_s": time.process_time() - cpu}

    def write_skewed(self, writers: int, steps: int) -> dict[str, float]:
        """Write steps with the priorities of ``skewed``; return the mass of all items."""
        mass = 0.0
        for number in range(writers):
            writer, mine = self._contender.Writer(self._addresses, number, skews=True), self._steps.of(number)
            for _ in range(steps // writers):
                writer.write(next(mine))
            writer.flush()
            mass += float((skewed(writer.items()) ** ALPHA).sum())
        return {"mass": mass}


class Learner:
    """Learner that samples prioritized batches and updates their priorities."""

    def __init__(self, contender: Any, steps: Steps, addresses: list[str]) -> None:
        self._learner, self._steps = contender.Learner(addresses), steps
        self._rng = np.random.default_rng(0)

    def ready(self) -> dict[str, float]:
        """Answer: its view is there, and gets the priorities of what is written from now on."""
        return {}

    def draw(self, seconds: float) -> dict[str, float]:
        """Return speed, latency, processor time and bytes of batches drawn for ``seconds``."""
        latencies: list[float] = []
        for _ in range(4):  # what was asked for before is of the past
            self._one()
        sent, links = connection_bytes(), self._learner.link_bytes()
        begin, cpu = time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) < begin + seconds or len(latencies) < 5:
            self._one()
            latencies.append(time.perf_counter() - now)
        cpu, took = time.process_time() - cpu, now - begin
        after = connection_bytes()
        nbytes = sum(sum(count) - sum(sent.get(ends, (0, 0))) for ends, count in after.items())
        nbytes = nbytes or self._learner.link_bytes() - links  # unix sockets
        items = len(latencies) * BATCH
        return {
            "batches": len(latencies), "transitions_per_s": items / took, "mb_per_s": items * ITEM_BYTES / took / 1e6,
            "p50_ms": float(np.median(latencies)) * 1e3, "p99_ms": float(np.quantile(latencies, 0.99)) * 1e3,
            "cpu_ms": cpu / len(latencies) * 1e3, "bytes_per_transition": nbytes / items,
        }  # fmt: skip

    def _one(self) -> None:
        batch = self._learner.sample()
        self._learner.update(batch, self._rng.random(BATCH).astype(np.float32) + 0.01)

    def unrolls(self, seconds: float) -> dict[str, float]:
        """Return decoded megabytes a second, one frame a step, of batches of 32 windows of 20 steps."""
        stream, batches = self._learner.unrolls(), 0
        next(stream)
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            shape = next(stream).action.shape
            batches += 1
        return {"mb_per_s": batches * int(np.prod(shape)) * ITEM_BYTES / 5 / (now - begin) / 1e6}

    def weights(self, mass: float, batches: int) -> dict[str, float]:
        """Return how far probabilities and weights are from those of one memory that has all items of mass ``mass``."""
        worst = {"probability": 0.0, "weight": 0.0}
        for _ in range(batches):
            batch = self._learner.sample()
            exact = skewed(self._learner.numbers(batch)) ** ALPHA / mass
            drawn = self._learner.probabilities(batch)
            weights, those = (drawn.min() / drawn) ** BETA, (exact.min() / exact) ** BETA
            worst["probability"] = max(worst["probability"], float(np.abs(drawn / exact - 1).max()))
            worst["weight"] = max(worst["weight"], float(np.abs(weights / those - 1).max()))
        return worst

    def check(self) -> dict[str, float]:
        """Return the share of a batch's items whose frame or successor is not the one that was written."""
        batch = self._learner.sample()
        numbers, got = self._learner.numbers(batch), self._learner.frames(batch)
        wrong = 0
        for number, window in zip(numbers.tolist(), got, strict=True):
            step = self._steps.one(number)
            wrong += not (np.array_equal(window[-2], step.obs) and np.array_equal(window[-1], step.after))
        return {"wrong": wrong / len(numbers), "different": len(np.unique(numbers)) / len(numbers)}


def main() -> None:
    """Answer requests until standard input ends."""
    role, *rest = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print

    def say(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    if role == "server":
        server = importlib.import_module("cluster_reverb").Server(int(rest[0]), Path(rest[1]), int(rest[2]))
        say({"address": server.address})
        for line in sys.stdin:
            say(server.answer(**json.loads(line)))
        os._exit(0)
    contender = importlib.import_module(rest[0])
    made: Any = (Writers if role == "writers" else Learner)(contender, Steps(frames.read(Path(rest[1]))), rest[2:])
    for line in sys.stdin:
        request = json.loads(line)
        say(getattr(made, request.pop("do"))(**request))
    os._exit(0)  # threads of a learner's stream would be waited for


if __name__ == "__main__":
    main()
