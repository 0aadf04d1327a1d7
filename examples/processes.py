"""Several processes act, one learns: segments are sent as bytes through pipes, and nothing is unpickled on the way.

Each actor encodes what it plays with a SegmentWriter; the learner puts the segments into its store as they are. The
actors are spawned; only their few arguments are pickled, by their own parent.

    python examples/processes.py
    python examples/processes.py --actors 4 --steps 20000
"""

import argparse
import multiprocessing
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import gymnasium as gym
import numpy as np

import sharpwave as sw

LANES = 2  # environments of each actor
SPEC = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
COUNT, ENTRY = struct.Struct("<I"), struct.Struct("<QI")


def to_bytes(sealed: sw.SealedSegment) -> bytes:
    """Write a segment and the dictionaries that it refers to: a count, each key and length and content, the segment."""
    shared = [ENTRY.pack(key, len(content)) + content for key, content in sealed.dictionaries.items()]
    return COUNT.pack(len(shared)) + b"".join(shared) + sealed.packed


def from_bytes(message: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Read what ``to_bytes`` wrote: the segment, and its dictionaries by key."""
    (count,), at = COUNT.unpack_from(message), COUNT.size
    dictionaries = {}
    for _ in range(count):
        key, length = ENTRY.unpack_from(message, at)
        at += ENTRY.size
        dictionaries[key], at = message[at : at + length], at + length
    return message[at:], dictionaries


def act(number: int, steps: int, pipe: Connection) -> None:
    """Play with random actions, and send each segment when it is sealed."""
    writer = sw.SegmentWriter(SPEC, LANES, lambda sealed: pipe.send_bytes(to_bytes(sealed)), first_lane=number * LANES)
    env = sw.Recorder(gym.make_vec("CartPole-v1", num_envs=LANES), writer)
    env.action_space.seed(number)
    env.reset(seed=number)
    for _ in range(steps // LANES):
        env.step(env.action_space.sample())
    pipe.close()  # steps of unsealed segments are not sent


def messages(pipes: list[Connection]) -> Iterator[bytes]:
    """Yield messages as they arrive, until every actor has closed its end."""
    pipes = list(pipes)
    while pipes:
        ready: list[Any] = wait(pipes, timeout=60)
        if not ready:
            raise TimeoutError("no actor sent anything for 60 s")
        for pipe in ready:
            try:
                yield pipe.recv_bytes()
            except EOFError:
                pipes.remove(pipe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of each actor")
    arguments = parser.parse_args()

    spawn = multiprocessing.get_context("spawn")
    pipes, actors = [], []
    for number in range(arguments.actors):
        here, there = spawn.Pipe(duplex=False)
        actors.append(spawn.Process(target=act, args=(number, arguments.steps, there)))
        actors[-1].start()
        there.close()  # only the actor's copy stays open, so that its end is noticed
        pipes.append(here)

    store = sw.Store(SPEC, capacity=100_000)
    replay = store.transitions(n_step=3)
    received = updates = 0
    for message in messages(pipes):
        packed, dictionaries = from_bytes(message)
        store.add_segment(packed, dictionaries)  # validated, then stored without decoding
        received += len(message)
        if len(replay) >= 256:
            batch = replay.sample(64)  # a learner would update its network here
            assert np.isfinite(batch.reward).all()
            updates += 1
    for actor in actors:
        actor.join()
        assert actor.exitcode == 0

    sent = received / max(1, store.total_steps)
    print(f"{store.total_steps:,} steps of {store.lanes} lanes arrived in {received:,} bytes, {sent:.0f} a step")
    print(f"{updates:,} batches were sampled meanwhile; {len(replay):,} steps can be sampled now")
    assert store.lanes == arguments.actors * LANES and len(replay) > 0


if __name__ == "__main__":
    main()
