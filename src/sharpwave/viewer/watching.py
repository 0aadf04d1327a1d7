"""Updates of sources that do not slow down their writers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from sharpwave.errors import NO_STATE, DamagedError, NewerVersionError
from sharpwave.escaping import escaped
from sharpwave.offline.scan import Progress, part_of
from sharpwave.offline.surveys import Following, Survey
from sharpwave.training.folder import METRICS, SUMMARY
from sharpwave.viewer.action_values import ValuesOf
from sharpwave.viewer.priorities import ViewItems, read_views
from sharpwave.viewer.snapshots import Snapshot
from sharpwave.viewer.sources import ViewerSource
from sharpwave.viewer.training_log import TrainingLog

MIN_PAUSE_S = 2.0
PAUSES = 20
"""Pause after an update as a multiple of its duration, so that nothing is read for at least 95 % of the time."""
NICENESS = 15
"""Niceness of the thread that reads a live source."""
LIVE_S = 120.0
"""Time since the last write within which a run or store counts as live."""


class Watched:
    """Source and its data. It is updated only on request; a live source, on a thread of low priority.

    Attributes:
        snapshot: newest contents of the replay memory; ``None``: not read yet, or the source is empty.
        progress: bytes read, and in total, of a running update.
        like: a source whose files, as far as they are the same, need not be read again; ``None``: none.
        trouble: why the memory cannot be read; "" if it can.
    """

    def __init__(self, source: ViewerSource, like: Watched | None = None) -> None:
        self.source, self.like = source, like
        self.snapshot: Snapshot | None = None
        self.progress = (0, 0)
        self._following: Following | None = None
        self._state: tuple[Any, ...] = ()
        self.values = ValuesOf(source)
        self.log = None if source.run is None else TrainingLog(source.run)
        self.trouble = ""
        self.version = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due = 0.0

    @property
    def updating(self) -> bool:
        """Whether an update is running."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self) -> None:
        """Start an update, if one is due."""
        with self._lock:
            if not self.updating and time.monotonic() >= self._due:
                self._thread = threading.Thread(target=self._run, daemon=True, name="sharpwave-view")
                self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for a running update."""
        if (thread := self._thread) is not None:
            thread.join(timeout_s)

    def update(self) -> None:
        """Read new data."""
        changed = self.log is not None and self.log.update()
        try:
            changed |= self.read()
            trouble = ""
        except FileNotFoundError as error:  # such as of a checkpoint that was replaced meanwhile
            trouble = str(error) if self.snapshot is None else ""
        except (OSError, DamagedError, NewerVersionError, ValueError, MemoryError) as error:
            trouble = str(error) or type(error).__name__
        changed |= trouble != self.trouble
        self.trouble = escaped(trouble)
        self.version += changed

    def read(self) -> bool:
        """Read new data of the replay memory; return whether there is any.

        Raises:
            OSError, DamagedError, NewerVersionError: the store cannot be read; the snapshot stays.
        """
        folder = self.source.store_folder()
        if folder is None:
            return False
        same = self._following is not None and self._following.folder == folder
        known = self.like.snapshot.survey.files if self.like is not None and self.like.snapshot is not None else {}
        following = self._following if self._following is not None and same else Following(folder, known)
        changed = following.update(self._start) or not same
        self._following = following
        state = self.source.state_folder()
        mark: tuple[Any, ...] = (state, *_mark(state)) if state is not None else ()
        if not changed and mark == self._state and self.snapshot is not None:
            return False
        views, trouble = _views(state, following.survey)
        self._state = mark
        number = 0 if self.snapshot is None else self.snapshot.number + 1
        when = float(mark[1]) if len(mark) > 1 else None
        self.snapshot = Snapshot(number, time.time(), following.survey, views, when, trouble)
        return True

    def _start(self, total: int) -> Progress:
        self.progress = (0, total)

        def advance(nbytes: int) -> None:
            self.progress = (self.progress[0] + nbytes, total)

        return advance

    def _run(self) -> None:
        if self.live():
            with contextlib.suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # on Linux for this thread only
        begun = time.monotonic()
        try:
            self.update()
        finally:
            ended = time.monotonic()
            self._due = ended + max(MIN_PAUSE_S, PAUSES * (ended - begun))

    def live(self) -> bool:
        """Return whether data were written lately, and the run has not ended."""
        run = self.source.run
        saved = self.source.kind != "run" and self.source.state_folder() is not None  # a checkpoint never changes
        if saved or (run is not None and (run / SUMMARY).exists()):
            return False
        paths = [] if run is None else [run / METRICS]
        if self.snapshot is not None:
            paths += [one.path for one in self.snapshot.survey.regions[-1:]]
        return any(time.time() - _modified(path) < LIVE_S for path in paths)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _views(state: Path | None, survey: Survey) -> tuple[list[ViewItems], str]:
    """Return a checkpoint's views, those with priorities first, and why they cannot be read."""
    if state is None:
        return [], ""
    try:
        views = read_views(state, survey)
    except (OSError, DamagedError, NewerVersionError, MemoryError, *NO_STATE) as error:
        return [], f"the checkpoint's priorities cannot be read: {error}"
    return sorted(views, key=lambda one: one.priority is None), ""


def _mark(folder: Path) -> tuple[float, ...]:
    """Return a checkpoint's time, and its part's number."""
    try:
        part = part_of(folder)
        return (folder / "store.json").stat().st_mtime, float(part.stat().st_ino)
    except OSError:
        return ()
