"""Stores in memory as bytes of a single-file checkpoint, for frameworks that pickle their buffers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sharpwave.store import Store

NAME = "store.sharpwave"


def packed(store: Store) -> bytes:
    """Return the bytes of the store's checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        store.checkpoint(path)
        return path.read_bytes()


def unpacked(content: bytes) -> Store:
    """Return the store in the bytes of ``packed``.  Raises: as ``Store.open``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        path.write_bytes(content)
        return Store.open(path)
