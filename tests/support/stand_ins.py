"""Stand-ins for functions of Windows: what they do, done by Linux."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import types


class Kernel32:
    """Windows' memory functions over ``mmap`` and ``mprotect``."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.mmap.restype = ctypes.c_void_p
        self._library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        for name in ("mprotect", "madvise"):
            getattr(self._library, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._reserved: dict[int, int] = {}

    def VirtualAlloc(self, address: int | None, nbytes: int, kind: int, protection: int) -> int | None:
        assert protection == 0x04
        if kind == 0x2000:
            assert address is None
            found = self._library.mmap(None, nbytes, 0, 0x4022, -1, 0)  # private, anonymous, not reserved: untouchable
            if found in (None, ctypes.c_void_p(-1).value):
                return None
            self._reserved[found] = nbytes
            return int(found)
        assert kind == 0x1000 and address is not None
        begin = address // 4096 * 4096
        end = -(-(address + nbytes) // 4096) * 4096
        return address if self._library.mprotect(begin, end - begin, 3) == 0 else None

    def VirtualFree(self, address: int, nbytes: int, kind: int) -> int:
        if kind == 0x8000:
            assert nbytes == 0
            return int(self._library.munmap(address, self._reserved.pop(address)) == 0)
        assert kind == 0x4000 and address % 4096 == nbytes % 4096 == 0
        self._library.madvise(address, nbytes, 4)
        return int(self._library.mprotect(address, nbytes, 0) == 0)


def locking(descriptor: int, mode: int, nbytes: int, ask: types.ModuleType = fcntl) -> None:
    """``msvcrt.locking``: a lock of ``nbytes`` from the file's position on, the descriptor's own."""
    assert mode == 2
    begin = os.lseek(descriptor, 0, os.SEEK_CUR)
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, begin, nbytes, 0)
    try:
        ask.fcntl(descriptor, 37, wanted)  # F_OFD_SETLK
    except BlockingIOError as error:
        raise PermissionError(13, "locked") from error
