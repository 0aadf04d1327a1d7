"""A pytest plugin, ``-p tests.support.bare``: a system that lacks what Windows lacks, before the package is imported.

Three of Windows' own functions have stand-ins: ``msvcrt.locking`` by locks of open files' bytes, ``VirtualAlloc`` and
``VirtualFree`` by pages that cannot be touched until they are committed: touching them ends the process, as there.
"""

from __future__ import annotations

import fcntl  # noqa: F401
import importlib
import mmap
import multiprocessing.connection  # noqa: F401 - what asks for these names must have done so
import os
import pty  # noqa: F401
import shutil  # noqa: F401
import signal
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import types

from tests.support.stand_ins import Kernel32, locking

LACKING = {
    os: (
        "pread", "preadv", "pwrite", "pwritev", "posix_fallocate", "posix_fadvise", "fdatasync", "sched_getaffinity",
        "register_at_fork", "fork", "geteuid", "getloadavg", "sysconf_names", "set_blocking", "memfd_create",
        "O_DIRECT", "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "SEEK_DATA", "SEEK_HOLE", "killpg",
    ),
    mmap: ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE", "MADV_DONTNEED", "MADV_HUGEPAGE"),
    signal: ("SIGHUP", "pthread_sigmask"),
}  # fmt: skip


def _remove() -> None:
    assert "sharpwave" not in sys.modules
    for module, names in LACKING.items():
        for name in names:
            vars(module).pop(name, None)  # some systems lack some of them
    os.supports_dir_fd.clear()
    os.supports_fd.clear()
    os.supports_follow_symlinks.discard(os.link)
    msvcrt = types.ModuleType("msvcrt")
    msvcrt.locking, msvcrt.LK_NBLCK = locking, 2  # type: ignore[attr-defined]
    sys.modules |= {"msvcrt": msvcrt, "fcntl": None}  # type: ignore[dict-item]
    importlib.import_module("sharpwave.native.windows").__dict__["KERNEL32"] = Kernel32()
    importlib.import_module("sharpwave.native.descriptors")
    del sys.modules["msvcrt"], sys.modules["fcntl"]


_remove()
