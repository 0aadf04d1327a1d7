"""Functions for Windows only: files that can be renamed and deleted while open, and memory committed in parts.

Written by Microsoft's documentation of these functions; tests run the callers on other systems, with stand-ins.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

MEM_COMMIT, MEM_RESERVE, MEM_DECOMMIT, MEM_RELEASE, PAGE_READWRITE = 0x1000, 0x2000, 0x4000, 0x8000, 0x04
_GENERIC_READ, _GENERIC_WRITE = 0x80000000, 0x40000000
_SHARE_ALL = 0x1 | 0x2 | 0x4  # to read, to write, to delete
_CREATE_NEW, _OPEN_EXISTING, _OPEN_ALWAYS = 1, 3, 4
_NORMAL, _OPEN_LINK_ITSELF = 0x80, 0x00200000
_INVALID = ctypes.c_void_p(-1).value


def kernel32() -> Any:
    """Return the system's library, with the types of the functions used here; ``None`` on other systems."""
    if sys.platform != "win32":
        return None
    library = ctypes.WinDLL("kernel32", use_last_error=True)
    pointer, number, size = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t
    library.VirtualAlloc.restype, library.VirtualAlloc.argtypes = pointer, [pointer, size, number, number]
    library.VirtualFree.restype, library.VirtualFree.argtypes = ctypes.c_int, [pointer, size, number]
    library.CreateFileW.restype = pointer
    library.CreateFileW.argtypes = [ctypes.c_wchar_p, number, number, pointer, number, number, pointer]
    return library


KERNEL32 = kernel32()


def open_file(path: str | Path, flags: int) -> int:
    """Open a file as ``os.open`` does, in binary, not through a link; others may rename and delete it meanwhile.

    ``os.open`` forbids that until the file is closed. Raises: OSError.
    """
    import msvcrt

    access = _GENERIC_READ | (_GENERIC_WRITE if flags & (os.O_RDWR | os.O_WRONLY) else 0)
    new = _CREATE_NEW if flags & os.O_EXCL else _OPEN_ALWAYS if flags & os.O_CREAT else _OPEN_EXISTING
    handle = KERNEL32.CreateFileW(str(path), access, _SHARE_ALL, None, new, _NORMAL | _OPEN_LINK_ITSELF, None)
    if handle in (None, _INVALID):
        error: OSError = ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]
        error.filename = str(path)
        raise error
    descriptor: int = msvcrt.open_osfhandle(handle, flags & os.O_APPEND)  # type: ignore[attr-defined]
    return descriptor
