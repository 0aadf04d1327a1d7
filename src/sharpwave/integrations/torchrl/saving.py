"""Saving of a buffer's transitions to a folder, or as a tensor for a state dict. Nothing is pickled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from sharpwave.integrations.torchrl.transitions import LIMITS, StoredTransitions
from sharpwave.store import Store

FILE = "transitions.sharpwave"


def save(transitions: StoredTransitions, folder: Path) -> None:
    """Write a checkpoint of the store; a store on disk is its own checkpoint, and is flushed."""
    folder.mkdir(parents=True, exist_ok=True)
    if transitions.opened is not None and transitions.disk is None:
        transitions.store.checkpoint(folder / FILE)
    elif transitions.opened is not None:
        transitions.store.flush()


def load(transitions: StoredTransitions, folder: Path) -> None:
    """Continue with transitions that ``save`` wrote; trajectories begin anew.

    Raises:
        ValueError: not a buffer's transitions, or the buffer is on disk and empty.
    """
    if transitions.disk is not None:
        if transitions.opened is None:
            raise ValueError(f"loads: {transitions.disk} holds no store; a buffer on disk is opened by disk= alone")
    elif (folder / FILE).exists():
        limits = {name: transitions.settings[name] for name in LIMITS if transitions.settings.get(name) is not None}
        transitions.adopt(Store.open(folder / FILE, **limits))
    else:
        transitions.clear()


def packed(transitions: StoredTransitions) -> torch.Tensor:
    """Return the bytes that ``save`` writes, uint8 [bytes]."""
    with tempfile.TemporaryDirectory() as folder:
        save(transitions, Path(folder))
        file = Path(folder) / FILE
        return torch.from_numpy(np.fromfile(file, np.uint8) if file.exists() else np.empty(0, np.uint8))


def unpack(transitions: StoredTransitions, content: torch.Tensor) -> None:
    """Continue with the transitions that ``packed`` returned.  Raises: ValueError: as ``load``."""
    with tempfile.TemporaryDirectory() as folder:
        if len(content):
            content.cpu().numpy().tofile(Path(folder) / FILE)
        load(transitions, Path(folder))
