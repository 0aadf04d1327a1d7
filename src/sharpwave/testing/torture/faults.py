"""Faults of a disk: a preloaded library that fails file operations, or else a replacement of the store's class."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

import sharpwave.store
from sharpwave.native.file_operations import Files

KINDS = ("EIO", "ENOSPC", "short write", "kill", "kill in a write")
"""Outcomes of a file operation, in the order of ``faults.c``: errors, and the process's end by SIGKILL."""
KILLS = KINDS[3:]
NO_QUOTA = -1


class Faults(Protocol):
    """Control of the faults in this process."""

    def watch(self, folder: Path) -> None:
        """Restrict faults to the files of a folder."""

    def arm(self, kind: str | None, at: int = 1, times: int = 1) -> None:
        """Fail ``times`` file operations, beginning with the ``at``-th from now on, counted from 1."""

    def limit(self, free_bytes: int) -> None:
        """Let the folder's files grow by ``free_bytes``; ``NO_QUOTA``: without limit."""


def library(folder: Path) -> Path | None:
    """Compile the library into a folder; return ``None`` without a C compiler, or outside Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux" or compiler is None:
        return None
    target = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    return target if built.returncode == 0 else None


def preloaded() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "torture_arm")


def faults() -> Faults:
    """Return the control of this process's faults."""
    return Preloaded() if preloaded() else InFiles()


class Preloaded:
    """Faults in the C library's file operations."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.torture_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int]
        self._library.torture_quota.argtypes = [ctypes.c_long]

    def watch(self, folder: Path) -> None:
        self._library.torture_watch(os.fsencode(folder.resolve()))

    def arm(self, kind: str | None, at: int = 1, times: int = 1) -> None:
        self._library.torture_arm(0 if kind is None else 1 + KINDS.index(kind), at, times)

    def limit(self, free_bytes: int) -> None:
        self._library.torture_quota(free_bytes)


def _failing(name: str) -> Any:
    """Return a file operation of ``InFiles`` that fails as one of ``Files`` where a fault is due."""

    def act(self: InFiles, *arguments: Any) -> Any:
        self._step()
        return getattr(Files, name)(self, *arguments)

    return act


class InFiles(Files):
    """Faults in the store's class of file operations."""

    kind: str | None = None
    at = count = times = 0
    folder = Path(tempfile.gettempdir())
    quota: int | None = None

    def __init__(self) -> None:
        sharpwave.store.Files = lambda: self  # type: ignore[attr-defined, assignment]

    def watch(self, folder: Path) -> None:
        self.folder = folder

    def arm(self, kind: str | None, at: int = 1, times: int = 1) -> None:
        self.kind, self.at, self.times, self.count = kind, at, times, 0

    def limit(self, free_bytes: int) -> None:
        self.quota = None if free_bytes < 0 else self._bytes() + free_bytes

    def _bytes(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self.folder.rglob("*") if path.is_file())

    def _step(self, write: bool = False) -> None:
        if self.kind is None:
            return
        self.count += 1
        if self.count < self.at or self.times <= 0:
            return
        if self.kind == "kill" or (self.kind == "kill in a write" and not write):
            os.kill(os.getpid(), signal.SIGKILL)
        self.times -= 1
        number = errno.ENOSPC if self.kind == "ENOSPC" else errno.EIO
        raise OSError(number, os.strerror(number))

    def _check_quota(self, descriptor: int, end: int) -> None:
        growth = end - os.fstat(descriptor).st_blocks * 512
        if self.quota is not None and growth > 0 and self._bytes() + growth > self.quota:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    open, truncate, fsync, fsync_folder, rename, unlink = map(
        _failing, ("open", "truncate", "fsync", "fsync_folder", "rename", "unlink")
    )

    def allocate(self, descriptor: int, offset: int, nbytes: int) -> None:
        self._step()
        self._check_quota(descriptor, offset + nbytes)
        super().allocate(descriptor, offset, nbytes)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        self._check_quota(descriptor, offset + len(data))
        try:
            if self.kind == "kill in a write" and self.count + 1 >= self.at:
                raise OSError
            self._step(write=True)
        except OSError:
            if self.kind in ("short write", "kill in a write"):
                super().pwrite(descriptor, memoryview(data)[: len(data) // 2], offset)
            if self.kind == "kill in a write":
                os.kill(os.getpid(), signal.SIGKILL)
            raise
        super().pwrite(descriptor, data, offset)


@contextlib.contextmanager
def environment() -> Any:
    """Yield an environment for processes that loads the library, if it can be compiled."""
    with tempfile.TemporaryDirectory(prefix="sharpwave-faults-") as folder:
        built = library(Path(folder))
        before = os.environ.get("LD_PRELOAD")
        yield os.environ | ({} if built is None else {"LD_PRELOAD": f"{built}:{before}" if before else str(built)})
