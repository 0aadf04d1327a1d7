"""Files of a run: written atomically or appended to in whole records; links are never followed for writing."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sharpwave.native.directory import BINARY, Directory, IrregularError
from sharpwave.native.file_operations import Files

MAX_WAITING_BYTES = 4 << 20
"""Size limit of the records kept in memory while the disk is full; beyond it the oldest are dropped."""
FILES = Files()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a crash leaves the old file or the new one.

    Raises:
        OSError: the disk is full or fails, or ``path`` is a link, a folder or anything else but a regular file.
    """
    with Directory.open(path.parent) as folder:
        partial = f".{path.name}.{secrets.token_hex(4)}.partial"  # unpredictable: no link has this name
        FILES.replace(folder, path.name, partial, lambda file: FILES.pwrite(file, content, 0))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the temporary name of a picture or a video, which replaces ``path`` once it is written.

    After an error the temporary file is removed, and an earlier file stays.
    """
    try:
        yield _partial(path)
        os.replace(_partial(path), path)
    finally:
        discard_partial(path)


def discard_partial(path: Path) -> None:
    """Remove the temporary file of a picture or a video that another process began and did not finish."""
    with contextlib.suppress(OSError):
        _partial(path).unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".partial-{path.name}")  # with its ending, by which its writer chooses the format


def write_new(path: Path, content: bytes) -> None:
    """Write a new file and sync it.  Raises: OSError, also if the file exists."""
    with Directory.open(path.parent) as folder:
        FILES.create(folder, path.name, lambda file: FILES.pwrite(file, content, 0))


def make_folder(path: Path) -> None:
    """Make a folder, unless it exists.  Raises: OSError: also if ``path`` is something else, such as a link to one."""
    with Directory.open(path.parent) as parent:
        FILES.make_directory(parent, path.name).close()


def sync_folder(path: Path) -> None:
    """Sync the names of a folder's files to disk.  Raises: OSError."""
    with Directory.open(path) as folder:
        FILES.fsync_folder(folder)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a link to one is followed.

    Raises:
        OSError: the file does not exist, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | BINARY)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise IrregularError(path, status.st_mode)
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a regular file; a link to one is followed.

    Raises:
        OSError: the file does not exist, or is not a regular file.
        ValueError: it is larger than ``max_bytes``.
    """
    with open_regular(path) as file:
        content = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} is larger than the limit of {max_bytes:,} bytes for such a file")
    return content


class RecordFile:
    """Append-only file of whole records. While the disk is full, records wait in memory.

    Attributes:
        dropped: records dropped because more than ``MAX_WAITING_BYTES`` were waiting.
    """

    def __init__(self, path: Path) -> None:
        with Directory.open(path.parent) as folder:
            self._descriptor = folder.open_or_make(path.name)
        self._end = os.fstat(self._descriptor).st_size
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self.dropped = 0

    def append(self, record: bytes) -> None:
        """Append a record, after the waiting ones.

        Raises:
            OSError: the record could not be written and waits too; the file ends with its last whole record.
        """
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self.dropped += 1
        self._write_waiting()

    def _write_waiting(self) -> None:
        while self._waiting:
            record = self._waiting[0]
            try:
                FILES.pwrite(self._descriptor, record, self._end)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._end)  # remove a partial record
                raise
            self._end += len(record)
            self._waiting_bytes -= len(record)
            self._waiting.popleft()

    def flush(self) -> None:
        """Write the waiting records and sync the file.  Raises: OSError."""
        self._write_waiting()
        FILES.fsync(self._descriptor)

    def close(self) -> None:
        """Write the waiting records and close.  Raises: OSError: they could not be written and are lost."""
        try:
            self._write_waiting()
        finally:
            os.close(self._descriptor)
