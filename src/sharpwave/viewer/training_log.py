"""A run's log, followed as it grows: learning curve, reports, settings, outcome."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from array import array
from pathlib import Path
from typing import Any

from sharpwave.json_values import MAX_DEPTH, is_plain
from sharpwave.training.atomic_files import read_regular
from sharpwave.training.folder import CONFIG, METRICS, SUMMARY

EPISODE = ("steps", "minutes", "reward", "mean_reward", "episode_steps")
EVALUATION = ("steps", "minutes", "mean", "min")
REPORT = (
    "steps", "minutes", "updates", "loss", "avg_loss", "epsilon", "avg_fps", "replay_steps", "replay_bytes",
    "bytes_per_step", "process_bytes",
)  # fmt: skip
DISK = (
    "hits", "misses", "stalls", "waited_s", "bytes_read", "bytes_written", "bytes", "resident_segments",
    "dropped_steps",
)  # fmt: skip
"""Kept numbers of events, by kind; ``DISK`` lists those in a report's ``disk``."""
MAX_EVENTS, MAX_SHOWN = 1_000_000, 2000
"""Limit of events of a kind, beyond which every second one is dropped; and limit of a curve's points."""
MAX_LINE_BYTES, MAX_READ_BYTES, MAX_FILE_BYTES = 1 << 20, 1 << 18, 1 << 20
NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""Flags for opening: do not wait for a FIFO, and follow no link."""
MAX_LEARNER = 16
"""Limit of the agent's own metrics that are kept."""


class Events:
    """Events of one kind, as columns of numbers; NaN for missing numbers."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.columns = {name: array("d") for name in names}

    def __len__(self) -> int:
        return len(self.columns["steps"])

    def add(self, values: dict[str, Any]) -> None:
        """Add an event. Drop events of as many steps or more, which precede a resume."""
        steps = self.columns["steps"]
        now = number(values.get("steps"))
        while steps and (math.isnan(now) or steps[-1] > now):
            for column in self.columns.values():
                column.pop()
        for name, column in self.columns.items():
            column.append(number(values.get(name)))
        if len(steps) > MAX_EVENTS:
            for name in self.columns:
                self.columns[name] = self.columns[name][::2]

    def shown(self) -> dict[str, list[float | None]]:
        """Return the columns for JSON, at most ``MAX_SHOWN`` evenly spaced events."""
        every = max(1, -(-len(self) // MAX_SHOWN))
        last = (len(self) - 1) % every if len(self) else 0
        return {
            name: [one if math.isfinite(one) else None for one in column[last::every]]
            for name, column in self.columns.items()
        }


def number(value: Any) -> float:
    """Return a value in a file as a number, NaN if it is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


class TrainingLog:
    """Log of the run in ``folder``. Any thread may read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.episodes, self.evaluations, self.reports = Events(EPISODE), Events(EVALUATION), Events((*REPORT, *DISK))
        self.learner: dict[str, Events] = {}
        self._inode = -1
        self._at = 0
        self._waiting = b""

    def update(self) -> bool:
        """Read lines added since the last call; return whether there are any. One thread may call it at a time."""
        try:
            descriptor = os.open(self.folder / METRICS, os.O_RDONLY | NO_WAIT)
        except OSError:
            return False
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return False
            if found.st_ino != self._inode or found.st_size < self._at:
                with self._lock:
                    self._forget()
                self._inode = found.st_ino
            before = self._at
            file.seek(before)
            while part := file.read(min(MAX_READ_BYTES, max(0, found.st_size - self._at))):
                self._at += len(part)
                self._take(part)
            return self._at > before

    def _take(self, part: bytes) -> None:
        *lines, rest = (self._waiting + part).split(b"\n")
        self._waiting = rest if len(rest) <= MAX_LINE_BYTES else b""
        events = []
        for line in lines:
            if len(line) > MAX_LINE_BYTES:
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                events.append(event)
        with self._lock:  # not while parsing: requests would wait for this thread of low priority
            for event in events:
                self._add(event)

    def _add(self, event: dict[str, Any]) -> None:
        if math.isnan(number(event.get("steps"))):
            return
        kind = event.get("event")
        if kind == "episode":
            self.episodes.add(event)
        elif kind == "evaluation":
            self.evaluations.add(event)
        elif kind == "report":
            disk = event.get("disk")
            self.reports.add({**(disk if isinstance(disk, dict) else {}), **event})
            learner = event.get("learner")
            for name, value in list(learner.items())[:MAX_LEARNER] if isinstance(learner, dict) else []:
                if name in self.learner or len(self.learner) < MAX_LEARNER:
                    events = self.learner.setdefault(name, Events(("steps", "value")))
                    events.add({"steps": event["steps"], "value": value})

    def shown(self) -> dict[str, Any]:
        """Return the log for JSON."""
        with self._lock:
            return {
                "episodes": self.episodes.shown(),
                "evaluations": self.evaluations.shown(),
                "reports": self.reports.shown(),
                "learner": {name: events.shown() for name, events in self.learner.items()},
            }

    def settings(self) -> dict[str, Any]:
        """Return the settings in config.json; empty if it cannot be read."""
        return _json(self.folder / CONFIG)

    def summary(self) -> dict[str, Any]:
        """Return summary.json; empty while the run has not ended."""
        return _json(self.folder / SUMMARY)


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_regular(path, MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) and is_plain(values, MAX_DEPTH) else {}
