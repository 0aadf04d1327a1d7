"""Callbacks that show and log a run's figures: the terminal, JSON lines, TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import time
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sharpwave.escaping import printable
from sharpwave.extras import install
from sharpwave.showing import byte_text, duration_text, number_text, step_bytes_text, table, titled
from sharpwave.training.atomic_files import RecordFile, make_folder
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.folder import Config
from sharpwave.training.progress import Metrics
from sharpwave.training.recipes.recipe import Recipe

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
SCALARS = {
    "episode": ({"reward": "reward", "avg_reward": "avg_reward", "episode_steps": "steps"}, "figures", "episode"),
    "report": (REPORT, "learner", "learner"),
    "evaluation": ({"mean": "held_out/mean", "min": "held_out/min"}, "", ""),
}
"""Names of an event's scalars by the names of its figures; the figure that holds further ones, and their prefix."""
PROJECT = "sharpwave"
"""Weights & Biases' project of runs for which ``WANDB_PROJECT`` names none."""
TWO_PAIRS = 110
"""Columns of a terminal that is wide enough for two figures in a line."""


def scalars(event: str, metrics: Metrics) -> dict[str, float]:
    names, further, prefix = SCALARS[event]
    more = metrics.get(further, {})
    found, names = metrics | more, names | {name: f"{prefix}/{name}" for name in more}
    # Some figures exist only in runs with actors.
    return {name: found[key] for key, name in names.items() if found.get(key) is not None}


class EventLog(Callback):
    """Callback that logs episodes, reports and evaluations alike. A subclass has ``log``."""

    def log(self, event: str, metrics: Metrics) -> None:
        """Log an event of a kind of ``SCALARS``.  Raises: OSError."""
        raise NotImplementedError

    def on_episode(self, metrics: Metrics) -> None:
        self.log("episode", metrics)

    def on_report(self, metrics: Metrics) -> None:
        self.log("report", metrics)

    def on_evaluation(self, metrics: Metrics) -> None:
        self.log("evaluation", metrics)


class RecordLog(EventLog):
    """Callback that appends events to a file. All methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self._file = RecordFile(path)

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class JsonLines(RecordLog):
    """Callback that appends every event to a file, one JSON object a line."""

    def log(self, event: str, metrics: Metrics) -> None:
        self._file.append((json.dumps({"event": event, **metrics}) + "\n").encode())


class TensorBoard(RecordLog):
    """Callback that writes scalars for TensorBoard, against environment steps.

    Args:
        folder: folder of the event files; made if absent.
        after: step at which the run resumes: TensorBoard hides later steps of earlier files; None: a new run.
    """

    def __init__(self, folder: Path, after: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        make_folder(folder)
        seconds, rest = divmod(time.time_ns(), 10**9)  # TensorBoard reads files in the order of their names
        name = f"events.out.tfevents.{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"
        super().__init__(folder / name)
        self._event, self._summary = Event, Summary
        self._records = RecordWriter(SimpleNamespace(write=self._file.append))
        self._add(file_version="brain.Event:2")
        if after is not None:
            self._add(step=after + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, event: str, metrics: Metrics) -> None:
        values = [self._summary.Value(tag=name, simple_value=one) for name, one in scalars(event, metrics).items()]
        self._add(step=metrics["steps"], summary=self._summary(value=values))

    def _add(self, **what: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **what).SerializeToString())


def check_tracking(recipe: Recipe) -> None:
    """Check that wandb is installed if the recipe asks for it.  Raises: ValueError."""
    if recipe.training.track and importlib.util.find_spec("wandb") is None:
        raise ValueError(f"--track needs Weights & Biases, which is not installed: {install('wandb')}")


class WeightsAndBiases(EventLog):
    """Callback that logs the scalars of TensorBoard's file to Weights & Biases, against environment steps.

    wandb's own environment variables apply: ``WANDB_PROJECT``, ``WANDB_MODE=offline`` and so on. Its files lie in the
    run's folder; a resumed run continues its log.

    Raises:
        ValueError: wandb refuses the run: no account is configured, or its server cannot be reached.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        import wandb

        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=folder.name,
                id=config.run,
                resume="allow",
                dir=str(folder),
                config={"recipe": config.name, **config.recipe.to_table()},
                settings=wandb.Settings(console="off"),  # the display writes to the terminal
            )
        except wandb.errors.Error as error:
            raise ValueError(
                f"--track: Weights & Biases refuses the run: {error}; WANDB_MODE=offline logs into its folder instead"
            ) from error
        self._run.define_metric("*", step_metric="steps")

    def log(self, event: str, metrics: Metrics) -> None:
        values = scalars(event, metrics)
        if "steps" in values:  # in TensorBoard this is the name of an episode's length
            values["episode_steps"] = values.pop("steps")
        self._run.log({**values, "steps": metrics["steps"]})

    def close(self) -> None:
        self._run.finish()


