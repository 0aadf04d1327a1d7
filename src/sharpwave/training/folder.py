"""A run's folder: its files by name, its lock, settings, summary, metrics, list of checkpoints and memory on disk.

A run changes only its own files: those named here, checkpoints with its mark, and files with its store's id. A link is
never followed for writing. ``sharpwave.training.checkpoints`` reads and writes the tensors.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sharpwave.disk.ownership import is_of
from sharpwave.disk.state_files import STATES, partial_of, state_files
from sharpwave.disk.store_folder import MANIFEST
from sharpwave.errors import NewerVersionError, NotRegisteredError
from sharpwave.escaping import quoted
from sharpwave.json_values import sealed
from sharpwave.native import descriptors
from sharpwave.native.directory import Directory
from sharpwave.offline.scan import is_store
from sharpwave.training.atomic_files import read_regular, write_bytes
from sharpwave.training.recipes.recipe import OwnEnvironment, Recipe, resumable

CONFIG, METRICS, SUMMARY, CURVE, LOCK = "config.json", "metrics.jsonl", "summary.json", "curve.png", "lock"
BEST, LAST = "best.safetensors", "last.safetensors"
"""Policy files: the one with the best held-out evaluation, and that of the newest checkpoint."""
CHECKPOINTS, DISK, TENSORBOARD, VIDEOS, SALIENCY = "checkpoints", "replay", "tensorboard", "videos", "saliency"
STATE, REPLAY = "state.json", "replay"
"""Files of a checkpoint: its figures, and the folder of its replay memory."""
CHECKPOINT_NAME, MEMORY_NAME = re.compile(r"[0-9]{12}(-[0-9]+)?"), re.compile(rf"{DISK}(-[0-9]+)?")
VERSION = 2
"""Format version of config.json, of a checkpoint's state.json and of policies."""
MAX_JSON_BYTES, MAX_LINE_BYTES, MAX_MANIFEST_BYTES, MAX_LOCK_BYTES = 1 << 20, 1 << 20, 16 << 20, 32
"""Size limits of config.json and summary.json, of a line of metrics, of a store's manifest, and of the lock."""
OWN_FILES = (CONFIG, METRICS, SUMMARY, CURVE, BEST, LAST)
OWN_FOLDERS = (CHECKPOINTS, DISK, TENSORBOARD, VIDEOS, SALIENCY)
"""Names in a run's folder that must not be links."""
PARTIAL = re.compile(rf"\.({'|'.join(map(re.escape, OWN_FILES))})\.[0-9a-f]{{8}}\.partial|\.partial-[0-9]{{12}}\.mp4")
"""Names of files that a run's process left when it was killed before it renamed them."""

# The folder and its lock


@contextmanager
def new_folder(out: Path | None, name: str, seed: int) -> Iterator[Path]:
    """Make and lock the folder of a new run: ``out``, or ``runs/<name>-<time>-<seed>``. Yields its absolute path.

    After an error that leaves the folder empty, it is removed again if it was made here.

    Raises:
        ValueError: ``out`` exists and is not empty, is a file, or cannot be made.
    """
    default = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    for number in itertools.count(1):
        folder = out or (default if number == 1 else Path(f"{default}-{number}"))
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            made = True
        except FileExistsError:
            if out is None:  # made by another process in the same second
                continue
            made = False
        except OSError as error:
            raise ValueError(f"--out: {str(folder)!r} cannot be made: {error}") from error
        break
    if not made:
        _check_empty(folder)
    folder = folder.absolute()  # an environment may change the working directory
    try:
        with locked(folder):
            if not made:
                _check_empty(folder)  # another run may have used it before it was locked
            yield folder
    except BaseException:
        with contextlib.suppress(OSError):  # it may be gone
            if made and os.listdir(folder) == [LOCK]:
                (folder / LOCK).unlink()
                folder.rmdir()
        raise


