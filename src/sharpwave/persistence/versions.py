"""Versions: named checkpoints in a store's folder, which never change. Their files are links to the store's own.

Each is a checkpoint's folder ``versions/NAME``, whose ``store.json`` has an entry ``version``. One is read through
links in a folder beside it, ``.reading.PROCESS.RANDOM``, which its reader deletes; the folder of a reader that was
killed is deleted by the next one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sharpwave.disk.ownership import remove_partial_manifests, remove_parts
from sharpwave.disk.store_folder import LOCK, MANIFEST, VERSIONS, WAIT_S, Hold, read_manifest
from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.json_values import decode, encode
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_READING = re.compile(r"\.reading\.([0-9]+)\.[0-9a-f]{16}")
MAX_NOTE_CHARACTERS = 64 << 10


@dataclass(frozen=True)
class Version:
    """Version of a store.

    Attributes:
        name: of the version. ``created``: when, ISO 8601 in UTC.
        steps: number of steps. ``columns``: names of columns added later.
        parent: name of the version that the store had been made from, or that was the last before; ``None``: none.
        note: what its maker said about it.
        folder: of its files, a checkpoint for ``sharpwave inspect``, ``verify`` and ``view``.
    """

    name: str
    created: str
    steps: int
    columns: tuple[str, ...]
    parent: str | None
    note: dict[str, Any]
    folder: Path


def checked_version(what: str, name: Any) -> str:
    """Return a version's name.  Raises: ValueError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{what}: version {name!r}, expected 1 to 100 letters, digits, dots, dashes and underscores, the "
            "first a letter or digit"
        )
    return name


def begun(name: str, parent: Mapping[str, Any] | None, note: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entry of a new version.  Raises: TypeError, ValueError: an invalid note."""
    said = encode({} if note is None else note, "snapshot: note")
    if len(str(said)) > MAX_NOTE_CHARACTERS:
        raise ValueError(f"snapshot: note of {len(str(said)):,} characters, expected at most {MAX_NOTE_CHARACTERS:,}")
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return {"name": name, "created": now, "parent": (parent or {}).get("version"), "note": said}


def read_version(folder: Path, name: str) -> Version:
    """Return the version in a store's folder.

    Raises:
        FileNotFoundError: there is none of this name; names those there are.  DamagedError, OSError.
    """
    try:
        return _read(folder / VERSIONS / name)
    except FileNotFoundError as error:
        there = ", ".join(one.name for one in versions_in(folder)) or "none"
        raise FileNotFoundError(f"{folder}: no version {name!r}; there are {there}") from error


def _read(place: Path) -> Version:
    said = None if place.is_symlink() else read_manifest(place).get("version")
    if not isinstance(said, dict) or said.get("name") != place.name:
        raise DamagedError(f"{place}: no version's folder, as its {MANIFEST} says")
    try:
        columns, parent, note = said.get("columns", []), said.get("parent"), decode(said.get("note", {}))
        return Version(
            place.name,
            str(said.get("created", "")),
            int(said.get("steps", 0)),
            tuple(map(str, columns)),
            None if parent is None else str(parent),
            note if isinstance(note, dict) else {},
            place,
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{place}: no version's folder ({error})") from error


def versions_in(folder: Path) -> list[Version]:
    """Return the versions in a store's folder, the oldest first; folders that are none, or damaged, are left out."""
    place = folder / VERSIONS
    found = []
    for name in sorted(os.listdir(place)) if place.is_dir() and not place.is_symlink() else []:
        if _NAME.fullmatch(name):
            with suppress(OSError, DamagedError, NewerVersionError):
                found.append(_read(place / name))
    return sorted(found, key=lambda one: one.created)


def place_of(folder: Path, name: str) -> Path:
    """Return the folder for a new version.  Raises: FileExistsError: it is there already."""
    place = folder / VERSIONS / name
    if (place / MANIFEST).exists():
        raise FileExistsError(
            f"snapshot: {folder} has a version {name!r}, and versions never change; give another name, or "
            f"delete_version({name!r}) first"
        )
    sweep(folder)
    return place


def remove(folder: Path, name: str, files: Files) -> None:
    """Delete a version, ``store.json`` first: without it, there is none.

    Raises: FileNotFoundError: there is none.  StoreInUseError: it is being read.  OSError.
    """
    version = read_version(folder, name)
    with Directory.open(version.folder) as directory, Hold(directory, wait_s=WAIT_S):
        manifest = read_manifest(directory)
        files.unlink(directory, MANIFEST)
        remove_partial_manifests(directory, files)
        remove_parts(directory, manifest["store"], files, named=manifest["checkpoint"])
        files.unlink(directory, LOCK)
    with suppress(OSError):  # a stranger's file stays in it
        version.folder.rmdir()
    sweep(folder)


def reading_place(folder: Path) -> Path:
    """Return a new folder through whose links a version of a store is read."""
    sweep(folder)
    return folder / VERSIONS / f".reading.{os.getpid()}.{os.urandom(8).hex()}"


def sweep(folder: Path) -> None:
    """Delete folders of killed readers, and the remains of versions whose deletion was interrupted."""
    place, files = folder / VERSIONS, Files()
    with suppress(OSError):
        for name in os.listdir(place):
            reader = _READING.fullmatch(name)
            if reader and not _runs(int(reader[1])):
                with suppress(OSError), Directory.open(place / name) as directory, Hold(directory):
                    shutil.rmtree(place / name, ignore_errors=True)
            elif _NAME.fullmatch(name) and not (place / name / MANIFEST).exists():
                with suppress(OSError), Directory.open(place / name) as directory, Hold(directory):
                    if directory.status(MANIFEST) is None:
                        remove_parts(directory, bytes(16).hex(), files)


def _runs(process: int) -> bool:
    """Return whether a process of this number runs, which may be about to lock its folder."""
    if os.name == "nt":  # where the call ends the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
