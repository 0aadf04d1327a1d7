"""One store through a thousand processes, in a folder with foreign files; each process first checks all steps.

    python benchmarks/lifetimes.py [--lives 1000] [--retention fifo] [--seed 0] [--out FILE]

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
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import runner

import sharpwave as sw

# one life: a process opens the store, checks all of it against the log, uses it and ends

LANES, SIDE, N_STEP, GAMMA = 8, 32, 3, 0.9
LIMIT, RAM = 24 << 20, 16 << 20
OTHER_LIMITS = (16 << 20, 48 << 20, 200 << 20)
SPEC = sw.Spec(obs=sw.Field((SIDE, SIDE), "uint8", stack=2), action=sw.Field((), "int64"), serial=sw.Field((), "int64"))
RETENTIONS = {"fifo": sw.Fifo, "reservoir": sw.Reservoir, "lowest-priority": sw.LowestPriority}
POLITE = ("close", "with", "drop", "exit", "exception")
TERMINATED, TRUNCATED, BEGINS = 1, 2, 4

Ints = npt.NDArray[np.int64]


def frames(serials: Ints) -> npt.NDArray[np.uint8]:
    """Draw noise that encodes its step's serial number: uint8 [n, SIDE, SIDE]."""
    words = SIDE * SIDE // 8
    x: Any = serials.astype(np.uint64)[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    noise: npt.NDArray[np.uint8] = (x ^ (x >> np.uint64(31))).view(np.uint8).reshape(-1, SIDE, SIDE)
    return noise


def rewards(serials: Ints) -> npt.NDArray[np.float64]:
    """Return rewards that differ between neighbours and are exact in float32."""
    return (serials * 7919 % 1021).astype(np.float64)


def final(serial: int) -> Ints:
    """Return the serial number whose frame is the final observation of a step that ended its episode."""
    return np.array([serial + (1 << 40)], np.int64)


class Log:
    """Log of what really happened: a line for each step, written before it is appended, and the acknowledged steps.

    Files of int64: ``steps`` [n, 4] (serial, lane, flags, life), ``acknowledged`` [n, 2] (its serials below, life),
    ``rewinds`` [n, 2] (serials from, serials below: steps that a return to a checkpoint undid), ``checkpoints`` [n, 3]
    (serials below, steps ever appended, life).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, int] = {}

    def write(self, name: str, *values: int) -> None:
        """Append a line, which survives a kill of the process."""
        if name not in self._files:
            self._files[name] = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._files[name], np.array(values, np.int64).tobytes())

    def read(self, name: str, columns: int) -> npt.NDArray[np.int64]:
        """Read all lines."""
        path = self.folder / name
        return np.fromfile(path, np.int64).reshape(-1, columns) if path.exists() else np.empty((0, columns), np.int64)


@dataclass
class History:
    """History of all steps: the log as arrays by serial number.

    Attributes:
        real: whether the step was about to be appended, and not undone by a return to a checkpoint.
        flags: TERMINATED, TRUNCATED, BEGINS (its episode).
        lane: lane of the step.
        after: serial number of the episode's next step; -1: there is none.
        before: serial number of the episode's previous step; -1: there is none.
        acknowledged: whether the step was certainly on disk.
    """

    real: npt.NDArray[np.bool_]
    flags: Ints
    lane: Ints
    after: Ints
    before: Ints
    acknowledged: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, log: Log) -> History:
        steps = log.read("steps", 4)
        count = int(steps[:, 0].max()) + 1 if len(steps) else 0
        real = np.zeros(count, np.bool_)
        real[steps[:, 0]] = True
        for begin, end in log.read("rewinds", 2).tolist():
            real[begin:end] = False
        flags, lane = np.zeros(count, np.int64), np.zeros(count, np.int64)
        flags[steps[:, 0]], lane[steps[:, 0]] = steps[:, 2], steps[:, 1]
        after, before = np.full(count, -1), np.full(count, -1)
        for one in range(LANES):
            serials = np.flatnonzero(real & (lane == one))
            goes_on = (flags[serials[:-1]] & (TERMINATED | TRUNCATED) == 0) & (flags[serials[1:]] & BEGINS == 0)
            after[serials[:-1][goes_on]] = serials[1:][goes_on]
            before[serials[1:][goes_on]] = serials[:-1][goes_on]
        lives = np.full(count, -1)
        lives[steps[:, 0]] = steps[:, 3]
        said = log.read("acknowledged", 2)
        upto = np.zeros(max(int(lives.max(initial=-1)), int(said[:, 1].max(initial=-1))) + 2, np.int64)
        np.maximum.at(upto, said[:, 1], said[:, 0])
        acknowledged = np.arange(count) < upto[lives]
        return cls(real, flags, lane, after, before, acknowledged & real)


def check(store: sw.Store, history: History) -> tuple[npt.NDArray[np.bool_], int]:
    """Compare every step that can be sampled with the log; return which are held, and how many are wrong."""
    there = np.zeros(len(history.real), np.bool_)
    wrong = 0
    replay = store.transitions(n_step=N_STEP, gamma=GAMMA)
    ids = replay.sampleable_ids()
    for at in range(0, len(ids), 500):
        batch = replay.fetch(ids[at : at + 500])
        serials = np.asarray(batch["serial"]).copy()
        known = (serials >= 0) & (serials < len(there))
        if not known.all() or not history.real[serials].all() or there[serials].any():
            return there, len(ids)
        there[serials] = True
        last, reward = serials.copy(), rewards(serials)
        used = np.ones(len(serials), np.int64)
        discount = np.asarray(batch.discount, np.float64)
        terminated = discount == 0.0
        # The n that the store reports by its discount; where the episode terminated, its remaining steps.
        said = np.where(terminated, N_STEP, np.rint(np.log(np.where(terminated, 1.0, discount)) / np.log(GAMMA)))
        for k in range(1, N_STEP):
            on = (used == k) & (said > k) & (history.after[last] >= 0)
            last[on] = history.after[last[on]]
            reward[on] += GAMMA**k * rewards(last[on])
            used[on] += 1
        right = terminated == (history.flags[last] & TERMINATED > 0)
        right &= terminated | (said == used)
        ended = history.flags[last] & (TERMINATED | TRUNCATED) > 0
        # Fewer than n: the episode ended or was broken off there, and its later steps are not in the store.
        broken = ~ended & (used < N_STEP)
        right &= np.isclose(batch.reward, reward, rtol=1e-6)
        right &= ended | (history.after[last] >= 0)
        follows = np.where(ended, last + (1 << 40), history.after[last])
        right &= ended & terminated | (np.asarray(batch.next_obs)[:, -1] == frames(follows)).all((1, 2))
        right &= (np.asarray(batch.obs)[:, -1] == frames(serials)).all((1, 2))
        stacked = np.where(history.before[serials] >= 0, history.before[serials], serials)
        right &= (np.asarray(batch.obs)[:, 0] == frames(stacked)).all((1, 2))
        wrong += int((~right).sum())
        wrong += int(there[history.after[last[broken]]].sum())
    return there, wrong


def live(base: Path, life: int, seed: int, how: dict[str, Any], say: int) -> None:
    """Run one life in a process of its own; write its findings to the descriptor ``say``, as lines of JSON."""
    rng = np.random.default_rng([seed, life])
    log = Log(base)

    def tell(**what: Any) -> None:
        os.write(say, (json.dumps(what) + "\n").encode())

    folder, checkpoint = base / "a" / "replay", base / "checkpoint"
    os.chdir(base / "a")
    warnings.simplefilter("error")
    # Lower limits are given on purpose.
    warnings.filterwarnings("ignore", r".*disk_limit=.* has no room for", RuntimeWarning)
    begin = time.perf_counter()
    came = "opened"
    if how["from_checkpoint"] and (checkpoint / "store.json").exists():
        history = History.of(log)
        os.rename(folder, base / "trash")
        store = sw.Store.open(checkpoint, disk="replay", **how["limits"])
        begun = log.read("checkpoints", 3)  # a kill may have come before or after the last one was replaced
        at, _, saved_by = begun[begun[:, 1] == store.lane_steps.sum()][-1].tolist()
        log.write("rewinds", at, max(at, len(history.real)))
        log.write("acknowledged", at, saved_by)
        shutil.rmtree(base / "trash")
        came = "checkpoint"
    elif (folder / "store.json").exists():
        store = sw.Store.open("replay" if how["relative"] else folder, **how["limits"])
    else:
        store = sw.Store(
            SPEC, disk="replay", disk_limit=LIMIT, ram=RAM, codec="raw", retention=RETENTIONS[how["retention"]](),
            segment_steps=32, seed=seed,
        )  # fmt: skip
    took = time.perf_counter() - begin
    if how["relative"]:
        os.chdir(base / "b")  # which has another store of the same name
    history = History.of(log)
    there, wrong = check(store, history)
    # The last acknowledged step of an episode that was broken off may be missing.
    after = history.after
    last = history.acknowledged & (history.flags & (TERMINATED | TRUNCATED) == 0)
    last &= (after < 0) | ~history.acknowledged[np.maximum(after, 0)]
    if came == "checkpoint":  # episodes stay open, and steps without a successor cannot be sampled yet
        for _ in range(N_STEP - 1):
            last |= (history.flags & (TERMINATED | TRUNCATED) == 0) & (after >= 0) & last[np.maximum(after, 0)]
    missing = history.acknowledged & ~last & ~there
    newest_missing = int(np.flatnonzero(missing).max(initial=-1))
    stats = store.stats()
    tell(
        open_s=took, came=came, limit=store.disk_limit, wrong=wrong, held=int(there.sum()), missing=int(missing.sum()),
        newest_missing=newest_missing, newer=int((history.acknowledged & ~last)[newest_missing + 1 :].sum()),
        oldest_held=int(np.flatnonzero(there).min(initial=len(there))),
        descriptors=len(os.listdir("/proc/self/fd")), damages=store.recovery.damages if store.recovery else [],
        held_bytes=int(stats["encoded_bytes_per_step"] * stats["steps"]), disk_bytes=int(stats["disk"]["bytes"]),
    )  # fmt: skip

    def act() -> None:
        nonlocal store
        serial = len(history.real)
        # From a checkpoint episodes continue; after any other end new ones begin.
        going = np.zeros(LANES, np.bool_)
        if came == "checkpoint":
            for lane in range(LANES):
                mine = np.flatnonzero(history.real & (history.lane == lane))
                going[lane] = len(mine) > 0 and not history.flags[mine[-1]] & (TERMINATED | TRUNCATED)
        for _ in range(how["rounds"]):
            for _ in range(int(rng.integers(1, 40))):
                lanes = np.sort(rng.choice(LANES, int(rng.integers(1, LANES + 1)), replace=False))
                serials = serial + np.arange(len(lanes))
                serial += len(lanes)
                ends = rng.random(len(lanes))
                terminated, truncated = ends < 0.02, (ends >= 0.02) & (ends < 0.04)
                finals = np.concatenate([frames(final(one)) for one in serials.tolist()])
                for one, lane, te, tr in zip(
                    serials.tolist(), lanes.tolist(), terminated.tolist(), truncated.tolist(), strict=True
                ):
                    flags = TERMINATED * te | TRUNCATED * tr | BEGINS * (not going[lane])
                    log.write("steps", one, lane, flags, life)
                going[lanes] = ~(terminated | truncated)
                store.extend(
                    obs=frames(serials), action=serials, reward=rewards(serials), serial=serials, lanes=lanes,
                    terminated=terminated, truncated=truncated, final_obs=finals,
                )  # fmt: skip
            chance = rng.random()
            if chance < 0.4:
                store.flush()
                log.write("acknowledged", serial, life)
            elif chance < 0.5 and how["checkpoints"]:
                log.write("checkpoints", serial, int(store.lane_steps.sum()), life)
                store.checkpoint(checkpoint)
            elif chance < 0.7:
                store.transitions(n_step=N_STEP, gamma=GAMMA).sample(16)

    tell(begun=True)
    end = how["end"]
    if end == "with":
        with store:
            act()
    elif end == "exception":
        try:
            with store:
                act()
                raise KeyError("on purpose")
        except KeyError:
            pass
    else:
        act()
        if end == "close":
            store.close()
        elif end == "drop":
            del store
        elif end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif end == "kill at any moment":
            signal.pause()  # until the kill; nothing more is acknowledged
    if end != "exit":
        log.write("acknowledged", int(log.read("steps", 4)[:, 0].max(initial=-1)) + 1, life)
    tell(ended=end)
    sys.exit(0)  # "exit": the interpreter ends with the store open; its parent acknowledges


# all lives


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
    bad = {name: result[name] for name in ("wrong", "lost", "early_evictions", "strangers_touched", "failed_lives")}
    bad["over_limit_bytes"] = max(0, result["over_limit_bytes"])
    print(f"NOT RIGHT: {bad}" if any(bad.values()) else "all right")
    runner.write(arguments.out, results)
    sys.exit(1 if any(bad.values()) else 0)


if __name__ == "__main__":
    main()
