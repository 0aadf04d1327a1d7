"""Compilation of kernels, and the cache of machine code that processes share."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import config
from numba.misc.appdirs import AppDirs

Function = TypeVar("Function", bound=Callable[..., Any])
PACKAGE = Path(__file__).parent.parent


def njit(*, cache: bool = False, **options: Any) -> Callable[[Function], Function]:
    """Apply ``numba.njit``, caching machine code only in a safe folder."""
    compiled: Callable[[Function], Function] = numba.njit(cache=cache and CACHED, **options)
    return compiled


def find_cache() -> bool:
    """Choose numba's own cache folder or a temporary one of the user's; return whether there is one.

    Numba raises where it finds none, as with a home and a package that are read-only.
    """
    if config.DISABLE_JIT or _writable(config.CACHE_DIR):  # type: ignore[attr-defined]
        return True
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    if all(_writable(folder / "__pycache__") for folder in folders):
        return True
    if _writable(AppDirs(appname="numba", appauthor=False).user_cache_dir):
        return True
    folder = own_folder()
    if folder is not None:
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return folder is not None


def own_folder() -> Path | None:
    """Return a temporary folder that nobody else can write to or replace; ``None`` if there is none.

    Its files are loaded as code, so a folder that somebody else created, or may change, is not used.
    """
    if not hasattr(os, "geteuid"):  # Windows: numba's own folder always exists
        return None
    try:
        base = Path(tempfile.gettempdir())
        above, folder = os.stat(base), base / f"sharpwave-{os.geteuid()}"
        if above.st_uid not in (0, os.geteuid()) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return folder if private and _writable(folder) else None


def _writable(folder: str | Path) -> bool:
    """Return whether files can be created in a folder, which is created if absent."""
    try:
        if not folder:
            return False
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


CACHED = find_cache()
