"""Updates of sources that do not slow down their writers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.escaping import escaped
from sharpwave.training.folder import METRICS, SUMMARY
from sharpwave.viewer.action_values import ValuesOf
from sharpwave.viewer.memory import Memory
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
        trouble: why the memory cannot be read; "" if it can.
    """

    def __init__(self, source: ViewerSource) -> None:
        self.source = source
        self.memory = Memory(source)
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
            changed |= self.memory.update()
            trouble = ""
        except FileNotFoundError as error:  # such as of a checkpoint that was replaced meanwhile
            trouble = str(error) if self.memory.snapshot is None else ""
        except (OSError, DamagedError, NewerVersionError, ValueError, MemoryError) as error:
            trouble = str(error) or type(error).__name__
        changed |= trouble != self.trouble
        self.trouble = escaped(trouble)
        self.version += changed

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
        snapshot = self.memory.snapshot
        if snapshot is not None:
            paths += [one.path for one in snapshot.survey.regions[-1:]]
        return any(time.time() - _modified(path) < LIVE_S for path in paths)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
