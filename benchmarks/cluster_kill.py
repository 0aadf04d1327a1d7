"""What is lost when one of two shards, or servers of Reverb, is killed. Part of ``cluster.py``."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import cluster_ours
import frames
from cluster_world import Steps

import sharpwave as sw

WRITERS, BACK_S = 4, 60.0


def measure(folder: Path, reverb: str | None, steps: int) -> dict[str, dict[str, float]]:
    """Return the steps acknowledged, and of them those there once the killed process is back."""
    recorded = Steps(frames.read(folder))
    found = {
        "shards in memory": _ours(recorded, steps, False, "memory"),
        "shards on disk": _ours(recorded, steps, True, "memory"),
        "shards on disk, flushed": _ours(recorded, steps, True, "flush"),
    }
    if reverb is not None:
        found["Reverb"] = _reverb(folder, reverb, steps, False)
        found["Reverb, checkpoint at half"] = _reverb(folder, reverb, steps, True)
    return found


def _ours(recorded: Steps, steps: int, on_disk: bool, durability: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="sharpwave-bench-") as name, ExitStack() as stack:
        shards = cluster_ours.Shards(2, 1_000_000, Path(name) / "disk" if on_disk else None)
        stack.callback(shards.close)
        addresses = shards.addresses["unix"]
        writers = [cluster_ours.Writer(addresses, number, durability) for number in range(WRITERS)]
        for number, writer in enumerate(writers):
            mine = recorded.of(number)
            for _ in range(steps // WRITERS):
                writer.write(next(mine))
        acknowledged = sum(writer.flush() for writer in writers)
        os.kill(shards.processes[0], signal.SIGKILL)
        begin = time.monotonic()
        with sw.Cluster.of(cluster_ours.SPEC, addresses) as cluster:
            while True:
                try:
                    there = len(cluster)
                    break
                except ConnectionError:
                    if time.monotonic() > begin + BACK_S:
                        raise
                    time.sleep(0.02)
        return {"acknowledged": acknowledged, "there": there, "back_s": time.monotonic() - begin}


def _reverb(folder: Path, python: str, steps: int, checkpoint: bool) -> dict[str, float]:
    """As ``_ours``; nothing starts a server of Reverb again, so this does."""
    from cluster import fresh, reverb_servers, worker

    with ExitStack() as stack:
        kept = fresh(stack, 2)
        servers = reverb_servers(stack, python, kept)
        addresses = [address for _, address in servers]
        writers = worker(stack, python, "writers", "cluster_reverb", str(folder), *addresses)
        acknowledged = 0
        for _ in range(2):
            acknowledged += writers.ask(do="write", writers=WRITERS, seconds=0, steps=steps // 2)["steps"]
            if checkpoint and not acknowledged > steps // 2:
                for one, _ in servers:
                    one.ask(checkpoint=True)
        servers[0][0].close()
        begin = time.monotonic()
        servers[:1] = reverb_servers(stack, python, kept[:1], int(addresses[0].rpartition(":")[2]))
        there = sum(one.ask()["items"] for one, _ in servers)
        return {"acknowledged": acknowledged, "there": there, "back_s": time.monotonic() - begin}
