"""Checkpoints of a run: tensors as safetensors, figures as JSON, nothing pickled, each one whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.errors import NewerVersionError
from sharpwave.training import old_runs
from sharpwave.training.config import CONFIG, VERSION, check_version
from sharpwave.training.files import read_regular, real_folder, sync, write_new

RANDOM, STATE, REPLAY = "random.safetensors", "state.json", "replay"
TENSORS = ".safetensors"
BEST = "best.safetensors"
"""The policy with the best held-out evaluation so far, where there is one; figures about it are in the state."""


NO_STATE = (
    ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, RuntimeError, SafetensorError
)  # fmt: skip
"""What is raised by reading files that hold something else, whose checksums may well hold."""
MARK = "run.json"
"""The file in a checkpoint's folder that says which run wrote it: only such folders are ever replaced or removed."""
NAME = re.compile(r"[0-9]{12}(-[0-9]+)?")
LEFT = re.compile(r"\.[0-9]{12}(-[0-9]+)?(\.[0-9a-f]{8})?\.(partial|removed)")
MAX_BYTES, MAX_TENSOR_BYTES = 64 << 20, 16 << 30
"""No state.json is larger, and no file of tensors."""


def save_checkpoint(
    folder: Path,
    agent: Agent,
    state: dict[str, Any],
    store: sw.Store | None = None,
    keep: int = 2,
    run: str = "",
    best: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Save as ``folder/<steps>``; of the run's older ones the newest ``keep - 1`` stay.

    Whatever in ``folder`` is no checkpoint of this run is left alone; where something else has the name, another number
    comes behind it.

    Args:
        folder: where a run's checkpoints lie; made if absent, in the run's folder, which is there.
        state: JSON figures, among them ``steps``.
        store: the replay memory, if it is to be part of it.
        run: the id of the run.
        best: weights of the best policy so far, which :func:`load_best` gives back.
    Returns:
        the checkpoint's folder. An existing one of the same steps is replaced; those of more steps, from which the run
        was not resumed, are removed.
    Raises:
        OSError: it could not be written; earlier checkpoints are as they were.
    """
    if not real_folder(folder):
        folder.mkdir()
    mark = _mark(run)
    for left in folder.iterdir():  # of a process that ended while it wrote or removed
        if LEFT.fullmatch(left.name):
            _clear(left, mark)
    final, number = folder / f"{state['steps']:012d}", 2
    while os.path.lexists(final) and not _owned(final, mark):
        final, number = folder / f"{state['steps']:012d}-{number}", number + 1
    partial = _hidden(final, "partial")
    partial.mkdir()
    removed: list[Path] = []
    try:
        write_new(partial / MARK, mark)
        _write_files(partial, agent, {"version": VERSION, **state}, best or {})
        if store is not None:
            store.checkpoint(partial / REPLAY)
        sync(partial)
        removed += _set_aside(final, mark)
        os.rename(partial, final)
    except BaseException:
        for aside in removed:
            os.rename(aside, final)
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(folder)
    ours = [path for path in _checkpoints(folder) if _owned(path, mark)]
    kept = [path for path in ours if path.name <= final.name][-keep:]
    removed += [one for path in ours if path not in kept for one in _set_aside(path, mark)]
    for path in removed:  # the checkpoint is whole: one that cannot be removed is, by the next one
        shutil.rmtree(path, ignore_errors=True)
    return final


def checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run's folder, oldest first: at least one.

    Raises:
        ValueError: no such folder, no run in it, or a run without a checkpoint.
    """
    if not run.is_dir():
        raise ValueError(f"run folder {str(run)!r} does not exist; 'sharpwave train' prints the folder of its run")
    if not (run / CONFIG).is_file():
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


def newest_checkpoint(folder: Path, run: str) -> Path | None:
    """The newest in ``folder`` that the run with this id wrote."""
    mark = _mark(run)
    return next((path for path in reversed(_checkpoints(folder)) if _owned(path, mark)), None)


def load_checkpoint(checkpoint: Path, agent: Agent, *, resume: bool = False) -> dict[str, Any]:
    """Load an agent; to ``resume`` also torch's random state.

    Returns:
        the checkpoint's figures.
    Raises:
        ValueError: a missing or damaged file, or weights of another network.
        NewerVersionError: a later release wrote it.
    """
    try:
        state: dict[str, Any] = json.loads(read_regular(checkpoint / STATE, MAX_BYTES))
        check_version(checkpoint / STATE, state)
        _check(STATE, _figures(state), state)
        plain = state["agent"] if "agent" in state else old_runs.agent_figures(state, agent)
        groups = [name for name in state["checksums"] if name not in (RANDOM, BEST, STATE)]
        tensors = {name.removesuffix(TENSORS): _load(checkpoint, name, state, agent.device) for name in groups}
        agent.load({**plain, **tensors})
        if resume:
            _set_random_state(_load(checkpoint, RANDOM, state, torch.device("cpu")), agent.device)
    except NewerVersionError:
        raise
    except KeyError as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} is damaged: {STATE} has no {error}") from error
    except (OSError, *NO_STATE) as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} cannot be loaded: {error}") from error
    return state


