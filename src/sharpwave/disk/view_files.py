"""Files of views' states in a store's folder: the memory of their samplers, for opening without a checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.format.checkpoint_state import read_state, write_tree
from sharpwave.native.directory import Directory

VIEWS = "views"
"""Folder in a store's folder."""
_NAME = re.compile(r"[0-9a-f]{32}\.([0-9a-f]{32})\.npz")
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.([0-9a-f]{32})\.partial")


def file_name(view: str, store: str) -> str:
    """Return the name of a view's file; the store's random name in it tells it from files that are not the store's."""
    return f"{hashlib.sha256(view.encode()).hexdigest()[:32]}.{store}.npz"


def partial_of(name: str) -> str | None:
    """Return the store of a view's file that is being written, by its name; ``None``: it is no such file."""
    found = _PARTIAL.fullmatch(name)
    return None if found is None else found[1]


def view_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files in a store's folder that are named like views' files, each with the name of its store."""
    place = folder / VIEWS
    if place.is_symlink() or not place.is_dir():
        return []
    return sorted((path, named[1]) for path in place.iterdir() if (named := _NAME.fullmatch(path.name)))


def read_view(path: Path, directory: Directory | None = None) -> dict[str, Any]:
    """Read a view's file.  Raises: DamagedError: not as one was written.  NewerVersionError, OSError."""
    state = read_state(path, directory)
    named = _NAME.fullmatch(path.name)
    if named is None or not isinstance(name := state.get("name"), str) or path.name != file_name(name, named[1]):
        raise DamagedError(f"{path}: the state of a view {state.get('name')!r:.60}, expected one that this file is of")
    return state


class ViewFiles:
    """Writer and reader of the files of one store's views; the folder is held."""

    def __init__(self, disk: DiskTier) -> None:
        self.disk = disk
        self._store = disk.regions.identity.store.hex()

    def write(self, view: str, state: dict[str, Any]) -> None:
        """Write a view's state, or replace it atomically.  Raises: OSError."""
        disk, name = self.disk, file_name(view, self._store)

        def write(descriptor: int) -> None:
            write_tree(descriptor, state)
            disk.check_held()  # once more: it may have taken long

        disk.check_held()
        with disk.files.make_directory(disk.directory, VIEWS) as directory:
            disk.files.replace(directory, name, f".{name.removesuffix('.npz')}.partial", write)

    def delete(self, view: str) -> None:
        """Delete a view's file, if that is possible."""
        with contextlib.suppress(OSError), self.disk.directory.directory(VIEWS) as directory:
            if directory.is_file(name := file_name(view, self._store)):
                self.disk.files.unlink(directory, name)

    def read(self, damages: list[str]) -> Iterator[dict[str, Any]]:
        """Yield the states of earlier processes; delete their half-written files.

        Args:
            damages: files that cannot be read, or belong to another store, are added, and stay.
        """
        if self.disk.directory.status(VIEWS) is None:
            return
        try:
            with self.disk.directory.directory(VIEWS) as directory:
                for name in sorted(directory.names()):
                    yield from self._read(directory, name, damages)
        except OSError as error:
            damages.append(f"{self.disk.folder / VIEWS}: {error}; views begin anew")

    def _read(self, directory: Directory, name: str, damages: list[str]) -> Iterator[dict[str, Any]]:
        whole, path = _NAME.fullmatch(name), directory.path / name
        if partial_of(name) == self._store and directory.is_file(name):
            self.disk.files.unlink(directory, name)
        elif whole is not None and whole[1] == self._store:
            try:
                yield read_view(path, directory)
            except NewerVersionError as error:
                damages.append(f"{error.what}, which a later release wrote; its view begins anew")
            except (DamagedError, OSError, OverflowError, MemoryError) as error:
                damages.append(f"{error}; its view begins anew")
        elif whole is not None:
            damages.append(f"{path}: of another store, {whole[1]}; ignored")
