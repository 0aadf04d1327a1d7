"""Whole training runs for the benchmarks: ``sharpwave train`` in a process of its own, resumed if interrupted."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sharpwave.training.folder import CONFIG, METRICS, SUMMARY, checkpoints

Episodes = list[dict[str, Any]]
POLL_S = 1.0
"""Seconds between two reads of a run's metrics."""


def train(
    folder: Path, arguments: Sequence[str], *, fresh: bool = False, enough: Callable[[Episodes], bool] | None = None
) -> dict[str, Any]:
    """Train in ``folder`` until the run ends by itself or has played ``enough``; a run that is done is not repeated.

    Args:
        arguments: arguments of ``sharpwave train``, the recipe first; ignored if there is a checkpoint to resume from.
        fresh: remove an existing run.
        enough: function from the episodes so far to whether to stop.
    Returns:
        the run's summary.
    Raises:
        RuntimeError: the process failed.
    """
    if fresh:
        _remove(folder)
    while not (ended(folder) or (enough is not None and enough(episodes(folder)) and (folder / SUMMARY).is_file())):
        if _has_checkpoint(folder):
            command = ["train", "--resume", str(folder)]
        else:
            _remove(folder)
            command = ["train", *arguments, "--out", str(folder)]
        process = subprocess.Popen([sys.executable, "-m", "sharpwave.cli", *command], stdout=sys.stderr.fileno())
        told, size = False, _size(folder)
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                before, size = size, _size(folder)
                # A process that has just started does not catch signals yet; one that writes metrics does.
                if enough is not None and not told and size > before and enough(episodes(folder)):
                    process.send_signal(signal.SIGINT)
                    told = True
        except BaseException:
            process.terminate()  # which makes it write a checkpoint
            process.wait()
            raise
        interrupted = process.returncode == 128 + signal.SIGINT  # by this function, or by a user at the terminal
        if process.returncode and not interrupted:
            raise RuntimeError(f"sharpwave {' '.join(command)}: ended with {process.returncode}, see above")
        if not told and not ended(folder):
            raise KeyboardInterrupt  # the run was interrupted, not this process
    summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text())
    return summary


def ended(folder: Path) -> bool:
    """Return whether a run reached its reward or its limit of steps."""
    path = folder / SUMMARY
    return path.is_file() and not json.loads(path.read_text())["reason"].startswith("interrupted")


def episodes(folder: Path) -> Episodes:
    """Read the episodes of a run, oldest first; none if there is no run."""
    path = folder / METRICS
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []  # a partial line may follow the last newline
    events = [json.loads(line) for line in lines]
    return [event for event in events if event["event"] == "episode"]


def _size(folder: Path) -> int:
    path = folder / METRICS
    return path.stat().st_size if path.is_file() else 0


def _has_checkpoint(folder: Path) -> bool:
    try:
        return bool(checkpoints(folder))
    except ValueError:
        return False


def _remove(folder: Path) -> None:
    """Remove a folder if it is a run's."""
    if (folder / CONFIG).is_file():
        shutil.rmtree(folder)
