"""What is done to files, in one place: so that a test can make each of these fail."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path


class Files:
    """The operating system's files. All methods raise OSError."""

    def make_folder(self, path: Path) -> None:
        """Make a folder, and those above it that are absent, and see to it that their names are on disk."""
        absent = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for one in absent:
            self.fsync_folder(one.parent)

    def open(self, path: Path) -> int:
        """Make a file and open it for reading and writing; one that exists is an error."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def allocate(self, descriptor: int, nbytes: int) -> None:
        """Take ``nbytes`` of the disk, read as zeros, so that a full disk is noticed now."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, nbytes)
        else:
            os.ftruncate(descriptor, nbytes)

    def truncate(self, descriptor: int, nbytes: int) -> None:
        """Let a file end after ``nbytes``."""
        os.ftruncate(descriptor, nbytes)

    def link(self, source: Path, path: Path) -> bool:
        """Give a file a second name. False where the file system has no such names, or ``path`` is on another."""
        try:
            os.link(source, path)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                return False
            raise
        return True

    def sync(self, path: Path) -> None:
        """Return when the content of a file is on disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of ``data``."""
        view = memoryview(data)
        while view:
            done = os.pwrite(descriptor, view, offset)
            view, offset = view[done:], offset + done

    def pread(self, descriptor: int, out: memoryview, offset: int) -> int:
        """Fill ``out``; returns the bytes read, fewer at the file's end."""
        done = 0
        while done < len(out):
            got = os.preadv(descriptor, [out[done:]], offset + done)
            if got == 0:
                break
            done += got
        return done

    def fsync(self, descriptor: int) -> None:
        """Return when the file's content is on disk."""
        if sys.platform == "darwin":
            os.fsync(descriptor)
        else:
            os.fdatasync(descriptor)

    def fsync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, path: Path, content: bytes | memoryview) -> None:
        """Write a file whole or not at all: under another name, synced, renamed."""
        temporary = path.with_name(f".{path.name}.partial")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            self.pwrite(descriptor, content, 0)
            self.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.rename(temporary, path)
        self.fsync_folder(path.parent)

    def rename(self, path: Path, to: Path) -> None:
        """Give a file another name; one that has that name goes."""
        os.replace(path, to)

    def unlink(self, path: Path) -> None:
        """Delete a file; one that is gone is no error."""
        path.unlink(missing_ok=True)
