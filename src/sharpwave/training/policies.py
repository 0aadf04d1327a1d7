"""A policy in one file: the weights that play, and figures about them; replaced in one step, nothing pickled."""

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
"""No policy is larger."""


def save_policy(path: Path, weights: Mapping[str, Tensor], figures: Mapping[str, Any]) -> None:
    """Write atomically: a crash leaves the old file or the new one, whole.

    Args:
        weights: as :meth:`sharpwave.agents.protocol.Agent.policy_tensors` gives them.
        figures: JSON, among them ``steps``.
    Raises:
        OSError: a full or failing disk; the file is as it was.
    """
    text = json.dumps({"version": VERSION, **figures}, sort_keys=True)
    tensors = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
    # One entry: several come in any order, and equal policies would be files that differ.
    content = save(tensors, {"about": json.dumps([text, f"{_checksum(tensors, text):08x}"])})
    write_bytes(path, content)


def keep_policy(
    path: Path, weights: Mapping[str, Tensor], figures: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """:func:`save_policy`, but a disk that does not take it ends nothing; it is said."""
    try:
        save_policy(path, weights, figures)
    except OSError as error:
        say(f"{path.name} could not be written, and is as it was: {error}")


def load_policy(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inverse of :func:`save_policy`: weights and figures.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged.
        NewerVersionError: a later release wrote it.
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
