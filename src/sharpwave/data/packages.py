"""Optional packages, imported when a format needs them."""

from __future__ import annotations

import importlib
from typing import Any

from sharpwave.extras import install


def needed(package: str, extra: str) -> Any:
    """Import a package.  Raises: ModuleNotFoundError: names the extra that installs it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package.split(".")[0]:
            raise
        raise ModuleNotFoundError(f"this data set needs {package}: {install(extra)}", name=error.name) from error
