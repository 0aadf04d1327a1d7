"""A store in memory as bytes, for frameworks that pickle their buffers."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

from sharpwave.store import Store


def packed(store: Store) -> bytes:
    """Return a checkpoint of the store as the bytes of a tar file."""
    with tempfile.TemporaryDirectory() as folder, io.BytesIO() as out:
        store.checkpoint(Path(folder) / "store")
        with tarfile.open(fileobj=out, mode="w") as archive:
            archive.add(Path(folder) / "store", "store")
        return out.getvalue()


def unpacked(content: bytes) -> Store:
    """Return the store of ``packed``.  Raises: as ``Store.open``."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")
        return Store.open(Path(folder) / "store")
