"""One life of the store of ``lifetimes.py``: a process opens it, checks it against the log, uses it and ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
)

import sharpwave as sw

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
