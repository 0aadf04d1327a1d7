"""Cost of transporting segments from an actor to the learner, by their length and by the channel.

    python benchmarks/transport.py

Prints, for segments of several lengths of Pong frames (recipe pong): bytes a step, and microseconds a step to encode
them and to take them in; then megabytes and messages a second that go from one process to another through a pipe, and
through a ring in shared memory.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import runner

import sharpwave as sw
from sharpwave.envs import step_spec
from sharpwave.serve.supervisor import CONTEXT
from sharpwave.training import setup
from sharpwave.training.actors.counters import shared_memory
from sharpwave.training.recipes import load_recipe

RING = 1 << 20


def recorded(steps: int) -> tuple[sw.Spec, list[dict[str, Any]]]:
    """Record random play of Pong as arguments of ``extend``."""
    recipe = load_recipe("pong")
    env = setup.environments(recipe, 4)
    rng, rows = np.random.default_rng(0), []
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        action = rng.integers(0, 3, 4)
        frames = obs[:, -1].copy()
        result: Any = env.step(action)
        obs, reward, terminated, truncated, infos = result
        final = infos["final_obs"][:, -1].copy() if "final_obs" in infos else None
        rows.append(
            {
                "obs": frames, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated,
                "final_obs": final,
            }
        )  # fmt: skip
    return step_spec(env), rows


def lengths(steps: int) -> None:
    """Print bytes and times per step by the length of segments."""
    spec, rows = recorded(steps)
    print("steps a segment   bytes a step   us to encode a step   us to take a step in   bytes a segment")
    for length in (8, 16, 32, 64, 128):
        store = sw.Store(spec, capacity=1_000_000, segment_steps=length)
        view = store.transitions(n_step=5, sampler=sw.Prioritized())
        sealed: list[sw.SealedSegment] = []
        writer = sw.SegmentWriter(spec, 4, sealed.append, segment_steps=length)
        begin = time.perf_counter()
        for row in rows:
            writer.extend(**row)
        middle = time.perf_counter()
        errors = np.ones(length, np.float32)
        for one in sealed:
            store.add_segment(one.packed, one.dictionaries, td_error=errors[: one.steps])
            len(view)
        end = time.perf_counter()
        arrived = len(store)
        late = sealed[len(sealed) // 2 :]  # sealed after codecs were chosen
        nbytes = sum(len(one.packed) for one in late) / sum(one.steps for one in late)
        print(
            f"{length:15} {nbytes:14.1f} {(middle - begin) / (4 * steps) * 1e6:21.1f} "
            f"{(end - middle) / arrived * 1e6:22.1f} {nbytes * length:17,.0f}"
        )
        store.close()


def write_pipe(pipe: Any, size: int, count: int) -> None:
    """Write messages to a pipe, as an actor does."""
    message = memoryview(bytes(size))
    for _ in range(count):
        rest = message
        while rest:
            rest = rest[os.write(pipe.fileno(), rest) :]


def write_ring(memory: Any, size: int, count: int) -> None:
    """Write messages to a ring buffer: two counters, and bytes from word 16 on."""
    counters, ring = np.frombuffer(memory, np.int64, 16), np.frombuffer(memory, np.uint8, RING, 128)
    message, at = np.zeros(size, np.uint8), 0
    for _ in range(count):
        while at + size - int(counters[8]) > RING:
            time.sleep(0)
        begin = at % RING
        first = min(size, RING - begin)
        ring[begin : begin + first] = message[:first]
        ring[: size - first] = message[first:]
        at += size
        counters[0] = at


def ways(size: int, count: int) -> None:
    """Print messages per second through each."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=write_pipe, args=(theirs, size, count), daemon=True)
    process.start()
    theirs.close()
    got, begin = 0, 0.0
    while got < size * count:
        got += len(os.read(ours.fileno(), 1 << 18))
        begin = begin or time.perf_counter()
    report("pipe", size, count, time.perf_counter() - begin)
    process.join()

    memory = shared_memory(128 + RING)
    counters, ring = np.frombuffer(memory, np.int64, 16), np.frombuffer(memory, np.uint8, RING, 128)
    process = CONTEXT.Process(target=write_ring, args=(memory, size, count), daemon=True)
    process.start()
    at, begin = 0, 0.0
    while at < size * count:
        there = int(counters[0]) - at
        if not there:
            time.sleep(0)
            continue
        begin = begin or time.perf_counter()
        first = min(there, RING - at % RING)
        ring[at % RING : at % RING + first].tobytes()
        at += first
        counters[8] = at
    report("ring in shared memory", size, count, time.perf_counter() - begin)
    process.join()


def report(name: str, size: int, count: int, seconds: float) -> None:
    print(f"{name:22} {size:6,} bytes: {count / seconds:9,.0f} messages/s, {size * count / seconds / 1e6:7.1f} MB/s")


if __name__ == "__main__":
    parser = runner.parser(__doc__)
    parser.add_argument("--steps", type=int, default=8_000, help="steps of each of 4 environments (8000)")
    arguments = parser.parse_args()
    lengths(arguments.steps)
    for nbytes in (1_000, 4_000, 16_000):
        ways(nbytes, 20_000)
