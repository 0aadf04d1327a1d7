"""Callback that displays a run's figures: a live table on a terminal, else lines."""

from __future__ import annotations

import time
from itertools import zip_longest

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sharpwave.showing import byte_text
from sharpwave.training.callbacks import Callback
from sharpwave.training.progress import Metrics
from sharpwave.training.text import duration_text, number_text, printable, step_bytes_text

TWO_PAIRS = 110
"""Columns of a terminal that is wide enough for two figures in a line."""


class Display(Callback):
    """Callback that shows a live table on a terminal, and elsewhere prints a line every ``line_seconds``."""

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
        pairs = 2 if self._console.width >= TWO_PAIRS else 1
        for _ in range(pairs):
            table.add_column(style="dim", no_wrap=True)
            table.add_column(style="bold", no_wrap=True, ratio=1)
        half = -(-len(figures) // pairs)
        for row in zip_longest(*(figures[i : i + half] for i in range(0, len(figures), half)), fillvalue=("", "")):
            table.add_row(*(text for pair in row for text in pair))
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
