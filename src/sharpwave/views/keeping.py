"""Keeping of views' states in the store's folder, so that priorities and uses outlive a crash."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterable
from typing import Any

from sharpwave.disk.state_files import StateFiles
from sharpwave.log.step_log import StepLog
from sharpwave.views.saved_view import SavedView, bytes_of
from sharpwave.views.view_replay import Replay

PERIOD_S = 5.0
"""Seconds between two writes while views are used: the most that a crash costs them if writing is quick."""
MAX_SHARE = 0.01
"""Share of the time that copying and writing may take: where they take long, they are done less often."""


class Kept:
    """A view whose state is kept, and whether it has changed since it was written.

    It keeps the view's items alive, not the view: a view that is dropped is written once more.
    """

    __slots__ = ("changed", "keeping", "name", "source")

    def __init__(self, keeping: Keeping, replay: Replay[Any]) -> None:
        self.keeping, self.name = keeping, replay.name
        self.source = replay.source
        self.changed = True

    def note(self) -> None:
        """Note that the view is about to change, and write its state if that is due. Cost: 0.1 us."""
        if not self.notes():
            self.keeping.begin()
            self.changed = True

    def notes(self) -> bool:
        """Note that the view is about to change, unless something is due."""
        if time.monotonic() >= self.keeping.due:
            return False
        self.changed = True
        return True


class Keeping:
    """Writer of views' states, in a thread of its own every few seconds; the store's lock is held throughout.

    A state is a copy made under the lock, before a draw or an update: as a whole it is from one moment, and a crash
    takes a view back to one, at most so many seconds ago. A failure to write is no failure of the store: it is tried
    again.

    Attributes:
        due: when to write next, by ``time.monotonic``.
    """

    def __init__(self, log: StepLog, files: StateFiles) -> None:
        self._log, self._files = log, files
        self._kept: dict[int, Kept] = {}  # by the views' numbers
        self._dropped: dict[str, dict[str, Any]] = {}  # states of views that were dropped, to be written
        self._writing = 0
        self._thread: threading.Thread | None = None
        self._took_s = 0.0
        self._failed: set[str] = set()  # views whose samplers cannot be saved
        self.due = time.monotonic() + PERIOD_S

    def add(self, number: int, replay: Replay[Any]) -> None:
        """Keep a view, if it remembers anything."""
        judge = replay.source.items.judge
        judges = judge is not None and judge.condition is not None
        if judges or replay.max_times_sampled is not None or replay.sampler.state():
            self._kept[number] = kept = Kept(self, replay)
            replay.source.items.kept = kept

    def drop(self, number: int) -> None:
        """Let go of a view that was dropped: its state is written a last time. Nothing of the log is followed."""
        kept = self._kept.pop(number, None)
        if kept is not None and kept.changed and all(one.name != kept.name for one in self._kept.values()):
            state = self._copy(kept)
            if state is not None:
                self._dropped[kept.name] = state
                self.due = 0.0

    def begin(self) -> None:
        """Copy the states of views that have changed, and begin to write them."""
        if not self._writable() or (self._thread is not None and self._thread.is_alive()):
            self.due = time.monotonic() + (PERIOD_S if self._thread is None else 0.1)
            return
        began = time.perf_counter()
        states = self._copies()
        copied_s = time.perf_counter() - began
        self.due = time.monotonic() + max(PERIOD_S, (copied_s + self._took_s) / MAX_SHARE)
        if states:
            self._thread = threading.Thread(target=self._write, args=(states,), name="sharpwave-views", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter ends
                self._thread = None
                self._write(states)

    def write(self, saved: Iterable[tuple[str, dict[str, Any]]] = ()) -> None:
        """Write the states of all views that have changed, and ``saved`` ones by name, before this returns."""
        self.end()
        if self._writable():
            self.due = time.monotonic() + PERIOD_S
            failure = self._write({**dict(saved), **self._copies()})
            if failure:
                warnings.warn(
                    f"{failure}; after a crash, views are as they were when they were last written",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def end(self) -> None:
        """Wait until nothing is being written."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def nbytes(self) -> int:
        """Bytes of copies that are being written, or about to be."""
        return self._writing + sum(map(bytes_of, self._dropped.values()))

    def _writable(self) -> bool:
        return not self._files.disk.forked

    def _copies(self) -> dict[str, dict[str, Any]]:
        """Return the states of views that have changed, by name."""
        found, self._dropped = self._dropped, {}
        for kept in self._kept.values():
            if kept.name in self._failed:
                continue
            with contextlib.suppress(MemoryError):  # as the copies may: next time
                items = kept.source.items
                items.follow()
                kept.changed |= items.grew  # the order of a queue, and the priorities of new steps
                if kept.changed:
                    state = self._copy(kept)
                    if state is not None:
                        found[kept.name] = state
                        kept.changed = items.grew = False
        return found

    def _copy(self, kept: Kept) -> dict[str, Any] | None:
        try:
            return SavedView.of(kept.source, self._log).state_in_folder(self._log)
        except MemoryError:
            return None
        except Exception as error:  # of a sampler that is not ours: it ends no draw
            self._failed.add(kept.name)
            warnings.warn(
                f"view {kept.name!r}: its state cannot be kept for a crash ({error!r})", RuntimeWarning, stacklevel=6
            )
            return None

    def _write(self, states: dict[str, dict[str, Any]]) -> str:
        """Write states by name; return the failures. The lock need not be held."""
        began, failure = time.thread_time(), ""
        self._writing = sum(map(bytes_of, states.values()))
        try:
            for name, state in states.items():
                try:
                    self._files.write(name, state | {"name": name})
                except (OSError, TypeError, ValueError, MemoryError) as error:
                    self._mark(name)
                    failure = f"view {name!r} could not be written to {self._files.disk.folder} ({error})"
        finally:
            self._writing = 0
            self._took_s = time.thread_time() - began
        return failure

    def _mark(self, name: str) -> None:
        """Note that a view is not written."""
        for kept in list(self._kept.values()):
            if kept.name == name:
                kept.changed = True
