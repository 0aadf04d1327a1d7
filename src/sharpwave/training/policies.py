"""Policy files: weights and figures about them in one file, replaced atomically, nothing pickled."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from sharpwave.errors import NewerVersionError
from sharpwave.training.checkpoints import NO_STATE
from sharpwave.training.config import VERSION, check_version
from sharpwave.training.files import read_regular, write_bytes

MAX_BYTES = 16 << 30
"""Size limit of a policy file."""


def save_policy(path: Path, weights: Mapping[str, Tensor], figures: Mapping[str, Any]) -> None:
    """Write a policy file atomically: a crash leaves the old file or the new one.

    Args:
        weights: tensors of ``sharpwave.agents.protocol.Agent.policy_tensors``.
        figures: values for JSON, including ``steps``.
    Raises:
        OSError: the disk is full or fails; the old file is unchanged.
    """
    text = json.dumps({"version": VERSION, **figures}, sort_keys=True)
    tensors = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
    # A single entry: safetensors writes several in arbitrary order, and equal policies would give different files.
    content = save(tensors, {"about": json.dumps([text, f"{_checksum(tensors, text):08x}"])})
    write_bytes(path, content)


def keep_policy(
    path: Path, weights: Mapping[str, Tensor], figures: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Write a policy file as ``save_policy`` does, but report a full or failing disk instead of raising."""
    try:
        save_policy(path, weights, figures)
    except OSError as error:
        say(f"{path.name} could not be written and is unchanged: {error}")


def load_policy(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the weights and figures that ``save_policy`` wrote.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged.
        NewerVersionError: a later release wrote the file.
    """
    content = read_regular(path, MAX_BYTES)
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        text, written = json.loads(header["__metadata__"]["about"])
        found = f"{_checksum(tensors, text):08x}"
        if found != written:
            raise ValueError(f"checksum {found}, expected {written}")
        figures: dict[str, Any] = json.loads(text)
        check_version(path, figures)
        del figures["version"]
        return tensors, {**figures, "steps": int(figures["steps"])}
    except NewerVersionError:
        raise
    except NO_STATE as error:
        raise ValueError(f"policy {str(path)!r} is damaged: {error}") from error


def _checksum(tensors: Mapping[str, Tensor], text: str) -> int:
    checksum = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        about = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        checksum = zlib.crc32(tensor.contiguous().reshape(-1).numpy().tobytes(), zlib.crc32(about.encode(), checksum))
    return checksum
