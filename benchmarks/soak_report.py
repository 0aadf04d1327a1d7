"""Report of ``soak.py``: slopes, a table, goals met or missed, and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import runner
from runner import Results, slope

if TYPE_CHECKING:
    from rich.console import Console

MIB = 1 << 20
WARM_UP = 0.1
"""Share of the windows, from the first, that slopes leave out."""
RARE = ("checkpoint", "flush", "resize")
"""Operations with few calls in a window, whose 99th percentile is not followed."""


def slopes(windows: list[dict[str, Any]]) -> Results:
    """Return slopes of memory in MiB per hour and of latencies in % of their mean per hour, with standard errors."""
    kept = windows[int(len(windows) * WARM_UP) :]
    if not kept:
        return {}
    found: Results = {"memory MiB": slope([w["at_s"] / 3600 for w in kept], [w["grown"] / MIB for w in kept])}
    for name in sorted({name for w in kept for name in w["operations"]}):
        there = [w for w in kept if name in w["operations"]]
        for part in ("p50_ms",) if name in RARE else ("p50_ms", "p99_ms"):
            values = [w["operations"][name][part] for w in there]
            steep, error = slope([w["at_s"] / 3600 for w in there], values)
            mean = float(np.mean(values)) / 100
            found[f"{name} {part.removesuffix('_ms')} %"] = (steep / mean, error / mean)
    return found


def table(console: Console, results: Results) -> None:
    """Print each operation's calls and latencies over the whole run, and how these changed."""
    shown = runner.table("Operations", "", "calls", "p50 ms", "p99 ms", "longest ms", "p50 an hour", "p99 an hour")
    windows = results["windows"]
    for name in sorted({name for w in windows for name in w["operations"]}):
        there = [w["operations"][name] for w in windows if name in w["operations"]]
        cells = [f"{sum(o['calls'] for o in there):,}"]
        cells += [f"{np.median([o[part] for o in there]):.2f}" for part in ("p50_ms", "p99_ms")]
        cells.append(f"{max(o['max_ms'] for o in there):,.1f}")
        cells += [change(results["slopes"].get(f"{name} {part} %"), "%") for part in ("p50", "p99")]
        shown.add_row(name, *cells)
    console.print(shown)
    console.print(
        "p50 and p99: medians over windows. An hour: least squares over windows after the first tenth, in % of the "
        "mean, and its standard error.",
        style="dim",
    )


def change(found: tuple[float, float] | None, unit: str) -> str:
    """Format a slope."""
    return "-" if found is None or np.isnan(found[0]) else f"{found[0]:+.1f} ± {found[1]:.1f} {unit}"


def goals(console: Console, results: Results) -> bool:
    """Print the goals; return whether all are met."""
    last = results["windows"][-1]
    counts, ram = last["counts"], results["ram"]
    steep, error = results["slopes"]["memory MiB"]
    checkpoint = results["checkpoint"]
    rows: list[tuple[str, str, bool | None]] = [
        ("no transition is wrong", f"{counts['wrong']} wrong in {counts['transitions']:,}", counts["wrong"] == 0),
        ("no exceptions", f"{counts['exceptions']}", not results["problems"]),
        ("memory never above ram= + 10 %", f"{results['peak'] / ram:.2f} x ram= at most", results["peak"] <= 1.1 * ram),
        # Within two standard errors, or less than 2 % of the limit an hour, is no growth.
        (
            "memory does not grow",
            change((steep, error), "MiB an hour"),
            bool(steep <= max(2 * error, 0.02 * ram / MIB)) if np.isfinite(error) else None,
        ),
    ]
    for name in ("checkpoint", "store"):
        found = results.get(name)
        if found is not None:
            told = f"{len(found['damages'])} damages in {found['segments']:,} segments, {found['steps']:,} steps"
            rows.append(
                (
                    f"sharpwave verify: the {'last ' if found is checkpoint else ''}{name}",
                    told,
                    found["segments"] > 0 and not found["damages"],
                )
            )
    if checkpoint is not None:
        told = f"{checkpoint['held']:,} steps, {len(checkpoint['wrong'])} of 100 batches wrong"
        rows.append(("the last checkpoint opened and sampled", told, not checkpoint["wrong"]))
    else:
        rows.append(("sharpwave verify: the last checkpoint", "none was made", None))
    shown = runner.table("Goals", "goal", "reached", " ", left=("goal", "reached", " "))
    for goal, reached, met in rows:
        shown.add_row(goal, reached, "-" if met is None else "[green]met" if met else "[red]missed")
    console.print(shown)
    for problem in results["problems"][:5]:
        console.print(problem, style="red", markup=False)
    return all(met is not False for _, _, met in rows)


def figure(results: Results, path: Path) -> None:
    """Draw memory, held steps and latencies over time."""
    from matplotlib.ticker import NullFormatter

    windows, where = results["windows"], results["environment"]
    minutes = [w["at_s"] / 60 for w in windows]
    styles = {
        "append": ("#0b7285", "-"),
        "stream": ("#e8590c", "-"),
        "sample": ("#5f3dc4", "-"),
        "update": ("#868e96", "-"),
        "checkpoint": ("#2b8a3e", "--"),
        "flush": ("#adb5bd", "--"),
    }
    title = f"A store on disk under five threads for {minutes[-1]:.0f} minutes ({where['machine']}, {where['date']})"
    with runner.picture(path, title, 2, 2, figsize=(11, 7), sharex=True) as axes:
        held, disk = axes[0]
        held.plot(minutes, [w["grown"] / MIB for w in windows], color="#0b7285", label="the process grew by")
        held.plot(minutes, [w["counted"] / MIB for w in windows], ":", color="#0b7285", label="stats() says")
        held.axhline(results["ram"] / MIB, color="#c92a2a", linewidth=1, label="ram=")
        held.set_ylim(0, 1.25 * results["ram"] / MIB)
        held.set_title("memory, MiB", loc="left", fontsize=10)
        held.legend(frameon=False, loc="lower right", fontsize=8)
        disk.plot(minutes, [w["total_steps"] / 1e6 for w in windows], color="#868e96", label="appended")
        disk.plot(minutes, [w["steps"] / 1e6 for w in windows], color="#0b7285", label="held")
        disk.set_ylim(0, None)
        disk.set_title("steps, millions", loc="left", fontsize=10)
        disk.legend(frameon=False, loc="upper left", fontsize=8)
        for axis, part in zip(axes[1], ("p50", "p99"), strict=True):
            for name, (colour, style) in styles.items():
                there = [w for w in windows if name in w["operations"]]
                x = [w["at_s"] / 60 for w in there]
                if there:
                    values = [w["operations"][name][f"{part}_ms"] for w in there]
                    axis.plot(x, values, style, color=colour, label=name)
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_title(f"{part}, ms, in windows of {windows[0]['seconds']:.0f} s", loc="left", fontsize=10)
            axis.set_xlabel("minutes")
            axis.grid(True, which="major", color="#e9ecef")
        axes[1][1].sharey(axes[1][0])
        axes[1][1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