def _check_empty(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"--out: {str(folder)!r} is a file; a run needs a folder of its own. Give another name")
    if any(path.name != LOCK and not PARTIAL.fullmatch(path.name) for path in folder.iterdir()):
        raise ValueError(
            f"--out: {str(folder)!r} exists and is not empty; a run needs a folder of its own. Give another name or "
            f"remove it; to resume a run: sharpwave train --resume {quoted(folder)}"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other training processes; the system releases the lock even after a crash.

    Raises:
        ValueError: another process holds the lock, the folder cannot be written to, or one of the run's files is a
            link to elsewhere.
    """
    try:
        with Directory.open(folder) as held:
            for name in OWN_FILES:
                with contextlib.suppress(FileNotFoundError):
                    os.close(held.open_file(name))
            for name in OWN_FOLDERS:
                with contextlib.suppress(FileNotFoundError):
                    held.directory(name).close()
            descriptor = held.open_or_make(LOCK)
    except OSError as error:
        raise ValueError(f"run folder {str(folder)!r} cannot be used: {error}") from error
    try:
        holder = os.read(descriptor, MAX_LOCK_BYTES + 1).decode(errors="replace").strip()
        try:
            free = descriptors.lock(descriptor, shared=False)
        except OSError as error:
            raise ValueError(f"run {str(folder)!r} cannot be locked: {error}") from error
        if not free:
            raise ValueError(f"run {str(folder)!r} is in use by process {holder or 'unknown'}; end that process first")
        if holder and not holder.isdecimal():
            raise ValueError(f"{str(folder / LOCK)!r} is not a run's lock: it holds more than a number; move it away")
        if os.fstat(descriptor).st_nlink == 1:  # not a hard link to another file
            os.ftruncate(descriptor, 0)
            descriptors.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _remove_partial(folder)
        yield
    finally:
        os.close(descriptor)


def _remove_partial(run: Path) -> None:
    """Remove the files that a killed process of the run had begun; nobody writes them now, as the run is locked."""
    for folder in (run, run / VIDEOS, run / SALIENCY):
        with contextlib.suppress(OSError):  # it does not exist, or cannot be written to
            for path in folder.iterdir():
                if PARTIAL.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                    path.unlink()


# Settings: config.json


class Config(NamedTuple):
    """Content of config.json.

    Attributes:
        name: name of the recipe that the settings are based on.
        run, replay: ids of the run, which its checkpoints carry too, and of its replay memory on disk; "": it has none.
        learned_from: identity of the recorded data that it learns from, as ``as_origin`` has it; None: there are none.
    """

    name: str
    recipe: Recipe
    run: str = ""
    replay: str = ""
    learned_from: dict[str, Any] | None = None


def write_config(folder: Path, config: Config) -> None:
    """Write config.json atomically.  Raises: OSError."""
    ids = {"run": config.run, "replay": config.replay}
    values = {"version": VERSION, **ids, "recipe": config.name, "settings": config.recipe.to_table()}
    if config.learned_from is not None:
        values["learned_from"] = config.learned_from
    write_bytes(folder / CONFIG, sealed(values, indent=2))


def read_config(folder: Path, *, trust: bool = False) -> Config:
    """Read and check config.json.

    Args:
        trust: allow importing the module that the environment's name refers to.
    Raises:
        ValueError: the file is missing, damaged or edited, or its environment imports a module without ``trust``.
        NotRegisteredError: a program registered its agent, or its image model, and this process has not.
        NewerVersionError: a later release wrote it.
    """
    path = folder / CONFIG
    try:
        content = read_regular(path, MAX_JSON_BYTES)
        values = json.loads(content)
        check_version(path, values)
        if set(values) - {"learned_from"} != {"version", "run", "replay", "recipe", "settings", "checksum"}:
            raise ValueError(f"it holds {', '.join(sorted(values))}")
        if content != sealed(values, indent=2):  # bytes are compared: the encoding is canonical
            raise ValueError("its checksum does not match")
        for name in ("run", "replay"):
            if not isinstance(values[name], str) or not re.fullmatch("[0-9a-f]{32}|", values[name]):
                raise ValueError(f"{name} {values[name]!r}, expected an id of 32 hexadecimal digits")
        recipe = Recipe.from_table(values["settings"])
        origin = as_origin(values.get("learned_from"))
        config = Config(str(values["recipe"]), recipe, values["run"], values["replay"], origin)
    except NotRegisteredError as error:
        raise NotRegisteredError(
            f"{str(path)!r}: {error}. Your program's own classes are not known to this process: import "
            "the module that registers it, then call sharpwave.cli.main() with the same arguments, or let its package "
            "name it in an entry point. Nothing is damaged"
        ) from error
    except (OSError, KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is not the config of a run, or it was damaged or edited: {error}. Put back a copy of it. "
            f"Settings that a run may change are options of sharpwave train --resume {quoted(folder)}: "
            f"{', '.join(leaf.flag for leaf in resumable().values())}; others need a new run"
        ) from error
    if not trust:
        check_imports(path, config.recipe)
    return config


def check_imports(path: Path | str, recipe: Recipe) -> None:
    """Check that the environment of a recipe from a file imports no module.  Raises: ValueError."""
    env = recipe.env
    named = env.factory if isinstance(env, OwnEnvironment) else env.name
    module, colon, _ = named.partition(":")  # gymnasium imports the module before a colon
    if colon:
        raise ValueError(
            f"{str(path)!r}: its environment {named!r} would import the module {module!r} and run its code; "
            "nothing was imported. If you trust that module, repeat with --trust, in Python with trust=True"
        )


def check_version(path: Path, values: dict[str, Any]) -> None:
    """Check that this release reads the format version of a run's file.

    Raises:
        KeyError, ValueError: there is none, or none that a release wrote.  NewerVersionError: a later release wrote it.
    """
    version = values["version"]
    if type(version) is not int or version < VERSION:
        raise ValueError(f"version {version!r}, expected {VERSION}")
    if version > VERSION:
        raise NewerVersionError(f"{path}: version {version}, this release reads up to {VERSION}")


# Outcome and log: summary.json, metrics.jsonl


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write summary.json atomically.  Raises: OSError."""
    write_bytes(folder / SUMMARY, sealed(summary, indent=2))


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Read summary.json; None: it is missing or damaged."""
    try:
        content = read_regular(folder / SUMMARY, MAX_JSON_BYTES)
        summary = checked_summary(json.loads(content))
        if content != sealed(summary, indent=2):
            return None
        del summary["checksum"]
        return summary
    except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of metrics.jsonl; damaged lines, and a last one that is being written, are left out."""
    if path.is_file():
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if math.isfinite(_steps(line)):
                    yield json.loads(line)


def drop_metrics(path: Path, after: int) -> int:
    """Remove damaged lines and those about more than ``after`` steps; return how many were removed.

    Raises: OSError: the file cannot be written; where nothing is to be removed it is not.
    """
    kept, dropped, whole = [], 0, True
    if path.is_file():
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                whole &= line.endswith(b"\n")
                if _steps(line) <= after:
                    kept.append(line.rstrip(b"\n") + b"\n")
                else:
                    dropped += 1
    if dropped or not whole:
        write_bytes(path, b"".join(kept))
    return dropped


def _steps(line: bytes) -> float:
    """Return the steps of a line of metrics; infinity for a damaged line."""
    try:
        return float(json.loads(line)["steps"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return float("inf")


# Figures in these files: a valid checksum does not say that a run wrote them

MAX_COUNT = 1 << 62
"""Exclusive limit of counts."""


def parsed(values: Any, form: Mapping[str, Callable[[Any, str], Any]]) -> dict[str, Any]:
    """Return the figures that ``form`` names, each by its parser, which is called with the value and the name.

    Raises: KeyError, TypeError, ValueError, OverflowError.
    """
    return {name: parse(values[name], name) for name, parse in form.items()}


def as_count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name} is {_shown(value)}, expected an integer from 0 below {MAX_COUNT}")
    return value


def as_number(value: Any, name: str) -> float:
    """Return a measured number, which may be infinite or NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {_shown(value)}, expected a number")
    return float(value)


def as_mean(value: Any, name: str) -> float | None:
    """Return a mean, ``None`` before the first value."""
    return None if value is None else as_number(value, name)


def as_minutes(value: Any, name: str) -> float:
    found = as_number(value, name)
    if not (math.isfinite(found) and 0 <= found < MAX_COUNT):
        raise ValueError(f"{name} is {found:g}, expected a finite number from 0")
    return found


def as_origin(value: Any) -> dict[str, Any] | None:
    """Return the identity of recorded data: ``path``, ``version`` (a name, or None) and ``steps``, all that there
    are; ``learned``, if they are fewer; ``sha256``; of a store its id and ``segments``. None: there are none."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"learned_from is {_shown(value)}, expected a dict")
    for name, one in value.items():
        if name in ("steps", "segments", "learned"):
            as_count(one, name)
        elif not isinstance(one, str) and (name != "version" or one is not None):
            raise ValueError(f"{name} is {_shown(one)}, expected text")
    if not {"path", "version", "steps"} <= value.keys():
        raise ValueError(f"learned_from has {', '.join(map(repr, value))}, expected path, version and steps")
    return value


def as_behavior(value: Any) -> dict[str, Any] | None:
    """Return how an offline run compares with its data: means of ``last`` and, where they are known, of ``data`` and
    ``cloning``; ``below`` names those of them that the last policy is below. None: it was not compared."""
    if value is None:
        return None
    policy = {"mean": as_number, "error": as_number, "episodes": as_count}
    parsed(value["last"], policy)
    for name, form in (("data", {"mean": as_number, "episodes": as_count}), ("cloning", policy)):
        if value[name] is not None:
            parsed(value[name], form)
    if not set(value["below"]) <= {"data", "cloning"}:
        raise ValueError(f"below is {_shown(value['below'])}, expected some of data, cloning")
    return dict(value)


def as_scores(value: Any, name: str) -> list[float]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_shown(value)}, expected a list of numbers")
    return [as_number(one, name) for one in value]


EVALUATION = {"steps": as_count, "scores": as_scores, "fresh": as_scores}
REPORT = {
    **dict.fromkeys(("steps", "episodes", "updates", "replay_steps", "replay_bytes", "fixed_bytes"), as_count),
    **dict.fromkeys(("mean_reward", "bytes_per_step", "encoded_bytes_per_step"), as_mean),
    "minutes": as_minutes,
}
"""Forms of an evaluation, and of a report with all that a summary needs."""


def checked_evaluation(values: Any) -> dict[str, Any]:
    """Return the steps and scores of an evaluation.  Raises: as ``parsed``."""
    found = parsed(values, EVALUATION)
    if not found["scores"]:
        raise ValueError("scores is empty, expected the score of at least one episode")
    return found


def checked_report(values: Any) -> dict[str, Any]:
    """Return a run's last report.  Raises: as ``parsed``."""
    if not isinstance(values, dict):
        raise ValueError(f"the report is {_shown(values)}, expected a dict")
    parsed(values, REPORT)
    return values


def checked_summary(values: Any) -> dict[str, Any]:
    """Return a run's summary.  Raises: as ``parsed``."""
    if not isinstance(checked_report(values)["reason"], str):
        raise ValueError(f"reason is {_shown(values['reason'])}, expected text")
    as_origin(values.get("learned_from"))
    as_behavior(values.get("behavior"))
    for name in ("held_out", "final"):
        if (one := values.get(name)) is not None:
            checked_evaluation(one)
            parsed(one, {"mean": as_number, "min": as_number})
    return dict(values)


def _shown(value: Any) -> str:
    """Return a short representation of any value; an integer may have more digits than Python prints."""
    kind = type(value).__name__
    return f"{kind} {str(value)[:40]!r}" if isinstance(value, (str, float)) else kind


# Checkpoints, by name


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
    found = complete_checkpoints(run / CHECKPOINTS)
    if not found:
        raise ValueError(
            f"run {str(run)!r} has no checkpoint yet; one is written after checkpoint_every steps and when training "
            "ends (also by Ctrl-C)"
        )
    return found


def complete_checkpoints(folder: Path) -> list[Path]:
    """List the complete checkpoints in a folder, oldest first: names are zero-padded steps, so they sort."""
    named = (path for path in folder.glob("[0-9]*") if CHECKPOINT_NAME.fullmatch(path.name))
    return sorted(path for path in named if (path / STATE).is_file())


def chosen_checkpoint(run: Path, checkpoint: str | None) -> str:
    """Return which of a run's policies is meant: best, last or the steps of a checkpoint; None: best, or else last.

    Raises:
        ValueError: the folder holds no run, or no such checkpoint.
    """
    found = [steps_of(path) for path in checkpoints(run)]
    if checkpoint not in (None, "best", "last", *found):
        raise ValueError(
            f"--checkpoint: got {checkpoint!r}, expected best, last or the steps of a checkpoint: {', '.join(found)}"
        )
    return checkpoint or ("best" if (run / BEST).is_file() else "last")


def steps_of(checkpoint: Path) -> str:
    """Return the name by which a checkpoint is chosen: its steps, without leading zeros."""
    steps, *number = checkpoint.name.split("-")
    return "-".join([str(int(steps)), *number])


# The replay memory on disk


def replay_of(path: Path) -> Path:
    """Return the folder of the steps of a run or a checkpoint; any other path as it is."""
    return path if is_store(path) else memory_of(path) or path


def memory_of(run: Path) -> Path | None:
    """Return the folder of a run's replay memory, or of a checkpoint's: the newest on disk, else ``saved_memory``'s."""
    on_disk = [path for path in run.glob(f"{DISK}*") if MEMORY_NAME.fullmatch(path.name) and is_store_in(run, path)]
    return max(on_disk, key=lambda path: (len(path.name), path.name), default=None) or saved_memory(run)


def saved_memory(run: Path) -> Path | None:
    """Return the replay memory of the newest checkpoint of a run that has one; None: none has."""
    named = (path for path in (run / CHECKPOINTS).glob("[0-9]*") if CHECKPOINT_NAME.fullmatch(path.name))
    return max((path / REPLAY for path in named if is_store_in(run, path / REPLAY)), default=None)


def is_store_in(folder: Path, path: Path) -> bool:
    """Return whether a path below a folder is a store's, and leads from there through no link."""
    inside = os.path.join(os.path.realpath(folder), path.relative_to(folder))
    return os.path.realpath(path) == inside and is_store(path)


def store_id(folder: Path) -> str:
    """Return the id in a folder's store.json, of a store or of a store's checkpoint; "": there is none."""
    try:
        store = json.loads(read_regular(folder / MANIFEST, MAX_MANIFEST_BYTES))["store"]
        return store if isinstance(store, str) and re.fullmatch("[0-9a-f]{32}", store) else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def memory_folders(run: Path, ids: set[str]) -> Iterator[Path]:
    """Yield folders for the run's replay memory, each cleared of files that the run's own stores wrote there.

    The caller uses the first that a store accepts; further ones follow because others may hold foreign files.

    Args:
        ids: ids of the run's stores.
    """
    for number in itertools.count(1):
        folder = run / (DISK if number == 1 else f"{DISK}-{number}")
        if not folder.is_symlink():
            if (store := store_id(folder)) in ids - {""}:
                _clear(folder, store)
            yield folder


def _clear(folder: Path, store: str) -> None:
    """Remove the files that the store with this id wrote into a folder, and no others.  Raises: OSError."""
    regions, states = folder / "regions", [folder / kind for kind in STATES]
    owned = [path for path, owner in state_files(folder) if owner == store]
    if regions.is_dir() and not regions.is_symlink():
        with Directory.open(regions) as held:
            owned += [
                path
                for path in regions.iterdir()
                if is_of(held, path.name, bytes.fromhex(store)) or path.name.endswith(f".{store}.partial")
            ]
    for place in states:
        if place.is_dir() and not place.is_symlink():
            owned += [path for path in place.iterdir() if partial_of(path.name) == store]
    for path in owned:
        path.unlink()
    for empty in (regions, *states, folder / "quarantine"):
        with contextlib.suppress(OSError):  # not empty, a link, or not there
            empty.rmdir()
    (folder / f".{MANIFEST}.{store}.partial").unlink(missing_ok=True)
    (folder / MANIFEST).unlink()  # last: after a crash it still names the owner of the other files
