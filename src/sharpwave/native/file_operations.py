"""File operations, in one class so that a test can make each fail."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from sharpwave.native import core, descriptors
from sharpwave.native.directory import BINARY, UNWRITABLE, Directory, IrregularError, kind_of, open_at


class Files:
    """File operations of the operating system. Files are named by folder and name. All methods raise OSError."""

    def make_folder(self, path: Path) -> Directory:
        """Open a folder; create it and its parents if absent, and sync their names.

        Raises: FileExistsError: it, or a parent, is a file.  OSError.
        """
        path = path.absolute()
        absent = [one for one in (path, *path.parents) if not one.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            found = next((one for one in (path, *path.parents) if os.path.lexists(one)), path)
            raise FileExistsError(
                f"{found} is {kind_of(os.lstat(found).st_mode)}, expected a folder; give another path"
            ) from error
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise OSError(
                error.errno, f"{path} cannot be made ({error.strerror}); give a folder that can be written to"
            ) from error
        for one in absent:
            with Directory.open(one.parent) as parent:
                self.fsync_folder(parent)
        return Directory.open(path)

    def make_directory(self, directory: Directory, name: str, *, new: bool = False) -> Directory:
        """Open a subfolder; create it if absent. ``new``: refuse one that exists."""
        target, base = directory.at(name)
        try:
            os.mkdir(target, dir_fd=base)
        except FileExistsError:
            if new:
                raise
        else:
            self.fsync_folder(directory)
        return directory.directory(name)

    @property
    def native(self) -> bool:
        """Whether the core may call the system's ``pread`` instead of the method."""
        return type(self).pread is Files.pread and hasattr(os, "pread")

    def open(self, directory: Directory, name: str) -> int:
        """Create a file and open it for reading and writing; one that exists, or a link, is an error."""
        target, base = directory.at(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | BINARY
        return open_at(target, flags, base)

    def open_again(self, directory: Directory, name: str, descriptor: int) -> int:
        """Open a file for writing that is open for reading as ``descriptor``."""
        target, base = directory.at(name)
        flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        other = open_at(target, flags | BINARY, base)
        if not os.path.samestat(os.fstat(other), os.fstat(descriptor)):
            os.close(other)
            raise OSError(errno.ESTALE, f"{directory.path / name}: another file has replaced it since it was opened")
        return other

    def allocate(self, descriptor: int, offset: int, nbytes: int) -> None:
        """Allocate ``nbytes`` of a file from ``offset`` on, which read as zeros, so that a full disk shows now.

        On file systems without allocation a full disk shows when the bytes are written.
        """
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, offset, nbytes)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise

    def free(self, descriptor: int, offset: int, nbytes: int) -> bool:
        """Give the disk space of a file's range back, which reads as zeros from then on; return whether the system
        can."""
        return core.free_range(descriptor, offset, nbytes)

    def truncate(self, descriptor: int, nbytes: int) -> None:
        """Truncate or extend a file to ``nbytes``."""
        os.ftruncate(descriptor, nbytes)

    def link(self, directory: Directory, name: str, target: Directory) -> bool:
        """Link a file under the same name in another folder; return False between file systems, or without links."""
        source, base = directory.at(name)
        path, to = target.at(name)
        unfollowed = {"follow_symlinks": False} if os.link in os.supports_follow_symlinks else {}  # not on Windows
        try:
            os.link(source, path, src_dir_fd=base, dst_dir_fd=to, **unfollowed)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                return False
            raise
        return True

    def sync(self, directory: Directory, name: str) -> None:
        """Sync a file's content to disk."""
        descriptor = directory.open_file(name, writable=os.name == "nt")  # Windows syncs only writable files
        try:
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of ``data`` at an offset."""
        view = memoryview(data)
        while view:
            done = descriptors.pwrite(descriptor, view, offset)
            view, offset = view[done:], offset + done

    def pread(self, descriptor: int, out: memoryview, offset: int) -> int:
        """Fill ``out``; return the number of bytes read, fewer at the file's end."""
        done = 0
        while done < len(out):
            got = descriptors.pread_into(descriptor, out[done:], offset + done)
            if got == 0:
                break
            done += got
        return done

    def copy(self, source: int, directory: Directory, name: str) -> None:
        """Copy an open file that cannot be linked to a new file, and sync that."""

        def write(target: int) -> None:
            content, at = memoryview(bytearray(1 << 20)), 0
            while nbytes := self.pread(source, content, at):
                self.pwrite(target, content[:nbytes], at)
                at += nbytes

        self.create(directory, name, write)

    def fsync(self, descriptor: int) -> None:
        """Sync an open file's content to disk."""
        descriptors.sync(descriptor)

    def fsync_folder(self, directory: Directory) -> None:
        """Sync a folder's names to disk, where folders can be opened: not on Windows."""
        if directory.descriptor >= 0:
            os.fsync(directory.descriptor)

    def create(self, directory: Directory, name: str, write: Callable[[int], None]) -> None:
        """Write a new file, by ``write`` to its descriptor, and sync it; after an error it is deleted again."""
        descriptor = self.open(directory, name)
        try:
            write(descriptor)
            self.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(directory, name)
            raise
        finally:
            os.close(descriptor)

    def replace(self, directory: Directory, name: str, partial: str, write: Callable[[int], None]) -> None:
        """Write a file atomically: as ``partial``, a name of this process only, synced, then renamed.

        A regular file ``partial`` was left by a crashed process, and is overwritten. Anything but a regular file under
        either name is an error.
        """
        for one in (name, partial):
            found = directory.status(one)
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise IrregularError(directory.path / one, found.st_mode)
            if one == partial and found is not None:
                self.unlink(directory, partial)
        self.create(directory, partial, write)
        try:
            self.rename(directory, partial, directory, name)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(directory, partial)
            raise
        self.fsync_folder(directory)

    def rename(self, directory: Directory, name: str, target: Directory, to: str) -> None:
        """Rename a file within its folder or to another, replacing a file of that name."""
        source, base = directory.at(name)
        path, there = target.at(to)
        os.replace(source, path, src_dir_fd=base, dst_dir_fd=there)

    def unlink(self, directory: Directory, name: str) -> None:
        """Delete a file; a missing one is no error."""
        target, base = directory.at(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target, dir_fd=base)

    def remove_directory(self, directory: Directory, name: str) -> None:
        """Delete a folder if it is empty; one that is not, or is missing, is no error."""
        target, base = directory.at(name)
        try:
            os.rmdir(target, dir_fd=base)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
