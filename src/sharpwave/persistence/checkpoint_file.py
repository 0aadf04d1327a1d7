"""Checkpoints in a single file: a zip archive, uncompressed, of the files in a checkpoint's folder.

It is packed from a folder beside it, and renamed once it is complete. It is opened by unpacking it into a hidden folder
beside it, or beside the new store; that folder is deleted again. Its content is read as untrusted input, like a
folder's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sharpwave.disk.ownership import MARK, remove_part
from sharpwave.disk.store_folder import FOLDER, LOCK, MANIFEST, MANIFEST_BYTES, Hold, read_manifest
from sharpwave.errors import DamagedError, StoreInUseError
from sharpwave.format.checkpoint_state import STATE
from sharpwave.native.directory import Directory, open_file
from sharpwave.native.file_operations import Files

SUFFIX = ".sharpwave"
COPIED = 1 << 20
"""Bytes copied at a time."""
MAX_FILES = 1 << 16
"""Limit of the files in an archive."""
_PACKED = "packed"
_NAME = re.compile(
    rf"{re.escape(MANIFEST)}|[1-9][0-9]{{0,9}}/({re.escape(MARK)}|{re.escape(STATE)}|{FOLDER}/[0-9]{{12}}\.region)"
)


def is_file_name(path: Path) -> bool:
    """Return whether a checkpoint at this path is a single file."""
    return path.suffix == SUFFIX and not path.is_dir()


def save_file(path: Path, save: Callable[[Path, Callable[[Directory], None]], None], files: Files) -> None:
    """Write a checkpoint to a single file, or replace the one there, atomically.

    Args:
        save: writes a checkpoint to a folder, and calls the given function with it while it is locked.

    Raises:
        OSError: the disk is full or fails; an earlier file is unchanged.
        FileExistsError: the file is no checkpoint.  StoreInUseError: another process writes it.
    """
    _check_ours(path)
    stage = path.parent / f".{path.name}.partial"

    def pack(folder: Directory) -> None:
        manifest = read_manifest(folder)
        number = str(manifest["checkpoint"])
        try:
            _pack(folder, number, files)
            with files.make_folder(path.parent) as parent:
                files.rename(folder, _PACKED, parent, path.name)
                files.fsync_folder(parent)
        finally:
            with contextlib.suppress(OSError):
                files.unlink(folder, _PACKED)
                files.unlink(folder, MANIFEST)
                remove_part(folder, number, manifest["store"], files, named=True)
                files.unlink(folder, LOCK)

    try:
        save(stage, pack)
    finally:
        with contextlib.suppress(OSError):
            stage.rmdir()  # fails if another process's file, of a crash or in use, is left in it


def _check_ours(path: Path) -> None:
    """Refuse to replace a file that is no checkpoint.  Raises: FileExistsError, OSError."""
    if not path.is_symlink() and not path.exists():
        return
    try:
        with opened(path) as archive:
            archive.getinfo(MANIFEST)
    except (DamagedError, KeyError, OSError) as error:
        raise FileExistsError(f"checkpoint: {path} is no checkpoint of a store ({error}); give another name") from error


def _pack(folder: Directory, number: str, files: Files) -> None:
    """Write the archive of a checkpoint into its own folder, and sync it.  Raises: OSError."""

    def write(descriptor: int) -> None:
        with (
            os.fdopen(descriptor, "w+b", closefd=False) as out,
            zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive,
            folder.directory(number) as part,
            part.directory(FOLDER) as regions,
        ):
            _add(archive, MANIFEST, folder, MANIFEST)
            for name in (MARK, STATE):
                _add(archive, f"{number}/{name}", part, name)
            for name in regions.names():
                _add(archive, f"{number}/{FOLDER}/{name}", regions, name)

    files.unlink(folder, _PACKED)
    files.create(folder, _PACKED, write)


def _add(archive: zipfile.ZipFile, as_name: str, folder: Directory, name: str) -> None:
    with os.fdopen(folder.open_file(name), "rb") as source, archive.open(as_name, "w", force_zip64=True) as target:
        shutil.copyfileobj(source, target, COPIED)


@contextlib.contextmanager
def folder_of(path: Path, disk: Path | None = None, *, to_open: bool = False) -> Iterator[Path]:
    """Provide the folder of a checkpoint: ``path`` itself, or the content of a file, unpacked for the duration.

    Args:
        disk: the unpacked files lie beside this folder; default: beside the file, or if that folder is not writable, in
            the system's temporary folder.
        to_open: a store is opened from it, on disk in the folder ``disk``, or in memory.

    Raises:
        ValueError: the file is of a store on disk, and ``disk`` is not given.
        FileNotFoundError, DamagedError: the file is no checkpoint.
        OSError: no room, or a failing disk.
    """
    if not path.is_file():
        yield path
        return
    with opened(path) as archive:
        beside = path.parent if disk is None else disk.absolute().parent
        if disk is not None:
            beside.mkdir(parents=True, exist_ok=True)
        with _unpacked(archive, path, beside) as folder:
            if to_open and disk is None and read_manifest(folder).get("on_disk"):
                raise ValueError(
                    f"open: {path} is of a store on disk, whose files go to a folder; give disk=, a new or empty one"
                )
            yield folder


@contextlib.contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive of a checkpoint.

    Raises: FileNotFoundError: the file is no archive.  DamagedError: it is not a checkpoint's, or damaged.  OSError.
    """
    with os.fdopen(open_file(path), "rb") as source:
        if source.read(4) != b"PK\x03\x04":
            raise FileNotFoundError(f"{path}: no store there: neither a folder, nor a file that checkpoint() wrote")
        try:
            archive = zipfile.ZipFile(source)
            _check(archive, os.fstat(source.fileno()).st_size)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, UnicodeError) as error:
            raise DamagedError(f"{path}: no checkpoint of a store, or damaged: {error}") from error
        with archive:
            yield archive


