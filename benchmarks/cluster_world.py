"""What the parts of ``cluster.py`` share: real steps for its writers, counters of processes and of connections."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sharpwave.bench.recording import Recording

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

    def __init__(self, recording: Recording) -> None:
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


def skewed(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return priorities that differ between writers, 1 : 4 : 16 : 64, and by eight times within one's steps."""
    priorities: npt.NDArray[np.float64] = np.exp2(2.0 * ((numbers >> 40) % 4)) * (1 + numbers % 8)
    return priorities


def cpu_s(processes: list[int]) -> float:
    """Return the processor time that processes have taken."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(processes: list[int]) -> int:
    """Return the private memory of processes."""
    total = 0
    for process in processes:
        status = Path(f"/proc/{process}/status").read_text()
        total += int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) << 10
    return total


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
