"""One store through a thousand processes, in a folder with foreign files; each process first checks all steps.

    python benchmarks/lifetimes.py [--lives 1000] [--retention fifo] [--held 1000] [--seed 0] [--out FILE]

A life is a process of its own: it opens the store, checks it, appends to some of eight lanes, flushes, checkpoints and
samples now and then, and ends: by close(), at the end of ``with``, by dropping the store, by leaving the interpreter,
by an exception, or by SIGKILL at a random moment. Some lives open it by a relative path and change their directory;
some give other limits than it was made with; some go on from the last checkpoint instead. Between lives other people's
files appear: notes, folders with numbers for names, another store's regions, in the store's folder, in ``regions/`` and
beside the checkpoint.

What is checked in each life, against a log of all lives that the store has no part in:

- every acknowledged step (by flush() or by any polite end) that retention had no reason to evict is there; of an
  episode that was broken off by the process's end, all but its last step;
- of every step that is there the observation, the stack, the 3-step return, the discount and the successor are those of
  the log, and no return or stack reaches into another episode;
- what was evicted left the files .45 full or more, and with Fifo the newest .3 of the limit stayed;
- other people's files are where they were, byte for byte;
- files stay within the limit and one region; descriptors and the time to open stay as they were.

Then --held lives of small stores for each retention and each of ``capacity``, ``ram`` and ``disk_limit``
of them: before and after each life the held set is the same, and every item of every view, every priority
and every episode is what a plain log of the acknowledged steps says. They are closed, or flushed and killed. A store
lives ``LIVES_A_STORE`` times, each time in a process of its own; one that fails is given up, its remaining lives are
counted as failed, and its program is kept.

Prints a line every fifty lives and a table, writes results/lifetimes.json; exit status 1 if anything was wrong.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import runner
from one_life import LIMIT, OTHER_LIMITS, POLITE, RETENTIONS, SPEC, History, Log, frames, live, rewards

import sharpwave as sw
from sharpwave.testing.torture import program as torture
from sharpwave.testing.torture.run import outcome

LIVES_A_STORE = 25
SMALL_LANES, SEGMENT_STEPS, REGION_BYTES = 3, 8, 8192
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


class Strangers:
    """Foreign files in and around the store's folders, and the check that they are unchanged."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.files: dict[Path, bytes] = {}
        other = base / "b" / "replay"
        with sw.Store(SPEC, capacity=4_000, disk=other, segment_steps=32) as store:
            for serial in range(0, 1_000, 8):
                serials = np.arange(serial, serial + 8)
                no = np.zeros(8, np.bool_)
                store.extend(
                    obs=frames(serials),
                    action=serials,
                    reward=rewards(serials),
                    serial=serials,
                    terminated=no,
                    truncated=no,
                )  # fmt: skip
            store.flush()
        for path in other.rglob("*"):
            if path.is_file() and path.name != "lock":
                self.files[path] = path.read_bytes()
        self._region = next((other / "regions").glob("*.region")).read_bytes()

    def strew(self, rng: np.random.Generator) -> None:
        """Create one more foreign file."""
        number = int(rng.integers(1 << 30))
        places = [
            ("a/replay", f"notes-{number}.txt"), ("a/replay", ".DS_Store"), ("a/replay", f"{number}/1/keep.txt"),
            ("a/replay/regions", f"{number:012d}.region"), ("a/replay/regions", f"{number}.txt"),
            ("a/replay/quarantine", f"mine-{number}"), ("a/replay/regions", f"{number % 50:012d}.region.bak"),
            ("checkpoint", f"{number}/weights.bin"), ("checkpoint", f"{number % 40 + 1000}/regions/keep.region"),
            ("checkpoint", "README"), ("checkpoint", f".{number}.partial/keep"),
        ]  # fmt: skip
        folder, name = places[int(rng.integers(len(places)))]
        path = self.base / folder / name
        if (self.base / folder).exists() and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._region if name.endswith(".region") else os.urandom(int(rng.integers(1, 500))))
            self.files[path] = path.read_bytes()

    def forget(self, folder: Path) -> None:
        """Forget the files of a folder that the benchmark itself has removed."""
        self.files = {path: content for path, content in self.files.items() if folder not in path.parents}

    def touched(self) -> list[str]:
        """Return the files that are missing or changed."""
        return [str(path) for path, content in self.files.items() if not path.exists() or path.read_bytes() != content]


