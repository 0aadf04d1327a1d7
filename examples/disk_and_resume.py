"""A store larger than its memory that outlives its process: crash, reopen, checkpoint, resume exactly.

The program plays in a child process, kills it in mid-episode, opens what it left, then saves a checkpoint and shows
that two stores opened from it give the same batches.

    python examples/disk_and_resume.py
    python examples/disk_and_resume.py --folder /mnt/fast/replay --steps 20000
"""

import argparse
import multiprocessing
import os
import signal
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import sharpwave as sw

LANES = 4
SPEC = sw.Spec(obs=sw.Field((84, 84), "uint8", stack=4), action=sw.Field((), "int64"))


def frames(rng: np.random.Generator, step: int) -> np.ndarray:
    """Draw one frame for each lane: a bright square that wanders over a dark picture."""
    pictures = np.zeros((LANES, 84, 84), np.uint8)
    for lane in range(LANES):
        row, column = (step * (lane + 1)) % 76, int(rng.integers(0, 76))
        pictures[lane, row : row + 8, column : column + 8] = 200
    return pictures


def play(store: sw.Store, steps: int) -> None:
    """Append steps of episodes that end every 100 steps."""
    rng = np.random.default_rng(len(store))
    now = frames(rng, 0)
    for step in range(steps):
        after, over = frames(rng, step + 1), np.full(LANES, step % 100 == 99)
        store.extend(
            obs=now, action=rng.integers(0, 4, LANES), reward=rng.normal(size=LANES),
            terminated=over, truncated=np.zeros(LANES, bool), next_obs=after,
        )  # fmt: skip
        now = after


def child(folder: str, steps: int, ready: Connection) -> None:
    """Play, flush, tell the parent, and wait to be killed."""
    store = sw.Store(SPEC, capacity=1_000_000, ram="64MiB", disk=folder, disk_limit="1GiB")
    play(store, steps)
    store.flush()  # the steps appended so far survive a crash
    ready.send_bytes(str(len(store)).encode())
    while True:
        play(store, 100)


def view(store: sw.Store) -> sw.Transitions:
    """Make the learner's view; its name identifies it in checkpoints."""
    return store.transitions(n_step=3, sampler=sw.Prioritized(), name="learner")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a new or empty folder; default: a temporary one")
    parser.add_argument("--steps", type=int, default=2_000, help="steps of each lane before the crash")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe(duplex=False)
        process = spawn.Process(target=child, args=(str(folder / "replay"), arguments.steps, there))
        process.start()
        there.close()
        flushed = int(here.recv_bytes())
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
        process.join()

        store = sw.Store.open(folder / "replay")
        print(f"flushed {flushed:,} steps, killed, reopened with {len(store):,}: {store.recovery}")
        assert len(store) >= flushed

        learner = view(store)
        for batch in learner.stream(64, lookahead=4):  # prefetched, which hides reads from disk
            learner.update_priorities(batch, td_error=np.abs(batch.reward))
            if store.stats()["disk"]["hits"] > 100:
                break
        store.checkpoint(folder / "checkpoint")
        expected = learner.sample(64)
        store.close()

        for copy in ("first", "second"):
            with sw.Store.open(folder / "checkpoint", disk=folder / copy) as again:
                batch = view(again).sample(64)
                same = np.array_equal(batch.ids, expected.ids) and np.array_equal(batch.obs, expected.obs)
                print(f"resumed in {copy}: {len(again):,} steps, the same batch: {same}")
                assert same


if __name__ == "__main__":
    main()
