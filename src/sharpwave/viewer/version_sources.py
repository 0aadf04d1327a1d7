"""Versions of a source's store as sources of their own, and what differs between two sources."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.disk.store_folder import FOLDER
from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.escaping import escaped
from sharpwave.offline.scan import part_of
from sharpwave.persistence.versions import Version, checked_version, read_version, versions_in
from sharpwave.viewer.overview import episode_row
from sharpwave.viewer.snapshots import Snapshot
from sharpwave.viewer.sources import ViewerSource
from sharpwave.viewer.watching import Watched

MAX_VERSIONS = 200
"""Limit of the versions of a store that are listed: the newest."""
MAX_READ = 8
"""Number of versions whose contents are kept in memory."""
MAX_NOTE_CHARACTERS = 2000
BINS = 40
MAX_ROWS = 100
"""Limit of the episodes of one source only that are listed."""

Key = tuple[int, str, str]
"""Number of a source, name of a version of its store, and when that was made."""


class VersionSources:
    """Versions of the stores of sources. A version is read when it is asked for; the last few stay in memory."""

    def __init__(self) -> None:
        self._read: OrderedDict[Key, Watched] = OrderedDict()
        self._counts: dict[Key, tuple[int, float | None]] = {}
        self._lock = threading.Lock()

    def watched(self, number: int, one: Watched, name: str) -> Watched:
        """Return a version of a source's store as a source.  Raises: KeyError: there is none, or it was deleted."""
        try:
            folder = one.source.store_folder()
            version = None if folder is None else read_version(folder, checked_version("view", name))
        except (OSError, ValueError, DamagedError, NewerVersionError):
            version = None
        if version is None:
            raise KeyError(f"version {name!r}: the store has no version of this name; it was deleted, or never made")
        return self.source(number, one, version, keep=True)

    def source(self, number: int, one: Watched, version: Version, keep: bool = False) -> Watched:
        """Return a version as a source. ``keep``: it is about to be read."""
        key = number, version.name, version.created
        with self._lock:
            found = self._read.get(key)
            if found is None:
                name = f"{one.source.name} @ {version.name}"
                found = Watched(ViewerSource(name, version.folder, "version", None), like=one)
            if keep:
                self._read[key] = found
                self._read.move_to_end(key)
                while len(self._read) > MAX_READ:
                    self._read.popitem(last=False)
        return found

    def listed(self, one: Watched) -> list[Version]:
        """Return the versions of a source's store, the newest first."""
        folder = one.source.store_folder()
        return [] if folder is None else versions_in(folder)[::-1][:MAX_VERSIONS]

    def rows(self, number: int, one: Watched) -> list[dict[str, Any]]:
        """Return the versions of a source's store as JSON, and begin to read one that was not read yet."""
        rows, unread = list[dict[str, Any]](), list[Version]()
        for version in self.listed(one):
            key = number, version.name, version.created
            known = self._read.get(key)
            if known is not None and (snapshot := known.snapshot) is not None:
                returns = snapshot.columns["return"][snapshot.columns["whole"]]
                returns = returns[np.isfinite(returns)]
                self._counts[key] = len(snapshot.episodes), float(returns.mean()) if returns.size else None
            if key not in self._counts and not (known is not None and known.trouble):
                unread.append(version)
            episodes, mean = self._counts.get(key, (None, None))
            size, own = _bytes(version.folder)
            rows.append(
                {
                    "id": f"{number}@{version.name}",
                    "name": version.name,
                    "created": version.created[:40],
                    "steps": version.steps,
                    "episodes": episodes,
                    "mean_return": mean,
                    "bytes": size,
                    "own_bytes": own,
                    "columns": [escaped(name)[:100] for name in version.columns],
                    "parent": None if version.parent is None else escaped(version.parent)[:100],
                    "note": {
                        escaped(key)[:100]: escaped(value)[:MAX_NOTE_CHARACTERS]
                        for key, value in list(version.note.items())[:32]
                    },
                    "trouble": "" if known is None else known.trouble,
                }
            )
        if unread and (one.snapshot is not None or one.trouble):  # one at a time, after the store, whose files it has
            self.source(number, one, unread[0], keep=True).ask()
        return rows


def _bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes of a version's files, and of those among them that no store and no other version has."""
    total = own = 0
    part = part_of(folder)
    for place in () if part.is_symlink() else (part, part / FOLDER):
        with contextlib.suppress(OSError):  # deleted meanwhile
            for one in os.scandir(place) if not place.is_symlink() else ():
                if one.is_file(follow_symlinks=False):
                    found = os.lstat(one.path)  # an entry's own status lacks the number of links on Windows
                    total += found.st_size
                    own += found.st_size if found.st_nlink == 1 else 0
    return total, own


def differences(one: Snapshot, other: Snapshot) -> dict[str, Any]:
    """Return the returns of whole episodes of two sources in common bins; and for versions and branches of one store,
    the episodes that only one of them has.

    An episode is the same where lane, first step, length, return and end are.
    """
    sides = one, other
    returns = [side.columns["return"][side.columns["whole"]] for side in sides]
    returns = [values[np.isfinite(values)] for values in returns]
    joined = np.concatenate(returns)
    result: dict[str, Any] = {"histogram": None, "same_store": False}
    if joined.size and np.ptp(joined) < np.inf:
        edges = np.histogram_bin_edges(joined, BINS)
        counts = [np.histogram(values, edges)[0].tolist() for values in returns]
        result["histogram"] = {"edges": edges.tolist(), "counts": counts}
    if one.survey.described.identity == other.survey.described.identity:
        keys = [
            {(e.lane, e.first_step, e.steps, e.total, e.end): k for k, e in enumerate(side.episodes)} for side in sides
        ]
        only = [sorted(k for key, k in mine.items() if key not in others) for mine, others in (keys, keys[::-1])]
        result["same_store"] = True
        result["both"] = len(keys[0]) - len(only[0])
        result["only"] = [
            {
                "total": len(numbers),
                "steps": sum(side.episodes[number].steps for number in numbers),
                "rows": [episode_row(side, number) for number in numbers[::-1][:MAX_ROWS]],
            }
            for side, numbers in zip(sides, only, strict=True)
        ]
    return result
