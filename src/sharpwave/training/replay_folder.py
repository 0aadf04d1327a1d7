"""The folder of a run's replay memory on disk: its owner, and clearing it for a memory restored from a checkpoint."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from sharpwave.disk.ownership import is_of
from sharpwave.disk.view_files import VIEWS, partial_of, view_files
from sharpwave.native.directory import Directory
from sharpwave.training.files import read_regular
from sharpwave.training.folder import DISK

MANIFEST, REGIONS = "store.json", "regions"
MAX_MANIFEST_BYTES = 16 << 20


def store_id(folder: Path) -> str:
    """Return the id in a folder's store.json, of a store or of a store's checkpoint; "": there is none."""
    try:
        store = json.loads(read_regular(folder / MANIFEST, MAX_MANIFEST_BYTES))["store"]
        return store if isinstance(store, str) and re.fullmatch("[0-9a-f]{32}", store) else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def candidates(run: Path, ids: set[str]) -> Iterator[Path]:
    """Yield folders for the run's replay memory, each cleared of what the run's own stores had written there.

    The caller uses the first that a store accepts; further ones follow because others may hold foreign files.

    Args:
        ids: ids of the run's stores.
    """
    number = 1
    while True:
        folder = run / (DISK if number == 1 else f"{DISK}-{number}")
        if not folder.is_symlink():
            if store_id(folder) in ids - {""}:
                clear(folder, store_id(folder))
            yield folder
        number += 1


def clear(folder: Path, store: str) -> None:
    """Remove the files that the store with this id wrote into a folder, and no others.  Raises: OSError."""
    regions = folder / REGIONS
    if regions.is_dir() and not regions.is_symlink():
        with Directory.open(regions) as held:
            for path in regions.iterdir():
                if is_of(held, path.name, bytes.fromhex(store)) or path.name.endswith(f".{store}.partial"):
                    path.unlink()
        with contextlib.suppress(OSError):  # not empty
            regions.rmdir()
    for path, owner in view_files(folder):
        if owner == store:
            path.unlink()
    views = folder / VIEWS
    if views.is_dir() and not views.is_symlink():
        for path in [path for path in views.iterdir() if partial_of(path.name) == store]:
            path.unlink()
        with contextlib.suppress(OSError):  # not empty
            views.rmdir()
    (folder / f".{MANIFEST}.{store}.partial").unlink(missing_ok=True)
    (folder / MANIFEST).unlink()  # last: it names the owner of the other files
    with contextlib.suppress(OSError):
        (folder / "quarantine").rmdir()
