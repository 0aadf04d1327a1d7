"""A run's folder: creation, locking, and the check that a run's files in it are not links to elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharpwave.native import descriptors
from sharpwave.training.config import CONFIG
from sharpwave.training.files import open_regular, real_folder
from sharpwave.training.text import quoted

METRICS, SUMMARY, CURVE, LOCK = "metrics.jsonl", "summary.json", "curve.png", "lock"
BEST, LAST = "best.safetensors", "last.safetensors"
"""Policy files: the one with the best held-out evaluation, and that of the newest checkpoint."""
CHECKPOINTS, DISK, TENSORBOARD, VIDEOS, SALIENCY = "checkpoints", "replay", "tensorboard", "videos", "saliency"
MAX_LOCK_BYTES = 32


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
    if not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir()):
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
        for name in (CONFIG, METRICS, SUMMARY, CURVE, BEST, LAST, LOCK):
            if os.path.lexists(folder / name):
                os.close(open_regular(folder / name, os.O_RDONLY))
        for name in (CHECKPOINTS, DISK, TENSORBOARD, VIDEOS, SALIENCY):
            real_folder(folder / name)
        descriptor = open_regular(folder / LOCK, os.O_RDWR | os.O_CREAT)
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
        yield
    finally:
        os.close(descriptor)
