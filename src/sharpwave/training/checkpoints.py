"""A run's tensors on disk: checkpoints, each complete or absent, and its two policies; nothing is pickled.

Tensors are safetensors, figures are JSON, and both have checksums.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import sharpwave as sw
from sharpwave import errors
from sharpwave.agents.demonstrations import DEMONSTRATIONS, DemonstratedReplay
from sharpwave.agents.protocol import Agent
from sharpwave.disk.region_files import FULL
from sharpwave.errors import NewerVersionError, NotRegisteredError
from sharpwave.training import folder as files
from sharpwave.training.atomic_files import make_folder, open_regular, read_regular, sync_folder, write_bytes, write_new
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.progress import Metrics

MARK = "run.json"
"""File in a checkpoint's folder that names the run that wrote it. Only folders with a run's mark are ever removed."""
RANDOM, TENSORS = "random.safetensors", ".safetensors"
LEFT = re.compile(r"\.[0-9]{12}(-[0-9]+)?(\.[0-9a-f]{8})?\.(partial|removed)")
"""Names of folders that a process left when it was killed while it wrote or removed a checkpoint."""
EVENTS = re.compile(r"events\.out\.tfevents\.[0-9]{10}\.[0-9]{9}\..+")
"""Names of TensorBoard's files that a run writes."""
VIDEO = re.compile(r"[0-9]{12}\.mp4")
"""Names of a run's videos."""
KEEP = 2
"""Newest checkpoints of a run that stay."""
MAX_STATE_BYTES, MAX_TENSOR_BYTES = 64 << 20, 16 << 30
"""Size limits of state.json and of a file of tensors."""
MAX_UNCHECKED_BYTES = 64 << 20
"""Size of a file of tensors that is read whole before its description is looked at: its checksum comes first."""
MAX_STEPS = 1 << 62
"""Limit of the steps that a policy's file says."""
MAX_HEADER_BYTES = 100_000_000
"""Size limit of the header of a file of tensors, that of safetensors."""
NO_STATE = (*errors.NO_STATE, RuntimeError, SafetensorError)
"""Errors raised on files with unexpected content; their checksums may still be valid."""


def save_checkpoint(
    folder: Path,
    agent: Agent,
    state: dict[str, Any],
    memories: Mapping[str, sw.Store] = MappingProxyType({}),
    run: str = "",
    best: Mapping[str, Tensor] | None = None,
    keep_every: int = 0,
) -> Path:
    """Save a checkpoint as ``folder/<steps>`` and remove all but the newest ``KEEP`` checkpoints of the run.

    With ``keep_every``, the first checkpoint of every so many steps stays, but its replay memory and its demonstrations
    are removed when it is no longer among the newest.

    An existing checkpoint of the same steps is replaced; those of more steps, abandoned by a resume from an earlier
    one, are removed. Anything in ``folder`` that this run did not write is left alone; if it has the checkpoint's name,
    a number is appended to the name.

    Args:
        folder: the run's folder of checkpoints; made if absent, but its parent must exist.
        state: JSON figures, including ``steps``.
        memories: stores to include, by the names of their folders.
        run: the run's id.
        best: weights of the best policy so far, which ``load_best`` returns.
    Returns:
        the checkpoint's folder.
    Raises:
        OSError: the checkpoint could not be written; earlier ones are unchanged.
    """
    make_folder(folder)
    mark = _mark(run)
    for left in folder.iterdir():
        if LEFT.fullmatch(left.name):
            _remove_left(left, mark)
    final, number = folder / f"{state['steps']:012d}", 2
    while os.path.lexists(final) and not _owned(final, mark):
        final, number = folder / f"{state['steps']:012d}-{number}", number + 1
    partial = _hidden(final, "partial")
    partial.mkdir()
    removed: list[Path] = []
    try:
        write_new(partial / MARK, mark)  # first: whatever is left after a crash can be removed
        _write_files(partial, agent, {"version": files.VERSION, **state}, best or {})
        for name, memory in memories.items():
            memory.checkpoint(partial / name)
        sync_folder(partial)
        removed += _set_aside(final, mark)
        os.rename(partial, final)
    except BaseException:
        for aside in removed:
            os.rename(aside, final)
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_folder(folder)  # only then may earlier checkpoints go
    ours = [path for path in files.complete_checkpoints(folder) if _owned(path, mark)]
    until = [path for path in ours if path.name <= final.name]
    kept, lasting = until[-KEEP:], milestones(until, keep_every)
    removed += [one for path in ours if path not in kept and path not in lasting for one in _set_aside(path, mark)]
    for path in lasting:
        stores = [name for name in (files.REPLAY, DEMONSTRATIONS) if _is_folder(path / name)]
        if path not in kept and stores:
            aside = _hidden(path, "removed")
            aside.mkdir()
            write_new(aside / MARK, mark)  # so that the next save may remove it if this one cannot
            for name in stores:
                os.rename(path / name, aside / name)
            removed.append(aside)
    for path in removed:  # the new checkpoint is complete; the next save tries again
        shutil.rmtree(path, ignore_errors=True)
    return final


