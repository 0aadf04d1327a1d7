"""Proof of which files a store wrote itself: it deletes, moves and overwrites no others."""

from __future__ import annotations

import contextlib
import json
import re
import stat
from pathlib import Path
from typing import Any

from sharpwave.disk.region_files import partial_name
from sharpwave.disk.store_folder import COLUMNS, FOLDER, LOCK, MANIFEST, QUARANTINE, read_manifest
from sharpwave.errors import DamagedError
from sharpwave.format.checkpoint_state import STATE
from sharpwave.format.region import HEADER, Identity
from sharpwave.native.directory import Directory, IrregularError, kind_of
from sharpwave.native.file_operations import Files

MARK = ".sharpwave"
"""File that marks a checkpoint's numbered folder: its number, and the store."""
OPENING = ".opening"
"""File that marks a folder into which a checkpoint's files are being linked: their store."""
OF_THE_SYSTEM = {"lost+found", ".DS_Store", "Thumbs.db", "desktop.ini"}
"""Names that an empty folder may contain."""
_PARTIAL_MANIFEST = re.compile(rf"\.{re.escape(MANIFEST)}\.[0-9a-f]{{32}}\.partial")
_PARTIAL_PART = re.compile(r"\.[0-9]+\.[0-9a-f]{32}\.partial")
_REGION = re.compile(r"[0-9]{12}\.(region|partial)|\.[0-9]{12}\.[0-9a-f]{32}\.partial")


def is_of(directory: Directory, name: str, store: bytes) -> bool:
    """Return whether a region file names this store; the rest of its header may be damaged."""
    return header_of(directory, name)[40:56] == store


def header_of(directory: Directory, name: str) -> bytes:
    """Return a region file's header; empty if there is no such file, or it cannot be read."""
    try:
        return directory.read(name, HEADER.size)
    except OSError:
        return b""


def unfinished(directory: Directory, identity: Identity) -> list[str]:
    """Return the store's own files that were about to become regions when a process crashed."""
    numbers = {name: name.removeprefix(".").partition(".")[0] for name in directory.names()}
    return [
        name
        for name, number in numbers.items()
        if re.fullmatch("[0-9]{12}", number) and name == partial_name(int(number), identity) and directory.is_file(name)
    ]


def mark(directory: Directory, name: str, content: dict[str, Any], files: Files) -> None:
    """Write a file that tells later processes the purpose of a folder.  Raises: OSError."""
    files.create(directory, name, lambda descriptor: files.pwrite(descriptor, json.dumps(content).encode(), 0))


def marked(directory: Directory, name: str) -> dict[str, Any]:
    """Read a file that ``mark`` wrote; return an empty dict if there is none."""
    try:
        found = json.loads(directory.read(name, 4096))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def make_part(directory: Directory, number: int, store: str, files: Files) -> Directory:
    """Create a checkpoint's numbered folder, marked before it gets that name.

    Raises: OSError; then it does not exist.
    """
    partial = _partial_part(str(number), store)
    try:
        with files.make_directory(directory, partial, new=True) as part:
            mark(part, MARK, {"checkpoint": number, "store": store}, files)
        files.rename(directory, partial, directory, str(number))
        return directory.directory(str(number))
    except OSError:
        with contextlib.suppress(OSError):
            _remove_partial_part(directory, partial, files)
        raise


def _partial_part(name: str, store: str) -> str:
    return f".{name}.{store}.partial"


def remove_parts(directory: Directory, store: str, files: Files, *, kept: int = 0, named: int = 0) -> None:
    """Remove all numbered folders except ``kept``, and unfinished ones, like ``remove_part``."""
    for name in directory.names():
        if re.fullmatch("[1-9][0-9]{0,17}", name) and int(name) != kept:
            remove_part(directory, name, store, files, named=int(name) == named)
        elif _PARTIAL_PART.fullmatch(name):
            _remove_partial_part(directory, name, files)


def _remove_partial_part(directory: Directory, name: str, files: Files) -> None:
    with contextlib.suppress(IrregularError, FileNotFoundError), directory.directory(name) as part:
        if part.is_file(MARK):
            files.unlink(part, MARK)
    files.remove_directory(directory, name)


