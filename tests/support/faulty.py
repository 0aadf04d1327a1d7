"""Files that fail, processes that die and power that goes, at any chosen file operation."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from sharpwave.disk.store_folder import LOCK
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files

KINDS = ("EIO", "ENOSPC", "short write", "killed", "killed in a write", "power cut", "power cut in a write")
"""What may happen at an operation: the first three are errors, after which the process goes on."""
ERRORS, CUTS = KINDS[:3], KINDS[-2:]
SECTOR = 512


class Died(BaseException):
    """The process is no more: raised by the operation at which it ended, and by every later one."""


class Faulty(Files):
    """Files on which operation number ``at`` (from 1) comes out as ``kind`` says; all others work.

    Syncs take no time: they only note what would be left after a power cut, the content of files at their last sync,
    and the names in a folder at its. A sync that fails leaves what was written since the last one to be lost, though
    the system will not say so again.

    Attributes:
        count: operations so far.  log: their names.
    """

    def __init__(self, at: int = 0, kind: str = "EIO", seed: int = 0) -> None:
        self.at, self.kind, self.count = at, kind, 0
        self.log: list[str] = []
        self.random = random.Random(seed)
        self.dead = False
        self._synced: dict[int, bytes] = {}  # by inode: content that a power cut leaves
        self._names: dict[Path, dict[str, int]] = {}  # by folder: names and inodes that a power cut leaves
        self._written: dict[int, list[tuple[int, int]]] = {}  # by inode: ranges since the last sync

    # what the store calls

    def open(self, directory: Directory, name: str) -> int:
        self._step("open")
        descriptor = super().open(directory, name)
        self._synced[self._inode(descriptor)] = b""
        self._written[self._inode(descriptor)] = []
        return descriptor

    def open_again(self, directory: Directory, name: str, descriptor: int) -> int:
        self._step("open_again")
        return super().open_again(directory, name, descriptor)

    def truncate(self, descriptor: int, nbytes: int) -> None:
        self._step("truncate")
        super().truncate(descriptor, nbytes)

    def allocate(self, descriptor: int, offset: int, nbytes: int) -> None:
        self._step("allocate")
        super().allocate(descriptor, offset, nbytes)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        try:
            self._step("pwrite")
        except (OSError, Died):
            if "write" in self.kind:
                part = self.random.randrange(len(data) + 1)  # all of it as well: written, and not said to be
                super().pwrite(descriptor, data[:part], offset)
                self._note(descriptor, offset, part)
            raise
        super().pwrite(descriptor, data, offset)
        self._note(descriptor, offset, len(data))

    def create(self, directory: Directory, name: str, write: Callable[[int], None]) -> None:
        def noted(descriptor: int) -> None:
            write(descriptor)
            self._note(descriptor, 0, os.fstat(descriptor).st_size)

        super().create(directory, name, noted)

    def fsync(self, descriptor: int) -> None:
        inode = self._inode(descriptor)
        try:
            self._step("fsync")
        except OSError:
            self._written[inode] = []  # the system counts as written what it could not write
            raise
        held = bytearray(self._synced.get(inode, b""))
        size = os.fstat(descriptor).st_size
        held += bytes(max(0, size - len(held)))
        for begin, nbytes in self._written.get(inode, []):
            held[begin : begin + nbytes] = os.pread(descriptor, nbytes, begin)
        self._synced[inode], self._written[inode] = bytes(held), []

    def fsync_folder(self, directory: Directory) -> None:
        self._step("fsync_folder")
        path = directory.path
        self._names[path] = {one.name: one.stat().st_ino for one in path.iterdir() if one.is_file()}

    def rename(self, directory: Directory, name: str, target: Directory, to: str) -> None:
        self._step("rename")
        super().rename(directory, name, target, to)

    def unlink(self, directory: Directory, name: str) -> None:
        self._step("unlink")
        found = directory.status(name)
        if found is not None:
            self._synced.pop(found.st_ino, None)  # may soon be another file's
            self._written.pop(found.st_ino, None)
        super().unlink(directory, name)

    def remove_directory(self, directory: Directory, name: str) -> None:
        self._step("remove_directory")
        super().remove_directory(directory, name)

    # what happens then

    def _step(self, name: str) -> None:
        if self.dead:
            raise Died
        self.count += 1
        self.log.append(name)
        if self.count == self.at:
            if self.kind in ERRORS:
                number = errno.ENOSPC if self.kind == "ENOSPC" else errno.EIO
                raise OSError(number, os.strerror(number))
            self.dead = True
            raise Died

    def _inode(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_ino

    def _note(self, descriptor: int, offset: int, nbytes: int) -> None:
        self._written.setdefault(self._inode(descriptor), []).append((offset, nbytes))

    def cut_power(self, folder: Path, kept_share: float = 0.5) -> None:
        """Leave of ``folder`` what a power cut may: all that was synced, and of the rest some sectors and names."""

        def lost() -> bool:
            return self.random.random() >= kept_share

        for path in [folder, *(one for one in folder.iterdir() if one.is_dir())]:
            kept = self._names.get(path, {})
            for one in list(path.iterdir()):
                if not one.is_file() or one.name == LOCK:
                    continue
                inode = one.stat().st_ino
                if one.name not in kept and lost():
                    one.unlink()
                    continue
                held = bytearray(self._synced.get(inode, b""))
                now = one.read_bytes()
                if len(held) < len(now) and (one.name in kept or not lost()):
                    held += bytes(len(now) - len(held))
                for begin, nbytes in self._written.get(inode, []):
                    for sector in range(begin // SECTOR, -(-(begin + nbytes) // SECTOR)):
                        if not lost():
                            place = slice(sector * SECTOR, min((sector + 1) * SECTOR, len(held)))
                            held[place] = now[place]
                one.write_bytes(held)
