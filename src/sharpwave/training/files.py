"""Files of a run: written whole or not at all, or appended to in whole records; never through a link."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import zlib
from collections import deque
from pathlib import Path
from typing import Any

_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_UNFOLLOWED |= getattr(os, "O_BINARY", 0)  # Windows
MAX_WAITING_BYTES = 4 << 20
"""Records that a full disk refuses are kept in memory up to here; then the oldest of them are dropped."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """:func:`write_bytes` of a dict, indented."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` of text."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write atomically: under another name first, then renamed; a crash leaves the old file or the new one, whole.

    Raises:
        OSError: a full or failing disk, or ``path`` is a link, a folder or anything else that is no regular file.
    """
    if (found := _mode(path)) is not None and not stat.S_ISREG(found):
        raise irregular(path, found, "a regular file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")  # a name that nobody has given to a link
    try:
        write_new(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet, and sync it.  Raises: OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _UNFOLLOWED, 0o666)
    try:
        _write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file; with ``os.O_CREAT`` made if absent.  Raises: OSError, also where a link has its name."""
    if (found := _mode(path)) is not None and not stat.S_ISREG(found):
        raise irregular(path, found, "a regular file")  # to open a device may do something
    descriptor = os.open(path, flags | _UNFOLLOWED, 0o666)
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise irregular(path, mode, "a regular file")
    return descriptor


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file, which may be reached through a link.

    Raises:
        OSError: none, or no regular file.  ValueError: it is larger than any such file is.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
            raise irregular(path, mode, "a regular file")
        content = file.read(min(os.fstat(descriptor).st_size, max_bytes) + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} is larger than {max_bytes:,} bytes")
    return content


def real_folder(path: Path) -> bool:
    """Whether a folder is there.  Raises: OSError: something else is, a link to a folder included."""
    found = _mode(path)
    if found is not None and not stat.S_ISDIR(found):
        raise irregular(path, found, "a folder")
    return found is not None


def irregular(path: Path, mode: int, expected: str) -> OSError:
    """The error that says what has the name of one of the run's files."""
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFIFO: "a FIFO"}
    kind = kinds.get(stat.S_IFMT(mode), "a device or socket")
    return OSError(
        errno.EINVAL, f"{path} is {kind}, expected {expected}: a run writes only what lies in its folder; move it away"
    )


def _mode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


def sync(path: Path) -> None:
    """Return when a file's content, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sealed_json(values: dict[str, Any]) -> str:
    """``values`` as JSON, with a ``checksum`` of them at the end."""
    said = {name: value for name, value in values.items() if name != "checksum"}
    checksum = zlib.crc32(json.dumps(said, separators=(",", ":")).encode())
    return json.dumps({**said, "checksum": f"{checksum:08x}"}, indent=2) + "\n"


class RecordFile:
    """A file that whole records are appended to. What a full disk refuses waits in memory until it can be written.

    Args:
        path: made if absent.
    Attributes:
        dropped: records for which no memory was left.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._end = os.fstat(self._descriptor).st_size
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self.dropped = 0

    def append(self, record: bytes) -> None:
        """Write a record, after those that wait.

        Raises:
            OSError: it waits too; the file ends with its last whole record.
        """
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self.dropped += 1
        self.write_waiting()

    def write_waiting(self) -> None:
        """Write what waits.  Raises: OSError."""
        while self._waiting:
            record = self._waiting[0]
            try:
                _write(self._descriptor, record)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._end)  # no half record stays
                raise
            self._end += len(record)
            self._waiting_bytes -= len(record)
            self._waiting.popleft()

    def flush(self) -> None:
        """Return when all records are on disk.  Raises: OSError."""
        self.write_waiting()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Write what waits, and close.  Raises: OSError: it could not be written, and is lost."""
        try:
            self.write_waiting()
        finally:
            os.close(self._descriptor)
