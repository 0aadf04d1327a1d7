"""Small file systems that really become full, where the tests may mount one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, mib: int) -> Iterator[Path]:
    """Mount an empty file system of ``mib`` MiB, in memory, on a new ``folder``; skip the test if refused."""
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no mount command: a full disk needs a small file system of its own")
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"a full disk needs a small file system, which may not be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], timeout=60, check=True)


def fill(folder: Path, left: int = 0) -> Path:
    """Write a file as another program would, until its file system has at most ``left`` bytes of space; return it."""
    path = folder / "of others"
    with path.open("ab", buffering=0) as file:
        while (free := free_bytes(folder) - left) > 0:
            try:
                os.posix_fallocate(file.fileno(), file.tell(), free)
            except OSError:
                break
            file.seek(0, os.SEEK_END)
    return path


def free_bytes(folder: Path) -> int:
    """Return the free space of the file system of ``folder``."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
