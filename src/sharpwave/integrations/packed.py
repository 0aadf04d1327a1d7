"""A store in memory as bytes, for frameworks that pickle their buffers: those of its checkpoint in a single file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sharpwave.store import Store

NAME = "store.sharpwave"


def packed(store: Store) -> bytes:
    """Return a checkpoint of the store."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        store.checkpoint(path)
        return path.read_bytes()


def unpacked(content: bytes) -> Store:
    """Return the store of ``packed``.  Raises: as ``Store.open``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        path.write_bytes(content)
        return Store.open(path)
