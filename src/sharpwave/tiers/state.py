"""A tree of arrays and numbers <-> one file. NumPy's format in a zip, each array with a checksum; no pickle."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..codecs import DamagedError
from .files import Files

Arrays = dict[str, np.ndarray[Any, Any]]

STATE = "state.npz"
"""Its name in a checkpoint."""
TREE = "tree"


def write_state(path: Path, tree: dict[str, Any], files: Files) -> None:
    """Write dicts and lists of arrays, numbers, strings and ``None`` to a new file, and sync.  Raises: OSError."""
    arrays: Arrays = {}
    arrays[TREE] = np.frombuffer(json.dumps(_plain(tree, arrays)).encode(), np.uint8)
    with os.fdopen(files.open(path), "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as members:
        for name, array in arrays.items():
            with members.open(f"{name}.npy", "w", force_zip64=True) as member:  # without NumPy's copy of it
                header = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array))
                np.lib.format.write_array_header_1_0(member, header)
                member.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    files.sync(path)


def read_state(path: Path) -> dict[str, Any]:
    """Inverse of :func:`write_state`. Takes no more memory than the file has bytes.

    Raises:
        DamagedError: not what it writes, or not as it was written.  OSError.
    """
    try:
        with zipfile.ZipFile(path) as file:
            tree = _rich(json.loads(_array(file, TREE).tobytes()), file)
    except _NONE as error:
        raise DamagedError(f"{path}: not a checkpoint's state, or not as it was written ({error!r})") from error
    if not isinstance(tree, dict):
        raise DamagedError(f"{path}: not a checkpoint's state")
    return tree


def _plain(value: Any, arrays: Arrays) -> Any:
    """The same as JSON has it, with names of arrays, which are added to ``arrays``."""
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, dict):
        return {"dict": {key: _plain(one, arrays) for key, one in value.items()}}
    if isinstance(value, list):
        return [_plain(one, arrays) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _rich(value: Any, file: zipfile.ZipFile) -> Any:
    """Inverse of :func:`_plain`."""
    if isinstance(value, list):
        return [_rich(one, file) for one in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return _array(file, value["array"])
    return {key: _rich(one, file) for key, one in value["dict"].items()}


_NONE = (
    ValueError, KeyError, TypeError, AttributeError, EOFError, IndexError, RecursionError, NotImplementedError,
    SyntaxError, OverflowError, MemoryError, zipfile.BadZipFile,
)  # fmt: skip
"""What NumPy, the zip and JSON modules raise of bytes that are none of theirs."""


def _array(file: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """An array that lies in the file as it is: what its header says is believed only as far as there are bytes."""
    if file.getinfo(f"{name}.npy").compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    with file.open(f"{name}.npy") as member:
        np.lib.format.read_magic(member)
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        if dtype.hasobject:
            raise ValueError(f"{name} holds objects")
        return np.frombuffer(member.read(), dtype).reshape(shape)
