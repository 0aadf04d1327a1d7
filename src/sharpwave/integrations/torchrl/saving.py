"""Saving of a buffer's transitions to a folder, or as a tensor for a state dict. Nothing is pickled."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import torch

from sharpwave.integrations.torchrl.transitions import LIMITS, Transitions
from sharpwave.store import Store


def save(transitions: Transitions, folder: Path) -> None:
    """Write a checkpoint of the store; one on disk is its own, and flushed."""
    folder.mkdir(parents=True, exist_ok=True)
    if transitions.opened is None:
        return
    if transitions.disk is not None:
        transitions.store.flush()
    else:
        transitions.store.checkpoint(folder / "store")


def load(transitions: Transitions, folder: Path) -> None:
    """Go on with what ``save`` wrote; trajectories begin anew.

    Raises:
        ValueError: other transitions than a buffer's, or the buffer is on disk and holds nothing.
    """
    if transitions.disk is not None:
        if transitions.opened is None:
            raise ValueError(f"loads: {transitions.disk} holds no store; a buffer on disk is opened by disk= alone")
        return
    if not (folder / "store").exists():
        transitions.clear()
        return
    limits = {name: transitions.settings[name] for name in LIMITS if transitions.settings.get(name) is not None}
    transitions.adopt(Store.open(folder / "store", **limits))


def packed(transitions: Transitions) -> torch.Tensor:
    """Return what ``save`` writes as uint8 [bytes]."""
    with tempfile.TemporaryDirectory() as folder, io.BytesIO() as out:
        save(transitions, Path(folder) / "saved")
        with tarfile.open(fileobj=out, mode="w") as archive:
            archive.add(Path(folder) / "saved", "saved")
        return torch.frombuffer(bytearray(out.getvalue()), dtype=torch.uint8)


def unpack(transitions: Transitions, content: torch.Tensor) -> None:
    """Go on with what ``packed`` returned.  Raises: ValueError: as ``load``."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(content.cpu().numpy().tobytes())) as archive:
            archive.extractall(folder, filter="data")
        load(transitions, Path(folder) / "saved")