def milestones(found: list[Path], every: int) -> list[Path]:
    """Return the first checkpoint at or after each multiple of ``every`` steps, of checkpoints from oldest to newest.

    Removing the others changes nothing: each period still begins with the same one.
    """
    if not every:
        return []
    period = [int(path.name.partition("-")[0]) // every for path in found]
    return [path for path, now, before in zip(found, period, [0, *period], strict=False) if now > before]


def load_checkpoint(checkpoint: Path, agent: Agent, *, resume: bool = False) -> dict[str, Any]:
    """Load an agent from a checkpoint; with ``resume`` also restore torch's random state.

    Returns:
        the checkpoint's figures.
    Raises:
        ValueError: a file is missing or damaged, or the weights are those of another network.
        NewerVersionError: a later release wrote the checkpoint.
    """
    with _loading(checkpoint):
        state: dict[str, Any] = json.loads(read_regular(checkpoint / files.STATE, MAX_STATE_BYTES))
        files.check_version(checkpoint / files.STATE, state)
        _check(files.STATE, _figures(state), state)
        groups = [name for name in state["checksums"] if name not in (RANDOM, files.BEST, files.STATE)]
        tensors = {name.removesuffix(TENSORS): _load(checkpoint, name, state, agent.device) for name in groups}
        agent.load({**state["agent"], **tensors})
        if resume:
            _set_random_state(_load(checkpoint, RANDOM, state, torch.device("cpu")), agent.device)
    return state


def load_best(checkpoint: Path, state: dict[str, Any]) -> dict[str, Tensor]:
    """Load the weights of the best policy from a checkpoint with the figures ``state``; empty if it has none.

    Raises:
        ValueError: the file is missing or damaged.
    """
    with _loading(checkpoint):
        best = _load(checkpoint, files.BEST, state, torch.device("cpu")) if files.BEST in state["checksums"] else {}
    return best


def save_policy(path: Path, weights: Mapping[str, Tensor], figures: Mapping[str, Any]) -> None:
    """Write a policy file atomically: ``weights``, and ``figures`` about them for JSON, including ``steps``.

    Raises:
        OSError: the disk is full or fails; the old file is unchanged.
    """
    text = json.dumps({"version": files.VERSION, **figures}, sort_keys=True)
    tensors = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
    # A single entry: safetensors writes several in arbitrary order, and equal policies would give different files.
    content = save(tensors, {"about": json.dumps([text, f"{_policy_checksum(tensors, text):08x}"])})
    write_bytes(path, content)


def keep_policy(
    path: Path, weights: Mapping[str, Tensor], figures: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Write a policy file as ``save_policy`` does, but report a full or failing disk instead of raising."""
    try:
        save_policy(path, weights, figures)
    except OSError as error:
        say(f"{path.name} could not be written and is unchanged: {error}")


def load_policy(
    path: Path, check: Callable[[dict[str, Any]], None] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the weights and figures that ``save_policy`` wrote.

    Args:
        check: called with the header of a file of more than ``MAX_UNCHECKED_BYTES`` before its tensors are read.
    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged.
        NewerVersionError: a later release wrote the file.
    """
    try:
        content, header = _read_tensors(path, check)
        bytearray(len(content))  # raises MemoryError; safetensors copies that much, and panics instead
        tensors = load(content)
        text, written = json.loads(header["__metadata__"]["about"])
        found = f"{_policy_checksum(tensors, text):08x}"
        if found != written:
            raise ValueError(f"checksum {found}, expected {written}")
        figures: dict[str, Any] = json.loads(text)
        files.check_version(path, figures)
        del figures["version"]
        steps = figures["steps"]
        if type(steps) is not int or not 0 <= steps < MAX_STEPS:
            raise ValueError(
                f"steps: got {str(steps)[:40]}, expected a whole number of at least 0, below {MAX_STEPS:,}"
            )
        return tensors, figures
    except (NewerVersionError, NotRegisteredError):
        raise
    except MemoryError as error:
        raise ValueError(f"policy {str(path)!r} is larger than the memory that is left") from error
    except NO_STATE as error:
        raise ValueError(f"policy {str(path)!r} is damaged: {error}") from error


def _read_tensors(path: Path, check: Callable[[dict[str, Any]], None] | None = None) -> tuple[bytes, dict[str, Any]]:
    """Read a file of tensors and its header, which says the file's size: a file of another size is not read.

    Args:
        check: as for ``load_policy``.
    Raises:
        OSError: the file does not exist, or is not a regular file.
        ValueError: the file has another size, or more than ``MAX_TENSOR_BYTES``.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(size, MAX_HEADER_BYTES):
            raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
        header: dict[str, Any] = json.loads(file.read(length))
        ends = [about["data_offsets"][1] for name, about in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
        if size != expected or size > MAX_TENSOR_BYTES:
            raise ValueError(f"{size:,} bytes, expected {expected:,} by its header, and at most {MAX_TENSOR_BYTES:,}")
        if check is not None and size > MAX_UNCHECKED_BYTES:
            check(header)
        file.seek(0)
        return file.read(size + 1), header


def load_run_policy(run: Path, checkpoint: str, agent: Callable[[], Agent]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the weights of a policy of a run, and the figures about them.

    Args:
        checkpoint: "best", "last" or the steps of a checkpoint, as of ``chosen_checkpoint``.
        agent: function that makes the run's agent, for checkpoints.
    Raises:
        ValueError: the policy is missing, damaged, or another network's.
    """
    if checkpoint in ("best", "last"):
        with contextlib.suppress(FileNotFoundError):
            return load_policy(run / (files.BEST if checkpoint == "best" else files.LAST))
        if checkpoint == "best":
            raise ValueError(
                f"run {str(run)!r} has no {files.BEST}: no held-out evaluation has been made yet; use --checkpoint last"
            )
    found, made = files.checkpoints(run), agent()
    figures = load_checkpoint(next((one for one in found if files.steps_of(one) == checkpoint), found[-1]), made)
    return made.policy_tensors(), figures


# Files of a checkpoint


def _write_files(partial: Path, agent: Agent, state: dict[str, Any], best: Mapping[str, Tensor]) -> None:
    """Write each of the agent's groups of tensors to a file of its own, and its plain values with the figures."""
    own = agent.state()
    groups = {name: value for name, value in own.items() if is_tensors(value)}
    state = {**state, "agent": {name: value for name, value in own.items() if name not in groups}}
    contents = {name + TENSORS: tensors for name, tensors in groups.items()} | {RANDOM: _random_state(agent.device)}
    if best:
        contents[files.BEST] = dict(best)
    checksums = {}
    for name, tensors in contents.items():
        content = save({key: tensor.contiguous().cpu() for key, tensor in tensors.items()})
        checksums[name] = zlib.crc32(content)
        write_new(partial / name, content)
    checksums[files.STATE] = zlib.crc32(_figures(state))
    write_new(partial / files.STATE, (json.dumps({**state, "checksums": checksums}, indent=2) + "\n").encode())


def is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, Tensor) for one in value.values())


