"""Files of a run: written atomically or appended to in whole records; links are never followed for writing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sharpwave.native import descriptors
from sharpwave.native.directory import kind_of

_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_UNFOLLOWED |= getattr(os, "O_BINARY", 0)  # Windows
MAX_WAITING_BYTES = 4 << 20
"""Size limit of the records kept in memory while the disk is full; beyond it the oldest are dropped."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically, under a temporary name that is then renamed: a crash leaves the old file or the new one.

    Raises:
        OSError: the disk is full or fails, or ``path`` is a link, a folder or anything else but a regular file.
    """
    _exists(path, stat.S_IFREG)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")  # unpredictable: no link has this name
    try:
        write_new(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


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
    return path.with_name(f".partial-{path.name}")


def write_new(path: Path, content: bytes) -> None:
    """Write a new file and sync it.  Raises: OSError, also if the file exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _UNFOLLOWED, 0o666)
    try:
        _write(descriptor, content)
        descriptors.sync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file; ``os.O_CREAT`` makes it if absent.  Raises: OSError, also if ``path`` is a link."""
    _exists(path, stat.S_IFREG)  # checked first: merely opening a device may have effects
    return _checked(path, os.open(path, flags | _UNFOLLOWED, 0o666))


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a regular file; a link to one is followed.

    Raises:
        OSError: the file does not exist, or is not a regular file.
        ValueError: it is larger than ``max_bytes``.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = _checked(path, os.open(path, flags))
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(min(os.fstat(descriptor).st_size, max_bytes) + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} is larger than the limit of {max_bytes:,} bytes for such a file")
    return content


def real_folder(path: Path) -> bool:
    """Return whether a folder exists.  Raises: OSError: ``path`` is something else, such as a link to a folder."""
    return _exists(path, stat.S_IFDIR)


def _exists(path: Path, kind: int) -> bool:
    """Return whether ``path`` exists.  Raises: OSError: it is not of the ``kind``, of ``stat``, as a link never is."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_IFMT(mode) != kind:
        raise _irregular(path, mode, "a folder" if kind == stat.S_IFDIR else "a regular file")
    return True


def _checked(path: Path, descriptor: int) -> int:
    """Return a descriptor of a regular file; close another one.  Raises: OSError."""
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _irregular(path, mode, "a regular file")
    return descriptor


def _irregular(path: Path, mode: int, expected: str) -> OSError:
    text = f"{path} is {kind_of(mode)}, expected {expected}: a run writes only inside its own folder; move it away"
    return OSError(errno.EINVAL, text)


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's entries, to disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        descriptors.sync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sealed_json(values: dict[str, Any]) -> str:
    """Encode ``values`` as JSON with their ``checksum`` as the last entry."""
    said = {name: value for name, value in values.items() if name != "checksum"}
    checksum = zlib.crc32(json.dumps(said, separators=(",", ":")).encode())
    return json.dumps({**said, "checksum": f"{checksum:08x}"}, indent=2) + "\n"


class RecordFile:
    """Append-only file of whole records. While the disk is full, records wait in memory.

    Args:
        path: path of the file; made if absent.
    Attributes:
        dropped: records dropped because more than ``MAX_WAITING_BYTES`` were waiting.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
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
        """Write the waiting records.  Raises: OSError."""
        while self._waiting:
            record = self._waiting[0]
            try:
                _write(self._descriptor, record)
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
        descriptors.sync(self._descriptor)

    def close(self) -> None:
        """Write the waiting records and close.  Raises: OSError: they could not be written and are lost."""
        try:
            self._write_waiting()
        finally:
            os.close(self._descriptor)
