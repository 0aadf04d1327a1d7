"""Checkpoints of a run: tensors as safetensors, figures as JSON, nothing pickled, each one whole or not there."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import sharpwave as sw
from sharpwave.agents.dqn import DQN

WEIGHTS, OPTIMIZER, RANDOM = "weights.safetensors", "optimizer.safetensors", "random.safetensors"
STATE, REPLAY = "state.json", "replay"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """:func:`write_text` of a dict, indented."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write atomically: under another name first, then renamed; a crash leaves the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text)
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def save_checkpoint(
    folder: Path, agent: DQN, state: dict[str, Any], store: sw.Store | None = None, keep: int = 2
) -> Path:
    """Save as ``folder/<steps>``; of the older ones the newest ``keep - 1`` stay.

    Args:
        folder: where a run's checkpoints lie.  state: JSON figures, among them ``steps``.
        store: the replay memory, if it is to be part of it.
    Returns:
        the checkpoint's folder. An existing one of the same steps is replaced; those of more steps, from which the run
        was not resumed, are removed.
    Raises:
        OSError: it could not be written; earlier checkpoints are as they were.
    """
    final = folder / f"{state['steps']:012d}"
    partial = folder / f".{final.name}.partial"
    for left in folder.glob(".*"):  # of a process that ended while it wrote or removed
        shutil.rmtree(left)
    partial.mkdir(parents=True)
    try:
        _write_files(partial, agent, state)
        if store is not None:
            store.checkpoint(partial / REPLAY)
        _sync(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _remove(final)
    os.replace(partial, final)
    _sync(folder)
    older = [path for path in _checkpoints(folder) if path.name <= final.name]
    for path in _checkpoints(folder):
        if path not in older[-keep:]:
            _remove(path)
    return final


def checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run's folder, oldest first: at least one.

    Raises:
        ValueError: no such folder, no run in it, or a run without a checkpoint.
    """
    if not run.is_dir():
        raise ValueError(f"run folder {str(run)!r} does not exist; 'sharpwave train' prints the folder of its run")
    if not (run / "config.json").is_file():
        raise ValueError(
            f"{str(run)!r} is not a run folder: it has no config.json; give what 'sharpwave train' printed"
        )
    found = _checkpoints(run / "checkpoints")
    if not found:
        raise ValueError(
            f"run {str(run)!r} has no checkpoint yet; the first comes after checkpoint_every steps or when training "
            "ends (Ctrl-C ends it with one)"
        )
    return found


def latest_checkpoint(run: Path) -> Path:
    """The newest of :func:`checkpoints`."""
    return checkpoints(run)[-1]


def load_checkpoint(checkpoint: Path, agent: DQN, *, resume: bool = False) -> dict[str, Any]:
    """Load an agent's weights; to ``resume`` also its optimizer and torch's random state.

    Returns:
        the checkpoint's figures.
    Raises:
        ValueError: a missing or damaged file, or weights of another network.
    """
    try:
        state: dict[str, Any] = json.loads((checkpoint / STATE).read_text())
        _check(STATE, _figures(state), state)
        agent.load_weights(_load(checkpoint, WEIGHTS, state, agent.device))
        if resume:
            agent.load_optimizer_tensors(_load(checkpoint, OPTIMIZER, state, agent.device))
            _set_random_state(_load(checkpoint, RANDOM, state, torch.device("cpu")), agent.device)
    except KeyError as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} is damaged: {STATE} has no {error}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} cannot be loaded: {error}") from error
    return state


def _write_files(partial: Path, agent: DQN, state: dict[str, Any]) -> None:
    files = {WEIGHTS: agent.weights(), OPTIMIZER: agent.optimizer_tensors(), RANDOM: _random_state(agent.device)}
    for name, tensors in files.items():
        save_file({key: tensor.contiguous().cpu() for key, tensor in tensors.items()}, partial / name)
    checksums = {name: zlib.crc32((partial / name).read_bytes()) for name in files}
    checksums[STATE] = zlib.crc32(_figures(state))
    (partial / STATE).write_text(json.dumps({**state, "checksums": checksums}, indent=2) + "\n")
    for name in (*files, STATE):
        _sync(partial / name)  # the bytes before the name: a crash leaves the old one or the new one


def _load(checkpoint: Path, name: str, state: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
    _check(name, (checkpoint / name).read_bytes(), state)
    return load_file(checkpoint / name, device=str(device))


def _check(name: str, content: bytes, state: dict[str, Any]) -> None:
    found, written = zlib.crc32(content), state["checksums"][name]
    if found != written:
        raise ValueError(f"{name} is damaged: checksum {found:08x}, expected {written:08x}")


def _figures(state: dict[str, Any]) -> bytes:
    """What the checksum of the figures is taken over: all of them but the checksums."""
    figures = {name: value for name, value in state.items() if name != "checksums"}
    return json.dumps(figures, sort_keys=True).encode()


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Torch's generators: uint8 tensors by kind of device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_state(states: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first; names are zero-padded steps, so they sort."""
    return sorted(path for path in folder.glob("[0-9]*") if (path / STATE).is_file())


def _remove(checkpoint: Path) -> None:
    """Under another name first: what is half removed must not look like a checkpoint."""
    if checkpoint.exists():
        removed = checkpoint.with_name(f".{checkpoint.name}.removed")
        os.replace(checkpoint, removed)
        shutil.rmtree(removed)


def _sync(path: Path) -> None:
    """Return when a file's content, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
