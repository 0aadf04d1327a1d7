"""Formats of data sets, by the word before the colon."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from sharpwave.data.episode import Source

SOURCES = {
    "minari": ("minari", "open_minari"),
    "hdf5": ("hdf5", "open_hdf5"),
    "npz": ("npz", "open_npz"),
    "parquet": ("parquet", "open_parquet"),
    "lerobot": ("lerobot", "open_lerobot"),
    "rlds": ("rlds", "open_rlds"),
}
TARGETS = ("minari", "hdf5", "npz", "parquet")
ENDINGS = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5", ".parquet": "parquet"}


def split(text: str, known: tuple[str, ...], what: str) -> tuple[str, str]:
    """Return the format and the place of ``"FORMAT:PLACE"``, or of a file with a known ending.

    Raises: ValueError: an unknown format.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what}: got {type(text).__name__}, expected a string such as 'npz:FILE'")
    kind, colon, place = text.partition(":")
    if colon and kind in known:
        return kind, place
    for ending, one in ENDINGS.items():
        if text.lower().endswith(ending) and one in known:
            return one, text
    raise ValueError(f"{what}: got {text!r}, expected one of {', '.join(f'{one}:...' for one in known)}")


def open_source(text: str) -> Source:
    """Open a data set.  Raises: ValueError, FileNotFoundError, ModuleNotFoundError."""
    kind, place = split(text, tuple(SOURCES), "load")
    module, name = SOURCES[kind]
    opener: Callable[[str], Any] = getattr(import_module(f"sharpwave.data.{module}"), name)
    source: Source = opener(place)
    if not len(source):
        source.close()
        raise ValueError(f"{source.name}: no episodes with steps to import")
    return source
