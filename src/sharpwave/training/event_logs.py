"""Callbacks that log a run's figures to files: JSON lines and TensorBoard."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.files import RecordFile, real_folder
from sharpwave.training.progress import Metrics

EPISODE = {"reward": "reward", "avg_reward": "avg_reward", "episode_steps": "steps"}
REPORT = {
    "loss": "loss",
    "avg_loss": "avg_loss",
    "epsilon": "epsilon",
    "avg_fps": "avg_fps",
    "mean_reward": "mean_reward_100",
    "replay_steps": "memory/replay_steps",
    "replay_bytes": "memory/replay_bytes",
    "bytes_per_step": "memory/bytes_per_step",
    "encoded_bytes_per_step": "memory/encoded_bytes_per_step",
    "fixed_bytes": "memory/fixed_bytes",
    "process_bytes": "memory/process_bytes",
    "stale_versions": "actors/stale_versions",
    "stale_steps": "actors/stale_steps",
    "replay_ratio": "actors/replay_ratio",
    "actor_restarts": "actors/restarts",
}
EVALUATION = {"mean": "held_out/mean", "min": "held_out/min"}
"""Names of the scalars, by the names of the figures."""


def episode_scalars(metrics: Metrics) -> dict[str, float]:
    """Return the scalars to log of an episode."""
    figures = metrics.get("figures", {})
    return _scalars(metrics | figures, EPISODE | {name: f"episode/{name}" for name in figures})


def report_scalars(metrics: Metrics) -> dict[str, float]:
    """Return the scalars to log of a report."""
    learner = metrics.get("learner", {})
    return _scalars(metrics | learner, REPORT | {name: f"learner/{name}" for name in learner})


def evaluation_scalars(metrics: Metrics) -> dict[str, float]:
    """Return the scalars to log of an evaluation."""
    return _scalars(metrics, EVALUATION)


def _scalars(metrics: Metrics, names: dict[str, str]) -> dict[str, float]:
    # Some figures exist only in runs with actors.
    return {name: metrics[key] for key, name in names.items() if metrics.get(key) is not None}


class JsonLines(Callback):
    """Callback that appends every event to a file, one JSON object a line. All methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self._file = RecordFile(path)

    def on_episode(self, metrics: Metrics) -> None:
        self._file.append((json.dumps({"event": "episode", **metrics}) + "\n").encode())

    def on_report(self, metrics: Metrics) -> None:
        self._file.append((json.dumps({"event": "report", **metrics}) + "\n").encode())

    def on_evaluation(self, metrics: Metrics) -> None:
        self._file.append((json.dumps({"event": "evaluation", **metrics}) + "\n").encode())

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard(Callback):
    """Callback that writes scalars for TensorBoard, against environment steps. All methods raise OSError.

    Args:
        folder: folder of the event files; made if absent.
        after: step at which the run resumes: TensorBoard hides later steps of earlier files; None: a new run.
    """

    def __init__(self, folder: Path, after: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        if not real_folder(folder):
            folder.mkdir()
        seconds, rest = divmod(time.time_ns(), 10**9)  # TensorBoard reads files in the order of their names
        name = f"events.out.tfevents.{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordFile(folder / name)
        self._event, self._summary = Event, Summary
        self._records = RecordWriter(_Appending(self._file))
        self._add(file_version="brain.Event:2")
        if after is not None:
            self._add(step=after + 1, session_log=SessionLog(status=SessionLog.START))

    def on_episode(self, metrics: Metrics) -> None:
        self._write(metrics, episode_scalars(metrics))

    def on_report(self, metrics: Metrics) -> None:
        self._write(metrics, report_scalars(metrics))

    def on_evaluation(self, metrics: Metrics) -> None:
        self._write(metrics, evaluation_scalars(metrics))

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, metrics: Metrics, scalars: dict[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(step=metrics["steps"], summary=self._summary(value=values))

    def _add(self, **what: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **what).SerializeToString())


class _Appending:
    """File object, as TensorBoard's record writer expects it, that appends to a record file."""

    def __init__(self, file: RecordFile) -> None:
        self.write = file.append
