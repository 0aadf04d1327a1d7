"""A small store whose files are altered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((16, 16), "uint8", stack=2), action=sw.Field((), "int64"), serial=sw.Field((), "int64"))
LANES, OBS = 3, 2
"""``OBS``: number of the first field's column."""


def frame(serial: int) -> np.ndarray[Any, Any]:
    """A picture that packs well, and is that of no other step."""
    return np.pad(np.array([[serial % 251, serial // 251]], np.uint8), ((3, 12), (7, 7)), constant_values=5)


def play(store: sw.Store, count: int, begin: int = 0) -> None:
    for serial in range(begin, begin + count):
        store.append(
            lane=serial % LANES, obs=frame(serial), action=serial, reward=serial, serial=serial,
            terminated=serial % 50 > 47, truncated=False,
        )  # fmt: skip


def regions_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.region"))


def checkpoint(folder: Path) -> Path:
    """A small one; returns its state's path."""
    store = sw.Store(SPEC, capacity=2000, segment_steps=8)
    play(store, 100)
    store.transitions().sample(8)
    store.checkpoint(folder)
    return next(folder.rglob("state.npz"))
