"""A process that writes is killed at a random moment, again and again; what it had been told is on disk must be there.

    python benchmarks/crash.py [--rounds 1000] [--seed 0] [--folder FOLDER]

Each round opens the store as the last one left it, appends to four lanes, flushes now and then, and is killed with
SIGKILL after up to 150 ms, at whatever it is doing: opening, appending, flushing, deleting old regions. Then the store
is opened and every step of it is compared with what was appended; steps acknowledged by flush() and still within the
capacity must be there, but for a lane's last one, whose successor is not known. Prints rounds, losses and the slowest
recovery.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw
from sharpwave.tiers import disk as disk_module

LANES, CAPACITY, STEPS_A_ROUND = 4, 20_000, 1 << 20
SPEC = sw.Spec(obs=sw.Field((16, 16), "uint8", stack=2), action=sw.Field((), "int64"), serial=sw.Field((), "int64"))


def frame(serial: int) -> Any:
    """A picture that tells its step."""
    picture = np.zeros((16, 16), np.uint8)
    picture[serial % 16, (serial >> 4) % 16] = 255
    picture[15, :8] = np.frombuffer(np.int64(serial).tobytes(), np.uint8)
    return picture


def write(folder: Path, turn: int, acknowledged: int) -> None:
    """The child: appends without end, and tells the pipe up to which step everything is on disk."""
    store = opened(folder)
    serial = turn * STEPS_A_ROUND
    rng = np.random.default_rng(turn)
    while True:
        for _ in range(int(rng.integers(1, 60))):
            ended = serial % 97 > 92
            store.extend(
                obs=np.stack([frame(serial + lane) for lane in range(LANES)]),
                action=np.arange(LANES) + serial,
                reward=np.full(LANES, serial % 8, np.float32),
                terminated=np.full(LANES, ended),
                truncated=np.zeros(LANES, bool),
                serial=np.arange(LANES) + serial,
            )
            serial += LANES
        store.flush()
        os.write(acknowledged, np.int64(serial).tobytes())


def opened(folder: Path) -> sw.Store:
    """The store in a folder, made where there is none."""
    if (folder / disk_module.MANIFEST).exists():
        return sw.Store.open(folder)
    return sw.Store(SPEC, capacity=CAPACITY, disk=folder, segment_steps=32)


def check(folder: Path, turn: int, upto: int) -> tuple[int, float, int]:
    """Steps lost of those acknowledged, seconds to open, steps held."""
    begin = time.perf_counter()
    store = opened(folder)
    took = time.perf_counter() - begin
    assert store.recovery is None or not [d for d in store.recovery.damages if "reaches over" in d], store.recovery
    replay = store.transitions()
    ids = replay.sampleable_ids()
    held: set[int] = set()
    for at in range(0, len(ids), 1000):
        batch = replay.fetch(ids[at : at + 1000])
        serials = batch["serial"]
        for row, serial in enumerate(serials.tolist()):
            assert np.array_equal(batch.obs[row, -1], frame(serial)), f"step {serial} is not what was appended"
        assert np.array_equal(batch.action, serials) and np.array_equal(batch.reward, serials // LANES * LANES % 8)
        held.update(serials.tolist())
    assert len(held) == len(ids), "a step is there twice"
    first = turn * STEPS_A_ROUND
    oldest = max(first, upto - CAPACITY // 2)  # what lies further back may have left for newer steps
    lost = set(range(oldest, upto - LANES)) - held
    if lost:
        print(f"round {turn}: lost {min(lost)} to {max(lost)}, {len(lost)} steps of {first} to {upto}", flush=True)
    store.close()
    return len(lost), took, len(held)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    arguments = parser.parse_args()
    disk_module.REGION_BYTES = disk_module.SMALLEST_REGION = 128 << 10  # so that regions come and go
    base = arguments.folder or Path(tempfile.mkdtemp(prefix="sharpwave-crash-"))
    folder = base / "store"
    rng = np.random.default_rng(arguments.seed)
    losses = acknowledged_steps = 0
    worst = 0.0
    for turn in range(arguments.rounds):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write(folder, turn, writer)
            finally:
                os._exit(1)
        os.close(writer)
        time.sleep(float(rng.uniform(0.0, 0.15)))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        told = b""
        while chunk := os.read(reader, 1 << 16):
            told += chunk
        os.close(reader)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(f"round {turn}: the writer failed by itself; see above")
        upto = int(np.frombuffer(told, np.int64)[-1]) if told else turn * STEPS_A_ROUND
        lost, took, held = check(folder, turn, upto)
        losses, worst = losses + lost, max(worst, took)
        acknowledged_steps += upto - turn * STEPS_A_ROUND
        if turn % 50 == 49 or turn == arguments.rounds - 1:
            said = f"{acknowledged_steps:,} steps acknowledged, {losses} lost, slowest recovery {worst * 1e3:.0f} ms"
            print(f"{turn + 1} rounds: {said}, {held:,} steps held", flush=True)
    if arguments.folder is None:
        shutil.rmtree(base)
    sys.exit(1 if losses else 0)


if __name__ == "__main__":
    main()
