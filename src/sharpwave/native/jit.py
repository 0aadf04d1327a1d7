"""Compilation of kernels, and the cache of machine code that processes share."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import config
from numba.core import event
from numba.misc.appdirs import AppDirs

from sharpwave.native.inner_kernels import InnerCompiler

Function = TypeVar("Function", bound=Callable[..., Any])
PACKAGE = Path(__file__).parent.parent
LONG_S = 1.5
"""Seconds of compiling after which it is said, once a process."""


def njit(*, cache: bool = False, inner: bool = False, **options: Any) -> Callable[[Function], Function]:
    """Apply ``numba.njit``, caching machine code only in a safe folder.

    Args:
        inner: only kernels call it, never Python.

    What nobody calls is not compiled: wrappers for C (kernels that C code calls are of ``function_pointers``), and of
    inner kernels those for Python and machine code of their own (``inner_kernels``).
    """
    wrappers: dict[str, Any] = {"no_cfunc_wrapper": True, "no_cpython_wrapper": inner}
    if inner:  # its machine code is a part of its callers', in their files
        cache, wrappers["pipeline_class"] = False, InnerCompiler
    compiled: Callable[[Function], Function] = numba.njit(cache=cache and CACHED, **wrappers, **options)
    return compiled


def inner_of(kernel: Function) -> Function:
    """Return the form for other kernels of one that Python calls too, compiled for Python only if it does."""
    return kernel if config.DISABLE_JIT else njit(nogil=True, inner=True)(kernel.py_func)  # type: ignore[attr-defined]


def is_cached(kernel: Callable[..., Any]) -> bool:
    """Return whether a kernel of ``cache=True`` can be called without a wait: this process or an earlier one has
    compiled it, for some types at least."""
    if config.DISABLE_JIT or kernel.overloads:  # type: ignore[attr-defined]
        return True
    folder, name = kernel.stats.cache_path, kernel.py_func.__qualname__  # type: ignore[attr-defined]
    return folder is not None and any(Path(folder).glob(f"*.{name}-*.nbi"))


class Compiling(event.Listener):
    """Listener to the compilation of kernels, which runs under numba's lock: one thread at a time.

    It says once, on standard error or in the log, why a first use takes long. Meanwhile no garbage is collected:
    the compiler makes so many objects that looking through them took an eighth of its time.

    Attributes:
        names: kernels compiled so far, or being compiled, in order.
        told: called with each of these names.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.told: Callable[[str], None] | None = None
        self._depth, self._begun, self._seconds = 0, 0.0, 0.0
        self._said = multiprocessing.parent_process() is not None  # the parent has said it
        self._collects = False

    def on_start(self, event: Any) -> None:
        """Note a kernel, one of this package's or what it calls."""
        function = event.data["dispatcher"].py_func
        ours = str(function.__module__).startswith("sharpwave.")
        if not self._depth and not ours:
            return
        if not self._depth:
            self._begun, self._collects = time.monotonic(), gc.isenabled()
            gc.disable()
        self._depth += 1
        if ours:
            self.names.append(function.__name__)
            if self.told is not None:
                self.told(function.__name__)
        self._say_once(self._seconds + time.monotonic() - self._begun)

    def on_end(self, event: Any) -> None:
        """Add up the seconds."""
        if not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            self._seconds += time.monotonic() - self._begun
            if self._collects:
                gc.enable()

    def _say_once(self, seconds: float) -> None:
        if seconds < LONG_S or self._said or self.told is not None:
            return
        self._said = True
        kept = "later processes load them" if CACHED else "there is no folder to keep them in: set NUMBA_CACHE_DIR"
        logging.getLogger("sharpwave").warning("sharpwave: compiling kernels, some seconds; %s", kept)


COMPILING = Compiling()
event.register("numba:compile", COMPILING)


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
