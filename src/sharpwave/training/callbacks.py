"""Hooks into training, and those that show and keep what happens: display, JSON lines, TensorBoard."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sharpwave.training.files import RecordFile, real_folder
from sharpwave.training.text import byte_text, duration_text, number_text, printable

if TYPE_CHECKING:
    from sharpwave.agents.protocol import Learned
    from sharpwave.training.loop import Training

Metrics = dict[str, Any]


class Callback:
    """Base class for training hooks. Each does nothing, or what a subclass makes of it.

    ``training`` is the run under way (:class:`sharpwave.training.loop.Training`), to be looked at, and to be ended by
    ``training.stop(reason)``; ``metrics`` are plain dicts.
    """

    def on_begin(self, training: Training) -> None:
        """Training begins, or goes on from a checkpoint."""

    def on_step(self, training: Training) -> None:
        """A turn is over: steps have arrived, or none came in a while."""

    def on_update(self, training: Training, learned: Learned) -> None:
        """The agent has made an update."""

    def on_episode(self, metrics: Metrics) -> None:
        """An episode has ended: steps, minutes, reward, episode_steps, avg_reward, mean_reward, episodes."""

    def on_report(self, metrics: Metrics) -> None:
        """A report is due: steps, minutes, avg_fps, loss, epsilon, replay_bytes and the rest of the run's figures."""

    def on_evaluation(self, metrics: Metrics) -> None:
        """A held-out evaluation was made: steps, minutes, scores, mean, min, lost, best (so far)."""

    def wants_checkpoint(self, training: Training) -> bool:
        """Return whether a checkpoint is to be made after this turn. Asked once a turn, after :meth:`on_step`."""
        return False

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        """A checkpoint is made, of the state that the last report, ``metrics``, told of. What was written so far must
        be kept as surely as the checkpoint, which a later callback writes."""

    def on_end(self, metrics: Metrics) -> None:
        """Training has ended: the last report, with ``reason``. Not called after an error."""

    def close(self) -> None:
        """Release what is held; called however the run ended."""


class StopWhen(Callback):
    """Ends training once ``reason`` returns one."""

    def __init__(self, reason: Callable[[], str | None]) -> None:
        self._reason = reason

    def on_step(self, training: Training) -> None:
        reason = self._reason()
        if reason is not None:
            training.stop(reason)


class Lasting(Callback):
    """Wrapper of a callback whose files or terminal may fail: that is said once, and the run goes on.

    Args:
        what: its name for people.  say: told when it fails, and when it works again.
    """

    def __init__(self, callback: Callback, what: str, say: Callable[[str], None]) -> None:
        self._callback, self._what, self._say = callback, what, say
        self._failing = False

    def on_begin(self, training: Training) -> None:
        self._try(lambda: self._callback.on_begin(training), writes=False)

    def on_step(self, training: Training) -> None:
        self._try(lambda: self._callback.on_step(training), writes=False)

    def on_update(self, training: Training, learned: Learned) -> None:
        self._try(lambda: self._callback.on_update(training, learned), writes=False)

    def on_episode(self, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_episode(metrics))

    def on_report(self, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_report(metrics))

    def on_evaluation(self, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_evaluation(metrics))

    def wants_checkpoint(self, training: Training) -> bool:
        return self._callback.wants_checkpoint(training)

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_checkpoint(training, metrics))

    def on_end(self, metrics: Metrics) -> None:
        self._try(lambda: self._callback.on_end(metrics), writes=False)

    def close(self) -> None:
        try:
            self._callback.close()
        except OSError as error:
            self._say(f"{self._what} is not complete: {error}")

    def _try(self, call: Callable[[], None], *, writes: bool = True) -> None:
        """Call, and note whether that failed; a success shows that files can be written again if it ``writes``."""
        try:
            call()
        except OSError as error:
            if not self._failing:
                self._say(f"{self._what} cannot be written: {error}; training goes on, and what waits is written later")
            self._failing = True
        else:
            if self._failing and writes:
                self._say(f"{self._what} is written again")
                self._failing = False


