"""Checkpoints of an agent: tensors as safetensors, figures as JSON, nothing pickled, each one whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from sharpwave.agents.dqn import DQN

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write atomically: under another name first, then renamed."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(temporary, path)


def save_checkpoint(folder: Path, agent: DQN, state: dict[str, Any], keep: int = 2) -> Path:
    """Save as ``folder/<steps>``; of the older ones the newest ``keep - 1`` stay.

    Args:
        folder: where a run's checkpoints lie.  state: JSON figures, among them ``steps``.
    Returns:
        the checkpoint's folder. An existing one of the same steps is replaced.
    """
    final = folder / f"{state['steps']:012d}"
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file({name: tensor.contiguous().cpu() for name, tensor in agent.weights().items()}, partial / WEIGHTS)
    save_file(
        {name: tensor.contiguous().cpu() for name, tensor in agent.optimizer_tensors().items()}, partial / OPTIMIZER
    )
    (partial / STATE).write_text(json.dumps(state, indent=2) + "\n")
    for path in partial.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())  # the bytes before the name: a crash leaves the old one or the new one
    if final.exists():
        shutil.rmtree(final)
    os.replace(partial, final)
    for old in _checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def latest_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run's folder.

    Raises:
        ValueError: no such folder, no run in it, or a run without a checkpoint.
    """
    if not run.is_dir():
        raise ValueError(f"run folder {str(run)!r} does not exist; 'sharpwave train' prints the folder of its run")
    if not (run / "config.json").is_file():
        raise ValueError(
            f"{str(run)!r} is not a run folder: it has no config.json; give what 'sharpwave train' printed"
        )
    checkpoints = _checkpoints(run / "checkpoints")
    if not checkpoints:
        raise ValueError(
            f"run {str(run)!r} has no checkpoint yet; the first comes after checkpoint_every steps or when training "
            "ends (Ctrl-C ends it with one)"
        )
    return checkpoints[-1]


def load_checkpoint(checkpoint: Path, agent: DQN, *, optimizer: bool = False) -> dict[str, Any]:
    """Load an agent's weights, and its optimizer if asked; returns the checkpoint's figures.

    Raises:
        ValueError: a missing or damaged file, or weights of another network.
    """
    try:
        agent.load_weights(load_file(checkpoint / WEIGHTS, device=str(agent.device)))
        if optimizer:
            agent.load_optimizer_tensors(load_file(checkpoint / OPTIMIZER, device=str(agent.device)))
        state: dict[str, Any] = json.loads((checkpoint / STATE).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} cannot be loaded: {error}") from error
    except Exception as error:  # safetensors has an error class of its own, without a common parent
        if type(error).__name__ != "SafetensorError":
            raise
        raise ValueError(f"checkpoint {str(checkpoint)!r} is damaged: {error}") from error
    return state


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first; names are zero-padded steps, so they sort."""
    return sorted(path for path in folder.glob("[0-9]*") if (path / STATE).is_file())
