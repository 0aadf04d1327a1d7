"""A checkpoint's ``state.npz``: all state of a store but its segments, as a tree of arrays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.format import array_tree
from sharpwave.native.directory import Directory, open_file
from sharpwave.native.files import Files

STATE = "state.npz"
"""File name in a checkpoint's folder."""


def write_state(directory: Directory, name: str, tree: dict[str, Any], files: Files) -> None:
    """Write dicts and lists of arrays, numbers, strings and ``None`` to a new file, and sync.  Raises: OSError."""
    descriptor = files.open(directory, name)
    try:
        array_tree.write(descriptor, tree)
    finally:
        os.close(descriptor)
    files.sync(directory, name)


def read_state(path: Path, directory: Directory | None = None) -> dict[str, Any]:
    """Read a file that ``write_state`` wrote, in no more memory than it has bytes (see ``array_tree.read``).

    Args:
        directory: folder to open the file from; by default ``path``'s.

    Raises:
        DamagedError: not a checkpoint's state, or damaged.  NewerVersionError.
        IrregularError: not a regular file.  OSError.
    """
    descriptor = open_file(path) if directory is None else directory.open_file(path.name)
    try:
        return array_tree.read(descriptor)
    except DamagedError as error:
        raise DamagedError(f"{path}: not a checkpoint's state, or damaged ({error})") from error
    except NewerVersionError as error:
        raise NewerVersionError(f"{path}: {error.what}") from error
    finally:
        os.close(descriptor)
