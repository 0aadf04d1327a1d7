"""Checkpoints of a run: tensors as safetensors, figures as JSON, nothing pickled; each is written atomically."""

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
from sharpwave.agents.demonstrations import DEMONSTRATIONS
from sharpwave.agents.protocol import Agent
from sharpwave.errors import NewerVersionError
from sharpwave.training.config import CONFIG, VERSION, check_version
from sharpwave.training.files import read_regular, real_folder, sync, write_new

RANDOM, STATE, REPLAY = "random.safetensors", "state.json", "replay"
TENSORS = ".safetensors"
BEST = "best.safetensors"
"""Weights of the policy with the best held-out evaluation so far, if any; state.json has the evaluation itself."""


NO_STATE = (
    ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, RuntimeError, SafetensorError
)  # fmt: skip
"""Errors raised on files with unexpected content; their checksums may still be valid."""
MARK = "run.json"
"""File in a checkpoint's folder that names the run that wrote it. Only folders with a run's mark are ever removed."""
NAME = re.compile(r"[0-9]{12}(-[0-9]+)?")
LEFT = re.compile(r"\.[0-9]{12}(-[0-9]+)?(\.[0-9a-f]{8})?\.(partial|removed)")
MAX_BYTES, MAX_TENSOR_BYTES = 64 << 20, 16 << 30
"""Size limits of state.json and of a file of tensors."""


def save_checkpoint(
    folder: Path,
    agent: Agent,
    state: dict[str, Any],
    store: sw.Store | None = None,
    keep: int = 2,
    run: str = "",
    best: Mapping[str, torch.Tensor] | None = None,
    keep_every: int = 0,
    demonstrations: sw.Store | None = None,
) -> Path:
    """Save a checkpoint as ``folder/<steps>`` and remove all but the newest ``keep`` checkpoints of the run.

    With ``keep_every``, the first checkpoint of every so many steps stays, but its replay memory and its demonstrations
    are removed when it is no longer among the newest.

    An existing checkpoint of the same steps is replaced; those of more steps, abandoned by a resume from an earlier
    one, are removed. Anything in ``folder`` that this run did not write is left alone; if it has the checkpoint's name,
    a number is appended to the name.

    Args:
        folder: the run's folder of checkpoints; made if absent, but its parent must exist.
        state: JSON figures, including ``steps``.
        store: the replay memory to include; None: none.
        keep: checkpoints of the run to keep, the new one included.
        run: the run's id.
        best: weights of the best policy so far, which ``load_best`` returns.
        demonstrations: their store, saved as the replay memory is.
    Returns:
        the checkpoint's folder.
    Raises:
        OSError: the checkpoint could not be written; earlier ones are unchanged.
    """
    if not real_folder(folder):
        folder.mkdir()
    mark = _mark(run)
    for left in folder.iterdir():  # leftovers of a process that was killed while it wrote or removed a checkpoint
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
        if demonstrations is not None:
            demonstrations.checkpoint(partial / DEMONSTRATIONS)
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
    until = [path for path in ours if path.name <= final.name]
    kept, lasting = until[-keep:], milestones(until, keep_every)
    removed += [one for path in ours if path not in kept and path not in lasting for one in _set_aside(path, mark)]
    for path in lasting:
        stores = [name for name in (REPLAY, DEMONSTRATIONS) if _is_folder(path / name)]
        if path not in kept and stores:
            aside = _hidden(path, "removed")
            aside.mkdir()
            write_new(aside / MARK, mark)  # so that the next save may remove it if this one cannot
            for name in stores:
                os.rename(path / name, aside / name)
            removed.append(aside)
    for path in removed:  # the new checkpoint is complete; the next save removes what cannot be removed now
        shutil.rmtree(path, ignore_errors=True)
    return final


def least_bytes(agent: Agent, best: Mapping[str, torch.Tensor], *stores: sw.Store | None) -> int:
    """Return disk space that a checkpoint takes at least: tensors, and what ``stores`` hold in memory.

    Stores on disk count for nothing: their files are linked where that is possible.
    """
    groups = [value for value in agent.state().values() if _is_tensors(value)]
    tensors: int = sum(tensor.nbytes for group in (*groups, best) for tensor in group.values())
    figures = [store.stats() for store in stores if store is not None]
    return tensors + sum(int(one["bytes"]["arena_used"]) for one in figures if "disk" not in one)


