"""A store's folder: the lock on it, and ``store.json``, which says what it holds."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from ..errors import DamagedError, StoreInUseError
from .files import Files

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
MANIFEST, LOCK = "store.json", "lock"


def write_manifest(folder: Path, manifest: dict[str, Any], files: Files) -> None:
    """Write ``store.json``, whole or not at all.  Raises: OSError."""
    files.replace(folder / MANIFEST, packed_manifest({"format": FORMAT, **manifest}))


def locked(path: Path) -> int:
    """Take the folder's lock, which ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreInUseError(
                f"disk: {path.parent} is in use by process {holder}; end it, or give another folder"
            ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def packed_manifest(manifest: dict[str, Any]) -> bytes:
    """The bytes of ``store.json``: whatever ``manifest`` says, and a checksum of it."""
    said = {name: value for name, value in manifest.items() if name != "checksum"}
    checksum = zlib.crc32(json.dumps(said, separators=(",", ":")).encode())
    return json.dumps({**said, "checksum": f"{checksum:08x}"}, indent=1).encode() + b"\n"


def read_manifest(folder: Path) -> dict[str, Any]:
    """A store folder's ``store.json``.

    Raises:
        FileNotFoundError: no store there.  DamagedError: not what a store writes.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: no store there: {MANIFEST} is missing")
    content = path.read_bytes()
    try:
        manifest: dict[str, Any] = json.loads(content)
        version, store, schema = manifest["format"], bytes.fromhex(manifest["store"]), int(manifest["schema"])
        expected = packed_manifest(manifest)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{path}: not what a store writes ({error!r}); put back a copy of it") from error
    if version != FORMAT or len(store) != 16 or not 0 <= schema < 2**64:
        raise DamagedError(f"{path}: format {version!r}, this release reads {FORMAT}")
    if content != expected:  # byte by byte: there is one way to write it
        at = next((i for i, (a, b) in enumerate(zip(content, expected, strict=False)) if a != b), len(expected))
        raise DamagedError(
            f"{path}: not what a store writes: its checksum does not hold, or it was edited (byte {at:,}); put back a "
            "copy of it. Limits are changed with the arguments of Store.open"
        )
    return manifest