@contextlib.contextmanager
def _loading(checkpoint: Path) -> Iterator[None]:
    """Raise a ValueError that names the checkpoint for errors of files that are missing or damaged."""
    try:
        yield
    except NewerVersionError:
        raise
    except KeyError as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} is damaged: {files.STATE} has no {error}") from error
    except (OSError, *NO_STATE) as error:
        raise ValueError(f"checkpoint {str(checkpoint)!r} cannot be loaded: {error}") from error


def _load(checkpoint: Path, name: str, state: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
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


def _policy_checksum(tensors: Mapping[str, Tensor], text: str) -> int:
    checksum = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        about = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        checksum = zlib.crc32(tensor.contiguous().reshape(-1).numpy().tobytes(), zlib.crc32(about.encode(), checksum))
    return checksum


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators: uint8 tensors by kind of device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_state(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


# The run that a checkpoint belongs to


def newest_checkpoint(folder: Path, run: str) -> Path | None:
    """Return the newest checkpoint in ``folder`` that the run with this id wrote; None: there is none."""
    return next((path for path in reversed(files.complete_checkpoints(folder)) if _owned(path, _mark(run))), None)


def clear_begun(run: Path) -> None:
    """Remove what a run wrote that was killed before its first checkpoint, so that it may begin again.

    Raises:
        ValueError: the run has ended, has the policy of a checkpoint, or its folder holds something that it did not
            write, none of which is removed; or the folder is in use.
    """
    with files.locked(run):
        config = files.read_config(run, trust=True)
        names = {files.CHECKPOINTS: LEFT, files.TENSORBOARD: EVENTS, files.VIDEOS: VIDEO, files.SALIENCY: VIDEO}
        inner = [path for name in names if _is_folder(run / name) for path in (run / name).iterdir()]
        own = [path for path in inner if names[path.parent.name].fullmatch(path.name)]
        partial = [path for path in own if path.parent.name == files.CHECKPOINTS and _is_folder(path)]
        written = [path for path in own if path.parent.name != files.CHECKPOINTS and path.is_file()]
        memory = [run / files.DISK] if config.replay and files.store_id(run / files.DISK) == config.replay else []
        best = [run / files.BEST] if _is_policy(run / files.BEST) else []
        known = {*(run / name for name in (files.CONFIG, files.METRICS, files.LOCK, *names)), *memory, *best}
        strange = {*run.iterdir()} - known | {*inner} - {*partial, *written}
        strange |= {path for path in partial if not _owned(path, _mark(config.run)) and any(path.iterdir())}
        if strange:
            found = ", ".join(sorted(str(path.relative_to(run)) for path in strange))
            raise ValueError(
                f"run {str(run)!r} has no checkpoint to resume from, and cannot begin again in its folder, which holds "
                f"{found}; restore the checkpoints, move the folder away, or give another"
            )
        for path in memory:
            next(files.memory_folders(run, {config.replay}))
            path.rmdir()
        for path in (*written, *best, run / files.METRICS):
            path.unlink(missing_ok=True)
        for path in partial:
            _remove_left(path, _mark(config.run))
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (run / name).rmdir()
        (run / files.CONFIG).unlink()  # last: until then the folder is the run's


def _is_policy(path: Path) -> bool:
    try:
        return bool(load_policy(path))
    except (OSError, ValueError, NewerVersionError):
        return False


def _mark(run: str) -> bytes:
    return (json.dumps({"written by": "sharpwave", "run": run}) + "\n").encode()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _owned(path: Path, mark: bytes) -> bool:
    """Return whether this run wrote the checkpoint at ``path``: it has the run's mark."""
    try:
        return _is_folder(path) and not (path / MARK).is_symlink() and read_regular(path / MARK, 1 << 10) == mark
    except (OSError, ValueError):
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


def _remove_left(left: Path, mark: bytes) -> None:
    if _owned(left, mark):
        shutil.rmtree(left, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):  # not empty, or not a folder
            left.rmdir()


# The callback that writes them


class NotSavedError(RuntimeError):
    """Error raised when a run has ended and its last checkpoint could not be written completely."""


class Saver(Callback):
    """Callback that writes a run's checkpoints and its best and last policy. It must be the last callback.

    A failed write is reported and tried again later; training goes on. Checkpoints hold the replay memory if the
    recipe's ``save_replay`` is set, and the demonstrations that the view draws from.

    Args:
        run: the run's id.
        say: called with a sentence about each failure.
        about: description of the run's policies, which their files hold beside the figures.
    Attributes:
        lost: the error of the last checkpoint if it could not be written; else "".
    """

    def __init__(
        self, folder: Path, run: str, say: Callable[[str], None], about: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._folder, self._run, self._say, self._about = folder, run, say, about
        self._training: Training | None = None
        self._counted = 0  # episodes that had ended by the previous checkpoint
        self._figures: Metrics = {}
        self._best: dict[str, Tensor] = {}
        self.lost = ""
        self._free = self._too_little = 0  # bytes left on the disk before the last attempt, and before one that failed

    def on_begin(self, training: Training) -> None:
        self._training, self._counted = training, training.state.scores.count

    def wants_checkpoint(self, training: Training) -> bool:
        """Return whether a checkpoint is due, and the disk has room for one: it breaks off all episodes.

        Where it has none, that is reported as a failure, and the run goes on as if no checkpoint had been due.
        """
        if training.reason is not None:
            return True
        if not training.state.progress.checkpoint_due:
            return False
        lacking = self._lacking(training)
        if lacking:
            self._failed(training, lacking)
        return not lacking

    def _lacking(self, training: Training) -> str:
        """Return why the disk has no room for a checkpoint, which would be deleted again; or ""."""
        with contextlib.suppress(OSError):
            place = self._folder / files.CHECKPOINTS
            self._free = shutil.disk_usage(place if place.exists() else self._folder).free
            need = max(self._least_bytes(training), self._too_little + 1)
            if self._free < need:
                return f"the disk has {self._free:,} bytes left, a checkpoint takes at least {need:,}; make room"
        return ""

    def _least_bytes(self, training: Training) -> int:
        """Return disk space that a checkpoint takes at least: tensors, and steps that stores hold in memory.

        Stores on disk count for nothing: their files are linked where that is possible.
        """
        groups = [value for value in training.agent.state().values() if is_tensors(value)]
        groups.append(training.state.held_out.best_weights)
        tensors: int = sum(tensor.nbytes for group in groups for tensor in group.values())
        stats = [store.stats() for store in _memories(training).values()]
        return tensors + sum(int(one["bytes"]["arena_used"]) for one in stats if "disk" not in one)

    def _failed(self, training: Training, why: str) -> None:
        """Report a checkpoint that is not written, and when it is tried again."""
        self.lost, progress = why, training.state.progress
        retry_at = progress.saved(False)
        self._say(
            f"The checkpoint at {progress.steps:,} steps could not be written: {why}. {self._kept()}; the next attempt "
            f"is made at {retry_at:,} steps"
        )

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        recipe, state = training.recipe, training.state
        progress, count, every = state.progress, state.scores.count, recipe.training.checkpoint_every
        # No warning after a failed checkpoint: that one broke all episodes off only a moment ago.
        here = not recipe.actors.count and not recipe.offline
        if here and count == self._counted and progress.passed(every) and not self.lost:
            self._say(
                f"No episode has ended in the {every:,} steps before this checkpoint, which breaks all of them off; "
                "give a longer --checkpoint-every"
            )
        self._counted = count
        self._figures = {"steps": metrics["steps"], "report": metrics, "training": state.to_dict()}
        if recipe.replay.save_replay and isinstance(training.view, DemonstratedReplay):
            self._figures["blend"] = training.view.state()
        self._best = state.held_out.best_weights
        before = self.lost
        try:
            self._save(training, _memories(training))
        except OSError as error:
            if error.errno in FULL:
                self._too_little = self._free
            self._failed(training, str(error))
        else:
            self.lost, self._too_little = "", 0
            progress.saved(True)
            if before:
                self._say(f"The checkpoint at {progress.steps:,} steps was written; the run is saved again")
        # Last: ``clear_begun`` knows by this file that there was a checkpoint.
        figures = {"steps": metrics["steps"], **self._about}
        keep_policy(self._folder / files.LAST, training.agent.policy_tensors(), figures, self._say)

    def on_evaluation(self, metrics: Metrics) -> None:
        assert self._training is not None
        held_out = self._training.state.held_out
        if metrics["best"] and held_out.best is not None:
            figures = {**held_out.best.figures(), **self._about}
            keep_policy(self._folder / files.BEST, held_out.best_weights, figures, self._say)

    def finish(self) -> None:
        """Save the run's last checkpoint without the replay memory if it could not be written with it.

        Raises:
            NotSavedError: the last checkpoint could not be written completely; the message says what was saved.
        """
        training = self._training
        if not self.lost or training is None:
            return
        steps = self._figures["steps"]
        message = f"The run's last checkpoint, at {steps:,} steps, could not be written: {self.lost}."
        saved = None
        if _memories(training):
            with contextlib.suppress(OSError):
                saved = self._save(training, {})
        if saved is None:
            raise NotSavedError(f"{message} Training since the previous checkpoint is lost. {self._kept()}")
        raise NotSavedError(
            f"{message} It was saved without the replay memory: checkpoint {saved.name} can be evaluated, and a run "
            "resumed from it fills a new memory before it learns"
        )

    def _save(self, training: Training, memories: Mapping[str, sw.Store]) -> Path:
        folder, keep_every = self._folder / files.CHECKPOINTS, training.recipe.training.keep_every
        return save_checkpoint(folder, training.agent, self._figures, memories, self._run, self._best, keep_every)

    def _kept(self) -> str:
        found = newest_checkpoint(self._folder / files.CHECKPOINTS, self._run)
        return "No checkpoint has been written yet" if found is None else f"Checkpoint {found.name} is kept"


def _memories(training: Training) -> dict[str, sw.Store]:
    """Return the stores that a checkpoint includes: the replay memory, unless it is a cluster, and demonstrations."""
    store, view = training.store, training.view
    if not training.recipe.replay.save_replay or not isinstance(store, sw.Store):
        return {}
    return {files.REPLAY: store} | (
        {DEMONSTRATIONS: view.demonstrations} if isinstance(view, DemonstratedReplay) else {}
    )
