"""What is shown and kept of a run while it goes on. Callbacks are given plain dicts and know nothing of agents."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from sharpwave.training.text import byte_text, duration_text, number_text

Metrics = dict[str, Any]


class Callback:
    """Told what happens; overrides what it cares for."""

    def on_episode(self, metrics: Metrics) -> None:
        """An episode has ended: steps, minutes, reward, episode_steps, avg_reward, mean_reward, episodes."""

    def on_report(self, metrics: Metrics) -> None:
        """A report is due: steps, minutes, avg_fps, loss, epsilon, replay_bytes and the rest of the run's figures."""

    def flush(self) -> None:
        """A checkpoint is about to be made: what was told before it must be kept as surely as the checkpoint."""

    def close(self) -> None:
        """The run is over, by whatever way."""


class JsonLines(Callback):
    """Appends every episode and every report to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)  # a line is on its way as soon as it is written

    def on_episode(self, metrics: Metrics) -> None:
        self._file.write(json.dumps({"event": "episode", **metrics}) + "\n")

    def on_report(self, metrics: Metrics) -> None:
        self._file.write(json.dumps({"event": "report", **metrics}) + "\n")

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class TensorBoard(Callback):
    """Scalars against environment steps; ``steps`` is an episode's length.

    Args:
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

    def __init__(self, folder: Path, after: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        self._writer = SummaryWriter(str(folder), purge_step=None if after is None else after + 1)

    def on_episode(self, metrics: Metrics) -> None:
        self._write(metrics, self.EPISODE)

    def on_report(self, metrics: Metrics) -> None:
        self._write(metrics, self.REPORT)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, metrics: Metrics, names: dict[str, str]) -> None:
        for key, name in names.items():
            if metrics.get(key) is not None:  # there are figures of runs with actors only
                self._writer.add_scalar(name, metrics[key], metrics["steps"])


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
            table, title=self._title, border_style="cyan", subtitle="Ctrl-C ends with a checkpoint to --resume from"
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
            ("reward (mean of 100)", number_text(m["mean_reward"]) + goal),
            ("episodes", f"{m['episodes']:,}"),
            ("epsilon", number_text(m["epsilon"], 3)),
            ("loss", number_text(m["avg_loss"], 4)),
            ("replay", f"{m['replay_steps']:,} steps, {byte_text(m['replay_bytes'])}"),
            ("bytes a step", number_text(m["bytes_per_step"], 1)),
            ("RAM", byte_text(m["process_bytes"])),
            ("time left", f"at most {duration_text(m['seconds_left'])}"),
            *(actors if "actor_restarts" in m else []),
        ]
