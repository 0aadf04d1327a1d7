"""Learning curve of a run as a PNG."""

from __future__ import annotations

import io
import json
from pathlib import Path

from sharpwave.training.files import write_bytes
from sharpwave.training.text import printable


def draw_curve(
    metrics: Path, picture: Path, title: str, stop_reward: float | None, steps: str = "environment steps"
) -> None:
    """Draw rewards against steps and against minutes, from a run's metrics.jsonl to a PNG.

    Dots are training episodes, the line is the mean of the last 100; diamonds are held-out evaluations.

    Args:
        steps: name of what the run counts as steps.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    episodes = [event for event in events if event["event"] == "episode"]
    evaluations = [event for event in events if event["event"] == "evaluation"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(printable(title), parse_math=False)
    for axes, key in zip(figure.subplots(1, 2, sharey=True), ("steps", "minutes"), strict=True):
        across = [event[key] for event in episodes]
        if episodes:
            rewards = [event["reward"] for event in episodes]
            axes.plot(across, rewards, ".", markersize=3, alpha=0.3, label="episode of training")
            axes.plot(across, [event["mean_reward"] for event in episodes], linewidth=2, label="mean of 100")
        axes.plot(
            [event[key] for event in evaluations],
            [event["mean"] for event in evaluations],
            "D" if episodes else "D-",
            markersize=5,
            label="held-out mean",
        )
        if stop_reward is not None:
            axes.axhline(stop_reward, linestyle="--", linewidth=1, color="gray", label=f"goal {stop_reward:g}")
        axes.set_xlabel(steps if key == "steps" else key)
        if key == "steps":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("reward of an episode")
    figure.axes[0].legend(loc="best")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    write_bytes(picture, drawn.getvalue())