def _check(archive: zipfile.ZipFile, nbytes: int) -> None:
    """Check names and sizes before anything is unpacked.  Raises: ValueError."""
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if len(entries) > MAX_FILES or len(set(names)) < len(names) or MANIFEST not in names:
        raise ValueError(f"{len(entries):,} files, expected {MANIFEST} and at most {MAX_FILES:,} others, each once")
    for entry in entries:
        if not _NAME.fullmatch(entry.filename):
            raise ValueError(f"{entry.filename[:80]!r}, expected the files of a checkpoint")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size or entry.flag_bits & 1:
            raise ValueError(f"{entry.filename!r} is compressed or encrypted, expected plain bytes")
    if sum(entry.file_size for entry in entries) > nbytes:
        raise ValueError(f"its files have more than the {nbytes:,} bytes of the archive")
    if archive.getinfo(MANIFEST).file_size > MANIFEST_BYTES:
        raise ValueError(f"{MANIFEST}: more than {MANIFEST_BYTES:,} bytes")


@contextlib.contextmanager
def _unpacked(archive: zipfile.ZipFile, path: Path, beside: Path) -> Iterator[Path]:
    prefix = f".{path.name}.opening."
    _remove_remains(beside, prefix)
    try:
        made = tempfile.mkdtemp(prefix=prefix, dir=beside)
    except OSError:
        made = tempfile.mkdtemp(prefix=prefix)
    folder = Path(made)
    try:
        with Directory.open(folder) as directory, Hold(directory, shared=True):
            for part in {entry.filename.split("/")[0] for entry in archive.infolist() if "/" in entry.filename}:
                (folder / part / FOLDER).mkdir(parents=True)
            for entry in archive.infolist():
                target = folder / entry.filename
                try:
                    with archive.open(entry) as source, target.open("xb") as out:
                        shutil.copyfileobj(source, out, COPIED)
                except (zipfile.BadZipFile, EOFError) as error:
                    raise DamagedError(f"{path}: {entry.filename}: {error}; nothing was opened") from error
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_remains(beside: Path, prefix: str) -> None:
    """Delete folders into which processes that have crashed unpacked the same file."""
    for folder in beside.glob(f"{prefix}*") if beside.is_dir() else ():
        with contextlib.suppress(OSError, StoreInUseError), Directory.open(folder) as directory, Hold(directory):
            shutil.rmtree(folder, ignore_errors=True)