def on_disk(folder: Path) -> int:
    """Return the bytes that region files take on disk, foreign ones included."""
    return sum(path.stat().st_blocks * 512 for path in (folder / "regions").glob("*.region"))


def run(lives: int, seed: int, retention: str, base: Path, verbose: bool) -> dict[str, Any]:
    """Run all lives, one after another."""
    for name in ("a", "b"):
        (base / name).mkdir()
    rng = np.random.default_rng(seed)
    strangers = Strangers(base)
    log = Log(base)
    told: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "lives": 0,
        "retention": retention,
        "ends": {},
        "wrong": 0,
        "lost": 0,
        "early_evictions": 0,
    }
    result |= {"strangers_files": 0, "strangers_touched": 0, "failed_lives": 0, "over_limit_bytes": 0}
    result |= {"opened_with_other_limits": 0, "went_on_from_checkpoint": 0, "compared": 0}
    may_go, smallest = -1, LIMIT  # the last step that may be evicted; the smallest recent limit
    for life in range(lives):
        how: dict[str, Any] = {
            "relative": rng.random() < 0.3,
            "limits": {"disk_limit": int(rng.choice(OTHER_LIMITS))} if life and rng.random() < 0.15 else {},
            "from_checkpoint": rng.random() < 0.03,
            "checkpoints": rng.random() < 0.5,
            "rounds": int(rng.integers(0, 6)),
            "retention": retention,
            "end": str(rng.choice([*POLITE, "kill", "kill", "kill at any moment", "kill at any moment"])),
        }
        how["from_checkpoint"] &= how["end"] != "kill at any moment"  # which is not atomic here
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                live(base, life, seed, how, writer)
            except SystemExit:
                sys.stdout.flush()
                # The interpreter's normal exit, with its cleanup of remaining objects.
                raise
            except BaseException:
                os.write(writer, (json.dumps({"failed": traceback.format_exc()}) + "\n").encode())
                os._exit(1)
        os.close(writer)
        lines = b""
        if how["end"] == "kill at any moment":
            time.sleep(float(rng.uniform(0.05, 0.6)))
            os.kill(child, signal.SIGKILL)
        while chunk := os.read(reader, 1 << 16):
            lines += chunk
        os.close(reader)
        os.waitpid(child, 0)
        said: dict[str, Any] = {}
        for line in lines.decode().splitlines():
            said |= json.loads(line)
        if said.get("ended") == "exit":
            log.write("acknowledged", int(log.read("steps", 4)[:, 0].max(initial=-1)) + 1, life)
        result["lives"] += 1
        result["ends"][how["end"]] = result["ends"].get(how["end"], 0) + 1
        result["opened_with_other_limits"] += bool(how["limits"])
        if "failed" in said:
            result["failed_lives"] += 1
            print(f"life {life} {how}: {said['failed']}", flush=True)
        if "wrong" in said:
            told.append(said)
            smallest = min(smallest, said["limit"])
            result["went_on_from_checkpoint"] += said["came"] == "checkpoint"
            result["compared"] += said["held"]
            result["wrong"] += said["wrong"]
            ours = [one for one in said["damages"] if not any(str(path) in one for path in strangers.files)]
            # Eviction leaves the files nearly half full; Fifo keeps the newest steps. (Evicted segments return with
            # their region when a store is opened, so older steps may exist too.)
            if said["newest_missing"] > may_go:
                early = said["held_bytes"] < 0.45 * smallest
                lost = retention == "fifo" and said["newer"] * said["held_bytes"] < 0.3 * smallest * said["held"]
                if early or lost:
                    result["lost" if lost else "early_evictions"] += 1
                    print(f"life {life} {how}: {said | {'damages': ours}}, may go {may_go}", flush=True)
                may_go = said["newest_missing"]
            if said["wrong"] or ours or verbose:
                print(f"life {life} {how}: {said | {'damages': ours}}", flush=True)
            if retention != "reservoir":  # for equal chances it never admits a step that it has rejected once
                smallest = said["limit"]
        else:
            smallest = min(smallest, *how["limits"].values(), LIMIT)
        replay = base / "a" / "replay"
        region = max(1 << 20, max([LIMIT, *how["limits"].values()]) // 8)
        over = on_disk(replay) - sum(len(c) + 4096 for p, c in strangers.files.items() if p.suffix == ".region")
        over -= max([LIMIT, *how["limits"].values()]) + region
        result["over_limit_bytes"] = max(result["over_limit_bytes"], over)
        if said.get("came") == "checkpoint" or (base / "trash").exists():
            shutil.rmtree(base / "trash", ignore_errors=True)
            strangers.forget(replay)
        touched = strangers.touched()
        if touched:
            print(f"life {life} {how}: other people's files touched: {touched}", flush=True)
            result["strangers_touched"] += len(touched)
            for path in touched:
                del strangers.files[Path(path)]
        strangers.strew(rng)
        result["strangers_files"] = len(strangers.files)
        if life % 50 == 49 or life == lives - 1:
            part = told[-50:]
            print(
                f"{life + 1:5d} lives: {part[-1]['held']:,} steps held, {part[-1]['disk_bytes']:,} bytes of files, "
                f"{part[-1]['descriptors']} descriptors, open {np.median([t['open_s'] for t in part]) * 1e3:.0f} ms;"
                f" wrong {result['wrong']}, lost {result['lost']}, evicted early {result['early_evictions']}, "
                f"touched {result['strangers_touched']}, failed {result['failed_lives']}",
                flush=True,
            )
    tenth = max(1, len(told) // 10)
    full = [t for t in told if t["held"] > 0.8 * max(t["held"] for t in told)]
    ends = full[: len(full) // 3], full[-(len(full) // 3) :]
    for name in ("descriptors", "open_s"):
        result[f"{name}_first"] = float(np.median([t[name] for t in told[:tenth]]))
        result[f"{name}_last"] = float(np.median([t[name] for t in told[-tenth:]]))
        result[f"{name}_worst"] = float(max(t[name] for t in told))
        result[f"{name}_full_early"], result[f"{name}_full_late"] = (
            float(np.median([t[name] for t in part])) if part else 0.0 for part in ends
        )
    result["acknowledged"] = int(History.of(log).acknowledged.sum())
    return result


def program(retention: str, limit: str, ends: list[str], lives: int, seed: int) -> torture.StoreProgram:
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
    operations: list[torture.Operation] = []
    serial = 1

    def steps() -> None:
        nonlocal serial
        how = rng.choice(["append", "extend", "block", "episode"])
        lanes = [rng.randrange(SMALL_LANES)] if how in ("append", "episode") else list(range(SMALL_LANES))
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
    views = VIEWS if limit != "ram" else VIEWS[:3]
    return torture.StoreProgram(settings, operations, SMALL_LANES, 0, WIDTHS[limit], views, seed)


def _outcome(one: torture.StoreProgram) -> tuple[str, Counter[str], int, str]:
    failure, counts, at = outcome(one)
    if failure is None:
        return "", counts, at, ""
    return str(failure), counts, at, one.with_operations(one.operations[: at + 1]).script(str(failure))


def compare(
    lives: int, ends: list[str], seed: int, say: Say, retentions: tuple[str, ...] = torture.RETENTIONS
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


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--lives", type=int, default=1000, help="of one store among other people's files; 0: none")
    parser.add_argument("--held", type=int, default=1000, help="of small stores, for each retention and limit; 0: none")
    parser.add_argument("--retention", choices=list(RETENTIONS), default="fifo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--verbose", action="store_true", help="print a line for each life")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "lifetimes.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    bad_count = 0
    if arguments.lives:
        base = Path(tempfile.mkdtemp(prefix="sharpwave-lives-"))
        begin = time.perf_counter()
        result = run(arguments.lives, arguments.seed, arguments.retention, base, arguments.verbose)
        result["seconds"] = round(time.perf_counter() - begin, 1)
        results[arguments.retention] = result
        for name, value in result.items():
            print(f"{name:28} {value}")
        if arguments.keep:
            print(base)
        else:
            shutil.rmtree(base)
        bad = ("wrong", "lost", "early_evictions", "strangers_touched", "failed_lives")
        bad_count += sum(result[name] for name in bad) + max(0, result["over_limit_bytes"])
        print("all right" if not bad_count else f"NOT RIGHT: {[(name, result[name]) for name in bad]}")
    if arguments.held:
        print(HEAD)
        ends = ["closed", "closed", "flushed and killed"]
        results["held"] = compare(arguments.held, ends, arguments.seed, functools.partial(print, flush=True))
        bad_count += sum(row["failed_stores"] for row in results["held"].values())
    runner.write(arguments.out, results)
    sys.exit(1 if bad_count else 0)


if __name__ == "__main__":
    main()
