"""A store's folder: its lock, and ``store.json``, which describes its contents."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import stat
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharpwave.errors import DamagedError, NewerVersionError, StoreInUseError
from sharpwave.format.segment_header import check_names
from sharpwave.json_values import sealed
from sharpwave.native import descriptors
from sharpwave.native.directory import UNWRITABLE, Directory, IrregularError, open_file
from sharpwave.native.file_operations import Files

ANEW = "what is written to it may be lost, and another process may write there too. Stop writing, and open it anew"
FORMAT = 2
MANIFEST, LOCK, FOLDER, QUARANTINE = "store.json", "lock", "regions", "quarantine"
VIEWS, COLUMNS, VERSIONS = "views", "columns", "versions"
"""Folders of views' states, of late columns and of named checkpoints in a store's folder."""
MANIFEST_BYTES = 1 << 20
MAX_CHECKPOINT = (1 << 31) - (1 << 20)
"""Limit of checkpoint numbers."""
WAIT_S = 10.0
"""Seconds that a checkpoint waits for readers of the previous one, and readers wait for it."""
_NAME = re.compile("[0-9a-f]{32}")


def write_manifest(directory: Directory, manifest: dict[str, Any], files: Files) -> None:
    """Write ``store.json`` atomically; its partial file is named after the store.  Raises: OSError."""
    partial = f".{MANIFEST}.{manifest['store']}.partial"
    content = packed_manifest({"format": FORMAT, **manifest})
    files.replace(directory, MANIFEST, partial, lambda descriptor: files.pwrite(descriptor, content, 0))


class Hold:
    """Lock on a store's folder, released when the process ends.

    Both the lock file and the folder itself are locked: deleting the lock file by hand lets no other process in.

    Args:
        directory: open, and kept open while the lock is held.
        shared: take a lock that several readers may hold at once, and write nothing.
        wait_s: seconds to wait for other processes to release it.

    Raises:
        StoreInUseError: another process holds it.
        FileExistsError: ``lock`` is another program's file.  IrregularError.  OSError.
    """

    def __init__(self, directory: Directory, *, shared: bool = False, wait_s: float = 0.0) -> None:
        self.directory = directory
        self._lock = -1
        self._end: Callable[[], object] = lambda: None
        deadline = time.monotonic() + wait_s
        while not self._try(shared):
            if time.monotonic() >= deadline:
                raise StoreInUseError(self._refusal(shared, wait_s))
            time.sleep(0.02)
        if self._lock >= 0:
            self._end = end = weakref.finalize(self, os.close, self._lock)
            end.atexit = False
        if not shared and os.fstat(self._lock).st_nlink == 1:  # under another name it may be anybody's file
            os.ftruncate(self._lock, 0)
            descriptors.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _try(self, shared: bool) -> bool:
        """Lock both; repeat if the lock file was deleted in between."""
        for _ in range(100):
            self._lock = self._open(shared)
            if not all(lock_if_possible(one, shared) for one in (self._lock, self.directory.descriptor) if one >= 0):
                break
            if self._lock < 0 or self.directory.names_file(LOCK, self._lock):
                return True
            os.close(self._lock)
            self._lock = -1
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1
        self.close()
        return False

    def _open(self, shared: bool) -> int:
        try:
            descriptor = self.directory.open_or_make(LOCK)
        except IrregularError:
            raise
        except OSError as error:
            if shared:  # a read-only folder: writers reach it by another path
                return self.directory.open_file(LOCK) if self.directory.is_file(LOCK) else -1
            if error.errno not in UNWRITABLE:
                raise
            raise OSError(
                error.errno,
                f"{self.directory.path} cannot be written to ({error.strerror}), and opening a store on disk "
                "locks its folder, and writes there; open a copy of the folder. sharpwave inspect, verify and view "
                "only read it",
            ) from error
        if not re.fullmatch(rb"[0-9]{0,20}\n?", descriptors.pread(descriptor, 32, 0)):
            os.close(descriptor)
            raise FileExistsError(f"{self.directory.path / LOCK}: no store's lock file; move it away")
        return descriptor

    def _refusal(self, shared: bool, wait_s: float) -> str:
        path, waited, holder = self.directory.path, f", for {wait_s:g} s" if wait_s else "", ""
        with contextlib.suppress(OSError):
            descriptor = self.directory.open_file(LOCK)
            try:
                if os.fstat(descriptor).st_nlink == 1:
                    holder = descriptors.pread(descriptor, 32, 0).decode(errors="replace").strip()
                if (
                    not shared
                    and lock_if_possible(descriptor, True)
                    and lock_if_possible(self.directory.descriptor, True)
                ):
                    self.close()
                    return f"disk: {path} is being read by another process{waited}; end it, or wait for it"
            finally:
                os.close(descriptor)
        if holder == str(os.getpid()):
            return (
                f"disk: {path} is in use by process {holder}, this one{waited}: by an earlier run of a notebook's "
                f"cell, say. Get the store that has it with sharpwave.Store.open({str(path)!r}, exist_ok=True)"
            )
        used = f"disk: {path} is in use by process {holder or 'unknown'}{waited}; end it, or give another folder"
        if wait_s:  # a checkpoint, which is being written
            return used
        return (
            f"{used}. Meanwhile `sharpwave inspect {shlex.quote(str(path))}` reads it, as do verify and view, and here "
            "sharpwave.Store.open('COPY') has its steps once that process has called store.checkpoint('COPY'); a "
            "sharpwave.Cluster is one store of several processes"
        )

    def check(self) -> None:
        """Check that the folder still exists, and is this process's.

        Raises:
            StoreInUseError: the lock file, or the folder, was deleted or replaced.
        """
        if not self.directory.names_file(LOCK, self._lock):
            raise StoreInUseError(
                f"disk: the lock file of {self.directory.path}, or the whole folder, was deleted or replaced while the "
                f"store was open; {ANEW}"
            )

    def close(self) -> None:
        """Unlock the folder, in forked processes too; the directory stays open."""
        for descriptor in (self._lock, self.directory.descriptor):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    descriptors.unlock(descriptor)
        self.leave()

    def leave(self) -> None:
        """Close the lock file in a forked process: the parent still holds the lock."""
        self._end()
        self._lock = -1

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_if_possible(descriptor: int, shared: bool) -> bool:
    """Lock an open file or folder; return False if other processes hold it."""
    if descriptor < 0:  # a folder on Windows
        return True
    try:
        return descriptors.lock(descriptor, shared=shared)
    except OSError:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):  # some network file systems cannot lock folders
            raise
    return True


def packed_manifest(manifest: dict[str, Any]) -> bytes:
    """Return the bytes of ``store.json``."""
    return sealed(manifest, indent=1)


def read_manifest(folder: Path | Directory) -> dict[str, Any]:
    """Read a store folder's ``store.json``.

    Raises:
        FileNotFoundError: no store there.  DamagedError: not as a store writes it.  NewerVersionError.
        IrregularError: not a regular file.  OSError.
    """
    directory = folder if isinstance(folder, Directory) else None
    path = (folder.path if isinstance(folder, Directory) else folder) / MANIFEST
    try:
        with os.fdopen(open_file(path, directory), "rb") as file:
            content = file.read(MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{path.parent}: no store there: {MANIFEST} is missing") from error
    try:
        if len(content) > MANIFEST_BYTES:
            raise ValueError(f"more than {MANIFEST_BYTES:,} bytes")
        manifest: dict[str, Any] = json.loads(content)
        expected = packed_manifest(_checked(manifest))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: not what a store writes ({error}); put back a copy of it") from error
    if content != expected:  # byte by byte: it is written in one way only
        at = next((i for i, (a, b) in enumerate(zip(content, expected, strict=False)) if a != b), len(expected))
        raise DamagedError(
            f"{path}: not what a store writes: its checksum does not match, or it was edited (byte {at:,}); put back a "
            "copy of it. Limits are changed with the arguments of Store.open"
        )
    if manifest["format"] < FORMAT:
        raise DamagedError(f"{path}: format {manifest['format']}, expected {FORMAT}: no release wrote it")
    if manifest["format"] > FORMAT:
        raise NewerVersionError(f"{path}: format {manifest['format']}, this release reads up to {FORMAT}")
    check_names(manifest.get("requires", []), str(path))
    return manifest


def _checked(manifest: Any) -> dict[str, Any]:
    """Check the entries that ``store.json`` has in every format.  Raises: ValueError."""
    if not isinstance(manifest, dict):
        raise ValueError(f"{type(manifest).__name__}, expected an object")
    numbers = {"format": 1 << 16, "schema": 1 << 64, "checkpoint": MAX_CHECKPOINT}
    for name, limit in numbers.items():
        value = manifest.get(name, 0)
        if type(value) is not int or not (name == "format") <= value < limit:
            raise ValueError(f"{name} {value!r}, expected an integer below {limit}")
    requires = manifest.get("requires", [])
    if not isinstance(requires, list) or not all(isinstance(name, str) for name in requires):
        raise ValueError(f"requires {requires!r}, expected names of features")
    if type(manifest.get("on_disk", False)) is not bool:
        raise ValueError(f"on_disk {manifest['on_disk']!r}, expected true or false")
    if not isinstance(store := manifest.get("store"), str) or not _NAME.fullmatch(store):
        raise ValueError(f"store {store!r}, expected 32 hexadecimal digits")
    return manifest
