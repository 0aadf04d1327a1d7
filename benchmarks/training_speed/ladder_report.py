"""Report of the ladder: two tables and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sharpwave.bench.clock import PARTS
from sharpwave.showing import byte_text
from sharpwave.training.text import number_text
from training_speed.ladder import runs_of
from training_speed.progress import Results
from training_speed.rungs import BOUND, RUNGS, TEXTBOOK
from training_speed.solved import MEASURES
from training_speed.textbook import CAPACITY

COLOURS = dict(zip(PARTS, ("#1c7ed6", "#37b24d", "#f59f00", "#c92a2a", "#dee2e6", "#868e96"), strict=True))


def tables(results: Results, rows: list[dict[str, Any]], console: Console) -> None:
    """Print both tables, with explanations of their figures."""
    speed = _table("The ladder: where the time of a step goes")
    speed.add_column("")
    for column in ("steps/s", *PARTS, "CPU", "memory", "transition", f"{CAPACITY // 1000}K of them"):
        speed.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        for number, (process, milliseconds) in enumerate(row["milliseconds"].items()):
            times = [number_text(milliseconds[part]) if milliseconds[part] else "" for part in PARTS]
            if number == 0:
                each = row["bytes_per_transition"]
                memory = [byte_text(row["memory_bytes"]), f"{each:,.0f} B", byte_text(each * CAPACITY)]
                first = [row["rung"], spread_text(row["steps_per_second"], 1)]
                speed.add_row(*first, *times, number_text(row["cpu_milliseconds"]), *memory, style=_style(row))
            else:
                speed.add_row(f"  {process}", "", *times, style="dim")
    for name, reason in results["absent"].items():
        speed.add_row(name, Text(reason), style="yellow")  # plain text: [bench] is not markup
    console.print(speed)
    settings, where = results["settings"], results["environment"]
    counts = " or ".join(map(str, sorted({row["slices"] for row in rows})))
    console.print(
        f"Milliseconds of a step, medians; slices a rung: {counts}, of {settings['steps']:,} steps (full and "
        f"full-float32: {RUNGS['full'].times} times as many) after a warm-up of {settings['warmup']:,}; steps/s with "
        "the lowest and the highest slice. Threads of torch and OpenMP, divided where there are two processes: "
        f"{settings['threads']}. CPU: of all processes and threads. Memory: growth of all processes in a slice. "
        f"A step is an action in one environment, four frames of the emulator.\n{where['machine']}, "
        f"load {where['load_average']:.1f}, {where['date']}, "
        + ", ".join(f"{name} {number}" for name, number in where["versions"].items()),
        style="dim", highlight=False,
    )  # fmt: skip

    solved = _table(f"To a mean reward of {BOUND:g}")
    solved.add_column("")
    for measure in MEASURES.values():
        solved.add_column(f"frames, {measure}", justify="right", no_wrap=True)
        solved.add_column(f"minutes, {measure}", justify="right", no_wrap=True)
    solved.add_column("frames from", no_wrap=True)
    solved.add_column("published", justify="right", no_wrap=True)
    for row in rows:
        mark = "~" if row["frames_from"] == "published" else ""
        cells = []
        for measure in MEASURES:
            cells += [
                spread_text(row["frames"][measure], 0),
                spread_text(row["minutes"][measure], 0 if mark else 1, mark),
            ]
        published = row["published"]
        theirs = "-" if published is None else f"{published['steps_per_second']:g}/s, {published['minutes']:g} min"
        solved.add_row(row["rung"], *cells, _source(row, results), theirs, style=_style(row))
    console.print(solved)
    console.print(
        "Frames are agent steps. alpha .98: running mean of episodes' rewards, each counting .02; mean of 100: of the "
        "last episodes. ~: steps/s measured, minutes extrapolated from N frames to solve of the run that did finish. "
        "That is the published one, with its steps/s times its minutes as frames; runs of full were made here and have "
        "minutes of their own. -: not published, or not known of runs that ended before.\n"
        f"Published: {TEXTBOOK}.",
        style="dim", highlight=False,
    )  # fmt: skip


def figure(results: Results, rows: list[dict[str, Any]], path: Path) -> None:
    """Draw stacked bars of a step's milliseconds, a bar for each process; beside them the minutes to the bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [(row, process) for row in rows for process in row["milliseconds"]]
    names = [row["rung"] if process == "learner" else process for row, process in bars]
    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        height = 0.36 * len(bars) + 2.2
        learned = any(run["curve"] for run in results.get("finished", []))
        heights = [height, 4.2] if learned else [height]
        shown = pyplot.figure(figsize=(13, sum(heights)), layout="constrained")
        upper, *lower = shown.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        axes = upper.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        left = [0.0] * len(bars)
        for part in PARTS:
            values = [row["milliseconds"][process][part] for row, process in bars]
            axes[0].barh(range(len(bars)), values, left=left, color=COLOURS[part], height=0.72, label=part)
            left = [before + value for before, value in zip(left, values, strict=True)]
        for at, (row, process) in enumerate(bars):
            if process == "learner":
                _note(axes[0], left[at], at, f"{row['steps_per_second']['median']:,.0f} steps/s")
        axes[0].set_yticks(range(len(bars)), names)
        axes[0].set_xlim(0, 1.18 * max(left))
        axes[0].set_title("milliseconds of an environment step", loc="left", fontsize=10)
        axes[0].legend(loc="lower right", fontsize=8, frameon=False)
        axes[0].invert_yaxis()
        _draw_minutes(axes[1], bars)
        for below in lower:
            _draw_curves(below.subplots(), rows, results)
        for axis in axes:
            axis.tick_params(length=0, axis="y")
        where = results["environment"]
        shown.suptitle(f"DQN on Pong, step by step ({where['machine']}, {where['date']})", fontsize=11, weight="bold")
        shown.savefig(path, dpi=130)
        pyplot.close(shown)