class JsonLines(Callback):
    """Appends every episode and every report to a file, one JSON object a line. All methods raise OSError."""

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
    """Scalars against environment steps; ``steps`` is an episode's length. All methods raise OSError.

    Args:
        folder: made if absent.
        after: a run is resumed after so many steps; what earlier files say about later steps is not shown.
    """

    EPISODE: ClassVar[dict[str, str]] = {"reward": "reward", "avg_reward": "avg_reward", "episode_steps": "steps"}
    REPORT: ClassVar[dict[str, str]] = {
        "loss": "loss",
        "avg_loss": "avg_loss",
        "epsilon": "epsilon",
        "avg_fps": "avg_fps",
        "mean_reward": "mean_reward_100",
        "replay_steps": "memory/replay_steps",
        "replay_bytes": "memory/replay_bytes",
        "bytes_per_step": "memory/bytes_per_step",
        "process_bytes": "memory/process_bytes",
        "stale_versions": "actors/stale_versions",
        "stale_steps": "actors/stale_steps",
        "replay_ratio": "actors/replay_ratio",
        "actor_restarts": "actors/restarts",
    }

    EVALUATION: ClassVar[dict[str, str]] = {"mean": "held_out/mean", "min": "held_out/min"}

    def __init__(self, folder: Path, after: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        if not real_folder(folder):
            folder.mkdir()
        seconds, rest = divmod(time.time_ns(), 10**9)  # files are read in the order of their names
        name = f"events.out.tfevents.{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordFile(folder / name)
        self._event, self._summary = Event, Summary
        self._records = RecordWriter(_Appending(self._file))
        self._add(file_version="brain.Event:2")
        if after is not None:
            self._add(step=after + 1, session_log=SessionLog(status=SessionLog.START))

    def on_episode(self, metrics: Metrics) -> None:
        self._write(metrics, self.EPISODE)

    def on_report(self, metrics: Metrics) -> None:
        learner = metrics.get("learner", {})
        self._write(metrics | learner, self.REPORT | {name: f"learner/{name}" for name in learner})

    def on_evaluation(self, metrics: Metrics) -> None:
        self._write(metrics, self.EVALUATION)

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, metrics: Metrics, names: dict[str, str]) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=metrics[key])
            for key, name in names.items()
            if metrics.get(key) is not None  # there are figures of runs with actors only
        ]
        self._add(step=metrics["steps"], summary=self._summary(value=values))

    def _add(self, **what: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **what).SerializeToString())


class _Appending:
    """What TensorBoard's writer of records takes for a file."""

    def __init__(self, file: RecordFile) -> None:
        self.write = file.append


class Display(Callback):
    """A live table on a terminal; elsewhere a line every ``line_seconds``."""

    def __init__(
        self, console: Console, title: str, total_steps: int, stop_reward: float | None, line_seconds: float = 10.0
    ) -> None:
        self._console = console
        self._title = title
        self._total_steps = total_steps
        self._stop_reward = stop_reward
        self._line_seconds = line_seconds
        self._last_line = float("-inf")
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(Panel("waiting for the first report ..."), console=console, refresh_per_second=4)
            self._live.start()

    def on_report(self, metrics: Metrics) -> None:
        if self._live is not None:
            self._live.update(self._panel(metrics))
        elif time.monotonic() - self._last_line >= self._line_seconds:
            self._last_line = time.monotonic()
            self._console.print(self._line(metrics), soft_wrap=True, highlight=False)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _line(self, m: Metrics) -> str:
        return "  ".join(f"{name} {value}" for name, value in self._figures(m))

    def _panel(self, m: Metrics) -> Panel:
        figures = self._figures(m)
        table = Table.grid(padding=(0, 2), expand=True)
        for _ in range(2):
            table.add_column(style="dim", no_wrap=True)
            table.add_column(style="bold", no_wrap=True, ratio=1)
        half = (len(figures) + 1) // 2
        for left, right in zip(figures[:half], [*figures[half:], ("", "")], strict=False):
            table.add_row(*left, *right)
        return Panel(
            table,
            title=Text(printable(self._title)),
            border_style="cyan",
            subtitle="Ctrl-C ends with a checkpoint to --resume from",
        )

    def _figures(self, m: Metrics) -> list[tuple[str, str]]:
        goal = "" if self._stop_reward is None else f" / {self._stop_reward:g}"
        stale = f"{number_text(m.get('stale_versions'), 1)} versions, {number_text(m.get('stale_steps'), 0)} steps"
        actors = [
            ("weights behind", stale),
            ("samples a step", number_text(m.get("replay_ratio"))),
            ("actor restarts", f"{m.get('actor_restarts')}"),
        ]
        return [
            ("steps", f"{m['steps']:,} / {self._total_steps:,}"),
            ("FPS", number_text(m["avg_fps"], 0)),
            ("held-out mean", number_text((m.get("held_out") or {}).get("mean")) + goal),
            ("training mean of 100", number_text(m["mean_reward"])),
            ("episodes", f"{m['episodes']:,}"),
            ("epsilon", number_text(m["epsilon"], 3)),
            ("loss", number_text(m["avg_loss"], 4)),
            ("replay", f"{m['replay_steps']:,} steps, {byte_text(m['replay_bytes'])}"),
            ("bytes a step", number_text(m["bytes_per_step"], 1)),
            ("RAM", byte_text(m["process_bytes"])),
            ("time left", f"at most {duration_text(m['seconds_left'])}"),
            *(actors if "actor_restarts" in m else []),
        ]
