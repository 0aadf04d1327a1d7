"""Extras of this package: the commands that install them; and torch, imported when it is first used.

Help and the checks of settings neither wait a second for torch nor need it.
"""

from __future__ import annotations

import json
import os
import shlex
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:

    class _Lazy:
        """Stand-in for a module: each name is looked up once, then an attribute of its own."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module(self._module), name)
            setattr(self, name, found)
            return found

    torch, nn, Tensor = _Lazy("torch"), _Lazy("torch.nn"), Any

__all__ = ["Tensor", "imported", "install", "nn", "torch"]


def imported(path: str) -> Any:
    """Import what a path names: "module:function"."""
    module, _, name = path.partition(":")
    return reduce(getattr, name.split("."), import_module(module))


def install(extra: str) -> str:
    """Return the command that installs an extra: from the checkout where there is one, as no package index has that
    version."""
    root = Path(__file__).resolve().parents[2]
    if is_checkout(root):
        return f"pip install -e {of_checkout(root, extra)}"
    origin = installed_from()
    if origin is not None and is_checkout(origin):
        return f"pip install {of_checkout(origin, extra)}"
    return f"pip install 'sharpwave[{extra}]'"


def is_checkout(root: Path) -> bool:
    return (root / "src" / "sharpwave").is_dir() and (root / "pyproject.toml").is_file()


def of_checkout(root: Path, extra: str) -> str:
    try:
        here = os.path.samefile(os.curdir, root)
    except OSError:  # the working directory was removed
        here = False
    return shlex.quote(f"{'.' if here else root}[{extra}]")


def installed_from() -> Path | None:
    """Return the folder that ``pip install FOLDER`` copied this package from, as pip noted it."""
    import importlib.metadata  # it and urllib take 25 ms
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        noted = importlib.metadata.distribution("sharpwave").read_text("direct_url.json")
        url = urlsplit(json.loads(noted)["url"]) if noted else None
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        return None
    return Path(url2pathname(url.path)) if url is not None and url.scheme == "file" else None
