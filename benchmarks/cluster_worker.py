"""Process of ``cluster.py``: writers, a learner, or a server of Reverb; and their steps of real frames.

cluster_worker.py server CAPACITY | writers CONTENDER FRAMES ADDRESS ... | learner CONTENDER FRAMES ADDRESS ...
"""

from __future__ import annotations

import importlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frames
import numpy as np
import numpy.typing as npt
import runner

from sharpwave.bench.played import PlayedSteps

STACK, SHAPE = 4, (84, 84)
BATCH, LOOKAHEAD = 256, 4
ALPHA, BETA = 0.6, 0.4
ITEM_BYTES = (STACK + 1) * SHAPE[0] * SHAPE[1]
"""Bytes of a decoded transition's frames: of its stack and its successor's, which share three."""


@dataclass(frozen=True)
class Step:
    """One environment's step. ``after``: the true frame behind it. ``number``: of its writer and of its order."""

    number: int
    obs: npt.NDArray[np.uint8]
    after: npt.NDArray[np.uint8]
    reward: np.float32
    terminated: np.bool_
    truncated: np.bool_

    @property
    def ended(self) -> bool:
        """Whether it was its episode's last."""
        return bool(self.terminated or self.truncated)


class Steps:
    """Steps of a recording without end, of which each writer begins elsewhere. A round of them ends an episode."""

    def __init__(self, recording: PlayedSteps) -> None:
        self._recording = recording
        self._frames = [np.ascontiguousarray(recording.obs[:, lane]) for lane in range(recording.lanes)]

    def of(self, writer: int) -> Iterator[Step]:
        """Iterate over one writer's steps."""
        number = writer << 40
        while True:
            yield self.one(number)
            number += 1

    def one(self, number: int) -> Step:
        """Return the step of a number."""
        recording, writer = self._recording, number >> 40
        lane, time = writer % recording.lanes, (writer * 997 + number % (1 << 40)) % recording.times
        place, last = int(recording.final_place[time, lane]), time == recording.times - 1
        return Step(
            number, self._frames[lane][time], recording.final[place] if place >= 0 else self._frames[lane][time + 1],
            recording.reward[time, lane], recording.terminated[time, lane],
            np.bool_(recording.truncated[time, lane] or (last and place < 0)),
        )  # fmt: skip


def connection_bytes() -> dict[str, tuple[int, int]]:
    """Return bytes sent and received on every TCP connection of this process, whatever library made it."""
    counted: dict[str, tuple[int, int]] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                ends = f"{one.getsockname()} {one.getpeername()}"
        except OSError:  # closed meanwhile, or no TCP connection
            continue
        if len(info) >= 136:
            counted[ends] = struct.unpack_from("<QQ", info, 120)
    return counted


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


class Learner:
    """Learner that samples prioritized batches and updates their priorities."""

    def __init__(self, contender: Any, steps: Steps, addresses: list[str]) -> None:
        self._learner, self._steps = contender.Learner(addresses), steps
        self._rng = np.random.default_rng(0)

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
    if role == "server":
        server = importlib.import_module("cluster_reverb").Server(int(rest[0]))
        runner.answer(lambda: server, lambda made: {"address": made.address})
    else:
        contender, steps = importlib.import_module(rest[0]), Steps(frames.read(Path(rest[1])))
        runner.answer(lambda: (Writers if role == "writers" else Learner)(contender, steps, rest[2:]))
    os._exit(0)  # threads of a learner's stream would be waited for


if __name__ == "__main__":
    main()
