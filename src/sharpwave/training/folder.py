"""A run's folder: how it is made, who holds it, and whether all that a run writes in it lies there."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharpwave.training.config import CONFIG
from sharpwave.training.files import open_regular, real_folder
from sharpwave.training.text import quoted

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

METRICS, SUMMARY, CURVE, LOCK = "metrics.jsonl", "summary.json", "curve.png", "lock"
BEST, LAST = "best.safetensors", "last.safetensors"
"""The policy with the best held-out evaluation, and that of the newest checkpoint."""
CHECKPOINTS, DISK, TENSORBOARD = "checkpoints", "replay", "tensorboard"
MAX_LOCK_BYTES = 32


@contextmanager
def new_folder(out: Path | None, name: str, seed: int) -> Iterator[Path]:
    """Make and hold the folder of a new run: ``out``, or ``runs/<name>-<time>-<seed>``. Yields its absolute path.

    Where what is done inside fails before anything is in it, a folder that was made here is removed again.

    Raises:
        ValueError: ``out`` is there already and not empty, is a file, or cannot be made.
    """
    default = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    for number in itertools.count(1):
        folder = out or (default if number == 1 else Path(f"{default}-{number}"))
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            made = True
        except FileExistsError:
            if out is None:  # begun by another process in the same second
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
                _check_empty(folder)  # another one may have ended here meanwhile
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
            f"--out: {str(folder)!r} exists and is not empty; a run writes into a folder of its own. "
            f"Give another name or remove it; to go on with a run: sharpwave train --resume {quoted(folder)}"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While inside, no other process trains in the folder; the lock ends with the process, however that ends.

    Raises:
        ValueError: another process does, the folder cannot be written to, or what a run writes there lies elsewhere.
    """
    try:
        for name in (CONFIG, METRICS, SUMMARY, CURVE, BEST, LAST, LOCK):
            if os.path.lexists(folder / name):
                os.close(open_regular(folder / name, os.O_RDONLY))
        for name in (CHECKPOINTS, DISK, TENSORBOARD):
            real_folder(folder / name)
        descriptor = open_regular(folder / LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ValueError(f"run {str(folder)!r} cannot be trained in: {error}") from error
    try:
        holder = os.read(descriptor, MAX_LOCK_BYTES + 1).decode(errors="replace").strip()
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ValueError(
                    f"run {str(folder)!r} is in use by process {holder or 'unknown'}, which trains it; end that first"
                ) from error
        if holder and not holder.isdecimal():
            raise ValueError(f"{str(folder / LOCK)!r} is no run's lock: it holds more than a number; move it away")
        if os.fstat(descriptor).st_nlink == 1:  # by its other name it may be anybody's file
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
