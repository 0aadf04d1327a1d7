"""One store through a thousand processes, in a folder with foreign files; each process first checks all steps.

    python benchmarks/lifetimes.py [--lives 1000] [--retention fifo] [--seed 0] [--out FILE]

A life is a process of its own: it opens the store, checks it, appends to some of eight lanes, and now and then flushes,
checkpoints, samples, writes values of a column that was added later, deletes an episode, makes a version, branches from
one or deletes one. It ends by close(), at the end of ``with``, by dropping the store, by leaving the interpreter, by an
exception, or killed: behind its last operation, at a random moment, or within one of these operations. Some lives open
the store by a relative path and change their directory; some give other limits than it was made with; some go on from
the last checkpoint instead. Between lives other people's files appear: notes, folders with numbers for names, another
store's regions, in the store's folder, in ``regions/`` and beside the checkpoint.

What is checked in each life, against a log of all lives that the store has no part in:

- every acknowledged step (by flush() or by any polite end) that retention had no reason to evict is there; of an
  episode that was broken off by the process's end, all but its last step;
- of every step that is there the observation, the stack, the 3-step return, the discount, the successor and the row of
  words (0 to 6 of them) are those of the log, and no return or stack reaches into another episode;
- the late column has the value written last, or where that was not acknowledged, one written since the last that was;
- no step whose deletion returned is there, but in a return to a checkpoint from before;
- versions are there from when ``snapshot`` returned until they are deleted; one that is opened, or branched from, has
  exactly the steps and values that the store had then;
- what was evicted left the files .45 full or more, and with Fifo the newest .3 of the limit stayed;
- other people's files are where they were, byte for byte;
- files stay within the limit and one region; descriptors and the time to open stay as they were.

Prints a line every fifty lives and a table, writes results/lifetimes.json; exit status 1 if anything was wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import runner
from lifetimes_life import KILLS, POLITE, RETENTIONS, live
from lifetimes_log import LIMIT, SPEC, History, Log, frames, rewards, stages, words

import sharpwave as sw

OTHER_LIMITS = (16 << 20, 48 << 20, 200 << 20)


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
                    words=words(serials),
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
        "killed_in": {},
        "wrong": 0,
        "wrong_versions": 0,
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
            "end": str(rng.choice([*POLITE, *KILLS, *KILLS])),
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
            log.write("sure", int(log.read("steps", 4)[:, 0].max(initial=-1)) + 1, log.count("marks", 3), life)
        result["lives"] += 1
        result["ends"][how["end"]] = result["ends"].get(how["end"], 0) + 1
        if how["end"] == "kill in an operation" and "doing" in said:
            result["killed_in"][said["doing"]] = result["killed_in"].get(said["doing"], 0) + 1
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
            result["wrong_versions"] += said["wrong_versions"]
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
            if said["wrong"] or said["wrong_versions"] or ours or verbose:
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
                f" wrong {result['wrong']} and {result['wrong_versions']} versions, lost {result['lost']}, "
                f"evicted early {result['early_evictions']}, "
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
    history = History.of(log)
    result |= {"acknowledged": int(history.acknowledged.sum()), "deleted": int(history.deleted.sum())}
    result |= {"marks": len(history.marks), "versions": len(stages(log))}
    return result


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--lives", type=int, default=1000, help="of one store among other people's files")
    parser.add_argument("--retention", choices=list(RETENTIONS), default="fifo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--verbose", action="store_true", help="print a line for each life")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "lifetimes.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
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
    bad = {
        name: result[name]
        for name in ("wrong", "wrong_versions", "lost", "early_evictions", "strangers_touched", "failed_lives")
    }
    bad["over_limit_bytes"] = max(0, result["over_limit_bytes"])
    print(f"NOT RIGHT: {bad}" if any(bad.values()) else "all right")
    runner.write(arguments.out, results)
    sys.exit(1 if any(bad.values()) else 0)


if __name__ == "__main__":
    main()