def milestones(found: list[Path], every: int) -> list[Path]:
    """Return the first checkpoint at or after each multiple of ``every`` steps, of checkpoints from oldest to newest.

    Removing the others changes nothing: each period still begins with the same one.
    """
    if not every:
        return []
    period = [int(path.name.partition("-")[0]) // every for path in found]
    return [path for path, now, before in zip(found, period, [0, *period], strict=False) if now > before]


def checkpoints(run: Path) -> list[Path]:
    """List the checkpoints in a run's folder, oldest first; at least one.

    Raises:
        ValueError: the folder does not exist, is not a run's, or has no checkpoint.
    """
    if not run.is_dir():
        raise ValueError(f"run folder {str(run)!r} does not exist; 'sharpwave train' prints the folder of its run")
    if not (run / CONFIG).is_file():
        raise ValueError(
            f"{str(run)!r} is not a run folder: it has no config.json; give the folder that 'sharpwave train' printed"
        )
    found = _checkpoints(run / "checkpoints")
    if not found:
        raise ValueError(
            f"run {str(run)!r} has no checkpoint yet; one is written after checkpoint_every steps and when training "
            "ends (Ctrl-C ends it with one)"
        )
    return found


def latest_checkpoint(run: Path) -> Path:
    """Return the newest of ``checkpoints``."""
    return checkpoints(run)[-1]


def newest_checkpoint(folder: Path, run: str) -> Path | None:
    """Return the newest checkpoint in ``folder`` that the run with this id wrote; None: there is none."""
    mark = _mark(run)
    return next((path for path in reversed(_checkpoints(folder)) if _owned(path, mark)), None)


def load_checkpoint(checkpoint: Path, agent: Agent, *, resume: bool = False) -> dict[str, Any]:
    """Load an agent from a checkpoint; with ``resume`` also restore torch's random state.

    Returns:
        the checkpoint's figures.
    Raises:
        ValueError: a file is missing or damaged, or the weights are those of another network.
        NewerVersionError: a later release wrote the checkpoint.
    """
    try:
        state: dict[str, Any] = json.loads(read_regular(checkpoint / STATE, MAX_BYTES))
        check_version(checkpoint / STATE, state)
        _check(STATE, _figures(state), state)
        groups = [name for name in state["checksums"] if name not in (RANDOM, BEST, STATE)]
        tensors = {name.removesuffix(TENSORS): _load(checkpoint, name, state, agent.device) for name in groups}
        agent.load({**state["agent"], **tensors})
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
    """Load the weights of the best policy from a checkpoint with the figures ``state``; empty if it has none.

    Raises:
        ValueError: the file is missing or damaged.
    """
    try:
        return _load(checkpoint, BEST, state, torch.device("cpu")) if BEST in state["checksums"] else {}
    except (OSError, *NO_STATE) as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} cannot be loaded: {error}") from error


def _write_files(partial: Path, agent: Agent, state: dict[str, Any], best: Mapping[str, torch.Tensor]) -> None:
    """Write each of the agent's groups of tensors to a file of its own, and its plain values with the figures."""
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
    """Return the bytes that the checksum of the figures covers: all figures except the checksums."""
    figures = {name: value for name, value in state.items() if name != "checksums"}
    return json.dumps(figures, sort_keys=True).encode()


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of torch's generators: uint8 tensors by kind of device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_state(states: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _checkpoints(folder: Path) -> list[Path]:
    """List complete checkpoints, oldest first: names are zero-padded steps, so they sort."""
    return sorted(path for path in folder.glob("[0-9]*") if NAME.fullmatch(path.name) and (path / STATE).is_file())


def _mark(run: str) -> bytes:
    return (json.dumps({"written by": "sharpwave", "run": run}) + "\n").encode()


def _is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _owned(path: Path, mark: bytes) -> bool:
    """Return whether this run wrote the checkpoint at ``path``.

    Its mark decides; a checkpoint of a release that wrote no marks is recognized by the checksum of its figures.
    """
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
    """Return an unused name beside a checkpoint, under which a partial one is not mistaken for a complete one."""
    return checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(4)}.{kind}")


def _set_aside(checkpoint: Path, mark: bytes) -> list[Path]:
    """Rename a checkpoint that this run wrote, for removal; return its new path, or nothing if another wrote it."""
    if not _owned(checkpoint, mark):
        return []
    aside = _hidden(checkpoint, "removed")
    os.rename(checkpoint, aside)
    return [aside]


def _clear(left: Path, mark: bytes) -> None:
    """Remove a leftover folder if this run wrote it or if it is empty."""
    if _owned(left, mark):
        shutil.rmtree(left, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):  # not empty, or not a folder
            left.rmdir()
