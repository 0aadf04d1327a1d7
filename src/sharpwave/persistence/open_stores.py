"""Stores on disk that are open in this process, by their folder."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

from sharpwave.disk.store_folder import MANIFEST, read_manifest
from sharpwave.persistence.lifetime import Life
from sharpwave.persistence.settings import Settings

_OPEN: weakref.WeakValueDictionary[tuple[int, int], Life] = weakref.WeakValueDictionary()
"""By device and inode, so that a path that is written otherwise, or a link, finds the store too."""
MAY_CHANGE = ("capacity", "ram", "disk_limit", "on_full", "seed")
"""Settings that a store may be opened again with others of."""


def remember(folder: Path, life: Life) -> None:
    """Note that a store has just been opened in a folder; it is forgotten once it and its views are freed."""
    status = os.stat(folder)
    _OPEN[status.st_dev, status.st_ino] = life


def open_here(folder: Any) -> Any | None:
    """Return the store that has a folder open in this process; ``None``: there is none, or it is closed."""
    try:
        status = os.stat(folder)
    except (OSError, TypeError, ValueError):  # it is not there, or no path
        return None
    life = _OPEN.get((status.st_dev, status.st_ino))
    store = None if life is None else life.store()
    return None if store is None or store._log.closed or store._log.disk.forked else store


def was_left_in(folder: Path) -> bool:
    """Return whether there is a store on disk in a folder, and no checkpoint.  Raises: DamagedError, OSError."""
    return (folder / MANIFEST).exists() and not read_manifest(folder).get("checkpoint")


def check_same(now: Settings, was: Settings, folder: Path, *, is_open: bool, default_segments: bool = False) -> None:
    """Check that a store has the settings that it is wanted with.

    Args:
        is_open: whether it is open, else left in the folder, where what may change is not compared.
        default_segments: whether ``segment_steps`` was not given, and is as it was.

    Raises: ValueError: naming what differs.
    """
    passed = {"schema"} | (set() if is_open else set(MAY_CHANGE)) | ({"segment_steps"} if default_segments else set())
    there, here = was.manifest(), now.manifest()
    differ = [name for name in here if name not in passed and here[name] != there.get(name)]
    if differ:
        said = "; ".join(f"{name} is {there.get(name)!r:.300}, given was {here[name]!r:.300}" for name in differ)
        remedy = "resize() or close() it first, or give" if is_open else "give"
        raise ValueError(
            f"exist_ok=True: {folder} holds a store{', open in this process,' if is_open else ''} with other settings "
            f"({said}); {remedy} the same, or another folder"
        )
