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
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import runner
from lifetimes_log import (
    BEGINS,
    BEGUN,
    ENDING,
    GAMMA,
    GONE,
    LANES,
    LIMIT,
    MADE,
    MARK,
    MARKS,
    N_STEP,
    RAM,
    SPEC,
    TERMINATED,
    TRUNCATED,
    Bools,
    History,
    Log,
    check,
    content,
    final,
    frames,
    rewards,
    stages,
    words,
)  # fmt: skip

import sharpwave as sw

# a life

RETENTIONS = {"fifo": sw.Fifo, "reservoir": sw.Reservoir, "lowest-priority": sw.LowestPriority}
POLITE = ("close", "with", "drop", "exit", "exception")
KILLS = ("kill", "kill at any moment", "kill in an operation")
MAX_VERSIONS = 3
MARKED, MAX_FUSE_S = 64, 0.05


def pairs(found: Any) -> set[tuple[int, int]]:
    """Return the serial numbers and marks of ``content`` as a set."""
    return set(map(tuple, found.tolist()))


class Life:
    """One life; ``say`` is a descriptor for its findings, as lines of JSON."""

    def __init__(self, base: Path, life: int, seed: int, how: dict[str, Any], say: int) -> None:
        self.base, self.life, self.seed, self.how, self._say = base, life, seed, how, say
        self.rng = np.random.default_rng([seed, life])
        self.log = Log(base)
        self.folder, self.checkpoint_folder = base / "a" / "replay", base / "checkpoint"
        self.operations: dict[str, Callable[[], None]] = {
            "append": self.append,
            "flush": self.flush,
            "sample": self.sample,
            "mark": self.mark,
            "delete": self.delete,
            "snapshot": self.snapshot,
            "branch": self.branch,
            "delete a version": self.delete_version,
        }

    def tell(self, **what: Any) -> None:
        os.write(self._say, (json.dumps(what) + "\n").encode())

    # opening

    def open(self) -> str:
        """Open the store; return how: "opened", "made" or "checkpoint"."""
        how, log, came, going = self.how, self.log, "opened", 0
        shutil.rmtree(self.base / "branch", ignore_errors=True)  # of a life that was killed
        if how["from_checkpoint"] and (self.checkpoint_folder / "store.json").exists():
            os.rename(self.folder, self.base / "trash")
            self.store = sw.Store.open(self.checkpoint_folder, disk="replay", **how["limits"])
            begun = log.read("checkpoints", 6)  # a kill may have come before or after the last one was replaced
            at, _, saved_by, marks, deletes, going = begun[begun[:, 1] == self.store.lane_steps.sum()][-1].tolist()
            log.write("rewinds", at, max(at, len(History.of(log).real)))
            log.write("marks_undone", marks, log.count("marks", 3))
            log.write("deletes_undone", deletes, log.count("deletes", 2))
            log.write("sure", at, marks, saved_by)
            for number in stages(log):  # they were in the folder
                log.write("versions", number, GONE)
            shutil.rmtree(self.base / "trash")
            came = "checkpoint"
        elif (self.folder / "store.json").exists():
            self.store = sw.Store.open("replay" if how["relative"] else self.folder, **how["limits"])
        else:
            self.store = sw.Store(
                SPEC, disk="replay", disk_limit=LIMIT, ram=RAM, codec="raw", retention=RETENTIONS[how["retention"]](),
                segment_steps=32, seed=self.seed,
            )  # fmt: skip
        self.history = History.of(log)
        self.serial = len(self.history.real)
        self.going = going >> np.arange(LANES) & 1 > 0  # episodes that a checkpoint continues; others begin anew
        return came

    def begin(self) -> None:
        """Open the store, check it, and tell the findings."""
        os.chdir(self.base / "a")
        begin = time.perf_counter()
        came = self.open()
        took = time.perf_counter() - begin
        if self.how["relative"]:
            os.chdir(self.base / "b")  # which has another store of the same name
        history, store = self.history, self.store
        there, wrong = check(store, history)
        last = self.last_of_broken(came == "checkpoint")
        missing = history.acknowledged & ~history.deleting & ~last & ~there
        newest_missing = int(np.flatnonzero(missing).max(initial=-1))
        stats = store.stats()
        self.tell(
            open_s=took, came=came, limit=store.disk_limit, wrong=wrong, wrong_versions=self.check_versions(),
            held=int(there.sum()), missing=int(missing.sum()), newest_missing=newest_missing,
            newer=int((history.acknowledged & ~last)[newest_missing + 1 :].sum()),
            oldest_held=int(np.flatnonzero(there).min(initial=len(there))),
            descriptors=len(os.listdir("/proc/self/fd")), damages=store.recovery.damages if store.recovery else [],
            held_bytes=int(stats["encoded_bytes_per_step"] * stats["steps"]), disk_bytes=int(stats["disk"]["bytes"]),
        )  # fmt: skip

    def last_of_broken(self, resumed: bool) -> Bools:
        """Return acknowledged steps that may be missing: the last ones of episodes that the end broke off."""
        history, after = self.history, self.history.after
        open_ended = history.flags & (TERMINATED | TRUNCATED) == 0
        last: Bools = history.acknowledged & open_ended & ((after < 0) | ~history.acknowledged[np.maximum(after, 0)])
        if resumed:  # episodes stay open, and steps without a successor cannot be sampled yet
            for _ in range(N_STEP - 1):
                last |= open_ended & (after >= 0) & last[np.maximum(after, 0)]
        return last

    def check_versions(self) -> int:
        """Count versions that should be there and are not, or the other way round, and a wrong one of those there."""
        known, there = stages(self.log), {int(one.name[1:]) for one in self.store.versions()}
        wrong = len(there - known.keys())
        wrong += len({one for one, stage in known.items() if stage == MADE} - there)
        wrong += len({one for one, stage in known.items() if stage == GONE} & there)
        for number, stage in known.items():  # of those whose making or deletion was interrupted
            if stage in (BEGUN, ENDING):
                self.log.write("versions", number, MADE if number in there else GONE)
        if there:
            number = int(self.rng.choice(sorted(there)))
            with sw.Store.open(self.folder, version=f"v{number}") as version:
                wrong += not np.array_equal(content(version), self.kept_content(number))
        return wrong

    def kept_content(self, number: int) -> Any:
        return np.load(self.base / f"version-{number}.npy")

    # using

    def act(self) -> None:
        """Append, and do something else now and then."""
        for _ in range(self.how["rounds"]):
            self.append()
            chance = self.rng.random()
            if chance < 0.3:
                self.flush()
            elif chance < 0.4 and self.how["checkpoints"]:
                marks, deletes = self.log.count("marks", 3), self.log.count("deletes", 2)
                going = int((self.going << np.arange(LANES)).sum())
                self.log.write(
                    "checkpoints", self.serial, self.store.lane_steps.sum(), self.life, marks, deletes, going
                )
                self.store.checkpoint(self.checkpoint_folder)
            elif chance < 0.9:
                self.any_operation()

    def any_operation(self) -> None:
        name = str(self.rng.choice(list(self.operations)))
        self.tell(doing=name)
        self.operations[name]()

    def append(self) -> None:
        rng = self.rng
        for _ in range(int(rng.integers(1, 40))):
            lanes = np.sort(rng.choice(LANES, int(rng.integers(1, LANES + 1)), replace=False))
            serials = self.serial + np.arange(len(lanes))
            self.serial += len(lanes)
            ends = rng.random(len(lanes))
            terminated, truncated = ends < 0.02, (ends >= 0.02) & (ends < 0.04)
            flags = TERMINATED * terminated | TRUNCATED * truncated | BEGINS * ~self.going[lanes]
            self.log.write("steps", serials, lanes, flags, np.full(len(lanes), self.life))
            self.going[lanes] = ~(terminated | truncated)
            self.store.extend(
                obs=frames(serials), action=serials, reward=rewards(serials), serial=serials, words=words(serials),
                lanes=lanes, terminated=terminated, truncated=truncated,
                final_obs=np.concatenate([frames(final(one)) for one in serials.tolist()]),
            )  # fmt: skip

    def flush(self) -> None:
        marks = self.log.count("marks", 3)
        self.store.flush()
        self.log.write("sure", self.serial, marks, self.life)

    def sample(self) -> None:
        replay = self.store.transitions(n_step=N_STEP, gamma=GAMMA)
        if len(replay):
            replay.sample(16)

    def mark(self) -> None:
        """Write values of some steps into the column added later, and add it where it is not there."""
        if MARK not in self.store.columns:
            self.store.add_column(MARK, sw.Field((), "int64"))
        replay = self.store.transitions(n_step=N_STEP, gamma=GAMMA)
        ids = replay.sampleable_ids()
        ids = ids[self.rng.permutation(len(ids))[:MARKED]]
        if len(ids):
            serials = np.asarray(replay.fetch(ids, fields=["serial"])["serial"])
            values = serials * MARKS + (self.log.count("marks", 3) + np.arange(len(ids))) % MARKS
            self.log.write("marks", serials, values, np.full(len(ids), self.life))
            self.store.write_column(MARK, ids, values)

    def delete(self) -> None:
        """Delete an episode that has ended; this is certain at once."""
        episodes = [one for one in self.store.episodes() if one.ended]
        if episodes:
            one = episodes[int(self.rng.integers(len(episodes)))]
            number = self.log.count("deletes", 2)
            self.log.write("deletes", one["serial"], np.full(one.length, number))
            self.store.delete(episodes=one)
            self.log.write("deleted", number)

    def snapshot(self) -> None:
        """Make a version, whose content is kept beside the log."""
        number = max(stages(self.log), default=-1) + 1
        np.save(self.base / f"version-{number}.npy", content(self.store))
        self.log.write("versions", number, BEGUN)
        self.store.snapshot(f"v{number}")
        self.log.write("versions", number, MADE)
        if len(self.store.versions()) > MAX_VERSIONS:
            self.delete_version()

    def delete_version(self) -> None:
        if there := self.store.versions():
            number = int(there[int(self.rng.integers(len(there)))].name[1:])
            self.log.write("versions", number, ENDING)
            self.store.delete_version(f"v{number}")
            self.log.write("versions", number, GONE)

    def branch(self) -> None:
        """Make a store from a version, which it has to equal, and let it go on and be opened again."""
        if there := self.store.versions():
            number = int(there[int(self.rng.integers(len(there)))].name[1:])
            folder, before = self.base / "branch", self.kept_content(number)
            with self.store.branch(folder, f"v{number}") as branch:
                assert np.array_equal(content(branch), before), f"a branch of v{number} is not as that was"
                other = np.arange(1 << 50, (1 << 50) + LANES)  # beyond any serial number; no words
                no = np.zeros(LANES, np.bool_)
                for lane in range(branch.lanes):
                    branch.break_episode(lane)
                for _ in range(3):
                    branch.extend(
                        obs=frames(other), action=other, reward=rewards(other), serial=other,
                        words=[np.zeros(0, np.int32)] * LANES, terminated=no, truncated=no,
                    )  # fmt: skip
                branch.flush()  # which may evict older steps
                kept = pairs(content(branch))
            with sw.Store.open(folder) as branch:
                found = pairs(content(branch))
                assert kept <= found, "a branch lost steps"
                more = {one for one in found if one[0] < 1 << 50} - pairs(before)
                assert len(more) <= N_STEP * LANES, "a branch has others' steps"  # some had no successor yet
            shutil.rmtree(folder)

    # ending

    def end(self) -> None:
        """Use the store, and end as ``how`` says."""
        end = self.how["end"]
        self.tell(begun=True)
        if end == "with":
            with self.store:
                self.act()
        elif end == "exception":
            try:
                with self.store:
                    self.act()
                    raise KeyError("on purpose")
            except KeyError:
                pass
        else:
            self.act()
            if end == "close":
                self.store.close()
            elif end == "drop":
                del self.store
            elif end == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif end == "kill at any moment":
                signal.pause()  # until the kill; nothing more is acknowledged
            elif end == "kill in an operation":
                signal.setitimer(signal.ITIMER_REAL, float(self.rng.uniform(0, MAX_FUSE_S)))  # ends it as SIGKILL does
                while True:
                    self.any_operation()
        if end != "exit":
            self.log.write("sure", self.serial, self.log.count("marks", 3), self.life)
        self.tell(ended=end)
        sys.exit(0)  # "exit": the interpreter ends with the store open; its parent acknowledges


def live(base: Path, life: int, seed: int, how: dict[str, Any], say: int) -> None:
    """Run one life in this process, which it ends."""
    warnings.simplefilter("error")
    # Lower limits are given on purpose.
    warnings.filterwarnings("ignore", r".*disk_limit=.* has no room for", RuntimeWarning)
    one = Life(base, life, seed, how, say)
    one.begin()
    one.end()


# all lives

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
                    obs=frames(serials), action=serials, reward=rewards(serials), serial=serials,
                    words=words(serials), terminated=no, truncated=no,
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
