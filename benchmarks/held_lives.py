"""Lives of small stores whose held set, items and episodes are compared before and after each: of lifetimes.py and
crash.py.

A store lives ``LIVES_A_STORE`` times, each time in a process of its own. What is compared, and with what, is
``sharpwave.testing.torture``'s: lists of what the process acknowledged. A store that fails is given up, its remaining
lives are counted as failed, and its program is kept.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from sharpwave.testing.torture.program import RETENTIONS, Operation, Program
from sharpwave.testing.torture.run import outcome

LIVES_A_STORE = 25
LANES, SEGMENT_STEPS, REGION_BYTES = 3, 8, 8192
LIMITS: dict[str, dict[str, Any]] = {
    "capacity": {"capacity": 240},
    "ram": {"capacity": 900, "ram": 8 << 20},  # of a store on disk it bounds what is cached: steps are read again
    "disk_limit": {"disk_limit": 14 * REGION_BYTES},
}
WIDTHS = {"capacity": 6, "ram": 10_000, "disk_limit": 200}
VIEWS = ("one", "priorities", "queue", "windows")
ENDS: dict[str, tuple[str, ...]] = {
    "closed": ("flush", "close"),  # closing writes the rows of open segments, too, and evicts for them at a disk_limit
    "flushed and killed": ("flush", "kill"),
    "killed": ("kill",),
    "killed amid writing": ("fault", "steps", "kill"),
}
Say = Callable[[str], None]


def program(retention: str, limit: str, ends: list[str], lives: int, seed: int) -> Program:
    """Return the lives of one store: each samples, writes some hundred steps in five ways, and ends in one of
    ``ends``."""
    rng = random.Random(f"{retention} {limit} {seed}")
    settings = {
        "retention": retention,
        "on_full": "raise",
        "codec": "raw",
        "segment_steps": SEGMENT_STEPS,
        "seed": seed,
    }
    settings |= {"region_bytes": REGION_BYTES if limit != "ram" else 1 << 20} | LIMITS[limit]
    operations: list[Operation] = []
    serial = 1

    def steps() -> None:
        nonlocal serial
        how = rng.choice(["append", "extend", "block", "episode"])
        lanes = [rng.randrange(LANES)] if how in ("append", "episode") else list(range(LANES))
        count = rng.randint(5, 25) * len(lanes)
        marks = "".join(rng.choice("tu") if rng.random() < 0.06 else "." for _ in range(count))
        marks = marks if how != "episode" else "." * (count - 1) + rng.choice("tu")
        operations.append({"do": "steps", "how": how, "lanes": lanes, "ends": marks, "serial": serial})
        serial += count

    for _ in range(lives):
        for _ in range(rng.randint(1, 3)):
            steps()
            view = rng.choice(VIEWS[:3])
            operations.append({"do": "sample", "view": view, "count": 4, "seed": rng.randrange(1 << 30)})
        for do in ENDS[rng.choice(ends)]:
            if do == "steps":
                steps()
            elif do == "fault":
                operations.append({"do": "fault", "kind": "kill", "at": rng.randint(1, 12), "times": 1})
            else:
                operations.append({"do": do})
    return Program(settings, operations, LANES, 0, WIDTHS[limit], VIEWS if limit != "ram" else VIEWS[:3], seed)


def _outcome(one: Program) -> tuple[str, Counter[str], int, str]:
    failure, counts, at = outcome(one)
    if failure is None:
        return "", counts, at, ""
    return str(failure), counts, at, one.with_operations(one.operations[: at + 1]).script(str(failure))


def compare(
    lives: int, ends: list[str], seed: int, say: Say, retentions: tuple[str, ...] = RETENTIONS
) -> dict[str, Any]:
    """Run so many lives for each retention and limit; return counts by both."""
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for retention in retentions:
            for limit in LIMITS:
                begun = time.perf_counter()
                stores = [
                    program(retention, limit, ends, min(LIVES_A_STORE, lives - at), seed + at)
                    for at in range(0, lives, LIVES_A_STORE)
                ]
                total, failures = Counter[str](), []
                for message, counts, _, script in pool.map(_outcome, stores):
                    total.update(counts)
                    if message:
                        failures.append({"message": message, "script": script})
                        say(f"{retention}, {limit}: {message}")
                row: dict[str, Any] = {
                    name: total[name] for name in ("openings", "steps", "items", "priorities", "episodes")
                }
                row |= {"lives": lives, "stores": len(stores), "closes": total["closes"]}
                row |= {"kills": total["kills"] + total["kills amid an operation"], "failed_stores": len(failures)}
                row["seconds"] = round(time.perf_counter() - begun, 1)
                found[f"{retention}, {limit}"] = row | {"failures": failures}
                say(line(f"{retention}, {limit}", row))
    return found


HEAD = f"{'store':28}{'lives':>7}{'openings':>10}{'kills':>7}{'steps':>10}{'items':>11}{'episodes':>10}{'failed':>8}"


def line(name: str, row: dict[str, Any]) -> str:
    """Return a line of the table."""
    return (
        f"{name:28}{row['lives']:7,}{row['openings']:10,}{row['kills']:7,}{row['steps']:10,}{row['items']:11,}"
        f"{row['episodes']:10,}{row['failed_stores']:8,}"
    )