def load_best(checkpoint: Path, state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The ``best`` that a checkpoint was saved with, given its figures; empty where there was none.

    Raises:
        ValueError: a missing or damaged file.
    """
    try:
        return _load(checkpoint, BEST, state, torch.device("cpu")) if BEST in state["checksums"] else {}
    except (OSError, *NO_STATE) as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} cannot be loaded: {error}") from error


def _write_files(partial: Path, agent: Agent, state: dict[str, Any], best: Mapping[str, torch.Tensor]) -> None:
    """Write the agent's groups of tensors as files of their names, its plain values among the figures."""
    own = agent.state()
    groups = {name: value for name, value in own.items() if _is_tensors(value)}
    state = {**state, "agent": {name: value for name, value in own.items() if name not in groups}}
    files = {name + TENSORS: tensors for name, tensors in groups.items()} | {RANDOM: _random_state(agent.device)}
    if best:
        files[BEST] = dict(best)
    checksums = {}
    for name, tensors in files.items():
        content = save({key: tensor.contiguous().cpu() for key, tensor in tensors.items()})
        checksums[name] = zlib.crc32(content)
        write_new(partial / name, content)
    checksums[STATE] = zlib.crc32(_figures(state))
    write_new(partial / STATE, (json.dumps({**state, "checksums": checksums}, indent=2) + "\n").encode())


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, torch.Tensor) for one in value.values())


def _load(checkpoint: Path, name: str, state: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
    content = read_regular(checkpoint / name, MAX_TENSOR_BYTES)
    _check(name, content, state)
    return {key: tensor.to(device) for key, tensor in load(content).items()}


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
    return sorted(path for path in folder.glob("[0-9]*") if NAME.fullmatch(path.name) and (path / STATE).is_file())


def _mark(run: str) -> bytes:
    return (json.dumps({"written by": "sharpwave", "run": run}) + "\n").encode()


def _is_folder(path: Path) -> bool:
    """Whether it is one itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _owned(path: Path, mark: bytes) -> bool:
    """Whether a folder is a checkpoint that this run wrote: by its mark, or, of a release that wrote none, by the
    checksum of its figures."""
    if not _is_folder(path):
        return False
    try:
        if (path / MARK).is_symlink() or (path / MARK).exists():
            return not (path / MARK).is_symlink() and read_regular(path / MARK, 1 << 10) == mark
        state = json.loads(read_regular(path / STATE, MAX_BYTES))
        _check(STATE, _figures(state), state)
        return "version" not in state and path.name == f"{state['steps']:012d}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _hidden(checkpoint: Path, kind: str) -> Path:
    """A path beside it that nothing has; what is half written or half removed must not look like a checkpoint."""
    return checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(4)}.{kind}")


def _set_aside(checkpoint: Path, mark: bytes) -> list[Path]:
    """Give a checkpoint another name, if this run wrote it; returns that."""
    if not _owned(checkpoint, mark):
        return []
    aside = _hidden(checkpoint, "removed")
    os.rename(checkpoint, aside)
    return [aside]


def _clear(left: Path, mark: bytes) -> None:
    """Remove what a process that ended has left, if this run wrote it; a folder that holds nothing is no loss."""
    if _owned(left, mark):
        shutil.rmtree(left, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):  # not empty, or no folder
            left.rmdir()