def _draw_minutes(axis: Any, bars: list[tuple[dict[str, Any], str]]) -> None:
    """Draw minutes to solve, thick: measured, thin: published; of two known measures the textbook's."""
    highest = 1.0
    for at, (row, process) in enumerate(bars):
        if process != "learner":
            continue
        here = row["minutes"]["alpha"] or row["minutes"]["mean100"]
        if here is not None:
            extrapolated = row["frames_from"] == "published"
            measure = "alpha" if row["minutes"]["alpha"] else "mean100"
            text = f"~{here['median']:,.0f}" if extrapolated else f"{here['median']:,.1f}, measured"
            axis.barh(at, here["median"], color="#0b7285" if not extrapolated else "#74c0fc", height=0.72)
            _note(axis, here["median"], at, text + (" (mean of 100)" if measure == "mean100" else ""))
            highest = max(highest, here["median"])
        else:
            _note(axis, 1.0, at, "not known")
        if row["published"] is not None:
            axis.plot([row["published"]["minutes"]] * 2, [at - 0.4, at + 0.4], color="#212529", linewidth=2)
            highest = max(highest, row["published"]["minutes"])
    axis.plot([], [], color="#212529", linewidth=2, label="as published, on its machine")
    axis.set_xscale("log")
    axis.set_xlim(1, highest * 5)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_title(f"minutes to a mean of {BOUND:g} (~ extrapolated)", loc="left", fontsize=10)
    axis.legend(loc="lower right", fontsize=8, frameon=False)


def _draw_curves(axis: Any, rows: list[dict[str, Any]], results: Results) -> None:
    """Draw scores by frames of every finished run: speed-ups must not change them."""
    for row, colour in zip(
        [row for row in rows if RUNGS[row["rung"]].kind == "sharpwave"], ("#0b7285", "#e8590c"), strict=False
    ):
        for number, run in enumerate(runs_of(row["rung"], results)):
            label = f"{row['rung']}: {RUNGS[row['rung']].change}" if number == 0 else None
            across, means = zip(*run["curve"], strict=True) if run["curve"] else ((), ())
            axis.plot([frames / 1000 for frames in across], means, color=colour, linewidth=1.3, alpha=0.8, label=label)
    axis.axhline(BOUND, linestyle="--", linewidth=1, color="gray")
    axis.set_xlabel("thousand frames", fontsize=9)
    axis.set_title("mean reward of 100 episodes by frames; a line a seed", loc="left", fontsize=10)
    axis.legend(loc="lower right", fontsize=8, frameon=False)


def _note(axis: Any, across: float, at: int, text: str) -> None:
    axis.annotate(
        f" {text}", (across, at), va="center", fontsize=8, color="#495057", xytext=(2, 0), textcoords="offset points"
    )


def _source(row: dict[str, Any], results: Results) -> str:
    if row["frames_from"] == "runs":
        return f"{len(runs_of(row['rung'], results))} runs in {Path(results['finished_from']).name}"
    if row["frames_from"] == "published":
        same = RUNGS[row["rung"]].frames_of
        return f"published, {same}" if same else "published"
    return "-"


def spread_text(value: dict[str, float | None] | None, digits: int, mark: str = "") -> str:
    """Format a spread: "12.3", or "12.3 (11.9 to 14.0)" where values differ."""
    if value is None:
        return "-"
    text = f"{mark}{value['median']:,.{digits}f}"
    if value["low"] == value["high"]:
        return text
    high = "never" if value["high"] is None else f"{value['high']:,.{digits}f}"
    return f"{text} ({value['low']:,.{digits}f} to {high})"


def _table(title: str) -> Table:
    return Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)


def _style(row: dict[str, Any]) -> str:
    return "bold cyan" if RUNGS[row["rung"]].kind == "sharpwave" else ""
