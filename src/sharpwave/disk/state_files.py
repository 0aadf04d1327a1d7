"""Files of named states in a store's folder: of views, the memory of their samplers; of late columns, their values."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.store_folder import COLUMNS, VIEWS
from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.format.checkpoint_state import read_state, write_tree
from sharpwave.native.directory import Directory

STATES = {VIEWS: "its view begins anew", COLUMNS: "its values are lost"}
"""Consequence of losing a file, by folder."""
_NAME = re.compile(r"[0-9a-f]{32}\.([0-9a-f]{32})\.npz")
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.([0-9a-f]{32})\.partial")


def file_name(name: str, store: str) -> str:
    """Return the name of a state's file; the store's random name in it tells it from files that are not the store's."""
    return f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.{store}.npz"


def partial_of(name: str) -> str | None:
    """Return the store of a state's file that is being written, by its name; ``None``: it is no such file."""
    found = _PARTIAL.fullmatch(name)
    return None if found is None else found[1]


def state_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files in a store's folder that are named like states' files, each with the name of its store."""
    found = []
    for place in (folder / kind for kind in STATES):
        if not place.is_symlink() and place.is_dir():
            found += [(path, named[1]) for path in place.iterdir() if (named := _NAME.fullmatch(path.name))]
    return sorted(found)


def read_named(path: Path, directory: Directory | None = None) -> dict[str, Any]:
    """Read a state's file.  Raises: DamagedError: not as one was written.  NewerVersionError, OSError."""
    state = read_state(path, directory)
    named = _NAME.fullmatch(path.name)
    if named is None or not isinstance(name := state.get("name"), str) or path.name != file_name(name, named[1]):
        raise DamagedError(f"{path}: the state of {state.get('name')!r:.60}, expected the one that this file is of")
    return state


class StateFiles:
    """Writer and reader of the files of one store's states in ``kind``, a folder of ``STATES``; the store's is held."""

    def __init__(self, disk: DiskTier, kind: str) -> None:
        self.disk, self._kind = disk, kind
        self._store = disk.regions.identity.store.hex()

    def write(self, name: str, state: dict[str, Any]) -> None:
        """Write a state, or replace it atomically; its ``name`` is among its values.  Raises: OSError."""
        disk, file = self.disk, file_name(name, self._store)

        def write(descriptor: int) -> None:
            write_tree(descriptor, state)
            disk.check_held()  # once more: it may have taken long

        disk.check_held()
        with disk.files.make_directory(disk.directory, self._kind) as directory:
            disk.files.replace(directory, file, f".{file.removesuffix('.npz')}.partial", write)

    def delete(self, name: str) -> None:
        """Delete a state's file, if that is possible."""
        with contextlib.suppress(OSError):
            self.remove(name)

    def remove(self, name: str) -> None:
        """Delete a state's file, if there is one.  Raises: OSError."""
        if self.disk.directory.status(self._kind) is None:
            return
        with self.disk.directory.directory(self._kind) as directory:
            if directory.is_file(file := file_name(name, self._store)):
                self.disk.files.unlink(directory, file)

    def read_whole(self, name: str) -> dict[str, Any] | None:
        """Return a state of an earlier process; ``None``: there is none.

        Raises:
            DamagedError, IrregularError: the file is none that a store wrote.
            NewerVersionError, OSError, MemoryError: it may be intact.
        """
        if self.disk.directory.status(self._kind) is None:
            return None
        file = file_name(name, self._store)
        with self.disk.directory.directory(self._kind) as directory:
            return None if directory.status(file) is None else read_named(directory.path / file, directory)

    def path(self, name: str) -> Path:
        """Return the path of a state's file."""
        return self.disk.folder / self._kind / file_name(name, self._store)

    def read_one(self, name: str, damages: list[str]) -> dict[str, Any] | None:
        """Return a state of an earlier process; ``None``: there is none, or it cannot be read (``damages``)."""
        if self.disk.directory.status(self._kind) is None:
            return None
        file = file_name(name, self._store)
        with self.disk.directory.directory(self._kind) as directory:
            return next(self._read(directory, file, damages), None) if directory.is_file(file) else None

    def read(self, damages: list[str], but: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the states of earlier processes; delete their half-written files.

        Args:
            damages: files that cannot be read, or belong to another store, are added, and stay.
            but: names of states that are left out.
        """
        if self.disk.directory.status(self._kind) is None:
            return
        try:
            with self.disk.directory.directory(self._kind) as directory:
                for file in sorted(set(directory.names()) - {file_name(name, self._store) for name in but}):
                    yield from self._read(directory, file, damages)
        except OSError as error:
            damages.append(f"{self.disk.folder / self._kind}: {error}; {STATES[self._kind]}")

    def _read(self, directory: Directory, file: str, damages: list[str]) -> Iterator[dict[str, Any]]:
        whole, path, then = _NAME.fullmatch(file), directory.path / file, STATES[self._kind]
        if partial_of(file) == self._store and directory.is_file(file):
            self.disk.files.unlink(directory, file)
        elif whole is not None and whole[1] == self._store:
            try:
                yield read_named(path, directory)
            except NewerVersionError as error:
                damages.append(f"{error.what}, which a later release wrote; {then}")
            except (DamagedError, OSError, OverflowError, MemoryError) as error:
                damages.append(f"{error}; {then}")
        elif whole is not None:
            damages.append(f"{path}: of another store, {whole[1]}; ignored")
