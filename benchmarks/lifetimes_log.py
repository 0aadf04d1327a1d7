"""Log of everything that happened to the store of ``lifetimes.py``, and the comparison of the store with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sharpwave as sw

LANES, SIDE, N_STEP, GAMMA = 8, 32, 3, 0.9
LIMIT, RAM = 24 << 20, 16 << 20
SPEC = sw.Spec(
    obs=sw.Field((SIDE, SIDE), "uint8", stack=2),
    action=sw.Field((), "int64"),
    serial=sw.Field((), "int64"),
    words=sw.Field((None,), "int32"),
)
MARK = "mark"
"""Column added later: of some steps the serial number times ``MARKS``, plus the number of the write."""
MARKS = 1 << 20
TERMINATED, TRUNCATED, BEGINS = 1, 2, 4

# stages of a version
BEGUN, MADE, ENDING, GONE = range(4)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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


def words(serials: Ints) -> list[npt.NDArray[np.int32]]:
    """Return the row of 0 to 6 words that each step has."""
    return [np.arange(31 * one, 31 * one + one % 7, dtype=np.int32) for one in serials.tolist()]


def final(serial: int) -> Ints:
    """Return the serial number whose frame is the final observation of a step that ended its episode."""
    return np.array([serial + (1 << 40)], np.int64)


class Log:
    """Log of what really happened: a line is written before what it tells of begins, or after it is certain.

    Files of int64, by name:
        steps (serial, lane, flags, life), about to be appended.
        marks (serial, value, life), about to be written to the late column.
        deletes (serial, number of the deletion), about to be deleted. deleted (number of the deletion), done.
        versions (number, stage): ``BEGUN``, ``MADE``, ``ENDING`` or ``GONE``.
        sure (serials, marks, life): this life's steps and marks below are certainly on disk.
        checkpoints (serials, steps ever appended, life, marks, deletes, a bit for each lane whose episode goes on),
            about to be written: as many lines there were.
        rewinds (from, below), marks_undone, deletes_undone: undone by a return to a checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, int] = {}

    def write(self, name: str, *values: Any) -> None:
        """Append a line, or several of columns, which survive a kill of the process."""
        if name not in self._files:
            self._files[name] = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._files[name], np.stack(values, axis=-1).astype(np.int64).tobytes())

    def count(self, name: str, columns: int) -> int:
        """Return the number of lines."""
        path = self.folder / name
        return path.stat().st_size // (8 * columns) if path.exists() else 0

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
        deleting: whether its deletion was begun. ``deleted``: whether it was deleted for certain.
        marks: int64 [n, 2], serial number and value of each write to the late column that was not undone, in order.
        sure_marks: whether each was certainly on disk: bool [n].
    """

    real: Bools
    flags: Ints
    lane: Ints
    after: Ints
    before: Ints
    acknowledged: Bools
    deleting: Bools
    deleted: Bools
    marks: Ints
    sure_marks: Bools

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
        marks, deletes = log.read("marks", 3), log.read("deletes", 2)
        sure = log.read("sure", 3)
        most = int(max([lives.max(initial=-1), *sure[:, 2].tolist(), *marks[:, 2].tolist()]))
        upto = np.zeros((2, most + 2), np.int64)
        for row, numbers in zip(upto, (sure[:, 0], sure[:, 1]), strict=True):
            np.maximum.at(row, sure[:, 2], numbers)
        sure_marks, held = np.arange(len(marks)) < upto[1][marks[:, 2]], _kept(log, "marks", len(marks))
        deletes = deletes[_kept(log, "deletes", len(deletes))]
        deleting, deleted = np.zeros((2, count), np.bool_)
        deleting[deletes[:, 0]] = True
        deleted[deletes[np.isin(deletes[:, 1], log.read("deleted", 1)), 0]] = True
        acknowledged = (np.arange(count) < upto[0][lives]) & real
        marked = marks[held, :2], sure_marks[held]
        return cls(real, flags, lane, after, before, acknowledged, deleting, deleted, *marked)


def _kept(log: Log, name: str, count: int) -> Bools:
    """Return which lines of a file were not undone by a return to a checkpoint."""
    kept = np.ones(count, np.bool_)
    for begin, end in log.read(f"{name}_undone", 2).tolist():
        kept[begin:end] = False
    return kept


def stages(log: Log) -> dict[int, int]:
    """Return the latest stage of each version, by number."""
    return dict(log.read("versions", 2).tolist())


def content(store: sw.Store) -> Ints:
    """Return the serial numbers of all steps that can be sampled, ascending, and their marks, -1 for none: [n, 2]."""
    replay = store.transitions(n_step=N_STEP, gamma=GAMMA)
    ids = replay.sampleable_ids()
    serials = np.asarray(replay.fetch(ids, fields=["serial"])["serial"])
    marks = np.full(len(ids), -1)
    if MARK in store.columns:
        values, there = store.read_column(MARK, ids)
        marks[there] = values[there]
    found = np.stack([serials, marks], axis=1)
    return found[np.argsort(serials)]


def wrong_marks(found: Ints, history: History) -> int:
    """Count marks of held steps that are none of those written since the last one that was certainly on disk."""
    serials, marks = found.T
    lines = np.arange(len(history.marks))
    newest_sure = np.full(len(history.real), -1)
    np.maximum.at(newest_sure, history.marks[history.sure_marks, 0], lines[history.sure_marks])
    written = np.full(len(history.real), -1)  # the line of the value that a step has
    number = dict(zip(map(tuple, history.marks.tolist()), lines.tolist(), strict=True))
    written[serials] = [number.get((serial, mark), -1) for serial, mark in found.tolist()]
    wrong = (marks >= 0) & (written[serials] < 0) | (written[serials] < newest_sure[serials])
    return int(wrong.sum())


def check(store: sw.Store, history: History) -> tuple[Bools, int]:
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
        right &= [np.array_equal(row, said) for row, said in zip(batch["words"], words(serials), strict=True)]
        right &= ~history.deleted[serials]
        wrong += int((~right).sum())
        wrong += int(there[history.after[last[broken]]].sum())
    return there, wrong + wrong_marks(content(store), history)