def remove_part(directory: Directory, name: str, store: str, files: Files, *, named: bool = False) -> None:
    """Delete a checkpoint's numbered folder, if a checkpoint made it; foreign files in it stay, and so does the folder.

    Args:
        named: whether ``store.json`` names it: if the mark is damaged, regions of ``store`` go.
    """
    with contextlib.suppress(IrregularError):
        with directory.directory(name) as part:
            ours = marked(part, MARK).get("checkpoint") == int(name)
            if not ours and not named:
                return
            with contextlib.suppress(FileNotFoundError, IrregularError), part.directory(FOLDER) as regions:
                for one in regions.names():
                    proven = ours or is_of(regions, one, bytes.fromhex(store))
                    if _REGION.fullmatch(one) and proven and regions.is_file(one):
                        files.unlink(regions, one)
            files.remove_directory(part, FOLDER)
            if part.is_file(STATE):
                files.unlink(part, STATE)
            if ours and part.names() == [MARK]:
                # An unmarked folder of that number is a stranger's: one of this name is ours whenever the process dies.
                partial = _partial_part(name, store)
                _remove_partial_part(directory, partial, files)
                files.rename(directory, name, directory, partial)
                _remove_partial_part(directory, partial, files)
                return
            if part.is_file(MARK):
                files.unlink(part, MARK)
        files.remove_directory(directory, name)


def remove_partial_manifests(directory: Directory, files: Files) -> None:
    """Delete partial files of ``store.json`` from crashed processes. The folder must be locked."""
    for name in directory.names():
        if _PARTIAL_MANIFEST.fullmatch(name) and directory.is_file(name):
            files.unlink(directory, name)


def check_empty(directory: Directory, store: bytes | None) -> None:
    """Check that a folder holds nothing but the remains of an interrupted creation of a store.

    Args:
        store: regions of this store are allowed: they were about to be linked from a checkpoint.

    Raises:
        FileExistsError: naming the unexpected file, and the remedy.
    """
    for name in directory.names():
        status = directory.status(name)
        if status is None or name == LOCK or name in OF_THE_SYSTEM:
            continue
        if stat.S_ISREG(status.st_mode) and (name == OPENING or _PARTIAL_MANIFEST.fullmatch(name)):
            continue
        if name == FOLDER and stat.S_ISDIR(status.st_mode):
            foreign = _unlinked(directory, store)
            if not foreign:
                continue
            name = f"{FOLDER}/{foreign[0]}"
        if name == COLUMNS and stat.S_ISDIR(status.st_mode) and store is not None:
            with directory.directory(COLUMNS) as columns:  # written before the folder became the store's
                if all(f".{store.hex()}." in one for one in columns.names()):
                    continue
        hint = ""
        if name.startswith(FOLDER) and directory.status(MANIFEST) is None:
            hint = f"; these may belong to a store whose {MANIFEST} was lost: put back a copy of it"
        raise FileExistsError(
            f"disk: {directory.path} is neither new nor empty: it holds {name!r} ({kind_of(status.st_mode)}){hint}. "
            "Give another folder, or move away what is in it"
        )


def check_regions(directory: Directory, store: bytes) -> None:
    """Check that regions can be linked into a checkpoint's folder.  Raises: FileExistsError: other files are there."""
    foreign = _unlinked(directory, store) if directory.status(FOLDER) else []
    if foreign:
        raise FileExistsError(
            f"open: {directory.path / FOLDER} holds {foreign[0]!r}, which is not of this checkpoint; move it away"
        )


def _unlinked(directory: Directory, store: bytes | None) -> list[str]:
    """Return names in the folder for regions that no interrupted opening of a checkpoint linked there."""
    with directory.directory(FOLDER) as regions:
        names = regions.names()
        if not names or store is None or marked(directory, OPENING).get("store") != store.hex():
            return names
        ours = {name for name in names if _REGION.fullmatch(name) and regions.is_file(name)}
        headers = {name: header_of(regions, name) for name in ours}
        return [name for name in names if name not in ours or (any(headers[name]) and headers[name][40:56] != store)]


def check_apart(path: Path) -> None:
    """Check that a folder is not inside a checkpoint's or a store's.  Raises: FileExistsError: naming it."""
    path = path.resolve()
    for parent in path.parents:
        with contextlib.suppress(OSError, DamagedError):  # not a store's, or unreadable
            checkpoint = read_manifest(parent).get("checkpoint")
            inside = path.relative_to(parent).parts[0]
            if checkpoint or inside in (FOLDER, QUARANTINE):
                what = "checkpoint" if checkpoint else "store"
                break
    else:
        return
    raise FileExistsError(f"{path} lies in the folder of a {what}, {parent}; give a folder outside it")
