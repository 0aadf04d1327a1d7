"""Worst calls: steps of 1,024 Humanoids added to memories that are empty at first.

    python benchmarks/stalls.py [--calls 977] [--lanes 1024] [--rounds 3] [--pause 0] [--backed]

Each contender is filled in a process of its own, in turn, by the clock: whatever holds the caller up counts. The
columns of processor time leave out what other processes take. The first call opens the lanes, and is shown apart. Until
a memory is full the system clears each page that is written for the first time, which takes longer than the copy: the
plain numpy ring shows how long. Where a virtual machine gives free pages back to its host, each takes some 8 us more,
or 4 ms for a huge page; with ``--backed`` the process frees such pages as it had before each call, so that these are
taken. ``--pause`` is for environments: milliseconds between two calls, in which threads go on.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import runner
from vectors import CONTENDERS, Steps

NAMES = ("sharpwave", "numpy ring", "SB3", "cpprb")


def humanoids(lanes: int, steps: int) -> list[Steps]:
    """Return steps of Humanoids that act at random: those of 8, each lane from another step on."""
    same = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("Humanoid-v5", 8, vector_kwargs=same)
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=0)
    rows, lasting = [], 512
    for _ in range(lasting):
        action = envs.action_space.sample()
        following, reward, terminated, truncated, infos = envs.step(action)
        ended, after = terminated | truncated, following.copy()
        for env in np.flatnonzero(ended):
            after[env] = infos["final_obs"][env]
        rows.append((obs, action, reward, ended, after))
        obs = following
    columns = [np.stack(some) for some in zip(*rows, strict=True)]
    which, shift = np.arange(lanes) % 8, np.arange(lanes) * 31
    no = np.zeros(lanes, np.bool_)
    nothing: list[dict[str, Any]] = [{} for _ in range(lanes)]
    found = []
    for step in range(steps):
        at = (shift + step) % lasting
        obs, action, reward, ended, after = (column[at, which] for column in columns)
        obs, action, reward, after = (one.astype(np.float32) for one in (obs, action, reward, after))
        found.append(Steps(obs, action, reward, ended, no, after, nothing))
    return found


def written(nbytes: int) -> mmap.mmap:
    """Return memory of huge pages that has been written to."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
    return memory


def filled(name: str, lanes: int, calls: int, backed: bool, pause_s: float) -> list[list[float]]:
    """Return milliseconds of each call, and of the calling thread's processor time."""
    steps = humanoids(lanes, 64)
    contender = CONTENDERS[name]()
    contender.build(calls * lanes, lanes, steps[0].obs.shape[1], steps[0].action.shape[1])
    items, spent = [contender.item(one) for one in steps], []
    step_bytes = sum(one.nbytes for one in (steps[0].obs, steps[0].next_obs, steps[0].action)) // lanes
    spare = [written(max(2 << 20, step_bytes * lanes)) for _ in range(calls if backed else 0)]
    first = written(step_bytes * lanes * 160) if backed else None
    for call in range(calls):
        if call == 0 and first is not None:
            first.close()
        if spare:
            spare.pop().close()
        if pause_s:
            time.sleep(pause_s)
        began, used = time.perf_counter(), time.thread_time()
        contender.add(items[call % len(items)])
        spent.append([1e3 * (time.perf_counter() - began), 1e3 * (time.thread_time() - used)])
    return spent


def main() -> None:
    """Fill each contender several times, and print medians of the rounds."""
    parser = runner.parser(__doc__)
    parser.add_argument("--calls", type=int, default=977, help="a million steps")
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0, help="milliseconds between two calls")
    parser.add_argument("--backed", action="store_true", help="with pages that the process has had before")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        pause_s = arguments.pause / 1e3
        print(json.dumps(filled(arguments.one, arguments.lanes, arguments.calls, arguments.backed, pause_s)))
        return
    spent: dict[str, list[list[list[float]]]] = {name: [] for name in NAMES}
    for _ in range(arguments.rounds):
        for name in NAMES:
            command = [sys.executable, __file__, "--one", name, "--calls", str(arguments.calls)]
            command += ["--lanes", str(arguments.lanes), "--pause", str(arguments.pause)]
            command += ["--backed"] if arguments.backed else []
            found = runner.last_line(command, name)
            if found is None:
                sys.exit(1)
            spent[name].append(found)
    title = f"{arguments.calls:,} calls of {arguments.lanes:,} Humanoids, milliseconds a call"
    heads = ("mean", "median", "99 %", "worst", "above 3x", "processor: mean", "median", "worst", "above 3x", "first")
    table = runner.table(title, "", *heads)
    for name, rounds in spent.items():
        some = [np.array(one[1:]).T for one in rounds]

        def middle(figure: Callable[[Any, Any], Any], some: list[Any] = some) -> str:
            return f"{statistics.median(float(figure(clock, used)) for clock, used in some):.2f}"

        cells = [
            middle(lambda clock, used: np.mean(clock)),
            middle(lambda clock, used: np.median(clock)),
            middle(lambda clock, used: np.percentile(clock, 99)),
            middle(lambda clock, used: np.max(clock)),
            middle(lambda clock, used: np.count_nonzero(clock > 3 * np.median(clock))),
            middle(lambda clock, used: np.mean(used)),
            middle(lambda clock, used: np.median(used)),
            middle(lambda clock, used: np.max(used)),
            middle(lambda clock, used: np.count_nonzero(used > 3 * np.median(used))),
        ]
        first = statistics.median(one[0][0] for one in rounds)
        table.add_row(name, *(cell.removesuffix(".00") for cell in cells), f"{first:.2f}")
    runner.console(120).print(table)


if __name__ == "__main__":
    main()
