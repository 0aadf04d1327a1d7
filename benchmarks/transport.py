"""Cost of transporting segments from an actor to the learner, by their length.

    python benchmarks/transport.py

Prints, for segments of several lengths of Pong frames (recipe pong): bytes a step, and microseconds a step to encode
them and to take them in; then messages a second that go from an actor's process to the learner's.
"""

from __future__ import annotations

import socket
import time
from queue import Queue
from typing import Any

import numpy as np
import runner

import sharpwave as sw
from sharpwave.envs import step_spec
from sharpwave.segment_writer import SealedSegment
from sharpwave.serve.supervisor import spawned
from sharpwave.training import setup
from sharpwave.training.actors.transport import Arrival, Inbox, Outbox
from sharpwave.training.recipes import load_recipe


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


def send(learner: socket.socket, size: int, count: int) -> None:
    """Send segments, as an actor does."""
    outbox, arrival = Outbox(learner), Arrival(32, 1, SealedSegment(0, 0, 32, bytes(size), {}))
    for _ in range(count):
        outbox.send(arrival)


def through_sockets(size: int, count: int) -> None:
    """Print messages per second from one process to another, and the processor time that receiving one takes."""
    process, ours = spawned(send, "sender", size, count)
    queue: Queue[Any] = Queue(256)
    Inbox(ours, queue, None)
    queue.get()
    begin, spent = time.perf_counter(), time.process_time()
    for _ in range(count - 1):
        queue.get()
    seconds, spent = time.perf_counter() - begin, time.process_time() - spent
    process.join()
    ours.close()
    print(f"{size:6,} bytes: {count / seconds:9,.0f} messages/s, {spent / count * 1e6:5.1f} us of processor each")


if __name__ == "__main__":
    parser = runner.parser(__doc__)
    parser.add_argument("--steps", type=int, default=8_000, help="steps of each of 4 environments (8000)")
    arguments = parser.parse_args()
    lengths(arguments.steps)
    for nbytes in (1_000, 4_000, 16_000):
        through_sockets(nbytes, 20_000)