class Display(Callback):
    """Callback that shows a live table on a terminal or in a notebook, and elsewhere prints a line every
    ``line_seconds``."""

    OF_ACTING = ("training mean of 100", "episodes", "epsilon")
    """Figures of agents that act while they learn."""

    def __init__(
        self,
        console: Console,
        title: str,
        total_steps: int,
        stop_reward: float | None,
        line_seconds: float = 10.0,
        *,
        offline: bool = False,
    ) -> None:
        self._console = console
        self._title = title
        self._total_steps = total_steps
        self._stop_reward = stop_reward
        self._offline = offline
        self._line_seconds = line_seconds
        self._last_line = float("-inf")
        self._live: Live | None = None
        self._in_notebook: Any = None
        if console.is_jupyter and not console.quiet:
            notebook = import_module("IPython.display")
            self._html = notebook.HTML
            self._in_notebook = notebook.display(self._html("waiting for the first report ..."), display_id=True)
        elif console.is_terminal and not console.quiet:
            self._live = Live(Panel("waiting for the first report ..."), console=console, refresh_per_second=4)
            self._live.start()

    def on_report(self, metrics: Metrics) -> None:
        if self._live is not None:
            self._live.update(self._panel(metrics))
        elif self._in_notebook is not None:
            share = min(1.0, metrics["steps"] / self._total_steps)
            done = f"<progress value='{share:.4f}' style='width:100%;max-width:640px'></progress>"
            self._in_notebook.update(self._html(titled(self._title, done, table(("", ""), self._figures(metrics)))))
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
        grid = Table.grid(padding=(0, 2), expand=True)
        pairs = 2 if self._console.width >= TWO_PAIRS else 1
        for _ in range(pairs):
            grid.add_column(style="dim", no_wrap=True)
            grid.add_column(style="bold", no_wrap=True, ratio=1)
        half = -(-len(figures) // pairs)
        for row in zip_longest(*(figures[i : i + half] for i in range(0, len(figures), half)), fillvalue=("", "")):
            grid.add_row(*(text for pair in row for text in pair))
        return Panel(
            grid,
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
        steps, speed = ("updates", "updates a second") if self._offline else ("steps", "FPS")
        lost_steps = (m.get("disk") or {}).get("dropped_steps", 0)
        lost = f", {lost_steps:,} not stored on the full disk" if lost_steps else ""
        figures = [
            (steps, f"{m['steps']:,} / {self._total_steps:,}"),
            (speed, number_text(m["avg_fps"], 0)),
            ("held-out mean", number_text((m.get("held_out") or {}).get("mean")) + goal),
            ("training mean of 100", number_text(m["mean_reward"])),
            ("episodes", f"{m['episodes']:,}"),
            ("epsilon", number_text(m["epsilon"], 3)),
            ("loss", number_text(m["avg_loss"], 4)),
            ("replay", f"{m['replay_steps']:,} steps, {byte_text(m['replay_bytes'])}{lost}"),
            ("memory", step_bytes_text(m)),
            ("RAM", byte_text(m["process_bytes"])),
            ("time left", f"at most {duration_text(m['seconds_left'])}"),
            *(actors if "actor_restarts" in m else []),
        ]
        return [one for one in figures if not self._offline or one[0] not in self.OF_ACTING]
