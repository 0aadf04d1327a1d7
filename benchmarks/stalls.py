"""Worst calls: steps of 1,024 Humanoids added to memories that are empty at first.

    python benchmarks/stalls.py [--calls 977] [--lanes 1024] [--rounds 3]

Each contender is filled in a process of its own, in turn, by the clock: whatever holds the caller up counts. The first
call opens the lanes, and is shown apart. Until a memory is full the system clears each page that is written for the
first time, which takes longer than the copy: the plain numpy ring shows how long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table
from vector_contenders import CONTENDERS, Steps

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


def filled(name: str, lanes: int, calls: int) -> list[float]:
    """Return milliseconds of each call."""
    steps = humanoids(lanes, 64)
    contender = CONTENDERS[name]()
    contender.build(calls * lanes, lanes, steps[0].obs.shape[1], steps[0].action.shape[1])
    items, spent = [contender.item(one) for one in steps], []
    for call in range(calls):
        began = time.perf_counter()
        contender.add(items[call % len(items)])
        spent.append(1e3 * (time.perf_counter() - began))
    return spent


def main() -> None:
    """Fill each contender several times, and print medians of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=977, help="a million steps")
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(filled(arguments.one, arguments.lanes, arguments.calls)))
        return
    spent: dict[str, list[list[float]]] = {name: [] for name in NAMES}
    for _ in range(arguments.rounds):
        for name in NAMES:
            command = [sys.executable, __file__, "--one", name, "--calls", str(arguments.calls)]
            command += ["--lanes", str(arguments.lanes)]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            spent[name].append(json.loads(ran.stdout.splitlines()[-1]))
    table = Table(title=f"{arguments.calls:,} calls of {arguments.lanes:,} Humanoids, milliseconds a call")
    for head in ("", "mean", "median", "99 %", "worst", "worst / median", "first"):
        table.add_column(head, justify="right" if head else "left")
    for name, rounds in spent.items():
        some = [np.array(one[1:]) for one in rounds]
        cells = [
            statistics.median(float(figure(one)) for one in some)
            for figure in (np.mean, np.median, lambda one: np.percentile(one, 99), np.max)
        ]
        cells += [cells[3] / cells[1], statistics.median(one[0] for one in rounds)]
        table.add_row(name, *(f"{cell:.2f}" for cell in cells))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
