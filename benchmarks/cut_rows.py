"""Transitions a second from shards to a learner, and bytes on the wire, by how batches get there.

    python benchmarks/cut_rows.py

Shards are processes of this machine, filled with random play of Pong (ale-py). A learner takes batches of 256 with a
lookahead of 4: over TCP as rows cut out of the shards' segments, which it decodes; over TCP as whole arrays; and in
memory that it shares with the shards, over a unix socket. Ways take turns, round by round; the table has medians, and
the processor time a transition of the learner and of the shards.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import frames
import numpy as np
import runner

import sharpwave as sw
from sharpwave.serve.local_shards import LocalShards
from sharpwave.serve.process import ShardSettings

SPEC = sw.Spec(obs=sw.Field((84, 84), "uint8", stack=4), action=sw.Field((), "int64"))
WAYS = {"cut rows, TCP": (1, True), "whole arrays, TCP": (1, False), "shared memory": (0, True)}
LOOKAHEAD = 4


def started(stack: ExitStack, shards: int) -> LocalShards:
    """Start shards that listen on a unix socket and on a port each."""
    folder = Path(stack.enter_context(TemporaryDirectory()))
    settings = [
        ShardSettings(
            number,
            [f"unix:{folder / f'{number}.sock'}", "127.0.0.1:0"],
            str(folder / f"shard-{number}"),
            SPEC.description(),
            {"capacity": 1_000_000, "ram": None, "disk_limit": None},
            on_disk=False,
        )
        for number in range(shards)
    ]
    made = LocalShards(settings)
    stack.callback(made.close)
    return made


class Way:
    """A learner's batches from shards that it reaches in one way."""

    def __init__(self, stack: ExitStack, shards: LocalShards, which: int, cuts: bool, batch_size: int) -> None:
        self.processes, self.batch_size = shards, batch_size
        self.cluster = stack.enter_context(sw.Cluster.of(SPEC, [one[which] for one in shards.addresses]))
        replay = self.cluster.transitions()
        replay._batches.cuts = cuts
        batches: Any = replay.stream(batch_size, lookahead=LOOKAHEAD)
        self.batches = batches
        stack.callback(batches.close)

    def take(self, count: int) -> dict[str, float]:
        """Take ``count`` batches; return what they cost."""
        links = [link for link in self.cluster.links if link is not None]
        before, shards = sum(link.received_bytes for link in links), self._shards_cpu()
        begin, own = time.perf_counter(), time.process_time()
        for _ in range(count):
            next(self.batches)
        items = count * self.batch_size
        return {
            "transitions a second": items / (time.perf_counter() - begin),
            "learner us": 1e6 * (time.process_time() - own) / items,
            "shards us": 1e6 * (self._shards_cpu() - shards) / items,
            "bytes": (sum(link.received_bytes for link in links) - before) / items,
        }

    def _shards_cpu(self) -> float:
        return sum(map(runner.processor_s, self.processes.processes))


def write(cluster: sw.Cluster, shard: int, recording: Any) -> None:
    """Write a recording to one shard."""
    with closing(cluster.writer(recording.lanes, shard=shard, segment_steps=64)) as writer:
        for t in range(recording.times):
            final = np.zeros((recording.lanes, 84, 84), np.uint8)
            ended = recording.terminated[t] | recording.truncated[t]
            for lane in np.flatnonzero(ended):
                final[lane] = recording.final[recording.final_place[t, lane]]
            writer.extend(
                obs=recording.obs[t], action=np.full(recording.lanes, t % 6), reward=recording.reward[t],
                terminated=recording.terminated[t], truncated=recording.truncated[t], final_obs=final,
            )  # fmt: skip


def main() -> None:
    """Measure, and print a table."""
    parser = runner.parser(__doc__)
    parser.add_argument("--steps", type=int, default=40_000, help="steps in each shard")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each way in a round, some")
    arguments = parser.parse_args()
    recording = frames.load("pong", arguments.steps)
    for shards in (1, 2):
        with ExitStack() as stack:
            processes = started(stack, shards)
            with sw.Cluster.of(SPEC, [one[0] for one in processes.addresses]) as cluster:
                for number in range(shards):
                    write(cluster, number, recording)
            ways = {
                name: Way(stack, processes, which, cuts, arguments.batch_size) for name, (which, cuts) in WAYS.items()
            }
            counts = {}
            for name, way in ways.items():
                way.take(20)  # so that kernels are compiled
                speed = way.take(20)["transitions a second"]
                counts[name] = max(5, int(arguments.seconds * speed / arguments.batch_size))
            found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
            for _ in range(arguments.rounds):
                for name, way in ways.items():
                    found[name].append(way.take(counts[name]))
        print(f"\n{shards} shard{'s' if shards > 1 else ''}, batches of {arguments.batch_size}")
        print(f"{'':20} {'transitions/s':>14} {'bytes each':>11} {'learner us':>11} {'shards us':>10}")
        for name, rounds in found.items():
            median = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
            print(
                f"{name:20} {median['transitions a second']:14,.0f} {median['bytes']:11,.0f} "
                f"{median['learner us']:11.2f} {median['shards us']:10.2f}"
            )


if __name__ == "__main__":
    main()
