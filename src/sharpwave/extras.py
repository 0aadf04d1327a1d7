"""Extras of this package: what installs them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def install(extra: str) -> str:
    """Return the command that installs an extra: in a checkout from there, as no package index has that version."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "src" / "sharpwave").is_dir() or not (root / "pyproject.toml").is_file():
        return f"pip install 'sharpwave[{extra}]'"
    folder = "." if os.path.samefile(os.curdir, root) else str(root)
    return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"
