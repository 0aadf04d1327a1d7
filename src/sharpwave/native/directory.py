"""Folders held open: their files are opened relative to the descriptor, by name, and never through a link."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from pathlib import Path

from sharpwave.native import windows

RELATIVE = os.open in os.supports_dir_fd and os.listdir in os.supports_fd
"""Whether this system opens files relative to a folder's descriptor; Windows does not: there paths are absolute."""
_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
BINARY = getattr(os, "O_BINARY", 0)
"""Flag without which Windows would change line ends."""
_READ = os.O_RDONLY | _UNFOLLOWED | getattr(os, "O_NONBLOCK", 0) | BINARY
_CREATE = os.O_RDWR | os.O_CREAT | _UNFOLLOWED | getattr(os, "O_NONBLOCK", 0) | BINARY
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of writing where this process may not."""
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "a file",
}


class IrregularError(OSError):
    """File name of the store that belongs to a link, a FIFO, a device or a folder.

    Nothing is read or changed; ``what`` names the found kind and the expected kind.
    """

    def __init__(self, path: Path, mode: int, expected: str = "a regular file") -> None:
        self.what = f"{kind_of(mode)}, expected {expected}"
        super().__init__(errno.EINVAL, f"{path} is {self.what}; it is left alone: move it away")


def kind_of(mode: int) -> str:
    """Return the kind of a file in words, from its ``st_mode``."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


class Directory:
    """Open folder: unaffected by chdir, by a rename, and by another folder at its path.

    Attributes:
        path: absolute path when it was opened; for messages only.
        descriptor: -1 once closed.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self._begun = os.stat(path) if descriptor < 0 else None  # of the folder there when it was opened
        self._end = weakref.finalize(self, os.close, descriptor) if descriptor >= 0 else None
        if self._end is not None:
            self._end.atexit = False

    @classmethod
    def open(cls, path: Path) -> Directory:
        """Open the folder at a user's path, which may be a link to it.  Raises: OSError."""
        path = path.resolve()
        return cls(path, os.open(path, _FOLDER) if RELATIVE else -1)

    def is_at(self, path: Path) -> bool:
        """Return whether ``path`` leads to this folder."""
        return os.path.samestat(os.stat(path), self._status())

    def names_directory(self, name: str, directory: Directory) -> bool:
        """Return whether ``name`` still names another open folder."""
        found = self.status(name)
        return found is not None and os.path.samestat(found, directory._status())

    def _status(self) -> os.stat_result:
        return os.fstat(self.descriptor) if self._begun is None else self._begun

    def directory(self, name: str) -> Directory:
        """Open a subfolder.

        Raises:
            IrregularError: not a folder.  OSError.
        """
        found = self.status(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path / name))
        if not stat.S_ISDIR(found.st_mode):
            raise IrregularError(self.path / name, found.st_mode, "a folder")
        target, base = self.at(name)
        return Directory(self.path / name, os.open(target, _FOLDER | _UNFOLLOWED, dir_fd=base) if RELATIVE else -1)

    def close(self) -> None:
        """Close the folder; a second call does nothing."""
        if self._end is not None:
            self._end()
        self.descriptor = -1

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def at(self, name: str) -> tuple[str | Path, int | None]:
        """Return the path and ``dir_fd`` with which functions of ``os`` find a file of the folder."""
        assert name == os.path.basename(name) and name not in ("", ".", ".."), name
        if not RELATIVE:
            return self.path / name, None
        if self.descriptor < 0:
            raise OSError(errno.EBADF, f"{self.path}: the folder was closed")
        return name, self.descriptor

    def names(self) -> list[str]:
        """Return the sorted names of its files and folders.  Raises: OSError."""
        return sorted(os.listdir(self.descriptor if RELATIVE else self.path))

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a name, without following links; ``None`` if there is none."""
        target, base = self.at(name)
        try:
            return os.stat(target, dir_fd=base, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_file(self, name: str) -> bool:
        """Return whether the name belongs to a regular file."""
        found = self.status(name)
        return found is not None and stat.S_ISREG(found.st_mode)

    def open_file(self, name: str, *, writable: bool = False) -> int:
        """Open a regular file for reading, or also for writing.  Raises: IrregularError; OSError."""
        target, base = self.at(name)
        return _opened(target, base, self.path / name, _READ | (os.O_RDWR if writable else 0))

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the first ``max_bytes`` bytes of a regular file.  Raises: IrregularError; OSError."""
        with os.fdopen(self.open_file(name), "rb") as file:
            return file.read(max_bytes)

    def open_or_make(self, name: str) -> int:
        """Open a regular file for reading and writing; create it if absent.  Raises: IrregularError; OSError."""
        target, base = self.at(name)
        return _opened(target, base, self.path / name, _CREATE)

    def names_file(self, name: str, descriptor: int) -> bool:
        """Return whether ``name`` still names an open file."""
        found = self.status(name)
        return found is not None and os.path.samestat(found, os.fstat(descriptor))


def open_file(path: Path, directory: Directory | None = None) -> int:
    """Open the regular file at a path for reading, found from ``directory``, if given.

    Raises: IrregularError: not a regular file.  OSError.
    """
    return _opened(path, None, path, _READ) if directory is None else directory.open_file(path.name)


def open_at(target: str | Path, flags: int, base: int | None) -> int:
    """Open a file, found from the folder ``base``; others may rename and delete it meanwhile.  Raises: OSError."""
    if windows.KERNEL32 is not None and os.name == "nt":
        return windows.open_file(target, flags)
    return os.open(target, flags, 0o666, dir_fd=base)  # less the umask


def _opened(target: str | Path, base: int | None, path: Path, flags: int) -> int:
    """Check before opening: opening a FIFO or a device may block or have effects."""
    try:
        mode = os.stat(target, dir_fd=base, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            raise IrregularError(path, mode)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    try:
        descriptor = open_at(target, flags, base)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise IrregularError(path, stat.S_IFLNK) from error
        raise
    mode = os.fstat(descriptor).st_mode  # it may have been replaced in between
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise IrregularError(path, mode)
    return descriptor
